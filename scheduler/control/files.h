/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file files.h
 * What the three JSON files of a job share.
 */
#ifndef SL_SCHEDULER_CONTROL_FILES_H
#define SL_SCHEDULER_CONTROL_FILES_H

#include "scheduler/control.h"
#include "scheduler/control/json_fields.h"

#define SL_CONTROL_TOKEN_EXTRA "._-"
#define SL_CONTROL_DEVICE_EXTRA "._-:"

static inline const char *sl_job_class_choice(int i)
{
    return sl_job_class_name((sl_job_class_t)i);
}

static inline const char *sl_job_state_choice(int i)
{
    return sl_job_state_name((sl_job_state_t)i);
}

static inline const char *sl_control_action_choice(int i)
{
    return sl_control_action_name((sl_control_action_t)i);
}

/** A number of ours as JSON; one above 2^53-1 becomes 2^53-1. */
static inline json_t *sl_json_u64(uint64_t value)
{
    return json_integer((json_int_t)(value > SL_CONTROL_MAX_SEQUENCE
                                         ? SL_CONTROL_MAX_SEQUENCE
                                         : value));
}

static inline sl_status_t sl_fields_schema(sl_fields_t fields)
{
    uint64_t schema = 0;

    return sl_fields_u64(fields, "schema", SL_FIELD_REQUIRED, SL_CONTROL_SCHEMA,
                         SL_CONTROL_SCHEMA, &schema);
}

#endif /* SL_SCHEDULER_CONTROL_FILES_H */
