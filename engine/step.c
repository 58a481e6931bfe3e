/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs: one training step, one evaluation, and the engine after a failure. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/parallel/drift.h"
#include "engine/parallel/overlap.h"
#include "engine/parallel/parallel.h"
#include "engine/parallel/together.h"
#include "engine/world.h"

static int64_t count_valid(const sl_engine_t *engine, const sl_batch_t *batch)
{
    sl_tensor_desc_t target = engine->params.model->target;
    int64_t n, i, n_valid = 0;

    target.dims[0] = batch->rows;
    n = sl_tensor_elements(&target);
    for (i = 0; i < n; i++) {
        n_valid += batch->target[i] != engine->ignore_index;
    }
    return n_valid;
}

static sl_status_t losses_reserve(sl_engine_t *engine)
{
    sl_device_t *device = &engine->params.devices->devices[0];
    sl_status_t status = SL_OK;
    void *losses = NULL;

    if (engine->n_micro <= engine->losses_room) {
        return SL_OK;
    }
    SL_TRY(status,
           sl_device_host_alloc(
               device, (size_t)engine->n_micro * sizeof(double[4]), &losses),
           out);
    sl_device_host_release(device, engine->losses);
    engine->losses = losses;
    engine->losses_room = engine->n_micro;
out:
    return status;
}

/* Room for the longest timeline there can be. */
static sl_status_t events_reserve(sl_engine_t *engine)
{
    const size_t n_micro = (size_t)engine->params.n_micro_batches;
    const size_t n =
        (size_t)engine->n_cells * (n_micro * SL_INSTRUCTION_UPDATE + 1);
    sl_trace_event_t *events;
    sl_status_t status = SL_OK;

    if (!engine->params.trace || n <= engine->events_room) {
        return SL_OK;
    }
    events = realloc(engine->events, n * sizeof(*events));
    if (events == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "engine: no host memory for a timeline of %zu events", n);
    }
    engine->events = events;
    engine->events_room = n;
out:
    return status;
}

/* The first of replica r's micro-batches; all of them when r is one past the
 * last. */
static int first_micro(const sl_engine_t *engine, int r)
{
    const int first = r * engine->params.n_micro_batches;

    return first < engine->n_micro ? first : engine->n_micro;
}

/* How many messages a channel carries in this job. */
static int n_messages(const sl_engine_t *engine, const sl_channel_t *channel)
{
    const int r = channel->from_cell / engine->n_stages;
    const sl_stage_t *stage;

    switch (channel->kind) {
    case SL_CHANNEL_FORWARD:
    case SL_CHANNEL_BACKWARD:
        return first_micro(engine, r + 1) - first_micro(engine, r);
    case SL_CHANNEL_PARTS:
    case SL_CHANNEL_RESULTS:
        stage = sl_engine_find_stage(engine, r, channel->from_stage);
        if (stage == NULL) {
            stage = sl_engine_find_stage(
                engine, channel->to_cell / engine->n_stages, channel->to_stage);
        }
        return stage->n_buckets;
    case SL_CHANNEL_STATISTICS:
    case SL_CHANNEL_TIE_GRADIENT:
    case SL_CHANNEL_TIE_VALUE:
        break;
    }
    return 1;
}

sl_status_t sl_engine_prepare(sl_engine_t *engine, const sl_batch_t *batch)
{
    const int n_most = engine->n_replicas * engine->params.n_micro_batches;
    sl_status_t status;
    int c, k;

    (void)sl_split_rows(batch->rows, n_most, 0, &engine->n_micro);
    SL_TRY(status, losses_reserve(engine), out);
    SL_TRY(status, events_reserve(engine), out);
    SL_TRY(status, sl_overlap_reserve(engine), out);
    SL_TRY(status, sl_agreement_reserve(engine), out);
    for (k = 0; k < engine->n_cells; k++) {
        sl_stage_t *stage = &engine->stages[k];

        stage->first_micro = first_micro(engine, stage->replica);
        stage->n_micro =
            first_micro(engine, stage->replica + 1) - stage->first_micro;
    }
    for (c = 0; c < engine->n_channels; c++) {
        SL_TRY(status,
               sl_channel_reset(&engine->channels[c],
                                n_messages(engine, &engine->channels[c])),
               out);
    }
    /* what other ranks write stays 0 here */
    memset(engine->losses, 0, (size_t)engine->n_micro * sizeof(double[4]));
    memset(engine->norms, 0,
           (size_t)engine->n_norms * (size_t)engine->n_replicas *
               sizeof(double));
    sl_drift_begin(engine);
    engine->is_skipped = 0;
    engine->is_overflow = 0;
    engine->is_agreeing = 0;
    engine->is_overtaken = 0;
    engine->flags = 0;
    atomic_store(&engine->is_committed, 0);
    engine->batch = batch;
out:
    return status;
}

static sl_status_t prepare(sl_engine_t *engine, const sl_batch_t *batch,
                           int64_t *n_valid_p)
{
    sl_status_t status;
    int d;

    if (engine->is_failed) {
        SL_FAIL(status, SL_ERR_CANCELED, out,
                "engine: a device failed in an earlier step, or the update "
                "was cut short; create a new engine");
    }
    if (batch == NULL || batch->rows < 1 || batch->data == NULL ||
        batch->target == NULL) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out, "engine: the batch is empty");
    }
    if (engine->params.world != NULL &&
        batch->rows > engine->params.batch_rows) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "engine: a batch of %lld rows; what goes between ranks has "
                "room for %lld",
                (long long)batch->rows, (long long)engine->params.batch_rows);
    }
    /* a failed job had no boundary: limits asked for since then enter now */
    for (d = 0; engine->was_failed && d < engine->params.devices->n_devices;
         d++) {
        sl_mem_boundary(engine->params.devices->devices[d].mem, NULL);
    }
    engine->was_failed = 0;
    SL_TRY(status, sl_engine_prepare(engine, batch), out);
    *n_valid_p = count_valid(engine, batch);
    engine->loss_scale =
        *n_valid_p > 0 ? (float)(1.0 / (double)*n_valid_p) : 0.0f;
out:
    return status;
}

/* After a failed job: nothing of it stays, the next one may succeed. The
 * executors have ended and drained their devices. */
static void recover(sl_engine_t *engine, sl_status_t why)
{
    char detail[SL_ERROR_DETAIL_BYTES];
    int d, k;

    /* of the failure that was first; other devices tell of their cancel */
    (void)snprintf(detail, sizeof(detail), "%s", sl_last_error());
    for (d = 0; d < engine->params.devices->n_devices; d++) {
        sl_op_manager_t *ops = engine->params.devices->devices[d].ops;

        (void)!sl_op_manager_drain(ops);
        sl_op_manager_recover(ops);
    }
    /* what is under way is lent until this returns */
    sl_engine_recover_world(engine);
    for (k = 0; k < engine->n_cells; k++) {
        sl_stage_forget_job(&engine->stages[k]);
    }
    engine->barrier.n_waiting = 0;
    sl_abort_reset(&engine->abort);
    sl_together_watch(engine->is_alone ? NULL : engine->params.world,
                      &engine->abort);
    engine->was_failed = 1;
    /* others that have taken the step cannot go back, and this one cannot
     * follow: what they would send it to do so was dropped */
    engine->is_failed = engine->is_alone || why == SL_ERR_DEVICE ||
                        engine->is_overtaken ||
                        atomic_load(&engine->is_committed);
    /* for the next step that succeeds */
    atomic_fetch_or(&engine->signals, engine->flags);
    sl_last_error_set(detail);
}

sl_status_t sl_engine_refuse(const sl_engine_params_t *params)
{
    char detail[SL_ERROR_DETAIL_BYTES], advice[SL_ERROR_DETAIL_BYTES / 2];
    sl_status_t status;

    (void)snprintf(detail, sizeof(detail), "%s", sl_last_error());
    sl_engine_advise(params, advice, sizeof(advice));
    SL_REFUSE(status, SL_ERR_QUOTA, out, "%s%s%s", detail,
              advice[0] == '\0' ? "" : "; ", advice);
out:
    return status;
}

static sl_status_t run_job(sl_engine_t *engine, sl_job_kind_t job)
{
    sl_status_t status;
    int is_remote;

    engine->job = job;
    sl_gate_open(&engine->gate, engine->n_cells);
    sl_gate_wait(&engine->gate);
    status = sl_abort_status(&engine->abort);
    is_remote = sl_abort_is_remote(&engine->abort);
    if (status < 0) {
        /* a device may have failed behind the executors' backs */
        sl_world_abort(engine->params.world, status, sl_last_error());
        recover(engine, status);
    } else {
        sl_world_settle(engine->params.world);
    }
    /* another rank has said what would help it */
    if (status == SL_ERR_QUOTA && !is_remote) {
        status = sl_engine_refuse(&engine->params);
    }
    return status;
}

static void add_losses(const sl_engine_t *engine, sl_eval_sums_t *sums)
{
    int m;

    for (m = 0; m < engine->n_micro; m++) {
        sums->loss_sum += engine->losses[m][0];
        sums->n_valid += engine->losses[m][1];
        sums->n_correct += engine->losses[m][2];
    }
}

static uint64_t busy_ns(const sl_engine_t *engine, int d)
{
    sl_op_stats_t stats;

    sl_op_manager_stats(engine->params.devices->devices[d].ops, &stats);
    return stats.busy_ns;
}

static void collect_trace(sl_engine_t *engine)
{
    size_t i;
    int k;

    engine->n_events = 0;
    for (k = 0; k < engine->n_cells; k++) {
        const sl_stage_t *stage = &engine->stages[k];

        for (i = 0; i < stage->train_list.n; i++) {
            sl_trace_event_t *event = &engine->events[engine->n_events];

            if (stage->spans[i].start_ns != 0) {
                event->stage = k;
                event->instruction = stage->train_list.items[i];
                event->start_ns = stage->spans[i].start_ns;
                event->end_ns = stage->spans[i].end_ns;
                event->busy_ns = stage->spans[i].busy_ns;
                engine->n_events++;
            }
        }
    }
}

/* The boundary of the mini-batch: statistics leave, new limits enter. */
static void cross_boundary(sl_engine_t *engine, uint64_t wall_ns,
                           sl_step_report_t *report)
{
    const int n_devices = engine->params.devices->n_devices;
    double busy = 0.0;
    int d;

    for (d = 0; d < n_devices; d++) {
        const sl_device_t *device = &engine->params.devices->devices[d];
        sl_device_report_t *own = &engine->device_reports[d];
        sl_mem_stats_t stats;

        sl_mem_stats(device->mem, &stats);
        own->name = device->name;
        own->used_bytes = stats.used_bytes;
        own->peak_bytes = stats.peak_bytes;
        own->held_bytes = stats.peak_held_bytes;
        own->limit_bytes = stats.limit_bytes;
        own->busy = (double)(busy_ns(engine, d) - engine->busy_before_ns[d]) /
                    (double)wall_ns;
        busy += own->busy;
        sl_mem_boundary(device->mem, NULL);
    }
    report->n_devices = n_devices;
    report->devices = engine->device_reports;
    report->bubble = 1.0 - busy / n_devices;
}

static void fill_report(sl_engine_t *engine, int64_t n_valid, uint64_t wall_ns,
                        sl_step_report_t *report)
{
    sl_eval_sums_t sums = {0};
    const double n = n_valid > 0 ? (double)n_valid : 1.0;
    sl_loss_scale_t scale;

    add_losses(engine, &sums);
    report->step = engine->n_steps;
    report->loss = sums.loss_sum / n;
    report->accuracy = sums.n_correct / n;
    report->n_valid = n_valid;
    report->gradient_norm = sl_engine_gradient_norm(engine);
    report->learning_rate =
        sl_optimizer_lr(&engine->params.optimizer, engine->n_steps);
    report->step_us = (double)wall_ns * 1e-3;
    report->is_skipped = engine->is_skipped;
    report->n_skipped = engine->n_skipped;
    report->loss_scale =
        sl_engine_loss_scale(engine, &scale) ? scale.factor : 0.0;
    report->flags = engine->flags;
    report->compare_us = sl_drift_most_us(engine);
    report->n_sums = sl_agreement_take_given(engine, &report->sums);
    cross_boundary(engine, wall_ns, report);
}

sl_status_t sl_engine_step(sl_engine_t *engine, const sl_batch_t *batch,
                           sl_step_report_t *report_p)
{
    const uint64_t start_ns = sl_clock_ns();
    sl_step_report_t report;
    int64_t n_valid = 0;
    sl_status_t status;
    int d;

    status = prepare(engine, batch, &n_valid);
    if (status < 0) {
        return sl_engine_together(engine, status);
    }
    for (d = 0; d < engine->params.devices->n_devices; d++) {
        engine->busy_before_ns[d] = busy_ns(engine, d);
    }
    SL_TRY(status, run_job(engine, SL_JOB_TRAIN), out);
    engine->n_skipped += (uint64_t)engine->is_skipped;
    fill_report(engine, n_valid, sl_clock_ns() - start_ns, &report);
    sl_loss_scale_step(engine);
    if (engine->params.trace) {
        collect_trace(engine);
        sl_overlap_note_step(engine);
    }
    engine->n_steps++;
    *report_p = report;
out:
    return status;
}

sl_status_t sl_engine_evaluate(sl_engine_t *engine, const sl_batch_t *batch,
                               sl_eval_sums_t *sums)
{
    int64_t n_valid = 0;
    sl_status_t status = prepare(engine, batch, &n_valid);

    if (status < 0) {
        return sl_engine_together(engine, status);
    }
    SL_TRY(status, run_job(engine, SL_JOB_EVALUATE), out);
    add_losses(engine, sums);
    sums->flags |= engine->flags;
out:
    return status;
}
