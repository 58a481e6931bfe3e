/* SPDX-License-Identifier: Apache-2.0 */
/* Training while the memory limit moves: the same bits, within the limit. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/rng.h"
#include "tests/engine/engine_fixture.h"

enum {
    N_STEPS = 24,
    ROWS = 8
};

/* Samples a device's memory as often as it can, from another thread. */
typedef struct sampler {
    const sl_device_set_t *devices;
    atomic_int is_ended;
    atomic_long n_samples;
    atomic_int n_over; /* samples above the limit in force */
} sampler_t;

static void *sample(void *arg)
{
    sampler_t *sampler = arg;

    while (!atomic_load(&sampler->is_ended)) {
        int d;

        for (d = 0; d < sampler->devices->n_devices; d++) {
            sl_mem_stats_t stats;

            sl_mem_stats(sampler->devices->devices[d].mem, &stats);
            if (stats.held_bytes > stats.limit_bytes ||
                stats.peak_held_bytes > stats.limit_bytes ||
                stats.host_held_bytes > stats.host_limit_bytes) {
                atomic_fetch_add(&sampler->n_over, 1);
            }
        }
        atomic_fetch_add(&sampler->n_samples, 1);
    }
    return NULL;
}

typedef struct run {
    uint64_t hash;
    double losses[N_STEPS];
    size_t need;       /* most held by a device */
    uint64_t n_spills; /* of all devices and classes */
    uint64_t n_returns;
    size_t host_left_bytes; /* on the host at the end */
} run_t;

static void open_devices(sl_device_set_t **devices_p, int n)
{
    sl_device_params_t params;

    sl_device_params_default(&params);
    params.spec = n == 1 ? "cpu:1" : "cpu:2";
    params.n_threads = 1;
    params.memory_bytes = (size_t)1 << 28;
    params.host_bytes = (size_t)1 << 28;
    sl_assert_ok(sl_device_set_create(&params, devices_p));
}

static void open_engine(const sl_model_t *model, sl_device_set_t *devices,
                        sl_engine_t **engine_p)
{
    static int cuts[3];
    sl_engine_params_t params;
    const int n = devices->n_devices;
    int k;

    for (k = 0; k <= n; k++) {
        cuts[k] = k * model->n_layers / n;
    }
    sl_engine_params_default(&params);
    params.model = model;
    params.devices = devices;
    params.n_stages = n;
    params.cuts = cuts;
    params.batch_rows = ROWS;
    params.n_micro_batches = 4;
    params.optimizer.kind = SL_OPTIMIZER_ADAMW;
    params.optimizer.lr = 1e-3;
    params.seed = 3;
    sl_assert_ok(sl_engine_create(&params, engine_p));
}

/* What the run left behind. */
static void collect(const sl_device_set_t *devices, run_t *run)
{
    int d, c;

    for (d = 0; d < devices->n_devices; d++) {
        sl_mem_stats_t stats;

        sl_mem_stats(devices->devices[d].mem, &stats);
        run->host_left_bytes += stats.host_used_bytes;
        for (c = 0; c < SL_MEM_N_CLASSES; c++) {
            run->n_spills += stats.classes[c].n_spills;
            run->n_returns += stats.classes[c].n_returns;
        }
    }
}

/* Every third step another limit, from none at all to all there is; the last
 * steps are left alone, at full room. */
static void move_limits(const sl_device_set_t *devices, int step, size_t need)
{
    const sl_rng_t rng = sl_rng_at(17, (uint32_t)step, 0, 0, 0);
    int d;

    for (d = 0; d < devices->n_devices && step % 3 == 0; d++) {
        size_t limit = (size_t)sl_rng_below(&rng, (uint64_t)d, need + need / 8);

        if (step >= N_STEPS - 3) {
            limit = SIZE_MAX;
        } else if (step % 12 == 9) {
            limit = 0;
        }
        sl_mem_limit_request(devices->devices[d].mem, limit);
    }
}

/* `need` = 0: the limits stay as they are. */
static run_t train(const sl_model_t *model, int n_devices, size_t need)
{
    sl_device_set_t *devices = NULL;
    sl_engine_t *engine = NULL;
    sampler_t sampler = {0};
    pthread_t thread;
    run_t run;
    int step, d;

    memset(&run, 0, sizeof(run));
    open_devices(&devices, n_devices);
    open_engine(model, devices, &engine);
    sampler.devices = devices;
    assert_int_equal(pthread_create(&thread, NULL, sample, &sampler), 0);
    for (step = 0; step < N_STEPS; step++) {
        const sl_batch_t batch = fixture_batch(model, ROWS, step, 0);
        sl_step_report_t report;

        if (need > 0) {
            move_limits(devices, step, need);
        }
        sl_assert_ok(sl_engine_step(engine, &batch, &report));
        run.losses[step] = report.loss;
        for (d = 0; d < report.n_devices; d++) {
            if (report.devices[d].held_bytes > run.need) {
                run.need = report.devices[d].held_bytes;
            }
        }
    }
    atomic_store(&sampler.is_ended, 1);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(atomic_load(&sampler.n_samples) > 0);
    assert_int_equal(atomic_load(&sampler.n_over), 0);
    collect(devices, &run);
    sl_assert_ok(sl_engine_state_hash(engine, &run.hash));
    sl_engine_destroy(engine);
    sl_device_set_destroy(devices);
    return run;
}

static void check_model(sl_model_t *model)
{
    const run_t still = train(model, 1, 0);
    int n_devices;

    assert_int_equal(still.n_spills, 0);
    for (n_devices = 1; n_devices <= 2; n_devices++) {
        const run_t moved = train(model, n_devices, still.need);
        int step;

        assert_true(moved.n_spills > 0);
        assert_true(moved.n_returns > 0);
        assert_int_equal(moved.host_left_bytes, 0);
        for (step = 0; step < N_STEPS; step++) {
            assert_true(moved.losses[step] == still.losses[step]);
        }
        assert_true(moved.hash == still.hash);
    }
    sl_model_destroy(model);
}

static void a_gpt_does_not_feel_the_limit_move(void **state)
{
    (void)state;
    check_model(fixture_gpt());
}

static void a_resnet_does_not_feel_the_limit_move(void **state)
{
    (void)state;
    check_model(fixture_resnet());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(a_gpt_does_not_feel_the_limit_move),
        sl_unit_test(a_resnet_does_not_feel_the_limit_move),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
