/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that were started with different configs would compute nonsense or
 * wait for each other for ever. */
#include <stdlib.h>

#include "base/hash.h"
#include "engine/parallel/together.h"
#include "engine/world.h"

static uint64_t hash_int(int64_t value, uint64_t hash)
{
    return sl_hash(&value, sizeof(value), hash);
}

static uint64_t hash_double(double value, uint64_t hash)
{
    return sl_hash(&value, sizeof(value), hash);
}

static uint64_t hash_model(const sl_model_t *model, uint64_t hash)
{
    int l, p, d;

    hash = hash_int(model->kind, hash);
    hash = hash_int(model->dtype, hash);
    hash = hash_int(model->is_tf32, hash);
    hash = hash_int(model->dnn.has_images, hash);
    hash = hash_int((int64_t)model->dnn.workspace_bytes, hash);
    for (l = 0; l < model->n_layers; l++) {
        const sl_layer_t *layer = model->layers[l];

        hash = sl_hash_text(layer->name, hash);
        hash = sl_hash_text(layer->ops->name, hash);
        for (p = 0; p < layer->n_params; p++) {
            for (d = 0; d < layer->params[p].desc.n_dims; d++) {
                hash = hash_int(layer->params[p].desc.dims[d], hash);
            }
        }
    }
    return hash;
}

static uint64_t hash_optimizer(const sl_optimizer_params_t *params,
                               uint64_t hash)
{
    const double numbers[] = {
        params->lr,        params->momentum, params->beta1,
        params->beta2,     params->eps,      params->weight_decay,
        params->clip_norm, params->lr_min,   params->lr_gamma};
    const int64_t counts[] = {params->kind,          params->nesterov,
                              params->decay_all,     params->lr_kind,
                              params->lr_step_every, params->warmup_steps,
                              params->total_steps};
    size_t i;

    for (i = 0; i < sizeof(numbers) / sizeof(*numbers); i++) {
        hash = hash_double(numbers[i], hash);
    }
    for (i = 0; i < sizeof(counts) / sizeof(*counts); i++) {
        hash = hash_int(counts[i], hash);
    }
    return hash;
}

static uint64_t hash_params(const sl_engine_params_t *params)
{
    const int64_t counts[] = {
        params->n_stages,        params->batch_rows,
        params->n_micro_batches, params->schedule,
        params->backward_order,  params->recompute,
        (int64_t)params->seed,   params->not_finite,
        params->n_replicas,      (int64_t)params->bucket_bytes,
        params->zero1,           params->batch_norm,
        params->check_replicas,  params->transport,
        params->loss_scale_steps};
    uint64_t hash = hash_model(params->model, 0);
    size_t i;
    int k;

    for (i = 0; i < sizeof(counts) / sizeof(*counts); i++) {
        hash = hash_int(counts[i], hash);
    }
    for (k = 0; k <= params->n_stages; k++) {
        hash = hash_int(params->cuts[k], hash);
    }
    return hash_optimizer(&params->optimizer, hash);
}

sl_status_t sl_together_compare(const sl_engine_params_t *params)
{
    sl_world_t *world = params->world;
    const int n = sl_world_size(world);
    uint64_t own = hash_params(params);
    uint64_t *all = calloc((size_t)n, sizeof(*all));
    sl_status_t status;
    int r;

    if (all == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "engine: no host memory for %d ranks", n);
    }
    SL_TRY(status, sl_world_gather(world, &own, sizeof(own), all), out);
    for (r = 1; r < n; r++) {
        if (all[r] != all[0]) {
            SL_FAIL(status, SL_ERR_CONFIG, out,
                    "rank %d on host %s has another model, precision, cut or "
                    "training parameters than rank 0: start all with the same "
                    "config",
                    r, sl_world_host(world, r));
        }
    }
out:
    free(all);
    return status;
}
