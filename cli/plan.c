/* SPDX-License-Identifier: Apache-2.0 */
/* `sluice plan`: the partition as a table, and the memory it needs. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/parse.h"
#include "cli/commands.h"
#include "cli/job.h"
#include "cli/options.h"
#include "cli/table.h"
#include "engine/grid.h"

/* Sums over the layers of one stage, for one micro-batch. */
typedef struct sl_stage_sums {
    double ms, flops;
    size_t param_bytes, kept_bytes, boundary_bytes;
} sl_stage_sums_t;

static sl_stage_sums_t sum_stage(const sl_job_t *job, int k)
{
    const sl_part_problem_t problem = sl_job_problem(job);
    sl_stage_sums_t sums = {0};
    int l;

    sums.ms =
        sl_part_stage_us(&problem, job->cuts[k], job->cuts[k + 1], k) * 1e-3;
    for (l = job->cuts[k]; l < job->cuts[k + 1]; l++) {
        const sl_part_layer_t *layer = &job->costs.layers[l];

        sums.flops += layer->forward_flops + layer->backward_flops;
        sums.param_bytes += layer->param_bytes;
        sums.kept_bytes += layer->kept_bytes;
    }
    if (k + 1 < job->n_stages) {
        sums.boundary_bytes = job->costs.layers[job->cuts[k + 1]].cut_bytes;
    }
    return sums;
}

static void fill_row(const sl_job_t *job, int k, sl_table_t *table)
{
    const sl_stage_sums_t sums = sum_stage(job, k);
    const int first = job->cuts[k], last = job->cuts[k + 1] - 1;

    sl_table_row(table);
    sl_table_cell(table, "%d", k);
    sl_table_cell(table, "%4d-%-4d", first, last);
    sl_table_cell(table, "%.3f", sums.ms);
    sl_table_cell(table, "%.3f", sums.flops * 1e-9);
    sl_table_bytes(table, sums.param_bytes);
    sl_table_bytes(table, sums.kept_bytes);
    sl_table_bytes(table, sums.boundary_bytes);
    sl_table_cell(table, "%s .. %s", job->model->layers[first]->name,
                  job->model->layers[last]->name);
}

static sl_status_t print_stages(const sl_job_t *job)
{
    static const sl_table_column_t columns[] = {
        {"stage", 5, 0, 0},       {"layers", -9, 2, 0},
        {"ms", 10, 1, 0},         {"GFLOP", 9, 1, 0},
        {"parameters", 12, 1, 0}, {"activations", 12, 1, 0},
        {"boundary", 12, 1, 0},   {"from .. to", -1, 2, 0}};
    sl_table_t *table =
        sl_table_create(columns, (int)(sizeof(columns) / sizeof(*columns)));
    int k;

    for (k = 0; k < job->n_stages; k++) {
        fill_row(job, k, table);
    }
    return sl_table_print(table);
}

/* ---- memory ---- */

enum {
    ADVICE_BYTES = 512
};

/* What the rehearsal said; `advice` is empty when it fits. */
typedef struct sl_plan_memory {
    sl_memory_plan_t plan;
    char advice[ADVICE_BYTES];
} sl_plan_memory_t;

/* How the cuts came to fit, when the fastest do not. */
static void print_fit(const sl_job_t *job)
{
    const sl_fit_t *fit = &job->fit;
    const sl_grid_slot_t *slot = &job->grid->slots[fit->slot];
    char need[32], limit[32], name[64];

    if (job->world == NULL) {
        (void)snprintf(name, sizeof(name), "%s", slot->name);
    } else {
        (void)snprintf(name, sizeof(name), "%d/%s", slot->rank, slot->name);
    }
    if (fit->n_rounds > 1 && fit->fits) {
        (void)printf("the fastest cuts do not fit; these are the fastest of "
                     "those that do, rehearsed %d times\n",
                     fit->n_rounds);
    } else if (fit->n_rounds > 1) {
        sl_format_bytes(fit->need_bytes, need, sizeof(need));
        sl_format_bytes(fit->limit_bytes, limit, sizeof(limit));
        (void)printf("no cuts were found that fit: the ones that need least "
                     "take %s on %s, which has %s\n",
                     need, name, limit);
    }
}

static sl_status_t rehearse(const sl_job_t *job, sl_plan_memory_t *memory)
{
    sl_engine_params_t params;
    sl_status_t status;

    sl_job_engine_params(job, &params);
    SL_TRY(status, sl_engine_rehearse(&params, &memory->plan), out);
    if (!memory->plan.fits) {
        sl_engine_advise(&params, memory->advice, sizeof(memory->advice));
    }
out:
    return status;
}

static int count_recomputed(const sl_memory_plan_t *plan)
{
    int l, n = 0;

    for (l = 0; plan->keeps != NULL && l < plan->n_layers; l++) {
        n += !plan->keeps[l];
    }
    return n;
}

static sl_status_t print_devices(const sl_memory_plan_t *plan)
{
    sl_table_column_t columns[SL_MEM_N_CLASSES + 4] = {{"memory", -9, 0, 0}};
    const char *const titles[] = {"peak", "held", "limit"};
    sl_table_t *table;
    int d, c, n = 1;

    for (c = 0; c < SL_MEM_N_CLASSES + 3; c++) {
        columns[n++] = (sl_table_column_t){
            c < SL_MEM_N_CLASSES ? sl_mem_class_name((sl_mem_class_t)c)
                                 : titles[c - SL_MEM_N_CLASSES],
            12, 1, 0};
    }
    table = sl_table_create(columns, n);
    for (d = 0; d < plan->n_devices; d++) {
        const sl_memory_need_t *need = &plan->devices[d];

        sl_table_row(table);
        sl_table_cell(table, "%s", need->name);
        for (c = 0; c < SL_MEM_N_CLASSES; c++) {
            sl_table_bytes(table, need->class_peak_bytes[c]);
        }
        sl_table_bytes(table, need->peak_bytes);
        sl_table_bytes(table, need->held_bytes);
        if (need->limit_bytes == SIZE_MAX) {
            sl_table_cell(table, "none");
        } else {
            sl_table_bytes(table, need->limit_bytes);
        }
        if (!need->fits) {
            sl_table_note(table, "does not fit");
        }
    }
    return sl_table_print(table);
}

static sl_status_t print_memory(const sl_plan_memory_t *memory)
{
    const sl_memory_plan_t *plan = &memory->plan;
    sl_status_t status;

    (void)printf("\n");
    SL_TRY(status, print_devices(plan), out);
    if (plan->keeps != NULL) {
        (void)printf("recompute auto: %d of %d layers are recomputed\n",
                     count_recomputed(plan), plan->n_layers);
    }
    (void)printf("%s%s%s\n", plan->fits ? "fits" : "does not fit",
                 memory->advice[0] == '\0' ? "" : ": ", memory->advice);
out:
    return status;
}

static json_t *json_memory(const sl_plan_memory_t *memory)
{
    const sl_memory_plan_t *plan = &memory->plan;
    json_t *devices = json_array();
    int d, c;

    for (d = 0; d < plan->n_devices; d++) {
        const sl_memory_need_t *need = &plan->devices[d];
        json_t *device = json_pack(
            "{s:s, s:b, s:I, s:I, s:I}", "name", need->name, "fits", need->fits,
            "peak_bytes", (json_int_t)need->peak_bytes, "held_bytes",
            (json_int_t)need->held_bytes, "limit_bytes",
            need->limit_bytes > INT64_MAX ? (json_int_t)INT64_MAX
                                          : (json_int_t)need->limit_bytes);
        json_t *classes = json_object();

        for (c = 0; c < SL_MEM_N_CLASSES; c++) {
            (void)json_object_set_new(
                classes, sl_mem_class_name((sl_mem_class_t)c),
                json_integer((json_int_t)need->class_peak_bytes[c]));
        }
        (void)json_object_set_new(device, "class_peak_bytes", classes);
        (void)json_array_append_new(devices, device);
    }
    return json_pack("{s:b, s:i, s:s, s:o}", "fits", plan->fits,
                     "recomputed_layers", count_recomputed(plan), "advice",
                     memory->advice, "devices", devices);
}

/* ---- all of it ---- */

/* Which device has which stage of which replica. */
static sl_status_t print_grid(const sl_job_t *job)
{
    const int n_replicas = (int)job->config.replicas;
    char *text = NULL;
    sl_status_t status = SL_OK;
    int n;

    n = sl_grid_format(job->grid, n_replicas, job->n_stages, NULL, 0);
    text = malloc((size_t)n + 1);
    if (text == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "plan: no host memory for the grid");
    }
    (void)sl_grid_format(job->grid, n_replicas, job->n_stages, text,
                         (size_t)n + 1);
    (void)fputs(text, stdout);
out:
    free(text);
    return status;
}

static sl_status_t print_table(const sl_job_t *job)
{
    const sl_part_problem_t problem = sl_job_problem(job);
    sl_part_prediction_t prediction;
    sl_status_t status;
    int n_micro;

    (void)sl_split_rows(job->config.batch, (int)job->config.micro_batches, 0,
                        &n_micro);
    sl_part_predict(&problem, job->cuts, n_micro, &prediction);
    (void)printf("%s: %lld parameters, %d layers, %d stage%s, %lld samples in "
                 "%d micro-batch%s of at most %lld\n",
                 job->model->name, (long long)sl_model_n_params(job->model),
                 job->model->n_layers, job->n_stages,
                 job->n_stages == 1 ? "" : "s", (long long)job->config.batch,
                 n_micro, n_micro == 1 ? "" : "es", (long long)job->micro_rows);
    (void)printf("costs: %s, policy: %s; per micro-batch, forward and backward"
                 "\n\n",
                 job->costs.is_measured ? "measured" : "analytic",
                 job->config.cuts != NULL ? "cuts given" : job->config.policy);
    SL_TRY(status, print_stages(job), out);
    (void)printf("\npredicted step %.3f ms, bubble %.1f %%\n",
                 prediction.step_us * 1e-3, prediction.bubble * 100.0);
out:
    return status;
}

static sl_status_t print_json(const sl_job_t *job,
                              const sl_plan_memory_t *memory)
{
    const sl_part_problem_t problem = sl_job_problem(job);
    sl_part_prediction_t prediction;
    json_t *stages = json_array(), *root = NULL;
    sl_status_t status = SL_OK;
    int n_micro, k;

    (void)sl_split_rows(job->config.batch, (int)job->config.micro_batches, 0,
                        &n_micro);
    sl_part_predict(&problem, job->cuts, n_micro, &prediction);
    for (k = 0; k < job->n_stages; k++) {
        const sl_stage_sums_t sums = sum_stage(job, k);

        (void)json_array_append_new(
            stages,
            json_pack("{s:i, s:i, s:f, s:f, s:I, s:I, s:I}", "first_layer",
                      job->cuts[k], "last_layer", job->cuts[k + 1] - 1, "ms",
                      sums.ms, "flops", sums.flops, "param_bytes",
                      (json_int_t)sums.param_bytes, "activation_bytes",
                      (json_int_t)sums.kept_bytes, "boundary_bytes",
                      (json_int_t)sums.boundary_bytes));
    }
    root = json_pack("{s:s, s:I, s:i, s:b, s:f, s:f, s:i, s:O, s:o}", "model",
                     job->model->name, "parameters",
                     (json_int_t)sl_model_n_params(job->model), "micro_batches",
                     n_micro, "is_measured", job->costs.is_measured, "step_ms",
                     prediction.step_us * 1e-3, "bubble", prediction.bubble,
                     "rehearsed_cuts", job->fit.n_rounds, "stages", stages,
                     "memory", json_memory(memory));
    if (root == NULL || json_dumpf(root, stdout, JSON_INDENT(2)) != 0) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "plan: cannot write JSON");
    }
    (void)printf("\n");
out:
    json_decref(root);
    json_decref(stages);
    return status;
}

int sl_command_plan(int argc, char **argv)
{
    int quiet_status;
    sl_options_t options;
    sl_plan_memory_t memory = {0};
    sl_job_t job = {0};
    sl_status_t status;

    SL_TRY(status,
           sl_options_parse("plan",
                            "Print how the model is cut into stages, what each "
                            "costs, the predicted step time, the memory each "
                            "device needs and what would make it fit. Nothing "
                            "is run.",
                            SL_OPTIONS_JSON, argc, argv, &options),
           out);
    SL_TRY(status,
           sl_job_open(options.config, (const char *const *)options.overrides,
                       options.n_overrides, &job),
           out);
    SL_TRY(status, rehearse(&job, &memory), out);
    if (!sl_job_is_first(&job)) {
        goto out;
    }
    if (options.is_json) {
        status = print_json(&job, &memory);
    } else {
        SL_TRY(status, print_table(&job), out);
        SL_TRY(status, print_memory(&memory), out);
        print_fit(&job);
        status = job.config.replicas > 1 || job.world != NULL ? print_grid(&job)
                                                              : SL_OK;
    }
out:
    quiet_status = sl_job_tell_failure(&job, &status);
    sl_memory_plan_cleanup(&memory.plan);
    sl_job_close(&job);
    sl_options_cleanup(&options);
    return quiet_status != 0 ? quiet_status : sl_exit_status(status);
}
