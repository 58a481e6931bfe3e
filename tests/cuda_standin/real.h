/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file real.h
 * Numbers of the types that the libraries of the stand-in read and write.
 */
#ifndef SL_TESTS_CUDA_STANDIN_REAL_H
#define SL_TESTS_CUDA_STANDIN_REAL_H

#include <stdint.h>
#include <string.h>

static inline uint32_t real_bits(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static inline float real_of_bits(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

static inline float real_of_bf16(uint16_t value)
{
    return real_of_bits((uint32_t)value << 16);
}

/* To nearest, ties to even. */
static inline uint16_t real_to_bf16(float value)
{
    const uint32_t bits = real_bits(value);

    return value != value
               ? (uint16_t)(bits >> 16 | 0x40u)
               : (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/* Exact: every half is a float. */
static inline float real_of_f16(uint16_t value)
{
    const uint32_t sign = (uint32_t)(value & 0x8000u) << 16;
    const uint32_t exponent = value >> 10 & 31u;
    const uint32_t fraction = value & 0x3ffu;

    if (exponent == 31) {
        return real_of_bits(sign | 0x7f800000u | fraction << 13);
    }
    if (exponent == 0) {
        return real_of_bits(sign | real_bits((float)fraction * 0x1p-24f));
    }
    return real_of_bits(sign | (exponent + 112u) << 23 | fraction << 13);
}

/* To nearest, ties to even; below the normal range by an addition that leaves
 * the units of 2^-24 in the last place. */
static inline uint16_t real_to_f16(float value)
{
    const uint32_t bits = real_bits(value);
    const uint32_t sign = bits >> 16 & 0x8000u;
    const uint32_t size = bits & 0x7fffffffu;
    uint32_t half;

    if (size > 0x7f800000u) {
        half = 0x7e00u;
    } else if (size >= 0x477ff000u) {
        half = 0x7c00u;
    } else if (size < 0x38800000u) {
        half = real_bits(real_of_bits(size) + 0.5f) - 0x3f000000u;
    } else {
        half = (size + 0xfffu + (size >> 13 & 1u) - 0x38000000u) >> 13;
    }
    return (uint16_t)(sign | half);
}

/* The 10 bits of fraction that tensor cores take of a float. */
static inline float real_to_tf32(float value)
{
    return value != value || value - value != 0.0f
               ? value
               : real_of_bits((real_bits(value) + 0x1000u) & ~0x1fffu);
}

#endif /* SL_TESTS_CUDA_STANDIN_REAL_H */
