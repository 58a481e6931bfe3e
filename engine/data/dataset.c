/* SPDX-License-Identifier: Apache-2.0 */
/* Data sets: the table of formats, open, close, and access. */
#include <stdlib.h>
#include <string.h>

#include "engine/data/data_internal.h"

static const sl_data_format_t *const formats[] = {
    &sl_data_format_idx,
    &sl_data_format_cifar10,
    &sl_data_format_cifar100,
    &sl_data_format_text,
    &sl_data_format_tokens,
    &sl_data_format_synthetic_images,
    &sl_data_format_synthetic_tokens,
};

void sl_data_params_default(sl_data_params_t *params)
{
    memset(params, 0, sizeof(*params));
    params->valid_fraction = 0.1;
    params->context = 256;
    params->n_samples = 1024;
}

static sl_status_t format_find(const char *name,
                               const sl_data_format_t **format_p)
{
    sl_status_t status = SL_OK;
    size_t i;

    for (i = 0; i < sizeof(formats) / sizeof(*formats); i++) {
        if (name != NULL && strcmp(formats[i]->name, name) == 0) {
            *format_p = formats[i];
            return SL_OK;
        }
    }
    SL_FAIL(status, SL_ERR_CONFIG, out,
            "data format '%s' is not known; it is one of %s",
            name == NULL ? "" : name, SL_DATA_FORMAT_CHOICES);
out:
    return status;
}

sl_status_t sl_dataset_open(const sl_data_params_t *params,
                            sl_dataset_t **dataset_p)
{
    const sl_data_format_t *format = NULL;
    sl_dataset_t *dataset = NULL;
    sl_status_t status;

    SL_TRY(status, format_find(params->format, &format), out);
    dataset = calloc(1, sizeof(*dataset));
    if (dataset == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "data set: no host memory");
    }
    dataset->format = format;
    dataset->files[SL_DATA_TRAIN].fd = -1;
    dataset->files[SL_DATA_VALID].fd = -1;
    SL_TRY(status, format->open(params, dataset), err_close);
    *dataset_p = dataset;
    return SL_OK;

err_close:
    sl_dataset_close(dataset);
out:
    return status;
}

void sl_dataset_close(sl_dataset_t *dataset)
{
    int split;

    if (dataset == NULL) {
        return;
    }
    for (split = 0; split < 2; split++) {
        sl_image_store_cleanup(&dataset->stores[split]);
        sl_token_file_cleanup(&dataset->files[split]);
    }
    free(dataset->grids);
    free(dataset);
}

void sl_dataset_descs(const sl_dataset_t *dataset, sl_tensor_desc_t *data_p,
                      sl_tensor_desc_t *target_p)
{
    *data_p = dataset->data;
    *target_p = dataset->target;
}

int64_t sl_dataset_classes(const sl_dataset_t *dataset)
{
    return dataset->classes;
}

int64_t sl_dataset_count(const sl_dataset_t *dataset, sl_data_split_t split)
{
    return dataset->count[split];
}

sl_status_t sl_dataset_try_sample(const sl_dataset_t *dataset,
                                  sl_data_split_t split, int64_t index,
                                  uint64_t seed, uint64_t draw, void *data,
                                  int32_t *target)
{
    const sl_rng_t rng = sl_rng_at(seed, (uint32_t)draw, (uint32_t)(draw >> 32),
                                   0, SL_RNG_USE_AUGMENT);

    SL_ASSERT(index >= 0 && index < dataset->count[split]);
    return dataset->format->sample(dataset, split, index, &rng, data, target);
}

void sl_dataset_sample(const sl_dataset_t *dataset, sl_data_split_t split,
                       int64_t index, uint64_t seed, uint64_t draw, void *data,
                       int32_t *target)
{
    const sl_status_t status =
        sl_dataset_try_sample(dataset, split, index, seed, draw, data, target);

    if (status < 0) {
        const int64_t n = sl_tensor_elements(&dataset->target);
        int64_t i;

        memset(data, 0, sl_tensor_bytes(&dataset->data));
        for (i = 0; i < n; i++) {
            target[i] = SL_DATA_IGNORE;
        }
    }
}
