/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file op_names.h
 * Op names and what ops of each name cost, private to scheduler/.
 *
 * One thread counts (the device's), any thread reads and resets. Names are
 * added under the manager's lock and never go away.
 */
#ifndef SL_SCHEDULER_OP_NAMES_H
#define SL_SCHEDULER_OP_NAMES_H

#include "scheduler/scheduler.h"

typedef struct sl_op_names sl_op_names_t; /* opaque */

/** With id 0, "other"; NULL when memory is out. */
sl_op_names_t *sl_op_names_create(void);
void sl_op_names_destroy(sl_op_names_t *names);

/** Id of a name, added when new; 0 when full or memory is out. */
uint32_t sl_op_names_id(sl_op_names_t *names, const char *name);
size_t sl_op_names_count(const sl_op_names_t *names);
/** "other" for an id that nobody was given. */
const char *sl_op_names_text(const sl_op_names_t *names, uint32_t id);

/** One op ran; the device's thread only. */
void sl_op_names_add(sl_op_names_t *names, uint32_t id, uint64_t busy_ns);

/** What an op of this name is expected to take; the device's thread only. */
uint64_t sl_op_names_mean_ns(const sl_op_names_t *names, uint32_t id);

void sl_op_names_stats(const sl_op_names_t *names, uint32_t id,
                       sl_op_name_stats_t *stats_p);
void sl_op_names_reset(sl_op_names_t *names);

#endif /* SL_SCHEDULER_OP_NAMES_H */
