/* SPDX-License-Identifier: Apache-2.0 */
/* attention against the plain formula in double, with the same dropout. */
#include "layers/attention_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/layers/layer_check.h"

/* Whether probability (b, h, i, j) is dropped, as the layer documents it. */
static int is_dropped(const sl_layer_reference_t *args, int64_t b, int64_t h,
                      int64_t i, int64_t j)
{
    const sl_attention_attrs_t *attrs = args->layer->attrs;
    const int64_t time = args->in_desc->dims[1];
    const sl_rng_t rng =
        sl_rng_at(args->step->seed, args->step->step, args->step->micro_batch,
                  (uint32_t)args->layer->index, SL_RNG_USE_ATTENTION_DROPOUT);
    const uint64_t index =
        (uint64_t)(((b * attrs->heads + h) * time + i) * time + j);

    return args->step->is_training &&
           (double)sl_rng_u32(&rng, index) < floor(attrs->dropout * 0x1p32);
}

/* One row of one head: out[0..width). */
static void reference_row(const sl_layer_reference_t *args, int64_t b,
                          int64_t h, int64_t i, double *p)
{
    const sl_attention_attrs_t *attrs = args->layer->attrs;
    const int64_t time = args->in_desc->dims[1];
    const int64_t all = args->out_desc->dims[2];
    const int64_t width = all / attrs->heads;
    const int64_t n = attrs->causal ? i + 1 : time;
    const double *x = args->in[0] + b * time * 3 * all + h * width;
    double *out = args->out + (b * time + i) * all + h * width;
    const double keep = args->step->is_training ? 1 - attrs->dropout : 1;
    double max = -HUGE_VAL, sum = 0;
    int64_t j, k;

    for (j = 0; j < n; j++) {
        p[j] = 0;
        for (k = 0; k < width; k++) {
            p[j] += x[i * 3 * all + k] * x[j * 3 * all + all + k];
        }
        p[j] /= sqrt((double)width);
        max = p[j] > max ? p[j] : max;
    }
    for (j = 0; j < n; j++) {
        p[j] = exp(p[j] - max);
        sum += p[j];
    }
    for (k = 0; k < width; k++) {
        out[k] = 0;
    }
    for (j = 0; j < n; j++) {
        if (attrs->dropout > 0 && is_dropped(args, b, h, i, j)) {
            continue;
        }
        for (k = 0; k < width; k++) {
            out[k] += p[j] / sum / keep * x[j * 3 * all + 2 * all + k];
        }
    }
}

static void reference(const sl_layer_reference_t *args)
{
    const sl_attention_attrs_t *attrs = args->layer->attrs;
    const int64_t *dims = args->in_desc->dims;
    double *p = calloc((size_t)dims[1], sizeof(*p));
    int64_t b, h, i;

    assert_non_null(p);
    for (b = 0; b < dims[0]; b++) {
        for (h = 0; h < attrs->heads; h++) {
            for (i = 0; i < dims[1]; i++) {
                reference_row(args, b, h, i, p);
            }
        }
    }
    free(p);
}

typedef struct shape {
    int64_t batch, time, heads, width; /* width of a head */
} shape_t;

static sl_layer_check_t check_of(const shape_t *s, int causal, double dropout)
{
    const sl_layer_check_t check = {
        .type = "attention",
        .attrs = {{.name = "heads", .number = (double)s->heads},
                  {.name = "causal", .number = causal},
                  {.name = "dropout", .number = dropout}},
        .n_inputs = 1,
        .inputs = {sl_f32(3, s->batch, s->time, 3 * s->heads * s->width, 1)},
        .reference = reference,
        .n_positions = 12,
        .roundings = 8 /* of probabilities and of their gradients */};

    return check;
}

static const shape_t shapes[] = {
    {1, 1, 1, 1},  {2, 1, 3, 4},    {1, 5, 1, 1},
    {3, 5, 5, 3},  {2, 7, 2, 16},   {1, 64, 2, 8},
    {2, 65, 3, 3}, {1, 130, 2, 16}, {1, 65, 1, 64},
};

static void check_shapes(int causal, double dropout)
{
    size_t s;

    for (s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
        const sl_layer_check_t check = check_of(&shapes[s], causal, dropout);

        sl_layer_check(&check);
    }
}

static void causal_matches_the_formula(void **state)
{
    (void)state;
    check_shapes(1, 0);
}

static void full_matches_the_formula(void **state)
{
    (void)state;
    check_shapes(0, 0);
}

static void dropout_is_that_of_the_address(void **state)
{
    (void)state;
    check_shapes(1, 0.25);
    check_shapes(0, 0.5);
}

/* More than one block of keys: the running maximum and sum. */
static void long_sequences_match_the_formula(void **state)
{
    static const shape_t s = {1, 600, 1, 4};
    int causal;

    (void)state;
    for (causal = 0; causal <= 1; causal++) {
        sl_layer_check_t check = check_of(&s, causal, causal ? 0.1 : 0);

        check.n_positions = 3;
        sl_layer_check(&check);
    }
}

static void extreme_scores_stay_exact(void **state)
{
    static const shape_t s = {1, 70, 2, 4};
    sl_layer_check_t check = check_of(&s, 1, 0);

    (void)state;
    check.input_scale = 6; /* scores of deviation 36, beyond +-80 */
    check.tolerance = 3e-4;
    check.gradient_tolerance = 5e-3;
    check.roundings = 200; /* gradients are sums of terms of about 50 */
    sl_layer_check(&check);
}

/* Scores of +-8000 in turn: one key takes all, nothing overflows. */
static void huge_scores_stay_finite(void **state)
{
    static const shape_t s = {1, 600, 1, 1};
    const sl_layer_check_t check = check_of(&s, 1, 0);
    sl_layer_bed_t bed;
    float *x;
    int64_t i;

    (void)state;
    if (sl_layer_bed_dtype() != SL_DTYPE_F32) {
        skip(); /* others cannot tell these scores apart */
    }
    sl_layer_bed_init(&bed, &check, 1);
    x = bed.plain_in[0];
    for (i = 0; i < s.time; i++) {
        x[3 * i] = 80;
        x[3 * i + 1] = i % 2 == 0 ? -100.0f : 100.0f + (float)i;
        x[3 * i + 2] = (float)i;
    }
    sl_layer_to_tensor(&bed.plan.in[0], x, (void *)(uintptr_t)bed.run.in[0]);
    sl_assert_ok(sl_layer_bed_forward(&bed));
    sl_assert_ok(sl_layer_bed_backward(&bed));
    for (i = 0; i < s.time; i++) {
        const int64_t winner = i % 2 == 0 && i > 0 ? i - 1 : i;

        assert_true(((const float *)bed.run.out)[i] == (float)winner);
    }
    for (i = 0; i < 3 * s.time; i++) {
        assert_true(isfinite(((const float *)bed.run.din[0])[i]));
    }
    sl_layer_bed_cleanup(&bed);
}

static void nothing_is_dropped_in_evaluation(void **state)
{
    static const shape_t s = {2, 65, 2, 8};
    sl_layer_check_t check = check_of(&s, 1, 0.5);

    (void)state;
    check.is_evaluation = 1;
    sl_layer_check(&check);
}

static void bits_do_not_depend_on_the_threads(void **state)
{
    static const shape_t s = {3, 130, 5, 16};
    const sl_layer_check_t check = check_of(&s, 1, 0.1);
    sl_layer_bed_t one, many;
    int threads;

    (void)state;
    sl_layer_bed_init(&one, &check, 1);
    sl_assert_ok(sl_layer_bed_forward(&one));
    sl_assert_ok(sl_layer_bed_backward(&one));
    for (threads = 2; threads <= 4; threads++) {
        sl_layer_bed_init(&many, &check, threads);
        sl_assert_ok(sl_layer_bed_forward(&many));
        sl_assert_ok(sl_layer_bed_backward(&many));
        assert_memory_equal(one.run.out, many.run.out,
                            sl_tensor_bytes(&one.plan.out));
        assert_memory_equal(one.run.din[0], many.run.din[0],
                            sl_tensor_bytes(&one.plan.in[0]));
        sl_layer_bed_cleanup(&many);
    }
    sl_layer_bed_cleanup(&one);
}

/* Another step, micro-batch or seed: another mask. */
static void each_micro_batch_drops_others(void **state)
{
    static const shape_t s = {1, 65, 2, 8};
    const sl_layer_check_t check = check_of(&s, 1, 0.5);
    sl_layer_bed_t bed;
    size_t bytes;
    void *first;

    (void)state;
    sl_layer_bed_init(&bed, &check, 1);
    bytes = sl_tensor_bytes(&bed.plan.out);
    sl_assert_ok(sl_layer_bed_forward(&bed));
    first = malloc(bytes);
    assert_non_null(first);
    memcpy(first, bed.run.out, bytes);
    bed.run.step.micro_batch++;
    sl_assert_ok(sl_layer_bed_forward(&bed));
    assert_true(memcmp(first, bed.run.out, bytes) != 0);
    bed.run.step.micro_batch--;
    bed.run.step.step++;
    sl_assert_ok(sl_layer_bed_forward(&bed));
    assert_true(memcmp(first, bed.run.out, bytes) != 0);
    free(first);
    sl_layer_bed_cleanup(&bed);
}

static sl_status_t create(double heads, double dropout,
                          const sl_tensor_desc_t *in, sl_layer_t **layer_p)
{
    const sl_attr_t attrs[] = {{.name = "heads", .number = heads},
                               {.name = "dropout", .number = dropout}};
    const sl_layer_spec_t spec = {.type = "attention",
                                  .name = "att",
                                  .n_inputs = 1,
                                  .inputs = {SL_INPUT_DATA},
                                  .attrs = attrs,
                                  .n_attrs = 2};
    sl_tensor_desc_t out;

    return sl_layer_create(&spec, 0, in, layer_p, &out);
}

static void never_keeps_the_scores(void **state)
{
    const sl_tensor_desc_t in = sl_f32(3, 4, 4096, 3 * 64, 1);
    sl_layer_plan_t plan;
    sl_layer_t *layer = NULL;

    (void)state;
    sl_assert_ok(create(2, 0.1, &in, &layer));
    sl_assert_ok(
        sl_layer_plan_init(&plan, layer, SL_DEVICE_KIND_CPU, 2, 1, &in));
    /* one float a row of a head */
    assert_int_equal(plan.saved_bytes, 4 * 4 * 2 * 4096);
    assert_true(plan.backward_workspace_bytes < (size_t)2 << 20);
    sl_layer_plan_cleanup(&plan);
    sl_assert_ok(
        sl_layer_plan_init(&plan, layer, SL_DEVICE_KIND_CPU, 2, 0, &in));
    assert_int_equal(plan.saved_bytes, 0);
    assert_int_equal(plan.backward_workspace_bytes, 0);
    sl_layer_plan_cleanup(&plan);
    sl_layer_destroy(layer);
}

static void refuses_more_dropout_than_numbers(void **state)
{
    /* 64 heads: 2^34 probabilities a sample */
    const sl_tensor_desc_t fits = sl_f32(3, 1, 16384, 3 * 64, 1);
    const sl_tensor_desc_t in = sl_f32(3, 2, 16384, 3 * 64, 1);
    sl_layer_plan_t plan;
    sl_layer_t *layer = NULL;

    (void)state;
    sl_assert_ok(create(64, 0.1, &fits, &layer));
    sl_assert_ok(
        sl_layer_plan_init(&plan, layer, SL_DEVICE_KIND_CPU, 1, 1, &fits));
    sl_layer_plan_cleanup(&plan);
    sl_assert_status(
        sl_layer_plan_init(&plan, layer, SL_DEVICE_KIND_CPU, 1, 1, &in),
        SL_ERR_UNSUPPORTED);
    sl_assert_contains(sl_last_error(), "layer att (attention)");
    sl_assert_contains(sl_last_error(), "2^34");
    /* forward only, nothing is dropped */
    sl_assert_ok(
        sl_layer_plan_init(&plan, layer, SL_DEVICE_KIND_CPU, 1, 0, &in));
    sl_layer_plan_cleanup(&plan);
    sl_layer_destroy(layer);
}

static void refuses_bad_inputs_and_attributes(void **state)
{
    const sl_tensor_desc_t good = sl_f32(3, 2, 5, 24, 1);
    const sl_tensor_desc_t bad[] = {sl_f32(2, 2, 24, 1, 1), sl_i32(2, 2, 24),
                                    sl_f32(3, 2, 5, 25, 1),
                                    sl_f32(3, 2, 5, 12, 1)};
    sl_layer_t *layer = NULL;
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        sl_assert_status(create(8, 0, &bad[i], &layer), SL_ERR_CONFIG);
        sl_assert_contains(sl_last_error(), "8 heads");
        assert_null(layer);
    }
    sl_assert_status(create(0, 0, &good, &layer), SL_ERR_CONFIG);
    sl_assert_status(create(8, 1, &good, &layer), SL_ERR_CONFIG);
    sl_assert_status(create(8, -0.1, &good, &layer), SL_ERR_CONFIG);
    assert_null(layer);
}

static void cost_counts_what_is_seen(void **state)
{
    const sl_tensor_desc_t in = sl_f32(3, 2, 7, 3 * 12, 1);
    sl_layer_cost_t cost;
    sl_layer_t *layer = NULL;

    (void)state;
    sl_assert_ok(create(3, 0, &in, &layer));
    sl_assert_ok(sl_layer_cost(layer, &in, &cost));
    /* causal: 28 pairs a head, two products of width 4, 6 heads */
    assert_true(cost.forward_flops == 28.0 * 2 * 2 * 4 * 6);
    assert_true(cost.backward_flops == 2.5 * cost.forward_flops);
    assert_int_equal(cost.kept_bytes, 4 * 6 * 7);
    assert_int_equal(cost.param_bytes, 0);
    sl_layer_destroy(layer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(causal_matches_the_formula),
        sl_unit_test(full_matches_the_formula),
        sl_unit_test(dropout_is_that_of_the_address),
        sl_unit_test(long_sequences_match_the_formula),
        sl_unit_test(extreme_scores_stay_exact),
        sl_unit_test(huge_scores_stay_finite),
        sl_unit_test(nothing_is_dropped_in_evaluation),
        sl_unit_test(bits_do_not_depend_on_the_threads),
        sl_unit_test(each_micro_batch_drops_others),
        sl_unit_test(never_keeps_the_scores),
        sl_unit_test(refuses_more_dropout_than_numbers),
        sl_unit_test(refuses_bad_inputs_and_attributes),
        sl_unit_test(cost_counts_what_is_seen),
    };

    return cmocka_run_group_tests_name("layers/attention", tests, NULL, NULL);
}
