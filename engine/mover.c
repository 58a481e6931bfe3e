/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters on their way: their blocks, and one layer's move. */
#include "engine/mover.h"

#include <stdlib.h>
#include <string.h>

#include "engine/parallel/together.h"
#include "engine/world.h"

/* All ranks fail when one does, with the first one's status. */
sl_status_t sl_mover_agree(sl_mover_t *mover, sl_status_t status)
{
    const sl_engine_t *engine = mover->engine;
    const int n = sl_world_size(engine->params.world);
    int r;

    if (engine->params.world == NULL) {
        return status;
    }
    memset(mover->codes, 0, (size_t)n * sizeof(double));
    mover->codes[engine->grid->rank] = status < 0 ? (double)status : 0.0;
    if (sl_together_sum(engine->params.world, &mover->engine->abort,
                        mover->codes, (size_t)n) < 0) {
        mover->is_broken = 1;
        return status < 0 ? status : SL_ERR_COMM;
    }
    for (r = 0; r < n && mover->codes[r] >= 0.0; r++) {
    }
    mover->is_common |= r < n;
    if (r < n && status >= 0) {
        SL_REFUSE(status, (sl_status_t)mover->codes[r], out,
                  "rank %d cannot: %s", r,
                  sl_status_text((sl_status_t)mover->codes[r]));
    }
    if (r < n) {
        status =
            (sl_status_t)mover->codes[r]; /* what follows is decided by it */
    }
out:
    return status;
}

static void release_blocks(sl_moved_param_t *param)
{
    int i;

    for (i = 0; i < SL_MOVER_BLOCKS; i++) {
        sl_mem_release(param->blocks[i]);
        param->blocks[i] = NULL;
    }
}

/* ---- life ---- */

sl_status_t sl_mover_init(sl_mover_t *mover, sl_engine_t *engine)
{
    const sl_model_t *model = engine->params.model;
    const size_t n = (size_t)model->n_layers;
    const size_t k = (size_t)engine->n_stages;
    sl_status_t status = SL_OK;
    int l, p, n_all = 0;

    mover->model = model;
    mover->n_stages = engine->n_stages;
    mover->now = calloc(k + 1, sizeof(int));
    mover->is_refused = calloc(k, sizeof(int));
    mover->first_param = calloc(n + 1, sizeof(int));
    if (mover->now == NULL || mover->is_refused == NULL ||
        mover->first_param == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "engine: no host memory to move layers of %zu", n);
    }
    memcpy(mover->now, engine->params.cuts, (k + 1) * sizeof(int));
    for (l = 0; l < model->n_layers; l++) {
        n_all += model->layers[l]->n_params;
        mover->first_param[l + 1] = n_all;
    }
    mover->params = calloc((size_t)n_all + 1, sizeof(*mover->params));
    if (mover->params == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "engine: no host memory for %d parameters", n_all);
    }
    for (l = 0; l < model->n_layers; l++) {
        for (p = 0; p < model->layers[l]->n_params; p++) {
            mover->params[mover->first_param[l] + p].desc =
                &model->layers[l]->params[p];
        }
    }
out:
    return status;
}

void sl_mover_cleanup(sl_mover_t *mover)
{
    free(mover->now);
    free(mover->is_refused);
    free(mover->params);
    free(mover->first_param);
    free(mover->codes);
    free(mover->crossings);
}

static sl_mem_block_t **block_of(sl_stage_param_t *param, int i)
{
    return i == 0   ? &param->value.block
           : i == 1 ? &param->grad.block
                    : &param->moments[i - 2].block;
}

/* The blocks of this rank's stages to the mover, or into stages with the cuts
 * of this moment. */
void sl_mover_exchange(sl_mover_t *mover, sl_engine_t *engine, int is_taken)
{
    int k, p, i;

    for (k = 0; k < engine->n_cells; k++) {
        for (p = 0; p < engine->stages[k].n_params; p++) {
            sl_stage_param_t *param = &engine->stages[k].params[p];
            sl_moved_param_t *moved =
                &mover->params[mover->first_param[param->layer] + param->param];

            for (i = 0; i < SL_MOVER_BLOCKS; i++) {
                if (is_taken) {
                    moved->blocks[i] = *block_of(param, i);
                    *block_of(param, i) = NULL;
                } else {
                    *block_of(param, i) = moved->blocks[i];
                    moved->blocks[i] = NULL;
                }
            }
        }
    }
}

/* What no stage has taken, after a failure that nothing could mend. */
void sl_mover_drop(sl_mover_t *mover)
{
    int p;

    for (p = 0; p < mover->first_param[mover->model->n_layers]; p++) {
        release_blocks(&mover->params[p]);
    }
}

/* ---- one layer ---- */

static int has_block(const sl_mover_t *mover, const sl_param_t *desc, int i)
{
    if (i == 0) {
        return 1;
    }
    if (desc->kind != SL_PARAM_TRAINED) {
        return 0;
    }
    return i == 1 ||
           (desc->tied_layer < 0 &&
            i - 2 < sl_optimizer_n_moments(&mover->engine->params.optimizer));
}

static int n_params(const sl_mover_t *mover, int layer)
{
    return mover->first_param[layer + 1] - mover->first_param[layer];
}

size_t sl_mover_layer_bytes(const sl_mover_t *mover, int layer)
{
    size_t bytes = 0;
    int p, i;

    for (p = mover->first_param[layer]; p < mover->first_param[layer + 1];
         p++) {
        for (i = 0; i < SL_MOVER_BLOCKS; i++) {
            bytes += has_block(mover, mover->params[p].desc, i)
                         ? mover->params[p].desc->storage_bytes
                         : 0;
        }
    }
    return bytes;
}

/* Blocks for the layer on its new device, and what messages go through. */
static sl_status_t make_copies(const sl_mover_t *mover, const sl_way_t *way,
                               sl_moved_param_t *copies, void **buffer_p)
{
    const int is_sent = way->from_rank != way->to_rank &&
                        (way->from != NULL || way->to != NULL);
    sl_status_t status = SL_OK;
    size_t most = 1;
    int p, i;

    for (p = 0; p < n_params(mover, way->layer); p++) {
        most = copies[p].desc->storage_bytes > most
                   ? copies[p].desc->storage_bytes
                   : most;
        for (i = 0; i < SL_MOVER_BLOCKS && way->to != NULL; i++) {
            if (has_block(mover, copies[p].desc, i)) {
                SL_TRY(status,
                       sl_mem_alloc(way->to->mem, SL_MEM_CLASS_PERSISTENT,
                                    copies[p].desc->storage_bytes,
                                    &copies[p].blocks[i]),
                       out);
            }
        }
    }
    *buffer_p = is_sent ? malloc(most) : NULL;
    if (is_sent && *buffer_p == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "engine: no host memory for a message of %zu bytes", most);
    }
out:
    return status;
}

/* One block's contents, between devices or ranks. */
static sl_status_t move_block(const sl_mover_t *mover, const sl_way_t *way,
                              const sl_mem_block_t *from, sl_mem_block_t *to,
                              size_t bytes, void *buffer)
{
    sl_status_t status = SL_OK;

    if (way->from != NULL && way->to != NULL) {
        return sl_device_copy(way->to, to->ptr, from->ptr, bytes, NULL);
    }
    if (way->from != NULL) {
        SL_TRY(status, sl_device_copy_wait(way->from, buffer, from->ptr, bytes),
               out);
    }
    SL_TRY(status,
           sl_engine_move(mover->engine, way->from_rank, way->to_rank, buffer,
                          bytes),
           out);
    if (way->to != NULL) {
        status = sl_device_copy_wait(way->to, to->ptr, buffer, bytes);
    }
out:
    return status;
}

static sl_status_t move_contents(const sl_mover_t *mover, const sl_way_t *way,
                                 sl_moved_param_t *copies, void *buffer)
{
    const sl_moved_param_t *params =
        &mover->params[mover->first_param[way->layer]];
    sl_status_t status = SL_OK;
    int p, i;

    if (way->from == NULL && way->to == NULL) {
        return SL_OK;
    }
    for (p = 0; p < n_params(mover, way->layer); p++) {
        for (i = 0; i < SL_MOVER_BLOCKS; i++) {
            if (has_block(mover, params[p].desc, i)) {
                SL_TRY(status,
                       move_block(mover, way, params[p].blocks[i],
                                  copies[p].blocks[i],
                                  params[p].desc->storage_bytes, buffer),
                       out);
            }
        }
    }
out:
    if (way->to != NULL) {
        SL_KEEP(status, sl_device_drain(way->to));
    }
    return status;
}

/* All of a layer or nothing; the devices are idle before and after. What goes
 * wrong once all have agreed is the end. */
sl_status_t sl_mover_move(sl_mover_t *mover, const sl_way_t *way)
{
    sl_moved_param_t *params = &mover->params[mover->first_param[way->layer]];
    sl_moved_param_t copies[SL_LAYER_MAX_PARAMS] = {{NULL, {NULL}}};
    void *buffer = NULL;
    sl_status_t status;
    int p;

    for (p = 0; p < n_params(mover, way->layer); p++) {
        copies[p].desc = params[p].desc;
    }
    status = sl_mover_agree(mover, make_copies(mover, way, copies, &buffer));
    if (status >= 0) {
        status = move_contents(mover, way, copies, buffer);
        mover->is_broken |= status < 0 && mover->engine->params.world != NULL;
    }
    for (p = 0; p < n_params(mover, way->layer); p++) {
        release_blocks(status < 0 ? &copies[p] : &params[p]);
        if (status >= 0) {
            params[p] = copies[p];
        }
    }
    mover->moved_bytes +=
        status < 0 ? 0 : sl_mover_layer_bytes(mover, way->layer);
    free(buffer);
    return status;
}

size_t sl_mover_stage_bytes(const sl_mover_t *mover, const int *cuts, int k)
{
    size_t bytes = 0;
    int l;

    for (l = cuts[k]; l < cuts[k + 1]; l++) {
        bytes += sl_mover_layer_bytes(mover, l);
    }
    return bytes;
}
