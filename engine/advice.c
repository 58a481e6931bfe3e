/* SPDX-License-Identifier: Apache-2.0 */
/* What would make a step fit: other settings are rehearsed, the smallest
 * change first. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/rehearse.h"

enum {
    MAX_STAGES_TRIED = 64
};

#define MIB ((size_t)1 << 20)

/* What is said, one thing after the other. */
typedef struct sl_advice {
    char *text;
    size_t bytes, used;
} sl_advice_t;

static void say(sl_advice_t *advice, const char *what)
{
    const int n = snprintf(
        advice->text + advice->used, advice->bytes - advice->used, "%s%s",
        advice->used == 0 ? "it would fit with " : ", or with ", what);

    if (n > 0 && (size_t)n < advice->bytes - advice->used) {
        advice->used += (size_t)n;
    } else {
        advice->text[advice->used] = '\0';
    }
}

/* A rehearsal that cannot be made gives no advice. */
static int fits(const sl_engine_params_t *params)
{
    sl_rehearsal_t *rehearsal = NULL;
    int d, all = 0;

    if (sl_rehearsal_open(params, &rehearsal) >= 0 &&
        sl_rehearsal_run(rehearsal) >= 0) {
        all = 1;
        for (d = 0; d < params->devices->n_devices; d++) {
            all = all && sl_rehearsal_memory(rehearsal, d)->fits;
        }
    }
    sl_rehearsal_close(rehearsal);
    return all;
}

/* Without `keeps`, auto is full: the least memory it can come down to. */
static int is_least(const sl_engine_params_t *params)
{
    return params->recompute == SL_RECOMPUTE_FULL ||
           params->recompute == SL_RECOMPUTE_AUTO;
}

static sl_engine_params_t recomputed(const sl_engine_params_t *params)
{
    sl_engine_params_t other = *params;

    other.recompute = SL_RECOMPUTE_FULL;
    return other;
}

static void try_recompute(const sl_engine_params_t *params, sl_advice_t *advice)
{
    const sl_engine_params_t other = recomputed(params);

    if (!is_least(params) && fits(&other)) {
        say(advice, "recompute auto");
    }
}

static void try_micro_batches(const sl_engine_params_t *params,
                              sl_advice_t *advice)
{
    const int64_t rows = params->batch_rows;
    int64_t n = params->n_micro_batches;
    char text[96];

    while (n < rows) {
        sl_engine_params_t other = *params, least = recomputed(params);

        n = 2 * n < rows ? 2 * n : rows;
        other.n_micro_batches = least.n_micro_batches = (int)n;
        if (fits(&other)) {
            (void)snprintf(text, sizeof(text), "%d micro-batches", (int)n);
            say(advice, text);
            return;
        }
        if (!is_least(params) && fits(&least)) {
            (void)snprintf(text, sizeof(text),
                           "%d micro-batches and recompute auto", (int)n);
            say(advice, text);
            return;
        }
    }
}

/* n stages on as many devices, each like the first. */
static int fits_on(const sl_engine_params_t *params,
                   const sl_part_costs_t *costs, int n)
{
    const int n_devices = n * params->n_replicas;
    sl_device_t *devices = calloc((size_t)n_devices, sizeof(*devices));
    int *cuts = calloc((size_t)n + 1, sizeof(*cuts));
    sl_device_set_t set = {.n_devices = n_devices, .devices = devices};
    const sl_part_problem_t problem = {
        .costs = costs, .n_stages = n, .recompute = 1.0};
    sl_engine_params_t other = recomputed(params);
    int i, result = 0;

    if (devices != NULL && cuts != NULL &&
        sl_part_split(sl_part_find("dp"), &problem, cuts) >= 0) {
        for (i = 0; i < n_devices; i++) {
            devices[i] = params->devices->devices[0];
        }
        other.devices = &set;
        other.world = NULL;
        other.grid = NULL;
        other.n_stages = n;
        other.cuts = cuts;
        result = fits(&other);
    }
    free(devices);
    free(cuts);
    return result;
}

static void try_stages(const sl_engine_params_t *params, sl_advice_t *advice)
{
    const int r = params->n_replicas;
    const int64_t rows =
        sl_split_rows(params->batch_rows, r * params->n_micro_batches, 0, NULL);
    const int n_slots = params->grid != NULL ? params->grid->n_slots
                                             : params->devices->n_devices;
    const int n_layers = params->model->n_layers;
    sl_part_costs_t costs = {0};
    sl_part_speed_t speed;
    char text[96];
    int n;

    sl_part_speed_default(&speed, params->devices->devices[0].n_threads);
    if (sl_part_costs_analytic(params->model, rows, &speed, &costs) < 0) {
        return;
    }
    for (n = n_slots / r + 1; n <= n_layers && n <= MAX_STAGES_TRIED;
         n += (n + 3) / 4) {
        if (fits_on(params, &costs, n)) {
            (void)snprintf(text, sizeof(text), "%d stages on as many devices%s",
                           n, is_least(params) ? "" : " and recompute auto");
            say(advice, text);
            break;
        }
    }
    sl_part_costs_cleanup(&costs);
}

/* The smallest limit, in steps of a MiB, that a rehearsal fits; 0 = none. */
static size_t smallest_limit(const sl_engine_params_t *params)
{
    static const int percent[] = {0, 1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 100};
    const int n = params->devices->n_devices;
    sl_rehearsal_t *rehearsal = NULL;
    size_t peak = 0, limit = 0, i;
    int d, all = 0;

    if (sl_rehearsal_open(params, &rehearsal) < 0) {
        return 0;
    }
    for (i = 0; i < sizeof(percent) / sizeof(*percent) && !all; i++) {
        limit = (peak + peak / 100 * (size_t)percent[i] + MIB - 1) / MIB * MIB;
        for (d = 0; d < n; d++) {
            sl_rehearsal_set_limit(rehearsal, d, peak == 0 ? SIZE_MAX : limit);
        }
        if (sl_rehearsal_run(rehearsal) < 0) {
            break;
        }
        all = peak > 0;
        for (d = 0; d < n; d++) {
            const sl_dry_memory_t *dry = sl_rehearsal_memory(rehearsal, d);

            peak = dry->most.peak_bytes > peak ? dry->most.peak_bytes : peak;
            all = all && dry->fits;
        }
    }
    sl_rehearsal_close(rehearsal);
    return all ? limit : 0;
}

static void try_memory(const sl_engine_params_t *params, sl_advice_t *advice)
{
    const size_t limit = smallest_limit(params);
    char text[96];

    if (limit > 0) {
        (void)snprintf(text, sizeof(text), "a memory limit of %zuMiB",
                       limit / MIB);
        say(advice, text);
    }
}

void sl_engine_advise(const sl_engine_params_t *params, char *text,
                      size_t text_bytes)
{
    sl_advice_t advice = {.text = text, .bytes = text_bytes};
    sl_engine_params_t own = *params;
    sl_grid_t *grid = NULL;

    text[0] = '\0';
    if (own.grid == NULL && own.world != NULL) {
        if (sl_grid_create(own.world, own.devices, &grid) < 0) {
            return;
        }
        own.grid = grid;
    }
    own.trace = 0;
    own.keeps = NULL;
    try_recompute(&own, &advice);
    try_micro_batches(&own, &advice);
    try_stages(&own, &advice);
    try_memory(&own, &advice);
    sl_grid_destroy(grid);
}
