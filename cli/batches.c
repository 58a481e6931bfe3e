/* SPDX-License-Identifier: Apache-2.0 */
/* `sluice batches`: what training would see, as a safetensors file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/job.h"
#include "cli/options.h"
#include "engine/safetensors.h"

enum {
    NAME_BYTES = 32
};

/* "data.N" and "target.N" of one step. */
typedef struct sl_batch_names {
    char data[NAME_BYTES], target[NAME_BYTES];
} sl_batch_names_t;

static void set_entry(sl_safetensors_entry_t *entry, const char *name,
                      const sl_tensor_desc_t *desc, int64_t rows)
{
    entry->name = name;
    entry->n_dims = desc->n_dims;
    memcpy(entry->dims, desc->dims, sizeof(desc->dims));
    entry->dims[0] = rows;
}

/* Tokens and labels are whole numbers below 2^24: exact as float. */
static sl_status_t append(sl_safetensors_writer_t *writer, const void *values,
                          sl_dtype_t dtype, const sl_safetensors_entry_t *entry)
{
    const size_t n = (size_t)sl_safetensors_elements(entry);
    float *floats;
    sl_status_t status;
    size_t i;

    if (dtype == SL_DTYPE_F32) {
        return sl_safetensors_append(writer, values);
    }
    floats = malloc(n * sizeof(*floats) + 1);
    if (floats == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "%s: no host memory",
                entry->name);
    }
    for (i = 0; i < n; i++) {
        floats[i] = (float)((const int32_t *)values)[i];
    }
    status = sl_safetensors_append(writer, floats);
    free(floats);
out:
    return status;
}

static sl_status_t write_batches(const sl_job_t *job, sl_loader_t *loader,
                                 const sl_safetensors_entry_t *entries,
                                 sl_safetensors_writer_t *writer)
{
    sl_status_t status = SL_OK;
    sl_batch_t batch;
    int64_t i;

    for (i = 0; i < job->config.steps; i++) {
        SL_TRY(status, sl_loader_next(loader, &batch), out);
        SL_TRY(
            status,
            append(writer, batch.data, job->model->data.dtype, &entries[2 * i]),
            out);
        SL_TRY(status,
               append(writer, batch.target, SL_DTYPE_I32, &entries[2 * i + 1]),
               out);
    }
out:
    return status;
}

static sl_status_t save(const sl_job_t *job, const char *path)
{
    const sl_loader_params_t params = {.split = SL_DATA_TRAIN,
                                       .batch_rows = job->config.batch,
                                       .shuffle = 1,
                                       .seed = (uint64_t)job->config.seed,
                                       .n_ahead = 2};
    const size_t n = (size_t)job->config.steps;
    sl_batch_names_t *names = calloc(n + 1, sizeof(*names));
    sl_safetensors_entry_t *entries = calloc(2 * n + 1, sizeof(*entries));
    sl_safetensors_writer_t *writer = NULL;
    sl_loader_t *loader = NULL;
    sl_status_t status;
    size_t i;

    if (names == NULL || entries == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "no host memory for a list of %zu batches", n);
    }
    for (i = 0; i < n; i++) {
        (void)snprintf(names[i].data, NAME_BYTES, "data.%zu", i);
        (void)snprintf(names[i].target, NAME_BYTES, "target.%zu", i);
        set_entry(&entries[2 * i], names[i].data, &job->model->data,
                  job->config.batch);
        set_entry(&entries[2 * i + 1], names[i].target, &job->model->target,
                  job->config.batch);
    }
    SL_TRY(status, sl_loader_create(job->dataset, &params, &loader), out);
    SL_TRY(status, sl_safetensors_begin(path, entries, 2 * n, &writer), out);
    SL_TRY(status, write_batches(job, loader, entries, writer), out);
    status = sl_safetensors_end(writer);
    writer = NULL;
out:
    sl_safetensors_abort(writer);
    sl_loader_destroy(loader);
    free(names);
    free(entries);
    return status;
}

int sl_command_batches(int argc, char **argv)
{
    int quiet_status;
    sl_options_t options;
    sl_job_t job = {0};
    sl_status_t status;

    SL_TRY(status,
           sl_options_parse("batches",
                            "Write the batches of the first --steps steps, as "
                            "training would see them, to --save FILE.",
                            SL_OPTIONS_OUTPUT, argc, argv, &options),
           out);
    if (options.save == NULL) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "batches: --save FILE is missing");
    }
    SL_TRY(status,
           sl_job_open(options.config, (const char *const *)options.overrides,
                       options.n_overrides, &job),
           out);
    status = save(&job, options.save);
out:
    quiet_status = sl_job_tell_failure(&job, &status);
    sl_job_close(&job);
    sl_options_cleanup(&options);
    return quiet_status != 0 ? quiet_status : sl_exit_status(status);
}
