/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file aware_copy.h
 * Makes the link between ranks that are threads one that knows device memory.
 */
#ifndef SL_TESTS_CUDA_AWARE_COPY_H
#define SL_TESTS_CUDA_AWARE_COPY_H

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/world/world_internal.h"

/* By way of the host, as ranks cannot use each other's memory. */
static inline void aware_copy(void *to, const void *from, size_t bytes)
{
    void *host = malloc(bytes);

    if (host == NULL ||
        cudaMemcpy(host, from, bytes, cudaMemcpyDefault) != cudaSuccess ||
        cudaMemcpy(to, host, bytes, cudaMemcpyDefault) != cudaSuccess) {
        (void)fprintf(stderr, "a link's copy of %zu bytes failed: %s\n", bytes,
                      cudaGetErrorString(cudaGetLastError()));
        abort();
    }
    free(host);
}

/* Of worlds that are made from now on. */
static inline void aware_set(int is_aware)
{
    sl_world_hook_copy(is_aware ? aware_copy : NULL);
}

#endif /* SL_TESTS_CUDA_AWARE_COPY_H */
