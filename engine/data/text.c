/* SPDX-License-Identifier: Apache-2.0 */
/* Token streams: splits and windows; and the format whose tokens are the
 * bytes of a text. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/data/data_internal.h"

enum {
    TEXT_CLASSES = 256,
    CHUNK_TOKENS = 1024
};

sl_status_t sl_token_file_open(const char *path, int token_bytes,
                               sl_token_file_t *file)
{
    int64_t n_bytes = 0;
    char *copy = NULL;
    sl_status_t status;
    int fd = -1;

    SL_TRY(status, sl_data_file_open(path, &fd, &n_bytes), out);
    copy = strdup(path);
    if (copy == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, err_close,
                "data file %s: no host memory", path);
    }
    if (n_bytes % token_bytes != 0) {
        SL_FAIL(status, SL_ERR_CORRUPT, err_free,
                "data file %s: %lld bytes are no whole number of %d-byte "
                "tokens",
                path, (long long)n_bytes, token_bytes);
    }
    file->fd = fd;
    file->path = copy;
    file->first_byte = 0;
    file->n_tokens = n_bytes / token_bytes;
    file->token_bytes = token_bytes;
    return SL_OK;

err_free:
    free(copy);
err_close:
    (void)close(fd);
out:
    return status;
}

void sl_token_file_cleanup(sl_token_file_t *file)
{
    if (file->fd >= 0) {
        (void)close(file->fd);
    }
    free(file->path);
    file->fd = -1;
    file->path = NULL;
}

/** A split is empty or has a whole window and the target after it. */
static sl_status_t range_check(const sl_token_range_t *range, int64_t context,
                               const char *split)
{
    sl_status_t status = SL_OK;

    if (range->n < context + 1) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "data file %s: the %s split has %lld tokens, context %lld "
                "needs at least %lld; lower context or change what is held "
                "out",
                range->file->path, split, (long long)range->n,
                (long long)context, (long long)(context + 1));
    }
out:
    return status;
}

static sl_status_t ranges_make(const sl_data_params_t *params,
                               sl_dataset_t *dataset)
{
    const sl_token_file_t *files = dataset->files;
    const int is_apart = files[SL_DATA_VALID].fd >= 0;
    const int64_t n = files[SL_DATA_TRAIN].n_tokens;
    sl_token_range_t *train = &dataset->tokens[SL_DATA_TRAIN];
    sl_token_range_t *valid = &dataset->tokens[SL_DATA_VALID];
    sl_status_t status = SL_OK;

    if (!is_apart &&
        !(params->valid_fraction >= 0.0 && params->valid_fraction < 1.0)) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "data %s: valid_fraction %g; it is from 0 to less than 1",
                params->format, params->valid_fraction);
    }
    train->file = &files[SL_DATA_TRAIN];
    valid->file = &files[is_apart ? SL_DATA_VALID : SL_DATA_TRAIN];
    valid->n = is_apart ? files[SL_DATA_VALID].n_tokens
                        : (int64_t)((double)n * params->valid_fraction);
    train->n = is_apart ? n : n - valid->n;
    valid->first = is_apart ? 0 : train->n;
    SL_TRY(status, range_check(train, params->context, "train"), out);
    dataset->count[SL_DATA_TRAIN] = (train->n - 1) / params->context;
    if (is_apart || params->valid_fraction > 0.0) {
        SL_TRY(status, range_check(valid, params->context, "held-out"), out);
        dataset->count[SL_DATA_VALID] = (valid->n - 1) / params->context;
    }
out:
    return status;
}

sl_status_t sl_token_dataset_finish(const sl_data_params_t *params,
                                    int64_t classes, sl_dataset_t *dataset)
{
    const int64_t dims[2] = {1, params->context};
    sl_status_t status;

    if (params->context < 1 || params->context > SL_DATA_MAX_CONTEXT) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "data %s: context %lld; it is from 1 to %d", params->format,
                (long long)params->context, SL_DATA_MAX_CONTEXT);
    }
    SL_TRY(status, ranges_make(params, dataset), out);
    dataset->context = params->context;
    dataset->classes = classes;
    dataset->data = sl_tensor_desc(SL_DTYPE_I32, 2, dims);
    dataset->target = sl_tensor_desc(SL_DTYPE_I32, 2, dims);
out:
    return status;
}

/** Tokens [first, first + n) of a file, n at most CHUNK_TOKENS. */
static sl_status_t chunk_read(const sl_token_file_t *file, int64_t classes,
                              int64_t first, int64_t n, int32_t *tokens)
{
    const int64_t offset = file->first_byte + first * file->token_bytes;
    uint8_t bytes[2 * CHUNK_TOKENS];
    sl_status_t status;
    int64_t i;

    SL_TRY(status,
           sl_data_file_read(file->fd, file->path, bytes,
                             (size_t)(n * file->token_bytes), offset),
           out);
    for (i = 0; i < n; i++) {
        tokens[i] = file->token_bytes == 1
                        ? bytes[i]
                        : bytes[2 * i] | (int32_t)bytes[2 * i + 1] << 8;
        /* checked at open too, but the file may have been rewritten */
        if (tokens[i] >= classes) {
            SL_FAIL(status, SL_ERR_CORRUPT, out,
                    "data file %s: token %d at offset %lld; the vocabulary "
                    "is %lld",
                    file->path, (int)tokens[i],
                    (long long)(offset + i * file->token_bytes),
                    (long long)classes);
        }
    }
out:
    return status;
}

static int64_t window_first(const sl_dataset_t *dataset, sl_data_split_t split,
                            int64_t index, const sl_rng_t *rng)
{
    const uint64_t n_starts =
        (uint64_t)(dataset->tokens[split].n - dataset->context);
    uint64_t random;

    if (split != SL_DATA_TRAIN) {
        return index * dataset->context;
    }
    /* 64 bits: a file may have more than 2^32 tokens */
    random = (uint64_t)sl_rng_u32(rng, 0) << 32 | sl_rng_u32(rng, 1);
    return (int64_t)(random % n_starts);
}

sl_status_t sl_token_dataset_sample(const sl_dataset_t *dataset,
                                    sl_data_split_t split, int64_t index,
                                    const sl_rng_t *rng, void *data,
                                    int32_t *target)
{
    const sl_token_range_t *range = &dataset->tokens[split];
    const int64_t first =
        range->first + window_first(dataset, split, index, rng);
    const int64_t context = dataset->context;
    int32_t *inputs = data;
    sl_status_t status;
    int64_t at;

    SL_TRY(status, chunk_read(range->file, dataset->classes, first, 1, inputs),
           out);
    for (at = 0; at < context; at += CHUNK_TOKENS) {
        const int64_t n =
            context - at < CHUNK_TOKENS ? context - at : CHUNK_TOKENS;

        SL_TRY(status,
               chunk_read(range->file, dataset->classes, first + 1 + at, n,
                          target + at),
               out);
    }
    memcpy(inputs + 1, target, (size_t)(context - 1) * sizeof(*inputs));
out:
    return status;
}

static sl_status_t open_text(const sl_data_params_t *params,
                             sl_dataset_t *dataset)
{
    sl_status_t status;

    SL_TRY(status, sl_data_path_check(params, "path", params->path), out);
    if (params->classes != 0 && params->classes != TEXT_CLASSES) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "data text: tokens are bytes, so there are %d classes, not "
                "%lld",
                TEXT_CLASSES, (long long)params->classes);
    }
    SL_TRY(status,
           sl_token_file_open(params->path, 1, &dataset->files[SL_DATA_TRAIN]),
           out);
    if (params->valid_path != NULL) {
        SL_TRY(status,
               sl_token_file_open(params->valid_path, 1,
                                  &dataset->files[SL_DATA_VALID]),
               out);
    }
    SL_TRY(status, sl_token_dataset_finish(params, TEXT_CLASSES, dataset), out);
out:
    return status;
}

const sl_data_format_t sl_data_format_text = {.name = "text",
                                              .is_random_start = 1,
                                              .open = open_text,
                                              .sample =
                                                  sl_token_dataset_sample};
