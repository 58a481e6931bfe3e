/* SPDX-License-Identifier: Apache-2.0 */
/* `sluice profile`: measure the layers on one device and keep the result. */
#include <stdio.h>

#include "cli/commands.h"
#include "cli/job.h"
#include "cli/options.h"

static void print_costs(const sl_job_t *job, const sl_part_costs_t *costs)
{
    double forward_us = 0.0, backward_us = 0.0;
    int l;

    (void)printf("%-28s %-22s %12s %12s %9s\n", "layer", "type", "forward us",
                 "backward us", "GFLOP/s");
    for (l = 0; l < costs->n_layers; l++) {
        const sl_part_layer_t *layer = &costs->layers[l];
        const double us = layer->forward_us + layer->backward_us;
        const double flops = layer->forward_flops + layer->backward_flops;

        (void)printf("%-28s %-22s %12.1f %12.1f %9.1f\n",
                     job->model->layers[l]->name,
                     job->model->layers[l]->ops->name, layer->forward_us,
                     layer->backward_us, us > 0.0 ? flops / us * 1e-3 : 0.0);
        forward_us += layer->forward_us;
        backward_us += layer->backward_us;
    }
    (void)printf("%-28s %-22s %12.1f %12.1f\n", "sum", "", forward_us,
                 backward_us);
}

int sl_command_profile(int argc, char **argv)
{
    int quiet_status;
    sl_options_t options;
    sl_job_t job = {0};
    sl_part_costs_t costs = {0};
    sl_status_t status;

    SL_TRY(status,
           sl_options_parse("profile",
                            "Measure every layer's forward and backward on one "
                            "device, for this micro-batch size and thread "
                            "count. `plan` and `train` then use it.",
                            SL_OPTIONS_REPEATS, argc, argv, &options),
           out);
    SL_TRY(status,
           sl_job_open(options.config, (const char *const *)options.overrides,
                       options.n_overrides, &job),
           out);
    SL_TRY(status,
           sl_part_profile_measure(job.model, job.micro_rows,
                                   &job.devices->devices[0],
                                   (int)options.repeats, &job.speed, &costs),
           out);
    print_costs(&job, &costs);
    SL_TRY(status,
           sl_part_profile_save(job.profile_path, job.profile_key, job.model,
                                &costs),
           out);
    (void)printf("kept in %s\n", job.profile_path);
out:
    sl_part_costs_cleanup(&costs);
    quiet_status = sl_job_tell_failure(&job, &status);
    sl_job_close(&job);
    sl_options_cleanup(&options);
    return quiet_status != 0 ? quiet_status : sl_exit_status(status);
}
