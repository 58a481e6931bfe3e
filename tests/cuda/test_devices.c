/* SPDX-License-Identifier: Apache-2.0 */
/* Devices of the kind "cuda": how they are shared out, what they say when
 * there are none, and that they work. */
#include <stdlib.h>
#include <string.h>

#include "tests/cuda/stream_bed.h"

#define MIB ((size_t)1 << 20)

static sl_device_set_t *open_set(const char *spec)
{
    sl_device_params_t params;
    sl_device_set_t *set = NULL;

    sl_device_params_default(&params);
    params.spec = spec;
    sl_assert_ok(sl_device_set_create(&params, &set));
    return set;
}

static void refuse(const char *spec, sl_status_t status, const char *text)
{
    sl_device_params_t params;
    sl_device_set_t *set = NULL;

    sl_device_params_default(&params);
    params.spec = spec;
    sl_assert_status(sl_device_set_create(&params, &set), status);
    sl_assert_contains(sl_last_error(), text);
    assert_null(set);
}

static void devices_are_shared_out(void **state)
{
    static const struct {
        const char *spec;
        int n;
        int gpus[5];
    } cases[] = {
        {"cuda", 1, {0}},
        {"cuda:1", 1, {0}},
        {"cuda:2", 2, {0, 1}},
        {"cuda:3", 3, {0, 0, 1}},
        {"cuda:4", 4, {0, 0, 1, 1}},
        {"cuda:5", 5, {0, 0, 0, 1, 1}},
    };
    size_t k;
    int i;

    (void)state;
    for (k = 0; k < sizeof(cases) / sizeof(*cases); k++) {
        sl_device_set_t *set = open_set(cases[k].spec);

        assert_int_equal(set->n_devices, cases[k].n);
        for (i = 0; i < cases[k].n; i++) {
            const sl_device_t *device = &set->devices[i];
            char name[32];

            (void)snprintf(name, sizeof(name), "cuda:%d", i);
            assert_string_equal(device->name, name);
            assert_int_equal(device->kind, SL_DEVICE_KIND_CUDA);
            assert_int_equal(device->index, i);
            assert_int_equal(device->gpu, cases[k].gpus[i]);
            assert_int_equal(device->n_threads, 1);
            assert_int_equal(device->n_cores, 0);
            sl_device_bind_self(device);
        }
        sl_device_set_destroy(set);
    }
}

/* A GPU is called the same whatever a process sees besides it. */
static void a_gpu_is_known_by_its_serial_number(void **state)
{
    sl_device_set_t *set = open_set("cuda:4");
    char ids[2][SL_GPU_ID_BYTES];
    int i;

    (void)state;
    for (i = 0; i < 2; i++) {
        memcpy(ids[i], set->devices[2 * i].gpu_id, sizeof(ids[i]));
        assert_string_equal(set->devices[2 * i + 1].gpu_id, ids[i]);
        assert_true(set->devices[2 * i].gpu_bytes == (size_t)3 << 30);
    }
    assert_string_equal(ids[1], "GPU-00000001-0000-0000-7374-616e642d696e");
    assert_string_equal(set->devices[0].bus_id, "0000:0A:00.0");
    assert_string_equal(set->devices[3].bus_id, "0000:0B:00.0");
    sl_device_set_destroy(set);
    assert_int_equal(setenv("CUDA_VISIBLE_DEVICES", "1,0", 1), 0);
    standin_reset();
    set = open_set("cuda:2");
    assert_string_equal(set->devices[0].gpu_id, ids[1]);
    assert_string_equal(set->devices[1].gpu_id, ids[0]);
    assert_int_equal(set->devices[0].gpu, 0);
    sl_device_set_destroy(set);
    assert_int_equal(setenv("CUDA_VISIBLE_DEVICES", "1,7,0", 1), 0);
    standin_reset(); /* those before the one that is not there */
    assert_string_equal(sl_device_default_spec(), "cuda:1");
    assert_int_equal(unsetenv("CUDA_VISIBLE_DEVICES"), 0);
    standin_reset();
}

/* Or by its place on the bus, where it has none. */
static void without_a_serial_number_the_bus_counts(void **state)
{
    sl_device_set_t *set;

    (void)state;
    standin_set_uuids(0);
    set = open_set("cuda:2");
    assert_string_equal(set->devices[0].gpu_id, "0000:0A:00.0");
    assert_string_equal(set->devices[1].gpu_id, "0000:0B:00.0");
    sl_device_set_destroy(set);
    standin_fail(STANDIN_cudaDeviceGetPCIBusId, 2, cudaErrorUnknown,
                 STANDIN_FAIL_CALL);
    refuse("cuda:2", SL_ERR_DEVICE, "cudaDeviceGetPCIBusId");
}

/* What is free but for the reserve, in equal parts. */
static void memory_is_shared_out(void **state)
{
    sl_device_set_t *set;
    sl_device_params_t params;
    sl_mem_stats_t stats;
    int i;

    (void)state;
    standin_set_memory(800 * MIB);
    set = open_set("cuda:4");
    for (i = 0; i < 4; i++) {
        sl_mem_stats(set->devices[i].mem, &stats);
        assert_int_equal(stats.limit_bytes, 350 * MIB);
    }
    sl_device_set_destroy(set);
    standin_set_memory((size_t)6 << 30);
    set = open_set("cuda:2");
    sl_mem_stats(set->devices[1].mem, &stats);
    assert_int_equal(stats.limit_bytes, ((size_t)6 << 30) - 512 * MIB);
    sl_device_set_destroy(set);
    sl_device_params_default(&params);
    params.spec = "cuda:2";
    params.memory_bytes = 7 * MIB;
    params.host_bytes = 3 * MIB;
    sl_assert_ok(sl_device_set_create(&params, &set));
    sl_mem_stats(set->devices[0].mem, &stats);
    assert_int_equal(stats.limit_bytes, 7 * MIB);
    assert_int_equal(stats.host_limit_bytes, 3 * MIB);
    sl_device_set_destroy(set);
}

/* Regions in whole pages of the driver, or to the byte. */
static void check_exportable(int is_asked, int is_exportable)
{
    sl_device_params_t params;
    sl_device_set_t *set = NULL;
    int i;

    sl_device_params_default(&params);
    assert_int_equal(params.is_exportable, 0);
    params.spec = "cuda:2";
    params.is_exportable = is_asked;
    sl_assert_ok(sl_device_set_create(&params, &set));
    for (i = 0; i < 2; i++) {
        sl_device_t *device = &set->devices[i];
        sl_mem_block_t *block = NULL;
        sl_mem_stats_t stats;

        assert_int_equal(device->is_exportable, is_exportable);
        sl_assert_ok(
            sl_mem_alloc(device->mem, SL_MEM_CLASS_COMM, 3 * MIB, &block));
        sl_mem_stats(device->mem, &stats);
        assert_int_equal(stats.unit_bytes == SL_MEM_ALIGN_BYTES, is_exportable);
        sl_mem_release(block);
    }
    sl_device_set_destroy(set);
    assert_int_equal(standin_n_calls(STANDIN_cuMemCreate) == 0, is_exportable);
}

/* Memory that other processes can map is cudaMalloc's. */
static void memory_for_other_processes(void **state)
{
    (void)state;
    check_exportable(1, 1);
    check_exportable(0, 0);
    standin_reset();
    standin_set_granularity(0); /* a device without virtual memory */
    check_exportable(0, 1);
}

static void processes_that_see_the_same_gpus_divide_them(void **state)
{
    static const int gpus[4][2] = {{0, 0}, {0, 0}, {1, 1}, {1, 1}};
    sl_device_params_t params;
    sl_device_set_t *set = NULL;
    sl_mem_stats_t stats;
    int rank, i;

    (void)state;
    standin_set_memory(800 * MIB);
    sl_device_params_default(&params);
    params.n_gpu_ranks = 4;
    params.spec = "cuda:2";
    for (rank = 0; rank < 4; rank++) {
        params.gpu_rank = rank;
        sl_assert_ok(sl_device_set_create(&params, &set));
        for (i = 0; i < 2; i++) {
            assert_int_equal(set->devices[i].gpu, gpus[rank][i]);
            sl_mem_stats(set->devices[i].mem, &stats);
            assert_int_equal(stats.limit_bytes, 175 * MIB);
        }
        sl_device_set_destroy(set);
    }
    params.spec = "cuda";
    params.n_gpu_ranks = 2;
    for (rank = 0; rank < 2; rank++) {
        params.gpu_rank = rank;
        sl_assert_ok(sl_device_set_create(&params, &set));
        assert_int_equal(set->devices[0].gpu, rank);
        sl_device_set_destroy(set);
    }
    set = NULL;
    params.gpu_rank = 2;
    sl_assert_status(sl_device_set_create(&params, &set), SL_ERR_INVALID_ARG);
    params.gpu_rank = -1;
    sl_assert_status(sl_device_set_create(&params, &set), SL_ERR_INVALID_ARG);
    assert_null(set);
}

static void what_is_missing_is_said(void **state)
{
    (void)state;
    refuse("cuda:0", SL_ERR_INVALID_ARG, "number of devices");
    refuse("cuda:33", SL_ERR_INVALID_ARG,
           "33 devices in 1 processes for 2 GPUs; at most 16 can share one");
    refuse("tpu", SL_ERR_INVALID_ARG, "this build has: cpu and cuda");
    standin_fail(STANDIN_cudaGetDeviceCount, 1, cudaErrorUnknown,
                 STANDIN_FAIL_CALL);
    refuse("cuda", SL_ERR_DEVICE, "unknown error (cudaErrorUnknown)");
    standin_fail(STANDIN_cudaGetDeviceCount, 1, cudaErrorInsufficientDriver,
                 STANDIN_FAIL_CALL);
    refuse("cuda", SL_ERR_DEVICE, "the driver knows CUDA up to 13.0");
    standin_set_devices(0);
    assert_int_equal(unsetenv("CUDA_VISIBLE_DEVICES"), 0);
    refuse("cuda", SL_ERR_DEVICE, "no GPU is found");
    assert_int_equal(setenv("CUDA_VISIBLE_DEVICES", "", 1), 0);
    refuse("cuda", SL_ERR_DEVICE, "CUDA_VISIBLE_DEVICES is ''");
    assert_int_equal(unsetenv("CUDA_VISIBLE_DEVICES"), 0);
    assert_string_equal(sl_device_default_spec(), "cpu:1");
    assert_true(sl_device_gpus_hash() == 0);
    standin_set_devices(2);
    assert_string_equal(sl_device_default_spec(), "cuda:2");
    assert_true(sl_device_gpus_hash() != 0);
}

static void peers_reach_each_others_memory(void **state)
{
    sl_device_set_t *set = open_set("cuda:4");
    sl_mem_block_t *a, *b;

    (void)state;
    /* each device for the other GPU */
    assert_int_equal(standin_n_calls(STANDIN_cudaDeviceEnablePeerAccess), 4);
    sl_assert_ok(sl_mem_alloc(set->devices[0].mem, SL_MEM_CLASS_COMM,
                              N * sizeof(float), &a));
    sl_assert_ok(sl_mem_alloc(set->devices[3].mem, SL_MEM_CLASS_COMM,
                              N * sizeof(float), &b));
    sl_assert_ok(submit_add(set->devices[3].ops, a->ptr, b->ptr, NULL));
    sl_assert_ok(sl_op_manager_drain(set->devices[3].ops));
    sl_mem_release(a);
    sl_mem_release(b);
    sl_device_set_destroy(set);
    /* a second set finds it on already */
    sl_device_set_destroy(open_set("cuda:2"));
    assert_int_equal(cudaGetLastError(), cudaSuccess);
}

/* Where GPUs cannot reach each other, an ordinary copy goes over the host: for
 * that, memory is not mapped in pieces. */
static void without_peers_memory_stays_whole(void **state)
{
    sl_device_set_t *set;
    sl_mem_block_t *a, *b;

    (void)state;
    standin_set_peers(0);
    set = open_set("cuda:2");
    sl_assert_ok(sl_mem_alloc(set->devices[0].mem, SL_MEM_CLASS_COMM,
                              N * sizeof(float), &a));
    sl_assert_ok(sl_mem_alloc(set->devices[1].mem, SL_MEM_CLASS_COMM,
                              N * sizeof(float), &b));
    assert_int_equal(standin_n_calls(STANDIN_cuMemCreate), 0);
    assert_int_equal(cudaMemset(a->ptr, 0, N * sizeof(float)), cudaSuccess);
    assert_int_equal(
        cudaMemcpy(b->ptr, a->ptr, N * sizeof(float), cudaMemcpyDefault),
        cudaSuccess);
    sl_mem_release(a);
    sl_mem_release(b);
    sl_device_set_destroy(set);
    /* alone, a GPU has no peer to care for */
    set = open_set("cuda:1");
    sl_assert_ok(sl_mem_alloc(set->devices[0].mem, SL_MEM_CLASS_COMM,
                              N * sizeof(float), &a));
    assert_true(standin_n_calls(STANDIN_cuMemCreate) > 0);
    sl_mem_release(a);
    sl_device_set_destroy(set);
}

/* Blocks are reused in the order of the ops, and go when none uses them. */
static void memory_follows_the_ops(void **state)
{
    sl_device_params_t params;
    sl_device_set_t *set = NULL;
    sl_device_t *device;
    int i;

    (void)state;
    standin_set_delay_us(200);
    sl_device_params_default(&params);
    params.spec = "cuda:1";
    params.memory_bytes = 4 * MIB;
    params.host_bytes = 8 * MIB;
    sl_assert_ok(sl_device_set_create(&params, &set));
    device = &set->devices[0];
    for (i = 0; i < 20; i++) {
        sl_mem_block_t *x, *y;

        sl_assert_ok(sl_mem_alloc(device->mem, SL_MEM_CLASS_ACTIVATION,
                                  MIB + (size_t)i * 100000, &x));
        sl_assert_ok(sl_mem_alloc(device->mem, SL_MEM_CLASS_STASH, MIB, &y));
        sl_assert_ok(submit_add(device->ops, x->ptr, y->ptr, NULL));
        sl_mem_release(x);
        sl_mem_release(y);
        if (i % 5 == 4) {
            sl_mem_limit_request(device->mem, (size_t)(i % 4) * MIB);
            sl_mem_boundary(device->mem, NULL);
        }
    }
    sl_device_set_destroy(set);
}

/* As far as it gets. */
static void use(void)
{
    sl_device_params_t params;
    sl_device_set_t *set = NULL;
    sl_mem_block_t *x = NULL;
    int i;

    sl_device_params_default(&params);
    params.spec = "cuda:3";
    params.memory_bytes = 2 * MIB;
    params.host_bytes = MIB;
    if (sl_device_set_create(&params, &set) != SL_OK) {
        assert_null(set);
        return;
    }
    for (i = 0; i < 3; i++) {
        if (sl_mem_alloc(set->devices[i].mem, SL_MEM_CLASS_STASH,
                         N * sizeof(float), &x) == SL_OK) {
            (void)!submit_add(set->devices[i].ops, x->ptr, x->ptr, NULL);
            sl_mem_limit_request(set->devices[i].mem, 0);
            sl_mem_boundary(set->devices[i].mem, NULL);
            sl_mem_release(x);
        }
    }
    sl_device_set_destroy(set);
}

static void every_failure_is_survived(void **state)
{
    int entry, n_failures = 0;

    (void)state;
    for (entry = 0; entry < STANDIN_N_ENTRIES; entry++) {
        uint64_t call = 0;
        int has_failed;

        do {
            call++;
            standin_fail((standin_entry_t)entry, call, cudaErrorUnknown,
                         STANDIN_FAIL_CALL);
            use();
            has_failed = standin_has_failed();
            n_failures += has_failed;
            (void)sl_test_log_take();
            if (standin_n_live() != 0 || standin_n_reports() != 0) {
                fail_msg("%s, call %d: %d things are left; %s",
                         standin_entry_name((standin_entry_t)entry), (int)call,
                         standin_n_live(), standin_report(0));
            }
            standin_reset();
            /* every so many: there are an event's failures by the hundred */
            call += call >= 12 ? 17 : 0;
        } while (has_failed);
    }
    assert_true(n_failures > 60);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(devices_are_shared_out),
        T(a_gpu_is_known_by_its_serial_number),
        T(without_a_serial_number_the_bus_counts),
        T(memory_is_shared_out),
        T(memory_for_other_processes),
        T(processes_that_see_the_same_gpus_divide_them),
        T(what_is_missing_is_said),
        T(without_peers_memory_stays_whole),
        T(peers_reach_each_others_memory),
        T(memory_follows_the_ops),
        T(every_failure_is_survived),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
