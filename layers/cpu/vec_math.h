/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file vec_math.h
 * Float functions without branches or tables, so that a compiler turns the
 * loop around them into vector code. Polynomials are Chebyshev fits in t.
 * Errors are against double over all of the stated range; a test holds them.
 */
#ifndef SL_LAYERS_CPU_VEC_MATH_H
#define SL_LAYERS_CPU_VEC_MATH_H

#include <stdint.h>
#include <string.h>

static inline float sl_vec_from_bits(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

static inline uint32_t sl_vec_bits(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

/** e^x: relative error below 1.5e-7; 0 below -87.3 (no subnormals), infinite
 *  above 88.72, NaN for NaN. */
static inline float sl_vec_exp(float x)
{
    const float magic = 0x1.8p23f; /* adding it rounds to a whole number */
    const float top = x > 89.0f ? 89.0f : x;
    const float clamped = top < -87.3f ? -87.3f : top;
    const float shifted = clamped * 0x1.715476p+0f + magic;
    const float n = shifted - magic;
    const float r = (clamped - n * 0x1.62e400p-1f) - n * 0x1.7f7d1cp-20f;
    const uint32_t whole = sl_vec_bits(shifted) - sl_vec_bits(magic);
    const uint32_t half = (uint32_t)((int32_t)whole >> 1);
    const float scale_a = sl_vec_from_bits((half + 127) << 23);
    const float scale_b = sl_vec_from_bits((whole - half + 127) << 23);
    float p = 0x1.6d1606p-10f;

    p = p * r + 0x1.12106cp-7f;
    p = p * r + 0x1.555516p-5f;
    p = p * r + 0x1.5554d8p-3f;
    p = p * r + 0x1.000000p-1f;
    p = (p * r) * r + r + 1.0f;
    return top < -87.3f ? 0.0f : p * scale_a * scale_b;
}

/** 1 / (1 + e^-x): relative error below 3e-7 above -87. */
static inline float sl_vec_sigmoid(float x)
{
    return 1.0f / (1.0f + sl_vec_exp(-x));
}

/**
 * Normal distribution function and density at x: absolute errors below 2e-7
 * and 5e-8. Phi(-a) = erfc(a / sqrt 2) / 2, and erfc(z) = e^(-z^2) t P(t)
 * with t = 1 / (1 + 0.4 z).
 */
static inline float sl_vec_normal(float x, float *density_p)
{
    const float positive = x < 0.0f ? -x : x;
    const float a = positive > 14.0f ? 14.0f : positive;
    const float gauss = sl_vec_exp(-0.5f * a * a);
    const float t = 1.0f / (1.0f + 0x1.21a186p-2f * a); /* 0.4 / sqrt 2 */
    float p = -0x1.1f135ep-6f;
    float tail;

    p = p * t + 0x1.2a5fc2p-4f;
    p = p * t - 0x1.08dd88p-4f;
    p = p * t - 0x1.c4733cp-4f;
    p = p * t + 0x1.73b402p-3f;
    p = p * t - 0x1.c3910cp-5f;
    p = p * t + 0x1.677ec4p-3f;
    p = p * t + 0x1.40c1e0p-3f;
    p = p * t + 0x1.ae661cp-3f;
    p = p * t + 0x1.cdb014p-3f;
    p = p * t + 0x1.ce345ap-3f;
    tail = 0.5f * gauss * t * p;
    *density_p = 0x1.988454p-2f * gauss;
    return x < 0.0f ? tail : 1.0f - tail;
}

#endif /* SL_LAYERS_CPU_VEC_MATH_H */
