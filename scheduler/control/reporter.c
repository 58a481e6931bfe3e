/* SPDX-License-Identifier: Apache-2.0 */
/* What a job tells: status.json, the Prometheus file, AntMan's status. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "scheduler/control/control_internal.h"
#include "scheduler/control/prometheus.h"

static const uint64_t NS_PER_MS = 1000000;
static const uint64_t NS_PER_US = 1000;
static const uint64_t BEAT_NS = UINT64_C(1000000000);
/* AntMan's rhythm: every 10 s, or when the duration changes tenfold; and then
 * only if it moved by 1 percent or the memory did. */
static const uint64_t ANTMAN_NS = UINT64_C(10000000000);
static const double ANTMAN_JUMP = 10.0;
static const double ANTMAN_CHANGE = 0.01;

/* ---- status.json ---- */

static void fill_memory(const sl_gate_t *gate, uint64_t capacity_bytes,
                        sl_control_device_status_t *device)
{
    const sl_mem_stats_t *mem = &gate->mem;
    const uint64_t asked =
        gate->limit_bytes > 0 ? gate->limit_bytes : capacity_bytes;
    int c;

    device->limit_bytes = mem->limit_bytes;
    device->limit_asked_bytes = asked < capacity_bytes ? asked : capacity_bytes;
    device->held_bytes = mem->held_bytes;
    device->used_bytes = mem->used_bytes;
    device->peak_bytes = gate->peak_bytes;
    device->host_used_bytes = mem->host_used_bytes;
    for (c = 0; c < SL_MEM_N_CLASSES; c++) {
        device->classes[c].used_bytes = mem->classes[c].used_bytes;
        device->classes[c].host_bytes = mem->classes[c].host_bytes;
        device->classes[c].n_spills = mem->classes[c].n_spills;
    }
}

static void fill_ops(sl_gate_t *gate, const sl_op_manager_t *ops,
                     sl_control_device_status_t *device)
{
    sl_op_stats_t stats;
    uint64_t busy, elapsed;

    sl_op_manager_stats(ops, &stats);
    busy = stats.charged_ns - gate->busy_before_ns;
    elapsed = stats.elapsed_ns - gate->elapsed_before_ns;
    if (stats.charged_ns >= gate->busy_before_ns && elapsed > 0) {
        gate->share_achieved =
            fmin((double)busy / (double)elapsed, 1.0) * 100.0;
        gate->busy_before_ns = stats.charged_ns;
        gate->elapsed_before_ns = stats.elapsed_ns;
    }
    device->share_achieved = gate->share_achieved;
    device->busy_us = stats.busy_ns / NS_PER_US;
    device->waiting_us = stats.waiting_ns / NS_PER_US;
    device->throttled_us = stats.throttled_ns / NS_PER_US;
    device->n_ops = stats.n_run;
}

static void fill_devices(sl_control_t *control, sl_control_status_t *status)
{
    int d;

    for (d = 0; d < control->n_devices; d++) {
        sl_control_device_status_t *device = &status->devices[d];
        sl_gate_t *gate = &control->gates[d];

        memcpy(device->name, control->job.devices[d].name,
               sizeof(device->name));
        fill_memory(gate, control->job.devices[d].capacity_bytes, device);
        device->share_asked = gate->share_now;
        fill_ops(gate, control->params.devices->devices[d].ops, device);
    }
    status->n_devices = control->n_devices;
}

/* With the lock held. */
static void fill_status(sl_control_t *control)
{
    sl_control_status_t *status = &control->status;

    status->sequence++;
    status->time_ns = sl_control_now(control);
    status->boundary_ns = control->boundary_ns;
    status->state = sl_control_state(control);
    status->job_class = control->job_class;
    (void)snprintf(status->reason, sizeof(status->reason), "%s",
                   control->is_short ? "waits for a higher memory limit"
                                     : control->reason);
    status->step = control->step;
    status->n_steps = control->params.n_steps;
    memcpy(status->unit, control->unit, sizeof(status->unit));
    sl_minibatch_fill(&control->minibatch, status);
    status->accepted_sequence = control->accepted_sequence;
    status->applied_sequence = control->applied_sequence;
    status->applied_ns = control->applied_ns;
    status->applied_step = control->applied_step;
    memcpy(status->writer_token, control->writer_token,
           sizeof(status->writer_token));
    status->is_expired = control->is_expired;
    status->n_refused = control->n_refused;
    fill_devices(control, status);
}

/* One warning a kind of file: the job goes on, whatever the disk says. */
static void warn_once(const sl_control_t *control, const char *what,
                      sl_status_t result, int *has_warned)
{
    if (result < 0 && !*has_warned) {
        *has_warned = 1;
        sl_warn("job %s: %s is not up to date (%s); training goes on",
                control->job.name, what, sl_control_cause());
    } else if (result >= 0) {
        *has_warned = 0;
    }
}

/* The directory again, when somebody removed it: whoever looks for the job
 * must find it. Its old page stays mapped for those who have it. */
static void make_directory_again(sl_control_t *control)
{
    sl_status_t result;

    (void)pthread_mutex_lock(&control->lock);
    result = sl_job_dir_remake(control->dir, &control->job, &control->job_dir);
    if (result >= 0) {
        sl_control_pulse_renew(control);
    }
    (void)pthread_mutex_unlock(&control->lock);
    if (result >= 0) {
        sl_info("job %s: its directory was removed and is made again",
                control->job.name);
        memset(&control->control_file.seen, 0,
               sizeof(control->control_file.seen));
        sl_control_watch(control);
    }
}

static void write_status(sl_control_t *control)
{
    char *text = NULL;
    sl_status_t result;

    if (control->dir == NULL) {
        return;
    }
    if (sl_job_dir_is_gone(&control->job_dir)) {
        make_directory_again(control);
    }
    SL_TRY(result, sl_control_status_format(&control->status, &text), out);
    result = sl_atomic_write_unflushed(control->job_dir.fd, SL_FILE_STATUS,
                                       0600, text, strlen(text));
    if (result == SL_ERR_NOT_FOUND) { /* removed just now */
        make_directory_again(control);
        result = sl_atomic_write_unflushed(control->job_dir.fd, SL_FILE_STATUS,
                                           0600, text, strlen(text));
    }
out:
    free(text);
    warn_once(control, SL_FILE_STATUS, result, &control->has_warned_status);
}

/* ---- the others ---- */

static void write_prometheus(sl_control_t *control)
{
    char *text = NULL;
    sl_status_t result;

    SL_TRY(result, sl_prometheus_format(&control->job, &control->status, &text),
           out);
    result =
        sl_atomic_write_path(control->prometheus, 0644, text, strlen(text));
out:
    free(text);
    warn_once(control, control->prometheus, result,
              &control->has_warned_prometheus);
}

typedef struct antman_page {
    sl_antman_use_t uses[SL_CONTROL_MAX_DEVICES];
    double duration_us;
    uint64_t used_bytes; /* any figure of memory moves it */
    uint64_t n_minibatches;
} antman_page_t;

/* With the lock held. */
static void fill_antman(const sl_control_t *control, antman_page_t *page)
{
    int d;

    memset(page, 0, sizeof(*page));
    page->n_minibatches = control->minibatch.n;
    page->duration_us =
        sl_minibatch_mean_us(&control->minibatch, SL_ANTMAN_MEAN_STEPS);
    for (d = 0; d < control->n_devices; d++) {
        const sl_gate_t *gate = &control->gates[d];
        sl_antman_use_t *use = &page->uses[d];

        use->peak_bytes = gate->max_peak_bytes;
        use->used_bytes = gate->mem.used_bytes;
        use->held_bytes = gate->mem.held_bytes;
        use->stable_bytes = gate->mem.used_bytes;
        use->host_peak_bytes = gate->max_host_peak_bytes;
        use->host_used_bytes = gate->mem.host_used_bytes;
        use->host_pool_bytes = gate->mem.host_limit_bytes;
        page->used_bytes += use->peak_bytes + 3 * use->used_bytes +
                            5 * use->held_bytes + 7 * use->host_peak_bytes +
                            11 * use->host_used_bytes;
    }
}

static int antman_is_due(const sl_control_t *control, const antman_page_t *page,
                         uint64_t now)
{
    const double before = control->antman_duration_us;
    const double us = page->duration_us;

    if (page->n_minibatches == 0) {
        return 0;
    }
    if (control->antman_ns == 0 ||
        (before > 0.0 &&
         (us >= before * ANTMAN_JUMP || us * ANTMAN_JUMP <= before))) {
        return 1;
    }
    return now - control->antman_ns >= ANTMAN_NS &&
           (fabs(us - before) >= before * ANTMAN_CHANGE ||
            page->used_bytes != control->antman_used_bytes);
}

static void write_antman(sl_control_t *control, const antman_page_t *page,
                         uint64_t now)
{
    char *text = NULL;
    sl_status_t result;

    SL_TRY(result,
           sl_antman_status_format(control->n_devices, control->antman_keys,
                                   page->uses, page->duration_us, &text),
           out);
    result =
        sl_atomic_write_path(control->antman_status, 0644, text, strlen(text));
out:
    free(text);
    control->antman_ns = now;
    control->antman_duration_us = page->duration_us;
    control->antman_used_bytes = page->used_bytes;
    warn_once(control, control->antman_status, result,
              &control->has_warned_antman);
}

/* ---- what is due ---- */

static int status_is_due(const sl_control_t *control, uint64_t now)
{
    const uint64_t age = now - control->status_ns;

    return control->status_ns == 0 || control->is_urgent || age >= BEAT_NS ||
           (control->is_news && age >= control->params.status_ms * NS_PER_MS);
}

void sl_control_report(sl_control_t *control, int is_last)
{
    const uint64_t now = sl_clock_ns();
    antman_page_t antman;
    int is_due;

    (void)pthread_mutex_lock(&control->lock);
    is_due = is_last || status_is_due(control, now);
    if (is_due) {
        fill_status(control);
        control->is_urgent = control->is_news = 0;
        control->is_due = 1;
        control->status_ns = now;
    }
    fill_antman(control, &antman);
    (void)pthread_mutex_unlock(&control->lock);
    if (is_due) {
        write_status(control);
    }
    if (control->prometheus != NULL &&
        (is_last || (is_due && (control->prometheus_ns == 0 ||
                                now - control->prometheus_ns >= BEAT_NS)))) {
        control->prometheus_ns = now;
        write_prometheus(control);
    }
    if (control->antman_status != NULL &&
        (antman_is_due(control, &antman, now) ||
         (is_last && antman.n_minibatches > 0))) {
        write_antman(control, &antman, now);
    }
}
