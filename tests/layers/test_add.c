/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "tests/layers/layer_check.h"

/* Whether the element with this number index is kept, as documented. */
static int is_kept(const sl_layer_reference_t *args, double p, uint64_t index)
{
    const sl_rng_t rng =
        sl_rng_at(args->step->seed, args->step->step, args->step->micro_batch,
                  (uint32_t)args->layer->index, SL_RNG_USE_DROPOUT);

    return (double)sl_rng_u32(&rng, index) >= floor(p * 4294967296.0);
}

static double dropout; /* of the check that runs */
static int relu;

/* The number of an element has the index of its place in a CPU's memory;
 * inputs draw whole runs of 256. */
static void reference(const sl_layer_reference_t *args)
{
    const int64_t n = sl_tensor_elements(args->out_desc);
    const int64_t places = (int64_t)(sl_tensor_bytes(args->in_desc) / 4);
    const int64_t stream = (places + 255) / 256 * 256;
    int64_t i;
    int k;

    for (i = 0; i < n; i++) {
        args->out[i] = args->in[0][i];
        for (k = 1; k < args->layer->n_inputs; k++) {
            const uint64_t index = (uint64_t)((k - 1) * stream) +
                                   sl_layer_offset(args->in_desc, i);
            double x = args->in[k][i];

            if (dropout > 0 && args->step->is_training) {
                x *= is_kept(args, dropout, index) ? 1 / (1 - dropout) : 0;
            }
            args->out[i] += x;
        }
        if (relu) {
            args->out[i] = fmax(args->out[i], 0);
        }
    }
}

static void check(int n_inputs, sl_tensor_desc_t shape, double p, int has_relu,
                  int evaluation)
{
    dropout = p;
    relu = has_relu;
    sl_layer_check(&(sl_layer_check_t){
        .type = "add",
        .attrs = {{.name = "dropout", .number = p},
                  {.name = "relu", .number = has_relu}},
        .n_inputs = n_inputs,
        .inputs = {shape, shape, shape, shape},
        .is_kinked = has_relu,
        .n_positions = sl_tensor_elements(&shape) > 10000 ? 4 : 0,
        .is_evaluation = evaluation,
        .reference = reference});
}

static void sums_are_right(void **state)
{
    int n, has_relu;

    (void)state;
    for (n = 2; n <= 4; n++) {
        for (has_relu = 0; has_relu < 2; has_relu++) {
            check(n, sl_f32(1, 1, 1, 1, 1), 0, has_relu, 0);
            check(n, sl_f32(3, 2, 3, 7, 1), 0, has_relu, 0);
            check(n, sl_blocked(2, 5, 3, 3), 0, has_relu, 0);
            check(n, sl_f32(2, 33, 1001, 1, 1), 0, has_relu, 0);
        }
    }
}

static void branches_are_dropped(void **state)
{
    int n, has_relu;

    (void)state;
    for (n = 2; n <= 4; n++) {
        for (has_relu = 0; has_relu < 2; has_relu++) {
            check(n, sl_f32(3, 2, 3, 7, 1), 0.3, has_relu, 0);
            check(n, sl_f32(2, 33, 1001, 1, 1), 0.3, has_relu, 0);
            check(n, sl_blocked(2, 5, 3, 3), 0.3, has_relu, 0);
            check(n, sl_blocked(2, 20, 3, 3), 0.3, has_relu, 0);
        }
    }
}

static void evaluation_drops_nothing(void **state)
{
    (void)state;
    check(3, sl_f32(3, 2, 3, 7, 1), 0.3, 0, 1);
}

static void unlike_shapes_are_refused(void **state)
{
    const sl_layer_spec_t spec = {.type = "add", .name = "a", .n_inputs = 2};
    const sl_tensor_desc_t shapes[][2] = {
        {sl_f32(2, 2, 3, 1, 1), sl_f32(2, 2, 4, 1, 1)},
        {sl_f32(2, 2, 3, 1, 1), sl_f32(3, 2, 3, 1, 1)},
        {sl_f32(4, 1, 3, 2, 2), sl_blocked(1, 3, 2, 2)},
        {sl_i32(2, 2, 3), sl_i32(2, 2, 3)}};
    sl_layer_t *layer;
    sl_tensor_desc_t out;
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        sl_assert_status(sl_layer_create(&spec, 0, shapes[i], &layer, &out),
                         SL_ERR_CONFIG);
        sl_assert_contains(sl_last_error(), "layer a (add)");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(sums_are_right),
        sl_unit_test(branches_are_dropped),
        sl_unit_test(evaluation_drops_nothing),
        sl_unit_test(unlike_shapes_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
