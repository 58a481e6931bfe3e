/* SPDX-License-Identifier: Apache-2.0 */
/* Philox against its published values; the moments of what is made of it. */
#include "base/rng.h"

#include <math.h>
#include <string.h>

#include "tests/support/sl_test.h"

enum {
    N = 1 << 18
};

static float numbers[N];

static void check_block(uint32_t counter, uint32_t key, const uint32_t want[4])
{
    const sl_rng_t rng = {{key, key}, {counter, counter, counter}};
    uint32_t got[4];

    sl_rng_block(&rng, counter, got);
    assert_memory_equal(got, want, sizeof(got));
}

/* Known answers of the Random123 distribution. */
static void philox_gives_the_known_answers(void **state)
{
    static const uint32_t zeros[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c,
                                      0x9b00dbd8};
    static const uint32_t ones[4] = {0x408f276d, 0x41c83b0e, 0xa20bc7c6,
                                     0x6d5451fd};
    static const uint32_t pi[4] = {0xd16cfe09, 0x94fdcceb, 0x5001e420,
                                   0x24126ea1};
    const sl_rng_t rng = {{0xa4093822, 0x299f31d0},
                          {0x85a308d3, 0x13198a2e, 0x03707344}};
    uint32_t got[4];

    (void)state;
    check_block(0, 0, zeros);
    check_block(UINT32_MAX, UINT32_MAX, ones);
    sl_rng_block(&rng, 0x243f6a88, got);
    assert_memory_equal(got, pi, sizeof(got));
}

static void address_parts_are_kept_apart(void **state)
{
    const sl_rng_t rng =
        sl_rng_at(UINT64_C(0x0123456789ABCDEF), 5, 6, 0x00ABCDEF, 0x12);

    (void)state;
    assert_true(rng.key[0] == 0x89ABCDEF && rng.key[1] == 0x01234567);
    assert_true(rng.counter[0] == 0x12ABCDEF);
    assert_true(rng.counter[1] == 5 && rng.counter[2] == 6);
}

static void a_number_depends_on_its_index_alone(void **state)
{
    const sl_rng_t rng = sl_rng_at(1, 2, 3, 4, SL_RNG_USE_DROPOUT);
    float one[7], few[3];
    size_t i;

    (void)state;
    sl_rng_uniform(&rng, one, 7);
    sl_rng_uniform(&rng, few, 3);
    assert_memory_equal(one, few, sizeof(few));
    for (i = 0; i < 7; i++) {
        const uint32_t bits = sl_rng_u32(&rng, i);
        const float same = (float)(bits >> 8) * 0x1p-24f;

        assert_memory_equal(&one[i], &same, sizeof(same));
    }
    sl_rng_normal(&rng, one, 7);
    sl_rng_normal(&rng, few, 3);
    assert_memory_equal(one, few, sizeof(few));
}

static void index_reaches_past_32_bits(void **state)
{
    const sl_rng_t rng = sl_rng_at(9, 0, 0, 0, SL_RNG_USE_SHUFFLE);
    uint32_t last[4];

    (void)state;
    sl_rng_block(&rng, UINT32_MAX, last);
    assert_true(sl_rng_u32(&rng, (UINT64_C(1) << 34) - 1) == last[3]);
}

static void nothing_is_written_past_n(void **state)
{
    const sl_rng_t rng = sl_rng_at(1, 0, 0, 0, SL_RNG_USE_INIT);
    size_t n;

    (void)state;
    for (n = 0; n < 10; n++) {
        float out[12];
        size_t i;

        for (i = 0; i < 12; i++) {
            out[i] = 77;
        }
        sl_rng_normal(&rng, out, n);
        assert_true(out[n] >= 77 && out[n] <= 77);
        sl_rng_uniform(&rng, out, n);
        assert_true(out[n] >= 77 && out[n] <= 77);
    }
}

/* Mean of numbers[i]^power over the array. */
static double moment(int power)
{
    double sum = 0;
    size_t i;

    for (i = 0; i < N; i++) {
        sum += pow((double)numbers[i], power);
    }
    return sum / N;
}

/* Each bound is about five deviations of the estimate at N = 2^18. */
static void uniform_has_its_moments(void **state)
{
    const sl_rng_t rng = sl_rng_at(42, 0, 0, 0, SL_RNG_USE_DROPOUT);
    size_t i;

    (void)state;
    sl_rng_uniform(&rng, numbers, N);
    for (i = 0; i < N; i++) {
        assert_true(numbers[i] >= 0 && numbers[i] < 1);
    }
    assert_true(fabs(moment(1) - 1.0 / 2) < 0.003);
    assert_true(fabs(moment(2) - 1.0 / 3) < 0.003);
    assert_true(fabs(moment(3) - 1.0 / 4) < 0.003);
}

static void normal_has_its_moments(void **state)
{
    const sl_rng_t rng = sl_rng_at(42, 0, 0, 0, SL_RNG_USE_INIT);
    double neighbours = 0;
    size_t i;

    (void)state;
    sl_rng_normal(&rng, numbers, N);
    for (i = 0; i < N; i++) {
        assert_true(isfinite(numbers[i]));
    }
    assert_true(fabs(moment(1)) < 0.01);
    assert_true(fabs(moment(2) - 1) < 0.014);
    assert_true(fabs(moment(3)) < 0.04);
    assert_true(fabs(moment(4) - 3) < 0.1);
    for (i = 0; i + 1 < N; i += 2) {
        neighbours += (double)numbers[i] * (double)numbers[i + 1];
    }
    assert_true(fabs(neighbours / (N / 2)) < 0.015);
}

/* Two streams that differ in one part of the address are uncorrelated. */
static void streams_do_not_overlap(void **state)
{
    static float other[N];
    sl_rng_t rng = sl_rng_at(42, 1, 1, 1, 1);
    sl_rng_t next[5];
    size_t i, j;

    (void)state;
    next[0] = sl_rng_at(43, 1, 1, 1, 1);
    next[1] = sl_rng_at(42, 2, 1, 1, 1);
    next[2] = sl_rng_at(42, 1, 2, 1, 1);
    next[3] = sl_rng_at(42, 1, 1, 2, 1);
    next[4] = sl_rng_at(42, 1, 1, 1, 2);
    sl_rng_normal(&rng, numbers, N);
    for (j = 0; j < 5; j++) {
        double sum = 0;

        sl_rng_normal(&next[j], other, N);
        for (i = 0; i < N; i++) {
            sum += (double)numbers[i] * (double)other[i];
        }
        assert_true(fabs(sum / N) < 0.01);
    }
}

static void below_is_the_high_half_of_the_product(void **state)
{
    /* the zero key and counter: 64 bits 6627e8d5e169c58d, bc57ac4c9b00dbd8 */
    const sl_rng_t rng = sl_rng_at(0, 0, 0, 0, 0);

    (void)state;
    assert_true(sl_rng_below(&rng, 0, 1) == 0);
    assert_true(sl_rng_below(&rng, 1, 1) == 0);
    assert_true(sl_rng_below(&rng, 0, 256) == 0x66);
    assert_true(sl_rng_below(&rng, 1, 256) == 0xbc);
    assert_true(sl_rng_below(&rng, 0, 1u << 31) == 0x6627e8d5u >> 1);
    /* floor(0x6627e8d5e169c58d * (2^32 - 1) / 2^64) */
    assert_true(sl_rng_below(&rng, 0, UINT32_MAX) == 0x6627e8d5);
    assert_true(sl_rng_below(&rng, 1, UINT32_MAX) == 0xbc57ac4b);
    /* floor(0x6627e8d5e169c58d * 10 / 2^64) */
    assert_true(sl_rng_below(&rng, 0, 10) == 3);
    assert_true(sl_rng_below(&rng, 1, 10) == 7);
}

static void below_is_even(void **state)
{
    const sl_rng_t rng = sl_rng_at(7, 0, 0, 0, SL_RNG_USE_SHUFFLE);
    enum {
        BOUND = 7,
        DRAWS = 70000
    };
    int count[BOUND] = {0};
    uint64_t i;

    (void)state;
    for (i = 0; i < DRAWS; i++) {
        const uint64_t value = sl_rng_below(&rng, i, BOUND);

        assert_true(value < BOUND);
        count[value]++;
    }
    for (i = 0; i < BOUND; i++) {
        assert_in_range(count[i], 9500, 10500);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(philox_gives_the_known_answers),
        sl_unit_test(address_parts_are_kept_apart),
        sl_unit_test(a_number_depends_on_its_index_alone),
        sl_unit_test(index_reaches_past_32_bits),
        sl_unit_test(nothing_is_written_past_n),
        sl_unit_test(uniform_has_its_moments),
        sl_unit_test(normal_has_its_moments),
        sl_unit_test(streams_do_not_overlap),
        sl_unit_test(below_is_the_high_half_of_the_product),
        sl_unit_test(below_is_even),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
