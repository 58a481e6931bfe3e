/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file nvml.h
 * What the NVIDIA driver tells of GPUs and of everybody who uses them, by its
 * management library, which is loaded when asked for and may be absent.
 */
#ifndef SL_SCHEDULER_NVML_H
#define SL_SCHEDULER_NVML_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

SL_BEGIN_DECLS

enum {
    SL_NVML_TEXT_BYTES = 96,
    SL_NVML_MAX_PROCESSES = 64
};

typedef struct sl_nvml sl_nvml_t; /* opaque */

/** A process with a context on a GPU. */
typedef struct sl_nvml_process {
    unsigned pid;   /**< in the driver's name space */
    uint64_t bytes; /**< UINT64_MAX = not told */
} sl_nvml_process_t;

/** A GPU at one moment. */
typedef struct sl_nvml_device {
    char name[SL_NVML_TEXT_BYTES];   /**< "" = not told, as below */
    char uuid[SL_NVML_TEXT_BYTES];   /**< "GPU-..." */
    char pci_id[SL_NVML_TEXT_BYTES]; /**< "00000000:65:00.0" */
    int busy_percent;                /**< of the last sample period, all
                                          processes; -1 = not told */
    int memory_busy_percent;         /**< time that memory was read or
                                          written; -1 = not told */
    uint64_t total_bytes;            /**< 0 = not told */
    uint64_t used_bytes;             /**< by all, the driver included */
    int n_processes;                 /**< that are there; -1 = not told */
    sl_nvml_process_t processes[SL_NVML_MAX_PROCESSES];
    int n_links; /**< NVLink: lanes that are up; 0 = none or not told */
} sl_nvml_device_t;

/** How one GPU reaches the memory of another. */
typedef enum sl_nvml_p2p {
    SL_NVML_P2P_UNKNOWN,
    SL_NVML_P2P_NONE,
    SL_NVML_P2P_PCI,
    SL_NVML_P2P_NVLINK
} sl_nvml_p2p_t;

/**
 * Load the library.
 *
 * @param[out] nvml_p the caller closes it
 * @return SL_OK; SL_ERR_UNSUPPORTED when it is not there or does not start,
 *         with the reason as sl_last_error(); SL_ERR_NO_MEMORY
 */
SL_API SL_NODISCARD sl_status_t sl_nvml_open(sl_nvml_t **nvml_p);
/** NULL is allowed. */
SL_API void sl_nvml_close(sl_nvml_t *nvml);

/** Version of the driver, as "580.65.06"; "" = not told. */
SL_API const char *sl_nvml_driver(const sl_nvml_t *nvml);

/** GPUs that the driver shows to this process. */
SL_API int sl_nvml_count(const sl_nvml_t *nvml);

/** The number of the GPU on this bus ("0000:65:00.0", as CUDA writes it too);
 *  -1 = none. */
SL_API int sl_nvml_find(const sl_nvml_t *nvml, const char *pci_id);

/** @param index 0 to count - 1
 *  @return SL_OK, SL_ERR_INVALID_ARG, SL_ERR_DEVICE (refused) when the GPU is
 *          lost */
SL_API SL_NODISCARD sl_status_t sl_nvml_device(const sl_nvml_t *nvml, int index,
                                               sl_nvml_device_t *device_p);

/** How GPU `a` reaches GPU `b`. */
SL_API sl_nvml_p2p_t sl_nvml_p2p(const sl_nvml_t *nvml, int a, int b);

/** Bytes of the processes other than `pid`, as far as they are told; those
 *  that are not count 0. */
SL_API uint64_t sl_nvml_others_bytes(const sl_nvml_device_t *device,
                                     unsigned pid);

SL_END_DECLS
#endif /* SL_SCHEDULER_NVML_H */
