/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's life: create, destroy. */
#include <stdlib.h>
#include <string.h>

#include "engine/parallel/drift.h"
#include "engine/parallel/edges.h"
#include "engine/parallel/together.h"
#include "engine/topology.h"
#include "engine/world.h"

enum {
    MAX_CELLS = 1 << 16, /* of a grid */
    MAX_MICRO = 1 << 20  /* micro-batches of all replicas */
};

void sl_engine_params_default(sl_engine_params_t *params)
{
    memset(params, 0, sizeof(*params));
    params->n_micro_batches = 1;
    params->batch_rows = 1;
    params->n_replicas = 1;
    params->bucket_bytes = 4 << 20;
    params->check_replicas = 100;
    params->loss_scale_steps = 2000;
    sl_optimizer_params_default(&params->optimizer);
}

static sl_status_t check_devices(const sl_model_t *model,
                                 const sl_device_set_t *devices)
{
    sl_status_t status = SL_OK;
    int d;

    for (d = 0; d < devices->n_devices; d++) {
        if (devices->devices[d].kind != model->kind) {
            SL_FAIL(status, SL_ERR_CONFIG, out,
                    "engine: model %s is made for another kind of device than "
                    "%s: call sl_model_target() with the kind of the devices "
                    "first",
                    model->name, devices->devices[d].name);
        }
    }
out:
    return status;
}

sl_status_t sl_engine_params_check(sl_engine_params_t *params)
{
    sl_status_t status = SL_OK;

    if (params->model == NULL || params->devices == NULL ||
        params->cuts == NULL) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "engine: model, devices and cuts are required");
    }
    if (params->n_replicas < 1 || params->check_replicas < 0) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "engine: %d replicas, compared every %d steps; there must be "
                "at least 1 and 0",
                params->n_replicas, params->check_replicas);
    }
    if (params->n_stages == 0) {
        const int n = params->grid == NULL ? params->devices->n_devices
                                           : params->grid->n_slots;

        params->n_stages = n > params->n_replicas ? n / params->n_replicas : 1;
    }
    if ((int64_t)params->n_replicas * params->n_micro_batches > MAX_MICRO ||
        (int64_t)params->n_replicas * params->n_stages > MAX_CELLS) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "engine: %d replicas of %d stages with %d micro-batches each; "
                "at most %d stages and %d micro-batches in all",
                params->n_replicas, params->n_stages, params->n_micro_batches,
                (int)MAX_CELLS, (int)MAX_MICRO);
    }
    if (params->batch_rows < 1 || params->n_micro_batches < 1) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "engine: %lld rows in %d micro-batches asked; both must be at "
                "least 1",
                (long long)params->batch_rows, params->n_micro_batches);
    }
    if (params->backward_order == SL_BACKWARD_LIFO &&
        params->schedule != SL_SCHEDULE_GPIPE) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "engine: backward order lifo needs the gpipe schedule");
    }
    if (params->costs != NULL &&
        params->costs->n_layers != params->model->n_layers) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "engine: costs of %d layers for a model of %d",
                params->costs->n_layers, params->model->n_layers);
    }
    SL_TRY(status, sl_model_check(params->model), out);
    SL_TRY(status, check_devices(params->model, params->devices), out);
    SL_TRY(status, sl_optimizer_params_check(&params->optimizer), out);
    status = sl_part_check_cuts(params->model->n_layers, params->n_stages,
                                params->cuts);
out:
    return status;
}

/* The loss's ignore_index, found in its attribute table. */
static int loss_ignore_index(const sl_model_t *model)
{
    const sl_layer_t *loss = model->layers[model->n_layers - 1];
    const sl_attr_def_t *def = loss->ops->attr_defs;

    for (; def != NULL && def->name != NULL; def++) {
        if (strcmp(def->name, "ignore_index") == 0) {
            int64_t value;

            memcpy(&value, (const char *)loss->attrs + def->offset,
                   sizeof(value));
            return (int)value;
        }
    }
    return SL_DATA_IGNORE;
}

/* This rank's cells, by number. */
static sl_status_t create_stages(sl_engine_t *engine)
{
    const int n = engine->n_replicas * engine->n_stages;
    sl_status_t status = SL_OK;
    int cell;

    engine->stages = calloc((size_t)n, sizeof(*engine->stages));
    if (engine->stages == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "engine: no host memory for %d stages", n);
    }
    for (cell = 0; cell < n; cell++) {
        if (sl_grid_slot(engine->grid, cell, n)->rank == engine->grid->rank) {
            SL_TRY(
                status,
                sl_stage_init(&engine->stages[engine->n_cells++], engine, cell),
                out);
        }
    }
out:
    return status;
}

static sl_status_t start_executors(sl_engine_t *engine)
{
    sl_status_t status = SL_OK;
    int k;

    for (k = 0; k < engine->n_cells; k++) {
        sl_stage_t *stage = &engine->stages[k];

        if (pthread_create(&stage->thread, NULL, sl_executor_main, stage) !=
            0) {
            SL_FAIL(status, SL_ERR_DEVICE, out,
                    "engine: cannot start the executor thread of stage %d of "
                    "%d",
                    stage->index, engine->n_stages);
        }
        stage->has_thread = 1;
    }
out:
    return status;
}

static void on_device_failure(void *abort, sl_status_t status)
{
    sl_abort_raise(abort, status);
}

static void watch_devices(sl_engine_t *engine)
{
    int d;

    for (d = 0; d < engine->params.devices->n_devices; d++) {
        engine->watches[d].on_failure = on_device_failure;
        engine->watches[d].ctx = &engine->abort;
        sl_op_manager_watch(engine->params.devices->devices[d].ops,
                            &engine->watches[d]);
    }
}

static void unwatch_devices(sl_engine_t *engine)
{
    int d;

    for (d = 0; engine->watches != NULL && engine->dry == NULL &&
                d < engine->params.devices->n_devices;
         d++) {
        sl_op_manager_unwatch(engine->params.devices->devices[d].ops,
                              &engine->watches[d]);
    }
}

/* `auto` is full recomputation of all but the kept layers; when all are kept
 * there is nothing to recompute. */
sl_status_t sl_engine_set_keeps(sl_engine_t *engine, const unsigned char *keeps)
{
    const size_t n = (size_t)engine->params.model->n_layers;
    sl_status_t status = SL_OK;

    engine->recompute = engine->params.recompute;
    if (engine->recompute != SL_RECOMPUTE_AUTO) {
        return SL_OK;
    }
    engine->recompute = SL_RECOMPUTE_FULL;
    if (keeps == NULL) {
        return SL_OK;
    }
    if (engine->keeps == NULL) {
        engine->keeps = malloc(n);
    }
    if (engine->keeps == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "engine: no host memory for %zu layers", n);
    }
    memcpy(engine->keeps, keeps, n);
    if (memchr(keeps, 0, n) == NULL) {
        engine->recompute = SL_RECOMPUTE_NONE;
    }
out:
    return status;
}

static sl_status_t make_records(sl_engine_t *engine)
{
    const size_t n = (size_t)engine->params.devices->n_devices;
    sl_status_t status = SL_OK;

    engine->device_reports = calloc(n, sizeof(*engine->device_reports));
    engine->busy_before_ns = calloc(n, sizeof(uint64_t));
    engine->watches = calloc(n, sizeof(*engine->watches));
    if (engine->device_reports == NULL || engine->busy_before_ns == NULL ||
        engine->watches == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "engine: no host memory for %zu devices", n);
    }
out:
    return status;
}

static sl_status_t copy_cuts(sl_engine_t *engine)
{
    const size_t n = (size_t)engine->params.n_stages + 1;
    sl_status_t status = SL_OK;

    engine->own_cuts = malloc(n * sizeof(int));
    if (engine->own_cuts == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "engine: no host memory for %zu cuts", n);
    }
    memcpy(engine->own_cuts, engine->params.cuts, n * sizeof(int));
    engine->params.cuts = engine->own_cuts;
out:
    return status;
}

static sl_status_t build(const sl_engine_params_t *own,
                         const unsigned char *keeps, sl_dry_memory_t *dry,
                         int is_bare, sl_engine_t **engine_p)
{
    sl_engine_t *engine = calloc(1, sizeof(*engine));
    sl_status_t status;

    if (engine == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "engine: no host memory");
    }
    engine->params = *own;
    engine->dry = dry;
    engine->is_bare = is_bare;
    engine->n_replicas = own->n_replicas;
    engine->n_stages = own->n_stages;
    engine->ignore_index = loss_ignore_index(own->model);
    sl_loss_scale_init(engine);
    sl_abort_init(&engine->abort);
    sl_gate_init(&engine->gate);
    atomic_init(&engine->signals, 0);
    engine->grid = own->grid;
    SL_TRY(status, copy_cuts(engine), err_destroy);
    SL_TRY(status, sl_engine_set_keeps(engine, keeps), err_destroy);
    SL_TRY(status, make_records(engine), err_destroy);
    SL_TRY(status, sl_topology_layers(engine), err_destroy);
    SL_TRY(status, sl_topology_channels(engine), err_destroy);
    SL_TRY(status, create_stages(engine), err_destroy);
    SL_TRY(status, sl_topology_params(engine), err_destroy);
    SL_TRY(status, sl_drift_init(engine), err_destroy);
    if (!is_bare) {
        SL_TRY(status, sl_edges_open(engine), err_destroy);
    }
    engine->barrier.n = engine->n_cells;
    *engine_p = engine;
    return SL_OK;

err_destroy:
    sl_engine_destroy(engine);
out:
    return status;
}

sl_status_t sl_engine_build(const sl_engine_params_t *own,
                            const unsigned char *keeps, sl_dry_memory_t *dry,
                            sl_engine_t **engine_p)
{
    return build(own, keeps, dry, 0, engine_p);
}

sl_status_t sl_engine_build_bare(const sl_engine_params_t *own,
                                 const unsigned char *keeps,
                                 sl_engine_t **engine_p)
{
    return build(own, keeps, NULL, 1, engine_p);
}

/* The choice of layers to keep, the stages, and their threads. */
static sl_status_t make_engine(const sl_engine_params_t *own,
                               sl_engine_t **engine_p)
{
    sl_engine_t *engine = NULL;
    unsigned char *chosen = NULL;
    sl_status_t status;

    if (own->recompute == SL_RECOMPUTE_AUTO && own->keeps == NULL) {
        SL_TRY(status, sl_recompute_choose(own, &chosen), out);
    }
    status = sl_engine_build(own, chosen != NULL ? chosen : own->keeps, NULL,
                             &engine);
    if (status == SL_ERR_QUOTA) {
        SL_TRY(status, sl_engine_refuse(own), out);
    }
    SL_TRY(status, status, out);
    watch_devices(engine);
    SL_TRY(status, start_executors(engine), err_destroy);
    free(chosen);
    *engine_p = engine;
    return SL_OK;

err_destroy:
    sl_engine_destroy(engine);
out:
    free(chosen);
    return status;
}

sl_status_t sl_engine_params_complete(sl_engine_params_t *params,
                                      sl_grid_t **grid_p)
{
    sl_status_t status;

    if (params->devices == NULL) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "engine: model, devices and cuts are required");
    }
    if (params->grid == NULL) {
        SL_TRY(status, sl_grid_create(params->world, params->devices, grid_p),
               out);
        params->grid = *grid_p;
    }
    SL_TRY(status, sl_engine_params_check(params), out);
    SL_TRY(status,
           sl_grid_check(params->grid, params->n_replicas, params->n_stages,
                         params->devices->n_devices),
           out);
    if (params->world != NULL) {
        status = sl_together_compare(params);
    }
out:
    return status;
}

/* The communication thread takes its turns while the devices of this rank
 * wait, and never pushes aside those of another rank on the host. */
static void place(void *devices)
{
    sl_device_set_bind_self(devices);
}

sl_status_t sl_engine_create(const sl_engine_params_t *params,
                             sl_engine_t **engine_p)
{
    sl_engine_params_t own = *params;
    sl_engine_t *engine = NULL;
    sl_grid_t *grid = NULL;
    sl_abort_t abort;
    sl_status_t status;

    sl_abort_init(&abort);
    sl_together_watch(own.world, &abort);
    SL_TRY(status, sl_engine_params_complete(&own, &grid), out);
    SL_TRY(status, make_engine(&own, &engine), out);
    engine->own_grid = grid;
    grid = NULL;
out:
    status = sl_together_end(own.world, &abort, status);
    if (status >= 0) {
        if (own.world != NULL) {
            sl_world_call(own.world, place, own.devices);
        }
        sl_together_watch(own.world, &engine->abort);
        engine->is_watching = 1;
        *engine_p = engine;
    } else {
        sl_together_watch(own.world, NULL);
        sl_engine_destroy(engine);
    }
    sl_grid_destroy(grid);
    sl_abort_cleanup(&abort);
    return status;
}

static void end_executors(sl_engine_t *engine)
{
    int k, n = 0;

    for (k = 0; engine->stages != NULL && k < engine->n_cells; k++) {
        n += engine->stages[k].has_thread;
    }
    engine->job = SL_JOB_END;
    sl_gate_open(&engine->gate, n);
    for (k = 0; engine->stages != NULL && k < engine->n_cells; k++) {
        if (engine->stages[k].has_thread) {
            (void)pthread_join(engine->stages[k].thread, NULL);
        }
    }
}

void sl_engine_destroy(sl_engine_t *engine)
{
    int k, c;

    if (engine == NULL) {
        return;
    }
    if (engine->is_watching) {
        sl_together_watch(engine->params.world, NULL);
    }
    end_executors(engine);
    unwatch_devices(engine);
    for (k = 0; k < engine->params.devices->n_devices; k++) {
        sl_op_manager_t *ops = engine->params.devices->devices[k].ops;

        /* the devices outlive a failed job */
        if (ops != NULL) {
            (void)!sl_op_manager_drain(ops);
            sl_op_manager_recover(ops);
        }
    }
    for (k = 0; engine->stages != NULL && k < engine->n_cells; k++) {
        if (engine->stages[k].engine != NULL) {
            sl_stage_cleanup(&engine->stages[k]);
        }
    }
    for (c = 0; c < engine->n_channels; c++) {
        sl_channel_cleanup(&engine->channels[c]);
    }
    sl_transport_close(engine);
    free(engine->stages);
    free(engine->channels);
    sl_grid_destroy(engine->own_grid);
    free(engine->keeps);
    free(engine->own_cuts);
    free(engine->layer_stage);
    free(engine->needs_gradient);
    free(engine->ties);
    sl_device_host_release(&engine->params.devices->devices[0], engine->norms);
    sl_device_host_release(&engine->params.devices->devices[0], engine->losses);
    sl_drift_cleanup(engine);
    free(engine->agreement);
    free(engine->given);
    free(engine->events);
    free(engine->compute_log);
    free(engine->device_reports);
    free(engine->watches);
    free(engine->busy_before_ns);
    sl_gate_cleanup(&engine->gate);
    sl_abort_cleanup(&engine->abort);
    free(engine);
}

size_t sl_engine_trace(const sl_engine_t *engine,
                       const sl_trace_event_t **events_p)
{
    *events_p = engine->events;
    return engine->n_events;
}

uint32_t sl_engine_n_steps(const sl_engine_t *engine)
{
    return engine->n_steps;
}

void sl_engine_signal(sl_engine_t *engine, unsigned flags)
{
    atomic_fetch_or(&engine->signals, flags);
}

void sl_engine_set_n_steps(sl_engine_t *engine, uint32_t n)
{
    engine->n_steps = n;
}

int sl_engine_n_stages(const sl_engine_t *engine)
{
    return engine->n_stages;
}

int sl_engine_cell(const sl_engine_t *engine, int i, sl_cell_t *cell_p)
{
    if (i < 0 || i >= engine->n_cells) {
        return 0;
    }
    cell_p->replica = engine->stages[i].replica;
    cell_p->stage = engine->stages[i].index;
    cell_p->device = engine->stages[i].device;
    return 1;
}
