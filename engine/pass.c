/* SPDX-License-Identifier: Apache-2.0 */
/* One micro-batch through the layers of a stage, forward and backward: which
 * blocks an op gets, and when they are released. Nothing here waits; the
 * device runs the ops in the order of submission. */
#include <string.h>

#include "engine/parallel/parallel.h"

static sl_status_t submit(const sl_pass_t *pass, sl_op_fn fn, uint32_t name_id,
                          const sl_layer_run_t *run)
{
    const sl_op_t op = {.fn = fn,
                        .name_id = name_id,
                        .args = run,
                        .args_bytes = sizeof(*run),
                        .span = pass->span};

    return sl_device_submit(pass->stage->device, &op);
}

/* Whether a value stays alive after this pass, for its backward. */
static int holds_value(const sl_pass_t *pass, int v)
{
    return pass->set->live.kept[v] &&
           (pass->keeps || (pass->is_stashed && pass->set->live.held[v]));
}

/* Likewise what layer l saves; a recomputation may find it there. */
static int holds_saved(const sl_pass_t *pass, int l)
{
    return pass->stage->layers[l].has_backward &&
           pass->micro->saved[l] == NULL &&
           (pass->keeps ||
            (pass->is_stashed && sl_stage_keeps(pass->stage, l)));
}

static void set_params(const sl_pass_t *pass, const sl_stage_layer_t *layer,
                       sl_layer_run_t *run)
{
    int p;

    for (p = 0; p < layer->layer->n_params; p++) {
        const sl_stage_param_t *param =
            &pass->stage->params[layer->first_param + p];

        run->param[p] = sl_storage_ptr(&param->value);
        run->grad[p] = sl_storage_ptr(&param->grad);
    }
}

static void *ref_ptr(const sl_ref_t *ref)
{
    return ref == NULL ? NULL : ref->block->ptr;
}

/* The output block of layer l: its own, or its first input's when nobody
 * else holds that. */
static sl_status_t make_output(const sl_pass_t *pass, int l)
{
    const sl_stage_layer_t *layer = &pass->stage->layers[l];
    const sl_layer_plan_t *plan = &pass->set->plans[l];
    const int source = layer->inputs[0];
    sl_ref_t **values = pass->micro->values;
    const int is_kept = holds_value(pass, layer->value);

    if (plan->in_place && pass->set->live.last_use[source] == l &&
        values[source]->n_refs == 1 && !holds_value(pass, source) &&
        sl_tensor_bytes(&plan->in[0]) == sl_tensor_bytes(&plan->out)) {
        values[layer->value] = sl_ref_share(values[source]);
        return SL_OK;
    }
    return sl_ref_create(pass->stage,
                         is_kept ? SL_MEM_CLASS_STASH : SL_MEM_CLASS_ACTIVATION,
                         sl_tensor_bytes(&plan->out), &values[layer->value]);
}

/* After layer l's forward: hold what backward reads, drop what is done. */
static void settle_forward(const sl_pass_t *pass, int l)
{
    const sl_stage_layer_t *layer = &pass->stage->layers[l];
    const sl_liveness_t *live = &pass->set->live;
    sl_micro_state_t *micro = pass->micro;
    int i;

    for (i = 0; i <= layer->layer->n_inputs; i++) {
        const int v =
            i < layer->layer->n_inputs ? layer->inputs[i] : layer->value;

        if (holds_value(pass, v) && micro->kept[v] == NULL &&
            micro->values[v] != NULL) {
            micro->kept[v] = sl_ref_share(micro->values[v]);
        }
        if (live->last_use[v] == l) {
            sl_ref_drop(pass->stage, &micro->values[v]);
        }
    }
}

static sl_status_t forward_layer(const sl_pass_t *pass, int l)
{
    const sl_stage_layer_t *layer = &pass->stage->layers[l];
    const sl_layer_plan_t *plan = &pass->set->plans[l];
    const int keeps_saved = holds_saved(pass, l);
    sl_mem_block_t *saved = NULL, *workspace = NULL;
    sl_layer_run_t run = {.plan = plan, .step = pass->step};
    sl_status_t status;
    int i;

    SL_TRY(status, make_output(pass, l), out);
    if (plan->saved_bytes > 0) {
        SL_TRY(status,
               sl_stage_alloc(pass->stage,
                              keeps_saved ? SL_MEM_CLASS_STASH
                                          : SL_MEM_CLASS_WORKSPACE,
                              plan->saved_bytes, &saved),
               out);
        run.saved = saved->ptr;
    }
    if (plan->forward_workspace_bytes > 0) {
        SL_TRY(status,
               sl_stage_alloc(pass->stage, SL_MEM_CLASS_WORKSPACE,
                              plan->forward_workspace_bytes, &workspace),
               err_release_saved);
        run.workspace = workspace->ptr;
    }
    for (i = 0; i < layer->layer->n_inputs; i++) {
        run.in[i] = ref_ptr(pass->micro->values[layer->inputs[i]]);
    }
    run.out = ref_ptr(pass->micro->values[layer->value]);
    set_params(pass, layer, &run);
    status = submit(pass, sl_layer_op_forward, layer->forward_name, &run);
    sl_mem_release(workspace);
    if (status >= 0 && keeps_saved) {
        pass->micro->saved[l] = saved;
        saved = NULL;
    }
    if (status >= 0) {
        settle_forward(pass, l);
    }
err_release_saved:
    sl_mem_release(saved);
out:
    return status;
}

/* The loss's sums of this micro-batch to the host. */
static sl_status_t read_loss(const sl_pass_t *pass)
{
    const sl_stage_layer_t *loss =
        &pass->stage->layers[pass->stage->n_layers - 1];
    sl_engine_t *engine = pass->stage->engine;
    sl_status_t status;

    status = sl_device_copy(pass->stage->device,
                            engine->losses[pass->step.micro_batch],
                            pass->micro->values[loss->value]->block->ptr,
                            sizeof(double[4]), pass->span);
    return status;
}

/* What a pass starts from: the imports, and in a recomputation what the
 * first forward held. */
static void set_given_values(const sl_pass_t *pass)
{
    const sl_stage_t *stage = pass->stage;
    const sl_liveness_t *live = &pass->set->live;
    sl_micro_state_t *micro = pass->micro;
    int v;

    for (v = 0; v < stage->n_values; v++) {
        if (pass->is_stashed && v < stage->n_imports && live->needed[v]) {
            micro->stash[v] = sl_ref_share(micro->values[v]);
        } else if (pass->step.is_recompute && v < stage->n_imports) {
            micro->values[v] = micro->stash[v];
            micro->stash[v] = NULL;
        } else if (pass->step.is_recompute && live->needed[v] &&
                   micro->kept[v] != NULL) {
            micro->values[v] = sl_ref_share(micro->kept[v]);
        }
    }
}

sl_status_t sl_pass_forward(const sl_pass_t *pass)
{
    sl_stage_t *stage = pass->stage;
    sl_micro_state_t *micro = pass->micro;
    const int last = stage->n_layers - 1;
    sl_status_t status = SL_OK;
    int v, l;

    set_given_values(pass);
    for (l = 0; l < stage->n_layers; l++) {
        if (pass->step.is_recompute && !pass->set->live.is_recomputed[l]) {
            /* its backward may still read its inputs */
            settle_forward(pass, l);
            continue;
        }
        SL_TRY(status, forward_layer(pass, l), out);
    }
    if (stage->layers[last].layer->ops->is_loss) {
        if (!pass->step.is_recompute) {
            SL_TRY(status, read_loss(pass), out);
        }
        sl_ref_drop(stage, &micro->values[stage->layers[last].value]);
    }
    if (pass->step.is_recompute) {
        /* exports were sent by the first forward */
        for (v = 0; v < stage->n_values; v++) {
            sl_ref_drop(stage, &micro->values[v]);
        }
    }
out:
    return status;
}

/* ---- backward ---- */

static int wants_gradient(const sl_pass_t *pass, int l, int i)
{
    return pass->stage->needs_gradient[pass->stage->layers[l].inputs[i]];
}

/* Add a new gradient of value v to what is there; takes `grad`. */
static sl_status_t add_gradient(const sl_pass_t *pass, int v, sl_ref_t *grad)
{
    sl_ref_t **so_far = &pass->micro->grads[v];
    const sl_dtype_t dtype = pass->set->descs[v].dtype;
    const size_t bytes = sl_tensor_bytes(&pass->set->descs[v]);
    sl_sum_args_t args = {.dtype = dtype, .n = bytes / sl_dtype_bytes(dtype)};
    sl_ref_t *sum = NULL;
    sl_status_t status = SL_OK;

    if (*so_far == NULL) {
        *so_far = grad;
        return SL_OK;
    }
    /* a sum of two has the same bits whichever block it lands in */
    if ((*so_far)->n_refs == 1) {
        sum = sl_ref_share(*so_far);
    } else if (grad->n_refs == 1) {
        sum = sl_ref_share(grad);
    } else {
        SL_TRY(status,
               sl_ref_create(pass->stage, SL_MEM_CLASS_ACTIVATION, bytes, &sum),
               out);
    }
    args.out = sum->block->ptr;
    args.a = (*so_far)->block->ptr;
    args.b = grad->block->ptr;
    status = sl_device_sum(pass->stage->device, &args, pass->span);
    sl_ref_drop(pass->stage, so_far);
    *so_far = sum;
out:
    sl_ref_drop(pass->stage, &grad);
    return status;
}

static int reads_twice(const sl_stage_layer_t *layer, int i)
{
    int j;

    for (j = 0; j < layer->layer->n_inputs; j++) {
        if (j != i && layer->inputs[j] == layer->inputs[i]) {
            return 1;
        }
    }
    return 0;
}

/* Where the gradient of input i goes: run->din[i], run->din_prev[i]. */
static sl_status_t make_din(const sl_pass_t *pass, int l, int i,
                            sl_layer_run_t *run, sl_ref_t **din_p)
{
    const sl_stage_layer_t *layer = &pass->stage->layers[l];
    const sl_layer_plan_t *plan = &pass->set->plans[l];
    sl_ref_t *so_far = pass->micro->grads[layer->inputs[i]];
    sl_status_t status = SL_OK;

    if ((plan->accumulates >> i & 1) && so_far != NULL &&
        !reads_twice(layer, i)) {
        run->din_prev[i] = so_far->block->ptr;
        if (so_far->n_refs == 1) {
            *din_p = sl_ref_share(so_far);
            run->din[i] = so_far->block->ptr;
            return SL_OK;
        }
    }
    SL_TRY(status,
           sl_ref_create(pass->stage, SL_MEM_CLASS_ACTIVATION,
                         sl_tensor_bytes(&plan->in[i]), din_p),
           out);
    run->din[i] = (*din_p)->block->ptr;
out:
    return status;
}

/* After the op: make the new gradients those of their values. */
static sl_status_t settle_gradients(const sl_pass_t *pass, int l,
                                    const sl_layer_run_t *run, sl_ref_t **din,
                                    sl_ref_t *dout)
{
    const sl_stage_layer_t *layer = &pass->stage->layers[l];
    sl_ref_t **grads = pass->micro->grads;
    sl_status_t status = SL_OK;
    int i;

    for (i = 0; i < layer->layer->n_inputs; i++) {
        const int v = layer->inputs[i];

        if (!wants_gradient(pass, l, i)) {
            continue;
        }
        if (run->din_prev[i] != NULL) {
            sl_ref_drop(pass->stage, &grads[v]);
            grads[v] = din[i];
        } else {
            sl_ref_t *grad = din[i] != NULL ? din[i] : sl_ref_share(dout);

            SL_KEEP(status, add_gradient(pass, v, grad));
        }
        din[i] = NULL;
    }
    return status;
}

static void settle_backward(const sl_pass_t *pass, int l)
{
    const sl_stage_layer_t *layer = &pass->stage->layers[l];
    sl_micro_state_t *micro = pass->micro;
    int i;

    sl_mem_release(micro->saved[l]);
    micro->saved[l] = NULL;
    for (i = 0; i <= layer->layer->n_inputs; i++) {
        const int v =
            i < layer->layer->n_inputs ? layer->inputs[i] : layer->value;

        if (pass->set->live.last_backward[v] == l) {
            sl_ref_drop(pass->stage, &micro->kept[v]);
        }
    }
}

static sl_status_t backward_layer(const sl_pass_t *pass, int l)
{
    const sl_stage_layer_t *layer = &pass->stage->layers[l];
    const sl_layer_plan_t *plan = &pass->set->plans[l];
    sl_micro_state_t *micro = pass->micro;
    sl_layer_run_t run = {.plan = plan, .step = pass->step};
    sl_ref_t *din[SL_LAYER_MAX_INPUTS] = {NULL};
    sl_ref_t *dout = micro->grads[layer->value];
    sl_mem_block_t *workspace = NULL;
    int is_needed = layer->layer->n_params > 0;
    sl_status_t status = SL_OK;
    int i;

    micro->grads[layer->value] = NULL;
    for (i = 0; i < layer->layer->n_inputs; i++) {
        run.in[i] = ref_ptr(micro->kept[layer->inputs[i]]);
        if (wants_gradient(pass, l, i) && !(plan->passes_gradient >> i & 1)) {
            SL_TRY(status, make_din(pass, l, i, &run, &din[i]), out);
            is_needed = 1;
        }
    }
    if (plan->backward_workspace_bytes > 0 && is_needed) {
        SL_TRY(status,
               sl_stage_alloc(pass->stage, SL_MEM_CLASS_WORKSPACE,
                              plan->backward_workspace_bytes, &workspace),
               out);
        run.workspace = workspace->ptr;
    }
    run.out = ref_ptr(micro->kept[layer->value]);
    run.dout = ref_ptr(dout);
    run.saved = micro->saved[l] == NULL ? NULL : micro->saved[l]->ptr;
    set_params(pass, layer, &run);
    if (is_needed) {
        SL_TRY(status,
               submit(pass, sl_layer_op_backward, layer->backward_name, &run),
               out);
    }
    status = settle_gradients(pass, l, &run, din, dout);
    settle_backward(pass, l);
out:
    sl_mem_release(workspace);
    for (i = 0; i < SL_LAYER_MAX_INPUTS; i++) {
        sl_ref_drop(pass->stage, &din[i]);
    }
    sl_ref_drop(pass->stage, &dout);
    return status;
}

sl_status_t sl_pass_backward(const sl_pass_t *pass)
{
    sl_status_t status = SL_OK;
    int l;

    for (l = pass->stage->n_layers - 1; l >= 0; l--) {
        if (pass->stage->layers[l].has_backward) {
            SL_TRY(status, backward_layer(pass, l), out);
        }
        if (pass->is_last_backward) {
            SL_TRY(status, sl_reduce_layer(pass->stage, l), out);
        }
    }
out:
    return status;
}
