/* SPDX-License-Identifier: Apache-2.0 */
/* Generated data that can be learnt, a function of (seed, index) only, with
 * integer arithmetic: the same bytes on every machine.
 *
 * Images: each class has a coarse grid of random levels, blown up to the
 * image, plus uniform noise a sample. Tokens: a Markov chain in which each
 * token has three likely successors. */
#include <stdlib.h>
#include <string.h>

#include "engine/data/data_internal.h"

enum {
    DEFAULT_CLASSES = 10,
    DEFAULT_CHANNELS = 3,
    DEFAULT_SIDE = 32,
    GRID_CELLS = SL_DATA_GRID_SIDE * SL_DATA_GRID_SIDE,
    GRID_MAX_BYTES = 1 << 30,
    GRID_MIN = 64,  /* levels: GRID_MIN..GRID_MIN + 127 */
    NOISE_HALF = 64 /* noise: -64..63, so a pixel stays in 0..255 */
};

/* streams of random numbers ("layer" of the address) */
enum {
    DRAW_GRID,
    DRAW_NOISE,
    DRAW_TOKEN,
    DRAW_SUCCESSOR
};

static const sl_image_usual_t usual = {.mean = {0.5, 0.5, 0.5},
                                       .deviation = {0.25, 0.25, 0.25}};

static sl_status_t common_open(const sl_data_params_t *params,
                               int64_t max_classes, sl_dataset_t *dataset)
{
    const int64_t classes =
        params->classes == 0 ? DEFAULT_CLASSES : params->classes;
    sl_status_t status = SL_OK;

    if (classes < 1 || classes > max_classes) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "data %s: classes %lld; it is from 1 to %lld", params->format,
                (long long)classes, (long long)max_classes);
    }
    if (params->n_samples < 1 || params->n_samples > SL_DATA_MAX_IMAGES ||
        params->n_valid < 0 ||
        params->n_valid > SL_DATA_MAX_IMAGES - params->n_samples) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "data %s: n_samples %lld, n_valid %lld; at least 1 and 0, "
                "together at most %lld",
                params->format, (long long)params->n_samples,
                (long long)params->n_valid, (long long)SL_DATA_MAX_IMAGES);
    }
    dataset->classes = classes;
    dataset->count[SL_DATA_TRAIN] = params->n_samples;
    dataset->count[SL_DATA_VALID] = params->n_valid;
    dataset->seed = params->seed;
out:
    return status;
}

/** The held-out samples are those after the training ones. */
static uint32_t global_index(const sl_dataset_t *dataset, sl_data_split_t split,
                             int64_t index)
{
    return (uint32_t)(split == SL_DATA_TRAIN
                          ? index
                          : dataset->count[SL_DATA_TRAIN] + index);
}

/** Byte i of 16 random ones. */
static uint8_t byte_of(const uint32_t block[4], size_t i)
{
    return (uint8_t)(block[i / 4] >> (8 * (i % 4)));
}

static sl_status_t grids_make(sl_dataset_t *dataset)
{
    const size_t class_bytes = (size_t)dataset->view.channels * GRID_CELLS;
    sl_status_t status = SL_OK;
    uint32_t block[4];
    int64_t label;
    size_t i;

    dataset->grids = malloc((size_t)dataset->classes * class_bytes);
    if (dataset->grids == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "data synthetic_images: no host memory for %lld classes",
                (long long)dataset->classes);
    }
    for (label = 0; label < dataset->classes; label++) {
        const sl_rng_t rng = sl_rng_at(dataset->seed, (uint32_t)label, 0,
                                       DRAW_GRID, SL_RNG_USE_SYNTHETIC);
        uint8_t *grid = dataset->grids + (size_t)label * class_bytes;

        for (i = 0; i < class_bytes; i++) {
            if (i % 16 == 0) {
                sl_rng_block(&rng, (uint32_t)(i / 16), block);
            }
            grid[i] = (uint8_t)(GRID_MIN + byte_of(block, i % 16) / 2);
        }
    }
out:
    return status;
}

static sl_status_t open_images(const sl_data_params_t *params,
                               sl_dataset_t *dataset)
{
    int64_t dims[4] = {1, DEFAULT_CHANNELS, DEFAULT_SIDE, DEFAULT_SIDE};
    sl_status_t status;

    dims[1] = params->channels == 0 ? dims[1] : params->channels;
    dims[2] = params->height == 0 ? dims[2] : params->height;
    dims[3] = params->width == 0 ? dims[3] : params->width;
    SL_TRY(status,
           common_open(params,
                       GRID_MAX_BYTES / (GRID_CELLS * SL_DATA_MAX_CHANNELS),
                       dataset),
           out);
    SL_TRY(status,
           sl_image_view_init(params, &usual, dims[1], dims[2], dims[3],
                              &dataset->view),
           out);
    SL_TRY(status, grids_make(dataset), out);
    dataset->data = sl_tensor_desc(SL_DTYPE_F32, 4, dims);
    dataset->target = sl_tensor_desc(SL_DTYPE_I32, 1, dims);
out:
    return status;
}

static void pixels_make(const sl_dataset_t *dataset, const sl_rng_t *noise,
                        const uint8_t *grid, uint8_t *pixels)
{
    const sl_image_view_t *view = &dataset->view;
    uint32_t block[4];
    size_t i = 0;
    int64_t c, y, x;

    for (c = 0; c < view->channels; c++) {
        for (y = 0; y < view->height; y++) {
            const uint8_t *cells =
                grid + c * GRID_CELLS +
                y * SL_DATA_GRID_SIDE / view->height * SL_DATA_GRID_SIDE;

            for (x = 0; x < view->width; x++, i++) {
                const int level = cells[x * SL_DATA_GRID_SIDE / view->width];

                if (i % 16 == 0) {
                    sl_rng_block(noise, (uint32_t)(i / 16), block);
                }
                pixels[i] =
                    (uint8_t)(level + byte_of(block, i % 16) / 2 - NOISE_HALF);
            }
        }
    }
}

static sl_status_t sample_image(const sl_dataset_t *dataset,
                                sl_data_split_t split, int64_t index,
                                const sl_rng_t *rng, void *data,
                                int32_t *target)
{
    const sl_image_view_t *view = &dataset->view;
    const uint32_t global = global_index(dataset, split, index);
    const int64_t label = global % dataset->classes;
    const sl_rng_t noise =
        sl_rng_at(dataset->seed, global, 0, DRAW_NOISE, SL_RNG_USE_SYNTHETIC);
    sl_status_t status = SL_OK;
    uint8_t *pixels;

    pixels = malloc((size_t)sl_tensor_elements(&dataset->data));
    if (pixels == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "data synthetic_images: no host memory for a sample");
    }
    pixels_make(dataset, &noise,
                dataset->grids + label * view->channels * GRID_CELLS, pixels);
    sl_image_view_apply(view, pixels, view->height, view->width,
                        split == SL_DATA_TRAIN ? rng : NULL, data);
    *target = (int32_t)label;
    free(pixels);
out:
    return status;
}

static sl_status_t open_tokens(const sl_data_params_t *params,
                               sl_dataset_t *dataset)
{
    const int64_t dims[2] = {1, params->context};
    sl_status_t status;

    if (params->context < 1 || params->context > SL_DATA_MAX_CONTEXT) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "data %s: context %lld; it is from 1 to %d", params->format,
                (long long)params->context, SL_DATA_MAX_CONTEXT);
    }
    SL_TRY(status, common_open(params, SL_DATA_MAX_CLASSES, dataset), out);
    dataset->context = params->context;
    dataset->data = sl_tensor_desc(SL_DTYPE_I32, 2, dims);
    dataset->target = sl_tensor_desc(SL_DTYPE_I32, 2, dims);
out:
    return status;
}

/** The token after `token`: one of its three likely ones (1/2, 1/4, 1/8), or
 *  any (1/8). */
static int32_t successor(const sl_dataset_t *dataset, int32_t token,
                         const uint32_t random[4])
{
    const uint32_t classes = (uint32_t)dataset->classes;
    const sl_rng_t rng = sl_rng_at(dataset->seed, (uint32_t)token, 0,
                                   DRAW_SUCCESSOR, SL_RNG_USE_SYNTHETIC);
    const uint32_t choice = random[0] >> 29; /* 0..7 */
    uint32_t likely[4];

    sl_rng_block(&rng, 0, likely);
    if (choice == 7) {
        return (int32_t)(random[1] % classes);
    }
    return (int32_t)(likely[choice < 4 ? 0 : (choice < 6 ? 1 : 2)] % classes);
}

static sl_status_t sample_tokens(const sl_dataset_t *dataset,
                                 sl_data_split_t split, int64_t index,
                                 const sl_rng_t *rng, void *data,
                                 int32_t *target)
{
    const sl_rng_t draws =
        sl_rng_at(dataset->seed, global_index(dataset, split, index), 0,
                  DRAW_TOKEN, SL_RNG_USE_SYNTHETIC);
    int32_t *inputs = data;
    uint32_t random[4];
    int64_t i;

    (void)rng;
    sl_rng_block(&draws, 0, random);
    inputs[0] = (int32_t)(random[1] % (uint32_t)dataset->classes);
    for (i = 0; i < dataset->context; i++) {
        sl_rng_block(&draws, (uint32_t)(i + 1), random);
        target[i] = successor(dataset, inputs[i], random);
        if (i + 1 < dataset->context) {
            inputs[i + 1] = target[i];
        }
    }
    return SL_OK;
}

const sl_data_format_t sl_data_format_synthetic_images = {
    .name = "synthetic_images", .open = open_images, .sample = sample_image};

const sl_data_format_t sl_data_format_synthetic_tokens = {
    .name = "synthetic_tokens", .open = open_tokens, .sample = sample_tokens};
