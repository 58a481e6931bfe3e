/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file train_edges.h
 * `sluice train --edges FILE`: what went to and came from other ranks.
 */
#ifndef SL_CLI_TRAIN_EDGES_H
#define SL_CLI_TRAIN_EDGES_H

#include "cli/job.h"

/** Write this rank's edges into `path` and its rank ("edges.jsonl.1"), a line
 *  of JSON each; `from` and `to` are [replica, stage]. @return SL_OK,
 * SL_ERR_IO, SL_ERR_NO_MEMORY */
SL_NODISCARD sl_status_t sl_train_edges_write(const char *path,
                                              const sl_job_t *job);

#endif /* SL_CLI_TRAIN_EDGES_H */
