/* SPDX-License-Identifier: Apache-2.0 */
/* CIFAR's binary files: records of one label byte (CIFAR-10), or a coarse and
 * a fine one (CIFAR-100), then 3 x 32 x 32 bytes of pixels. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/data/data_internal.h"

enum {
    SIDE = 32,
    PIXEL_BYTES = 3 * SIDE * SIDE,
    MAX_FILES = 5,
    PATH_BYTES = 4096
};

/** What tells CIFAR-10 and CIFAR-100 apart. */
typedef struct cifar_kind {
    int label_bytes; /* before the pixels; the last one is the label */
    int classes;
    const char *train[MAX_FILES + 1]; /* names in a directory, then NULL */
    const char *valid;
    sl_image_usual_t usual;
} cifar_kind_t;

static const cifar_kind_t cifar10 = {
    .label_bytes = 1,
    .classes = 10,
    .train = {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
              "data_batch_4.bin", "data_batch_5.bin", NULL},
    .valid = "test_batch.bin",
    .usual = {.mean = {0.4914, 0.4822, 0.4465},
              .deviation = {0.2470, 0.2435, 0.2616}}};

static const cifar_kind_t cifar100 = {
    .label_bytes = 2,
    .classes = 100,
    .train = {"train.bin", NULL},
    .valid = "test.bin",
    .usual = {.mean = {0.5071, 0.4865, 0.4409},
              .deviation = {0.2673, 0.2564, 0.2762}}};

/** Records of one file, after those the store has. */
static sl_status_t file_append(const cifar_kind_t *kind, const char *path,
                               sl_image_store_t *store)
{
    const int64_t record = kind->label_bytes + PIXEL_BYTES;
    int64_t n_bytes = 0;
    uint8_t *memory;
    sl_status_t status;
    int fd = -1;

    SL_TRY(status, sl_data_file_open(path, &fd, &n_bytes), out);
    if (n_bytes % record != 0) {
        SL_FAIL(status, SL_ERR_CORRUPT, err_close,
                "data file %s: %lld bytes are %lld records of %lld bytes and "
                "%lld bytes over",
                path, (long long)n_bytes, (long long)(n_bytes / record),
                (long long)record, (long long)(n_bytes % record));
    }
    if (n_bytes / record > SL_DATA_MAX_IMAGES - store->n) {
        SL_FAIL(status, SL_ERR_CORRUPT, err_close,
                "data file %s: more than %lld images", path,
                (long long)SL_DATA_MAX_IMAGES);
    }
    memory =
        realloc(store->pixel_memory, (size_t)(store->n * record + n_bytes));
    if (memory == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, err_close,
                "data file %s: no host memory for %lld bytes", path,
                (long long)n_bytes);
    }
    store->pixel_memory = memory;
    SL_TRY(status,
           sl_data_file_read(fd, path, memory + store->n * record,
                             (size_t)n_bytes, 0),
           err_close);
    store->n += n_bytes / record;
err_close:
    (void)close(fd);
out:
    return status;
}

/** Labels of the records from `first` on, which `path` gave, within range. */
static sl_status_t labels_check(const cifar_kind_t *kind, const char *path,
                                const sl_image_store_t *store, int64_t first)
{
    const int64_t record = kind->label_bytes + PIXEL_BYTES;
    const int64_t label_at = kind->label_bytes - 1;
    sl_status_t status = SL_OK;
    int64_t i;

    for (i = first; i < store->n; i++) {
        const int label = store->pixel_memory[i * record + label_at];

        if (label >= kind->classes) {
            SL_FAIL(status, SL_ERR_CORRUPT, out,
                    "data file %s: label %d at offset %lld; labels are from "
                    "0 to %d",
                    path, label, (long long)((i - first) * record + label_at),
                    kind->classes - 1);
        }
    }
out:
    return status;
}

static sl_status_t file_load(const cifar_kind_t *kind, const char *path,
                             sl_image_store_t *store)
{
    const int64_t first = store->n;
    sl_status_t status;

    SL_TRY(status, file_append(kind, path, store), out);
    SL_TRY(status, labels_check(kind, path, store, first), out);
    store->channels = 3;
    store->height = SIDE;
    store->width = SIDE;
    store->pixels = store->pixel_memory + kind->label_bytes;
    store->pixel_stride = (size_t)kind->label_bytes + PIXEL_BYTES;
    store->labels = store->pixel_memory + kind->label_bytes - 1;
    store->label_stride = store->pixel_stride;
out:
    return status;
}

static sl_status_t directory_load(const cifar_kind_t *kind,
                                  const char *directory, const char *name,
                                  sl_image_store_t *store)
{
    char path[PATH_BYTES];
    sl_status_t status;
    int length;

    length = snprintf(path, sizeof(path), "%s/%s", directory, name);
    if (length < 0 || (size_t)length >= sizeof(path)) {
        SL_FAIL(status, SL_ERR_IO, out, "data directory %s: name too long",
                directory);
    }
    SL_TRY(status, file_load(kind, path, store), out);
out:
    return status;
}

static sl_status_t open_cifar(const cifar_kind_t *kind,
                              const sl_data_params_t *params,
                              sl_dataset_t *dataset)
{
    sl_image_store_t *train = &dataset->stores[SL_DATA_TRAIN];
    sl_image_store_t *valid = &dataset->stores[SL_DATA_VALID];
    struct stat info;
    sl_status_t status;
    int is_directory, i;

    SL_TRY(status, sl_data_path_check(params, "path", params->path), out);
    is_directory = stat(params->path, &info) == 0 && S_ISDIR(info.st_mode);
    if (is_directory) {
        for (i = 0; kind->train[i] != NULL; i++) {
            SL_TRY(status,
                   directory_load(kind, params->path, kind->train[i], train),
                   out);
        }
    } else {
        SL_TRY(status, file_load(kind, params->path, train), out);
    }
    if (params->valid_path != NULL) {
        SL_TRY(status, file_load(kind, params->valid_path, valid), out);
    } else if (is_directory && params->n_valid == 0) {
        SL_TRY(status, directory_load(kind, params->path, kind->valid, valid),
               out);
    }
    if (params->classes != 0 && params->classes != kind->classes) {
        SL_FAIL(status, SL_ERR_CONFIG, out, "data %s: has %d classes, not %lld",
                params->format, kind->classes, (long long)params->classes);
    }
    SL_TRY(
        status,
        sl_image_dataset_finish(params, &kind->usual, kind->classes, dataset),
        out);
out:
    return status;
}

static sl_status_t open_cifar10(const sl_data_params_t *params,
                                sl_dataset_t *dataset)
{
    return open_cifar(&cifar10, params, dataset);
}

static sl_status_t open_cifar100(const sl_data_params_t *params,
                                 sl_dataset_t *dataset)
{
    return open_cifar(&cifar100, params, dataset);
}

const sl_data_format_t sl_data_format_cifar10 = {
    .name = "cifar10", .open = open_cifar10, .sample = sl_image_dataset_sample};

const sl_data_format_t sl_data_format_cifar100 = {.name = "cifar100",
                                                  .open = open_cifar100,
                                                  .sample =
                                                      sl_image_dataset_sample};
