/* SPDX-License-Identifier: Apache-2.0 */
/* Shards of 16-bit little-endian tokens: raw (nanoGPT), or after a header of
 * 256 32-bit words: magic, version, number of tokens (llm.c). */
#include <stdlib.h>
#include <string.h>

#include "engine/data/data_internal.h"

enum {
    HEADER_BYTES = 1024,
    MAGIC_U16 = 20240520, /* version 1: 16-bit tokens */
    MAGIC_U32 = 20240801, /* 32-bit tokens, which are not read */
    VERSION = 1,
    DEFAULT_CLASSES = 50257, /* GPT-2's vocabulary */
    TOKEN_VALUES = 1 << 16,
    SCAN_BYTES = 1 << 20
};

static uint32_t little_endian(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 |
           (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

/** Skip and check the header, if the file has one. A raw file whose
 *  vocabulary is at most 55432 cannot start like one. */
static sl_status_t header_read(sl_token_file_t *file)
{
    const int64_t n_bytes = file->n_tokens * 2;
    uint8_t header[HEADER_BYTES];
    sl_status_t status = SL_OK;
    uint32_t magic;

    if (n_bytes < 4) {
        goto out;
    }
    SL_TRY(status, sl_data_file_read(file->fd, file->path, header, 4, 0), out);
    magic = little_endian(header);
    if (magic == MAGIC_U32) {
        SL_FAIL(status, SL_ERR_UNSUPPORTED, out,
                "data file %s: magic %d is of 32-bit tokens; only 16-bit "
                "ones are read",
                file->path, MAGIC_U32);
    }
    if (magic != MAGIC_U16) {
        goto out;
    }
    SL_TRY(status,
           sl_data_file_read(file->fd, file->path, header, HEADER_BYTES, 0),
           out);
    if (little_endian(header + 4) != VERSION) {
        SL_FAIL(status, SL_ERR_CORRUPT, out,
                "data file %s: header version %u at offset 4; only %d is read",
                file->path, little_endian(header + 4), VERSION);
    }
    if ((int64_t)little_endian(header + 8) * 2 != n_bytes - HEADER_BYTES) {
        SL_FAIL(status, SL_ERR_CORRUPT, out,
                "data file %s: the header says %u tokens at offset 8, but "
                "%lld bytes after it hold %lld",
                file->path, little_endian(header + 8),
                (long long)(n_bytes - HEADER_BYTES),
                (long long)(n_bytes - HEADER_BYTES) / 2);
    }
    file->first_byte = HEADER_BYTES;
    file->n_tokens = (n_bytes - HEADER_BYTES) / 2;
out:
    return status;
}

/** The first token at or above the vocabulary in a chunk, or n. */
static int64_t bad_find(const uint8_t *bytes, int64_t n, int64_t classes)
{
    int64_t i;
    int max = 0;

    /* a plain maximum first: it runs on vectors */
    for (i = 0; i < n; i++) {
        const int token = bytes[2 * i] | bytes[2 * i + 1] << 8;

        max = token > max ? token : max;
    }
    if (max < classes) {
        return n;
    }
    for (i = 0; i < n; i++) {
        if ((bytes[2 * i] | bytes[2 * i + 1] << 8) >= classes) {
            break;
        }
    }
    return i;
}

static sl_status_t scan(const sl_token_file_t *file, int64_t classes)
{
    const int64_t end = file->first_byte + file->n_tokens * 2;
    uint8_t *bytes = NULL;
    sl_status_t status = SL_OK;
    int64_t at;

    if (classes >= TOKEN_VALUES) {
        goto out;
    }
    bytes = malloc(SCAN_BYTES);
    if (bytes == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "data file %s: no host memory",
                file->path);
    }
    for (at = file->first_byte; at < end; at += SCAN_BYTES) {
        const int64_t n = end - at < SCAN_BYTES ? end - at : SCAN_BYTES;
        int64_t bad;

        SL_TRY(status,
               sl_data_file_read(file->fd, file->path, bytes, (size_t)n, at),
               err_free);
        bad = bad_find(bytes, n / 2, classes);
        if (bad < n / 2) {
            SL_FAIL(status, SL_ERR_CORRUPT, err_free,
                    "data file %s: token %d at offset %lld; the vocabulary "
                    "is %lld",
                    file->path, bytes[2 * bad] | bytes[2 * bad + 1] << 8,
                    (long long)(at + 2 * bad), (long long)classes);
        }
    }
err_free:
    free(bytes);
out:
    return status;
}

static sl_status_t shard_open(const char *path, int64_t classes,
                              sl_token_file_t *file)
{
    sl_status_t status;

    SL_TRY(status, sl_token_file_open(path, 2, file), out);
    SL_TRY(status, header_read(file), out);
    SL_TRY(status, scan(file, classes), out);
out:
    return status;
}

static sl_status_t open_tokens(const sl_data_params_t *params,
                               sl_dataset_t *dataset)
{
    const int64_t classes =
        params->classes == 0 ? DEFAULT_CLASSES : params->classes;
    sl_status_t status;

    SL_TRY(status, sl_data_path_check(params, "path", params->path), out);
    if (classes < 1 || classes > SL_DATA_MAX_CLASSES) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "data tokens: classes (vocabulary) %lld; it is from 1 to %d",
                (long long)classes, SL_DATA_MAX_CLASSES);
    }
    SL_TRY(status,
           shard_open(params->path, classes, &dataset->files[SL_DATA_TRAIN]),
           out);
    if (params->valid_path != NULL) {
        SL_TRY(status,
               shard_open(params->valid_path, classes,
                          &dataset->files[SL_DATA_VALID]),
               out);
    }
    SL_TRY(status, sl_token_dataset_finish(params, classes, dataset), out);
out:
    return status;
}

const sl_data_format_t sl_data_format_tokens = {.name = "tokens",
                                                .is_random_start = 1,
                                                .open = open_tokens,
                                                .sample =
                                                    sl_token_dataset_sample};
