/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file device.h
 * What a kernel of the stand-in sees of its thread, and how it meets others
 * of its block. Kernels are C++; the rest of the stand-in is C.
 */
#ifndef SL_TESTS_CUDA_STANDIN_DEVICE_H
#define SL_TESTS_CUDA_STANDIN_DEVICE_H

#include <cuda_runtime_api.h>
#include <stdint.h>

typedef struct uint3 {
    unsigned x, y, z;
} uint3;

#ifdef __cplusplus
extern "C" {
#endif

/** Of the running thread of a kernel; names as CUDA's. */
extern __thread uint3 threadIdx, blockIdx, blockDim, gridDim;
/** Its number in the block. */
extern __thread unsigned standin_number;

/** A barrier of the block; all must meet at the same line. */
void standin_sync_block(int line);
/** A barrier of the lanes in mask, of the warp. */
void standin_sync_warp(unsigned mask, int line);
/** The value that lane `lane` of the mask gives here. */
uint64_t standin_exchange(unsigned mask, uint64_t value, unsigned lane,
                          int line);
/** Lanes of the mask whose predicate is not 0. */
unsigned standin_ballot(unsigned mask, int predicate, int line);
/** Whether any thread of the block has it; a barrier. */
int standin_sync_or(int predicate, int line);
/** __trap(): the launch fails. */
void standin_trap(const char *text);

/** A launch: arguments one after another in `data`, `call` runs a thread. */
typedef struct standin_launch_args {
    uint3 grid_dim;
    uint3 block_dim;
    size_t shared_bytes;
    cudaStream_t stream;
    void *data; /**< malloc'd; taken, also on failure */
    size_t data_bytes;
    void (*call)(void *data);
} standin_launch_t;

cudaError_t standin_launch(const standin_launch_t *launch);

#ifdef __cplusplus
}
#endif
#endif /* SL_TESTS_CUDA_STANDIN_DEVICE_H */
