/* SPDX-License-Identifier: Apache-2.0 */
/* The control plane of a training job. */
#include "cli/train_control.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "cli/train_signals.h"

static int is_name_character(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
}

/* A config's name may be any text; the job's becomes part of a file name. A
 * rank is a job of its own to coordinators: NAME.1 is rank 1. */
static void make_name(const sl_job_t *job, char name[SL_CONTROL_NAME_BYTES])
{
    const int is_given = job->config.job_name != NULL;
    const int rank = sl_world_rank(job->world);
    size_t i, n;

    (void)snprintf(name, SL_CONTROL_NAME_BYTES, "%s",
                   is_given ? job->config.job_name : job->config.name);
    n = strlen(name);
    if (rank > 0 && n + 12 < SL_CONTROL_NAME_BYTES) {
        (void)snprintf(name + n, SL_CONTROL_NAME_BYTES - n, ".%d", rank);
    }
    if (is_given) {
        return; /* refused when it is not fit for a file name */
    }
    for (i = 0; name[i] != '\0'; i++) {
        if (!is_name_character(name[i])) {
            name[i] = '_';
        }
    }
    if (name[0] == '\0' || strchr("._-", name[0]) != NULL) {
        (void)snprintf(name, SL_CONTROL_NAME_BYTES, "train");
    }
}

/* What the job will need, as an admission control wants to know. */
static void find_wanted(const sl_job_t *job,
                        uint64_t wanted_bytes[SL_CONTROL_MAX_DEVICES])
{
    sl_engine_params_t params;
    sl_memory_plan_t plan;
    int d;

    sl_job_engine_params(job, &params);
    if (sl_engine_rehearse(&params, &plan) < 0) {
        return; /* unknown; the engine will say why */
    }
    for (d = 0; d < job->devices->n_devices && d < SL_CONTROL_MAX_DEVICES;
         d++) {
        wanted_bytes[d] = plan.devices[plan.first_device + d].held_bytes;
    }
    sl_memory_plan_cleanup(&plan);
}

sl_status_t sl_train_control_open(const sl_job_t *job, const char *unit,
                                  sl_control_t **control_p)
{
    uint64_t wanted_bytes[SL_CONTROL_MAX_DEVICES] = {0};
    char name[SL_CONTROL_NAME_BYTES];
    sl_control_params_t params;
    sl_status_t status;

    make_name(job, name);
    find_wanted(job, wanted_bytes);
    sl_control_params_default(&params);
    params.name = name;
    params.job_class = (sl_job_class_t)job->config.job_class;
    params.devices = job->devices;
    params.wanted_bytes = wanted_bytes;
    params.n_steps = (uint64_t)job->config.steps;
    params.unit = unit;
    params.prometheus = job->config.prometheus;
    params.is_interrupted = sl_train_signals_is_stop;
    params.on_stop = sl_train_signals_stop;
    params.interrupt_ctx = job->world;
    status = sl_control_open(&params, control_p);
    if (status < 0 && status != SL_ERR_INVALID_ARG) {
        sl_warn("job %s goes on without a control plane", params.name);
        *control_p = NULL;
        status = SL_OK;
    }
    return status;
}

int sl_train_control_step(sl_control_t *control, const sl_job_t *job,
                          const sl_step_report_t *report, double n_units)
{
    uint64_t peak_bytes[SL_CONTROL_MAX_DEVICES] = {0};
    const sl_control_step_t step = {.step = (uint64_t)report->step + 1,
                                    .step_us = report->step_us,
                                    .n_units = n_units,
                                    .peak_bytes = peak_bytes};
    int d;

    for (d = 0; d < report->n_devices && d < job->devices->n_devices &&
                d < SL_CONTROL_MAX_DEVICES;
         d++) {
        peak_bytes[d] = report->devices[d].peak_bytes;
    }
    return sl_control_boundary(control, &step);
}
