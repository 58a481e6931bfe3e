/* SPDX-License-Identifier: Apache-2.0 */
/* Memory limits, pool by pool. When all that is wanted fits, each job has it.
 * Else guarantee jobs get what they need, in order of arrival, and guests
 * share the rest. A burst goes to the host at once (the job does that); here
 * its limit then grows, as fast as the guests give back. */
#include <string.h>

#include "scheduler/coordinator/coordinator_internal.h"

static const uint64_t MIB = UINT64_C(1) << 20;

/* The devices of one pool, those of a job one after another. */
typedef struct sl_members {
    int n;
    sl_coord_member_t *of; /* the coordinator's */
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
                    const sl_coord_decisions_t *decisions, int pool,
                    sl_members_t *members)
{
    int i, d;

    members->n = 0;
    members->of = coord->members;
    for (i = 0; i < seen->n_jobs; i++) {
        const sl_coord_job_t *job = &seen->jobs[i];

        if (!decisions->jobs[i].is_admitted &&
            !sl_coord_memory(coord, i)->is_reserved) {
            continue;
        }
        for (d = 0; d < job->n_devices; d++) {
            sl_coord_member_t *member = &members->of[members->n];

            if (coord->pools.of[i][d] != pool) {
                continue;
            }
            memset(member, 0, sizeof(*member));
            member->job = i;
            member->device = d;
            member->is_guarantee = job->job_class == SL_JOB_CLASS_GUARANTEE;
            member->seen = &job->devices[d];
            member->need = sl_coord_needed(member->seen);
            members->n++;
        }
    }
}

static uint64_t minus(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

/* The part of `bytes` that is `part` of `whole`. */
static uint64_t part_of(uint64_t bytes, uint64_t part, uint64_t whole)
{
    const double exact = (double)bytes * (double)part / (double)whole;

    return part == whole ? bytes : (uint64_t)exact;
}

/* Past the last device of the first one's job. */
static int end_of_job(const sl_members_t *members, int first)
{
    int m = first + 1;

    while (m < members->n && members->of[m].job == members->of[first].job) {
        m++;
    }
    return m;
}

static int count_jobs(const sl_members_t *members)
{
    int m, n = 0;

    for (m = 0; m < members->n; m = end_of_job(members, m)) {
        n++;
    }
    return n;
}

/* Enough for all needs: what is over is divided equally, among the jobs and
 * then among the devices of each. */
static int serve_all(sl_members_t *members, uint64_t capacity)
{
    const uint64_t n_jobs = (uint64_t)count_jobs(members);
    uint64_t left = capacity;
    int m, k, end;

    for (m = 0; m < members->n; m++) {
        if (members->of[m].need > left) {
            return 0;
        }
        left -= members->of[m].need;
    }
    for (m = 0; m < members->n; m = end) {
        uint64_t part;

        end = end_of_job(members, m);
        part = left / n_jobs / (uint64_t)(end - m) / MIB * MIB;
        for (k = m; k < end; k++) {
            members->of[k].limit = members->of[k].need + part;
        }
    }
    return 1;
}

/* What each has at least. @return the sum */
static uint64_t serve_floors(sl_members_t *members, uint64_t floor)
{
    uint64_t sum = 0;
    int m;

    for (m = 0; m < members->n; m++) {
        sl_coord_member_t *member = &members->of[m];
        const int needs_less =
            member->is_guarantee && member->need > 0 && member->need < floor;

        member->limit = needs_less ? member->need : floor;
        sum = sl_coord_plus(sum, member->limit);
    }
    return sum;
}

/* Guarantee jobs get their need in order of the list (arrival); a job that
 * does not get all of it divides what it gets among its devices. @return what
 * guests divide */
static uint64_t serve_guarantees(sl_members_t *members, uint64_t left)
{
    int m, k, end;

    for (m = 0; m < members->n; m = end) {
        uint64_t lacks = 0, given;

        end = end_of_job(members, m);
        for (k = m; k < end && members->of[m].is_guarantee; k++) {
            lacks = sl_coord_plus(
                lacks, minus(members->of[k].need, members->of[k].limit));
        }
        given = lacks < left ? lacks : left;
        for (k = m; k < end && given > 0; k++) {
            sl_coord_member_t *member = &members->of[k];

            member->limit +=
                part_of(given, minus(member->need, member->limit), lacks);
        }
        left -= given;
    }
    return left;
}

/* Guests: by need a part of the rest. */
static void serve_guests(sl_members_t *members, uint64_t left)
{
    uint64_t needs = 0;
    int m;

    for (m = 0; m < members->n; m++) {
        if (!members->of[m].is_guarantee) {
            needs = sl_coord_plus(needs, members->of[m].need);
        }
    }
    for (m = 0; m < members->n && needs > 0; m++) {
        sl_coord_member_t *member = &members->of[m];

        if (!member->is_guarantee) {
            member->limit += part_of(left, member->need, needs) / MIB * MIB;
        }
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
    uint64_t sum = 0;
    int m, pass;

    for (m = 0; m < members->n; m++) {
        sl_coord_member_t *member = &members->of[m];
        const sl_coord_memory_t *memory = sl_coord_memory(coord, member->job);

        member->may = may_hold(&seen->jobs[member->job], member->seen,
                               memory->told_bytes[member->device]);
        sum = sl_coord_plus(sum, member->may);
    }
    for (pass = 0; pass < 2; pass++) {
        for (m = 0; m < members->n; m++) {
            sl_coord_member_t *member = &members->of[m];
            const uint64_t room = minus(capacity, sum - member->may);
            const uint64_t most = room > member->may ? room : member->may;

            if (member->is_guarantee == pass || member->limit <= member->may) {
                continue;
            }
            if (member->limit > most) {
                member->limit = most;
            }
            sum += member->limit - member->may;
            member->may = member->limit;
        }
    }
}

static int all_fit(const sl_members_t *members, uint64_t capacity)
{
    uint64_t sum = 0;
    int m;

    for (m = 0; m < members->n; m++) {
        const uint64_t most = members->of[m].seen->capacity_bytes;

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
        const sl_coord_member_t *member = &members->of[m];

        if (member->seen->manual_bytes > 0) {
            left = minus(left, member->seen->manual_bytes);
            continue;
        }
        members->of[n++] = *member;
    }
    members->n = n;
    return left;
}

/* The targets of all members. */
static void serve(sl_members_t *members, uint64_t capacity, uint64_t floor)
{
    uint64_t left;

    if (!serve_all(members, capacity)) {
        left = minus(capacity, serve_floors(members, floor));
        serve_guests(members, serve_guarantees(members, left));
    }
}

/* The least of a device: where there are many, an equal part. */
static uint64_t floor_of(const sl_coord_t *coord, const sl_members_t *members,
                         uint64_t capacity)
{
    const uint64_t part = members->n > 0 ? capacity / (uint64_t)members->n : 0;

    return part < coord->params.floor_bytes ? part : coord->params.floor_bytes;
}

/* Say what a device may have; 0 would say nothing. */
static void tell(sl_coord_t *coord, const sl_coord_member_t *member,
                 sl_coord_decisions_t *decisions)
{
    const uint64_t most = member->seen->capacity_bytes;
    uint64_t limit = member->limit > 0 ? member->limit : 1;

    limit = most > 0 && limit > most ? most : limit;
    decisions->jobs[member->job].gates[member->device].limit_bytes = limit;
    sl_coord_memory(coord, member->job)->told_bytes[member->device] = limit;
}

static void set_limits_on(sl_coord_t *coord, const sl_coord_snapshot_t *seen,
                          sl_coord_decisions_t *decisions, int pool)
{
    uint64_t capacity = sl_coord_capacity(coord, seen, pool, 0);
    sl_members_t members;
    uint64_t floor;
    int m;

    if (capacity == 0) {
        return;
    }
    collect(coord, seen, decisions, pool, &members);
    floor = floor_of(coord, &members, capacity);
    capacity = without_manual(&members, capacity);
    if (all_fit(&members, capacity)) {
        for (m = 0; m < members.n; m++) {
            members.of[m].limit = members.of[m].seen->capacity_bytes;
        }
    } else {
        serve(&members, capacity, floor);
        hold_back(coord, seen, &members, capacity);
    }
    for (m = 0; m < members.n; m++) {
        tell(coord, &members.of[m], decisions);
    }
}

void sl_coord_set_limits(sl_coord_t *coord, const sl_coord_snapshot_t *seen,
                         sl_coord_decisions_t *decisions)
{
    int pool;

    for (pool = 0; pool < coord->pools.n; pool++) {
        set_limits_on(coord, seen, decisions, pool);
    }
}
