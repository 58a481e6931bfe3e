/* SPDX-License-Identifier: Apache-2.0 */
/* `sluice train`: the main job. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/launched.h"
#include "cli/train_edges.h"
#include "cli/train_internal.h"
#include "cli/train_signals.h"

static void find_unit(sl_train_t *train)
{
    train->unit = "samples";
    train->units_per_row = 1.0;
    if (train->job.model->data.dtype == SL_DTYPE_I32) {
        train->unit = "tokens";
        train->units_per_row =
            (double)sl_tensor_elements(&train->job.model->data);
    }
}

/* That a result cannot be written is better known before the first step. */
static sl_status_t check_writable(const sl_options_t *options)
{
    const char *const paths[] = {options->save, options->timeline,
                                 options->curve};
    sl_file_writer_t *writer;
    sl_status_t status = SL_OK;
    size_t i;

    for (i = 0; i < sizeof(paths) / sizeof(*paths); i++) {
        if (paths[i] != NULL) {
            SL_TRY(status, sl_file_begin(paths[i], &writer), out);
            sl_file_abort(writer);
        }
    }
out:
    return status;
}

static sl_status_t open_outputs(sl_train_t *train)
{
    sl_progress_params_t params;
    sl_status_t status = SL_OK;

    train->losses =
        calloc((size_t)train->job.config.steps + 1, sizeof(*train->losses));
    if (train->losses == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "no host memory for the losses of %lld steps",
                (long long)train->job.config.steps);
    }
    if (sl_job_is_first(&train->job)) {
        SL_TRY(status, check_writable(train->options), out);
    }
    if (!train->options->is_quiet && sl_job_is_first(&train->job)) {
        sl_progress_params_default(&params);
        params.first_step = sl_engine_n_steps(train->job.engine);
        params.n_steps = (uint32_t)train->job.config.steps;
        params.unit = train->unit;
        SL_TRY(status, sl_progress_create(&params, &train->progress), out);
    }
    if (train->options->metrics != NULL && sl_job_is_first(&train->job)) {
        status = sl_metrics_open(train->options->metrics, 1, &train->metrics);
    }
out:
    return status;
}

static sl_status_t open_loader(sl_train_t *train)
{
    const sl_loader_params_t params = {.split = SL_DATA_TRAIN,
                                       .batch_rows = train->job.config.batch,
                                       .shuffle = 1,
                                       .seed = (uint64_t)train->job.config.seed,
                                       .first_step =
                                           sl_engine_n_steps(train->job.engine),
                                       .n_ahead = 2};

    return sl_loader_create(train->job.dataset, &params, &train->loader);
}

/* Whether the run ends early. With other ranks the wish counts once all know
 * of it, after the same step or before the same batch of an evaluation. */
static int is_over(const sl_train_t *train)
{
    return train->is_over ||
           (train->job.world == NULL && sl_train_signals_is_stop(NULL));
}

/* The validation loss stays unknown when the run is to end before that. */
static sl_status_t evaluate(sl_train_t *train, uint32_t step)
{
    sl_job_evaluation_t evaluation;
    const sl_eval_sums_t *sums = &evaluation.sums;
    sl_status_t status;

    status = sl_train_evaluate_when_it_fits(train, &evaluation);
    if (status == SL_ERR_QUOTA && train->is_over) {
        return SL_OK; /* it waited for memory, and was told to end */
    }
    SL_TRY(status, status, out);
    train->is_over |= evaluation.is_wished;
    if (evaluation.is_cut || !(sums->n_valid > 0.0)) {
        return SL_OK;
    }
    train->validation_loss = sums->loss_sum / sums->n_valid;
    if (sl_job_is_first(&train->job)) {
        sl_progress_clear(train->progress);
        (void)printf("step %" PRIu32 "  validation loss %.4f  accuracy %.4f\n",
                     step, train->validation_loss,
                     sums->n_correct / sums->n_valid);
        (void)fflush(stdout);
    }
out:
    return status;
}

/* After so many steps. */
static int evaluation_is_due(const sl_train_t *train, uint32_t n_steps)
{
    const int64_t every = train->job.config.eval_every;

    return every > 0 && n_steps > 0 && n_steps % every == 0;
}

/* The evaluation that a run was ended in is done by the one that goes on. */
static sl_status_t evaluate_again(sl_train_t *train)
{
    const uint32_t n_steps = sl_engine_n_steps(train->job.engine);
    sl_status_t status = SL_OK;

    if (!evaluation_is_due(train, n_steps) || !isnan(train->validation_loss) ||
        is_over(train)) {
        return SL_OK;
    }
    SL_TRY(status, evaluate(train, n_steps), out);
    if (!isnan(train->validation_loss)) {
        status = sl_train_checkpoint_step(train->checkpoint, train->last_loss,
                                          train->validation_loss);
    }
out:
    return status;
}

static sl_status_t train_step(sl_train_t *train)
{
    sl_step_report_t report;
    sl_batch_t batch;
    sl_status_t status;
    double n_units;

    SL_TRY(status, sl_loader_next(train->loader, &batch), out);
    if (sl_train_signals_is_stop(train->job.world)) {
        sl_engine_signal(train->job.engine, SL_TRAIN_STOP);
    }
    SL_TRY(status, sl_train_rebalance_begin(train->rebalance), out);
    status = sl_train_step_when_it_fits(train, &batch, &report);
    if (status == SL_ERR_QUOTA && train->is_over) {
        return SL_OK; /* it waited for memory, and was told to end */
    }
    SL_TRY(status, status, out);
    train->is_over = (report.flags & SL_TRAIN_STOP) != 0;
    n_units = (double)batch.rows * train->units_per_row;
    train->last_loss = report.loss;
    train->validation_loss = (double)NAN;
    train->losses[train->n_losses++] = report.loss;
    sl_train_tell_progress(train, &report, n_units);
    sl_train_tell_metrics(train, &report, n_units);
    if (sl_train_control_step(train->control, &train->job, &report, n_units)) {
        sl_train_signals_stop(NULL); /* told to stop */
    }
    SL_TRY(status,
           sl_train_rebalance_step(train->rebalance, &report, &train->news),
           out);
    sl_train_tell_move(train, report.step + 1);
    if (evaluation_is_due(train, report.step + 1) && !is_over(train)) {
        SL_TRY(status, evaluate(train, report.step + 1), out);
    }
    status = sl_train_checkpoint_step(train->checkpoint, train->last_loss,
                                      train->validation_loss);
out:
    return status;
}

/* Everything after the last step; the state hash is printed last. */
static sl_status_t finish(sl_train_t *train)
{
    const sl_options_t *options = train->options;
    sl_status_t status = SL_OK;
    uint64_t hash;

    sl_progress_destroy(train->progress);
    train->progress = NULL;
    train->is_over = is_over(train); /* what comes later finds all done */
    SL_KEEP(status, sl_train_checkpoint_end(train->checkpoint, train->last_loss,
                                            train->validation_loss));
    if (train->is_over) {
        sl_train_tell_interrupt(train);
    }
    if (options->save != NULL) {
        SL_KEEP(status,
                sl_engine_weights_save(train->job.engine, options->save));
    }
    if (options->timeline != NULL && train->n_losses > 0 &&
        sl_job_is_first(&train->job)) {
        SL_KEEP(status, sl_train_write_timeline(train));
    }
    if (train->n_losses > 1 && sl_job_is_first(&train->job)) {
        SL_KEEP(status, sl_train_draw_curve(train));
    }
    SL_KEEP(status, sl_train_measure_edges(train));
    if (options->edges != NULL) {
        SL_KEEP(status, sl_train_edges_write(options->edges, &train->job));
    }
    SL_KEEP(status, sl_metrics_close(train->metrics));
    train->metrics = NULL;
    SL_KEEP(status, sl_memory_trace_close(train->memory_trace));
    train->memory_trace = NULL;
    SL_KEEP(status, sl_engine_state_hash(train->job.engine, &hash));
    if (status >= 0 && sl_job_is_first(&train->job)) {
        (void)printf(
            "final loss %.6f  step %" PRIu32 "  state-hash %016" PRIx64 "\n",
            train->last_loss, sl_engine_n_steps(train->job.engine), hash);
    }
    if (!train->is_over) { /* it has been told then */
        SL_KEEP(status, sl_train_checkpoint_check(train->checkpoint));
    }
    return status;
}

static void close_all(sl_train_t *train)
{
    sl_progress_destroy(train->progress);
    if (train->metrics != NULL) {
        (void)!sl_metrics_close(train->metrics);
    }
    sl_control_close(train->control);
    sl_train_checkpoint_close(train->checkpoint);
    sl_train_rebalance_close(train->rebalance);
    sl_loader_destroy(train->loader);
    (void)!sl_memory_trace_close(train->memory_trace);
    free(train->losses);
    free(train->first_limits);
    sl_job_close(&train->job);
}

/* Before one is handed on, all ranks listen. */
static sl_status_t listen_to_signals(sl_train_t *train)
{
    double n_ready = 1;
    sl_status_t status;

    sl_train_signals_catch();
    sl_train_signals_share(train->job.world);
    SL_TRY(status, sl_world_sum(train->job.world, &n_ready, 1), out);
    if (sl_job_is_first(&train->job)) {
        sl_launched_tell(SL_LAUNCH_REPORT_READY, "");
    }
out:
    return status;
}

/* Until the job may begin; it is over when a rank is ended before that. */
static sl_status_t admit(sl_train_t *train)
{
    double n_over = sl_control_admit(train->control) || is_over(train);
    sl_status_t status = sl_world_sum(train->job.world, &n_over, 1);

    train->is_over = n_over > 0.0;
    return status;
}

/* From an opened job to its last step. */
static sl_status_t run(sl_train_t *train)
{
    sl_status_t status;

    find_unit(train);
    SL_TRY(status, listen_to_signals(train), out);
    SL_TRY(status, sl_train_remember_limits(train), out);
    SL_TRY(status,
           sl_train_control_open(&train->job, train->unit, &train->control),
           out);
    SL_TRY(status, admit(train), out);
    if (train->is_over) {
        if (sl_job_is_first(&train->job)) {
            (void)fputs("sluice: interrupted before the first step; no "
                        "checkpoint written\n",
                        stderr);
        }
        goto out;
    }
    if (train->options->memory_trace != NULL && sl_job_is_first(&train->job)) {
        SL_TRY(status,
               sl_memory_trace_open(train->options->memory_trace,
                                    train->job.devices, &train->memory_trace),
               out);
    }
    if (sl_job_has_free_cuts(&train->job)) {
        /* under the shares and limits that the admission has set */
        SL_TRY(status, sl_job_cut(&train->job), out);
    }
    SL_TRY(status, sl_job_start(&train->job), out);
    if (sl_job_is_first(&train->job) && !train->options->is_quiet &&
        (train->job.world != NULL || train->job.config.replicas > 1)) {
        sl_job_print_mapping(&train->job);
    }
    SL_TRY(status,
           sl_train_checkpoint_open(&train->job, &train->checkpoint,
                                    &train->last_loss, &train->validation_loss),
           out);
    SL_TRY(status, sl_train_rebalance_open(&train->job, &train->rebalance),
           out);
    SL_TRY(status, open_loader(train), out);
    SL_TRY(status, open_outputs(train), out);
    SL_TRY(status, evaluate_again(train), out);
    while (sl_engine_n_steps(train->job.engine) < train->job.config.steps &&
           !is_over(train)) {
        SL_TRY(status, train_step(train), out);
    }
    status = finish(train);
out:
    return status;
}

int sl_command_train(int argc, char **argv)
{
    int quiet_status, exit_status, is_first;
    char text[16];
    sl_options_t options;
    sl_train_t train;
    sl_status_t status;

    sl_train_signals_catch_warning();
    memset(&train, 0, sizeof(train));
    train.options = &options;
    train.last_loss = train.validation_loss = (double)NAN;
    SL_TRY(status,
           sl_options_parse("train",
                            "Train a model as CONFIG says. The last line is "
                            "the final loss and a hash of all parameters, "
                            "moments and statistics.",
                            SL_OPTIONS_OUTPUT | SL_OPTIONS_PLACE, argc, argv,
                            &options),
           out);
    SL_TRY(status,
           sl_job_open(options.config, (const char *const *)options.overrides,
                       options.n_overrides, &train.job),
           out);
    status = run(&train);
out:
    if (status < 0) {
        sl_progress_clear(train.progress);
    }
    quiet_status = sl_job_tell_failure(&train.job, &status);
    is_first = sl_job_is_first(&train.job);
    close_all(&train);
    sl_options_cleanup(&options);
    if (status < 0) {
        return quiet_status != 0 ? quiet_status : sl_exit_status(status);
    }
    exit_status = train.is_over ? SL_EXIT_INTERRUPTED : 0;
    if (is_first) {
        (void)snprintf(text, sizeof(text), "%d", exit_status);
        sl_launched_tell(SL_LAUNCH_REPORT_END, text);
    }
    return exit_status;
}
