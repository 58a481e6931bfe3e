/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file overlap.h
 * How much of the transfers between ranks lies under compute: the latest
 * transfers of each edge beside what its two devices computed meanwhile.
 */
#ifndef SL_ENGINE_PARALLEL_OVERLAP_H
#define SL_ENGINE_PARALLEL_OVERLAP_H

#include "engine/engine_internal.h"

/** Room for what is kept of the steps; before a traced step. */
SL_NODISCARD sl_status_t sl_overlap_reserve(sl_engine_t *engine);
/** A traced step has ended: keep when its devices computed. */
void sl_overlap_note_step(sl_engine_t *engine);

/** Add [start, end) times that are sorted and apart from each other.
 *  @return how much of `interval` lies in them */
uint64_t sl_overlap_under(const sl_interval_t *spans, size_t n,
                          const sl_interval_t *interval);
/** Sort and join what touches. @return how many are left */
size_t sl_overlap_join(sl_interval_t *spans, size_t n);

#endif /* SL_ENGINE_PARALLEL_OVERLAP_H */
