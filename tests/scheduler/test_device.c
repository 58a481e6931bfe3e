/* SPDX-License-Identifier: Apache-2.0 */
/* Device specs, cores, threads, memory. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* sched_getcpu, affinity masks, thread names */
#endif
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "scheduler/machine.h"
#include "tests/scheduler/ops_bed.h"

enum {
    MAX_CORES = 1 << 14
};

static sl_device_set_t *devices(const char *spec, int n_threads)
{
    sl_device_params_t params;
    sl_device_set_t *set = NULL;

    sl_device_params_default(&params);
    params.spec = spec;
    params.n_threads = n_threads;
    sl_assert_ok(sl_device_set_create(&params, &set));
    return set;
}

/* What an op finds about the thread it runs on. */
typedef struct finding {
    int max_threads;
    int is_dynamic;
    int n_allowed;
    cpu_set_t allowed;
    char name[32];
} finding_t;

static sl_status_t look_op(const void *args, void *stream)
{
    finding_t *finding = *(finding_t *const *)args;

    (void)stream;
    finding->max_threads = omp_get_max_threads();
    finding->is_dynamic = omp_get_dynamic();
    CPU_ZERO(&finding->allowed);
    (void)sched_getaffinity(0, sizeof(finding->allowed), &finding->allowed);
    finding->n_allowed = CPU_COUNT(&finding->allowed);
    (void)pthread_getname_np(pthread_self(), finding->name,
                             sizeof(finding->name));
    return SL_OK;
}

static void look(const sl_device_t *device, finding_t *finding)
{
    const sl_op_t op = {
        .fn = look_op, .args = &finding, .args_bytes = sizeof(finding)};

    sl_assert_ok(sl_op_manager_submit(device->ops, &op, NULL));
    sl_assert_ok(sl_op_manager_drain(device->ops));
}

static void specs_are_strict(void **state)
{
    static const char *const bad[] = {
        "",
        "cpu:",
        "cpu:0",
        "cpu:257",
        "cpu:-1",
        "cpu:+1",
        "cpu:01",
        "cpu: 1",
        "cpu:1 ",
        "cpu:1x",
        "cpu1",
        "CPU",
        " cpu",
        "gpu:0",
        "cpu:1:2",
        ":",
        "cpux:1",
        "cp",
        "cpu:9999999999999999999999",
    };
    sl_device_params_t params;
    sl_device_set_t *set = NULL;
    size_t i;

    (void)state;
    sl_device_params_default(&params);
    for (i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        params.spec = bad[i];
        sl_assert_status(sl_device_set_create(&params, &set),
                         SL_ERR_INVALID_ARG);
        assert_null(set);
    }
    params.spec = "tpu:4";
    sl_assert_status(sl_device_set_create(&params, &set), SL_ERR_INVALID_ARG);
    sl_assert_contains(sl_last_error(), "this build has: cpu");
#if !SL_HAVE_CUDA
    params.spec = "cuda:1";
    sl_assert_status(sl_device_set_create(&params, &set), SL_ERR_UNSUPPORTED);
    sl_assert_contains(sl_last_error(), "this build has no CUDA");
    assert_string_equal(sl_device_default_spec(), "cpu:1");
    assert_true(sl_device_gpus_hash() == 0);
#endif
    params.spec = "cpu:2";
    params.n_threads = -1;
    sl_assert_status(sl_device_set_create(&params, &set), SL_ERR_INVALID_ARG);
    params.spec = NULL;
    sl_assert_status(sl_device_set_create(&params, &set), SL_ERR_INVALID_ARG);
    sl_assert_status(sl_device_set_create(NULL, &set), SL_ERR_INVALID_ARG);
    params.spec = "cpu";
    params.n_threads = 1;
    sl_assert_status(sl_device_set_create(&params, NULL), SL_ERR_INVALID_ARG);
    sl_device_set_destroy(NULL);
}

static void a_set_has_its_devices(void **state)
{
    sl_device_set_t *set = devices("cpu", 0);
    int i;

    (void)state;
    assert_int_equal(set->n_devices, 1);
    assert_string_equal(set->devices[0].name, "cpu:0");
    assert_true(set->devices[0].n_threads >= 1);
    sl_device_set_destroy(set);

    set = devices("cpu:3", 1);
    assert_int_equal(set->n_devices, 3);
    for (i = 0; i < 3; i++) {
        const sl_device_t *device = &set->devices[i];
        finding_t finding;
        sl_mem_stats_t stats;

        assert_int_equal(device->index, i);
        assert_int_equal(device->kind, SL_DEVICE_KIND_CPU);
        assert_int_equal(device->name[4], '0' + i);
        look(device, &finding);
        assert_string_equal(finding.name, device->name);
        sl_mem_stats(device->mem, &stats);
        assert_true(stats.limit_bytes > 0 && stats.limit_bytes < SIZE_MAX / 4);
    }
    sl_device_set_destroy(set);
}

static void kernel_threads_are_set(void **state)
{
    static const int counts[] = {1, 2, 3};
    size_t i;

    (void)state;
    if (omp_get_thread_limit() < 2) {
        skip();
    }
    for (i = 0; i < sizeof(counts) / sizeof(*counts); i++) {
        sl_device_set_t *set = devices("cpu:2", counts[i]);
        finding_t finding;

        assert_int_equal(set->devices[1].n_threads, counts[i]);
        look(&set->devices[1], &finding);
        assert_int_equal(finding.max_threads, counts[i]);
        assert_false(finding.is_dynamic);
        sl_device_set_destroy(set);
    }
}

static void devices_have_cores_of_their_own(void **state)
{
    const int n_cores = sl_device_cores(NULL, 0);
    sl_device_set_t *set = devices(n_cores > 1 ? "cpu:2" : "cpu:1", 1);
    finding_t findings[2];
    cpu_set_t both;
    int i;

    (void)state;
    for (i = 0; i < set->n_devices; i++) {
        look(&set->devices[i], &findings[i]);
        if (sl_machine_cpu_quota() == 0) { /* a quota forbids binding */
            assert_int_equal(set->devices[i].n_cores, 1);
            assert_int_equal(findings[i].n_allowed, 1);
        }
    }
    if (set->n_devices == 2 && set->devices[0].n_cores > 0) {
        CPU_AND(&both, &findings[0].allowed, &findings[1].allowed);
        assert_int_equal(CPU_COUNT(&both), 0);
    }
    sl_device_set_destroy(set);
}

static void too_many_threads_are_not_bound(void **state)
{
    const int n_cores = sl_device_cores(NULL, 0);
    sl_device_set_t *set;
    cpu_set_t mine;
    finding_t finding;

    (void)state;
    if (omp_get_thread_limit() < n_cores) {
        skip();
    }
    set = devices("cpu:2", n_cores);
    assert_int_equal(set->devices[0].n_cores, 0);
    look(&set->devices[0], &finding);
    assert_int_equal(sched_getaffinity(0, sizeof(mine), &mine), 0);
    assert_true(CPU_EQUAL(&mine, &finding.allowed));
    sl_device_set_destroy(set);
}

/* Two processes of a job that may use the same cores. */
static void processes_of_a_host_share_its_cores(void **state)
{
    const int n_cores = sl_device_cores(NULL, 0);
    sl_device_params_t params;
    finding_t findings[2];
    cpu_set_t both;
    int i;

    (void)state;
    if (n_cores < 2 || sl_machine_cpu_quota() > 0 ||
        omp_get_thread_limit() < n_cores) {
        skip();
    }
    for (i = 0; i < 2; i++) {
        sl_device_set_t *set = NULL;

        sl_device_params_default(&params);
        params.local_rank = i;
        params.n_local = 2;
        params.n_on_host = 2;
        sl_assert_ok(sl_device_set_create(&params, &set));
        assert_int_equal(set->devices[0].n_threads, n_cores / 2);
        look(&set->devices[0], &findings[i]);
        assert_int_equal(findings[i].n_allowed, n_cores / 2);
        sl_device_set_destroy(set);
    }
    CPU_AND(&both, &findings[0].allowed, &findings[1].allowed);
    assert_int_equal(CPU_COUNT(&both), 0);
}

/* More processes than cores: one thread each, not bound. */
static void many_processes_are_not_bound(void **state)
{
    const int n_cores = sl_device_cores(NULL, 0);
    sl_device_params_t params;
    sl_device_set_t *set = NULL;

    (void)state;
    sl_device_params_default(&params);
    params.n_local = n_cores + 1;
    params.local_rank = n_cores;
    params.n_on_host = n_cores + 1;
    sl_assert_ok(sl_device_set_create(&params, &set));
    assert_int_equal(set->devices[0].n_threads, 1);
    assert_int_equal(set->devices[0].n_cores, 0);
    sl_device_set_destroy(set);
    params.local_rank = n_cores + 1;
    set = NULL;
    sl_assert_status(sl_device_set_create(&params, &set), SL_ERR_INVALID_ARG);
    params.local_rank = -1;
    sl_assert_status(sl_device_set_create(&params, &set), SL_ERR_INVALID_ARG);
    params.local_rank = 0;
    params.n_on_host = 0;
    sl_assert_status(sl_device_set_create(&params, &set), SL_ERR_INVALID_ARG);
}

static void processes_of_a_host_share_its_memory(void **state)
{
    sl_device_params_t params;
    sl_device_set_t *set = NULL;
    sl_mem_stats_t stats;
    size_t alone_bytes;

    (void)state;
    sl_device_params_default(&params);
    params.n_threads = 1;
    sl_assert_ok(sl_device_set_create(&params, &set));
    sl_mem_stats(set->devices[0].mem, &stats);
    alone_bytes = stats.limit_bytes;
    sl_device_set_destroy(set);
    params.n_on_host = 4;
    sl_assert_ok(sl_device_set_create(&params, &set));
    sl_mem_stats(set->devices[0].mem, &stats);
    /* what is available changes meanwhile, but not that much */
    assert_true(stats.limit_bytes < alone_bytes / 2);
    assert_true(stats.limit_bytes > alone_bytes / 8);
    sl_device_set_destroy(set);
}

static void equal_masks_have_equal_hashes(void **state)
{
    const uint64_t all = sl_device_cores_hash();
    cpu_set_t before;
    cpu_set_t one;
    uint64_t hash;
    int core = 0;

    (void)state;
    assert_int_equal(sl_device_cores_hash(), all);
    if (sl_device_cores(&core, 1) < 2) {
        skip();
    }
    assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
    CPU_ZERO(&one);
    CPU_SET((size_t)core, &one);
    assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
    hash = sl_device_cores_hash();
    assert_int_equal(sched_setaffinity(0, sizeof(before), &before), 0);
    assert_int_not_equal(hash, all);
}

static void binding_can_be_off(void **state)
{
    sl_device_params_t params;
    sl_device_set_t *set = NULL;

    (void)state;
    sl_device_params_default(&params);
    params.bind = 0;
    params.n_threads = 1;
    sl_assert_ok(sl_device_set_create(&params, &set));
    assert_int_equal(set->devices[0].n_cores, 0);
    sl_device_set_destroy(set);
}

static void cores_follow_the_affinity_mask(void **state)
{
    static int cores[MAX_CORES];
    const int n_cores = sl_device_cores(cores, MAX_CORES);
    cpu_set_t before;
    cpu_set_t one;
    int found[2] = {-1, -1};
    int i;

    (void)state;
    assert_true(n_cores >= 1);
    for (i = 1; i < n_cores; i++) {
        assert_int_not_equal(cores[i], cores[i - 1]);
    }
    assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
    CPU_ZERO(&one);
    CPU_SET((size_t)cores[n_cores - 1], &one);
    assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
    i = sl_device_cores(found, 2);
    assert_int_equal(sched_setaffinity(0, sizeof(before), &before), 0);
    assert_int_equal(i, 1);
    assert_int_equal(found[0], cores[n_cores - 1]);
    assert_int_equal(found[1], -1);
}

static void memory_is_limited_per_device(void **state)
{
    sl_device_params_t params;
    sl_device_set_t *set = NULL;
    sl_mem_block_t *block = NULL;
    sl_mem_stats_t stats;

    (void)state;
    sl_device_params_default(&params);
    params.spec = "cpu:2";
    params.n_threads = 1;
    params.memory_bytes = 4 << 20;
    params.host_bytes = 1 << 20;
    sl_assert_ok(sl_device_set_create(&params, &set));
    sl_mem_stats(set->devices[1].mem, &stats);
    assert_int_equal(stats.limit_bytes, 4 << 20);
    sl_assert_status(
        sl_mem_alloc(set->devices[1].mem, SL_MEM_CLASS_STASH, 5 << 20, &block),
        SL_ERR_QUOTA);
    sl_assert_contains(sl_last_error(), "cpu:1: stash block");
    sl_device_set_destroy(set);
}

typedef struct store_args {
    const gate_t *gate;
    unsigned char *ptr;
    size_t bytes;
} store_args_t;

static sl_status_t store_op(const void *args, void *stream)
{
    const store_args_t *store = args;

    (void)stream;
    while (!atomic_load(&store->gate->is_open)) {
    }
    memset(store->ptr, 1, store->bytes);
    return SL_OK;
}

static void *open_soon(void *arg)
{
    const uint64_t end_ns = sl_clock_ns() + 20 * MS;

    while (sl_clock_ns() < end_ns) {
    }
    ops_bed_open(arg);
    return NULL;
}

/* A released block whose last op still waits in the ring: its region may be
 * given back for another only after that op. */
static void memory_outlives_the_ops_that_use_it(void **state)
{
    sl_device_params_t params;
    sl_device_set_t *set = NULL;
    sl_mem_block_t *block = NULL;
    gate_t gate = {0};
    store_args_t args = {.gate = &gate, .bytes = 1 << 20};
    const sl_op_t op = {
        .fn = store_op, .args = &args, .args_bytes = sizeof(args)};
    pthread_t thread;

    (void)state;
    sl_device_params_default(&params);
    params.n_threads = 1;
    params.memory_bytes = 4 << 20;
    sl_assert_ok(sl_device_set_create(&params, &set));
    sl_assert_ok(sl_mem_alloc(set->devices[0].mem, SL_MEM_CLASS_ACTIVATION,
                              args.bytes, &block));
    args.ptr = block->ptr;
    sl_assert_ok(sl_op_manager_submit(set->devices[0].ops, &op, NULL));
    sl_mem_release(block);
    assert_int_equal(pthread_create(&thread, NULL, open_soon, &gate), 0);
    sl_assert_ok(sl_mem_alloc(set->devices[0].mem, SL_MEM_CLASS_ACTIVATION,
                              4 << 20, &block));
    assert_true(atomic_load(&gate.is_open));
    sl_assert_ok(sl_op_manager_drain(set->devices[0].ops));
    assert_int_equal(pthread_join(thread, NULL), 0);
    sl_mem_release(block);
    sl_device_set_destroy(set);
}

/* Where the system has slices: on the cores of the device it feeds. */
static void *bind_to(void *device)
{
    static int n_cores;

    sl_device_bind_self(device);
    n_cores = sl_device_cores(NULL, 0);
    return &n_cores;
}

static void a_submitter_is_placed_with_its_device(void **state)
{
    const int n_all = sl_device_cores(NULL, 0);
    sl_machine_sched_t sched = {0};
    sl_device_params_t params;
    sl_device_set_t *set = NULL;
    pthread_t thread;
    void *n_cores_p = NULL;
    int is_bound;

    (void)state;
    sl_device_params_default(&params);
    params.n_threads = 1;
    sl_assert_ok(sl_device_set_create(&params, &set));
    assert_int_equal(pthread_create(&thread, NULL, bind_to, &set->devices[0]),
                     0);
    assert_int_equal(pthread_join(thread, &n_cores_p), 0);
    assert_non_null(n_cores_p);
    is_bound = *(const int *)n_cores_p == 1;
    assert_true(is_bound || *(const int *)n_cores_p == n_all);
    if (set->devices[0].n_cores == 0) {
        assert_int_equal(is_bound, n_all == 1);
    }
    /* the calling thread is as it was */
    assert_int_equal(sl_device_cores(NULL, 0), n_all);
    if (sl_machine_sched_get(0, &sched) == 0) {
        assert_true(sched.slice_ns != 100000);
    }
    sl_device_set_destroy(set);
}

static void *bind_to_set(void *set)
{
    static int n_cores;

    sl_device_set_bind_self(set);
    n_cores = sl_device_cores(NULL, 0);
    return &n_cores;
}

static void a_server_is_placed_with_all_devices_it_serves(void **state)
{
    const int n_all = sl_device_cores(NULL, 0);
    int is_bound;

    (void)state;
    for (is_bound = 0; is_bound < 2; is_bound++) {
        sl_device_params_t params;
        sl_device_set_t *set = NULL;
        pthread_t thread;
        void *n_cores_p = NULL;
        int n, n_of_set;

        sl_device_params_default(&params);
        params.spec = "cpu:2";
        params.n_threads = 1;
        params.bind = is_bound;
        sl_assert_ok(sl_device_set_create(&params, &set));
        n_of_set = set->devices[0].n_cores + set->devices[1].n_cores;
        assert_int_equal(pthread_create(&thread, NULL, bind_to_set, set), 0);
        assert_int_equal(pthread_join(thread, &n_cores_p), 0);
        assert_non_null(n_cores_p);
        n = *(const int *)n_cores_p;
        assert_true(n == n_all || (n_of_set > 0 && n == n_of_set));
        sl_device_set_destroy(set);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(specs_are_strict),
        sl_unit_test(a_set_has_its_devices),
        sl_unit_test(kernel_threads_are_set),
        sl_unit_test(devices_have_cores_of_their_own),
        sl_unit_test(too_many_threads_are_not_bound),
        sl_unit_test(processes_of_a_host_share_its_cores),
        sl_unit_test(many_processes_are_not_bound),
        sl_unit_test(processes_of_a_host_share_its_memory),
        sl_unit_test(equal_masks_have_equal_hashes),
        sl_unit_test(binding_can_be_off),
        sl_unit_test(cores_follow_the_affinity_mask),
        sl_unit_test(memory_is_limited_per_device),
        sl_unit_test(memory_outlives_the_ops_that_use_it),
        sl_unit_test(a_submitter_is_placed_with_its_device),
        sl_unit_test(a_server_is_placed_with_all_devices_it_serves),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
