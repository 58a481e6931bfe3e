/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/layers/layer_check.h"

/* Whether the element with this number index is kept, as documented. */
static int is_kept(const sl_layer_reference_t *args, double p, uint64_t index)
{
    const sl_rng_t rng =
        sl_rng_at(args->step->seed, args->step->step, args->step->micro_batch,
                  (uint32_t)args->layer->index, SL_RNG_USE_DROPOUT);

    return (double)sl_rng_u32(&rng, index) >= floor(p * 4294967296.0);
}

static double p; /* of the check that runs */

/* The number of an element has the index of its place in a CPU's memory,
 * whatever the device. */
static void reference(const sl_layer_reference_t *args)
{
    const int64_t n = sl_tensor_elements(args->out_desc);
    int64_t i;

    for (i = 0; i < n; i++) {
        args->out[i] = args->in[0][i];
        if (args->step->is_training) {
            const size_t place = sl_layer_offset(args->in_desc, i);

            args->out[i] *= is_kept(args, p, place) ? 1 / (1 - p) : 0;
        }
    }
}

static void check(double probability, sl_tensor_desc_t shape, int evaluation)
{
    p = probability;
    sl_layer_check(&(sl_layer_check_t){.type = "dropout",
                                       .attrs = {{.name = "p", .number = p}},
                                       .n_inputs = 1,
                                       .inputs = {shape},
                                       .is_evaluation = evaluation,
                                       .reference = reference});
}

static void masks_follow_the_generator(void **state)
{
    const double ps[] = {0, 0.1, 0.5, 0.999};
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(ps) / sizeof(ps[0]); i++) {
        check(ps[i], sl_f32(1, 1, 1, 1, 1), 0);
        check(ps[i], sl_f32(2, 3, 7, 1, 1), 0);
        check(ps[i], sl_f32(3, 5, 3, 91, 1), 0);
        check(ps[i], sl_f32(4, 2, 3, 5, 7), 0);
        check(ps[i], sl_f32(2, 41, 1001, 1, 1), 0);
        check(ps[i], sl_blocked(2, 3, 5, 7), 0);
        check(ps[i], sl_blocked(1, 40, 3, 3), 0);
        check(ps[i], sl_blocked(3, 33, 1, 2), 0);
    }
}

static void evaluation_changes_nothing(void **state)
{
    (void)state;
    check(0.5, sl_f32(3, 5, 3, 91, 1), 1);
}

static void blocked_padding_stays_zero(void **state)
{
    const sl_layer_check_t checked = {
        .type = "dropout", .n_inputs = 1, .inputs = {sl_blocked(2, 5, 3, 3)}};
    float plain[90];
    sl_layer_bed_t bed;
    int i, n_zero = 0;

    (void)state;
    sl_layer_bed_init(&bed, &checked, 1);
    sl_assert_ok(sl_layer_bed_forward(&bed));
    sl_layer_from_tensor(&bed.plan.out, bed.run.out, plain);
    for (i = 0; i < 90; i++) {
        n_zero += plain[i] == 0;
        assert_true(plain[i] == 0 || plain[i] == 2 * bed.plain_in[0][i]);
    }
    assert_in_range(n_zero, 20, 70);
    sl_layer_bed_cleanup(&bed);
}

static void threads_draw_the_same_mask(void **state)
{
    const sl_layer_check_t checked = {
        .type = "dropout", .n_inputs = 1, .inputs = {sl_f32(2, 50, 999, 1, 1)}};
    sl_layer_bed_t one, two;

    (void)state;
    sl_layer_bed_init(&one, &checked, 1);
    sl_layer_bed_init(&two, &checked, 2);
    sl_assert_ok(sl_layer_bed_forward(&one));
    sl_assert_ok(sl_layer_bed_forward(&two));
    assert_memory_equal(one.run.out, two.run.out,
                        sl_tensor_bytes(&one.plan.out));
    sl_layer_bed_cleanup(&one);
    sl_layer_bed_cleanup(&two);
}

/* Another step, micro-batch or seed is another mask; the rate is right. */
static void the_address_decides(void **state)
{
    enum {
        N = 100000
    };
    const sl_layer_check_t checked = {.type = "dropout",
                                      .attrs = {{.name = "p", .number = 0.25}},
                                      .n_inputs = 1,
                                      .inputs = {sl_f32(2, 1, N, 1, 1)}};
    sl_layer_bed_t bed;
    void *first;
    float *out = calloc(N, sizeof(*out));
    int round, i, n_zero = 0;

    (void)state;
    assert_non_null(out);
    sl_layer_bed_init(&bed, &checked, 1);
    first = sl_layer_bed_buffer(&bed, sl_tensor_bytes(&bed.plan.out));
    sl_assert_ok(sl_layer_bed_forward(&bed));
    memcpy(first, bed.run.out, sl_tensor_bytes(&bed.plan.out));
    sl_layer_from_tensor(&bed.plan.out, first, out);
    for (i = 0; i < N; i++) {
        n_zero += out[i] == 0;
    }
    assert_in_range(n_zero, N / 4 - 700, N / 4 + 700);
    for (round = 0; round < 3; round++) {
        const sl_step_info_t step = bed.run.step;

        bed.run.step.seed += round == 0;
        bed.run.step.step += round == 1;
        bed.run.step.micro_batch += round == 2;
        sl_assert_ok(sl_layer_bed_forward(&bed));
        assert_memory_not_equal(first, bed.run.out,
                                sl_tensor_bytes(&bed.plan.out));
        bed.run.step = step;
    }
    sl_layer_bed_cleanup(&bed);
    free(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(masks_follow_the_generator),
        sl_unit_test(evaluation_changes_nothing),
        sl_unit_test(blocked_padding_stays_zero),
        sl_unit_test(threads_draw_the_same_mask),
        sl_unit_test(the_address_decides),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
