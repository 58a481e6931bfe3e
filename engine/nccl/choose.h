/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file choose.h
 * The transport of CUDA devices, which all ranks agree on.
 */
#ifndef SL_ENGINE_NCCL_CHOOSE_H
#define SL_ENGINE_NCCL_CHOOSE_H

#include "engine/engine_internal.h"
#include "engine/nccl/nccl.h"

/** As asked, or nccl where each rank has GPUs of its own and NCCL can be used
 *  on all, else staged; then the lanes of the engine's channels. Collective.
 *  @return SL_OK; SL_ERR_CONFIG: what was asked cannot be; SL_ERR_COMM */
SL_NODISCARD sl_status_t sl_nccl_choose(sl_engine_t *engine);

#endif /* SL_ENGINE_NCCL_CHOOSE_H */
