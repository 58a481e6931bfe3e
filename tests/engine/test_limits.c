/* SPDX-License-Identifier: Apache-2.0 */
/* Limits that move while training runs: same bits, never above the limit. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "base/rng.h"
#include "tests/engine/engine_fixture.h"

enum {
    N_STEPS = 40,
    MOVE_EVERY = 3 /* steps between two moves, at most */
};

/* Asks for another limit on every device now and then, and looks at what is
 * held in between. */
typedef struct mover {
    sl_device_set_t *devices;
    size_t most_bytes; /* limits are drawn up to here */
    atomic_int step;   /* of the training thread */
    atomic_int is_done;
    atomic_int n_moves;
    size_t n_above; /* samples that held more than the limit; the thread's
                       own until joined */
} mover_t;

static void look(mover_t *mover)
{
    int d;

    for (d = 0; d < mover->devices->n_devices; d++) {
        sl_mem_stats_t stats;

        sl_mem_stats(mover->devices->devices[d].mem, &stats);
        mover->n_above += stats.held_bytes > stats.limit_bytes;
        mover->n_above += stats.peak_held_bytes < stats.held_bytes;
    }
}

static void *move_limits(void *arg)
{
    const struct timespec pause = {.tv_nsec = 50000};
    const sl_rng_t rng = sl_rng_at(5, 0, 0, 0, SL_RNG_USE_SYNTHETIC);
    mover_t *mover = arg;
    uint64_t draw = 0;
    int moved_at = -MOVE_EVERY, d;

    while (!atomic_load(&mover->is_done)) {
        const int step = atomic_load(&mover->step);

        look(mover);
        if (step - moved_at >= (int)(sl_rng_u32(&rng, draw++) % MOVE_EVERY)) {
            for (d = 0; d < mover->devices->n_devices; d++) {
                const uint32_t part = sl_rng_u32(&rng, draw++) % 11u;

                sl_mem_limit_request(mover->devices->devices[d].mem,
                                     mover->most_bytes / 10 * part);
            }
            atomic_fetch_add(&mover->n_moves, 1);
            moved_at = step;
        }
        (void)nanosleep(&pause, NULL);
    }
    return NULL;
}

/* However busy the machine is, the limit moves every few steps. */
static void await_moves(const mover_t *mover, int step)
{
    const struct timespec pause = {.tv_nsec = 20000};

    while (atomic_load(&mover->n_moves) * MOVE_EVERY < step) {
        (void)nanosleep(&pause, NULL);
    }
}

static uint64_t n_spills(const sl_device_set_t *devices)
{
    sl_mem_stats_t stats;
    uint64_t n = 0;
    int d, c;

    for (d = 0; d < devices->n_devices; d++) {
        sl_mem_stats(devices->devices[d].mem, &stats);
        for (c = 0; c < SL_MEM_N_CLASSES; c++) {
            n += stats.classes[c].n_spills;
        }
    }
    return n;
}

static uint64_t train_with_moving_limits(const fixture_run_t *run,
                                         size_t need_bytes)
{
    sl_device_set_t *devices = NULL;
    sl_engine_t *engine = NULL;
    mover_t mover;
    pthread_t thread;
    uint64_t hash;
    int step, d;

    fixture_engine(run, &devices, &engine);
    memset(&mover, 0, sizeof(mover));
    mover.devices = devices;
    mover.most_bytes = need_bytes + need_bytes / 4;
    assert_int_equal(pthread_create(&thread, NULL, move_limits, &mover), 0);
    for (step = 0; step < run->n_steps; step++) {
        const sl_batch_t batch = fixture_batch(run->model, run->rows, step, 0);
        sl_step_report_t report;

        sl_assert_ok(sl_engine_step(engine, &batch, &report));
        atomic_store(&mover.step, step);
        await_moves(&mover, step);
        for (d = 0; d < report.n_devices; d++) {
            assert_true(report.devices[d].held_bytes <=
                        report.devices[d].limit_bytes);
        }
    }
    atomic_store(&mover.is_done, 1);
    assert_int_equal(pthread_join(thread, NULL), 0);
    sl_assert_ok(sl_engine_state_hash(engine, &hash));
    assert_true(n_spills(devices) > 0);
    assert_int_equal(mover.n_above, 0);
    sl_engine_destroy(engine);
    sl_device_set_destroy(devices);
    return hash;
}

/* Most regions held by any device in a run that nobody disturbs. */
static size_t need(const fixture_run_t *run)
{
    sl_device_set_t *devices = NULL;
    sl_engine_params_t params;
    sl_memory_plan_t plan;
    size_t most = 0;
    int d;

    fixture_params(run, &devices, &params);
    sl_assert_ok(sl_engine_rehearse(&params, &plan));
    for (d = 0; d < plan.n_devices; d++) {
        most = plan.devices[d].held_bytes > most ? plan.devices[d].held_bytes
                                                 : most;
    }
    sl_memory_plan_cleanup(&plan);
    sl_device_set_destroy(devices);
    return most;
}

static void check(fixture_run_t run)
{
    uint64_t want, got;
    sl_device_set_t *devices = NULL;
    sl_engine_t *engine = NULL;
    int step;

    run.n_steps = N_STEPS;
    for (run.n_stages = 1; run.n_stages <= 3; run.n_stages++) {
        run.n_devices = run.n_stages;
        run.host_bytes = 0;
        fixture_engine(&run, &devices, &engine);
        for (step = 0; step < N_STEPS; step++) {
            const sl_batch_t batch =
                fixture_batch(run.model, run.rows, step, 0);
            sl_step_report_t report;

            sl_assert_ok(sl_engine_step(engine, &batch, &report));
        }
        sl_assert_ok(sl_engine_state_hash(engine, &want));
        sl_engine_destroy(engine);
        sl_device_set_destroy(devices);
        run.host_bytes = (size_t)1 << 30;
        got = train_with_moving_limits(&run, need(&run));
        assert_true(got == want);
    }
    sl_model_destroy(run.model);
}

static void a_gpt_does_not_notice_its_limit(void **state)
{
    (void)state;
    check((fixture_run_t){.rows = 8, .n_micro = 4, .model = fixture_gpt()});
}

static void a_resnet_does_not_notice_its_limit(void **state)
{
    (void)state;
    check((fixture_run_t){.rows = 32,
                          .n_micro = 4,
                          .schedule = SL_SCHEDULE_1F1B,
                          .recompute = SL_RECOMPUTE_FULL,
                          .model = fixture_resnet()});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(a_gpt_does_not_notice_its_limit),
        sl_unit_test(a_resnet_does_not_notice_its_limit),
    };

    return cmocka_run_group_tests_name("engine.limits", tests, NULL, NULL);
}
