/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors of a pipeline's edges in and out, and what is lent meanwhile. */
#include "engine/transfers.h"

/* Loans end at fixed points of the program and not when the receiver happens
 * to have taken them: so memory use is the same in every run, and a rehearsal
 * predicts it. */

static void end_loan(sl_stage_t *stage, int i)
{
    sl_ref_drop(stage, &stage->loans[i].ref);
    stage->n_loans--;
    for (; i < stage->n_loans; i++) {
        stage->loans[i] = stage->loans[i + 1];
    }
}

/* The oldest loan of a channel whose slots are all lent; -1: there are
 * others. */
static int loan_to_end(const sl_stage_t *stage, const sl_channel_t *channel)
{
    int i, oldest = -1, n = 0;

    for (i = stage->n_loans - 1; i >= 0; i--) {
        if (stage->loans[i].channel == channel) {
            oldest = i;
            n++;
        }
    }
    return n < channel->n_slots ? -1 : oldest;
}

static sl_status_t lend(const sl_pass_t *pass, sl_channel_t *channel,
                        sl_ref_t **ref_p, int value)
{
    sl_stage_t *stage = pass->stage;
    const int m = pass->m;
    const int oldest = loan_to_end(stage, channel);
    sl_status_t status;

    if (oldest >= 0) {
        SL_TRY(status, sl_channel_wait_taken(channel, stage->loans[oldest].m),
               out);
        end_loan(stage, oldest);
    }
    SL_TRY(status,
           sl_channel_send(channel, stage->device->ops, m, (*ref_p)->block->ptr,
                           sl_tensor_bytes(&pass->set->descs[value])),
           out);
    stage->loans[stage->n_loans].ref = *ref_p;
    stage->loans[stage->n_loans].channel = channel;
    stage->loans[stage->n_loans].m = m;
    stage->n_loans++;
    *ref_p = NULL;
out:
    return status;
}

/* A gradient of micro-batch m has come from a later stage, so that stage has
 * taken all the forward results that its program takes before that. */
static sl_status_t end_forward_loans(sl_stage_t *stage, sl_channel_t *forward,
                                     int m)
{
    const sl_engine_t *engine = stage->engine;
    const int last = engine->params.schedule == SL_SCHEDULE_1F1B
                         ? m + engine->n_stages - 1 - forward->to_stage
                         : stage->n_micro - 1;
    sl_status_t status = SL_OK;
    int i = 0;

    while (i < stage->n_loans) {
        if (stage->loans[i].channel == forward && stage->loans[i].m <= last) {
            SL_TRY(status, sl_channel_wait_taken(forward, stage->loans[i].m),
                   out);
            end_loan(stage, i);
        } else {
            i++;
        }
    }
out:
    return status;
}

static sl_status_t receive(const sl_pass_t *pass, sl_channel_t *channel,
                           sl_mem_class_t mem_class, int value,
                           sl_ref_t **ref_p)
{
    const size_t bytes = sl_tensor_bytes(&pass->set->descs[value]);
    const int m = pass->m;
    sl_status_t status;

    SL_TRY(status, sl_channel_wait(channel, m), out);
    SL_TRY(status, sl_ref_create(pass->stage, mem_class, bytes, ref_p), out);
    status = sl_channel_receive(channel, pass->stage->device->ops, m,
                                (*ref_p)->block->ptr, bytes, pass->span);
out:
    return status;
}

sl_status_t sl_receive_forward(const sl_pass_t *pass)
{
    const sl_stage_t *stage = pass->stage;
    sl_status_t status = SL_OK;
    int e;

    for (e = 0; e < stage->n_imports; e++) {
        const int v = stage->imports[e].value;

        SL_TRY(status,
               receive(pass, stage->imports[e].forward,
                       pass->step.is_training ? SL_MEM_CLASS_STASH
                                              : SL_MEM_CLASS_ACTIVATION,
                       v, &pass->micro->values[v]),
               out);
    }
out:
    return status;
}

sl_status_t sl_send_forward(const sl_pass_t *pass)
{
    const sl_stage_t *stage = pass->stage;
    sl_status_t status = SL_OK;
    int e;

    for (e = 0; e < stage->n_exports; e++) {
        const int v = stage->exports[e].value;

        SL_TRY(
            status,
            lend(pass, stage->exports[e].forward, &pass->micro->values[v], v),
            out);
    }
out:
    return status;
}

sl_status_t sl_receive_backward(const sl_pass_t *pass)
{
    sl_stage_t *stage = pass->stage;
    sl_status_t status = SL_OK;
    int e;

    for (e = 0; e < stage->n_exports; e++) {
        const sl_stage_edge_t *edge = &stage->exports[e];

        if (edge->backward != NULL) {
            SL_TRY(status, sl_channel_wait(edge->backward, pass->m), out);
            SL_TRY(status, end_forward_loans(stage, edge->forward, pass->m),
                   out);
            SL_TRY(status,
                   receive(pass, edge->backward, SL_MEM_CLASS_ACTIVATION,
                           edge->value, &pass->micro->grads[edge->value]),
                   out);
        }
    }
out:
    return status;
}

sl_status_t sl_send_backward(const sl_pass_t *pass)
{
    const sl_stage_t *stage = pass->stage;
    sl_status_t status = SL_OK;
    int e;

    for (e = 0; e < stage->n_imports; e++) {
        const int v = stage->imports[e].value;

        if (stage->imports[e].backward != NULL) {
            SL_TRY(status,
                   lend(pass, stage->imports[e].backward,
                        &pass->micro->grads[v], v),
                   out);
        }
    }
out:
    return status;
}

sl_status_t sl_loans_settle(const sl_stage_t *stage)
{
    sl_status_t status = SL_OK;
    int i;

    for (i = 0; i < stage->n_loans; i++) {
        SL_TRY(
            status,
            sl_channel_wait_taken(stage->loans[i].channel, stage->loans[i].m),
            out);
    }
out:
    return status;
}

/* ---- for a rehearsal ---- */

int sl_edges_are_ready(const sl_stage_edge_t *edges, int n, int m,
                       int is_backward)
{
    int e;

    for (e = 0; e < n; e++) {
        sl_channel_t *channel =
            is_backward ? edges[e].backward : edges[e].forward;

        if (channel != NULL && !sl_channel_is_ready(channel, m)) {
            return 0;
        }
    }
    return 1;
}

int sl_edges_have_a_slot(const sl_stage_t *stage, const sl_stage_edge_t *edges,
                         int n, int is_backward)
{
    int e;

    for (e = 0; e < n; e++) {
        sl_channel_t *channel =
            is_backward ? edges[e].backward : edges[e].forward;
        const int i = channel == NULL ? -1 : loan_to_end(stage, channel);

        if (i >= 0 && !sl_channel_is_taken(channel, stage->loans[i].m)) {
            return 0;
        }
    }
    return 1;
}
