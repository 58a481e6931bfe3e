/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file cuda.h
 * Memory of CUDA devices for the universal allocator, and how errors of the
 * CUDA runtime become ours. Only in builds with CUDA.
 */
#ifndef SL_MEMORY_CUDA_H
#define SL_MEMORY_CUDA_H

#include "memory/memory.h"

SL_BEGIN_DECLS

/**
 * Our status for what a call of the CUDA runtime returned. A refused
 * allocation is normal flow: SL_ERR_NO_MEMORY, logged at debug, and the
 * runtime's record of it is cleared. Anything else is SL_ERR_DEVICE, logged
 * as an error; a sticky one comes back from every later call until the
 * process ends.
 *
 * @param error the cudaError_t
 */
SL_API SL_NODISCARD sl_status_t sl_cuda_status(int error, const char *call,
                                               const char *file, int line);

/** Status of one call, e.g. SL_TRY(status, SL_CUDA(cudaFree(ptr)), out). */
#define SL_CUDA(call) sl_cuda_status((int)(call), #call, __FILE__, __LINE__)

/**
 * Record and log a failed call of a library on CUDA. Once a device has failed
 * all its libraries' calls do, which say that and not why: the text has the
 * reason of the calling thread's device too, where there is one.
 *
 * @param is_expected logged at debug, as by SL_REFUSE
 * @param text what the library says
 */
SL_API void sl_cuda_fail_record(int is_expected, const char *file, int line,
                                const char *call, const char *text);

/** The `ctx` of sl_mem_ops_cuda(). */
typedef struct sl_mem_cuda sl_mem_cuda_t;

/**
 * Memory of one CUDA device, with a stream of its own for copies.
 *
 * @param device as CUDA numbers them
 * @param[out] cuda_p the caller destroys it, after the allocators on it
 * @return SL_OK, SL_ERR_DEVICE, SL_ERR_NO_MEMORY
 */
SL_API SL_NODISCARD sl_status_t sl_mem_cuda_create(int device,
                                                   sl_mem_cuda_t **cuda_p);
SL_API void sl_mem_cuda_destroy(sl_mem_cuda_t *cuda);

/** Bytes that the device can still give, and has in all, other processes'
 *  use counted. */
SL_API SL_NODISCARD sl_status_t sl_mem_cuda_free_bytes(sl_mem_cuda_t *cuda,
                                                       size_t *free_p,
                                                       size_t *total_p);

/** Let kernels and copies of another device use this memory in place, what is
 *  and what will be. cudaMemcpyPeerAsync works without it, by way of the host
 *  perhaps. @return SL_OK, SL_ERR_DEVICE, SL_ERR_UNSUPPORTED */
SL_API SL_NODISCARD sl_status_t sl_mem_cuda_share(sl_mem_cuda_t *cuda,
                                                  int peer);

/** Regions by cudaMalloc from now on; nothing has been allocated yet. For a
 *  device whose peers cannot use its memory in place, because ordinary copies
 *  between devices go over the host for such regions only; and for memory that
 *  other processes map, because CUDA's inter-process handles are for such
 *  regions only. */
SL_API void sl_mem_cuda_stay_whole(sl_mem_cuda_t *cuda);

/** Whether regions are ranges of addresses whose parts can do without
 *  memory. */
SL_API int sl_mem_cuda_is_virtual(const sl_mem_cuda_t *cuda);

/** Regions by virtual memory management where the device and the driver have
 *  it, so that parts of them can be given back, else by cudaMalloc (also after
 *  sl_mem_cuda_stay_whole(), and with SLUICE_NO_CUDA_VMM in the environment).
 *  Copies by the stream: one that is done on return, or several that are
 *  waited for once. Who gives memory back has waited for the work that uses
 *  it. `ctx` is the sl_mem_cuda_t. */
SL_API const sl_mem_ops_t *sl_mem_ops_cuda(void);

/** The host pool behind a CUDA device: pinned, so that copies run at full
 *  speed and kernels can use it in place. `ctx` is the sl_mem_cuda_t. */
SL_API const sl_mem_ops_t *sl_mem_ops_cuda_host(void);

SL_END_DECLS
#endif /* SL_MEMORY_CUDA_H */
