/* SPDX-License-Identifier: Apache-2.0 */
/* The checks every layer type must pass. */
#include "tests/layers/layer_check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Results of a pass, to compare bits with a later one. */
typedef struct results {
    void *out;
    void *params[SL_LAYER_MAX_PARAMS];
    void *dins[SL_LAYER_MAX_INPUTS];
    void *grads[SL_LAYER_MAX_PARAMS];
} results_t;

typedef struct context {
    const sl_layer_check_t *check;
    sl_layer_bed_t bed;
    double *in[SL_LAYER_MAX_INPUTS]; /* plain, for the reference */
    double *param[SL_LAYER_MAX_PARAMS];
    double *out;
    results_t first;
} context_t;

static void failed(const context_t *c, const char *what, int index)
{
    (void)fprintf(stderr, "layer %s, %d threads: %s %d\n", c->check->type,
                  c->bed.plan.n_threads, what, index);
    fail();
}

static void *copy_of(const void *data, size_t bytes)
{
    void *copy = malloc(bytes + 1);

    assert_non_null(copy);
    if (bytes > 0) {
        memcpy(copy, data, bytes);
    }
    return copy;
}

static double *doubles_of(const float *plain, int64_t n)
{
    double *data = calloc((size_t)n + 1, sizeof(*data));
    int64_t i;

    assert_non_null(data);
    for (i = 0; plain != NULL && i < n; i++) {
        data[i] = (double)plain[i];
    }
    return data;
}

static double tolerance_of(const context_t *c, int is_gradient)
{
    if (is_gradient && c->check->gradient_tolerance > 0) {
        return c->check->gradient_tolerance;
    }
    return c->check->tolerance > 0 ? c->check->tolerance : 2e-5;
}

/* Largest error of a value of this type: of the computation, of its result's
 * rounding (f16 has the fixed step 2^-24 near 0), and of values within. */
static double allowed(const context_t *c, double want, double tolerance,
                      sl_dtype_t dtype)
{
    return tolerance * (1 + fabs(want)) +
           1.01 * sl_dtype_rounding(dtype) * fabs(want) +
           (dtype == SL_DTYPE_F16 ? 0x1p-24 : 0) +
           c->check->roundings * sl_dtype_rounding(sl_layer_bed_dtype()) *
               (1 + fabs(want));
}

/* Something to compare: an element of a tensor of this type. */
typedef struct value {
    const char *what;
    int index;
    sl_dtype_t dtype;
    int64_t i;
    double got;
} value_t;

static void check_value(const context_t *c, const value_t *value, double want,
                        double tolerance)
{
    if (!(fabs(value->got - want) <=
          allowed(c, want, tolerance, value->dtype))) {
        (void)fprintf(stderr, "element %lld: got %.9g, want %.9g\n",
                      (long long)value->i, value->got, want);
        failed(c, value->what, value->index);
    }
}

/* ---- reference ---- */

static void run_reference(context_t *c)
{
    sl_layer_reference_t args = {.layer = c->bed.layer,
                                 .in_desc = c->check->inputs,
                                 .out_desc = &c->bed.plan.out,
                                 .step = &c->bed.run.step,
                                 .out = c->out};
    int i;

    for (i = 0; i < SL_LAYER_MAX_INPUTS; i++) {
        args.in[i] = c->in[i];
    }
    for (i = 0; i < SL_LAYER_MAX_PARAMS; i++) {
        args.param[i] = c->param[i];
    }
    c->check->reference(&args);
}

/* What backward differentiates. */
static double objective(context_t *c)
{
    const int64_t n = sl_tensor_elements(&c->bed.plan.out);
    double sum = 0;
    int64_t i;

    run_reference(c);
    if (c->bed.layer->ops->is_loss) {
        return c->out[0] * (double)c->bed.run.step.loss_scale;
    }
    for (i = 0; i < n; i++) {
        sum += c->out[i] * (double)c->bed.plain_dout[i];
    }
    return sum;
}

static double objective_at(context_t *c, double *x, double offset)
{
    const double value = *x;
    double result;

    *x = value + offset;
    result = objective(c);
    *x = value;
    return result;
}

/* The central difference at x. is_kink_p: whether the slope jumps near x; NULL:
 * do not look. */
static double difference(context_t *c, double *x, double tolerance,
                         int *is_kink_p)
{
    const double above = objective_at(c, x, 1e-4);
    const double below = objective_at(c, x, -1e-4);
    const double slope = (above - below) / 2e-4;
    const double size = 1 + fabs(slope);
    double at, close;

    if (is_kink_p != NULL) {
        at = objective(c);
        close = (objective_at(c, x, 1e-5) - objective_at(c, x, -1e-5)) / 2e-5;
        *is_kink_p = fabs(close - slope) > 0.1 * tolerance * size ||
                     fabs(above + below - 2 * at) / 1e-4 > 1e-3 * size;
    }
    return slope;
}

/* Compare a plain gradient with central differences of the objective. */
static void check_gradient(context_t *c, value_t value, const float *got,
                           double *x, int64_t n)
{
    const int64_t n_positions =
        c->check->n_positions > 0 ? c->check->n_positions : 24;
    const double tolerance = tolerance_of(c, 1);
    const sl_rng_t rng = sl_rng_at(77, (uint32_t)value.index, 0, 0, 101);
    int64_t k;

    for (k = 0; k < n && k < n_positions; k++) {
        int64_t i = k;
        int is_kink = 0;
        double want;

        if (n > n_positions) {
            i = k == 0 ? 0
                : k == 1
                    ? n - 1
                    : (int64_t)sl_rng_below(&rng, (uint64_t)k, (uint64_t)n);
        }
        want = difference(c, &x[i], tolerance,
                          c->check->is_kinked ? &is_kink : NULL);
        if (is_kink) {
            continue;
        }
        value.i = i;
        value.got = (double)got[i];
        check_value(c, &value, want, tolerance);
    }
}

/* ---- bits ---- */

static void poison_outputs(context_t *c)
{
    sl_layer_bed_t *bed = &c->bed;
    int i;

    memset(bed->run.out, 0xFF, sl_tensor_bytes(&bed->plan.out));
    memset(bed->run.saved, 0xFF, bed->plan.saved_bytes);
    for (i = 0; i < bed->layer->n_inputs; i++) {
        if (bed->run.din[i] != NULL) {
            memset(bed->run.din[i], 0xFF, sl_tensor_bytes(&bed->plan.in[i]));
        }
    }
}

static void poison_gradients(context_t *c)
{
    sl_layer_bed_t *bed = &c->bed;
    int i;

    for (i = 0; i < bed->layer->n_inputs; i++) {
        if (bed->run.din[i] != NULL) {
            memset(bed->run.din[i], 0xFF, sl_tensor_bytes(&bed->plan.in[i]));
        }
    }
    for (i = 0; i < bed->layer->n_params; i++) {
        if (bed->run.grad[i] != NULL) {
            memset(bed->run.grad[i], 0xFF, bed->layer->params[i].storage_bytes);
        }
    }
}

static void check_same_forward(const context_t *c, const char *what)
{
    const sl_layer_bed_t *bed = &c->bed;
    int p;

    if (memcmp(bed->run.out, c->first.out, sl_tensor_bytes(&bed->plan.out)) !=
        0) {
        failed(c, what, -1);
    }
    for (p = 0; p < bed->layer->n_params; p++) {
        if (memcmp(bed->run.param[p], c->first.params[p],
                   bed->layer->params[p].storage_bytes) != 0) {
            failed(c, what, p);
        }
    }
}

static void check_same_backward(const context_t *c, const char *what)
{
    const sl_layer_bed_t *bed = &c->bed;
    int i;

    for (i = 0; i < bed->layer->n_inputs; i++) {
        if (bed->run.din[i] != NULL &&
            memcmp(bed->run.din[i], c->first.dins[i],
                   sl_tensor_bytes(&bed->plan.in[i])) != 0) {
            failed(c, what, i);
        }
    }
    for (i = 0; i < bed->layer->n_params; i++) {
        if (bed->run.grad[i] != NULL &&
            memcmp(bed->run.grad[i], c->first.grads[i],
                   bed->layer->params[i].storage_bytes) != 0) {
            failed(c, what, i);
        }
    }
}

/* ---- forward ---- */

static void check_in_place(context_t *c)
{
    sl_layer_bed_t *bed = &c->bed;
    const void *in = bed->run.in[0];

    if (!bed->plan.in_place) {
        return;
    }
    assert_false(bed->plan.keeps_input[0]);
    assert_true(sl_tensor_bytes(&bed->plan.in[0]) ==
                sl_tensor_bytes(&bed->plan.out));
    memcpy(bed->run.out, in, sl_tensor_bytes(&bed->plan.in[0]));
    bed->run.in[0] = bed->run.out;
    sl_assert_ok(sl_layer_bed_forward(bed));
    check_same_forward(c, "in place gives other bits, param");
    bed->run.in[0] = in;
}

static void check_forward(context_t *c)
{
    sl_layer_bed_t *bed = &c->bed;
    const int64_t n = sl_tensor_elements(&bed->plan.out);
    float *got = calloc((size_t)n + 1, sizeof(*got));
    int64_t i;
    int p;

    assert_non_null(got);
    sl_assert_ok(sl_layer_bed_forward(bed));
    sl_layer_from_tensor(&bed->plan.out, bed->run.out, got);
    run_reference(c);
    for (i = 0; i < n; i++) {
        check_value(c,
                    &(value_t){.what = "output",
                               .dtype = bed->plan.out.dtype,
                               .i = i,
                               .got = (double)got[i]},
                    c->out[i], tolerance_of(c, 0));
    }
    free(got);
    c->first.out = copy_of(bed->run.out, sl_tensor_bytes(&bed->plan.out));
    for (p = 0; p < bed->layer->n_params; p++) {
        c->first.params[p] =
            copy_of(bed->run.param[p], bed->layer->params[p].storage_bytes);
    }
    poison_outputs(c);
    sl_assert_ok(sl_layer_bed_forward(bed));
    check_same_forward(c, "second forward gives other bits, param");
    if (!c->check->is_evaluation) {
        check_in_place(c);
        poison_outputs(c);
        bed->run.step.is_recompute = 1;
        sl_assert_ok(sl_layer_bed_forward(bed));
        bed->run.step.is_recompute = 0;
        check_same_forward(c, "recomputed forward gives other bits, param");
    }
}

/* ---- backward ---- */

static void check_din(context_t *c, int i)
{
    sl_layer_bed_t *bed = &c->bed;
    const sl_tensor_desc_t *desc = &bed->plan.in[i];
    const int64_t n = sl_tensor_elements(desc);
    float *got = calloc((size_t)n + 1, sizeof(*got));

    assert_non_null(got);
    sl_layer_from_tensor(desc, bed->run.din[i], got);
    check_gradient(c, (value_t){"gradient of input", i, desc->dtype, 0, 0}, got,
                   c->in[i], n);
    free(got);
    if ((bed->plan.passes_gradient >> i & 1) != 0 &&
        memcmp(bed->run.din[i], bed->run.dout, sl_tensor_bytes(desc)) != 0) {
        failed(c, "gradient is not passed unchanged, input", i);
    }
}

static float *grad_of(context_t *c, int p)
{
    const sl_param_t *param = &c->bed.layer->params[p];
    float *got =
        calloc((size_t)sl_tensor_elements(&param->desc) + 1, sizeof(*got));

    assert_non_null(got);
    sl_assert_ok(sl_layer_param_unpack(c->bed.layer, c->bed.plan.kind, p,
                                       c->bed.run.grad[p], got));
    return got;
}

static void check_added_gradients(context_t *c)
{
    sl_layer_bed_t *bed = &c->bed;
    float *once[SL_LAYER_MAX_PARAMS] = {0};
    int p;

    for (p = 0; p < bed->layer->n_params; p++) {
        once[p] = bed->run.grad[p] == NULL ? NULL : grad_of(c, p);
    }
    bed->run.step.is_first_backward = 0;
    sl_assert_ok(sl_layer_bed_backward(bed));
    bed->run.step.is_first_backward = 1;
    for (p = 0; p < bed->layer->n_params; p++) {
        const int64_t n = sl_tensor_elements(&bed->layer->params[p].desc);
        float *twice = once[p] == NULL ? NULL : grad_of(c, p);
        int64_t i;

        for (i = 0; twice != NULL && i < n; i++) {
            check_value(c,
                        &(value_t){"added gradient of param", p, SL_DTYPE_F32,
                                   i, (double)twice[i]},
                        2.0 * (double)once[p][i], 2e-5);
        }
        free(twice);
        free(once[p]);
    }
}

/* din = gradient + prev, with prev elsewhere and with prev in din. */
static void check_prev(context_t *c, int i)
{
    sl_layer_bed_t *bed = &c->bed;
    const sl_tensor_desc_t *desc = &bed->plan.in[i];
    const int64_t n = sl_tensor_elements(desc);
    const sl_rng_t rng = sl_rng_at(55, (uint32_t)i, 0, 0, 101);
    float *plain = calloc((size_t)n + 1, sizeof(*plain));
    float *alone = calloc((size_t)n + 1, sizeof(*alone));
    float *got = calloc((size_t)n + 1, sizeof(*got));
    void *prev = sl_layer_bed_buffer(bed, sl_tensor_bytes(desc));
    void *sum;
    int64_t k;

    assert_true(plain != NULL && alone != NULL && got != NULL);
    sl_rng_normal(&rng, plain, (size_t)n);
    sl_layer_to_tensor(desc, plain, prev);
    sl_layer_from_tensor(desc, prev, plain); /* rounded */
    sl_layer_from_tensor(desc, c->first.dins[i], alone);
    bed->run.din_prev[i] = prev;
    poison_gradients(c);
    sl_assert_ok(sl_layer_bed_backward(bed));
    sl_layer_from_tensor(desc, bed->run.din[i], got);
    for (k = 0; k < n; k++) {
        /* alone is rounded, and maybe once more before the sum */
        check_value(c,
                    &(value_t){"gradient + earlier one, input", i, desc->dtype,
                               k, (double)got[k]},
                    (double)alone[k] + (double)plain[k],
                    2e-5 + 2 * sl_dtype_rounding(desc->dtype));
    }
    sum = copy_of(bed->run.din[i], sl_tensor_bytes(desc));
    poison_gradients(c);
    memcpy(bed->run.din[i], prev, sl_tensor_bytes(desc));
    bed->run.din_prev[i] = bed->run.din[i];
    sl_assert_ok(sl_layer_bed_backward(bed));
    if (memcmp(sum, bed->run.din[i], sl_tensor_bytes(desc)) != 0) {
        failed(c, "adding in place gives other bits, input", i);
    }
    bed->run.din_prev[i] = NULL;
    free(sum);
    free(plain);
    free(alone);
    free(got);
}

/* Each result not asked for: the others stay as they were. */
static void check_partial(context_t *c)
{
    sl_layer_bed_t *bed = &c->bed;
    int i;

    for (i = 0; i < bed->layer->n_inputs; i++) {
        void *din = bed->run.din[i];

        poison_gradients(c);
        bed->run.din[i] = NULL;
        sl_assert_ok(sl_layer_bed_backward(bed));
        check_same_backward(c, "without a din, other bits of");
        bed->run.din[i] = din;
    }
    for (i = 0; i < bed->layer->n_params; i++) {
        void *grad = bed->run.grad[i];

        poison_gradients(c);
        bed->run.grad[i] = NULL;
        sl_assert_ok(sl_layer_bed_backward(bed));
        check_same_backward(c, "without a grad, other bits of");
        bed->run.grad[i] = grad;
    }
}

static void hide_what_is_not_kept(context_t *c)
{
    sl_layer_bed_t *bed = &c->bed;
    int i;

    for (i = 0; i < bed->layer->n_inputs; i++) {
        if (!bed->plan.keeps_input[i]) {
            bed->run.in[i] = NULL;
        }
    }
    if (!bed->plan.keeps_output) {
        bed->run.out = NULL;
    }
}

static void check_backward(context_t *c)
{
    sl_layer_bed_t *bed = &c->bed;
    int i;

    hide_what_is_not_kept(c);
    poison_gradients(c);
    sl_assert_ok(sl_layer_bed_backward(bed));
    for (i = 0; i < bed->layer->n_inputs; i++) {
        if (bed->run.din[i] != NULL) {
            c->first.dins[i] =
                copy_of(bed->run.din[i], sl_tensor_bytes(&bed->plan.in[i]));
            check_din(c, i);
        }
    }
    for (i = 0; i < bed->layer->n_params; i++) {
        if (bed->run.grad[i] != NULL) {
            float *got = grad_of(c, i);

            c->first.grads[i] =
                copy_of(bed->run.grad[i], bed->layer->params[i].storage_bytes);
            check_gradient(
                c, (value_t){"gradient of param", i, SL_DTYPE_F32, 0, 0}, got,
                c->param[i], sl_tensor_elements(&bed->layer->params[i].desc));
            free(got);
        }
    }
    poison_gradients(c);
    sl_assert_ok(sl_layer_bed_backward(bed));
    check_same_backward(c, "second backward gives other bits of");
    check_added_gradients(c);
    check_partial(c);
    for (i = 0; i < bed->layer->n_inputs; i++) {
        if (bed->run.din[i] != NULL && (bed->plan.accumulates >> i & 1) != 0) {
            check_prev(c, i);
        }
    }
}

/* ---- all ---- */

static void context_cleanup(context_t *c)
{
    int i;

    for (i = 0; i < SL_LAYER_MAX_INPUTS; i++) {
        free(c->in[i]);
        free(c->first.dins[i]);
    }
    for (i = 0; i < SL_LAYER_MAX_PARAMS; i++) {
        free(c->param[i]);
        free(c->first.params[i]);
        free(c->first.grads[i]);
    }
    free(c->out);
    free(c->first.out);
    sl_layer_bed_cleanup(&c->bed);
}

static void check_cost(context_t *c)
{
    sl_layer_cost_t cost;

    sl_assert_ok(sl_layer_cost(c->bed.layer, c->bed.plan.in, &cost));
    assert_true(cost.forward_flops >= 0 && isfinite(cost.forward_flops));
    assert_true(cost.backward_flops >= 0 && isfinite(cost.backward_flops));
    assert_true(cost.forward_bytes > 0 && isfinite(cost.forward_bytes));
    assert_true(cost.backward_bytes >= 0 && isfinite(cost.backward_bytes));
    assert_true(cost.output_bytes == sl_tensor_bytes(&c->bed.plan.out));
}

void sl_layer_check(const sl_layer_check_t *check)
{
    const int n_threads_max = sl_layer_bed_kind() == SL_DEVICE_KIND_CPU ? 2 : 1;
    int n_threads, i;

    for (n_threads = 1; n_threads <= n_threads_max; n_threads++) {
        context_t c = {.check = check};

        sl_layer_bed_init(&c.bed, check, n_threads);
        for (i = 0; i < check->n_inputs; i++) {
            c.in[i] = doubles_of(c.bed.plain_in[i],
                                 sl_tensor_elements(&check->inputs[i]));
        }
        for (i = 0; i < c.bed.layer->n_params; i++) {
            c.param[i] =
                doubles_of(c.bed.plain_param[i],
                           sl_tensor_elements(&c.bed.layer->params[i].desc));
        }
        c.out = doubles_of(NULL, sl_tensor_elements(&c.bed.plan.out));
        check_cost(&c);
        check_forward(&c);
        if (!check->is_evaluation) {
            check_backward(&c);
        }
        context_cleanup(&c);
    }
}
