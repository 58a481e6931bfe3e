/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file data_internal.h
 * What the data formats share: files, image stores, token files, the table.
 *
 * Image formats hold their pixels in memory as bytes and normalise a sample
 * when it is asked for. Token formats read each window from the file, so a
 * file larger than memory works, and one that shrinks under us is an error
 * of that read, not a signal.
 */
#ifndef SL_ENGINE_DATA_DATA_INTERNAL_H
#define SL_ENGINE_DATA_DATA_INTERNAL_H

#include <stddef.h>
#include <stdint.h>

#include "base/rng.h"
#include "engine/data/data.h"

enum {
    SL_DATA_MAX_CHANNELS = 3,
    SL_DATA_MAX_SIDE = 1 << 14,    /* pixels */
    SL_DATA_MAX_CONTEXT = 1 << 24, /* tokens */
    SL_DATA_MAX_CLASSES = 1 << 24,
    SL_DATA_GRID_SIDE = 8 /* synthetic images: coarse cells a side */
};
/** Images of a set: an index fits 31 bits. */
#define SL_DATA_MAX_IMAGES ((int64_t)INT32_MAX)

/* ---- files ---- */

/** Open a regular file that is not empty; never blocks on a pipe. */
SL_NODISCARD sl_status_t sl_data_file_open(const char *path, int *fd_p,
                                           int64_t *n_bytes_p);
/** Read exactly n bytes at an offset; `path` is for the message. */
SL_NODISCARD sl_status_t sl_data_file_read(int fd, const char *path,
                                           void *bytes, size_t n_bytes,
                                           int64_t offset);

/* ---- images ---- */

/** Images in memory: pixel i of a store at pixels + i * pixel_stride, each
 *  channels x height x width bytes; its label likewise. */
typedef struct sl_image_store {
    uint8_t *pixel_memory; /* owned */
    uint8_t *label_memory; /* owned, or NULL when the labels lie between */
    const uint8_t *pixels;
    size_t pixel_stride;
    const uint8_t *labels;
    size_t label_stride;
    int64_t n, channels, height, width;
    int label_max; /* largest label found */
} sl_image_store_t;

void sl_image_store_cleanup(sl_image_store_t *store);

/** The images of a split: a run of a store. */
typedef struct sl_image_range {
    const sl_image_store_t *store;
    int64_t first;
} sl_image_range_t;

/** From bytes to normalised floats: [channels, height, width]. */
typedef struct sl_image_view {
    int64_t channels, height, width;
    int64_t crop_pad;
    int flip;
    float value[SL_DATA_MAX_CHANNELS][256]; /* of each byte, normalised */
} sl_image_view_t;

/** Normalisation a format uses when none is given. */
typedef struct sl_image_usual {
    double mean[SL_DATA_MAX_CHANNELS], deviation[SL_DATA_MAX_CHANNELS];
} sl_image_usual_t;

/** @param[in] usual used when params->deviation[0] is 0 */
SL_NODISCARD sl_status_t sl_image_view_init(const sl_data_params_t *params,
                                            const sl_image_usual_t *usual,
                                            int64_t channels, int64_t height,
                                            int64_t width,
                                            sl_image_view_t *view);
/** One image of source_height x source_width bytes a channel, centred in the
 *  view (zero bytes around), into channels x height x width floats.
 *  @param[in] rng draws the shift and the mirroring; NULL = neither */
void sl_image_view_apply(const sl_image_view_t *view, const uint8_t *pixels,
                         int64_t source_height, int64_t source_width,
                         const sl_rng_t *rng, float *out);

/** Finish an image format whose stores[TRAIN], and stores[VALID] when it has
 *  images, are loaded: splits, view, descs. */
SL_NODISCARD sl_status_t sl_image_dataset_finish(const sl_data_params_t *params,
                                                 const sl_image_usual_t *usual,
                                                 int64_t classes,
                                                 sl_dataset_t *dataset);
SL_NODISCARD sl_status_t sl_image_dataset_sample(const sl_dataset_t *dataset,
                                                 sl_data_split_t split,
                                                 int64_t index,
                                                 const sl_rng_t *rng,
                                                 void *data, int32_t *target);

/* ---- tokens ---- */

/** A file of 1 or 2 byte little-endian tokens. */
typedef struct sl_token_file {
    int fd;     /* owned; -1 = not open */
    char *path; /* owned */
    int64_t first_byte, n_tokens;
    int token_bytes;
} sl_token_file_t;

SL_NODISCARD sl_status_t sl_token_file_open(const char *path, int token_bytes,
                                            sl_token_file_t *file);
void sl_token_file_cleanup(sl_token_file_t *file);

/** The tokens of a split: a run of a file. */
typedef struct sl_token_range {
    const sl_token_file_t *file;
    int64_t first, n;
} sl_token_range_t;

/** Finish a token format whose files[TRAIN], and files[VALID] when it is
 *  open, are known: splits and descs. */
SL_NODISCARD sl_status_t sl_token_dataset_finish(const sl_data_params_t *params,
                                                 int64_t classes,
                                                 sl_dataset_t *dataset);
SL_NODISCARD sl_status_t sl_token_dataset_sample(const sl_dataset_t *dataset,
                                                 sl_data_split_t split,
                                                 int64_t index,
                                                 const sl_rng_t *rng,
                                                 void *data, int32_t *target);

/* ---- formats ---- */

/** A format: one file of this folder, one line of the table. */
typedef struct sl_data_format {
    const char *name;
    /** Train windows start anywhere: the index of a sample has no meaning. */
    int is_random_start;
    /** Fill the dataset, which is zeroed; close() follows on failure too. */
    sl_status_t (*open)(const sl_data_params_t *params, sl_dataset_t *dataset);
    /** Write one sample. @param[in] rng the sample's own random numbers */
    sl_status_t (*sample)(const sl_dataset_t *dataset, sl_data_split_t split,
                          int64_t index, const sl_rng_t *rng, void *data,
                          int32_t *target);
} sl_data_format_t;

extern const sl_data_format_t sl_data_format_idx;
extern const sl_data_format_t sl_data_format_cifar10;
extern const sl_data_format_t sl_data_format_cifar100;
extern const sl_data_format_t sl_data_format_text;
extern const sl_data_format_t sl_data_format_tokens;
extern const sl_data_format_t sl_data_format_synthetic_images;
extern const sl_data_format_t sl_data_format_synthetic_tokens;

/** "idx|cifar10|..." of all formats, for messages and choices. */
#define SL_DATA_FORMAT_CHOICES                                                 \
    "idx|cifar10|cifar100|text|tokens|synthetic_images|synthetic_tokens"

/** Arrays of two are by sl_data_split_t. */
struct sl_dataset {
    const sl_data_format_t *format;
    sl_tensor_desc_t data, target;
    int64_t classes;
    int64_t count[2];
    /* images */
    sl_image_store_t stores[2];
    sl_image_range_t images[2];
    sl_image_view_t view;
    /* tokens */
    sl_token_file_t files[2];
    sl_token_range_t tokens[2];
    int64_t context;
    /* synthetic */
    uint64_t seed;
    uint8_t *grids; /* owned: classes x channels x GRID_SIDE x GRID_SIDE */
};

/** sl_dataset_sample() that can fail: what the loader calls. */
SL_NODISCARD sl_status_t sl_dataset_try_sample(const sl_dataset_t *dataset,
                                               sl_data_split_t split,
                                               int64_t index, uint64_t seed,
                                               uint64_t draw, void *data,
                                               int32_t *target);

/** Path given, or SL_ERR_CONFIG naming the format and the key. */
SL_NODISCARD sl_status_t sl_data_path_check(const sl_data_params_t *params,
                                            const char *key, const char *path);

#endif /* SL_ENGINE_DATA_DATA_INTERNAL_H */
