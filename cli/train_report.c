/* SPDX-License-Identifier: Apache-2.0 */
/* What a training run tells and draws. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cli/train_internal.h"
#include "engine/report/curve.h"
#include "engine/report/timeline_svg.h"

void sl_train_tell_move(const sl_train_t *train, uint32_t step)
{
    if (train->news.text[0] != '\0' && sl_job_is_first(&train->job)) {
        sl_progress_clear(train->progress);
        (void)printf("step %" PRIu32 ": %s\n", step, train->news.text);
        (void)fflush(stdout);
    }
}

void sl_train_tell_progress(const sl_train_t *train,
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

void sl_train_tell_metrics(const sl_train_t *train,
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
    step.compare_ms = report->compare_us * 1e-3;
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

sl_status_t sl_train_write_timeline(const sl_train_t *train)
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

sl_status_t sl_train_draw_curve(const sl_train_t *train)
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

void sl_train_tell_interrupt(const sl_train_t *train)
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

sl_status_t sl_train_measure_edges(const sl_train_t *train)
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
