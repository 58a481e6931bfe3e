/* SPDX-License-Identifier: Apache-2.0 */
/* `sluice eval`: loss and accuracy on the held-out data. */
#include <math.h>
#include <stdio.h>

#include "cli/commands.h"
#include "cli/job.h"
#include "cli/options.h"
#include "cli/train_signals.h"

static void print_result(const sl_eval_sums_t *sums, int is_json)
{
    const double n = sums->n_valid > 0 ? sums->n_valid : 1.0;

    if (is_json) {
        (void)printf("{\"loss\": %.9g, \"accuracy\": %.9g, \"targets\": "
                     "%.0f}\n",
                     sums->loss_sum / n, sums->n_correct / n, sums->n_valid);
        return;
    }
    (void)printf("loss %.6f  accuracy %.4f  perplexity %.3f  targets %.0f\n",
                 sums->loss_sum / n, sums->n_correct / n,
                 exp(sums->loss_sum / n), sums->n_valid);
}

int sl_command_eval(int argc, char **argv)
{
    int quiet_status;
    sl_options_t options;
    sl_job_t job = {0};
    sl_job_evaluation_t evaluation = {0};
    sl_status_t status;

    sl_train_signals_catch_warning();
    SL_TRY(status,
           sl_options_parse("eval",
                            "Evaluate a model on the held-out data; give its "
                            "weights with --weights.",
                            SL_OPTIONS_JSON, argc, argv, &options),
           out);
    SL_TRY(status,
           sl_job_open(options.config, (const char *const *)options.overrides,
                       options.n_overrides, &job),
           out);
    SL_TRY(status, sl_job_start(&job), out);
    sl_train_signals_catch();
    sl_train_signals_share(job.world);
    if (job.config.weights == NULL && sl_job_is_first(&job)) {
        (void)fprintf(stderr, "sluice: no --weights: evaluating the initial "
                              "weights\n");
    }
    SL_TRY(status, sl_job_evaluate(&job, 0, NULL, &evaluation), out);
    if (evaluation.is_cut) {
        if (sl_job_is_first(&job)) {
            (void)fputs("sluice: interrupted; no result\n", stderr);
        }
        goto out;
    }
    if (evaluation.sums.n_valid == 0.0) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "the config holds nothing out: set data.n_valid, "
                "data.valid_fraction or data.valid_path");
    }
    if (sl_job_is_first(&job)) {
        print_result(&evaluation.sums, options.is_json);
    }
out:
    quiet_status = sl_job_tell_failure(&job, &status);
    sl_job_close(&job);
    sl_options_cleanup(&options);
    if (status < 0) {
        return quiet_status != 0 ? quiet_status : sl_exit_status(status);
    }
    return evaluation.is_cut ? SL_EXIT_INTERRUPTED : 0;
}
