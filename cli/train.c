/* SPDX-License-Identifier: Apache-2.0 */
/* `sluice train`: the main job. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/job.h"
#include "cli/memory_trace.h"
#include "cli/options.h"
#include "cli/train_checkpoint.h"
#include "cli/train_control.h"
#include "cli/train_edges.h"
#include "cli/train_rebalance.h"
#include "cli/train_signals.h"
#include "engine/report/curve.h"
#include "engine/report/metrics.h"
#include "engine/report/progress.h"
#include "engine/report/timeline_svg.h"

enum {
    EXIT_INTERRUPTED = 130
};

/* Where a run's results go. */
typedef struct sl_train {
    const sl_options_t *options;
    sl_job_t job;
    sl_loader_t *loader;
    sl_progress_t *progress;         /**< NULL when quiet */
    sl_metrics_t *metrics;           /**< NULL without --metrics */
    sl_control_t *control;           /**< NULL when there is none */
    sl_memory_trace_t *memory_trace; /**< NULL without --memory-trace */
    sl_train_checkpoint_t *checkpoint;
    const char *unit;
    double units_per_row;
    double *losses; /**< per step; owned */
    size_t n_losses;
    double last_loss;
    double validation_loss; /**< of the latest step; NaN = not evaluated */
    int is_over;            /**< a rank wishes the end, and all know */
    size_t *first_limits;   /**< of memory, one a device; owned */
    sl_train_rebalance_t *rebalance; /**< NULL when cuts stay */
    sl_rebalance_news_t news; /**< of the latest move; told with a step */
} sl_train_t;

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

static void tell_progress(const sl_train_t *train,
                          const sl_step_report_t *report, double n_units)
{
    sl_progress_device_t devices[64];
    sl_progress_update_t update;
    int d;

    if (train->progress == NULL) {
        return;
    }
    memset(&update, 0, sizeof(update));
    for (d = 0; d < report->n_devices && d < 64; d++) {
        devices[d].name = report->devices[d].name;
        devices[d].used_bytes = report->devices[d].held_bytes;
        devices[d].limit_bytes = report->devices[d].limit_bytes;
        update.n_devices++;
    }
    update.step = report->step;
    update.loss = report->loss;
    update.n_units = n_units;
    update.step_us = report->step_us;
    update.bubble = report->bubble;
    update.loss_scale = report->loss_scale;
    update.n_skipped = report->n_skipped;
    update.devices = devices;
    update.now_ns = sl_clock_ns();
    sl_progress_update(train->progress, &update);
}

static void tell_metrics(const sl_train_t *train,
                         const sl_step_report_t *report, double n_units)
{
    sl_metrics_device_t devices[64];
    sl_metrics_step_t step;
    int d;

    if (train->metrics == NULL) {
        return;
    }
    memset(&step, 0, sizeof(step));
    for (d = 0; d < report->n_devices && d < 64; d++) {
        devices[d].name = report->devices[d].name;
        devices[d].used_bytes = report->devices[d].used_bytes;
        devices[d].peak_bytes = report->devices[d].peak_bytes;
        devices[d].limit_bytes = report->devices[d].limit_bytes;
        devices[d].busy = report->devices[d].busy;
        step.n_devices++;
    }
    step.step = report->step;
    step.loss = report->loss;
    step.accuracy = report->accuracy;
    step.learning_rate = report->learning_rate;
    step.gradient_norm = report->gradient_norm;
    step.loss_scale = report->loss_scale;
    step.n_skipped = report->n_skipped;
    step.step_ms = report->step_us * 1e-3;
    step.units_per_s = n_units / report->step_us * 1e6;
    step.unit = train->unit;
    step.bubble = report->bubble;
    step.devices = devices;
    if (train->news.text[0] != '\0') {
        step.cuts = train->job.cuts;
        step.n_stages = (size_t)train->job.n_stages;
        step.moved_layers = train->news.report.n_layers;
        step.moved_bytes = train->news.report.moved_bytes;
        step.move_ms = train->news.report.move_us * 1e-3;
        step.predicted_speedup = train->news.speedup;
    }
    sl_metrics_write(train->metrics, &step);
}

static sl_status_t remember_limits(sl_train_t *train)
{
    const int n = train->job.devices->n_devices;
    sl_status_t status;
    int d;

    train->first_limits = calloc((size_t)n, sizeof(*train->first_limits));
    if (train->first_limits == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "no host memory for the limits of %d devices", n);
    }
    for (d = 0; d < n; d++) {
        sl_mem_stats_t stats;

        sl_mem_stats(train->job.devices->devices[d].mem, &stats);
        train->first_limits[d] = stats.limit_bytes;
    }
    return SL_OK;
out:
    return status;
}

/* Whether some device's limit is below what the job started with. */
static int is_squeezed(const sl_train_t *train)
{
    int d;

    for (d = 0; d < train->job.devices->n_devices; d++) {
        sl_mem_stats_t stats;

        sl_mem_stats(train->job.devices->devices[d].mem, &stats);
        if (stats.limit_bytes < train->first_limits[d]) {
            return 1;
        }
    }
    return 0;
}

/* A move at the boundary before step `step`. */
static void tell_move(const sl_train_t *train, uint32_t step)
{
    if (train->news.text[0] != '\0' && sl_job_is_first(&train->job)) {
        sl_progress_clear(train->progress);
        (void)printf("step %" PRIu32 ": %s\n", step, train->news.text);
        (void)fflush(stdout);
    }
}

/* Whether to take a job again, once an order has come to the ranks whose
 * limits are low. All ranks decide alike; one that is told to end meanwhile
 * ends the run. */
static int await_room(sl_train_t *train)
{
    double sums[2] = {0.0, 0.0};
    double n_ends = 0.0;

    if (is_squeezed(train)) {
        sl_progress_clear(train->progress);
        sl_warn("%s; waiting for a higher limit", sl_last_error());
        sums[1] = sl_control_await_order(train->control);
        n_ends = sums[1] != 0.0 && sl_control_id(train->control) != NULL;
    }
    sums[0] = n_ends;
    if (sl_world_sum(train->job.world, sums, 2) < 0) {
        return 0;
    }
    train->is_over |= sums[0] > 0.0;
    return sums[1] == 0.0;
}

/* A limit that was lowered below the need is no reason to lose the job: layers
 * move to devices that have room for them, or it waits until another order
 * comes, and then does the same again. */
static sl_status_t make_room(sl_train_t *train, int *is_again_p)
{
    char detail[1024];
    double n_short = is_squeezed(train);
    sl_status_t status;
    int moved = 0;

    (void)snprintf(detail, sizeof(detail), "%s", sl_last_error());
    SL_TRY(status, sl_world_sum(train->job.world, &n_short, 1), out);
    if (n_short > 0.0) {
        SL_TRY(status,
               sl_train_rebalance_fit(train->rebalance, &moved, &train->news),
               out);
        tell_move(train, sl_engine_n_steps(train->job.engine));
    }
    sl_last_error_set(detail);
    *is_again_p = moved || (n_short > 0.0 && await_room(train));
out:
    return status;
}

/* @return SL_ERR_QUOTA too when it is over while it waits for memory */
static sl_status_t step_when_it_fits(sl_train_t *train, const sl_batch_t *batch,
                                     sl_step_report_t *report)
{
    sl_status_t status = sl_engine_step(train->job.engine, batch, report);
    int is_again = 0;

    while (status == SL_ERR_QUOTA) {
        SL_TRY(status, make_room(train, &is_again), out);
        if (!is_again) {
            return SL_ERR_QUOTA;
        }
        status = sl_engine_step(train->job.engine, batch, report);
    }
out:
    return status;
}

/* Likewise. */
static sl_status_t evaluate_when_it_fits(sl_train_t *train,
                                         sl_eval_sums_t *sums)
{
    const int64_t most = train->job.config.eval_batches;
    sl_status_t status = sl_job_evaluate(&train->job, most, sums);
    int is_again = 0;

    while (status == SL_ERR_QUOTA) {
        SL_TRY(status, make_room(train, &is_again), out);
        if (!is_again) {
            return SL_ERR_QUOTA;
        }
        status = sl_job_evaluate(&train->job, most, sums);
    }
out:
    return status;
}

static sl_status_t evaluate(sl_train_t *train, uint32_t step)
{
    sl_eval_sums_t sums;
    sl_status_t status;

    status = evaluate_when_it_fits(train, &sums);
    if (status == SL_ERR_QUOTA && train->is_over) {
        return SL_OK; /* it waited for memory, and was told to end */
    }
    SL_TRY(status, status, out);
    train->validation_loss =
        sums.n_valid > 0.0 ? sums.loss_sum / sums.n_valid : (double)NAN;
    if (sums.n_valid > 0.0 && sl_job_is_first(&train->job)) {
        sl_progress_clear(train->progress);
        (void)printf("step %" PRIu32 "  validation loss %.4f  accuracy %.4f\n",
                     step, sums.loss_sum / sums.n_valid,
                     sums.n_correct / sums.n_valid);
        (void)fflush(stdout);
    }
out:
    return status;
}

static sl_status_t train_step(sl_train_t *train)
{
    const int64_t every = train->job.config.eval_every;
    sl_step_report_t report;
    sl_batch_t batch;
    sl_status_t status;
    double n_units;

    SL_TRY(status, sl_loader_next(train->loader, &batch), out);
    if (sl_train_signals_is_stop(train->job.world)) {
        sl_engine_signal(train->job.engine, SL_TRAIN_STOP);
    }
    status = step_when_it_fits(train, &batch, &report);
    if (status == SL_ERR_QUOTA && train->is_over) {
        return SL_OK; /* it waited for memory, and was told to end */
    }
    SL_TRY(status, status, out);
    train->is_over = (report.flags & SL_TRAIN_STOP) != 0;
    n_units = (double)batch.rows * train->units_per_row;
    train->last_loss = report.loss;
    train->validation_loss = (double)NAN;
    train->losses[train->n_losses++] = report.loss;
    tell_progress(train, &report, n_units);
    tell_metrics(train, &report, n_units);
    if (sl_train_control_step(train->control, &train->job, &report, n_units)) {
        sl_train_signals_stop(NULL); /* told to stop */
    }
    SL_TRY(
        status,
        sl_train_rebalance_step(train->rebalance, report.step_us, &train->news),
        out);
    tell_move(train, report.step + 1);
    if (every > 0 && (report.step + 1) % every == 0) {
        SL_TRY(status, evaluate(train, report.step + 1), out);
    }
    status = sl_train_checkpoint_step(train->checkpoint, train->last_loss,
                                      train->validation_loss);
out:
    return status;
}

static sl_status_t write_timeline(const sl_train_t *train)
{
    const sl_job_t *job = &train->job;
    const char *schedules[] = {"gpipe", "1f1b"};
    const char **names;
    sl_timeline_t timeline;
    sl_status_t status;
    sl_cell_t cell;
    int k;

    memset(&timeline, 0, sizeof(timeline));
    while (sl_engine_cell(job->engine, timeline.n_stages, &cell)) {
        timeline.n_stages++;
    }
    names = calloc((size_t)timeline.n_stages, sizeof(*names));
    if (names == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "no host memory for a timeline");
    }
    for (k = 0; sl_engine_cell(job->engine, k, &cell); k++) {
        names[k] = cell.device->name;
    }
    timeline.n_events = sl_engine_trace(job->engine, &timeline.events);
    (void)sl_split_rows(job->config.batch, (int)job->config.micro_batches, 0,
                        &timeline.n_micro_batches);
    timeline.schedule = schedules[job->config.schedule];
    timeline.row_names = names;
    timeline.bubble = NAN;
    status = sl_timeline_svg_write(train->options->timeline, &timeline);
out:
    free(names);
    return status;
}

static sl_status_t draw_curve(const sl_train_t *train)
{
    const sl_curve_series_t series = {
        .name = "loss", .y = train->losses, .n = train->n_losses};
    const sl_curve_text_params_t params = {0};
    char *text = NULL;
    sl_status_t status = SL_OK;

    if (!train->options->is_quiet) {
        SL_TRY(status, sl_curve_text(&series, &params, &text), out);
        (void)fputs(text, stdout);
        free(text);
    }
    if (train->options->curve != NULL) {
        status = sl_curve_svg_write(train->options->curve,
                                    train->job.config.name, &series, 1);
    }
out:
    return status;
}

/* Whether the run ends early. With other ranks the wish counts once all know
 * of it, after the same step. */
static int is_over(const sl_train_t *train)
{
    return train->is_over ||
           (train->job.world == NULL && sl_train_signals_is_stop(NULL));
}

/* For whoever sends a signal: where the job is, and what there is of it. */
static void tell_interrupt(const sl_train_t *train)
{
    const sl_config_t *config = &train->job.config;
    const uint32_t step = sl_engine_n_steps(train->job.engine);
    char path[2048];

    if (!sl_job_is_first(&train->job)) {
        return;
    }
    if (sl_train_checkpoint_path(train->checkpoint, path, sizeof(path))) {
        (void)fprintf(stderr,
                      "sluice: interrupted after step %" PRIu32
                      "; checkpoint written: %s\n",
                      step, path);
    } else {
        (void)fprintf(stderr,
                      "sluice: interrupted after step %" PRIu32
                      "; no checkpoint written%s\n",
                      step,
                      config->checkpoint_dir == NULL
                          ? ": name a directory with --checkpoint"
                          : "");
    }
}

/* When all ranks want to know. */
static sl_status_t measure_edges(const sl_train_t *train)
{
    const int n = sl_world_size(train->job.world);
    double n_wish = train->options->edges != NULL;
    sl_status_t status;

    SL_TRY(status, sl_world_sum(train->job.world, &n_wish, 1), out);
    if (n_wish == (double)n) {
        status = sl_engine_measure_overlap(train->job.engine);
    }
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
    SL_KEEP(status, sl_train_checkpoint_end(train->checkpoint, train->last_loss,
                                            train->validation_loss));
    if (is_over(train)) {
        tell_interrupt(train);
    }
    if (options->save != NULL) {
        SL_KEEP(status,
                sl_engine_weights_save(train->job.engine, options->save));
    }
    if (options->timeline != NULL && train->n_losses > 0 &&
        sl_job_is_first(&train->job)) {
        SL_KEEP(status, write_timeline(train));
    }
    if (train->n_losses > 1 && sl_job_is_first(&train->job)) {
        SL_KEEP(status, draw_curve(train));
    }
    SL_KEEP(status, measure_edges(train));
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

/* Until the job may begin; it is over when a rank is ended before that. */
static sl_status_t admit(sl_train_t *train)
{
    double n_over = sl_control_admit(train->control);
    sl_status_t status = sl_world_sum(train->job.world, &n_over, 1);

    train->is_over = n_over > 0.0;
    return status;
}

/* From an opened job to its last step. */
static sl_status_t run(sl_train_t *train)
{
    sl_status_t status;

    find_unit(train);
    sl_train_signals_catch();
    sl_train_signals_share(train->job.world);
    SL_TRY(status, remember_limits(train), out);
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
                                    &train->last_loss),
           out);
    SL_TRY(status, sl_train_rebalance_open(&train->job, &train->rebalance),
           out);
    SL_TRY(status, open_loader(train), out);
    SL_TRY(status, open_outputs(train), out);
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
    int quiet_status;
    sl_options_t options;
    sl_train_t train;
    sl_status_t status;

    memset(&train, 0, sizeof(train));
    train.options = &options;
    train.last_loss = train.validation_loss = (double)NAN;
    SL_TRY(status,
           sl_options_parse("train",
                            "Train a model as CONFIG says. The last line is "
                            "the final loss and a hash of all parameters, "
                            "moments and statistics.",
                            SL_OPTIONS_OUTPUT, argc, argv, &options),
           out);
    SL_TRY(status,
           sl_job_open(options.config, (const char *const *)options.overrides,
                       options.n_overrides, &train.job),
           out);
    status = run(&train);
out:
    quiet_status = sl_job_tell_failure(&train.job, &status);
    close_all(&train);
    sl_options_cleanup(&options);
    if (status < 0) {
        return quiet_status != 0 ? quiet_status : sl_exit_status(status);
    }
    return is_over(&train) ? EXIT_INTERRUPTED : 0;
}
