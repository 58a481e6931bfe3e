/* SPDX-License-Identifier: Apache-2.0 */
/* Images in memory: splits, normalisation, padding, shift, mirror. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/data/data_internal.h"

/* indices of a sample's random numbers */
enum {
    DRAW_FLIP,
    DRAW_SHIFT_Y,
    DRAW_SHIFT_X
};

void sl_image_store_cleanup(sl_image_store_t *store)
{
    free(store->pixel_memory);
    free(store->label_memory);
    memset(store, 0, sizeof(*store));
}

static sl_status_t view_values(const sl_data_params_t *params,
                               const sl_image_usual_t *usual,
                               sl_image_view_t *view)
{
    const int is_usual = params->deviation[0] == 0.0;
    sl_status_t status = SL_OK;
    int64_t c;
    int byte;

    for (c = 0; c < view->channels; c++) {
        const double mean = is_usual ? usual->mean[c] : params->mean[c];
        const double deviation =
            is_usual ? usual->deviation[c] : params->deviation[c];

        if (!(isfinite(mean) && isfinite(deviation) && deviation > 0.0)) {
            SL_FAIL(status, SL_ERR_CONFIG, out,
                    "data %s: channel %d has mean %g, deviation %g; finite "
                    "ones and a deviation above 0 are needed",
                    params->format, (int)c, mean, deviation);
        }
        for (byte = 0; byte < 256; byte++) {
            view->value[c][byte] = (float)((byte / 255.0 - mean) / deviation);
        }
    }
out:
    return status;
}

sl_status_t sl_image_view_init(const sl_data_params_t *params,
                               const sl_image_usual_t *usual, int64_t channels,
                               int64_t height, int64_t width,
                               sl_image_view_t *view)
{
    sl_status_t status;

    if (channels < 1 || channels > SL_DATA_MAX_CHANNELS || height < 1 ||
        height > SL_DATA_MAX_SIDE || width < 1 || width > SL_DATA_MAX_SIDE) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "data %s: images of %lld x %lld x %lld (channels, height, "
                "width); at most %d x %d x %d are read",
                params->format, (long long)channels, (long long)height,
                (long long)width, SL_DATA_MAX_CHANNELS, SL_DATA_MAX_SIDE,
                SL_DATA_MAX_SIDE);
    }
    if (params->crop_pad < 0 || params->crop_pad >= height ||
        params->crop_pad >= width) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "data %s: crop_pad %lld with images of %lld x %lld; it is "
                "from 0 to less than a side",
                params->format, (long long)params->crop_pad, (long long)height,
                (long long)width);
    }
    view->channels = channels;
    view->height = height;
    view->width = width;
    view->crop_pad = params->crop_pad;
    view->flip = params->flip != 0;
    SL_TRY(status, view_values(params, usual, view), out);
out:
    return status;
}

static int64_t clamp(int64_t x, int64_t min, int64_t max)
{
    return x < min ? min : (x > max ? max : x);
}

/** One row: out[x] = the value of source[x - left], zero bytes outside. */
static void row_apply(const float value[256], const uint8_t *source,
                      int64_t source_width, int64_t left, int64_t width,
                      int is_mirrored, float *out)
{
    const int64_t begin = clamp(left, 0, width);
    const int64_t end = clamp(left + source_width, begin, width);
    const int64_t first = is_mirrored ? width - 1 : 0;
    const int64_t step = is_mirrored ? -1 : 1;
    int64_t x;

    for (x = 0; x < begin; x++) {
        out[first + step * x] = value[0];
    }
    for (x = begin; x < end; x++) {
        out[first + step * x] = value[source[x - left]];
    }
    for (x = end; x < width; x++) {
        out[first + step * x] = value[0];
    }
}

static int64_t shift_draw(const sl_rng_t *rng, uint64_t index, int64_t border)
{
    return (int64_t)sl_rng_below(rng, index, (uint64_t)(2 * border + 1)) -
           border;
}

void sl_image_view_apply(const sl_image_view_t *view, const uint8_t *pixels,
                         int64_t source_height, int64_t source_width,
                         const sl_rng_t *rng, float *out)
{
    int64_t top = (view->height - source_height) / 2;
    int64_t left = (view->width - source_width) / 2;
    int is_mirrored = 0;
    int64_t c, y;

    if (rng != NULL && view->flip) {
        is_mirrored = (int)sl_rng_below(rng, DRAW_FLIP, 2);
    }
    if (rng != NULL && view->crop_pad > 0) {
        top += shift_draw(rng, DRAW_SHIFT_Y, view->crop_pad);
        left += shift_draw(rng, DRAW_SHIFT_X, view->crop_pad);
    }
    for (c = 0; c < view->channels; c++) {
        for (y = 0; y < view->height; y++) {
            const int64_t from = y - top;
            const int is_inside = from >= 0 && from < source_height;
            const uint8_t *row =
                pixels +
                (c * source_height + (is_inside ? from : 0)) * source_width;

            row_apply(view->value[c], row, is_inside ? source_width : 0, left,
                      view->width, is_mirrored,
                      out + (c * view->height + y) * view->width);
        }
    }
}

static sl_status_t splits_make(const sl_data_params_t *params,
                               sl_dataset_t *dataset)
{
    const sl_image_store_t *stores = dataset->stores;
    const int64_t n = stores[SL_DATA_TRAIN].n;
    const int is_apart = stores[SL_DATA_VALID].n > 0;
    const int64_t n_held = is_apart ? 0 : params->n_valid;
    sl_status_t status = SL_OK;

    if (n_held < 0 || n_held >= n) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "data file %s: n_valid %lld of %lld images; it is from 0 to "
                "less than all of them",
                params->path, (long long)n_held, (long long)n);
    }
    dataset->count[SL_DATA_TRAIN] = n - n_held;
    dataset->count[SL_DATA_VALID] = is_apart ? stores[SL_DATA_VALID].n : n_held;
    dataset->images[SL_DATA_TRAIN].store = &stores[SL_DATA_TRAIN];
    dataset->images[SL_DATA_VALID].store =
        &stores[is_apart ? SL_DATA_VALID : SL_DATA_TRAIN];
    dataset->images[SL_DATA_VALID].first = is_apart ? 0 : n - n_held;
out:
    return status;
}

/** A side of the view: as asked, at least as the file has it. */
static sl_status_t side_choose(const sl_data_params_t *params, const char *name,
                               int64_t asked, int64_t had, int64_t *side_p)
{
    sl_status_t status = SL_OK;

    if (asked != 0 && asked < had) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "data file %s: image %s %lld asked, the file has %lld; ask "
                "for 0 (as in the file) or more (zeros around)",
                params->path, name, (long long)asked, (long long)had);
    }
    *side_p = asked == 0 ? had : asked;
out:
    return status;
}

sl_status_t sl_image_dataset_finish(const sl_data_params_t *params,
                                    const sl_image_usual_t *usual,
                                    int64_t classes, sl_dataset_t *dataset)
{
    const sl_image_store_t *train = &dataset->stores[SL_DATA_TRAIN];
    const sl_image_store_t *valid = &dataset->stores[SL_DATA_VALID];
    int64_t dims[4] = {1, train->channels, 0, 0};
    sl_status_t status;

    if (valid->n > 0 &&
        (valid->height != train->height || valid->width != train->width)) {
        SL_FAIL(status, SL_ERR_CORRUPT, out,
                "data file %s: images of %lld x %lld, but %s has %lld x %lld",
                params->valid_path, (long long)valid->height,
                (long long)valid->width, params->path, (long long)train->height,
                (long long)train->width);
    }
    if (params->channels != 0 && params->channels != train->channels) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "data file %s: %lld channels asked, the file has %lld",
                params->path, (long long)params->channels,
                (long long)train->channels);
    }
    SL_TRY(
        status,
        side_choose(params, "height", params->height, train->height, &dims[2]),
        out);
    SL_TRY(status,
           side_choose(params, "width", params->width, train->width, &dims[3]),
           out);
    SL_TRY(status, splits_make(params, dataset), out);
    SL_TRY(status,
           sl_image_view_init(params, usual, dims[1], dims[2], dims[3],
                              &dataset->view),
           out);
    dataset->classes = classes;
    dataset->data = sl_tensor_desc(SL_DTYPE_F32, 4, dims);
    dataset->target = sl_tensor_desc(SL_DTYPE_I32, 1, dims);
out:
    return status;
}

sl_status_t sl_image_dataset_sample(const sl_dataset_t *dataset,
                                    sl_data_split_t split, int64_t index,
                                    const sl_rng_t *rng, void *data,
                                    int32_t *target)
{
    const sl_image_range_t *range = &dataset->images[split];
    const sl_image_store_t *store = range->store;
    const size_t at = (size_t)(range->first + index);

    sl_image_view_apply(
        &dataset->view, store->pixels + at * store->pixel_stride, store->height,
        store->width, split == SL_DATA_TRAIN ? rng : NULL, data);
    *target = store->labels[at * store->label_stride];
    return SL_OK;
}
