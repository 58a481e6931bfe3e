/* SPDX-License-Identifier: Apache-2.0 */
/* The hash of the whole state, the same however it is spread. */
#include <stdlib.h>

#include "base/hash.h"
#include "engine/parallel/together.h"
#include "engine/state.h"

/* Value, then moments, of a parameter into the hash on its rank. */
static sl_status_t hash_param(const sl_engine_t *engine, int layer, int param,
                              uint64_t *hash_p)
{
    const sl_param_t *desc =
        &engine->params.model->layers[layer]->params[param];
    const size_t n = (size_t)sl_tensor_elements(&desc->desc);
    const int n_moments =
        desc->kind == SL_PARAM_TRAINED
            ? sl_optimizer_n_moments(&engine->params.optimizer)
            : 0;
    float *plain = malloc(n * sizeof(*plain) + 1);
    sl_status_t status = SL_OK;
    int i, is_here = 0;

    if (plain == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "no host memory to hash %zu values", n);
    }
    for (i = -1; i < n_moments; i++) {
        const sl_state_item_t item = {.layer = layer,
                                      .param = param,
                                      .desc = desc,
                                      .kind = i < 0 ? SL_STATE_VALUE
                                                    : SL_STATE_MOMENT,
                                      .moment = i};

        SL_TRY(status, sl_state_read(engine, &item, plain, &is_here), out);
        if (is_here) {
            *hash_p = sl_hash(plain, n * sizeof(*plain), *hash_p);
        }
    }
out:
    free(plain);
    return status;
}

static sl_status_t hash_layer(const sl_engine_t *engine, int layer,
                              uint64_t *hash_p)
{
    const sl_layer_t *own = engine->params.model->layers[layer];
    sl_status_t status = SL_OK;
    int p;

    for (p = 0; p < own->n_params; p++) {
        if (sl_param_is_state(&own->params[p])) {
            SL_TRY(status, hash_param(engine, layer, p, hash_p), out);
        }
    }
out:
    return status;
}

/* The hash goes from the rank of one stage to that of the next. */
static sl_status_t hash_state(const sl_engine_t *engine, uint64_t *hash_p)
{
    sl_status_t status = SL_OK;
    int k, l;

    for (k = 0; k < engine->n_stages; k++) {
        for (l = engine->params.cuts[k]; l < engine->params.cuts[k + 1]; l++) {
            SL_TRY(status, hash_layer(engine, l, hash_p), out);
        }
        SL_TRY(status,
               sl_engine_broadcast(engine, sl_engine_rank_of(engine, 0, k),
                                   hash_p, sizeof(*hash_p)),
               out);
    }
out:
    return status;
}

sl_status_t sl_engine_state_hash(sl_engine_t *engine, uint64_t *hash_p)
{
    uint64_t hash = 0;
    sl_status_t status = sl_engine_together(engine, hash_state(engine, &hash));

    if (status >= 0) {
        *hash_p = hash;
    }
    return status;
}
