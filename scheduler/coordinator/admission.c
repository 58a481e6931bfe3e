/* SPDX-License-Identifier: Apache-2.0 */
/* Who may start. A waiting job starts when what it expects to need is free
 * on each of its GPUs and CPU devices. For a guarantee job guests are asked to
 * shrink, and it starts when they have. First come, first served within a
 * class, so that small jobs do not keep a large one waiting for ever. */
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

/* Of one other job: bytes of the pool that it has or was promised.
 * `least_bytes`: of them, what would stay if it shrank as a guest. */
static uint64_t taken_by(const sl_coord_t *coord,
                         const sl_coord_snapshot_t *seen, int i, int pool,
                         uint64_t *least_bytes_p)
{
    const sl_coord_job_t *job = &seen->jobs[i];
    uint64_t bytes = 0;
    int d;

    for (d = 0; d < job->n_devices; d++) {
        const sl_coord_device_t *device = &job->devices[d];
        uint64_t part = device->held_bytes;

        if (coord->pools.of[i][d] != pool) {
            continue;
        }
        if (part < device->wanted_bytes &&
            (job->state == SL_JOB_STATE_WAITING || !is_guest(job))) {
            part = device->wanted_bytes;
        }
        bytes = sl_coord_plus(bytes, part);
        *least_bytes_p = sl_coord_plus(
            *least_bytes_p, is_guest(job) && part > coord->params.floor_bytes
                                ? coord->params.floor_bytes
                                : part);
    }
    return bytes;
}

/* The same of all others. */
static uint64_t taken(sl_coord_t *coord, const sl_coord_snapshot_t *seen,
                      const sl_coord_decisions_t *decisions, int self, int pool,
                      uint64_t *least_bytes_p)
{
    uint64_t bytes = 0;
    int i;

    *least_bytes_p = 0;
    for (i = 0; i < seen->n_jobs; i++) {
        if (i != self && (decisions->jobs[i].is_admitted ||
                          sl_coord_memory(coord, i)->is_reserved)) {
            bytes = sl_coord_plus(
                bytes, taken_by(coord, seen, i, pool, least_bytes_p));
        }
    }
    return bytes;
}

/* What a waiting job asks of a pool. */
typedef struct sl_ask {
    int pool;
    const sl_coord_device_t *device; /* its first one there */
    int n_devices;
    uint64_t wanted_bytes; /* all of them */
} sl_ask_t;

/* What the i-th job asks of the pool of its d-th device. @return 0 when an
 * earlier one is there, so that it was asked already */
static int find_ask(const sl_coord_t *coord, const sl_coord_snapshot_t *seen,
                    int i, int d, sl_ask_t *ask)
{
    const sl_coord_job_t *job = &seen->jobs[i];
    int e;

    memset(ask, 0, sizeof(*ask));
    ask->pool = coord->pools.of[i][d];
    ask->device = &job->devices[d];
    for (e = 0; e < job->n_devices; e++) {
        if (coord->pools.of[i][e] != ask->pool) {
            continue;
        }
        if (e < d) {
            return 0;
        }
        ask->n_devices++;
        ask->wanted_bytes =
            sl_coord_plus(ask->wanted_bytes, job->devices[e].wanted_bytes);
    }
    return 1;
}

static void say_no_room(const sl_coord_t *coord,
                        const sl_coord_snapshot_t *seen, const sl_ask_t *ask,
                        uint64_t bytes, char *reason)
{
    const uint64_t alone = sl_coord_capacity(coord, seen, ask->pool, 1);
    const uint64_t capacity = sl_coord_capacity(coord, seen, ask->pool, 0);
    const char *whose = ask->n_devices > 1 ? "the GPU of " : "";
    char asked[32], had[32], all[32];

    sl_format_bytes(ask->wanted_bytes, asked, sizeof(asked));
    if (ask->wanted_bytes > alone) {
        sl_format_bytes(alone, all, sizeof(all));
        (void)snprintf(reason, SL_CONTROL_REASON_BYTES,
                       "needs %s on %s%s, which has %s: give the job more "
                       "stages or smaller micro-batches",
                       asked, whose, ask->device->name, all);
        return;
    }
    sl_format_bytes(capacity > bytes ? capacity - bytes : 0, had, sizeof(had));
    sl_format_bytes(capacity, all, sizeof(all));
    (void)snprintf(reason, SL_CONTROL_REASON_BYTES,
                   "waits for %s on %s%s: %s of %s are free", asked, whose,
                   ask->device->name, had, all);
}

static sl_fit_t fit(sl_coord_t *coord, const sl_coord_snapshot_t *seen,
                    const sl_coord_decisions_t *decisions, int i, char *reason)
{
    const sl_coord_job_t *job = &seen->jobs[i];
    sl_fit_t result = SL_FIT_NOW;
    sl_ask_t ask;
    int d;

    for (d = 0; d < job->n_devices; d++) {
        uint64_t capacity, bytes, least;

        if (!find_ask(coord, seen, i, d, &ask)) {
            continue;
        }
        capacity = sl_coord_capacity(coord, seen, ask.pool, 0);
        bytes = taken(coord, seen, decisions, i, ask.pool, &least);
        if (capacity == 0 ||
            sl_coord_plus(ask.wanted_bytes, bytes) <= capacity) {
            continue;
        }
        if (!is_guest(job) &&
            sl_coord_plus(ask.wanted_bytes, least) <= capacity) {
            if (result == SL_FIT_NOW) {
                say_no_room(coord, seen, &ask, bytes, reason);
            }
            result = SL_FIT_LATER;
            continue;
        }
        say_no_room(coord, seen, &ask, bytes, reason);
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
                          const sl_coord_snapshot_t *seen, int i)
{
    sl_ask_t ask;
    int d;

    for (d = 0; d < seen->jobs[i].n_devices; d++) {
        if (find_ask(coord, seen, i, d, &ask)) {
            const uint64_t alone = sl_coord_capacity(coord, seen, ask.pool, 1);

            if (alone > 0 && ask.wanted_bytes > alone) {
                return 0;
            }
        }
    }
    return 1;
}

static int have_common_pool(const sl_coord_t *coord,
                            const sl_coord_snapshot_t *seen, int i, int j)
{
    int d, e;

    for (d = 0; d < seen->jobs[i].n_devices; d++) {
        for (e = 0; e < seen->jobs[j].n_devices; e++) {
            if (coord->pools.of[i][d] == coord->pools.of[j][e]) {
                return 1;
            }
        }
    }
    return 0;
}

/* An earlier job that waits for memory that this one wants too; -1: none. */
static int find_ahead(const sl_coord_t *coord, const sl_coord_snapshot_t *seen,
                      const char *is_blocking, int i)
{
    int j;

    for (j = 0; j < seen->n_jobs; j++) {
        if (is_blocking[j] && have_common_pool(coord, seen, i, j)) {
            return j;
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
        ahead = find_ahead(coord, seen, is_blocking, i);
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
        is_blocking[i] =
            (char)(result != SL_FIT_NOW && could_ever_fit(coord, seen, i));
    }
}
