/* SPDX-License-Identifier: Apache-2.0 */
/* Who may start. A waiting job starts when what it expects to need is free
 * on each of its devices. For a guarantee job guests are asked to shrink,
 * and it starts when they have. First come, first served within a class, so
 * that small jobs do not keep a large one waiting for ever. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/parse.h"
#include "scheduler/coordinator/coordinator_internal.h"

typedef enum sl_fit {
    SL_FIT_NOW,
    SL_FIT_LATER, /* when guests have shrunk */
    SL_FIT_NO
} sl_fit_t;

static int is_guest(const sl_coord_job_t *job)
{
    return job->job_class != SL_JOB_CLASS_GUARANTEE;
}

uint64_t sl_coord_capacity(const sl_coord_t *coord,
                           const sl_coord_snapshot_t *seen, const char *name)
{
    uint64_t most = 0;
    int i;

    if (coord->params.capacity_bytes > 0) {
        return coord->params.capacity_bytes;
    }
    for (i = 0; i < seen->n_jobs; i++) {
        const sl_coord_device_t *device =
            sl_coord_find_device(&seen->jobs[i], name);

        if (device != NULL && device->capacity_bytes > most) {
            most = device->capacity_bytes;
        }
    }
    return most;
}

/* Bytes of the device that other jobs have or were promised. `least_bytes`:
 * of them, what would stay if guests shrank. */
static uint64_t taken(sl_coord_t *coord, const sl_coord_snapshot_t *seen,
                      const sl_coord_decisions_t *decisions, int self,
                      const char *name, uint64_t *least_bytes_p)
{
    uint64_t bytes = 0, least = 0;
    int i;

    for (i = 0; i < seen->n_jobs; i++) {
        const sl_coord_job_t *job = &seen->jobs[i];
        const sl_coord_device_t *device = sl_coord_find_device(job, name);
        uint64_t part;

        if (i == self || device == NULL ||
            (!decisions->jobs[i].is_admitted &&
             !sl_coord_memory(coord, i)->is_reserved)) {
            continue;
        }
        part = device->held_bytes;
        if (part < device->wanted_bytes &&
            (job->state == SL_JOB_STATE_WAITING || !is_guest(job))) {
            part = device->wanted_bytes;
        }
        bytes += part;
        least += is_guest(job) && part > coord->params.floor_bytes
                     ? coord->params.floor_bytes
                     : part;
    }
    *least_bytes_p = least;
    return bytes;
}

static void say_no_room(const sl_coord_device_t *device, uint64_t capacity,
                        uint64_t bytes, char *reason)
{
    char asked[32], had[32], all[32];

    sl_format_bytes(device->wanted_bytes, asked, sizeof(asked));
    sl_format_bytes(capacity > bytes ? capacity - bytes : 0, had, sizeof(had));
    sl_format_bytes(capacity, all, sizeof(all));
    if (device->wanted_bytes > capacity) {
        (void)snprintf(reason, SL_CONTROL_REASON_BYTES,
                       "needs %s on %s, which has %s: give the job more "
                       "stages or smaller micro-batches",
                       asked, device->name, all);
    } else {
        (void)snprintf(reason, SL_CONTROL_REASON_BYTES,
                       "waits for %s on %s: %s of %s are free", asked,
                       device->name, had, all);
    }
}

static sl_fit_t fit(sl_coord_t *coord, const sl_coord_snapshot_t *seen,
                    const sl_coord_decisions_t *decisions, int i, char *reason)
{
    const sl_coord_job_t *job = &seen->jobs[i];
    sl_fit_t result = SL_FIT_NOW;
    int d;

    for (d = 0; d < job->n_devices; d++) {
        const sl_coord_device_t *device = &job->devices[d];
        const uint64_t capacity = sl_coord_capacity(coord, seen, device->name);
        uint64_t bytes, least;

        bytes = taken(coord, seen, decisions, i, device->name, &least);
        if (capacity == 0 || device->wanted_bytes + bytes <= capacity) {
            continue;
        }
        if (!is_guest(job) && device->wanted_bytes + least <= capacity) {
            if (result == SL_FIT_NOW) {
                say_no_room(device, capacity, bytes, reason);
            }
            result = SL_FIT_LATER;
            continue;
        }
        say_no_room(device, capacity, bytes, reason);
        return SL_FIT_NO;
    }
    return result;
}

/* The waiting job that comes next and was not looked at; -1 when none. */
static int next_waiting(const sl_coord_snapshot_t *seen, const char *is_seen)
{
    int i, best = -1;

    for (i = 0; i < seen->n_jobs; i++) {
        const sl_coord_job_t *job = &seen->jobs[i];

        if (job->state != SL_JOB_STATE_WAITING || is_seen[i]) {
            continue;
        }
        if (best < 0 || is_guest(job) < is_guest(&seen->jobs[best]) ||
            (is_guest(job) == is_guest(&seen->jobs[best]) &&
             job->created_ns < seen->jobs[best].created_ns)) {
            best = i;
        }
    }
    return best;
}

static int could_ever_fit(const sl_coord_t *coord,
                          const sl_coord_snapshot_t *seen,
                          const sl_coord_job_t *job)
{
    int d;

    for (d = 0; d < job->n_devices; d++) {
        const uint64_t capacity =
            sl_coord_capacity(coord, seen, job->devices[d].name);

        if (capacity > 0 && job->devices[d].wanted_bytes > capacity) {
            return 0;
        }
    }
    return 1;
}

/* An earlier job that waits for memory of a device of this one; -1: none. */
static int find_ahead(const sl_coord_snapshot_t *seen, const char *is_blocking,
                      int i)
{
    int j, d;

    for (j = 0; j < seen->n_jobs; j++) {
        for (d = 0; is_blocking[j] && d < seen->jobs[i].n_devices; d++) {
            if (sl_coord_find_device(&seen->jobs[j],
                                     seen->jobs[i].devices[d].name) != NULL) {
                return j;
            }
        }
    }
    return -1;
}

void sl_coord_admit(sl_coord_t *coord, const sl_coord_snapshot_t *seen,
                    sl_coord_decisions_t *decisions)
{
    char is_seen[SL_COORD_MAX_JOBS] = {0};
    char is_blocking[SL_COORD_MAX_JOBS] = {0};
    int i, ahead;

    for (i = 0; i < seen->n_jobs; i++) { /* promises are kept */
        if (seen->jobs[i].state == SL_JOB_STATE_WAITING) {
            decisions->jobs[i].is_admitted =
                sl_coord_memory(coord, i)->is_admitted;
        }
    }
    while ((i = next_waiting(seen, is_seen)) >= 0) {
        sl_coord_memory_t *memory = sl_coord_memory(coord, i);
        sl_coord_decision_t *decision = &decisions->jobs[i];
        sl_fit_t result;

        is_seen[i] = 1;
        if (decision->is_admitted) {
            continue;
        }
        ahead = find_ahead(seen, is_blocking, i);
        if (ahead >= 0) {
            memory->is_reserved = 0;
            (void)snprintf(decision->reason, sizeof(decision->reason),
                           "waits behind %.100s, which came first",
                           seen->jobs[ahead].id.text);
            continue;
        }
        result = fit(coord, seen, decisions, i, decision->reason);
        memory->is_reserved = result == SL_FIT_LATER;
        memory->is_admitted = result == SL_FIT_NOW;
        decision->is_admitted = memory->is_admitted;
        is_blocking[i] = (char)(result != SL_FIT_NOW &&
                                could_ever_fit(coord, seen, &seen->jobs[i]));
    }
}
