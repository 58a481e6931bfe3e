/* SPDX-License-Identifier: Apache-2.0 */
/* MNIST's IDX files, plain or gzip: big-endian magic (0, 0, type, number of
 * dims), one 32-bit size a dim, then the bytes. Images have three dims,
 * labels one; both of type 0x08, unsigned byte. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <zlib.h>

#include "engine/data/data_internal.h"

enum {
    TYPE_U8 = 0x08,
    MAX_DIMS = 3,
    READ_BYTES = 1 << 20,
    DEFLATE_MAX_RATIO = 1032 /* no deflate stream expands more */
};

typedef struct idx_file {
    const char *path;
    gzFile gz; /* reads plain files as they are */
    int64_t file_bytes;
    int64_t offset; /* of the content, uncompressed */
    int64_t dims[MAX_DIMS];
} idx_file_t;

static const sl_image_usual_t usual = {.mean = {0.1307, 0.1307, 0.1307},
                                       .deviation = {0.3081, 0.3081, 0.3081}};

/** Up to n bytes; fewer only at the end of the content. */
static sl_status_t read_some(idx_file_t *file, uint8_t *bytes, int64_t n,
                             int64_t *n_read_p)
{
    sl_status_t status = SL_OK;
    int64_t done = 0;

    while (done < n) {
        const int64_t left = n - done;
        const int got =
            gzread(file->gz, bytes + done,
                   (unsigned)(left < READ_BYTES ? left : READ_BYTES));

        if (got <= 0) {
            int code = Z_OK;
            const char *text = gzerror(file->gz, &code);

            /* a stream cut short gives 0 and leaves Z_BUF_ERROR */
            if (got == 0 && code == Z_OK) {
                break;
            }
            SL_FAIL(status, code == Z_ERRNO ? SL_ERR_IO : SL_ERR_CORRUPT, out,
                    "data file %s: offset %lld: %s", file->path,
                    (long long)(file->offset + done), text);
        }
        done += got;
    }
    file->offset += done;
    *n_read_p = done;
out:
    return status;
}

static sl_status_t read_exactly(idx_file_t *file, uint8_t *bytes, int64_t n,
                                const char *what)
{
    const int64_t offset = file->offset;
    int64_t got = 0;
    sl_status_t status;

    SL_TRY(status, read_some(file, bytes, n, &got), out);
    if (got < n) {
        SL_FAIL(status, SL_ERR_CORRUPT, out,
                "data file %s: ends at offset %lld; %lld bytes of %s from "
                "offset %lld were expected",
                file->path, (long long)(offset + got), (long long)n, what,
                (long long)offset);
    }
out:
    return status;
}

static sl_status_t idx_open(const char *path, idx_file_t *file)
{
    sl_status_t status;
    int fd = -1;

    memset(file, 0, sizeof(*file));
    file->path = path;
    SL_TRY(status, sl_data_file_open(path, &fd, &file->file_bytes), out);
    file->gz = gzdopen(fd, "rb");
    if (file->gz == NULL) {
        (void)close(fd);
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "data file %s: no host memory",
                path);
    }
out:
    return status;
}

static void idx_close(idx_file_t *file)
{
    if (file->gz != NULL) {
        (void)gzclose(file->gz);
        file->gz = NULL;
    }
}

static int64_t big_endian(const uint8_t bytes[4])
{
    return (int64_t)bytes[0] << 24 | (int64_t)bytes[1] << 16 |
           (int64_t)bytes[2] << 8 | (int64_t)bytes[3];
}

static sl_status_t magic_read(idx_file_t *file, int n_dims)
{
    uint8_t magic[4];
    sl_status_t status;

    SL_TRY(status, read_exactly(file, magic, 4, "magic number"), out);
    if (magic[0] != 0 || magic[1] != 0) {
        SL_FAIL(status, SL_ERR_CORRUPT, out,
                "data file %s: starts with bytes %02x %02x %02x %02x, which "
                "is no IDX file (00 00 08 %02x)",
                file->path, magic[0], magic[1], magic[2], magic[3],
                (unsigned)n_dims);
    }
    if (magic[2] != TYPE_U8) {
        SL_FAIL(status, SL_ERR_CORRUPT, out,
                "data file %s: IDX type 0x%02x at offset 2; only 0x08 "
                "(unsigned byte) is read",
                file->path, magic[2]);
    }
    if (magic[3] != n_dims) {
        SL_FAIL(status, SL_ERR_CORRUPT, out,
                "data file %s: %u dims at offset 3; %s have %d", file->path,
                magic[3], n_dims == 1 ? "labels" : "images", n_dims);
    }
out:
    return status;
}

/** Dims within limits, and their product within what the file can hold. */
static sl_status_t dims_read(idx_file_t *file, int n_dims, int64_t *n_bytes_p)
{
    const int64_t max_bytes = gzdirect(file->gz)
                                  ? file->file_bytes - 4 - 4 * n_dims
                                  : file->file_bytes * DEFLATE_MAX_RATIO;
    uint8_t bytes[4 * MAX_DIMS];
    int64_t n_bytes = 1;
    sl_status_t status;
    int i;

    SL_TRY(status, read_exactly(file, bytes, 4 * n_dims, "sizes"), out);
    for (i = 0; i < n_dims; i++) {
        const int64_t max = i == 0 ? SL_DATA_MAX_IMAGES : SL_DATA_MAX_SIDE;

        file->dims[i] = big_endian(bytes + 4 * i);
        if (file->dims[i] < 1 || file->dims[i] > max) {
            SL_FAIL(status, SL_ERR_CORRUPT, out,
                    "data file %s: size %lld at offset %d; it is from 1 to "
                    "%lld",
                    file->path, (long long)file->dims[i], 4 + 4 * i,
                    (long long)max);
        }
        /* below 2^31 * 2^14 * 2^14: no overflow */
        n_bytes *= file->dims[i];
    }
    if (n_bytes > max_bytes) {
        SL_FAIL(status, SL_ERR_CORRUPT, out,
                "data file %s: the sizes ask for %lld bytes, but a file of "
                "%lld bytes cannot hold them",
                file->path, (long long)n_bytes, (long long)file->file_bytes);
    }
    *n_bytes_p = n_bytes;
out:
    return status;
}

/** The content of an IDX file of bytes; *bytes_p is owned. */
static sl_status_t idx_read(const char *path, int n_dims,
                            int64_t dims[MAX_DIMS], uint8_t **bytes_p)
{
    uint8_t *bytes = NULL;
    int64_t n_bytes = 0, n_after = 0;
    uint8_t after;
    idx_file_t file;
    sl_status_t status;

    SL_TRY(status, idx_open(path, &file), out);
    SL_TRY(status, magic_read(&file, n_dims), err_close);
    SL_TRY(status, dims_read(&file, n_dims, &n_bytes), err_close);
    bytes = malloc((size_t)n_bytes);
    if (bytes == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, err_close,
                "data file %s: no host memory for %lld bytes", path,
                (long long)n_bytes);
    }
    SL_TRY(status, read_exactly(&file, bytes, n_bytes, "content"), err_free);
    /* reading past the end also makes zlib check the checksum */
    SL_TRY(status, read_some(&file, &after, 1, &n_after), err_free);
    if (n_after != 0) {
        SL_FAIL(status, SL_ERR_CORRUPT, err_free,
                "data file %s: goes on after offset %lld, where its sizes "
                "say it ends",
                path, (long long)(file.offset - 1));
    }
    idx_close(&file);
    memcpy(dims, file.dims, sizeof(file.dims));
    *bytes_p = bytes;
    return SL_OK;

err_free:
    free(bytes);
err_close:
    idx_close(&file);
out:
    return status;
}

/** Fill a store, which owns what was read even on failure. */
static sl_status_t store_load(const char *images, const char *labels,
                              sl_image_store_t *store)
{
    int64_t dims[MAX_DIMS] = {0}, label_dims[MAX_DIMS] = {0};
    sl_status_t status;
    int64_t i;

    SL_TRY(status, idx_read(images, 3, dims, &store->pixel_memory), out);
    SL_TRY(status, idx_read(labels, 1, label_dims, &store->label_memory), out);
    if (label_dims[0] != dims[0]) {
        SL_FAIL(status, SL_ERR_CORRUPT, out,
                "data file %s: %lld labels, but %s has %lld images", labels,
                (long long)label_dims[0], images, (long long)dims[0]);
    }
    store->n = dims[0];
    store->channels = 1;
    store->height = dims[1];
    store->width = dims[2];
    store->pixels = store->pixel_memory;
    store->pixel_stride = (size_t)(dims[1] * dims[2]);
    store->labels = store->label_memory;
    store->label_stride = 1;
    for (i = 0; i < store->n; i++) {
        if (store->labels[i] > store->label_max) {
            store->label_max = store->labels[i];
        }
    }
out:
    return status;
}

static sl_status_t open_idx(const sl_data_params_t *params,
                            sl_dataset_t *dataset)
{
    const sl_image_store_t *stores = dataset->stores;
    int64_t classes;
    sl_status_t status;

    SL_TRY(status, sl_data_path_check(params, "path", params->path), out);
    SL_TRY(status, sl_data_path_check(params, "labels", params->labels), out);
    SL_TRY(status,
           store_load(params->path, params->labels,
                      &dataset->stores[SL_DATA_TRAIN]),
           out);
    if (params->valid_path != NULL) {
        SL_TRY(status,
               sl_data_path_check(params, "valid_labels", params->valid_labels),
               out);
        SL_TRY(status,
               store_load(params->valid_path, params->valid_labels,
                          &dataset->stores[SL_DATA_VALID]),
               out);
    }
    classes =
        1 + (stores[0].label_max > stores[1].label_max ? stores[0].label_max
                                                       : stores[1].label_max);
    if (params->classes != 0 && params->classes < classes) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "data file %s: label %lld found, but classes is %lld",
                params->labels, (long long)(classes - 1),
                (long long)params->classes);
    }
    SL_TRY(status,
           sl_image_dataset_finish(
               params, &usual, params->classes != 0 ? params->classes : classes,
               dataset),
           out);
out:
    return status;
}

const sl_data_format_t sl_data_format_idx = {
    .name = "idx", .open = open_idx, .sample = sl_image_dataset_sample};
