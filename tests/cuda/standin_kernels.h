/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file standin_kernels.h
 * Small kernels for the tests of the stand-in itself.
 */
#ifndef SL_TESTS_CUDA_STANDIN_KERNELS_H
#define SL_TESTS_CUDA_STANDIN_KERNELS_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/** What a kernel does. */
typedef enum kernel {
    KERNEL_ADD,        /**< out[i] = in[i] + 1 */
    KERNEL_SUM,        /**< out[block] = sum of in, by shuffles and shared */
    KERNEL_NO_BARRIER, /**< reads what another thread wrote, no barrier */
    KERNEL_STUCK,      /**< half of the threads wait for the others */
    KERNEL_BALLOT,     /**< out[i] = odd lanes below lane i */
    KERNEL_WRONG_LANE, /**< a shuffle from a lane that is not there */
    KERNEL_SPLIT,      /**< threads meet at two different barriers */
    KERNEL_ENDED,      /**< a barrier after some threads have ended */
    KERNEL_MIN,        /**< ((unsigned *)out)[0] = min over i of n - i */
    KERNEL_TRAP,       /**< __trap() */
    KERNEL_ANY         /**< out[i] = whether any in[] of the block is 0 */
} kernel_t;

/** Declares in[0..n) as read and out[0..n_out) as written, if asked. */
cudaError_t kernel_launch(kernel_t kernel, unsigned n_blocks,
                          unsigned n_threads, const float *in, float *out,
                          int n, int n_out, int declares, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif /* SL_TESTS_CUDA_STANDIN_KERNELS_H */
