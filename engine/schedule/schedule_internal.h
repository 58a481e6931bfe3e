/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file schedule_internal.h
 * What the generators share: each says in which order a stage computes, the
 * builder adds the transfers and recomputations around each computation.
 */
#ifndef SL_ENGINE_SCHEDULE_SCHEDULE_INTERNAL_H
#define SL_ENGINE_SCHEDULE_SCHEDULE_INTERNAL_H

#include "engine/schedule/schedule.h"

/** A list being made, with room for all the instructions of a stage. */
typedef struct sl_schedule_builder {
    const sl_schedule_params_t *params; /**< borrowed, checked */
    int stage;
    sl_instruction_list_t list;
} sl_schedule_builder_t;

/** rf F sf, as far as the stage has neighbours. */
void sl_schedule_add_forward(sl_schedule_builder_t *builder, int micro_batch);
/** R rb B sb, as far as the stage has neighbours and recomputes. */
void sl_schedule_add_backward(sl_schedule_builder_t *builder, int micro_batch);

/** The order of the forwards and backwards of builder->stage. */
void sl_schedule_order_gpipe(sl_schedule_builder_t *builder);
void sl_schedule_order_1f1b(sl_schedule_builder_t *builder);

/** Most micro-batches a stage may hold between forward and backward. */
int sl_schedule_max_in_flight(const sl_schedule_params_t *params, int stage);

/** @return SL_OK, SL_ERR_CONFIG naming the field and its range */
SL_NODISCARD sl_status_t
sl_schedule_params_check(const sl_schedule_params_t *params);

/** "rb3" into text, which has room for SL_INSTRUCTION_TEXT_BYTES. */
enum {
    SL_INSTRUCTION_TEXT_BYTES = 32
};
void sl_instruction_format(const sl_instruction_t *instruction, char *text);

#endif /* SL_ENGINE_SCHEDULE_SCHEDULE_INTERNAL_H */
