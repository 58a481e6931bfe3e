/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file coordinator_sim.h
 * A simulated machine for the coordinator: jobs that slow each other down,
 * in virtual time.
 *
 * A guarantee job keeps its device busy for a part (`demand`) of its
 * mini-batch. Guests use the idle part first, at a small cost for the caches
 * they spoil; what they take above it stretches the mini-batch. Times have
 * noise of 2 %, and one in a hundred is an outlier of three times.
 */
#ifndef SL_TESTS_SCHEDULER_COORDINATOR_SIM_H
#define SL_TESTS_SCHEDULER_COORDINATOR_SIM_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scheduler/coordinator/coordinator.h"
#include "tests/support/sl_test.h"

#define SIM_MS UINT64_C(1000000)
#define SIM_S UINT64_C(1000000000)
#define SIM_MIB (UINT64_C(1) << 20)

enum {
    SIM_MAX_JOBS = 8
};

typedef struct sim_job {
    int is_here;
    sl_coord_job_t view; /* what its files would say */
    double demand;       /* of the device while it runs, 0-1 */
    double base_us;      /* mini-batch alone, without noise */
    double use_bytes;    /* working set */
    double done;         /* part of the mini-batch that is done */
    uint64_t start_ns;   /* of the mini-batch */
    double share;        /* in force, 0-1 */
    /* sums since sim_reset_sums */
    double sum_us, sum_share, sum_ms;
    int n_done;
    double least_share;
} sim_job_t;

typedef struct sim {
    sl_coord_t *coord;
    uint64_t now_ns;
    uint64_t seed;
    double noise;
    double outliers;
    double spoil; /* of a host's speed, by guests that have all of the device */
    unsigned
        burst_every; /* mini-batches; of these the first 6 take 1.4 times */
    sim_job_t jobs[SIM_MAX_JOBS];
    sl_coord_snapshot_t seen;
    sl_coord_decisions_t decisions;
    int index[SIM_MAX_JOBS]; /* of a job in the snapshot; -1 = not there */
} sim_t;

static inline double sim_random(sim_t *sim)
{
    sim->seed = sim->seed * UINT64_C(6364136223846793005) +
                UINT64_C(1442695040888963407);
    return (double)(sim->seed >> 11) / 9007199254740992.0;
}

static inline sim_t *sim_create(const sl_coord_params_t *params, uint64_t seed)
{
    sim_t *sim = calloc(1, sizeof(*sim));

    assert_non_null(sim);
    sim->now_ns = 100 * SIM_S;
    sim->seed = seed * 977 + 13;
    sim->noise = 0.02;
    sim->outliers = 0.01;
    sim->spoil = 0.01;
    if (params != NULL) {
        sl_assert_ok(sl_coord_create(params, &sim->coord));
    }
    return sim;
}

static inline void sim_destroy(sim_t *sim)
{
    sl_coord_destroy(sim->coord);
    free(sim);
}

static inline sim_job_t *sim_add(sim_t *sim, int i, sl_job_class_t job_class,
                                 double base_ms, double demand)
{
    sim_job_t *job = &sim->jobs[i];

    memset(job, 0, sizeof(*job));
    job->is_here = 1;
    job->demand = demand;
    job->base_us = base_ms * 1e3;
    job->share = 1.0;
    job->start_ns = sim->now_ns;
    job->least_share = 1.0;
    (void)snprintf(job->view.id.text, sizeof(job->view.id.text), "job%d-%d-x",
                   i, 100 + i);
    job->view.job_class = job_class;
    job->view.state = SL_JOB_STATE_RUNNING;
    job->view.created_ns = sim->now_ns;
    job->view.n_devices = 1;
    (void)snprintf(job->view.devices[0].name, sizeof(job->view.devices[0].name),
                   "cpu:0");
    job->view.devices[0].capacity_bytes = 1024 * SIM_MIB;
    job->view.devices[0].limit_bytes = 1024 * SIM_MIB;
    job->view.devices[0].share_percent = 100.0;
    job->view.devices[0].achieved_percent = -1.0;
    job->view.devices[0].manual_percent = -1.0;
    return job;
}

static inline int sim_is_guest(const sim_job_t *job)
{
    return job->is_here && job->view.job_class != SL_JOB_CLASS_GUARANTEE &&
           job->view.state == SL_JOB_STATE_RUNNING;
}

/* Part of the device that a guest takes: beside a host with a pulse, of the
 * idle part at most, which guests divide as they ask for it. */
static inline double sim_use(const sim_t *sim, const sim_job_t *job)
{
    double idle = 1.0, asked = 0.0;
    int i;

    for (i = 0; i < SIM_MAX_JOBS; i++) {
        const sim_job_t *other = &sim->jobs[i];

        if (other->is_here && other->view.has_pulse) {
            idle = fmin(idle, 1.0 - other->demand);
        }
        if (sim_is_guest(other)) {
            asked += fmin(other->share, other->demand);
        }
    }
    return fmin(job->share, job->demand) *
           (idle < 1.0 ? fmin(1.0, idle / asked) : 1.0);
}

/* Part of the device that guests take now. */
static inline double sim_guest_load(const sim_t *sim)
{
    double load = 0.0;
    int i;

    for (i = 0; i < SIM_MAX_JOBS; i++) {
        const sim_job_t *job = &sim->jobs[i];

        if (sim_is_guest(job)) {
            load += sim_use(sim, job);
        }
    }
    return fmin(load, 0.98);
}

static inline void sim_memory(sim_job_t *job)
{
    sl_coord_device_t *device = &job->view.devices[0];
    const double held = fmin(job->use_bytes, (double)device->limit_bytes);

    device->held_bytes = (uint64_t)held;
    device->spilled_bytes = (uint64_t)(job->use_bytes - held);
}

static inline void sim_finish_mini_batch(sim_t *sim, sim_job_t *job,
                                         uint64_t end_ns)
{
    double us = (double)(end_ns - job->start_ns) * 1e-3;
    int i;

    us *= 1.0 + sim->noise *
                    (sim_random(sim) + sim_random(sim) + sim_random(sim) +
                     sim_random(sim) - 2.0) *
                    1.7;
    if (sim_random(sim) < sim->outliers) {
        us *= 3.0;
    }
    if (sim->burst_every > 0 && job->view.step % sim->burst_every < 6) {
        us *= 1.4;
    }
    job->done -= 1.0;
    job->start_ns = end_ns;
    job->sum_us += us;
    job->n_done++;
    job->view.step++;
    job->view.boundary_ns = end_ns;
    if (job->view.n_recent == SL_CONTROL_RECENT) {
        for (i = 1; i < SL_CONTROL_RECENT; i++) {
            job->view.recent_us[i - 1] = job->view.recent_us[i];
        }
        job->view.n_recent--;
    }
    job->view.recent_us[job->view.n_recent++] = us;
    sim_memory(job);
}

static inline void sim_advance_job(sim_t *sim, sim_job_t *job, double ms)
{
    const double load = sim_guest_load(sim);
    double us = job->base_us, rate;

    if (job->view.job_class == SL_JOB_CLASS_GUARANTEE) {
        us *= 1.0 + sim->spoil * load; /* caches */
        if (load > 1.0 - job->demand) {
            us = fmax(us, job->base_us * job->demand / (1.0 - load));
        }
        rate = 1.0 / us;
    } else {
        rate = sim_use(sim, job) / us;
        job->view.devices[0].achieved_percent = 100.0 * sim_use(sim, job);
    }
    job->done += rate * ms * 1e3;
    job->sum_ms += ms;
    job->sum_share += (job->view.job_class == SL_JOB_CLASS_GUARANTEE
                           ? job->share
                           : fmin(job->share, sim_use(sim, job))) *
                      ms;
    job->least_share = fmin(job->least_share, job->share);
    if (job->done >= 1.0) {
        sim_finish_mini_batch(
            sim, job, sim->now_ns - (uint64_t)((job->done - 1.0) / rate * 1e3));
    }
}

/* Look, decide, tell the jobs. */
static inline void sim_step(sim_t *sim)
{
    int i;

    sim->seen.now_ns = sim->now_ns;
    sim->seen.n_jobs = 0;
    for (i = 0; i < SIM_MAX_JOBS; i++) {
        sim->index[i] = -1;
        if (sim->jobs[i].is_here) {
            sim->index[i] = sim->seen.n_jobs;
            sim->seen.jobs[sim->seen.n_jobs++] = sim->jobs[i].view;
        }
    }
    if (sim->coord == NULL) {
        return;
    }
    sl_coord_step(sim->coord, &sim->seen, &sim->decisions);
    for (i = 0; i < SIM_MAX_JOBS; i++) {
        sim_job_t *job = &sim->jobs[i];
        const sl_coord_decision_t *decision =
            &sim->decisions.jobs[sim->index[i] < 0 ? 0 : sim->index[i]];

        if (sim->index[i] < 0) {
            continue;
        }
        job->share = decision->gates[0].share_percent / 100.0;
        job->view.devices[0].share_percent = decision->gates[0].share_percent;
        if (decision->gates[0].limit_bytes > 0) {
            job->view.devices[0].limit_bytes = decision->gates[0].limit_bytes;
        }
        if (decision->is_admitted && job->view.state == SL_JOB_STATE_WAITING) {
            job->view.state = SL_JOB_STATE_RUNNING;
            job->start_ns = sim->now_ns;
        }
    }
}

/* Run for a while: the coordinator looks every 200 ms. */
static inline void sim_run(sim_t *sim, double seconds)
{
    const uint64_t end_ns = sim->now_ns + (uint64_t)(seconds * 1e9);
    int i;

    while (sim->now_ns < end_ns) {
        if (sim->now_ns % (200 * SIM_MS) == 0) {
            sim_step(sim);
        }
        sim->now_ns += SIM_MS / 4;
        for (i = 0; i < SIM_MAX_JOBS; i++) {
            if (sim->jobs[i].is_here &&
                sim->jobs[i].view.state == SL_JOB_STATE_RUNNING) {
                sim_advance_job(sim, &sim->jobs[i], 0.25);
            }
        }
    }
}

static inline void sim_reset_sums(sim_t *sim)
{
    int i;

    for (i = 0; i < SIM_MAX_JOBS; i++) {
        sim->jobs[i].sum_us = 0.0;
        sim->jobs[i].sum_share = 0.0;
        sim->jobs[i].sum_ms = 0.0;
        sim->jobs[i].n_done = 0;
        sim->jobs[i].least_share = 1.0;
    }
}

static inline double sim_mean_us(const sim_job_t *job)
{
    return job->n_done > 0 ? job->sum_us / job->n_done : INFINITY;
}

static inline double sim_mean_share(const sim_job_t *job)
{
    return job->sum_ms > 0.0 ? job->sum_share / job->sum_ms : 0.0;
}

static inline const sl_coord_decision_t *sim_decision(const sim_t *sim, int i)
{
    assert_true(sim->index[i] >= 0);
    return &sim->decisions.jobs[sim->index[i]];
}

/* ---- a guarantee job and guests ---- */

enum {
    HOST = 0,
    GUEST = 1,
    SECOND = 2
};

static inline sim_t *sim_pair(const sl_coord_params_t *params, uint64_t seed,
                              double base_ms, double demand)
{
    sim_t *sim = sim_create(params, seed);

    (void)sim_add(sim, HOST, SL_JOB_CLASS_GUARANTEE, base_ms, demand);
    (void)sim_add(sim, GUEST, SL_JOB_CLASS_OPPORTUNISTIC, base_ms, 1.0);
    return sim;
}

/* Mean mini-batch of the same job, noise and outliers, without a guest. */
static inline double sim_alone_us(uint64_t seed, double base_ms, double seconds)
{
    sim_t *sim = sim_create(NULL, seed);
    double us;

    (void)sim_add(sim, HOST, SL_JOB_CLASS_GUARANTEE, base_ms, 0.5);
    sim_run(sim, seconds);
    us = sim_mean_us(&sim->jobs[HOST]);
    sim_destroy(sim);
    return us;
}

#endif /* SL_TESTS_SCHEDULER_COORDINATOR_SIM_H */
