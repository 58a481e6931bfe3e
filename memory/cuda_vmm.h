/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file cuda_vmm.h
 * Regions of a CUDA device by virtual memory management, private to memory/:
 * addresses are reserved once, memory comes and goes in pieces. Every call
 * needs the device to be current on its thread. Thread safe.
 */
#ifndef SL_MEMORY_CUDA_VMM_H
#define SL_MEMORY_CUDA_VMM_H

#include "base/status.h"

typedef struct sl_mem_vmm sl_mem_vmm_t;

/**
 * @param[out] vmm_p NULL, with SL_OK, where device or driver have none of it
 * @return SL_OK, SL_ERR_DEVICE, SL_ERR_NO_MEMORY
 */
SL_NODISCARD sl_status_t sl_mem_vmm_create(int device, sl_mem_vmm_t **vmm_p);
void sl_mem_vmm_destroy(sl_mem_vmm_t *vmm);

/** Bytes that memory is given in: a power of two. */
size_t sl_mem_vmm_unit(const sl_mem_vmm_t *vmm);

/** Pieces of a region of `bytes`, whole units. */
size_t sl_mem_vmm_piece(const sl_mem_vmm_t *vmm, size_t bytes);

/** A region of `bytes`, whole units. @return as alloc of sl_mem_ops_t */
SL_NODISCARD sl_status_t sl_mem_vmm_alloc(sl_mem_vmm_t *vmm, size_t bytes,
                                          void **ptr_p);
/** No work uses it: nothing is waited for. */
void sl_mem_vmm_release(sl_mem_vmm_t *vmm, void *ptr);

/** Whole pieces of a region; as trim and fill of sl_mem_ops_t. */
SL_NODISCARD sl_status_t sl_mem_vmm_trim(sl_mem_vmm_t *vmm, void *ptr,
                                         size_t offset, size_t bytes);
SL_NODISCARD sl_status_t sl_mem_vmm_fill(sl_mem_vmm_t *vmm, void *ptr,
                                         size_t offset, size_t bytes);

/** Regions that are, and those to come, can be used by `peer` too. */
SL_NODISCARD sl_status_t sl_mem_vmm_share(sl_mem_vmm_t *vmm, int peer);

#endif /* SL_MEMORY_CUDA_VMM_H */
