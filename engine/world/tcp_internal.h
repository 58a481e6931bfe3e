/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file tcp_internal.h
 * Between the two files of the socket link: how ranks meet, and what they say
 * to each other then.
 */
#ifndef SL_ENGINE_WORLD_TCP_INTERNAL_H
#define SL_ENGINE_WORLD_TCP_INTERNAL_H

#include <stdint.h>

#include "base/status.h"
#include "engine/world/world_internal.h"

/** Who this rank is and where rank 0 listens, of the environment. */
typedef struct sl_tcp_place {
    int rank, size;
    char host[256]; /**< of rank 0: a name, an IPv4 or IPv6 address */
    char port[16];
} sl_tcp_place_t;

sl_status_t sl_tcp_place_of_environment(sl_tcp_place_t *place);

/**
 * Connect with every other rank; returns when all have.
 *
 * @param[out] sockets one a rank, -1 for this one; the caller's to close
 * @param[out] hosts   name of each rank's host
 */
sl_status_t sl_tcp_meet(const sl_tcp_place_t *place, uint64_t timeout_ns,
                        int *sockets, char (*hosts)[SL_WORLD_HOST_BYTES]);

#endif /* SL_ENGINE_WORLD_TCP_INTERNAL_H */
