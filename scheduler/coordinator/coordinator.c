/* SPDX-License-Identifier: Apache-2.0 */
/* The step: who is there, who may start, shares by the policy, memory. What
 * was set by hand stands above all of it. */
#include "scheduler/coordinator/coordinator.h"

#include <stdlib.h>
#include <string.h>

#include "scheduler/coordinator/coordinator_internal.h"

static const sl_coord_policy_t *const policies[] = {
#define X(id) &sl_coord_policy_##id,
    SL_COORD_POLICY_MAP(X)
#undef X
};

enum {
    N_POLICIES = sizeof(policies) / sizeof(*policies)
};

const sl_coord_policy_t *sl_coord_policy_at(size_t i)
{
    return i < N_POLICIES ? policies[i] : NULL;
}

void sl_coord_params_default(sl_coord_params_t *params)
{
    memset(params, 0, sizeof(*params));
    params->policy = policies[0]->name;
    params->floor_percent = 1.0;
    params->threshold = 0.03;
    params->static_percent = 50.0;
    params->period_ns = UINT64_C(200000000);
    params->period_mini_batches = 10;
    params->probe_ns = UINT64_C(60000000000);
    params->floor_bytes = UINT64_C(64) << 20;
}

static sl_status_t find_policy(const char *name,
                               const sl_coord_policy_t **policy_p)
{
    char names[128] = "";
    sl_status_t status = SL_OK;
    size_t i;

    for (i = 0; i < N_POLICIES; i++) {
        if (strcmp(policies[i]->name, name) == 0) {
            *policy_p = policies[i];
            return SL_OK;
        }
        (void)strncat(names, i == 0 ? "" : ", ",
                      sizeof(names) - strlen(names) - 1);
        (void)strncat(names, policies[i]->name,
                      sizeof(names) - strlen(names) - 1);
    }
    SL_FAIL(status, SL_ERR_INVALID_ARG, out,
            "there is no policy '%s'; there are %s", name, names);
out:
    return status;
}

/* Written so that NaN fails too. */
static int is_inside(double value, double min, double max)
{
    return value >= min && value <= max;
}

static sl_status_t check_params(const sl_coord_params_t *params)
{
    sl_status_t status = SL_OK;

    if (!is_inside(params->floor_percent, 1.0, 50.0)) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "floor share %g: 1 to 50 percent", params->floor_percent);
    }
    if (!is_inside(params->threshold, 0.005, 1.0)) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "slowdown threshold %g: 0.005 to 1", params->threshold);
    }
    if (!is_inside(params->static_percent, 1.0, 99.0)) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "static share %g: 1 to 99 percent", params->static_percent);
    }
    if (params->period_mini_batches < 3 ||
        params->period_mini_batches > SL_CONTROL_RECENT) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "period of %d mini-batches: 3 to %d",
                params->period_mini_batches, (int)SL_CONTROL_RECENT);
    }
out:
    return status;
}

sl_status_t sl_coord_create(const sl_coord_params_t *params,
                            sl_coord_t **coord_p)
{
    const sl_coord_policy_t *policy = NULL;
    sl_coord_t *coord;
    sl_status_t status;

    if (params == NULL || coord_p == NULL || params->policy == NULL) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "coordinator parameters incomplete");
    }
    SL_TRY(status, find_policy(params->policy, &policy), out);
    SL_TRY(status, check_params(params), out);
    coord = calloc(1, sizeof(*coord));
    if (coord == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "no host memory for a coordinator");
    }
    coord->params = *params;
    coord->policy = policy;
    *coord_p = coord;
out:
    return status;
}

void sl_coord_destroy(sl_coord_t *coord)
{
    free(coord);
}

sl_coord_memory_t *sl_coord_memory(sl_coord_t *coord, int i)
{
    return &coord->memories[coord->index[i]];
}

int sl_coord_is_active(const sl_coord_snapshot_t *seen,
                       const sl_coord_decisions_t *decisions, int i)
{
    const sl_coord_job_t *job = &seen->jobs[i];

    return decisions->jobs[i].is_admitted && !job->is_held &&
           job->state != SL_JOB_STATE_DONE &&
           job->job_class != SL_JOB_CLASS_NONE;
}

int sl_coord_is_cpu(const sl_coord_device_t *device)
{
    return strncmp(device->name, "cpu", 3) == 0;
}

int sl_coord_is_same(const sl_coord_device_t *a, const sl_coord_device_t *b)
{
    const int has_gpus = !sl_coord_is_cpu(a) && !sl_coord_is_cpu(b) &&
                         a->gpu_id[0] != '\0' && b->gpu_id[0] != '\0';

    return has_gpus ? strcmp(a->gpu_id, b->gpu_id) == 0
                    : strcmp(a->name, b->name) == 0;
}

int sl_coord_is_neighbour(const sl_coord_job_t *a, const sl_coord_job_t *b)
{
    int i, j;

    for (i = 0; i < a->n_devices; i++) {
        for (j = 0; j < b->n_devices; j++) {
            if ((sl_coord_is_cpu(&a->devices[i]) &&
                 sl_coord_is_cpu(&b->devices[j])) ||
                sl_coord_is_same(&a->devices[i], &b->devices[j])) {
                return 1;
            }
        }
    }
    return 0;
}

void sl_coord_set_share(sl_coord_decisions_t *decisions,
                        const sl_coord_snapshot_t *seen, int i, double percent)
{
    int d;

    for (d = 0; d < seen->jobs[i].n_devices; d++) {
        decisions->jobs[i].gates[d].share_percent = percent;
    }
}

/* ---- what is remembered ---- */

static int find_memory(const sl_coord_t *coord, const sl_run_id_t *id)
{
    int m;

    for (m = 0; m < coord->n_memories; m++) {
        if (strcmp(coord->memories[m].id.text, id->text) == 0) {
            return m;
        }
    }
    return -1;
}

static void init_memory(const sl_coord_t *coord, sl_coord_memory_t *memory,
                        const sl_coord_job_t *job)
{
    memset(memory, 0, sizeof(*memory));
    memory->id = job->id;
    memory->share_percent = -1.0;
    if (!coord->has_stepped && job->n_devices > 0 &&
        job->state == SL_JOB_STATE_RUNNING) {
        memory->is_taken_over = 1;
        /* All of it is what a job has before anybody decided. */
        memory->share_percent = job->devices[0].share_percent < 100.0
                                    ? job->devices[0].share_percent
                                    : -1.0;
    }
}

static void forget_absent(sl_coord_t *coord)
{
    int m, n = 0;

    for (m = 0; m < coord->n_memories; m++) {
        if (coord->memories[m].is_present) {
            coord->memories[n++] = coord->memories[m];
        }
    }
    coord->n_memories = n;
}

/* Two passes: first the absent ones go, so that there is room. */
static void remember(sl_coord_t *coord, const sl_coord_snapshot_t *seen)
{
    int i, m;

    for (m = 0; m < coord->n_memories; m++) {
        coord->memories[m].is_present = 0;
    }
    for (i = 0; i < seen->n_jobs; i++) {
        m = find_memory(coord, &seen->jobs[i].id);
        if (m >= 0) {
            coord->memories[m].is_present = 1;
        }
    }
    forget_absent(coord);
    for (i = 0; i < seen->n_jobs; i++) {
        m = find_memory(coord, &seen->jobs[i].id);
        if (m < 0) {
            m = coord->n_memories++;
            init_memory(coord, &coord->memories[m], &seen->jobs[i]);
            coord->memories[m].is_present = 1;
        }
        coord->index[i] = m;
    }
    coord->has_stepped = 1;
}

/* ---- the step ---- */

static void init_decision(const sl_coord_job_t *job,
                          sl_coord_decision_t *decision)
{
    int d;

    decision->is_admitted = job->state != SL_JOB_STATE_WAITING;
    for (d = 0; d < job->n_devices; d++) {
        decision->gates[d].share_percent = 100.0;
        decision->gates[d].limit_bytes = job->devices[d].limit_bytes;
    }
}

static void apply_manual(const sl_coord_job_t *job,
                         sl_coord_decision_t *decision)
{
    int d;

    for (d = 0; d < job->n_devices; d++) {
        if (job->devices[d].manual_percent >= 0.0) {
            decision->gates[d].share_percent = job->devices[d].manual_percent;
        }
        if (job->devices[d].manual_bytes > 0) {
            decision->gates[d].limit_bytes = job->devices[d].manual_bytes;
        }
    }
}

static void tell_slowdown(const sl_coord_signal_t *signal,
                          sl_coord_decision_t *decision)
{
    decision->baseline_us = signal->baseline_us;
    if (signal->baseline_us > 0.0 && signal->median_us > 0.0) {
        decision->slowdown = signal->median_us / signal->baseline_us;
    }
}

void sl_coord_step(sl_coord_t *coord, const sl_coord_snapshot_t *seen,
                   sl_coord_decisions_t *decisions)
{
    int i;

    SL_ASSERT(seen->n_jobs >= 0 && seen->n_jobs <= SL_COORD_MAX_JOBS);
    memset(decisions, 0, sizeof(*decisions));
    decisions->n_jobs = seen->n_jobs;
    remember(coord, seen);
    for (i = 0; i < seen->n_jobs; i++) {
        init_decision(&seen->jobs[i], &decisions->jobs[i]);
        sl_coord_measure_yield(&sl_coord_memory(coord, i)->yield,
                               &seen->jobs[i], seen->now_ns);
    }
    sl_coord_find_pools(&coord->pools, seen);
    sl_coord_admit(coord, seen, decisions);
    coord->policy->set_shares(coord, seen, decisions);
    sl_coord_set_yields(seen, decisions);
    sl_coord_set_limits(coord, seen, decisions);
    for (i = 0; i < seen->n_jobs; i++) {
        apply_manual(&seen->jobs[i], &decisions->jobs[i]);
        tell_slowdown(&sl_coord_memory(coord, i)->signal, &decisions->jobs[i]);
    }
}
