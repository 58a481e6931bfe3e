/* SPDX-License-Identifier: Apache-2.0 */
/* Fixed texts of the control plane. */
#include "scheduler/control.h"

static const char *const class_names[] = {
#define X(id, text) [SL_JOB_CLASS_##id] = text,
    SL_JOB_CLASS_MAP(X)
#undef X
};

static const char *const state_names[] = {
    [SL_JOB_STATE_WAITING] = "waiting",
    [SL_JOB_STATE_RUNNING] = "running",
    [SL_JOB_STATE_SUSPENDED] = "suspended",
    [SL_JOB_STATE_DONE] = "done",
};

static const char *const action_names[] = {
    [SL_CONTROL_ACTION_NONE] = "",
    [SL_CONTROL_ACTION_WAIT] = "wait",
    [SL_CONTROL_ACTION_STOP] = "stop",
};

const char *sl_job_class_name(sl_job_class_t job_class)
{
    const unsigned i = (unsigned)job_class;

    return i < SL_JOB_N_CLASSES ? class_names[i] : "unknown";
}

const char *sl_job_state_name(sl_job_state_t state)
{
    const unsigned i = (unsigned)state;

    return i < SL_JOB_N_STATES ? state_names[i] : "unknown";
}

const char *sl_control_action_name(sl_control_action_t action)
{
    const unsigned i = (unsigned)action;

    return i < SL_CONTROL_N_ACTIONS ? action_names[i] : "unknown";
}
