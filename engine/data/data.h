/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file data.h
 * Data sets and the loader: samples in a deterministic order, batches made
 * ahead of time by a prefetch thread.
 *
 * A batch is a function of (seed, step) only: not of timing, threads, or how
 * many stages train. Order: one permutation an epoch, drawn by Philox.
 */
#ifndef SL_ENGINE_DATA_DATA_H
#define SL_ENGINE_DATA_DATA_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "layers/tensor.h"

SL_BEGIN_DECLS

enum {
    SL_DATA_IGNORE = -100 /**< target value that is not trained on */
};

typedef enum sl_data_split {
    SL_DATA_TRAIN,
    SL_DATA_VALID
} sl_data_split_t;

typedef struct sl_dataset sl_dataset_t; /* opaque; read only once open */

/** What to open. Start from sl_data_params_default(). */
typedef struct sl_data_params {
    const char *format; /**< "idx", "cifar10", "cifar100", "text", "tokens",
                             "synthetic_images", "synthetic_tokens" */
    const char *path;   /**< idx: images file (.gz too); cifar: a directory or
                             a .bin file; text and tokens: the file */
    const char *labels; /**< idx: labels file */
    const char *valid_path; /**< held-out file of the same format, or NULL:
                                 the end of `path` is held out */
    const char *valid_labels;
    int64_t n_valid; /**< idx, cifar, synthetic: samples held out at the end
                          when valid_path is NULL (default 0; then a cifar
                          directory holds out its test file) */
    double valid_fraction; /**< text, tokens: share of the end held out when
                              valid_path is NULL (default 0.1) */
    int64_t context;       /**< text, tokens: tokens per sample (default 256) */
    int64_t classes;       /**< synthetic: labels; tokens: vocabulary (0 = 50257
                                for tokens, 10 synthetic, idx the largest label
                                + 1; cifar and text have their own) */
    int64_t channels, height, width; /**< synthetic images (0 = 3, 32, 32);
                              idx, cifar: when larger than the file's images,
                              pad with zeros around (0 = as in the file) */
    int64_t n_samples; /**< synthetic: size of the train split (1024) */
    double mean[3], deviation[3]; /**< images: (pixel/255 - mean)/deviation a
                              channel; deviation[0] 0 = the format's usual
                              values for both */
    int flip;         /**< train images: mirrored by chance (default 0) */
    int64_t crop_pad; /**< train images: random shift within this border
                           (default 0) */
    uint64_t seed;    /**< synthetic content */
} sl_data_params_t;

SL_API void sl_data_params_default(sl_data_params_t *params);

/** @param[in] params borrowed for the call
 *  @return SL_OK, SL_ERR_IO, SL_ERR_CORRUPT (file, offset, what was expected),
 *          SL_ERR_UNSUPPORTED (32-bit token shards), SL_ERR_CONFIG,
 *          SL_ERR_NO_MEMORY */
SL_API SL_NODISCARD sl_status_t sl_dataset_open(const sl_data_params_t *params,
                                                sl_dataset_t **dataset_p);
SL_API void sl_dataset_close(sl_dataset_t *dataset);

/** Shape of one sample, dims[0] = 1: f32 image [1, C, H, W] or i32 tokens
 *  [1, T]; target: i32 [1] or [1, T]. */
SL_API void sl_dataset_descs(const sl_dataset_t *dataset,
                             sl_tensor_desc_t *data_p,
                             sl_tensor_desc_t *target_p);
SL_API int64_t sl_dataset_classes(const sl_dataset_t *dataset);
/** Samples of a split: images, or non-overlapping windows of `context`. */
SL_API int64_t sl_dataset_count(const sl_dataset_t *dataset,
                                sl_data_split_t split);
/** Write one sample. Text and tokens in training: the window starts at a
 *  random token drawn from `draw`, otherwise at index * context. `draw`
 *  addresses all randomness of the sample (position in the run, unique per
 *  use). When its file cannot be read any more, that is logged, the data are
 *  zeros and the targets SL_DATA_IGNORE; a loader reports it as an error. */
SL_API void sl_dataset_sample(const sl_dataset_t *dataset,
                              sl_data_split_t split, int64_t index,
                              uint64_t seed, uint64_t draw, void *data,
                              int32_t *target);

/** A mini-batch in host memory. */
typedef struct sl_batch {
    int64_t rows;
    const void *data;      /**< borrowed: rows samples, contiguous */
    const int32_t *target; /**< borrowed: rows targets */
    uint32_t step;         /**< the step it is for, from 0 */
} sl_batch_t;

typedef struct sl_loader sl_loader_t; /* opaque */

typedef struct sl_loader_params {
    sl_data_split_t split;
    int64_t batch_rows;
    int shuffle; /**< TRAIN: a new permutation an epoch; the tail of an
                      epoch that fills no batch is dropped, unless the
                      split is smaller than a batch, which then wraps.
                      VALID: in order, last batch smaller, then ends */
    uint64_t seed;
    uint32_t first_step; /**< TRAIN: to go on where another run stopped */
    int n_ahead;         /**< batches made ahead, at most 1024 (0 = 2) */
} sl_loader_params_t;

/** Where in the order of the train split a step begins: which epoch, and how
 *  many of its samples came before. */
SL_API void sl_data_position(int64_t n_samples, int64_t batch_rows,
                             uint64_t step, uint64_t *epoch_p,
                             uint64_t *sample_p);

/** @param[in] dataset borrowed; must outlive the loader
 *  @return SL_OK, SL_ERR_INVALID_ARG, SL_ERR_CONFIG (the split is empty),
 *          SL_ERR_NO_MEMORY */
SL_API SL_NODISCARD sl_status_t sl_loader_create(sl_dataset_t *dataset,
                                                 const sl_loader_params_t *p,
                                                 sl_loader_t **loader_p);
SL_API void sl_loader_destroy(sl_loader_t *loader);
/** The next batch, borrowed until the next call. batch_p->rows is 0 at the
 *  end of a VALID pass (the loader then starts over). One caller at a time.
 *  A failure of the prefetch thread comes after the batches made before it,
 *  with its detail in sl_last_error(), and again at every later call.
 *  @return SL_OK, SL_ERR_IO, SL_ERR_CORRUPT, SL_ERR_NO_MEMORY */
SL_API SL_NODISCARD sl_status_t sl_loader_next(sl_loader_t *loader,
                                               sl_batch_t *batch_p);

SL_END_DECLS
#endif /* SL_ENGINE_DATA_DATA_H */
