/* SPDX-License-Identifier: Apache-2.0 */
/* One grid of `sluice simulate`, as text, JSON and picture. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/parse.h"
#include "cli/simulate.h"
#include "engine/report/timeline_svg.h"

enum {
    MAX_ROWS = 64 /* of a timeline */
};

/* A grid, its step, and the step without the time of transfers. */
typedef struct sl_sim_report {
    sl_simulation_t *simulation;
    sl_sim_params_t params;
    int64_t rows;
    int *cuts;            /* owned */
    unsigned char *keeps; /* owned */
    sl_sim_result_t result;
    double free_us;
} sl_sim_report_t;

static const char *schedule_name(const sl_sim_params_t *params)
{
    return params->schedule == SL_SCHEDULE_GPIPE ? "gpipe" : "1f1b";
}

/* The micro-batches of all replicas are as large as the split makes them. */
static sl_status_t find_grid(sl_sim_report_t *report)
{
    sl_simulation_t *simulation = report->simulation;
    const sl_config_t *config = &simulation->job.config;
    const int64_t n_replicas = config->replicas;
    int n_all;
    sl_status_t status;

    if (n_replicas * config->micro_batches > config->batch) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "simulate: %lld replicas of %lld micro-batches need as many "
                "rows; the batch has %lld: raise train.batch",
                (long long)n_replicas, (long long)config->micro_batches,
                (long long)config->batch);
    }
    report->rows = sl_split_rows(
        config->batch, (int)(n_replicas * config->micro_batches), 0, &n_all);
    SL_TRY(status, sl_simulation_add_size(simulation, report->rows, 0), out);
    report->params = simulation->base;
    report->params.costs = &simulation->costs[0];
    report->params.n_replicas = (int)n_replicas;
    report->params.n_stages = simulation->job.n_stages;
    report->params.n_micro_batches = (int)config->micro_batches;
    report->params.has_trace = simulation->options->timeline != NULL;
out:
    return status;
}

static sl_status_t find_cuts(sl_sim_report_t *report)
{
    const sl_job_t *job = &report->simulation->job;
    sl_sim_params_t *params = &report->params;
    sl_status_t status;
    int k;

    report->cuts = calloc((size_t)params->n_stages + 1, sizeof(int));
    report->keeps = calloc((size_t)params->costs->n_layers + 1, 1);
    if (report->cuts == NULL || report->keeps == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "simulate: no host memory for %d stages", params->n_stages);
    }
    params->cuts = report->cuts;
    if (job->config.cuts != NULL) {
        for (k = 0; k <= params->n_stages; k++) {
            report->cuts[k] = job->cuts[k];
        }
    } else {
        SL_TRY(status,
               sl_search_cuts(sl_part_find(job->config.policy), params,
                              report->cuts),
               out);
    }
    if (params->recompute == SL_RECOMPUTE_AUTO) {
        sl_sim_choose_keeps(params, report->keeps);
        params->keeps = report->keeps;
    }
    return SL_OK;
out:
    return status;
}

static sl_status_t simulate(sl_sim_report_t *report)
{
    sl_sim_result_t result;
    sl_status_t status;

    SL_TRY(status, sl_simulate(&report->params, &report->result), out);
    report->params.has_free_links = 1;
    SL_TRY(status, sl_simulate(&report->params, &result), out);
    report->params.has_free_links = 0;
    report->free_us = result.step_us;
    sl_sim_result_cleanup(&result);
out:
    return status;
}

/* ---- text ---- */

static void print_stages(const sl_sim_report_t *report)
{
    const sl_sim_result_t *result = &report->result;
    char text[32];
    int k;

    (void)printf("%5s  %-11s %10s %10s %8s %12s\n", "stage", "layers",
                 "compute ms", "copy ms", "bubble", "memory");
    for (k = 0; k < result->n_stages; k++) {
        const sl_sim_stage_t *stage = &result->stages[k];

        sl_format_bytes(stage->memory_bytes, text, sizeof(text));
        (void)printf("%5d  %5d-%-5d %10.3f %10.3f %6.1f %% %12s%s\n", k,
                     report->cuts[k], report->cuts[k + 1] - 1,
                     stage->compute_us * 1e-3, stage->copy_us * 1e-3,
                     stage->bubble * 100.0, text,
                     stage->fits ? "" : "  does not fit");
    }
}

static void print_path(const sl_sim_path_t *path)
{
    const char *comma = "";
    int p;

    (void)printf("critical path:");
    for (p = 0; p < SL_SIM_N_PARTS; p++) {
        if (path->part_us[p] > 0.0) {
            (void)printf("%s %s %.3f ms", comma,
                         sl_sim_part_name((sl_sim_part_t)p),
                         path->part_us[p] * 1e-3);
            comma = ",";
        }
    }
    (void)printf("; %d transfers\n", path->n_hops);
}

static void print_text(const sl_sim_report_t *report)
{
    const sl_simulation_t *simulation = report->simulation;
    const sl_sim_params_t *params = &report->params;
    const sl_sim_result_t *result = &report->result;
    const double exposed_us = result->step_us - report->free_us;
    char near[32], far[32];

    (void)printf("%s on %s: %d replica%s x %d stage%s on %d of %d devices, "
                 "%d micro-batch%s of %lld rows each, %s\n"
                 "costs of layers: %s; devices, links and networks: as "
                 "described\n\n",
                 simulation->job.config.name, simulation->cluster.name,
                 params->n_replicas, params->n_replicas == 1 ? "" : "s",
                 params->n_stages, params->n_stages == 1 ? "" : "s",
                 result->n_devices, simulation->cluster.n_devices,
                 params->n_micro_batches,
                 params->n_micro_batches == 1 ? "" : "es",
                 (long long)report->rows, schedule_name(params),
                 params->costs->is_measured ? "measured" : "analytic");
    print_stages(report);
    (void)printf(
        "\nstep %.3f ms, %.1f samples/s; one device %.3f ms: speed-up %.2f, "
        "efficiency %.1f %%\n",
        result->step_us * 1e-3,
        (double)simulation->job.config.batch / result->step_us * 1e6,
        result->one_device_us * 1e-3, result->one_device_us / result->step_us,
        result->efficiency * 100.0);
    (void)printf("bubble %.1f %%; transfers lengthen the step by %.3f ms "
                 "(%.1f %%)\n",
                 result->bubble * 100.0, exposed_us * 1e-3,
                 100.0 * exposed_us / result->step_us);
    print_path(&result->path);
    sl_format_bytes((uint64_t)fmin(result->near_bytes, 1e18), near,
                    sizeof(near));
    sl_format_bytes((uint64_t)fmin(result->far_bytes, 1e18), far, sizeof(far));
    (void)printf("messages %llu: %s within hosts, %s between hosts\n",
                 (unsigned long long)result->n_messages, near, far);
}

/* ---- JSON ---- */

static json_t *json_stages(const sl_sim_report_t *report)
{
    json_t *stages = json_array();
    int k;

    for (k = 0; k < report->result.n_stages; k++) {
        const sl_sim_stage_t *stage = &report->result.stages[k];

        (void)json_array_append_new(
            stages,
            json_pack("{s:i, s:i, s:f, s:f, s:f, s:I, s:b}", "first_layer",
                      report->cuts[k], "last_layer", report->cuts[k + 1] - 1,
                      "compute_ms", stage->compute_us * 1e-3, "copy_ms",
                      stage->copy_us * 1e-3, "bubble", stage->bubble,
                      "memory_bytes", (json_int_t)stage->memory_bytes, "fits",
                      stage->fits));
    }
    return stages;
}

static json_t *json_path(const sl_sim_path_t *path)
{
    json_t *object = json_object();
    int p;

    for (p = 0; p < SL_SIM_N_PARTS; p++) {
        (void)json_object_set_new(object, sl_sim_part_name((sl_sim_part_t)p),
                                  json_real(path->part_us[p] * 1e-3));
    }
    return object;
}

static sl_status_t print_json(const sl_sim_report_t *report)
{
    const sl_sim_params_t *params = &report->params;
    const sl_sim_result_t *result = &report->result;
    sl_status_t status = SL_OK;
    json_t *root = json_pack(
        "{s:i, s:i, s:i, s:I, s:s, s:b, s:i, s:f, s:f, s:f, s:f, s:f, s:f, "
        "s:i, s:I, s:f, s:f, s:b, s:o, s:o}",
        "replicas", params->n_replicas, "stages", params->n_stages,
        "micro_batches", params->n_micro_batches, "micro_rows",
        (json_int_t)report->rows, "schedule", schedule_name(params),
        "is_measured", params->costs->is_measured, "devices", result->n_devices,
        "step_ms", result->step_us * 1e-3, "free_step_ms",
        report->free_us * 1e-3, "one_device_ms", result->one_device_us * 1e-3,
        "samples_per_s",
        (double)report->simulation->job.config.batch / result->step_us * 1e6,
        "efficiency", result->efficiency, "bubble", result->bubble,
        "path_transfers", result->path.n_hops, "messages",
        (json_int_t)result->n_messages, "near_bytes", result->near_bytes,
        "far_bytes", result->far_bytes, "fits", result->fits,
        "critical_path_ms", json_path(&result->path), "per_stage",
        json_stages(report));

    if (root == NULL || json_dumpf(root, stdout, JSON_INDENT(2)) != 0) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "simulate: cannot write JSON");
    }
    (void)printf("\n");
out:
    json_decref(root);
    return status;
}

/* ---- picture ---- */

static sl_status_t draw(const sl_sim_report_t *report)
{
    const sl_sim_params_t *params = &report->params;
    const int n = params->n_replicas * params->n_stages;
    const sl_timeline_t timeline = {.events = report->result.trace,
                                    .n_events = report->result.n_trace,
                                    .n_stages = n,
                                    .n_micro_batches = params->n_micro_batches,
                                    .schedule = schedule_name(params),
                                    .bubble = NAN};
    sl_status_t status;

    if (n > MAX_ROWS) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "simulate: a timeline has a row a cell; %d x %d are more than "
                "%d",
                params->n_replicas, params->n_stages, MAX_ROWS);
    }
    status =
        sl_timeline_svg_write(report->simulation->options->timeline, &timeline);
out:
    return status;
}

sl_status_t sl_simulation_run(sl_simulation_t *simulation)
{
    sl_sim_report_t report = {.simulation = simulation};
    sl_status_t status;

    SL_TRY(status, find_grid(&report), out);
    SL_TRY(status, find_cuts(&report), out);
    SL_TRY(status, simulate(&report), out);
    if (simulation->options->is_json) {
        SL_TRY(status, print_json(&report), out);
    } else {
        print_text(&report);
    }
    if (simulation->options->timeline != NULL) {
        status = draw(&report);
    }
out:
    sl_sim_result_cleanup(&report.result);
    free(report.cuts);
    free(report.keeps);
    return status;
}
