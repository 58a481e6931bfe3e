/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file batch_norm_rows.h
 * The inner loops of batch_norm: rows of LANES floats, in which a channel
 * always meets the same lanes. Always inlined, so that the constants given
 * by the caller make a loop of their own.
 */
#ifndef SL_LAYERS_CPU_BATCH_NORM_ROWS_H
#define SL_LAYERS_CPU_BATCH_NORM_ROWS_H

#include <stdint.h>
#include <string.h>

#define ROWS_INLINE static inline __attribute__((always_inline))

enum {
    LANES = 16,
    UNROLL = 4,          /* independent sums: hides the adders' latency */
    FLOAT_ROWS = 64,     /* rows summed in float before double takes over */
    CHUNK_FLOATS = 16384 /* a multiple of LANES */
};

typedef struct lane_sums {
    double s[LANES]; /* of x - shift, or of the gradient g */
    double q[LANES]; /* of (x - shift)^2, or of g * (x - mean) */
} lane_sums_t;

/* Factors of one unit, the same for all its rows. */
typedef struct lane_factors {
    float mean[LANES];
    float scale[LANES]; /* weight / deviation */
    float bias[LANES];
    float k0[LANES], k1[LANES], k2[LANES]; /* dx = k1 g + k2 (x - mean) + k0 */
} lane_factors_t;

/* Where the relu's mask is read from in backward. */
typedef enum mask {
    MASK_NONE,
    MASK_FROM_X, /* computed again: saves reading y */
    MASK_FROM_Y
} mask_t;

/* What is summed up; constants of each instance of sum_floats(). */
typedef struct sum_kind {
    int is_gradient; /* of g and g * (x - mean), not x and its square */
    mask_t mask;
    int stores_g; /* the masked gradient is wanted in memory */
} sum_kind_t;

/* Pointers to the chunk. */
typedef struct sum_data {
    const float *x, *y, *dout;
    float *g;
} sum_data_t;

/* One element's two terms. Masks are written so that NaN is not lost. */
ROWS_INLINE void sum_terms(sum_kind_t kind, const sum_data_t *data,
                           const lane_factors_t *f, int64_t i, int l, float *a,
                           float *b)
{
    const float d = data->x[i] - f->mean[l];
    float g;

    if (!kind.is_gradient) {
        *a = d;
        *b = d * d;
        return;
    }
    g = data->dout[i];
    if (kind.mask == MASK_FROM_X) {
        g = d * f->scale[l] + f->bias[l] <= 0.0f ? 0.0f : g;
    } else if (kind.mask == MASK_FROM_Y) {
        g = data->y[i] <= 0.0f ? 0.0f : g;
    }
    if (kind.stores_g) {
        data->g[i] = g;
    }
    *a = g;
    *b = g * d;
}

/* At most FLOAT_ROWS rows from `at` on, in float, then added in double. */
ROWS_INLINE void sum_rows(sum_kind_t kind, const sum_data_t *data,
                          const lane_factors_t *f, int64_t at, int64_t rows,
                          lane_sums_t *sums)
{
    float s[UNROLL][LANES] = {{0}};
    float q[UNROLL][LANES] = {{0}};
    int64_t r = 0;
    int j, l;

    for (; r + UNROLL <= rows; r += UNROLL) {
        for (j = 0; j < UNROLL; j++) {
#pragma omp simd
            for (l = 0; l < LANES; l++) {
                float a, b;

                sum_terms(kind, data, f, at + (r + j) * LANES + l, l, &a, &b);
                s[j][l] += a;
                q[j][l] += b;
            }
        }
    }
    for (; r < rows; r++) {
#pragma omp simd
        for (l = 0; l < LANES; l++) {
            float a, b;

            sum_terms(kind, data, f, at + r * LANES + l, l, &a, &b);
            s[0][l] += a;
            q[0][l] += b;
        }
    }
    for (j = 0; j < UNROLL; j++) {
        for (l = 0; l < LANES; l++) {
            sums->s[l] += (double)s[j][l];
            sums->q[l] += (double)q[j][l];
        }
    }
}

ROWS_INLINE void sum_floats(sum_kind_t kind, const sum_data_t *data,
                            const lane_factors_t *factors, int64_t n,
                            lane_sums_t *sums)
{
    const lane_factors_t f = *factors; /* so that nothing aliases it */
    int64_t at = 0;
    int l;

    memset(sums, 0, sizeof(*sums));
    while (n - at >= LANES) {
        const int64_t left = (n - at) / LANES;
        const int64_t rows = left < FLOAT_ROWS ? left : FLOAT_ROWS;

        sum_rows(kind, data, &f, at, rows, sums);
        at += rows * LANES;
    }
    for (l = 0; at < n; at++, l++) {
        float a, b;

        sum_terms(kind, data, &f, at, l, &a, &b);
        sums->s[l] += (double)a;
        sums->q[l] += (double)b;
    }
}

/* y = (x - mean) scale + bias (+ skip), (0 if less) */
ROWS_INLINE void normalise(const float *restrict x, const float *restrict skip,
                           float *restrict y, int64_t n,
                           const lane_factors_t *factors, int has_skip,
                           int has_relu)
{
    const lane_factors_t f = *factors;
    int64_t i;
    int l;

    for (i = 0; i < n; i += LANES) {
        const int lanes = n - i < LANES ? (int)(n - i) : LANES;

        if (lanes < LANES) {
            for (l = 0; l < lanes; l++) {
                float v = (x[i + l] - f.mean[l]) * f.scale[l] + f.bias[l];

                v += has_skip ? skip[i + l] : 0.0f;
                y[i + l] = has_relu && v <= 0.0f ? 0.0f : v;
            }
            break;
        }
#pragma omp simd
        for (l = 0; l < LANES; l++) {
            float v = (x[i + l] - f.mean[l]) * f.scale[l] + f.bias[l];

            v = has_skip ? v + skip[i + l] : v;
            y[i + l] = has_relu && v <= 0.0f ? 0.0f : v;
        }
    }
}

ROWS_INLINE float dx_of(mask_t mask, float x, float g, float y,
                        const lane_factors_t *f, int l)
{
    const float d = x - f->mean[l];

    if (mask == MASK_FROM_X) {
        g = d * f->scale[l] + f->bias[l] <= 0.0f ? 0.0f : g;
    } else if (mask == MASK_FROM_Y) {
        g = y <= 0.0f ? 0.0f : g;
    }
    return f->k1[l] * g + (f->k2[l] * d + f->k0[l]);
}

ROWS_INLINE void write_dx(mask_t mask, const float *restrict x,
                          const float *restrict g, const float *restrict y,
                          float *restrict dx, int64_t n,
                          const lane_factors_t *factors)
{
    const lane_factors_t f = *factors;
    int64_t i;
    int l;

    for (i = 0; i + LANES <= n; i += LANES) {
#pragma omp simd
        for (l = 0; l < LANES; l++) {
            const int64_t at = i + l;

            dx[at] = dx_of(mask, x[at], g[at],
                           mask == MASK_FROM_Y ? y[at] : 0.0f, &f, l);
        }
    }
    for (l = 0; i < n; i++, l++) {
        dx[i] =
            dx_of(mask, x[i], g[i], mask == MASK_FROM_Y ? y[i] : 0.0f, &f, l);
    }
}

#endif /* SL_LAYERS_CPU_BATCH_NORM_ROWS_H */
