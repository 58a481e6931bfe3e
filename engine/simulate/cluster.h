/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file cluster.h
 * A cluster that is described, not there: hosts with devices, links and
 * networks, as a YAML file says (docs/simulate.md).
 *
 * Devices are numbered host by host, in the order of the file.
 */
#ifndef SL_ENGINE_SIMULATE_CLUSTER_H
#define SL_ENGINE_SIMULATE_CLUSTER_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/yaml.h"

SL_BEGIN_DECLS

enum {
    SL_CLUSTER_MAX_DEVICES = 1 << 16,
    SL_CLUSTER_MAX_GROUPS = 64
};

/** A way out of and into one place, each direction on its own. */
typedef struct sl_cluster_link {
    double latency_us;
    double bytes_per_us; /**< 0: bytes cost no time */
    double message_us;   /**< fixed time of a message on the link */
} sl_cluster_link_t;

/** Equal hosts. */
typedef struct sl_cluster_group {
    int n_hosts;
    int n_devices;              /**< of each host */
    double speed;               /**< of a device; 1: as the costs say */
    uint64_t memory_bytes;      /**< of a device; 0: not limited */
    double memory_bytes_per_us; /**< read and written by a device; 0: copies,
                                    sums and updates cost no time */
    sl_cluster_link_t link;     /**< of each device, to others of its host */
    sl_cluster_link_t network;  /**< of each host, shared by its devices */
} sl_cluster_group_t;

typedef struct sl_cluster {
    char name[64];
    int n_groups;
    sl_cluster_group_t groups[SL_CLUSTER_MAX_GROUPS];
    int n_hosts, n_devices; /**< of all groups */
} sl_cluster_t;

/** @return SL_OK, SL_ERR_IO, SL_ERR_CONFIG (with file:line:column) */
SL_API SL_NODISCARD sl_status_t sl_cluster_open(const char *path,
                                                sl_cluster_t *cluster_p);
/** As open, from a document; marks what it reads, and refuses the rest. */
SL_API SL_NODISCARD sl_status_t sl_cluster_read(const sl_yaml_t *yaml,
                                                sl_cluster_t *cluster_p);

/** Group and host of a device. */
SL_API const sl_cluster_group_t *sl_cluster_device(const sl_cluster_t *cluster,
                                                   int device, int *host_p);

SL_END_DECLS
#endif /* SL_ENGINE_SIMULATE_CLUSTER_H */
