/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes of one micro-batch in a stage, from its forward to its backward. */
#include "partition/walk_memory.h"

#include <stdlib.h>
#include <string.h>

enum {
    NONE = -1
};

sl_status_t sl_walk_init(sl_walk_t *walk, int n_layers,
                         const sl_walk_layer_t *layers)
{
    const size_t n = (size_t)n_layers;
    const size_t room = 5 * (n + 2); /* slots that may hold a block each */
    sl_status_t status;
    size_t i;

    walk->n_layers = n_layers;
    walk->layers = layers;
    walk->values = calloc(n + 2, sizeof(*walk->values));
    walk->saved = calloc(n, sizeof(int));
    walk->is_recomputed = calloc(n, sizeof(int));
    walk->imports = calloc(n, sizeof(int));
    walk->blocks = calloc(room, sizeof(*walk->blocks));
    walk->free_blocks = calloc(room, sizeof(int));
    if (walk->values == NULL || walk->saved == NULL ||
        walk->is_recomputed == NULL || walk->imports == NULL ||
        walk->blocks == NULL || walk->free_blocks == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "partition: no memory to walk through %d layers", n_layers);
    }
    walk->blocks_room = (int)room;
    for (i = 0; i < n + 2; i++) {
        walk->values[i] =
            (sl_walk_value_t){NONE, NONE, NONE, NONE, NONE, 0, NONE, 0};
    }
    for (i = 0; i < n; i++) {
        walk->saved[i] = NONE;
    }
    for (i = 0; i < room; i++) {
        walk->free_blocks[i] = (int)(room - 1 - i);
    }
    walk->n_free = (int)room;
    return SL_OK;
out:
    return status;
}

void sl_walk_cleanup(sl_walk_t *walk)
{
    free(walk->values);
    free(walk->saved);
    free(walk->is_recomputed);
    free(walk->imports);
    free(walk->blocks);
    free(walk->free_blocks);
    memset(walk, 0, sizeof(*walk));
}

/* ---- blocks ---- */

static size_t rounded(size_t bytes)
{
    const size_t mask = SL_MEM_ALIGN_BYTES - 1;

    return (bytes + mask) & ~mask;
}

static void take(sl_walk_t *walk, size_t bytes)
{
    walk->used_bytes += rounded(bytes);
    if (walk->used_bytes > walk->peak_bytes) {
        walk->peak_bytes = walk->used_bytes;
    }
}

static int block_new(sl_walk_t *walk, size_t bytes)
{
    const int block = walk->free_blocks[--walk->n_free];

    take(walk, bytes);
    walk->blocks[block].bytes = rounded(bytes);
    walk->blocks[block].n_refs = 1;
    return block;
}

static int block_share(sl_walk_t *walk, int block)
{
    if (block != NONE) {
        walk->blocks[block].n_refs++;
    }
    return block;
}

static void block_drop(sl_walk_t *walk, int *slot)
{
    const int block = *slot;

    *slot = NONE;
    if (block != NONE && --walk->blocks[block].n_refs == 0) {
        walk->used_bytes -= walk->blocks[block].bytes;
        walk->free_blocks[walk->n_free++] = block;
    }
}

/* ---- values ---- */

static sl_walk_value_t *value_of(sl_walk_t *walk, int source)
{
    const int n = walk->n_layers;

    return &walk->values[source >= 0               ? source
                         : source == SL_INPUT_DATA ? n
                                                   : n + 1];
}

static sl_walk_value_t *input_of(sl_walk_t *walk, int l, int i)
{
    return value_of(walk, walk->layers[l].layer->inputs[i]);
}

static int is_own(const sl_walk_t *walk, int source)
{
    return source >= walk->begin && source < walk->end;
}

static void forget(sl_walk_value_t *value)
{
    value->last_use = NONE;
    value->is_kept = 0;
    value->last_backward = NONE;
    value->is_needed = 0;
}

static void mark_kept(sl_walk_value_t *value, int layer)
{
    if (!value->is_kept) {
        value->is_kept = 1;
        value->last_backward = layer;
    }
}

/* Which values the stage reads, how long, and which backward reads. */
static void find_uses(sl_walk_t *walk)
{
    int l, i;

    walk->n_imports = 0;
    for (l = walk->begin; l < walk->end; l++) {
        const sl_layer_t *layer = walk->layers[l].layer;

        forget(value_of(walk, l));
        for (i = 0; i < layer->n_inputs; i++) {
            if (!is_own(walk, layer->inputs[i])) {
                forget(input_of(walk, l, i));
            }
        }
    }
    for (l = walk->begin; l < walk->end; l++) {
        const sl_walk_layer_t *own = &walk->layers[l];

        for (i = 0; i < own->layer->n_inputs; i++) {
            const int source = own->layer->inputs[i];
            sl_walk_value_t *value = input_of(walk, l, i);

            if (source >= 0 && source < walk->begin &&
                value->last_use == NONE) {
                walk->imports[walk->n_imports++] = source;
            }
            value->last_use = l;
            if (own->needs_gradient && own->facts->keeps_input[i]) {
                mark_kept(value, l);
            }
        }
        if (own->needs_gradient && own->facts->keeps_output) {
            mark_kept(value_of(walk, l), l);
        }
    }
    /* what later stages read is sent at the end; the loss is read then */
    for (l = walk->begin; l < walk->end; l++) {
        if (walk->layers[l].last_reader >= walk->end ||
            walk->layers[l].layer->ops->is_loss) {
            value_of(walk, l)->last_use = walk->end;
        }
    }
    for (i = 0; i < walk->n_imports; i++) {
        if (walk->layers[walk->imports[i]].last_reader >= walk->end) {
            value_of(walk, walk->imports[i])->last_use = walk->end;
        }
    }
}

/* The layers that a full recomputation runs again, and what it starts from. */
static void find_recomputed(sl_walk_t *walk)
{
    int l, i;

    for (l = walk->begin; l < walk->end; l++) {
        const sl_layer_t *layer = walk->layers[l].layer;

        walk->is_recomputed[l] = 0;
        for (i = 0; i < layer->n_inputs; i++) {
            sl_walk_value_t *value = input_of(walk, l, i);

            value->is_needed |=
                value->is_kept && !is_own(walk, layer->inputs[i]);
        }
    }
    for (l = walk->end - 1; l >= walk->begin; l--) {
        const sl_walk_layer_t *own = &walk->layers[l];

        walk->is_recomputed[l] |=
            value_of(walk, l)->is_kept ||
            (own->needs_gradient && own->facts->saved_bytes > 0);
        for (i = 0; walk->is_recomputed[l] && i < own->layer->n_inputs; i++) {
            const int source = own->layer->inputs[i];

            input_of(walk, l, i)->is_needed = 1;
            if (is_own(walk, source)) {
                walk->is_recomputed[source] = 1;
            }
        }
    }
}

/* ---- forward ---- */

typedef struct sl_walk_pass {
    int keeps;      /* hold what backward reads */
    int is_stashed; /* hold what a recomputation starts from */
    int is_again;   /* this is the recomputation */
} sl_walk_pass_t;

static void settle_forward(sl_walk_t *walk, const sl_walk_pass_t *pass, int l)
{
    const sl_layer_t *layer = walk->layers[l].layer;
    int i;

    for (i = 0; i <= layer->n_inputs; i++) {
        sl_walk_value_t *value =
            i < layer->n_inputs ? input_of(walk, l, i) : value_of(walk, l);

        if (pass->keeps && value->is_kept && value->kept == NONE) {
            value->kept = block_share(walk, value->now);
        }
        if (value->last_use == l) {
            block_drop(walk, &value->now);
        }
    }
}

static void make_output(sl_walk_t *walk, const sl_walk_pass_t *pass, int l)
{
    const sl_walk_facts_t *facts = walk->layers[l].facts;
    sl_walk_value_t *source = input_of(walk, l, 0);
    sl_walk_value_t *value = value_of(walk, l);

    if (facts->in_place && source->last_use == l && source->now != NONE &&
        walk->blocks[source->now].n_refs == 1 &&
        !(pass->keeps && source->is_kept) &&
        facts->in_bytes[0] == facts->out_bytes) {
        value->now = block_share(walk, source->now);
    } else {
        value->now = block_new(walk, facts->out_bytes);
    }
}

static void forward_layer(sl_walk_t *walk, const sl_walk_pass_t *pass, int l)
{
    const sl_walk_layer_t *own = &walk->layers[l];
    const sl_walk_facts_t *facts = own->facts;
    int saved = NONE;

    make_output(walk, pass, l);
    if (facts->saved_bytes > 0) {
        saved = block_new(walk, facts->saved_bytes);
    }
    take(walk, facts->forward_workspace_bytes);
    walk->used_bytes -= rounded(facts->forward_workspace_bytes);
    if (pass->keeps && own->needs_gradient) {
        walk->saved[l] = saved;
        saved = NONE;
    }
    settle_forward(walk, pass, l);
    block_drop(walk, &saved);
}

static void load_input(sl_walk_t *walk, const sl_walk_pass_t *pass, int source)
{
    sl_walk_value_t *value = value_of(walk, source);

    if (pass->is_again ? value->is_needed : value->last_use != NONE) {
        value->now =
            block_new(walk, source == SL_INPUT_DATA ? walk->data_bytes
                                                    : walk->target_bytes);
    }
}

static void start_forward(sl_walk_t *walk, const sl_walk_pass_t *pass)
{
    int i;

    for (i = 0; i < walk->n_imports; i++) {
        const int source = walk->imports[i];
        sl_walk_value_t *value = value_of(walk, source);

        if (pass->is_again) {
            value->now = value->stash;
            value->stash = NONE;
            continue;
        }
        value->now = block_new(walk, walk->layers[source].facts->out_bytes);
        if (pass->is_stashed && value->is_needed) {
            value->stash = block_share(walk, value->now);
        }
    }
    load_input(walk, pass, SL_INPUT_TARGET);
    load_input(walk, pass, SL_INPUT_DATA);
}

static void forward(sl_walk_t *walk, const sl_walk_pass_t *pass)
{
    int l;

    start_forward(walk, pass);
    for (l = walk->begin; l < walk->end; l++) {
        if (pass->is_again && !walk->is_recomputed[l]) {
            settle_forward(walk, pass, l);
        } else {
            forward_layer(walk, pass, l);
        }
    }
}

/* Drop what is left of the pass: sent, read, or only made to be kept.
 * @return bytes that nothing else holds */
static size_t end_forward(sl_walk_t *walk)
{
    const size_t before = walk->used_bytes;
    int l;

    for (l = 0; l < walk->n_imports; l++) {
        block_drop(walk, &value_of(walk, walk->imports[l])->now);
    }
    for (l = walk->begin; l < walk->end; l++) {
        block_drop(walk, &value_of(walk, l)->now);
    }
    block_drop(walk, &value_of(walk, SL_INPUT_DATA)->now);
    block_drop(walk, &value_of(walk, SL_INPUT_TARGET)->now);
    return before - walk->used_bytes;
}

/* ---- backward ---- */

static int wants_gradient(const sl_walk_t *walk, int l, int i)
{
    const int source = walk->layers[l].layer->inputs[i];

    return source >= 0 && walk->layers[source].needs_gradient;
}

static int reads_twice(const sl_layer_t *layer, int i)
{
    int j;

    for (j = 0; j < layer->n_inputs; j++) {
        if (j != i && layer->inputs[j] == layer->inputs[i]) {
            return 1;
        }
    }
    return 0;
}

static void add_gradient(sl_walk_t *walk, int *so_far, int grad, size_t bytes)
{
    int sum;

    if (*so_far == NONE) {
        *so_far = grad;
        return;
    }
    if (walk->blocks[*so_far].n_refs == 1) {
        sum = block_share(walk, *so_far);
    } else if (walk->blocks[grad].n_refs == 1) {
        sum = block_share(walk, grad);
    } else {
        sum = block_new(walk, bytes);
    }
    block_drop(walk, so_far);
    *so_far = sum;
    block_drop(walk, &grad);
}

/* The gradient of input i after layer l's backward; NONE: it is dout's. */
static int make_din(sl_walk_t *walk, int l, int i, int *is_sum)
{
    const sl_walk_facts_t *facts = walk->layers[l].facts;
    const int so_far = input_of(walk, l, i)->grad;

    *is_sum = 0;
    if (facts->passes_gradient >> i & 1) {
        return NONE;
    }
    if ((facts->accumulates >> i & 1) && so_far != NONE &&
        !reads_twice(walk->layers[l].layer, i)) {
        *is_sum = 1;
        if (walk->blocks[so_far].n_refs == 1) {
            return block_share(walk, so_far);
        }
    }
    return block_new(walk, facts->in_bytes[i]);
}

static void settle_backward(sl_walk_t *walk, int l)
{
    const sl_layer_t *layer = walk->layers[l].layer;
    int i;

    block_drop(walk, &walk->saved[l]);
    for (i = 0; i <= layer->n_inputs; i++) {
        sl_walk_value_t *value =
            i < layer->n_inputs ? input_of(walk, l, i) : value_of(walk, l);

        if (value->last_backward == l) {
            block_drop(walk, &value->kept);
        }
    }
}

static void backward_layer(sl_walk_t *walk, int l)
{
    const sl_layer_t *layer = walk->layers[l].layer;
    const sl_walk_facts_t *facts = walk->layers[l].facts;
    int din[SL_LAYER_MAX_INPUTS], is_sum[SL_LAYER_MAX_INPUTS];
    int dout = value_of(walk, l)->grad;
    int is_needed = layer->n_params > 0, i;

    value_of(walk, l)->grad = NONE;
    for (i = 0; i < layer->n_inputs; i++) {
        din[i] = NONE;
        if (wants_gradient(walk, l, i)) {
            din[i] = make_din(walk, l, i, &is_sum[i]);
            is_needed |= din[i] != NONE;
        }
    }
    if (is_needed) {
        take(walk, facts->backward_workspace_bytes);
        walk->used_bytes -= rounded(facts->backward_workspace_bytes);
    }
    for (i = 0; i < layer->n_inputs; i++) {
        int *grad = &input_of(walk, l, i)->grad;

        if (!wants_gradient(walk, l, i)) {
            continue;
        }
        if (din[i] != NONE && is_sum[i]) {
            block_drop(walk, grad);
            *grad = din[i];
        } else {
            const int own = din[i] != NONE ? din[i] : block_share(walk, dout);

            if (own != NONE) {
                add_gradient(walk, grad, own, facts->in_bytes[i]);
            }
        }
    }
    settle_backward(walk, l);
    block_drop(walk, &dout);
}

static void backward(sl_walk_t *walk)
{
    int l;

    for (l = walk->begin; l < walk->end; l++) {
        if (walk->layers[l].last_reader >= walk->end &&
            walk->layers[l].needs_gradient) {
            value_of(walk, l)->grad =
                block_new(walk, walk->layers[l].facts->out_bytes);
        }
    }
    for (l = 0; l < walk->n_imports; l++) {
        const int source = walk->imports[l];

        if (walk->layers[source].last_reader >= walk->end &&
            walk->layers[source].needs_gradient) {
            value_of(walk, source)->grad =
                block_new(walk, walk->layers[source].facts->out_bytes);
        }
    }
    for (l = walk->end - 1; l >= walk->begin; l--) {
        if (walk->layers[l].needs_gradient) {
            backward_layer(walk, l);
        }
    }
    for (l = 0; l < walk->n_imports; l++) {
        block_drop(walk, &value_of(walk, walk->imports[l])->grad);
    }
}

/* ---- the walk ---- */

/* Most at once from here on. */
static void mark(sl_walk_t *walk)
{
    walk->peak_bytes = walk->used_bytes;
}

void sl_walk_stage(sl_walk_t *walk, int begin, int end, int is_recomputed,
                   sl_walk_mode_t *mode_p)
{
    sl_walk_pass_t pass = {.keeps = !is_recomputed,
                           .is_stashed = is_recomputed};
    int l;

    walk->begin = begin;
    walk->end = end;
    walk->used_bytes = 0;
    memset(mode_p, 0, sizeof(*mode_p));
    find_uses(walk);
    find_recomputed(walk);
    mark(walk);
    forward(walk, &pass);
    mode_p->forward_bytes = walk->peak_bytes;
    mode_p->export_bytes = end_forward(walk);
    mode_p->held_bytes = walk->used_bytes;
    if (is_recomputed) {
        pass = (sl_walk_pass_t){.keeps = 1, .is_again = 1};
        mark(walk);
        forward(walk, &pass);
        mode_p->recompute_bytes = walk->peak_bytes;
        (void)end_forward(walk);
    }
    mark(walk);
    backward(walk);
    mode_p->backward_bytes = walk->peak_bytes;
    /* what no backward read: nothing is left for the next walk */
    for (l = begin; l < end; l++) {
        block_drop(walk, &walk->saved[l]);
        block_drop(walk, &value_of(walk, l)->kept);
        block_drop(walk, &value_of(walk, l)->grad);
    }
}

size_t sl_walk_gradient_bytes(const sl_walk_t *walk)
{
    size_t bytes = 0;
    int i;

    for (i = 0; i < walk->n_imports; i++) {
        const sl_walk_layer_t *source = &walk->layers[walk->imports[i]];

        if (source->needs_gradient) {
            bytes += rounded(source->facts->out_bytes);
        }
    }
    return bytes;
}
