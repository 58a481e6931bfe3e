/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's state from outside: parameters and moments in and out, hashes.
 * Only between steps. With many ranks every rank makes the same call: what is
 * read goes to the rank of the stage (of replica 0), and from there to all. */
#include <stdlib.h>
#include <string.h>

#include "engine/parallel/parallel.h"
#include "engine/parallel/together.h"
#include "engine/state.h"

static sl_status_t find_item(const sl_engine_t *engine, int layer, int param,
                             sl_state_kind_t kind, int moment,
                             sl_state_item_t *item)
{
    const sl_model_t *model = engine->params.model;
    const int n_moments = sl_optimizer_n_moments(&engine->params.optimizer);
    sl_status_t status = SL_OK;

    if (layer < 0 || layer >= model->n_layers || param < 0 ||
        param >= model->layers[layer]->n_params) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "model %s has no parameter %d of layer %d", model->name, param,
                layer);
    }
    item->layer = layer;
    item->param = param;
    item->desc = &model->layers[layer]->params[param];
    item->kind = kind;
    item->moment = moment;
    if (kind != SL_STATE_VALUE && item->desc->kind != SL_PARAM_TRAINED) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out, "layer %s: %s has no gradient",
                model->layers[layer]->name, item->desc->name);
    }
    if (kind == SL_STATE_MOMENT &&
        (moment < 0 || moment >= n_moments || item->desc->tied_layer >= 0)) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "layer %s: %s has no moment %d", model->layers[layer]->name,
                item->desc->name, moment);
    }
out:
    return status;
}

sl_status_t sl_state_alloc(const sl_engine_t *engine,
                           const sl_state_item_t *item, char **storage_p)
{
    sl_status_t status;

    *storage_p = calloc(1, item->desc->storage_bytes + 1);
    if (*storage_p == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "layer %s: no host memory for the %zu bytes of %s",
                engine->params.model->layers[item->layer]->name,
                item->desc->storage_bytes, item->desc->name);
    }
    return SL_OK;
out:
    return status;
}

/* Whether each replica has a part of it only. */
static int is_shared_out(const sl_engine_t *engine, const sl_state_item_t *item)
{
    return engine->n_replicas > 1 && engine->params.zero1 &&
           item->kind != SL_STATE_VALUE && item->desc->tied_layer < 0;
}

/* The bytes [*begin_p, *end_p) of an item's storage that a replica has; the
 * layout is that of any of them. */
static void part_of(const sl_engine_t *engine, const sl_state_item_t *item,
                    int replica, size_t *begin_p, size_t *end_p)
{
    sl_stage_param_t *param = NULL;
    sl_stage_t *stage;
    int r;

    *begin_p = 0;
    *end_p = item->desc->storage_bytes;
    if (!is_shared_out(engine, item)) {
        return;
    }
    for (r = 0; param == NULL && r < engine->n_replicas; r++) {
        param =
            sl_engine_find_param(engine, r, item->layer, item->param, &stage);
    }
    if (param != NULL) {
        *end_p = sizeof(float) * sl_param_chunk(stage, param, replica, begin_p);
        *begin_p *= sizeof(float);
    }
}

/* Where a part of an item lies on a stage. */
static char *item_ptr(const sl_stage_t *stage, const sl_stage_param_t *param,
                      const sl_state_item_t *item, size_t begin)
{
    const sl_storage_t storage =
        item->kind == SL_STATE_VALUE ? param->value
        : item->kind == SL_STATE_GRADIENT
            ? param->grad
            : sl_param_moment(stage, param, item->moment,
                              begin / sizeof(float));
    char *ptr = sl_storage_ptr(&storage);

    return item->kind == SL_STATE_MOMENT ? ptr : ptr + begin;
}

/* A replica's part of an item into `storage` on rank `root`; other ranks may
 * have no storage. */
static sl_status_t read_part(const sl_engine_t *engine,
                             const sl_state_item_t *item, int replica, int root,
                             char *storage)
{
    const int from =
        sl_engine_rank_of(engine, replica, engine->layer_stage[item->layer]);
    sl_stage_param_t *param;
    sl_stage_t *stage;
    sl_status_t status = SL_OK;
    size_t begin, end;

    if (storage == NULL) {
        return SL_OK;
    }
    part_of(engine, item, replica, &begin, &end);
    param =
        sl_engine_find_param(engine, replica, item->layer, item->param, &stage);
    if (begin >= end) {
        return SL_OK;
    }
    if (param != NULL) {
        SL_TRY(status,
               sl_device_copy_wait(stage->device, storage + begin,
                                   item_ptr(stage, param, item, begin),
                                   end - begin),
               out);
    }
    status = sl_engine_move(engine, from, root, storage + begin, end - begin);
out:
    return status;
}

/* An item's storage on the rank of the replica's stage; *storage_p is owned,
 * NULL on ranks that do not take part. */
static sl_status_t read_item(const sl_engine_t *engine,
                             const sl_state_item_t *item, int replica,
                             char **storage_p)
{
    const int stage = engine->layer_stage[item->layer];
    const int root = sl_engine_rank_of(engine, replica, stage);
    const int is_shared = is_shared_out(engine, item);
    sl_status_t status = SL_OK;
    int r, is_here = 0;

    *storage_p = NULL;
    for (r = 0; r < engine->n_replicas; r++) {
        is_here = is_here || ((is_shared || r == replica) &&
                              sl_engine_find_stage(engine, r, stage) != NULL);
    }
    if (is_here) {
        SL_TRY(status, sl_state_alloc(engine, item, storage_p), out);
    }
    for (r = is_shared ? 0 : replica;
         r < (is_shared ? engine->n_replicas : replica + 1); r++) {
        SL_TRY(status, read_part(engine, item, r, root, *storage_p), out);
    }
out:
    return status;
}

static sl_device_kind_t kind_of(const sl_engine_t *engine)
{
    return engine->params.devices->devices[0].kind;
}

sl_status_t sl_state_read(const sl_engine_t *engine,
                          const sl_state_item_t *item, float *plain,
                          int *is_here_p)
{
    const sl_layer_t *layer = engine->params.model->layers[item->layer];
    char *storage = NULL;
    sl_status_t status;

    *is_here_p =
        sl_engine_rank_of(engine, 0, engine->layer_stage[item->layer]) ==
        engine->grid->rank;
    SL_TRY(status, read_item(engine, item, 0, &storage), out);
    if (*is_here_p) {
        status = sl_layer_param_unpack(layer, kind_of(engine), item->param,
                                       storage, plain);
    }
out:
    free(storage);
    return status;
}

/* ... and on all. */
static sl_status_t get(sl_engine_t *engine, const sl_state_item_t *item,
                       float *plain)
{
    const int root =
        sl_engine_rank_of(engine, 0, engine->layer_stage[item->layer]);
    const size_t n = (size_t)sl_tensor_elements(&item->desc->desc);
    sl_status_t status;
    int is_here;

    SL_TRY(status, sl_state_read(engine, item, plain, &is_here), out);
    status = sl_engine_broadcast(engine, root, plain, n * sizeof(*plain));
out:
    return status;
}

sl_status_t sl_state_get(sl_engine_t *engine, int layer, int param,
                         float *plain)
{
    sl_state_item_t item;
    sl_status_t status;

    SL_TRY(status, find_item(engine, layer, param, SL_STATE_VALUE, 0, &item),
           out);
    status = get(engine, &item, plain);
out:
    return status;
}

sl_status_t sl_engine_param_get(sl_engine_t *engine, int layer, int param,
                                float *plain)
{
    return sl_engine_together(engine,
                              sl_state_get(engine, layer, param, plain));
}

sl_status_t sl_engine_gradient_get(sl_engine_t *engine, int layer, int param,
                                   float *plain)
{
    sl_state_item_t item;
    sl_status_t status;
    size_t i, n;

    SL_TRY(status, find_item(engine, layer, param, SL_STATE_GRADIENT, 0, &item),
           out);
    SL_TRY(status, get(engine, &item, plain), out);
    n = engine->gradient_scale == 1.0
            ? 0
            : (size_t)sl_tensor_elements(&item.desc->desc);
    for (i = 0; i < n; i++) {
        plain[i] /= (float)engine->gradient_scale;
    }
out:
    return sl_engine_together(engine, status);
}

sl_status_t sl_engine_moment_get(sl_engine_t *engine, int layer, int param,
                                 int moment, float *plain)
{
    sl_state_item_t item;
    sl_status_t status;

    SL_TRY(status,
           find_item(engine, layer, param, SL_STATE_MOMENT, moment, &item),
           out);
    status = get(engine, &item, plain);
out:
    return sl_engine_together(engine, status);
}

/* ---- writing: every rank writes what it has ---- */

static sl_status_t write_part(const sl_engine_t *engine,
                              const sl_state_item_t *item, int replica,
                              const char *storage)
{
    sl_stage_t *stage;
    sl_stage_param_t *param =
        sl_engine_find_param(engine, replica, item->layer, item->param, &stage);
    size_t begin, end;

    if (param == NULL) {
        return SL_OK;
    }
    part_of(engine, item, replica, &begin, &end);
    return begin >= end
               ? SL_OK
               : sl_device_copy_wait(stage->device,
                                     item_ptr(stage, param, item, begin),
                                     storage + begin, end - begin);
}

static sl_status_t set(sl_engine_t *engine, const sl_state_item_t *item,
                       const float *plain)
{
    char *storage = NULL;
    sl_status_t status;
    int r;

    SL_TRY(status, sl_state_alloc(engine, item, &storage), out);
    SL_TRY(status,
           sl_layer_param_pack(engine->params.model->layers[item->layer],
                               kind_of(engine), item->param, plain, storage),
           out);
    for (r = 0; r < engine->n_replicas; r++) {
        SL_TRY(status, write_part(engine, item, r, storage), out);
    }
out:
    free(storage);
    return status;
}

/* A parameter's value and that of its tied users. */
static sl_status_t set_value(sl_engine_t *engine, const sl_state_item_t *owner,
                             const float *plain)
{
    const sl_model_t *model = engine->params.model;
    sl_state_item_t user = *owner;
    sl_status_t status;
    int l, p;

    SL_TRY(status, set(engine, owner, plain), out);
    for (l = 0; l < model->n_layers; l++) {
        for (p = 0; p < model->layers[l]->n_params; p++) {
            user.layer = l;
            user.param = p;
            user.desc = &model->layers[l]->params[p];
            if (user.desc->tied_layer == owner->layer &&
                user.desc->tied_param == owner->param) {
                SL_TRY(status, set(engine, &user, plain), out);
            }
        }
    }
out:
    return status;
}

sl_status_t sl_state_set(sl_engine_t *engine, int layer, int param,
                         const float *plain)
{
    sl_state_item_t item;
    sl_status_t status;

    SL_TRY(status, find_item(engine, layer, param, SL_STATE_VALUE, 0, &item),
           out);
    if (item.desc->tied_layer >= 0) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "layer %s: %s is tied; set layer %s",
                engine->params.model->layers[layer]->name, item.desc->name,
                engine->params.model->layers[item.desc->tied_layer]->name);
    }
    status = set_value(engine, &item, plain);
out:
    return status;
}

sl_status_t sl_state_write(sl_engine_t *engine, int layer, int param,
                           int moment, const float *plain)
{
    const sl_state_kind_t kind = moment < 0 ? SL_STATE_VALUE : SL_STATE_MOMENT;
    sl_state_item_t item;
    sl_status_t status;

    SL_TRY(status, find_item(engine, layer, param, kind, moment, &item), out);
    status = moment < 0 ? set_value(engine, &item, plain)
                        : set(engine, &item, plain);
out:
    return status;
}

sl_status_t sl_engine_param_set(sl_engine_t *engine, int layer, int param,
                                const float *plain)
{
    return sl_engine_together(engine,
                              sl_state_set(engine, layer, param, plain));
}

sl_status_t sl_engine_moment_set(sl_engine_t *engine, int layer, int param,
                                 int moment, const float *plain)
{
    sl_state_item_t item;
    sl_status_t status;

    SL_TRY(status,
           find_item(engine, layer, param, SL_STATE_MOMENT, moment, &item),
           out);
    status = set(engine, &item, plain);
out:
    return sl_engine_together(engine, status);
}
