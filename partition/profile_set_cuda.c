/* SPDX-License-Identifier: Apache-2.0 */
/* Filling memory of a CUDA device. */
#include "layers/cuda/cuda_kernels.h"
#include "partition/partition_internal.h"
#include "scheduler/cuda.h"

sl_status_t sl_part_set_cuda(const void *args, void *stream)
{
    const sl_part_set_t *set = args;
    const sl_cuda_stream_t *cuda = stream;

    if (set->bytes == 0) {
        return SL_OK;
    }
    return set->values == NULL
               ? sl_cuda_zero(set->data, set->bytes, cuda->queue)
               : sl_cuda_copy(set->data, set->values, set->bytes, cuda->queue);
}
