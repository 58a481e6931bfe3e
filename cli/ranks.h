/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file ranks.h
 * The processes of one job, before it begins: they share out their host, and
 * what must be equal on all is compared. All calls are collective, and do
 * nothing when `world` is NULL.
 *
 * When they differ, all ranks return the same failure; rank 0 alone logs it.
 */
#ifndef SL_CLI_RANKS_H
#define SL_CLI_RANKS_H

#include "cli/config.h"
#include "engine/data/data.h"
#include "engine/world.h"

/** Same version of the program and same config, but for what may differ: how
 *  others see the job, and each rank's devices and memory.
 *  @return SL_OK, SL_ERR_CONFIG (the rank, the first setting that differs) */
SL_NODISCARD sl_status_t sl_ranks_check_config(sl_world_t *world,
                                               const char *version,
                                               const sl_config_t *config);

/** No rank finds itself without a GPU, with `spec` by default, when others
 *  have some: its host has lost it. One whose devices were chosen may.
 *  @return SL_OK, SL_ERR_DEVICE (names the rank and its host) */
SL_NODISCARD sl_status_t sl_ranks_check_gpus(sl_world_t *world,
                                             const char *spec, int is_chosen);

/** Which part of the host's cores and memory is this rank's. Ranks that the
 *  launcher bound to cores of their own keep them. */
SL_NODISCARD sl_status_t sl_ranks_share_host(sl_world_t *world,
                                             sl_device_params_t *params);

/** Same data set and number of kernel threads.
 *  @return SL_OK, SL_ERR_CONFIG */
SL_NODISCARD sl_status_t sl_ranks_check_run(sl_world_t *world,
                                            const sl_dataset_t *dataset,
                                            const sl_device_set_t *devices);

#endif /* SL_CLI_RANKS_H */
