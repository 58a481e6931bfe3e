/* SPDX-License-Identifier: Apache-2.0 */
/* Plans of a stage's layers for one micro-batch size, and when its values
 * may be released. */
#include <stdlib.h>

#include "engine/engine_internal.h"

void sl_plan_set_destroy(sl_plan_set_t *set)
{
    int l;

    if (set == NULL) {
        return;
    }
    for (l = 0; set->plans != NULL && set->plans[l].layer != NULL; l++) {
        sl_layer_plan_cleanup(&set->plans[l]);
    }
    free(set->plans);
    free(set->descs);
    free(set->live.last_use);
    free(set->live.kept);
    free(set->live.last_backward);
    free(set->live.is_recomputed);
    free(set->live.held);
    free(set->live.needed);
    free(set);
}

static sl_status_t set_alloc(const sl_stage_t *stage, sl_plan_set_t **set_p)
{
    const size_t n_values = (size_t)stage->n_values;
    const size_t n_layers = (size_t)stage->n_layers;
    sl_plan_set_t *set = calloc(1, sizeof(*set));
    sl_status_t status;

    if (set != NULL) {
        /* one plan more: a NULL layer ends the list */
        set->plans = calloc(n_layers + 1, sizeof(*set->plans));
        set->descs = calloc(n_values, sizeof(*set->descs));
        set->live.last_use = calloc(n_values, sizeof(int));
        set->live.kept = calloc(n_values, sizeof(int));
        set->live.last_backward = calloc(n_values, sizeof(int));
        set->live.is_recomputed = calloc(n_layers + 1, sizeof(int));
        set->live.held = calloc(n_values, sizeof(int));
        set->live.needed = calloc(n_values, sizeof(int));
    }
    if (set == NULL || set->plans == NULL || set->descs == NULL ||
        set->live.last_use == NULL || set->live.kept == NULL ||
        set->live.last_backward == NULL || set->live.is_recomputed == NULL ||
        set->live.held == NULL || set->live.needed == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, err_free,
                "stage %d: no host memory for the plans of %d layers",
                stage->index, stage->n_layers);
    }
    *set_p = set;
    return SL_OK;

err_free:
    sl_plan_set_destroy(set);
    return status;
}

static sl_status_t set_descs(const sl_stage_t *stage, sl_plan_set_t *set)
{
    const sl_model_t *model = stage->engine->params.model;
    sl_tensor_desc_t *all;
    sl_status_t status;
    int v;

    all = calloc((size_t)model->n_layers, sizeof(*all));
    if (all == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "stage %d: no host memory for shapes", stage->index);
    }
    SL_TRY(status, sl_model_infer(model, set->rows, all), err_free);
    for (v = 0; v < stage->n_values; v++) {
        const int layer = stage->value_layer[v];

        if (layer >= 0) {
            set->descs[v] = all[layer];
        } else {
            set->descs[v] =
                layer == SL_INPUT_DATA ? model->data : model->target;
            set->descs[v].dims[0] = set->rows;
        }
    }
    status = SL_OK;
err_free:
    free(all);
out:
    return status;
}

/* Kernels are made by one thread at a time: equal ones are shared by all
 * stages behind the kernels' interface. */
static pthread_mutex_t plans_lock = PTHREAD_MUTEX_INITIALIZER;

static sl_status_t set_plans(const sl_stage_t *stage, sl_plan_set_t *set)
{
    sl_status_t status = SL_OK;
    int l, i;

    (void)pthread_mutex_lock(&plans_lock);
    for (l = 0; l < stage->n_layers; l++) {
        const sl_stage_layer_t *layer = &stage->layers[l];
        sl_tensor_desc_t in[SL_LAYER_MAX_INPUTS];

        for (i = 0; i < layer->layer->n_inputs; i++) {
            in[i] = set->descs[layer->inputs[i]];
        }
        SL_TRY(status,
               sl_layer_plan_init(&set->plans[l], layer->layer,
                                  stage->device->kind, stage->device->n_threads,
                                  set->is_training, in),
               out);
    }
out:
    (void)pthread_mutex_unlock(&plans_lock);
    return status;
}

static void mark_kept(sl_liveness_t *live, int value, int layer)
{
    /* layers are visited in order, so the first to mark is the last whose
     * backward runs */
    if (!live->kept[value]) {
        live->kept[value] = 1;
        live->last_backward[value] = layer;
    }
}

static void find_kept(const sl_stage_t *stage, sl_plan_set_t *set)
{
    int l, i;

    for (l = 0; l < stage->n_layers; l++) {
        const sl_stage_layer_t *layer = &stage->layers[l];
        const sl_layer_plan_t *plan = &set->plans[l];

        if (!layer->has_backward || !set->is_training) {
            continue;
        }
        for (i = 0; i < layer->layer->n_inputs; i++) {
            if (plan->keeps_input[i]) {
                mark_kept(&set->live, layer->inputs[i], l);
            }
        }
        if (plan->keeps_output) {
            mark_kept(&set->live, layer->value, l);
        }
    }
}

/* Whether backward misses something of layer l that the forward of a
 * recomputed micro-batch does not hold. */
static int misses_own(const sl_stage_t *stage, const sl_plan_set_t *set, int l)
{
    const sl_stage_layer_t *layer = &stage->layers[l];

    return !sl_stage_keeps(stage, l) &&
           (set->live.kept[layer->value] ||
            (layer->has_backward && set->plans[l].saved_bytes > 0));
}

/* The fewest layers whose forward brings back all that backward misses, and
 * the values they start from. */
static void find_recomputed(const sl_stage_t *stage, sl_plan_set_t *set)
{
    sl_liveness_t *live = &set->live;
    int v, l, i;

    for (v = 0; v < stage->n_values; v++) {
        const int own = v - stage->n_imports;
        const int is_own = own >= 0 && own < stage->n_layers;

        live->held[v] = is_own && live->kept[v] && sl_stage_keeps(stage, own);
        live->needed[v] = !is_own && live->kept[v];
    }
    for (l = 0; l < stage->n_layers; l++) {
        live->is_recomputed[l] = 0;
    }
    for (l = stage->n_layers - 1; l >= 0; l--) {
        const sl_stage_layer_t *layer = &stage->layers[l];

        /* a later layer that runs may have marked this one already */
        live->is_recomputed[l] =
            live->is_recomputed[l] || misses_own(stage, set, l);
        for (i = 0; live->is_recomputed[l] && i < layer->layer->n_inputs; i++) {
            const int input = layer->inputs[i];
            const int own = input - stage->n_imports;

            live->needed[input] = 1;
            if (own >= 0 && own < stage->n_layers && !live->held[input]) {
                live->is_recomputed[own] = 1;
            }
        }
    }
}

static void find_liveness(const sl_stage_t *stage, sl_plan_set_t *set)
{
    int v, l, i;

    for (v = 0; v < stage->n_values; v++) {
        set->live.last_use[v] = -1;
        set->live.last_backward[v] = -1;
    }
    for (l = 0; l < stage->n_layers; l++) {
        const sl_stage_layer_t *layer = &stage->layers[l];

        for (i = 0; i < layer->layer->n_inputs; i++) {
            set->live.last_use[layer->inputs[i]] = l;
        }
        /* the loss is read by the host after the last layer */
        if (layer->layer->ops->is_loss) {
            set->live.last_use[layer->value] = stage->n_layers;
        }
    }
    for (i = 0; i < stage->n_exports; i++) {
        set->live.last_use[stage->exports[i].value] = stage->n_layers;
    }
    find_kept(stage, set);
    find_recomputed(stage, set);
}

sl_status_t sl_plan_set_get(sl_stage_t *stage, int64_t rows, int is_training,
                            const sl_plan_set_t **set_p)
{
    sl_plan_set_t *set;
    sl_status_t status;

    for (set = stage->plan_sets; set != NULL; set = set->next) {
        if (set->rows == rows && set->is_training == is_training) {
            *set_p = set;
            return SL_OK;
        }
    }
    SL_TRY(status, set_alloc(stage, &set), out);
    set->rows = rows;
    set->is_training = is_training;
    SL_TRY(status, set_descs(stage, set), err_destroy);
    SL_TRY(status, set_plans(stage, set), err_destroy);
    find_liveness(stage, set);
    set->next = stage->plan_sets;
    stage->plan_sets = set;
    *set_p = set;
    return SL_OK;

err_destroy:
    sl_plan_set_destroy(set);
out:
    return status;
}

void sl_plan_sets_refresh(sl_stage_t *stage)
{
    sl_plan_set_t *set;

    for (set = stage->plan_sets; set != NULL; set = set->next) {
        find_recomputed(stage, set);
    }
}
