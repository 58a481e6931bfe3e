/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of CUDA devices under the allocator: refusals, failures, devices. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/cuda.h"
#include "standin.h"
#include "tests/support/sl_test.h"

#define MIB ((size_t)1 << 20)
#define VIRTUAL_BYTES (MIB / 4)

/* Regions by cudaMalloc, and by virtual memory management. */
static int set_up_whole(void **state)
{
    standin_set_granularity(0);
    return sl_test_setup(state);
}

static int set_up_virtual(void **state)
{
    standin_set_granularity(VIRTUAL_BYTES);
    return sl_test_setup(state);
}

static int reset(void **state)
{
    const int n_live = standin_n_live();
    const int n_reports = standin_n_reports();

    if (n_reports > 0) {
        (void)fprintf(stderr, "%s\n", standin_report(0));
    }
    standin_reset();
    return sl_test_teardown(state) || n_live != 0 || n_reports != 0;
}

static sl_mem_t *mem_make(sl_mem_cuda_t *cuda, size_t limit, size_t host_limit)
{
    sl_mem_params_t params;
    sl_mem_t *mem = NULL;

    sl_mem_params_default(&params);
    params.name = "cuda:0";
    params.device = sl_mem_ops_cuda();
    params.device_ctx = cuda;
    params.host = sl_mem_ops_cuda_host();
    params.host_ctx = cuda;
    params.limit_bytes = limit;
    params.host_limit_bytes = host_limit;
    sl_assert_ok(sl_mem_create(&params, &mem));
    return mem;
}

static sl_status_t put(sl_mem_cuda_t *cuda, sl_mem_block_t *block, int value)
{
    unsigned char *image = malloc(block->bytes);
    sl_status_t status;

    assert_non_null(image);
    memset(image, value, block->bytes);
    status = sl_mem_ops_cuda()->copy(cuda, block->ptr, image, block->bytes);
    free(image);
    return status;
}

static void assert_holds(sl_mem_cuda_t *cuda, const sl_mem_block_t *block,
                         int value)
{
    unsigned char *image = malloc(block->bytes);
    size_t i;

    assert_non_null(image);
    sl_assert_ok(
        sl_mem_ops_cuda()->copy(cuda, image, block->ptr, block->bytes));
    for (i = 0; i < block->bytes; i++) {
        assert_int_equal(image[i], value);
    }
    free(image);
}

/* Blocks go to pinned memory and come back with their contents. */
static void blocks_spill_and_return(void **state)
{
    sl_mem_block_t *blocks[8];
    sl_mem_stats_t stats;
    sl_mem_cuda_t *cuda;
    sl_mem_t *mem;
    uint64_t n_waits;
    int i;

    (void)state;
    standin_set_delay_us(500); /* who does not wait comes too early */
    sl_assert_ok(sl_mem_cuda_create(0, &cuda));
    mem = mem_make(cuda, 16 * MIB, 16 * MIB);
    for (i = 0; i < 8; i++) {
        sl_assert_ok(
            sl_mem_alloc(mem, SL_MEM_CLASS_STASH, MIB - 100, &blocks[i]));
        sl_assert_ok(put(cuda, blocks[i], i));
    }
    assert_true(standin_device_bytes(0) >= 8 * MIB);
    sl_mem_limit_request(mem, 0);
    sl_mem_boundary(mem, NULL);
    assert_int_equal(standin_device_bytes(0), 0);
    for (i = 0; i < 8; i++) {
        /* pinned memory is the host's too */
        assert_int_equal(*(unsigned char *)blocks[i]->ptr, i);
    }
    n_waits = standin_n_calls(STANDIN_cudaStreamSynchronize);
    sl_mem_limit_request(mem, 16 * MIB);
    sl_mem_boundary(mem, NULL);
    sl_mem_stats(mem, &stats);
    assert_int_equal(stats.host_used_bytes, 0);
    assert_int_equal(standin_n_calls(STANDIN_cudaStreamSynchronize) - n_waits,
                     1);
    for (i = 0; i < 8; i++) {
        assert_holds(cuda, blocks[i], i);
        sl_mem_release(blocks[i]);
    }
    sl_mem_destroy(mem);
    sl_mem_cuda_destroy(cuda);
}

/* Another process has the memory: below our limit, and yet refused. */
/* Regions of pinned memory are whole: those that are free go back though
 * others hold blocks. */
static void free_pinned_regions_go_back(void **state)
{
    sl_mem_block_t *blocks[16];
    sl_mem_stats_t stats;
    sl_mem_cuda_t *cuda;
    sl_mem_t *mem;
    int i;

    (void)state;
    sl_assert_ok(sl_mem_cuda_create(0, &cuda));
    mem = mem_make(cuda, 32 * MIB, 32 * MIB);
    sl_mem_limit_request(mem, 0);
    sl_mem_boundary(mem, NULL);
    for (i = 0; i < 16; i++) {
        sl_assert_ok(sl_mem_alloc(mem, SL_MEM_CLASS_STASH, MIB, &blocks[i]));
        sl_assert_ok(put(cuda, blocks[i], i));
    }
    sl_mem_pin(blocks[0]); /* stays where it is */
    sl_mem_stats(mem, &stats);
    assert_int_equal(stats.host_used_bytes, 16 * MIB);
    assert_int_equal(standin_n_calls(STANDIN_cudaFreeHost), 0);
    sl_mem_limit_request(mem, 32 * MIB);
    sl_mem_boundary(mem, NULL);
    sl_mem_stats(mem, &stats);
    assert_int_equal(stats.host_used_bytes, MIB);
    assert_true(stats.host_held_bytes <= 2 * MIB);
    assert_true(standin_n_calls(STANDIN_cudaFreeHost) > 0);
    for (i = 0; i < 16; i++) {
        assert_holds(cuda, blocks[i], i);
        sl_mem_release(blocks[i]);
    }
    sl_mem_boundary(mem, NULL); /* the pinned block was there until now */
    sl_mem_boundary(mem, NULL);
    sl_mem_stats(mem, &stats);
    assert_int_equal(stats.host_held_bytes, 0);
    sl_mem_destroy(mem);
    sl_mem_cuda_destroy(cuda);
}

static void a_full_device_is_normal_flow(void **state)
{
    sl_mem_block_t *block, *other = NULL;
    sl_mem_cuda_t *cuda;
    size_t free_bytes, total_bytes;
    sl_mem_t *mem;

    (void)state;
    standin_set_memory(4 * MIB);
    sl_assert_ok(sl_mem_cuda_create(0, &cuda));
    sl_assert_ok(sl_mem_cuda_free_bytes(cuda, &free_bytes, &total_bytes));
    assert_int_equal(free_bytes, 4 * MIB);
    assert_int_equal(total_bytes, 4 * MIB);
    mem = mem_make(cuda, SIZE_MAX, 0);
    sl_assert_ok(sl_mem_alloc(mem, SL_MEM_CLASS_STASH, 3 * MIB, &block));
    sl_assert_status(sl_mem_alloc(mem, SL_MEM_CLASS_STASH, 3 * MIB, &other),
                     SL_ERR_QUOTA);
    assert_null(other);
    /* nothing is left that a later check would find */
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    sl_mem_release(block);
    sl_assert_ok(sl_mem_alloc(mem, SL_MEM_CLASS_STASH, 4 * MIB, &block));
    sl_mem_release(block);
    sl_mem_destroy(mem);
    /* with a host pool it goes there */
    mem = mem_make(cuda, SIZE_MAX, 8 * MIB);
    sl_assert_ok(sl_mem_alloc(mem, SL_MEM_CLASS_STASH, 3 * MIB, &block));
    sl_assert_ok(sl_mem_alloc(mem, SL_MEM_CLASS_STASH, 3 * MIB, &other));
    memset(other->ptr, 7, other->bytes);
    assert_holds(cuda, other, 7);
    sl_mem_release(block);
    sl_mem_release(other);
    sl_mem_destroy(mem);
    sl_mem_cuda_destroy(cuda);
}

static void the_current_device_is_left_alone(void **state)
{
    sl_mem_cuda_t *cuda = NULL, *none = NULL;
    sl_mem_block_t *block;
    sl_mem_t *mem;
    int device;

    (void)state;
    sl_assert_ok(sl_mem_cuda_create(1, &cuda));
    mem = mem_make(cuda, 4 * MIB, 0);
    sl_assert_ok(sl_mem_alloc(mem, SL_MEM_CLASS_STASH, MIB, &block));
    assert_int_equal(standin_device_bytes(0), 0);
    assert_true(standin_device_bytes(1) >= MIB);
    sl_assert_ok(put(cuda, block, 3));
    assert_holds(cuda, block, 3);
    assert_int_equal(cudaGetDevice(&device), cudaSuccess);
    assert_int_equal(device, 0);
    sl_mem_release(block);
    sl_mem_destroy(mem);
    assert_int_equal(cudaGetDevice(&device), cudaSuccess);
    assert_int_equal(device, 0);
    sl_mem_cuda_destroy(cuda);
    sl_mem_cuda_destroy(NULL);
    sl_assert_status(sl_mem_cuda_create(7, &none), SL_ERR_DEVICE);
    assert_null(none);
}

static void statuses_tell_refusal_from_failure(void **state)
{
    (void)state;
    sl_assert_ok(SL_CUDA(cudaSuccess));
    assert_int_equal(SL_CUDA(cudaErrorMemoryAllocation), SL_ERR_NO_MEMORY);
    assert_string_equal(sl_test_log_take(), "");
    assert_int_equal(SL_CUDA(cudaErrorIllegalAddress), SL_ERR_DEVICE);
    sl_assert_contains(sl_test_log_take(), "illegal memory access");
    sl_assert_contains(sl_last_error(), "test_memory.c");
    sl_assert_contains(sl_last_error(), "cudaErrorIllegalAddress");
}

/* A device that fails for good: told at once, nothing hangs, all is freed. */
static void a_dead_device_ends_cleanly(void **state)
{
    sl_mem_block_t *block, *other = NULL;
    sl_mem_cuda_t *cuda;
    sl_mem_t *mem;

    (void)state;
    sl_assert_ok(sl_mem_cuda_create(0, &cuda));
    mem = mem_make(cuda, 16 * MIB, 0);
    sl_assert_ok(sl_mem_alloc(mem, SL_MEM_CLASS_STASH, MIB, &block));
    standin_fail(STANDIN_cudaMemcpyAsync, 1, cudaErrorIllegalAddress,
                 STANDIN_FAIL_RUN);
    sl_assert_status(put(cuda, block, 1), SL_ERR_DEVICE);
    assert_true(standin_has_failed());
    sl_assert_status(sl_mem_alloc(mem, SL_MEM_CLASS_STASH, 8 * MIB, &other),
                     SL_ERR_QUOTA);
    sl_mem_release(block);
    sl_mem_destroy(mem);
    sl_mem_cuda_destroy(cuda);
    (void)sl_test_log_take();
}

/* One use of all of it, as far as it gets. */
static void use(void)
{
    sl_mem_block_t *blocks[4] = {NULL};
    sl_mem_cuda_t *cuda = NULL;
    size_t free_bytes, total_bytes;
    sl_mem_t *mem;
    int i;

    if (sl_mem_cuda_create(1, &cuda) != SL_OK) {
        assert_null(cuda);
        return;
    }
    if (sl_mem_cuda_free_bytes(cuda, &free_bytes, &total_bytes) == SL_OK) {
        assert_true(free_bytes <= total_bytes);
    }
    mem = mem_make(cuda, 8 * MIB, 8 * MIB);
    for (i = 0; i < 4; i++) {
        if (sl_mem_alloc(mem, SL_MEM_CLASS_STASH, MIB, &blocks[i]) == SL_OK) {
            (void)put(cuda, blocks[i], i);
        }
    }
    sl_mem_limit_request(mem, 0);
    sl_mem_boundary(mem, NULL);
    sl_mem_limit_request(mem, 8 * MIB);
    sl_mem_boundary(mem, NULL);
    for (i = 0; i < 4; i++) {
        sl_mem_release(blocks[i]);
    }
    sl_mem_destroy(mem);
    sl_mem_cuda_destroy(cuda);
}

/* Each call of each entry point fails once: nothing is left behind, nothing
 * unordered was used. */
static void every_failure_is_survived(void **state)
{
    const size_t granularity = standin_granularity();
    int is_used[STANDIN_N_ENTRIES];
    int entry, n_failures = 0;

    (void)state;
    use();
    for (entry = 0; entry < STANDIN_N_ENTRIES; entry++) {
        is_used[entry] = standin_n_calls((standin_entry_t)entry) > 0;
    }
    for (entry = 0; entry < STANDIN_N_ENTRIES; entry++) {
        uint64_t call = 0;
        int has_failed;

        if (!is_used[entry]) {
            continue;
        }

        do {
            const sl_status_t expected =
                entry == STANDIN_cudaMalloc || entry == STANDIN_cudaHostAlloc ||
                        entry == STANDIN_cuMemCreate ||
                        entry == STANDIN_cuMemAddressReserve
                    ? SL_ERR_NO_MEMORY
                    : SL_ERR_DEVICE;

            call++;
            standin_fail((standin_entry_t)entry, call,
                         expected == SL_ERR_NO_MEMORY
                             ? cudaErrorMemoryAllocation
                             : cudaErrorUnknown,
                         STANDIN_FAIL_CALL);
            use();
            has_failed = standin_has_failed();
            n_failures += has_failed;
            if (expected == SL_ERR_NO_MEMORY) {
                assert_string_equal(sl_test_log_take(), "");
            }
            (void)sl_test_log_take();
            if (standin_n_live() != 0) {
                fail_msg("%s, call %d: %d things are left",
                         standin_entry_name((standin_entry_t)entry), (int)call,
                         standin_n_live());
            }
            assert_int_equal(standin_n_reports(), 0);
            standin_reset();
            standin_set_granularity(granularity);
        } while (has_failed);
    }
    assert_true(n_failures > 30);
}

#define T(name)                                                                \
    cmocka_unit_test_setup_teardown(name, set_up_whole, reset),                \
        cmocka_unit_test_setup_teardown(name, set_up_virtual, reset)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(blocks_spill_and_return),
        T(free_pinned_regions_go_back),
        T(a_full_device_is_normal_flow),
        T(the_current_device_is_left_alone),
        T(statuses_tell_refusal_from_failure),
        T(a_dead_device_ends_cleanly),
        T(every_failure_is_survived),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
