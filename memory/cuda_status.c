/* SPDX-License-Identifier: Apache-2.0 */
/* Errors of the CUDA runtime. */
#include <cuda_runtime_api.h>

#include "memory/cuda.h"

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
