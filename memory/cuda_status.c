/* SPDX-License-Identifier: Apache-2.0 */
/* Errors of the CUDA runtime. */
#include <cuda_runtime_api.h>

#include "memory/cuda.h"

void sl_cuda_fail_record(int is_expected, const char *file, int line,
                         const char *call, const char *text)
{
    size_t free_bytes, total_bytes;
    /* a call that needs a context, and no stream: it waits for nothing */
    const cudaError_t error = cudaMemGetInfo(&free_bytes, &total_bytes);

    if (error == cudaSuccess) {
        sl_fail_record(is_expected, file, line, "%s: %s", call, text);
        return;
    }
    (void)cudaGetLastError();
    sl_fail_record(is_expected, file, line, "%s: %s; the device: %s (%s)", call,
                   text, cudaGetErrorString(error), cudaGetErrorName(error));
}

sl_status_t sl_cuda_status(int error, const char *call, const char *file,
                           int line)
{
    const cudaError_t code = (cudaError_t)error;
    const int is_refusal = code == cudaErrorMemoryAllocation;

    if (code == cudaSuccess) {
        return SL_OK;
    }
    /* an error that does not stay must not be found again by a later check */
    (void)cudaGetLastError();
    sl_fail_record(is_refusal, file, line, "%s: %s (%s)", call,
                   cudaGetErrorString(code), cudaGetErrorName(code));
    return is_refusal ? SL_ERR_NO_MEMORY : SL_ERR_DEVICE;
}
