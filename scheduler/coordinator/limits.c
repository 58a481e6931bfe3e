/* SPDX-License-Identifier: Apache-2.0 */
/* Memory limits, device by device. When all that is wanted fits, each job
 * has it. Else guarantee jobs get what they need, in order of arrival, and
 * guests share the rest. A burst goes to the host at once (the job does
 * that); here its limit then grows, as fast as the guests give back. */
#include <string.h>

#include "scheduler/coordinator/coordinator_internal.h"

static const uint64_t MIB = UINT64_C(1) << 20;

/* The members of one device: jobs that have or will have its memory. */
typedef struct sl_members {
    int n;
    int job[SL_COORD_MAX_JOBS];    /* index in the snapshot */
    int device[SL_COORD_MAX_JOBS]; /* index in the job */
    const sl_coord_device_t *seen[SL_COORD_MAX_JOBS];
    char is_guarantee[SL_COORD_MAX_JOBS];
    uint64_t limit[SL_COORD_MAX_JOBS]; /* the target */
} sl_members_t;

uint64_t sl_coord_needed(const sl_coord_device_t *device)
{
    const uint64_t now = device->held_bytes + device->spilled_bytes;
    uint64_t need = now + now / 8;

    if (device->spilled_bytes > 0) { /* it has just shown that it grows */
        need += 32 * MIB;
    }
    if (need < device->wanted_bytes) {
        need = device->wanted_bytes;
    }
    need = (need + MIB - 1) / MIB * MIB;
    return need > device->capacity_bytes && device->capacity_bytes > 0
               ? device->capacity_bytes
               : need;
}

static void collect(sl_coord_t *coord, const sl_coord_snapshot_t *seen,
                    const sl_coord_decisions_t *decisions, const char *name,
                    sl_members_t *members)
{
    int i;

    members->n = 0;
    for (i = 0; i < seen->n_jobs; i++) {
        const sl_coord_job_t *job = &seen->jobs[i];
        const sl_coord_device_t *device = sl_coord_find_device(job, name);
        const int m = members->n;

        if (device == NULL || (!decisions->jobs[i].is_admitted &&
                               !sl_coord_memory(coord, i)->is_reserved)) {
            continue;
        }
        members->job[m] = i;
        members->device[m] = (int)(device - job->devices);
        members->seen[m] = device;
        members->is_guarantee[m] = job->job_class == SL_JOB_CLASS_GUARANTEE;
        members->limit[m] = 0;
        members->n++;
    }
}

static uint64_t minus(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

/* Enough for all needs: what is over is divided equally. */
static int serve_all(sl_members_t *members, uint64_t capacity)
{
    uint64_t left = capacity;
    int m;

    for (m = 0; m < members->n; m++) {
        const uint64_t need = sl_coord_needed(members->seen[m]);

        if (need > left) {
            return 0;
        }
        left -= need;
    }
    for (m = 0; m < members->n; m++) {
        const uint64_t part = left / (uint64_t)members->n / MIB * MIB;

        members->limit[m] = sl_coord_needed(members->seen[m]) + part;
    }
    return 1;
}

/* Not enough: guarantee jobs get their need in order of the list (arrival),
 * less the guests' floors. @return what the guests divide */
static uint64_t serve_guarantees(const sl_coord_params_t *params,
                                 sl_members_t *members, uint64_t capacity)
{
    uint64_t left = capacity, floors = 0;
    int m;

    for (m = 0; m < members->n; m++) {
        floors += members->is_guarantee[m] ? 0 : params->floor_bytes;
    }
    for (m = 0; m < members->n; m++) {
        const uint64_t need = sl_coord_needed(members->seen[m]);
        const uint64_t room = minus(left, floors);

        if (members->is_guarantee[m]) {
            members->limit[m] = need < room ? need : room;
            left = minus(left, members->limit[m]);
        }
    }
    return left;
}

/* Guests: the floor, and by need a part of the rest. */
static void serve_guests(const sl_coord_params_t *params, sl_members_t *members,
                         uint64_t left)
{
    uint64_t needs = 0, floors = 0;
    int m;

    for (m = 0; m < members->n; m++) {
        if (!members->is_guarantee[m]) {
            needs += sl_coord_needed(members->seen[m]);
            floors += params->floor_bytes;
        }
    }
    for (m = 0; m < members->n; m++) {
        const uint64_t need = sl_coord_needed(members->seen[m]);
        uint64_t limit = params->floor_bytes;

        if (members->is_guarantee[m]) {
            continue;
        }
        if (needs > 0) {
            limit += (uint64_t)((double)minus(left, floors) * (double)need /
                                (double)needs);
        }
        members->limit[m] = limit / MIB * MIB;
    }
}

/* What a job may hold before it has read anything new: an older order with
 * a higher limit may still be on its way. */
static uint64_t may_hold(const sl_coord_job_t *job,
                         const sl_coord_device_t *device, uint64_t told)
{
    uint64_t bytes = device->held_bytes > told ? device->held_bytes : told;

    if (job->state == SL_JOB_STATE_WAITING) {
        return told > 0 ? bytes : sl_coord_needed(device);
    }
    return bytes > device->limit_bytes ? bytes : device->limit_bytes;
}

/* A limit rises only into memory that the others cannot hold any more;
 * guarantee jobs go first. */
static void hold_back(sl_coord_t *coord, const sl_coord_snapshot_t *seen,
                      sl_members_t *members, uint64_t capacity)
{
    uint64_t may[SL_COORD_MAX_JOBS];
    uint64_t sum = 0;
    int m, pass;

    for (m = 0; m < members->n; m++) {
        const sl_coord_memory_t *memory =
            sl_coord_memory(coord, members->job[m]);

        may[m] = may_hold(&seen->jobs[members->job[m]], members->seen[m],
                          memory->told_bytes[members->device[m]]);
        sum += may[m];
    }
    for (pass = 0; pass < 2; pass++) {
        for (m = 0; m < members->n; m++) {
            const uint64_t room = minus(capacity, sum - may[m]);
            const uint64_t most = room > may[m] ? room : may[m];

            if (members->is_guarantee[m] == pass ||
                members->limit[m] <= may[m]) {
                continue;
            }
            if (members->limit[m] > most) {
                members->limit[m] = most;
            }
            sum += members->limit[m] - may[m];
            may[m] = members->limit[m];
        }
    }
}

static int all_fit(const sl_members_t *members, uint64_t capacity)
{
    uint64_t sum = 0;
    int m;

    for (m = 0; m < members->n; m++) {
        const uint64_t most = members->seen[m]->capacity_bytes;

        if (most == 0 || most > capacity - sum) {
            return 0;
        }
        sum += most;
    }
    return 1;
}

/* What was set by hand is no longer there to divide. */
static uint64_t without_manual(sl_members_t *members, uint64_t capacity)
{
    uint64_t left = capacity;
    int m, n = 0;

    for (m = 0; m < members->n; m++) {
        if (members->seen[m]->manual_bytes > 0) {
            left = minus(left, members->seen[m]->manual_bytes);
            continue;
        }
        members->job[n] = members->job[m];
        members->device[n] = members->device[m];
        members->seen[n] = members->seen[m];
        members->is_guarantee[n++] = members->is_guarantee[m];
    }
    members->n = n;
    return left;
}

static void set_limits_on(sl_coord_t *coord, const sl_coord_snapshot_t *seen,
                          sl_coord_decisions_t *decisions, const char *name)
{
    uint64_t capacity = sl_coord_capacity(coord, seen, name);
    sl_members_t members;
    int m;

    if (capacity == 0) {
        return;
    }
    collect(coord, seen, decisions, name, &members);
    capacity = without_manual(&members, capacity);
    if (all_fit(&members, capacity)) {
        for (m = 0; m < members.n; m++) {
            members.limit[m] = members.seen[m]->capacity_bytes;
        }
    } else {
        if (!serve_all(&members, capacity)) {
            serve_guests(&coord->params, &members,
                         serve_guarantees(&coord->params, &members, capacity));
        }
        hold_back(coord, seen, &members, capacity);
    }
    for (m = 0; m < members.n; m++) {
        const uint64_t most = members.seen[m]->capacity_bytes;
        const uint64_t limit =
            most > 0 && members.limit[m] > most ? most : members.limit[m];

        decisions->jobs[members.job[m]].gates[members.device[m]].limit_bytes =
            limit;
        sl_coord_memory(coord, members.job[m])->told_bytes[members.device[m]] =
            limit;
    }
}

/* Whether an earlier job, or this one, has named the device already. */
static int is_done(const sl_coord_snapshot_t *seen, int i, int d)
{
    int j;

    for (j = 0; j < i; j++) {
        if (sl_coord_find_device(&seen->jobs[j],
                                 seen->jobs[i].devices[d].name) != NULL) {
            return 1;
        }
    }
    return 0;
}

void sl_coord_set_limits(sl_coord_t *coord, const sl_coord_snapshot_t *seen,
                         sl_coord_decisions_t *decisions)
{
    int i, d;

    for (i = 0; i < seen->n_jobs; i++) {
        for (d = 0; d < seen->jobs[i].n_devices; d++) {
            if (!is_done(seen, i, d)) {
                set_limits_on(coord, seen, decisions,
                              seen->jobs[i].devices[d].name);
            }
        }
    }
}
