/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/layers/layer_bed_cuda.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

#include "memory/cuda.h"
#include "scheduler/cuda.h"
#ifdef SL_CUDA_STANDIN
#include "standin.h"
#endif

struct sl_bed_cuda {
    sl_cuda_stream_t stream;
    void *twins[SL_LAYER_BED_MAX_BLOCKS];
    int n_twins;
    int n_runs;
};

sl_bed_cuda_t *sl_bed_cuda_create(void)
{
    sl_bed_cuda_t *cuda = calloc(1, sizeof(*cuda));
    cudaStream_t queue = NULL;
    int n = 0;

    if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) {
        (void)fprintf(stderr, "no CUDA device\n");
        exit(77);
    }
    assert_non_null(cuda);
    sl_assert_ok(SL_CUDA(cudaSetDevice(0)));
    sl_assert_ok(
        SL_CUDA(cudaStreamCreateWithFlags(&queue, cudaStreamNonBlocking)));
    cuda->stream.queue = queue;
    return cuda;
}

void sl_bed_cuda_destroy(sl_bed_cuda_t *cuda)
{
    int i;

    for (i = 0; i < SL_CUDA_N_LIBRARIES; i++) {
        if (cuda->stream.handles[i] != NULL) {
            cuda->stream.release[i](cuda->stream.handles[i]);
        }
    }
    for (i = 0; i < cuda->n_twins; i++) {
        sl_assert_ok(SL_CUDA(cudaFree(cuda->twins[i])));
    }
    sl_assert_ok(SL_CUDA(cudaStreamDestroy(cuda->stream.queue)));
    free(cuda);
}

void sl_bed_cuda_add(sl_layer_bed_t *bed)
{
    sl_bed_cuda_t *cuda = bed->cuda;
    const size_t bytes = bed->blocks[cuda->n_twins]->bytes;

    sl_assert_ok(SL_CUDA(cudaMalloc(&cuda->twins[cuda->n_twins], bytes)));
    cuda->n_twins++;
    assert_int_equal(cuda->n_twins, bed->n_blocks);
}

static sl_status_t copy_blocks(const sl_layer_bed_t *bed, int to_device)
{
    const sl_bed_cuda_t *cuda = bed->cuda;
    sl_status_t status = SL_OK;
    int i;

    for (i = 0; i < cuda->n_twins; i++) {
        const sl_mem_block_t *block = bed->blocks[i];

        SL_TRY(status,
               SL_CUDA(cudaMemcpyAsync(
                   to_device ? cuda->twins[i] : block->ptr,
                   to_device ? block->ptr : cuda->twins[i], block->bytes,
                   to_device ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost,
                   cuda->stream.queue)),
               out);
    }
    status = SL_CUDA(cudaStreamSynchronize(cuda->stream.queue));
out:
    return status;
}

/* The device's address of what is at a host address of a block. */
static void *twin_of(const sl_layer_bed_t *bed, const void *host)
{
    const uintptr_t at = (uintptr_t)host;
    int i;

    for (i = 0; i < bed->n_blocks; i++) {
        const uintptr_t start = (uintptr_t)bed->blocks[i]->ptr;

        if (at >= start && at < start + bed->blocks[i]->bytes) {
            return (char *)bed->cuda->twins[i] + (at - start);
        }
    }
    if (host != NULL) {
        (void)fprintf(stderr, "a run's address is of no buffer of the bed\n");
        abort();
    }
    return NULL;
}

sl_status_t sl_bed_cuda_run(const sl_layer_bed_t *bed, sl_op_fn fn)
{
    sl_bed_cuda_t *cuda = bed->cuda;
    sl_layer_run_t run = bed->run;
    sl_status_t status;
    int i;

    for (i = 0; i < SL_LAYER_MAX_INPUTS; i++) {
        run.in[i] = twin_of(bed, run.in[i]);
        run.din[i] = twin_of(bed, run.din[i]);
        run.din_prev[i] = twin_of(bed, run.din_prev[i]);
    }
    for (i = 0; i < SL_LAYER_MAX_PARAMS; i++) {
        run.param[i] = twin_of(bed, run.param[i]);
        run.grad[i] = twin_of(bed, run.grad[i]);
    }
    run.out = twin_of(bed, run.out);
    run.dout = twin_of(bed, run.dout);
    run.saved = twin_of(bed, run.saved);
    run.workspace = twin_of(bed, run.workspace);
    SL_TRY(status, copy_blocks(bed, 1), out);
#ifdef SL_CUDA_STANDIN
    /* every other run from the last thread to the first: the same bits */
    standin_set_reverse(cuda->n_runs % 2);
#endif
    cuda->n_runs++;
    SL_TRY(status, fn(&run, &cuda->stream), out);
    status = copy_blocks(bed, 0);
out:
    return status;
}
