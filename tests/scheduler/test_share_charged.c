/* SPDX-License-Identifier: Apache-2.0 */
/* What a job does on its devices is charged to their shares: kernels, copies
 * and sums over replicas. With SLUICE_TEST_DEVICES=cuda on CUDA devices. */
#include <stdlib.h>
#include <string.h>

#include "engine/device_ops.h"
#include "tests/engine/engine_fixture.h"

enum {
    MAX_NAMES = 64,
    MAX_OPS = 1000000,
    MIB = 1 << 20
};
static const double SHARE = 2.0;     /* percent */
static const double DEPTH_NS = 20e6; /* of the bucket, docs/share.md */

static uint64_t time_of_all(const sl_op_name_stats_t *names, size_t n)
{
    uint64_t sum_ns = 0;
    size_t i;

    for (i = 0; i < n; i++) {
        sum_ns += names[i].busy_ns;
    }
    return sum_ns;
}

static uint64_t time_of(const sl_op_name_stats_t *names, size_t n,
                        const char *name)
{
    size_t i;

    for (i = 0; i < n; i++) {
        if (strcmp(names[i].name, name) == 0) {
            return names[i].busy_ns;
        }
    }
    return 0;
}

/* Every op of the device is in what it was charged, nothing else is, and each
 * name took some time on some device. Name 0 has what tells the host something,
 * which takes no device time where the device runs beside the host. */
static void check_devices(const sl_device_set_t *devices,
                          const char *const *wanted, int n_wanted)
{
    uint64_t found_ns[4] = {0};
    int d, w;

    for (d = 0; d < devices->n_devices; d++) {
        sl_op_name_stats_t names[MAX_NAMES];
        sl_op_stats_t stats;
        size_t n;

        sl_assert_ok(sl_op_manager_drain(devices->devices[d].ops));
        n = sl_op_manager_name_stats(devices->devices[d].ops, names, MAX_NAMES);
        assert_true(n <= MAX_NAMES);
        sl_op_manager_stats(devices->devices[d].ops, &stats);
        assert_true(stats.charged_ns <= time_of_all(names, n));
        assert_true(stats.charged_ns >=
                    time_of_all(names, n) -
                        (fixture_is_cuda() ? names[0].busy_ns : 0));
        for (w = 0; w < n_wanted; w++) {
            found_ns[w] += time_of(names, n, wanted[w]);
        }
    }
    for (w = 0; w < n_wanted; w++) {
        if (found_ns[w] == 0) {
            fail_msg("no device has run '%s'", wanted[w]);
        }
    }
}

static void train(fixture_run_t run, const char *const *wanted, int n_wanted)
{
    sl_device_set_t *devices = NULL;
    sl_engine_t *engine = NULL;
    int step;

    fixture_engine(&run, &devices, &engine);
    for (step = 0; step < 3; step++) {
        const sl_batch_t batch = fixture_batch(run.model, run.rows, step, 0);
        sl_step_report_t report;

        sl_assert_ok(sl_engine_step(engine, &batch, &report));
    }
    check_devices(devices, wanted, n_wanted);
    sl_engine_destroy(engine);
    sl_device_set_destroy(devices);
}

/* Activations and gradients from stage to stage. */
static void what_stages_copy_is_charged(void **state)
{
    static const char *const wanted[] = {"receive", "update"};
    const fixture_run_t run = {.model = fixture_gpt(),
                               .n_devices = 2,
                               .n_stages = 2,
                               .rows = 8,
                               .n_micro = 2};

    (void)state;
    train(run, wanted, 2);
    sl_model_destroy(run.model);
}

static void sums_over_replicas_are_charged(void **state)
{
    static const char *const wanted[] = {"sum", "receive", "update"};
    const fixture_run_t run = {.model = fixture_gpt(),
                               .n_devices = 4,
                               .n_stages = 2,
                               .n_replicas = 2,
                               .rows = 8,
                               .n_micro = 2};

    (void)state;
    train(run, wanted, 3);
    sl_model_destroy(run.model);
}

/* A batch that is loaded beside the passes, where the device can. */
static void loads_are_charged(void **state)
{
    static const char *const wanted[] = {"load"};
    const fixture_run_t run = {.model = fixture_gpt(),
                               .n_devices = 1,
                               .n_stages = 1,
                               .rows = 8,
                               .n_micro = 4};

    (void)state;
    if (!fixture_is_cuda()) {
        sl_model_destroy(run.model);
        skip(); /* there it is an ordinary copy */
    }
    train(run, wanted, 1);
    sl_model_destroy(run.model);
}

/* ---- and held to the share ---- */

typedef struct stuff {
    sl_device_set_t *set;
    sl_device_t *device;
    sl_mem_block_t *blocks[2];
    float *host; /* of sl_device_host_alloc() */
} stuff_t;

typedef sl_status_t (*work_fn)(const stuff_t *stuff);

static sl_status_t copy(const stuff_t *stuff)
{
    return sl_device_copy(stuff->device, stuff->blocks[0]->ptr,
                          stuff->blocks[1]->ptr, MIB, NULL);
}

static sl_status_t load(const stuff_t *stuff)
{
    const sl_copy_args_t args = {
        .dst = stuff->blocks[0]->ptr, .src = stuff->host, .bytes = MIB};

    return sl_device_load(stuff->device, &args, 0, NULL);
}

static sl_status_t sum(const stuff_t *stuff)
{
    return sl_device_add(stuff->device, stuff->blocks[0]->ptr,
                         stuff->blocks[1]->ptr, MIB / 4, NULL);
}

static void make(stuff_t *stuff)
{
    sl_device_params_t params;
    int i;

    sl_device_params_default(&params);
    params.spec = fixture_is_cuda() ? "cuda:1" : "cpu:1";
    params.n_threads = 1;
    params.bind = 0;
    sl_assert_ok(sl_device_set_create(&params, &stuff->set));
    stuff->device = &stuff->set->devices[0];
    for (i = 0; i < 2; i++) {
        sl_assert_ok(sl_mem_alloc(stuff->device->mem, SL_MEM_CLASS_WORKSPACE,
                                  MIB, &stuff->blocks[i]));
        sl_assert_ok(sl_device_zero(stuff->device, stuff->blocks[i]->ptr, MIB));
    }
    sl_assert_ok(
        sl_device_host_alloc(stuff->device, MIB, (void **)&stuff->host));
    sl_assert_ok(sl_device_drain(stuff->device));
}

static void unmake(stuff_t *stuff)
{
    int i;

    sl_assert_ok(sl_op_manager_share_set(stuff->device->ops, 100.0,
                                         SL_SHARE_TOKEN_BUCKET));
    sl_assert_ok(sl_device_drain(stuff->device));
    sl_device_host_release(stuff->device, stuff->host);
    for (i = 0; i < 2; i++) {
        sl_mem_release(stuff->blocks[i]);
    }
    sl_device_set_destroy(stuff->set);
}

/* What the bucket of the share lacks at least, however much it has got. */
static double debt_of(const sl_op_stats_t *begin, const sl_op_stats_t *charged,
                      const sl_op_stats_t *now)
{
    return (double)(charged->charged_ns - begin->charged_ns) - DEPTH_NS -
           (double)(now->elapsed_ns - begin->elapsed_ns) * SHARE / 100.0;
}

/* One after the other, until one has come while there was a debt, which had
 * not been paid when it was over. That one was held up. */
static void check_share(work_fn work)
{
    sl_op_stats_t begin, before, after;
    stuff_t stuff;

    make(&stuff);
    sl_op_manager_stats(stuff.device->ops, &begin);
    sl_assert_ok(sl_op_manager_share_set(stuff.device->ops, SHARE,
                                         SL_SHARE_TOKEN_BUCKET));
    after = begin;
    do {
        assert_true(after.n_run - begin.n_run < MAX_OPS); /* for nothing? */
        before = after;
        sl_assert_ok(work(&stuff));
        sl_assert_ok(sl_device_drain(stuff.device));
        sl_op_manager_stats(stuff.device->ops, &after);
    } while (after.throttled_ns == before.throttled_ns &&
             debt_of(&begin, &before, &after) <= 0.0);
    assert_true(after.throttled_ns > before.throttled_ns);
    unmake(&stuff);
}

static void copies_have_the_share_they_are_given(void **state)
{
    (void)state;
    check_share(copy);
}

static void loads_have_the_share_they_are_given(void **state)
{
    (void)state;
    check_share(load);
}

static void sums_have_the_share_they_are_given(void **state)
{
    (void)state;
    check_share(sum);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(what_stages_copy_is_charged),
        sl_unit_test(sums_over_replicas_are_charged),
        sl_unit_test(loads_are_charged),
        sl_unit_test(copies_have_the_share_they_are_given),
        sl_unit_test(loads_have_the_share_they_are_given),
        sl_unit_test(sums_have_the_share_they_are_given),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
