/* SPDX-License-Identifier: Apache-2.0 */
/* `sluice simulate --scale`: the best grid for each number of devices. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/parse.h"
#include "cli/simulate.h"
#include "cli/table.h"

enum {
    MAX_POINTS = 64,
    MAX_SIZE_ROWS = 256
};

typedef struct scale {
    sl_simulation_t *simulation;
    int n_points;
    int devices[MAX_POINTS];
    double base_rows_per_s; /* of the first device alone, in this table */
    json_t *json;           /* owned; NULL for text */
} scale_t;

static sl_status_t read_points(scale_t *scale)
{
    const char *text = scale->simulation->options->scale;
    const int n_devices = scale->simulation->cluster.n_devices;
    char word[32];
    int64_t value;
    sl_status_t status;

    for (;;) {
        const size_t n = strcspn(text, ",");

        if (n >= sizeof(word) || scale->n_points == MAX_POINTS) {
            SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                    "simulate: --scale is a list of at most %d numbers of "
                    "devices, such as 1,2,4,8",
                    MAX_POINTS);
        }
        (void)snprintf(word, sizeof(word), "%.*s", (int)n, text);
        SL_TRY(status, sl_parse_int("--scale", word, 1, n_devices, &value),
               out);
        scale->devices[scale->n_points++] = (int)value;
        if (text[n] == '\0') {
            return SL_OK;
        }
        text += n + 1;
    }
out:
    return status;
}

/* The config's size, and powers of two as far as their costs are as sure. */
static sl_status_t add_sizes(scale_t *scale)
{
    const sl_job_t *job = &scale->simulation->job;
    const int64_t most =
        job->config.batch < MAX_SIZE_ROWS ? job->config.batch : MAX_SIZE_ROWS;
    sl_status_t status;
    int64_t rows;

    SL_TRY(status,
           sl_simulation_add_size(scale->simulation, job->micro_rows, 0), out);
    for (rows = 1; rows <= most; rows *= 2) {
        SL_TRY(status, sl_simulation_add_size(scale->simulation, rows, 1), out);
    }
out:
    return status;
}

/* Strong: the batch as it is. Weak: what the most devices would have of it
 * each, so that both agree there. */
static int64_t batch_rows(const scale_t *scale, int n_devices, int is_weak)
{
    const int64_t batch = scale->simulation->job.config.batch;
    int i, n_most = 1;

    for (i = 0; i < scale->n_points; i++) {
        n_most = scale->devices[i] > n_most ? scale->devices[i] : n_most;
    }
    return is_weak ? (batch * n_devices + n_most - 1) / n_most : batch;
}

static sl_status_t find_best(const scale_t *scale, int n_devices, int is_weak,
                             sl_search_choice_t *choice)
{
    const sl_job_t *job = &scale->simulation->job;
    const sl_search_params_t params = {
        .base = scale->simulation->base,
        .policy = sl_part_find(job->config.policy),
        .sizes = scale->simulation->sizes,
        .n_sizes = scale->simulation->n_sizes,
        .batch_rows = batch_rows(scale, n_devices, is_weak),
        .n_devices = n_devices};

    return sl_search(&params, choice);
}

/* How much faster the devices are than as many of the first would be. */
static double relative_speed(const scale_t *scale, int n_devices)
{
    const sl_cluster_t *cluster = &scale->simulation->cluster;
    double sum = 0.0;
    int d, host;

    for (d = 0; d < n_devices; d++) {
        sum += sl_cluster_device(cluster, d, &host)->speed;
    }
    return sum / cluster->groups[0].speed;
}

enum {
    WIDE = 107 /* columns of a whole line */
};

static int is_narrow(void)
{
    const int width = sl_terminal_width();

    return width > 0 && width < WIDE;
}

static void print_head(const scale_t *scale, int is_weak)
{
    (void)printf(
        "\n%s scaling: %lld samples a step%s\n", is_weak ? "weak" : "strong",
        (long long)batch_rows(scale, 1, is_weak), is_weak ? " and device" : "");
    if (is_narrow()) {
        (void)printf("%5s %4s %3s %4s %5s %9s %9s %6s %6s %6s %6s %6s\n",
                     "count", "R", "K", "M", "rows", "step ms", "samples/s",
                     "faster", "effic.", "bubble", "expos.", "memory");
        return;
    }
    (void)printf("%7s %5s %5s %5s %5s %11s %13s %9s %10s %7s %8s %11s\n",
                 "devices", "R", "K", "M", "rows", "step ms", "samples/s",
                 "speed-up", "efficiency", "bubble", "exposed", "memory");
}

static void print_text(int n_devices, const sl_search_choice_t *choice,
                       double speed_up, double efficiency)
{
    const double exposed =
        100.0 * (1.0 - choice->free_us / choice->result.step_us);
    char memory[32];

    if (choice->n_simulated == 0) {
        (void)printf("%7d  does not fit: %d grids tried\n", n_devices,
                     choice->n_tried);
        return;
    }
    sl_format_bytes(choice->memory_bytes, memory, sizeof(memory));
    if (is_narrow()) {
        (void)printf("%5d %4d %3d %4d %5lld %9.2f %9.1f %6.1f %5.1f%% %5.1f%% "
                     "%5.1f%% %5.1fG\n",
                     n_devices, choice->n_replicas, choice->n_stages,
                     choice->n_micro_batches, (long long)choice->rows,
                     choice->result.step_us * 1e-3, choice->rows_per_s,
                     speed_up, efficiency * 100.0,
                     choice->result.bubble * 100.0, exposed,
                     (double)choice->memory_bytes / (double)(1 << 30));
        (void)fflush(stdout);
        return;
    }
    (void)printf("%7d %5d %5d %5d %5lld %11.3f %13.1f %9.2f %8.1f %% "
                 "%5.1f %% %6.1f %% %11s\n",
                 n_devices, choice->n_replicas, choice->n_stages,
                 choice->n_micro_batches, (long long)choice->rows,
                 choice->result.step_us * 1e-3, choice->rows_per_s, speed_up,
                 efficiency * 100.0, choice->result.bubble * 100.0, exposed,
                 memory);
    (void)fflush(stdout);
}

static json_t *json_point(int n_devices, const sl_search_choice_t *choice,
                          double speed_up, double efficiency)
{
    return json_pack(
        "{s:i, s:i, s:i, s:i, s:i, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:I}",
        "devices", n_devices, "fits", choice->n_simulated > 0, "replicas",
        choice->n_replicas, "stages", choice->n_stages, "micro_batches",
        choice->n_micro_batches, "micro_rows", (json_int_t)choice->rows,
        "step_ms", choice->result.step_us * 1e-3, "free_step_ms",
        choice->free_us * 1e-3, "samples_per_s", choice->rows_per_s, "speed_up",
        speed_up, "efficiency", efficiency, "bubble", choice->result.bubble,
        "memory_bytes", (json_int_t)choice->memory_bytes);
}

/* The first device alone is what all are compared with. */
static sl_status_t run_base(scale_t *scale, int is_weak)
{
    sl_cluster_group_t *group = &scale->simulation->cluster.groups[0];
    const uint64_t memory_bytes = group->memory_bytes;
    sl_search_choice_t choice;
    sl_status_t status;

    SL_TRY(status, find_best(scale, 1, is_weak, &choice), out);
    if (choice.n_simulated == 0) {
        /* its memory is too small: as if it had enough */
        group->memory_bytes = 0;
        status = find_best(scale, 1, is_weak, &choice);
        group->memory_bytes = memory_bytes;
    }
    scale->base_rows_per_s = choice.rows_per_s;
out:
    return status;
}

static sl_status_t run_table(scale_t *scale, int is_weak)
{
    json_t *points = scale->json == NULL ? NULL : json_array();
    sl_search_choice_t choice;
    sl_status_t status = SL_OK;
    int i;

    SL_TRY(status, run_base(scale, is_weak), out);
    if (points == NULL) {
        print_head(scale, is_weak);
    }
    for (i = 0; i < scale->n_points; i++) {
        const int n = scale->devices[i];
        double speed_up, efficiency;

        SL_TRY(status, find_best(scale, n, is_weak, &choice), out);
        speed_up = choice.rows_per_s / scale->base_rows_per_s;
        efficiency = speed_up / relative_speed(scale, n);
        if (points == NULL) {
            print_text(n, &choice, speed_up, efficiency);
        } else {
            (void)json_array_append_new(
                points, json_point(n, &choice, speed_up, efficiency));
        }
    }
    if (points != NULL) {
        (void)json_object_set(scale->json, is_weak ? "weak" : "strong", points);
    }
out:
    json_decref(points);
    return status;
}

static void print_title(const scale_t *scale)
{
    const sl_simulation_t *simulation = scale->simulation;
    int i;

    (void)printf("%s on %s: %d devices in %d hosts; %s%s\n"
                 "costs of layers: %s; devices, links and networks: as "
                 "described\nrows of a micro-batch that may be chosen:",
                 simulation->job.config.name, simulation->cluster.name,
                 simulation->cluster.n_devices, simulation->cluster.n_hosts,
                 simulation->base.schedule == SL_SCHEDULE_GPIPE ? "gpipe"
                                                                : "1f1b",
                 simulation->base.is_sharded ? ", sharded update" : "",
                 simulation->costs[0].is_measured ? "measured" : "analytic");
    for (i = 0; i < simulation->n_sizes; i++) {
        (void)printf(" %lld", (long long)simulation->sizes[i].rows);
    }
    (void)printf("\n");
}

static sl_status_t print_json(const scale_t *scale)
{
    sl_status_t status = SL_OK;

    (void)json_object_set_new(
        scale->json, "is_measured",
        json_boolean(scale->simulation->costs[0].is_measured));
    if (json_dumpf(scale->json, stdout, JSON_INDENT(2)) != 0) {
        SL_FAIL(status, SL_ERR_IO, out, "simulate: cannot write JSON");
    }
    (void)printf("\n");
out:
    return status;
}

sl_status_t sl_simulation_scale(sl_simulation_t *simulation)
{
    scale_t scale = {.simulation = simulation};
    sl_status_t status;

    SL_TRY(status, read_points(&scale), out);
    SL_TRY(status, add_sizes(&scale), out);
    if (simulation->options->is_json) {
        scale.json = json_object();
    } else {
        print_title(&scale);
    }
    SL_TRY(status, run_table(&scale, 0), out);
    SL_TRY(status, run_table(&scale, 1), out);
    if (scale.json != NULL) {
        status = print_json(&scale);
    }
out:
    json_decref(scale.json);
    return status;
}
