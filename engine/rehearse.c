/* SPDX-License-Identifier: Apache-2.0 */
/* Rehearsals. PROT_NONE and MAP_ANONYMOUS are not all in POSIX: this file
 * asks the C library for more than the rest of the code. */
#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE
#endif
#include "engine/rehearse.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/parallel/edges.h"
#include "engine/parallel/together.h"
#include "engine/topology.h"

enum {
    /* the second step meets the regions that the first one left */
    N_STEPS = 2
};

struct sl_rehearsal {
    sl_engine_params_t params; /* with the dry devices */
    const sl_device_set_t *real;
    sl_device_set_t set;
    sl_dry_memory_t *memories; /* owned, one a device */
    sl_engine_t *engine;       /* owned; NULL before the first run */
    unsigned char *keeps;      /* owned; NULL: not asked */
    sl_grid_t *own_grid;       /* owned; NULL: the parameters' */
};

/* ---- dry memory ---- */

static sl_status_t dry_alloc(void *ctx, size_t bytes, void **ptr_p)
{
    void *ptr = mmap(NULL, bytes, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    (void)ctx;
    if (ptr == MAP_FAILED) {
        return SL_ERR_NO_MEMORY;
    }
    *ptr_p = ptr;
    return SL_OK;
}

static void dry_release(void *ctx, void *ptr, size_t bytes)
{
    (void)ctx;
    (void)munmap(ptr, bytes);
}

static sl_status_t dry_copy(void *ctx, void *to, const void *from, size_t bytes)
{
    (void)ctx;
    (void)to;
    (void)from;
    (void)bytes;
    return SL_OK;
}

static size_t dry_unit(void *ctx)
{
    return ((const sl_dry_memory_t *)ctx)->unit_bytes;
}

static const sl_mem_ops_t dry_ops = {
    .size = sizeof(sl_mem_ops_t),
    .name = "dry",
    .alloc = dry_alloc,
    .release = dry_release,
    .copy = dry_copy,
    .unit = dry_unit,
};

static void note_most(size_t *most_p, size_t now)
{
    *most_p = now > *most_p ? now : *most_p;
}

static void note_peaks(sl_dry_memory_t *dry, const sl_mem_t *mem)
{
    sl_mem_stats_t stats;
    int c;

    sl_mem_stats(mem, &stats);
    for (c = 0; c < SL_MEM_N_CLASSES; c++) {
        note_most(&dry->most.classes[c].peak_bytes,
                  stats.classes[c].peak_bytes);
    }
    note_most(&dry->most.peak_bytes, stats.peak_bytes);
    note_most(&dry->most.peak_held_bytes, stats.peak_held_bytes);
}

void sl_dry_lift_limit(sl_engine_t *engine, const sl_device_t *device)
{
    sl_dry_memory_t *dry =
        &engine->dry[device - engine->params.devices->devices];

    note_peaks(dry, device->mem);
    dry->fits = 0;
    sl_mem_limit_request(device->mem, SIZE_MAX);
    sl_mem_boundary(device->mem, NULL);
}

/* An empty allocator under the limit to rehearse; it can be lifted later. */
static sl_status_t memory_renew(sl_device_t *device, sl_dry_memory_t *dry)
{
    sl_mem_params_t params;
    sl_status_t status;

    sl_mem_destroy(device->mem);
    device->mem = NULL;
    memset(&dry->most, 0, sizeof(dry->most));
    dry->fits = 1;
    sl_mem_params_default(&params);
    params.name = device->name;
    params.device = &dry_ops;
    params.device_ctx = dry;
    SL_TRY(status, sl_mem_create(&params, &device->mem), out);
    sl_mem_limit_request(device->mem, dry->limit_bytes);
    sl_mem_boundary(device->mem, NULL);
out:
    return status;
}

/* ---- life ---- */

sl_status_t sl_rehearsal_open(const sl_engine_params_t *params,
                              sl_rehearsal_t **rehearsal_p)
{
    sl_rehearsal_t *rehearsal = calloc(1, sizeof(*rehearsal));
    sl_status_t status;
    size_t n;
    int d;

    if (rehearsal == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "rehearsal: no host memory for its records");
    }
    rehearsal->params = *params;
    rehearsal->params.trace = 0;
    SL_TRY(status, sl_engine_params_check(&rehearsal->params), err_close);
    if (params->grid == NULL) {
        SL_TRY(status,
               sl_grid_create(NULL, params->devices, &rehearsal->own_grid),
               err_close);
        rehearsal->params.grid = rehearsal->own_grid;
    }
    rehearsal->real = params->devices;
    n = (size_t)params->devices->n_devices;
    rehearsal->memories = calloc(n, sizeof(*rehearsal->memories));
    rehearsal->set.devices = calloc(n, sizeof(*rehearsal->set.devices));
    if (rehearsal->memories == NULL || rehearsal->set.devices == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, err_close,
                "rehearsal: no host memory for %zu devices", n);
    }
    rehearsal->set.n_devices = (int)n;
    rehearsal->params.devices = &rehearsal->set;
    for (d = 0; d < (int)n; d++) {
        sl_mem_stats_t stats;

        sl_mem_stats(rehearsal->real->devices[d].mem, &stats);
        rehearsal->memories[d].limit_bytes = stats.limit_bytes;
        rehearsal->memories[d].unit_bytes = stats.unit_bytes;
        rehearsal->set.devices[d] = rehearsal->real->devices[d];
        rehearsal->set.devices[d].mem = NULL;
        rehearsal->set.devices[d].ops = NULL;
    }
    *rehearsal_p = rehearsal;
    return SL_OK;

err_close:
    sl_rehearsal_close(rehearsal);
out:
    return status;
}

void sl_rehearsal_close(sl_rehearsal_t *rehearsal)
{
    int d;

    if (rehearsal == NULL) {
        return;
    }
    sl_engine_destroy(rehearsal->engine);
    for (d = 0; d < rehearsal->set.n_devices; d++) {
        sl_mem_destroy(rehearsal->set.devices[d].mem);
    }
    free(rehearsal->set.devices);
    free(rehearsal->memories);
    free(rehearsal->keeps);
    sl_grid_destroy(rehearsal->own_grid);
    free(rehearsal);
}

void sl_rehearsal_set_limit(sl_rehearsal_t *rehearsal, int d,
                            size_t limit_bytes)
{
    rehearsal->memories[d].limit_bytes = limit_bytes;
}

sl_status_t sl_rehearsal_set_keeps(sl_rehearsal_t *rehearsal,
                                   const unsigned char *keeps)
{
    const size_t n = (size_t)rehearsal->params.model->n_layers;
    sl_status_t status = SL_OK;

    if (rehearsal->keeps == NULL) {
        rehearsal->keeps = malloc(n);
        if (rehearsal->keeps == NULL) {
            SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                    "rehearsal: no host memory for %zu layers", n);
        }
    }
    memcpy(rehearsal->keeps, keeps, n);
out:
    return status;
}

const sl_dry_memory_t *sl_rehearsal_memory(const sl_rehearsal_t *rehearsal,
                                           int d)
{
    return &rehearsal->memories[d];
}

sl_engine_t *sl_rehearsal_engine(const sl_rehearsal_t *rehearsal)
{
    return rehearsal->engine;
}

/* ---- a run ---- */

/* All stages' lists in lock step: an instruction each in turn, unless it
 * would wait for another stage. */
static sl_status_t run_lists(sl_engine_t *engine, size_t *next)
{
    sl_status_t status = SL_OK;
    size_t n_left = 0, n_done = 1;
    int k;

    for (k = 0; k < engine->n_cells; k++) {
        SL_TRY(status, sl_executor_prepare(&engine->stages[k]), out);
        next[k] = 0;
        n_left += engine->stages[k].train_list.n;
    }
    while (n_left > 0 && n_done > 0) {
        n_done = 0;
        for (k = 0; k < engine->n_cells; k++) {
            sl_stage_t *stage = &engine->stages[k];

            if (next[k] < stage->train_list.n &&
                !sl_executor_would_wait(stage, next[k])) {
                SL_TRY(status, sl_executor_step_one(stage, next[k]), out);
                next[k]++;
                n_done++;
            }
        }
        n_left -= n_done;
    }
    if (n_left > 0) {
        SL_FAIL(status, SL_ERR_CORRUPT, out,
                "rehearsal: %zu instructions are left, all stages wait for "
                "each other",
                n_left);
    }
    for (k = 0; k < engine->n_cells; k++) {
        SL_TRY(status, sl_stage_meet(&engine->stages[k]), out);
    }
out:
    return status;
}

/* The engine with nothing but its parameters on its devices: new, or an
 * earlier run's over new memory, whose plans are still good. */
static sl_status_t engine_renew(sl_rehearsal_t *rehearsal)
{
    sl_engine_t *engine = rehearsal->engine;
    sl_status_t status;
    int d, k;

    if (engine != NULL) {
        sl_edges_close(engine);
    }
    for (k = 0; engine != NULL && k < engine->n_cells; k++) {
        sl_stage_forget_job(&engine->stages[k]);
        sl_stage_params_cleanup(&engine->stages[k]);
    }
    for (d = 0; d < rehearsal->set.n_devices; d++) {
        SL_TRY(
            status,
            memory_renew(&rehearsal->set.devices[d], &rehearsal->memories[d]),
            out);
    }
    if (engine == NULL) {
        SL_TRY(status,
               sl_engine_build(&rehearsal->params, rehearsal->keeps,
                               rehearsal->memories, &rehearsal->engine),
               out);
        return SL_OK;
    }
    SL_TRY(status, sl_engine_set_keeps(engine, rehearsal->keeps), out);
    for (k = 0; k < engine->n_cells; k++) {
        engine->stages[k].list_micro = 0;
        sl_plan_sets_refresh(&engine->stages[k]);
        SL_TRY(status, sl_stage_params_init(&engine->stages[k]), out);
    }
    SL_TRY(status, sl_topology_params(engine), out);
    status = sl_edges_open(engine);
out:
    return status;
}

sl_status_t sl_rehearsal_run(sl_rehearsal_t *rehearsal)
{
    const sl_batch_t batch = {.rows = rehearsal->params.batch_rows};
    const size_t n_cells = (size_t)rehearsal->params.n_replicas *
                           (size_t)rehearsal->params.n_stages;
    size_t *next = calloc(n_cells, sizeof(*next));
    sl_status_t status;
    int step, d;

    if (next == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "rehearsal: no host memory for %zu stages", n_cells);
    }
    SL_TRY(status, engine_renew(rehearsal), out);
    for (step = 0; step < N_STEPS; step++) {
        SL_TRY(status, sl_engine_prepare(rehearsal->engine, &batch), out);
        SL_TRY(status, run_lists(rehearsal->engine, next), out);
        for (d = 0; d < rehearsal->set.n_devices; d++) {
            note_peaks(&rehearsal->memories[d], rehearsal->set.devices[d].mem);
            sl_mem_boundary(rehearsal->set.devices[d].mem, NULL);
        }
    }
out:
    free(next);
    return status;
}

/* ---- the plan ---- */

static sl_status_t fill_plan(const sl_rehearsal_t *rehearsal,
                             sl_memory_plan_t *plan)
{
    const int n = rehearsal->set.n_devices;
    sl_status_t status = SL_OK;
    int d, c;

    plan->devices = calloc((size_t)n, sizeof(*plan->devices));
    if (plan->devices == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "rehearsal: no host memory for %d devices", n);
    }
    plan->n_devices = n;
    plan->n_layers = rehearsal->params.model->n_layers;
    plan->fits = 1;
    for (d = 0; d < n; d++) {
        const sl_dry_memory_t *dry = &rehearsal->memories[d];
        sl_memory_need_t *need = &plan->devices[d];

        need->name = rehearsal->real->devices[d].name;
        for (c = 0; c < SL_MEM_N_CLASSES; c++) {
            need->class_peak_bytes[c] = dry->most.classes[c].peak_bytes;
        }
        need->peak_bytes = dry->most.peak_bytes;
        need->held_bytes = dry->most.peak_held_bytes;
        need->limit_bytes = dry->limit_bytes;
        need->fits = dry->fits;
        plan->fits = plan->fits && dry->fits;
    }
out:
    return status;
}

/* This rank's part of the plan. */
static sl_status_t rehearse_own(const sl_engine_params_t *params,
                                sl_memory_plan_t *plan)
{
    sl_rehearsal_t *rehearsal = NULL;
    sl_status_t status;

    SL_TRY(status, sl_rehearsal_open(params, &rehearsal), out);
    if (params->recompute == SL_RECOMPUTE_AUTO) {
        if (params->keeps != NULL) {
            SL_TRY(status, sl_rehearsal_set_keeps(rehearsal, params->keeps),
                   out);
        } else {
            SL_TRY(status, sl_recompute_choose(params, &plan->keeps), out);
            SL_TRY(status, sl_rehearsal_set_keeps(rehearsal, plan->keeps), out);
        }
    }
    SL_TRY(status, sl_rehearsal_run(rehearsal), out);
    status = fill_plan(rehearsal, plan);
out:
    sl_rehearsal_close(rehearsal);
    return status;
}

sl_status_t sl_engine_rehearse(const sl_engine_params_t *params,
                               sl_memory_plan_t *plan_p)
{
    sl_engine_params_t own = *params;
    sl_memory_plan_t plan = {0};
    sl_grid_t *grid = NULL;
    sl_abort_t abort;
    sl_status_t status;

    sl_abort_init(&abort);
    sl_together_watch(own.world, &abort);
    SL_TRY(status, sl_engine_params_complete(&own, &grid), out);
    SL_TRY(status, rehearse_own(&own, &plan), out);
    if (own.world != NULL) {
        status = sl_together_plan(&own, &plan);
    }
out:
    status = sl_together_end(own.world, &abort, status);
    sl_together_watch(own.world, NULL);
    if (status >= 0) {
        *plan_p = plan;
        memset(&plan, 0, sizeof(plan));
    }
    sl_memory_plan_cleanup(&plan);
    sl_grid_destroy(grid);
    sl_abort_cleanup(&abort);
    return status;
}

void sl_memory_plan_cleanup(sl_memory_plan_t *plan)
{
    free(plan->devices);
    free(plan->names);
    free(plan->keeps);
    memset(plan, 0, sizeof(*plan));
}
