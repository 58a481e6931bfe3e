/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks over plain sockets. */
#include "engine/world/world_internal.h"

sl_status_t sl_link_tcp_create(sl_link_t **link_p)
{
    (void)link_p;
    return SL_ERR_UNSUPPORTED;
}
