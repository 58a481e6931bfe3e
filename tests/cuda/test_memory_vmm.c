/* SPDX-License-Identifier: Apache-2.0 */
/* Regions of a CUDA device that give parts of themselves back, and kernels on
 * blocks wherever they lie. */
#include <stdlib.h>
#include <string.h>

#include "memory/cuda.h"
#include "memory/universal.h"
#include "tests/cuda/standin_bed.h"

#define MIB ((size_t)1 << 20)

typedef struct pools {
    sl_mem_cuda_t *cuda;
    sl_mem_t *mem;
    cudaStream_t stream; /* of ops */
} pools_t;

static void wait_for_ops(void *ctx)
{
    ok(cudaStreamSynchronize(((pools_t *)ctx)->stream));
}

static void pools_make(pools_t *pools, size_t limit, size_t host_limit)
{
    sl_mem_params_t params;

    sl_assert_ok(sl_mem_cuda_create(0, &pools->cuda));
    ok(cudaStreamCreateWithFlags(&pools->stream, cudaStreamNonBlocking));
    sl_mem_params_default(&params);
    params.name = "cuda:0";
    params.device = sl_mem_ops_cuda();
    params.device_ctx = pools->cuda;
    params.host = sl_mem_ops_cuda_host();
    params.host_ctx = pools->cuda;
    params.limit_bytes = limit;
    params.host_limit_bytes = host_limit;
    params.quiesce = wait_for_ops;
    params.quiesce_ctx = pools;
    sl_assert_ok(sl_mem_create(&params, &pools->mem));
}

static void pools_free(pools_t *pools)
{
    wait_for_ops(pools);
    sl_mem_destroy(pools->mem);
    ok(cudaStreamDestroy(pools->stream));
    sl_mem_cuda_destroy(pools->cuda);
}

static sl_mem_block_t *block_of(const pools_t *pools, size_t bytes)
{
    sl_mem_block_t *block = NULL;

    sl_assert_ok(
        sl_mem_alloc(pools->mem, SL_MEM_CLASS_PERSISTENT, bytes, &block));
    return block;
}

/* The first and last bytes of the block. */
static void put(const pools_t *pools, const sl_mem_block_t *block, int value)
{
    const unsigned char byte = (unsigned char)value;
    unsigned char *ptr = block->ptr;

    sl_assert_ok(sl_mem_ops_cuda()->copy(pools->cuda, ptr, &byte, 1));
    sl_assert_ok(
        sl_mem_ops_cuda()->copy(pools->cuda, ptr + block->bytes - 1, &byte, 1));
}

static void assert_holds(const pools_t *pools, const sl_mem_block_t *block,
                         int value)
{
    unsigned char *ptr = block->ptr;
    unsigned char got[2];

    sl_assert_ok(sl_mem_ops_cuda()->copy(pools->cuda, &got[0], ptr, 1));
    sl_assert_ok(sl_mem_ops_cuda()->copy(pools->cuda, &got[1],
                                         ptr + block->bytes - 1, 1));
    assert_int_equal(got[0], value);
    assert_int_equal(got[1], value);
}

static size_t limit_to(const pools_t *pools, size_t limit)
{
    sl_mem_stats_t stats;
    size_t reached = 0;

    sl_mem_limit_request(pools->mem, limit);
    sl_mem_boundary(pools->mem, &reached);
    sl_mem_stats(pools->mem, &stats);
    assert_true(sl_mem_pool_is_valid(&pools->mem->device));
    assert_int_equal(standin_device_bytes(0), stats.held_bytes);
    assert_true(stats.held_bytes <= reached);
    return reached;
}

/* One region, its middle free: the ends stay where they are. */
static void a_region_gives_its_middle_back(void **state)
{
    pools_t pools = {NULL, NULL, NULL};
    sl_mem_block_t *low, *middle, *high;
    const void *low_ptr, *high_ptr;
    uint64_t n_copies, n_reserved;

    (void)state;
    pools_make(&pools, 256 * MIB, 256 * MIB);
    assert_true(sl_mem_cuda_is_virtual(pools.cuda));
    assert_true(sl_mem_pool_round_region(&pools.mem->device, 1) == 2 * MIB);
    /* all that the limit leaves is one region */
    (void)limit_to(&pools, 40 * MIB);
    middle = block_of(&pools, 40 * MIB);
    sl_mem_release(middle);
    low = block_of(&pools, 3 * MIB);
    middle = block_of(&pools, 30 * MIB);
    high = block_of(&pools, 3 * MIB);
    low_ptr = low->ptr;
    high_ptr = high->ptr;
    put(&pools, low, 1);
    put(&pools, high, 2);
    sl_mem_release(middle);
    assert_int_equal(standin_device_bytes(0), 40 * MIB);

    n_copies = standin_n_calls(STANDIN_cudaMemcpyAsync);
    /* 3 MiB, and 3 MiB that start at 33: 4, and 4 from 32 on */
    assert_int_equal(limit_to(&pools, 8 * MIB), 8 * MIB);
    assert_int_equal(standin_device_bytes(0), 8 * MIB);
    assert_int_equal(standin_n_calls(STANDIN_cudaMemcpyAsync), n_copies);
    assert_ptr_equal(low->ptr, low_ptr);
    assert_ptr_equal(high->ptr, high_ptr);
    assert_holds(&pools, low, 1);
    assert_holds(&pools, high, 2);

    /* and takes memory again, at the same addresses */
    assert_int_equal(limit_to(&pools, 40 * MIB), 40 * MIB);
    n_reserved = standin_n_calls(STANDIN_cuMemAddressReserve);
    middle = block_of(&pools, 30 * MIB);
    assert_int_equal(standin_n_calls(STANDIN_cuMemAddressReserve), n_reserved);
    put(&pools, middle, 3);
    assert_holds(&pools, low, 1);
    assert_holds(&pools, middle, 3);
    assert_holds(&pools, high, 2);
    sl_mem_release(low);
    sl_mem_release(middle);
    sl_mem_release(high);
    pools_free(&pools);
}

/* Inside a mini-batch: free pieces that lie apart make room for one block,
 * with no way over the host. */
static void free_pieces_make_room(void **state)
{
    enum {
        N_BLOCKS = 8
    };
    pools_t pools = {NULL, NULL, NULL};
    sl_mem_block_t *blocks[N_BLOCKS], *large;
    sl_mem_stats_t stats;
    int i;

    (void)state;
    standin_set_delay_us(200);
    pools_make(&pools, 32 * MIB, 64 * MIB);
    for (i = 0; i < N_BLOCKS; i++) {
        blocks[i] = block_of(&pools, 4 * MIB);
        put(&pools, blocks[i], i);
    }
    for (i = 0; i < N_BLOCKS; i += 2) {
        /* its last op is still to come when it is released */
        ok(kernel_launch(KERNEL_ADD, 4, 256, blocks[i]->ptr,
                         (float *)blocks[i]->ptr + 2000, 1000, 1000, 1,
                         pools.stream));
        sl_mem_release(blocks[i]);
    }
    large = block_of(&pools, 10 * MIB);
    sl_mem_stats(pools.mem, &stats);
    assert_int_equal(stats.host_used_bytes, 0);
    assert_true(stats.held_bytes <= 32 * MIB);
    assert_true(stats.trimmed_bytes > 0);
    assert_true(sl_mem_pool_is_valid(&pools.mem->device));
    put(&pools, large, 9);
    for (i = 1; i < N_BLOCKS; i += 2) {
        assert_holds(&pools, blocks[i], i);
        sl_mem_release(blocks[i]);
    }
    assert_holds(&pools, large, 9);
    sl_mem_release(large);
    pools_free(&pools);
}

/* Blocks that are a third of the memory, all over it: what is held is what
 * they touch. */
static void the_limit_falls_to_what_is_in_use(void **state)
{
    enum {
        N_BLOCKS = 90
    };
    pools_t pools = {NULL, NULL, NULL};
    sl_mem_block_t *blocks[N_BLOCKS];
    size_t reached;
    int i;

    (void)state;
    pools_make(&pools, 512 * MIB, 0);
    for (i = 0; i < N_BLOCKS; i++) {
        blocks[i] = block_of(&pools, 2 * MIB);
    }
    for (i = 0; i < N_BLOCKS; i++) {
        if (i % 3 == 0) {
            put(&pools, blocks[i], i);
        } else {
            sl_mem_release(blocks[i]);
        }
    }
    reached = limit_to(&pools, 0);
    /* 30 blocks; a few lie across pieces of larger regions */
    assert_true(reached <= 120 * MIB);
    for (i = 0; i < N_BLOCKS; i += 3) {
        assert_holds(&pools, blocks[i], i);
        sl_mem_release(blocks[i]);
    }
    assert_int_equal(limit_to(&pools, 0), 0);
    assert_int_equal(standin_device_bytes(0), 0);
    pools_free(&pools);
}

/* Another process took what was given back. */
static void what_cannot_be_filled_goes_to_the_host(void **state)
{
    pools_t pools = {NULL, NULL, NULL};
    sl_mem_block_t *low, *middle, *high;
    sl_mem_stats_t stats;

    (void)state;
    pools_make(&pools, 64 * MIB, 64 * MIB);
    sl_mem_release(block_of(&pools, 24 * MIB)); /* one region for all */
    low = block_of(&pools, 2 * MIB);
    middle = block_of(&pools, 20 * MIB);
    high = block_of(&pools, 2 * MIB);
    sl_mem_release(middle);
    (void)limit_to(&pools, 4 * MIB);
    (void)limit_to(&pools, 64 * MIB);
    standin_set_memory(standin_device_bytes(0) + 2 * MIB);
    middle = block_of(&pools, 20 * MIB);
    sl_mem_stats(pools.mem, &stats);
    assert_int_equal(stats.host_used_bytes, 20 * MIB);
    assert_true(sl_mem_pool_is_valid(&pools.mem->device));
    assert_int_equal(standin_device_bytes(0), stats.held_bytes);
    /* it is there again */
    standin_set_memory((size_t)1 << 30);
    sl_mem_boundary(pools.mem, NULL);
    sl_mem_stats(pools.mem, &stats);
    assert_int_equal(stats.host_used_bytes, 0);
    sl_mem_release(low);
    sl_mem_release(middle);
    sl_mem_release(high);
    pools_free(&pools);
}

/* A kernel works on a block in pinned memory as it does on the device, and
 * finds its contents there when the block is back. */
static void a_spilled_block_is_used_in_place(void **state)
{
    pools_t pools = {NULL, NULL, NULL};
    sl_mem_block_t *block, *out;
    uint64_t n_copies;
    float *host;
    int i;

    (void)state;
    standin_set_delay_us(200);
    pools_make(&pools, 64 * MIB, 64 * MIB);
    block = block_of(&pools, N * sizeof(float));
    out = block_of(&pools, N * sizeof(float));
    (void)limit_to(&pools, 0);
    assert_int_equal(standin_device_bytes(0), 0);
    host = block->ptr;
    for (i = 0; i < N; i++) {
        host[i] = (float)i;
    }
    ok(kernel_launch(KERNEL_ADD, 4, 256, block->ptr, out->ptr, N, N, 1,
                     pools.stream));
    ok(kernel_launch(KERNEL_ADD, 4, 256, out->ptr, block->ptr, N, N, 1,
                     pools.stream));

    /* the boundary waits for them, copies by its own stream, and is done */
    n_copies = standin_n_calls(STANDIN_cudaMemcpyAsync);
    (void)limit_to(&pools, 64 * MIB);
    assert_int_equal(standin_n_calls(STANDIN_cudaMemcpyAsync), n_copies + 2);
    assert_int_equal(standin_n_calls(STANDIN_cudaMemcpy), 0);
    assert_true(standin_device_bytes(0) > 0);
    assert_ptr_not_equal(block->ptr, host);
    ok(kernel_launch(KERNEL_ADD, 4, 256, block->ptr, out->ptr, N, N, 1,
                     pools.stream));
    wait_for_ops(&pools);
    host = malloc(N * sizeof(*host));
    assert_non_null(host);
    sl_assert_ok(
        sl_mem_ops_cuda()->copy(pools.cuda, host, out->ptr, N * sizeof(*host)));
    for (i = 0; i < N; i++) {
        assert_true(host[i] == (float)(i + 3));
    }
    free(host);
    sl_mem_release(block);
    sl_mem_release(out);
    pools_free(&pools);
}

static void early_trims_are_reported(void **state)
{
    const sl_mem_ops_t *ops = sl_mem_ops_cuda();
    pools_t pools = {NULL, NULL, NULL};
    void *ptr = NULL;

    (void)state;
    pools_make(&pools, 64 * MIB, 0);
    sl_assert_ok(ops->alloc(pools.cuda, 8 * MIB, &ptr));
    standin_set_delay_us(20000);
    ok(kernel_launch(KERNEL_ADD, 4, 256, ptr, (float *)ptr + N, N, N, 1,
                     pools.stream));
    /* another part may go meanwhile */
    sl_assert_ok(ops->trim(pools.cuda, ptr, 2 * MIB, 4 * MIB));
    wait_for_ops(&pools);
    standin_set_delay_us(0);
    ok(kernel_launch(KERNEL_ADD, 4, 256, ptr, (float *)ptr + N, N, N, 1,
                     pools.stream));
    sl_assert_ok(ops->trim(pools.cuda, ptr, 0, 2 * MIB));
    expect_report("has not been waited for");
    wait_for_ops(&pools);
    /* and so is the use of what is gone */
    ok(cudaMemsetAsync((char *)ptr + 6 * MIB, 0, MIB, pools.stream));
    assert_error(cudaMemsetAsync((char *)ptr + 4 * MIB, 0, MIB, pools.stream),
                 cudaErrorInvalidValue);
    expect_report("no (or no longer any) memory");
    (void)cudaGetLastError();
    sl_assert_ok(ops->fill(pools.cuda, ptr, 0, 6 * MIB));
    ok(cudaMemsetAsync((char *)ptr + 4 * MIB, 0, MIB, pools.stream));
    wait_for_ops(&pools);
    ops->release(pools.cuda, ptr, 8 * MIB);
    pools_free(&pools);
}

/* Another device uses the memory only when it is let. */
/* The pieces that went before the failure are there again. */
static void a_trim_that_fails_changes_nothing(void **state)
{
    const sl_mem_ops_t *ops = sl_mem_ops_cuda();
    pools_t pools = {NULL, NULL, NULL};
    void *ptr = NULL;
    uint64_t i;

    (void)state;
    pools_make(&pools, 64 * MIB, 0);
    sl_assert_ok(ops->alloc(pools.cuda, 8 * MIB, &ptr));
    for (i = 1; i <= 4; i++) {
        standin_fail(STANDIN_cuMemUnmap, i, cudaErrorUnknown,
                     STANDIN_FAIL_CALL);
        sl_assert_status(ops->trim(pools.cuda, ptr, 0, 8 * MIB), SL_ERR_DEVICE);
        assert_int_equal(standin_device_bytes(0), 8 * MIB);
        ok(cudaMemsetAsync(ptr, 0, 8 * MIB, pools.stream));
        wait_for_ops(&pools);
    }
    sl_assert_ok(ops->trim(pools.cuda, ptr, 0, 8 * MIB));
    assert_int_equal(standin_device_bytes(0), 0);
    ops->release(pools.cuda, ptr, 8 * MIB);
    pools_free(&pools);
}

static void peers_are_let_in(void **state)
{
    pools_t pools = {NULL, NULL, NULL};
    sl_mem_block_t *block, *later;
    cudaStream_t stream;
    float *own = NULL;
    int device;

    (void)state;
    pools_make(&pools, 64 * MIB, 0);
    block = block_of(&pools, N * sizeof(float));
    put(&pools, block, 0);
    ok(cudaSetDevice(1));
    ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    ok(cudaMalloc((void **)&own, N * sizeof(float)));
    ok(kernel_launch(KERNEL_ADD, 4, 256, block->ptr, own, N, N, 1, stream));
    expect_report("without peer access");
    sl_assert_ok(sl_mem_cuda_share(pools.cuda, 1));
    sl_assert_ok(sl_mem_cuda_share(pools.cuda, 1));
    sl_assert_ok(sl_mem_cuda_share(pools.cuda, 0));
    ok(cudaGetDevice(&device));
    assert_int_equal(device, 1);
    ok(kernel_launch(KERNEL_ADD, 4, 256, block->ptr, own, N, N, 1, stream));
    later = block_of(&pools, 40 * MIB);
    ok(kernel_launch(KERNEL_ADD, 4, 256, own, later->ptr, N, N, 1, stream));
    ok(cudaStreamSynchronize(stream));
    ok(cudaFree(own));
    ok(cudaStreamDestroy(stream));
    ok(cudaSetDevice(0));
    sl_mem_release(block);
    sl_mem_release(later);
    pools_free(&pools);
}

/* The driver has none of it, or not all; the user or a device of the set does
 * not want it. */
static void without_it_regions_are_whole(void **state)
{
    int round;

    (void)state;
    for (round = 0; round < 4; round++) {
        pools_t pools = {NULL, NULL, NULL};
        sl_mem_block_t *block;

        if (round == 0) {
            standin_set_granularity(0);
        } else if (round == 1) {
            standin_fail(STANDIN_cudaGetDriverEntryPointByVersion, 4,
                         cudaErrorNotSupported, STANDIN_FAIL_CALL);
        } else if (round == 2) {
            assert_int_equal(setenv("SLUICE_NO_CUDA_VMM", "1", 1), 0);
        }
        pools_make(&pools, 64 * MIB, 0);
        if (round == 3) {
            assert_true(sl_mem_cuda_is_virtual(pools.cuda));
            sl_mem_cuda_stay_whole(pools.cuda);
        }
        assert_false(sl_mem_cuda_is_virtual(pools.cuda));
        block = block_of(&pools, 3 * MIB);
        put(&pools, block, 4);
        assert_true(standin_n_calls(STANDIN_cudaMalloc) > 0);
        assert_int_equal(standin_n_calls(STANDIN_cuMemCreate), 0);
        sl_mem_release(block);
        pools_free(&pools);
        assert_int_equal(unsetenv("SLUICE_NO_CUDA_VMM"), 0);
        standin_reset();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(a_region_gives_its_middle_back),
        T(free_pieces_make_room),
        T(the_limit_falls_to_what_is_in_use),
        T(what_cannot_be_filled_goes_to_the_host),
        T(a_spilled_block_is_used_in_place),
        T(early_trims_are_reported),
        T(a_trim_that_fails_changes_nothing),
        T(peers_are_let_in),
        T(without_it_regions_are_whole),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
