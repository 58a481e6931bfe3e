/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>

#include "layers/cpu/drop.h"
#include "layers/cpu/vec_math.h"
#include "tests/support/sl_test.h"

static double relative_error(double got, double want)
{
    return fabs(got / want - 1);
}

static void exp_is_as_close_as_stated(void **state)
{
    double worst = 0;
    int i;

    (void)state;
    for (i = -87299; i < 88720; i++) {
        const float x = (float)i * 1e-3f;
        const double e = relative_error((double)sl_vec_exp(x), exp((double)x));

        worst = e > worst ? e : worst;
    }
    (void)printf("exp: largest relative error %.3g\n", worst);
    assert_true(worst < 1.5e-7);
}

static void exp_has_clean_ends(void **state)
{
    (void)state;
    assert_true(sl_vec_exp(0.0f) == 1.0f);
    assert_true(sl_vec_exp(-88.0f) == 0.0f);
    assert_true(sl_vec_exp(-1e30f) == 0.0f);
    assert_true(sl_vec_exp(-INFINITY) == 0.0f);
    assert_true(sl_vec_exp(INFINITY) == INFINITY);
    assert_true(sl_vec_exp(1e30f) == INFINITY);
    assert_true(isfinite(sl_vec_exp(88.7f)));
    assert_true(isnan(sl_vec_exp(NAN)));
}

static void sigmoid_is_as_close_as_stated(void **state)
{
    double worst = 0;
    int i;

    (void)state;
    for (i = -87000; i < 40000; i++) {
        const float x = (float)i * 1e-3f;
        const double e = relative_error((double)sl_vec_sigmoid(x),
                                        1 / (1 + exp(-(double)x)));

        worst = e > worst ? e : worst;
    }
    (void)printf("sigmoid: largest relative error %.3g\n", worst);
    assert_true(worst < 3e-7);
    assert_true(sl_vec_sigmoid(-1e30f) == 0.0f);
    assert_true(sl_vec_sigmoid(1e30f) == 1.0f);
}

static void normal_is_as_close_as_stated(void **state)
{
    double worst = 0, worst_density = 0;
    int i;

    (void)state;
    for (i = -16000; i < 16000; i++) {
        const float x = (float)i * 1e-3f;
        float density;
        const double got = (double)sl_vec_normal(x, &density);
        const double want = 0.5 * erfc(-(double)x / sqrt(2));
        const double want_density =
            exp(-0.5 * (double)x * (double)x) * 0.39894228040143267794;

        worst = fmax(worst, fabs(got - want));
        worst_density =
            fmax(worst_density, fabs((double)density - want_density));
    }
    (void)printf("normal: largest errors %.3g, density %.3g\n", worst,
                 worst_density);
    assert_true(worst < 2e-7);
    assert_true(worst_density < 5e-8);
}

static void drop_numbers_are_those_of_the_generator(void **state)
{
    const sl_rng_t rng =
        sl_rng_at(0x123456789abcdefull, 5, 6, 7, SL_RNG_USE_DROPOUT);
    const uint32_t blocks[3] = {0, 77, 0xFFFFFFFFu - SL_DROP_BLOCKS + 1};
    uint32_t numbers[SL_DROP_NUMBERS];
    int b, i;

    (void)state;
    for (b = 0; b < 3; b++) {
        sl_drop_numbers(&rng, blocks[b], numbers);
        for (i = 0; i < SL_DROP_NUMBERS; i++) {
            assert_int_equal(
                numbers[i],
                sl_rng_u32(&rng, 4 * (uint64_t)blocks[b] + (uint64_t)i));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(exp_is_as_close_as_stated),
        sl_unit_test(exp_has_clean_ends),
        sl_unit_test(sigmoid_is_as_close_as_stated),
        sl_unit_test(normal_is_as_close_as_stated),
        sl_unit_test(drop_numbers_are_those_of_the_generator),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
