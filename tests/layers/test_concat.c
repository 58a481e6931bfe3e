/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/layers/layer_check.h"

/* Any shape as [outer, n, inner], joined in the middle. */
static void reference(const sl_layer_reference_t *args)
{
    const sl_tensor_desc_t *out = args->out_desc;
    const int is_image = out->n_dims == 4;
    const int dim = is_image ? 1 : out->n_dims - 1;
    const int64_t inner = is_image ? out->dims[2] * out->dims[3] : 1;
    const int64_t outer = sl_tensor_elements(out) / out->dims[dim] / inner;
    int64_t o, k, at = 0;
    int i;

    for (o = 0; o < outer; o++) {
        for (i = 0; i < args->layer->n_inputs; i++) {
            const int64_t run = args->in_desc[i].dims[dim] * inner;

            for (k = 0; k < run; k++) {
                args->out[at++] = args->in[i][o * run + k];
            }
        }
    }
}

static void check(int n, sl_tensor_desc_t a, sl_tensor_desc_t b,
                  sl_tensor_desc_t c)
{
    sl_layer_check(&(sl_layer_check_t){.type = "concat",
                                       .n_inputs = n,
                                       .inputs = {a, b, c},
                                       .reference = reference});
}

static void last_dimensions_are_joined(void **state)
{
    (void)state;
    check(2, sl_f32(2, 1, 1, 1, 1), sl_f32(2, 1, 1, 1, 1),
          sl_f32(1, 1, 1, 1, 1));
    check(3, sl_f32(2, 3, 5, 1, 1), sl_f32(2, 3, 1, 1, 1),
          sl_f32(2, 3, 9, 1, 1));
    check(2, sl_f32(3, 2, 3, 4, 1), sl_f32(3, 2, 3, 8, 1),
          sl_f32(1, 1, 1, 1, 1));
    check(2, sl_f32(2, 30, 500, 1, 1), sl_f32(2, 30, 101, 1, 1),
          sl_f32(1, 1, 1, 1, 1));
}

static void channels_are_joined(void **state)
{
    (void)state;
    check(3, sl_f32(4, 2, 3, 4, 5), sl_f32(4, 2, 1, 4, 5),
          sl_f32(4, 2, 7, 4, 5));
    check(3, sl_blocked(2, 16, 3, 3), sl_blocked(2, 32, 3, 3),
          sl_blocked(2, 5, 3, 3));
    check(3, sl_blocked(2, 3, 3, 5), sl_blocked(2, 20, 3, 5),
          sl_blocked(2, 17, 3, 5));
    check(2, sl_blocked(4, 64, 8, 8), sl_blocked(4, 64, 8, 8),
          sl_f32(1, 1, 1, 1, 1));
    check(2, sl_blocked(1, 1, 1, 1), sl_blocked(1, 1, 1, 1),
          sl_f32(1, 1, 1, 1, 1));
}

static void layouts_may_be_mixed(void **state)
{
    (void)state;
    check(3, sl_f32(4, 2, 3, 4, 5), sl_blocked(2, 16, 4, 5),
          sl_f32(4, 2, 16, 4, 5));
}

static void unlike_shapes_are_refused(void **state)
{
    const sl_layer_spec_t spec = {.type = "concat", .name = "c", .n_inputs = 2};
    const sl_tensor_desc_t shapes[][2] = {
        {sl_f32(4, 2, 3, 4, 5), sl_f32(4, 2, 3, 4, 6)},
        {sl_f32(2, 2, 3, 1, 1), sl_f32(2, 1, 3, 1, 1)},
        {sl_f32(2, 2, 3, 1, 1), sl_f32(3, 2, 3, 4, 1)},
        {sl_i32(2, 2, 3), sl_i32(2, 2, 3)}};
    sl_layer_t *layer;
    sl_tensor_desc_t out;
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        sl_assert_status(sl_layer_create(&spec, 0, shapes[i], &layer, &out),
                         SL_ERR_CONFIG);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(last_dimensions_are_joined),
        sl_unit_test(channels_are_joined),
        sl_unit_test(layouts_may_be_mixed),
        sl_unit_test(unlike_shapes_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
