/* SPDX-License-Identifier: Apache-2.0 */
/* `sluice speedup`: the pipeline beside one device, in turn, same batches and
 * micro-batches; and how near that comes to the ideal of GPipe, section 2.3:
 * M * sum(t) / (sum(t) + (M - 1) * max(t)), t the stages' times alone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/job.h"
#include "cli/options.h"

/* Three engines on the same model and batches. */
typedef struct sl_contest {
    sl_job_t *job;
    sl_device_set_t *one_device; /**< as many threads as each of the job's */
    int one_cut[2];
    sl_engine_t *pipeline; /**< K stages on the job's devices */
    sl_engine_t *single;   /**< one stage on one device */
    sl_engine_t *serial;   /**< K stages on one device: the stages' own times */
    size_t n;
    double *pipeline_us, *single_us; /**< n each; owned */
    double *stage_us; /**< n_stages * n: per micro-batch; owned */
} sl_contest_t;

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *values, size_t n)
{
    qsort(values, n, sizeof(*values), compare);
    return n % 2 == 1 ? values[n / 2]
                      : (values[n / 2 - 1] + values[n / 2]) / 2.0;
}

static sl_status_t contest_open(sl_job_t *job, size_t n, sl_contest_t *contest)
{
    sl_device_params_t device;
    sl_engine_params_t params;
    sl_status_t status;
    char spec[64];

    contest->job = job;
    contest->n = n;
    if (job->config.replicas > 1 || job->world != NULL) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "speedup: %lld replica%s and %d process%s asked; it measures "
                "one pipeline in one process",
                (long long)job->config.replicas,
                job->config.replicas == 1 ? "" : "s", sl_world_size(job->world),
                sl_world_size(job->world) == 1 ? "" : "es");
    }
    contest->pipeline_us = calloc(n, sizeof(double));
    contest->single_us = calloc(n, sizeof(double));
    contest->stage_us = calloc(n * (size_t)job->n_stages, sizeof(double));
    if (contest->pipeline_us == NULL || contest->single_us == NULL ||
        contest->stage_us == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "speedup: no host memory for %zu times", n);
    }
    /* one of the same kind */
    (void)snprintf(spec, sizeof(spec), "%.*s:1",
                   (int)strcspn(job->devices->devices[0].name, ":"),
                   job->devices->devices[0].name);
    sl_device_params_default(&device);
    device.spec = spec;
    device.n_threads = job->devices->devices[0].n_threads;
    device.memory_bytes = job->config.device_memory_bytes;
    SL_TRY(status, sl_device_set_create(&device, &contest->one_device), out);
    sl_job_engine_params(job, &params);
    SL_TRY(status, sl_engine_create(&params, &contest->pipeline), out);
    params.devices = contest->one_device;
    params.grid = NULL; /* it is of all devices */
    SL_TRY(status, sl_engine_create(&params, &contest->serial), out);
    params.n_stages = 1;
    contest->one_cut[1] = job->model->n_layers;
    params.cuts = contest->one_cut;
    status = sl_engine_create(&params, &contest->single);
out:
    return status;
}

static void contest_close(sl_contest_t *contest)
{
    sl_engine_destroy(contest->pipeline);
    sl_engine_destroy(contest->single);
    sl_engine_destroy(contest->serial);
    sl_device_set_destroy(contest->one_device);
    free(contest->pipeline_us);
    free(contest->single_us);
    free(contest->stage_us);
}

/* Compute time of each stage per micro-batch, from the latest step. */
static void read_stage_times(const sl_contest_t *contest, size_t i, int n_micro)
{
    const sl_trace_event_t *events;
    const size_t n = sl_engine_trace(contest->serial, &events);
    size_t e;

    for (e = 0; e < n; e++) {
        const sl_instruction_kind_t kind = events[e].instruction.kind;

        if (kind == SL_INSTRUCTION_FORWARD ||
            kind == SL_INSTRUCTION_RECOMPUTE ||
            kind == SL_INSTRUCTION_BACKWARD) {
            contest->stage_us[(size_t)events[e].stage * contest->n + i] +=
                (double)events[e].busy_ns * 1e-3 / n_micro;
        }
    }
}

static sl_status_t run_round(sl_contest_t *contest, const sl_batch_t *batch,
                             size_t i)
{
    sl_step_report_t report;
    sl_status_t status;
    int n_micro;

    (void)sl_split_rows(batch->rows, (int)contest->job->config.micro_batches, 0,
                        &n_micro);
    SL_TRY(status, sl_engine_step(contest->single, batch, &report), out);
    contest->single_us[i] = report.step_us;
    SL_TRY(status, sl_engine_step(contest->pipeline, batch, &report), out);
    contest->pipeline_us[i] = report.step_us;
    SL_TRY(status, sl_engine_step(contest->serial, batch, &report), out);
    read_stage_times(contest, i, n_micro);
out:
    return status;
}

static sl_status_t run_rounds(sl_contest_t *contest)
{
    const sl_loader_params_t params = {.split = SL_DATA_TRAIN,
                                       .batch_rows = contest->job->config.batch,
                                       .shuffle = 1,
                                       .seed =
                                           (uint64_t)contest->job->config.seed,
                                       .n_ahead = 2};
    sl_loader_t *loader = NULL;
    sl_batch_t batch;
    sl_status_t status;
    size_t i;

    SL_TRY(status, sl_loader_create(contest->job->dataset, &params, &loader),
           out);
    for (i = 0; i <= contest->n; i++) {
        SL_TRY(status, sl_loader_next(loader, &batch), out);
        if (i == 1) {
            /* the first round was the warm-up */
            memset(contest->stage_us, 0,
                   contest->n * (size_t)contest->job->n_stages *
                       sizeof(double));
        }
        SL_TRY(status, run_round(contest, &batch, i == 0 ? 0 : i - 1), out);
    }
out:
    sl_loader_destroy(loader);
    return status;
}

static void print_result(sl_contest_t *contest, int is_json)
{
    const int n_stages = contest->job->n_stages;
    const double single_us = median(contest->single_us, contest->n);
    const double pipeline_us = median(contest->pipeline_us, contest->n);
    double sum = 0.0, max = 0.0, ideal, n_micro_f;
    int k, n_micro;

    (void)sl_split_rows(contest->job->config.batch,
                        (int)contest->job->config.micro_batches, 0, &n_micro);
    n_micro_f = n_micro;
    for (k = 0; k < n_stages; k++) {
        const double us =
            median(&contest->stage_us[(size_t)k * contest->n], contest->n);

        sum += us;
        max = us > max ? us : max;
    }
    ideal = n_micro_f * sum / (sum + (n_micro_f - 1.0) * max);
    if (is_json) {
        (void)printf("{\"stages\": %d, \"micro_batches\": %d, "
                     "\"single_ms\": %.4f, \"pipeline_ms\": %.4f, "
                     "\"speedup\": %.4f, \"ideal\": %.4f, "
                     "\"of_ideal\": %.4f, \"rounds\": %zu}\n",
                     n_stages, n_micro, single_us * 1e-3, pipeline_us * 1e-3,
                     single_us / pipeline_us, ideal,
                     single_us / pipeline_us / ideal, contest->n);
        return;
    }
    (void)printf("one device %.1f ms a step, %d stages on %d devices %.1f ms "
                 "(medians of %zu, in turn)\n",
                 single_us * 1e-3, n_stages, contest->job->devices->n_devices,
                 pipeline_us * 1e-3, contest->n);
    (void)printf("speed-up %.2f of an ideal %.2f (%d micro-batches): %.1f %%\n",
                 single_us / pipeline_us, ideal, n_micro,
                 100.0 * single_us / pipeline_us / ideal);
}

int sl_command_speedup(int argc, char **argv)
{
    int quiet_status;
    sl_options_t options;
    sl_job_t job = {0};
    sl_contest_t contest = {0};
    sl_status_t status;

    SL_TRY(status,
           sl_options_parse("speedup",
                            "Time training steps of the pipeline and of one "
                            "device, in turn, on the same batches.",
                            SL_OPTIONS_REPEATS | SL_OPTIONS_JSON, argc, argv,
                            &options),
           out);
    SL_TRY(status,
           sl_job_open(options.config, (const char *const *)options.overrides,
                       options.n_overrides, &job),
           out);
    SL_TRY(status, contest_open(&job, (size_t)options.repeats, &contest), out);
    SL_TRY(status, run_rounds(&contest), out);
    print_result(&contest, options.is_json);
out:
    contest_close(&contest);
    quiet_status = sl_job_tell_failure(&job, &status);
    sl_job_close(&job);
    sl_options_cleanup(&options);
    return quiet_status != 0 ? quiet_status : sl_exit_status(status);
}
