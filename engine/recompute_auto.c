/* SPDX-License-Identifier: Apache-2.0 */
/* Recompute `auto`: the layers that free the most memory per time of
 * recomputation give up their results, until a rehearsal fits. */
#include <stdlib.h>
#include <string.h>

#include "engine/rehearse.h"

/* A layer that holds something from its forward to its backward. */
typedef struct sl_candidate {
    int layer;
    double bytes_per_us;
} sl_candidate_t;

/* The first `n_recomputed` of a device's candidates give up. */
typedef struct sl_device_choice {
    sl_candidate_t *candidates; /* owned, best first */
    int n;
    int too_few; /* as many do not fit; -1: none known */
    int enough;  /* as many fit, or all there are */
} sl_device_choice_t;

typedef struct sl_choice {
    const sl_engine_params_t *params;
    sl_rehearsal_t *rehearsal;
    unsigned char *keeps; /* owned until given away */
    int n_devices;
    sl_device_choice_t *devices; /* owned */
} sl_choice_t;

static int by_benefit(const void *a, const void *b)
{
    const sl_candidate_t *x = a, *y = b;

    if (x->bytes_per_us != y->bytes_per_us) {
        return x->bytes_per_us > y->bytes_per_us ? -1 : 1;
    }
    return x->layer < y->layer ? -1 : 1;
}

/* Time to bring the outputs of a stage's layers back: theirs, and that of
 * inputs which nobody holds. */
static void closure_times(const sl_stage_t *stage, const sl_plan_set_t *set,
                          const sl_part_costs_t *costs, double *us)
{
    int l, i;

    for (l = 0; l < stage->n_layers; l++) {
        const sl_stage_layer_t *layer = &stage->layers[l];

        us[l] = costs->layers[stage->begin + l].forward_us;
        for (i = 0; i < layer->layer->n_inputs; i++) {
            const int own = layer->inputs[i] - stage->n_imports;

            if (own >= 0 && own < stage->n_layers &&
                !set->live.kept[layer->inputs[i]]) {
                us[l] += us[own];
            }
        }
    }
}

static size_t held_bytes(const sl_stage_t *stage, const sl_plan_set_t *set,
                         int l)
{
    const sl_stage_layer_t *layer = &stage->layers[l];
    size_t bytes = 0;

    if (set->live.kept[layer->value]) {
        bytes += sl_tensor_bytes(&set->descs[layer->value]);
    }
    if (layer->has_backward) {
        bytes += set->plans[l].saved_bytes;
    }
    return bytes;
}

static sl_status_t add_stage(sl_choice_t *choice, sl_stage_t *stage,
                             const sl_part_costs_t *costs)
{
    const sl_device_t *first = stage->engine->params.devices->devices;
    sl_device_choice_t *device = &choice->devices[stage->device - first];
    double *us = calloc((size_t)stage->n_layers, sizeof(*us));
    const size_t room = (size_t)(device->n + stage->n_layers);
    sl_candidate_t *candidates =
        realloc(device->candidates, room * sizeof(*candidates));
    const sl_plan_set_t *set;
    sl_status_t status;
    int l;

    if (candidates != NULL) {
        device->candidates = candidates;
    }
    if (us == NULL || candidates == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "recompute auto: no host memory for %d layers",
                stage->n_layers);
    }
    SL_TRY(status,
           sl_plan_set_get(stage,
                           sl_split_rows(choice->params->batch_rows,
                                         choice->params->n_replicas *
                                             choice->params->n_micro_batches,
                                         0, NULL),
                           1, &set),
           out);
    closure_times(stage, set, costs, us);
    for (l = 0; l < stage->n_layers; l++) {
        const size_t bytes = held_bytes(stage, set, l);

        if (bytes > 0) {
            candidates[device->n].layer = stage->begin + l;
            candidates[device->n].bytes_per_us =
                (double)bytes / (us[l] > 0.0 ? us[l] : 1e-3);
            device->n++;
        }
    }
out:
    free(us);
    return status;
}

static sl_status_t analytic_costs(const sl_engine_params_t *params,
                                  sl_part_costs_t *costs_p)
{
    const int n = params->n_replicas * params->n_micro_batches;
    const int64_t rows = sl_split_rows(params->batch_rows, n, 0, NULL);
    sl_part_speed_t speed;

    sl_part_speed_default(&speed, params->devices->devices[0].n_threads);
    return sl_part_costs_analytic(params->model, rows, &speed, costs_p);
}

/* Whether another replica's cell before this one is the same stage on the
 * same device. */
static int is_repeated(const sl_engine_t *engine, int cell)
{
    int c;

    for (c = 0; c < cell; c++) {
        if (engine->stages[c].index == engine->stages[cell].index &&
            engine->stages[c].device == engine->stages[cell].device) {
            return 1;
        }
    }
    return 0;
}

static sl_status_t find_candidates(sl_choice_t *choice)
{
    sl_engine_t *engine = sl_rehearsal_engine(choice->rehearsal);
    const sl_part_costs_t *costs = choice->params->costs;
    sl_part_costs_t own = {0};
    sl_status_t status;
    int k, d;

    if (costs == NULL) {
        SL_TRY(status, analytic_costs(choice->params, &own), out);
        costs = &own;
    }
    for (k = 0; k < engine->n_cells; k++) {
        if (!is_repeated(engine, k)) {
            SL_TRY(status, add_stage(choice, &engine->stages[k], costs), out);
        }
    }
    for (d = 0; d < choice->n_devices; d++) {
        sl_device_choice_t *device = &choice->devices[d];

        if (device->n > 0) {
            qsort(device->candidates, (size_t)device->n,
                  sizeof(*device->candidates), by_benefit);
        }
    }
    status = SL_OK;
out:
    sl_part_costs_cleanup(&own);
    return status;
}

static void keep_all(sl_choice_t *choice)
{
    memset(choice->keeps, 1, (size_t)choice->params->model->n_layers);
}

static void set_keeps(sl_choice_t *choice, int d, int n_recomputed)
{
    const sl_device_choice_t *device = &choice->devices[d];
    int i;

    /* a layer of several replicas is kept when all of them can keep it */
    for (i = 0; i < n_recomputed; i++) {
        choice->keeps[device->candidates[i].layer] = 0;
    }
}

static sl_status_t rehearse(sl_choice_t *choice)
{
    sl_status_t status;

    SL_TRY(status, sl_rehearsal_set_keeps(choice->rehearsal, choice->keeps),
           out);
    status = sl_rehearsal_run(choice->rehearsal);
out:
    return status;
}

static int fits(const sl_choice_t *choice, int d)
{
    return sl_rehearsal_memory(choice->rehearsal, d)->fits;
}

/* A device's memory depends on its own layers only, so one rehearsal halves
 * the range of all of them. */
static sl_status_t search(sl_choice_t *choice)
{
    sl_status_t status = SL_OK;
    int is_open = 1, d;

    while (is_open) {
        is_open = 0;
        keep_all(choice);
        for (d = 0; d < choice->n_devices; d++) {
            const sl_device_choice_t *device = &choice->devices[d];

            is_open = is_open || device->enough - device->too_few > 1;
            set_keeps(choice, d, (device->too_few + device->enough) / 2);
        }
        if (!is_open) {
            break;
        }
        SL_TRY(status, rehearse(choice), out);
        for (d = 0; d < choice->n_devices; d++) {
            sl_device_choice_t *device = &choice->devices[d];
            const int tried = (device->too_few + device->enough) / 2;

            if (device->enough - device->too_few <= 1) {
                continue;
            }
            if (fits(choice, d)) {
                device->enough = tried;
            } else {
                device->too_few = tried;
            }
        }
    }
    keep_all(choice);
    for (d = 0; d < choice->n_devices; d++) {
        set_keeps(choice, d, choice->devices[d].enough);
    }
out:
    return status;
}

/* All kept, then for the devices that this does not fit all recomputed:
 * between the two lies what to choose. */
static sl_status_t choose(sl_choice_t *choice)
{
    sl_status_t status;
    int d, n_short = 0;

    keep_all(choice);
    SL_TRY(status, rehearse(choice), out);
    SL_TRY(status, find_candidates(choice), out);
    for (d = 0; d < choice->n_devices; d++) {
        sl_device_choice_t *device = &choice->devices[d];

        n_short += !fits(choice, d);
        device->enough = fits(choice, d) ? 0 : device->n;
        device->too_few = fits(choice, d) ? -1 : 0;
    }
    if (n_short > 0) {
        status = search(choice);
    }
out:
    return status;
}

sl_status_t sl_recompute_choose(const sl_engine_params_t *params,
                                unsigned char **keeps_p)
{
    const size_t n_devices = (size_t)params->devices->n_devices;
    sl_choice_t choice = {.params = params, .n_devices = (int)n_devices};
    sl_status_t status;
    size_t d;

    choice.keeps = malloc((size_t)params->model->n_layers);
    choice.devices = calloc(n_devices, sizeof(*choice.devices));
    if (choice.keeps == NULL || choice.devices == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "recompute auto: no host memory for %d layers",
                params->model->n_layers);
    }
    SL_TRY(status, sl_rehearsal_open(params, &choice.rehearsal), out);
    SL_TRY(status, choose(&choice), out);
    *keeps_p = choice.keeps;
    choice.keeps = NULL;
out:
    sl_rehearsal_close(choice.rehearsal);
    for (d = 0; choice.devices != NULL && d < n_devices; d++) {
        free(choice.devices[d].candidates);
    }
    free(choice.devices);
    free(choice.keeps);
    return status;
}
