/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file transfers.h
 * The transfer instructions of a stage: values from earlier stages, results to
 * later ones, and the gradients of both.
 */
#ifndef SL_ENGINE_TRANSFERS_H
#define SL_ENGINE_TRANSFERS_H

#include "engine/engine_internal.h"

SL_NODISCARD sl_status_t sl_receive_forward(const sl_pass_t *pass);
SL_NODISCARD sl_status_t sl_send_forward(const sl_pass_t *pass);
SL_NODISCARD sl_status_t sl_receive_backward(const sl_pass_t *pass);
SL_NODISCARD sl_status_t sl_send_backward(const sl_pass_t *pass);

/** Wait until everything that was lent is the stage's again. Within a process
 *  that follows when all stages have met; to other ranks it may still be
 *  leaving. */
SL_NODISCARD sl_status_t sl_loans_settle(const sl_stage_t *stage);

/** Whether a receive, or a send, of micro-batch m would not wait. */
int sl_edges_are_ready(const sl_stage_edge_t *edges, int n, int m,
                       int is_backward);
int sl_edges_have_a_slot(const sl_stage_t *stage, const sl_stage_edge_t *edges,
                         int n, int is_backward);

#endif /* SL_ENGINE_TRANSFERS_H */
