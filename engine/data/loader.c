/* SPDX-License-Identifier: Apache-2.0 */
/* The loader: a thread fills a ring of batches ahead of its one reader.
 *
 * Which samples a batch has is arithmetic on (seed, step); the ring only
 * moves them. Slots are used in turn: batch b is in slot b % n_slots. The
 * reader holds the latest batch it got, so n_ahead + 1 slots are n_ahead
 * batches ahead. The thread ends itself on its first failure; batches made
 * before it are still handed out. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/data/data_internal.h"

enum {
    N_AHEAD_DEFAULT = 2,
    N_AHEAD_MAX = 1024,
    ERROR_BYTES = 1024,
    ALIGNMENT_BYTES = 64
};

typedef struct slot {
    sl_batch_t batch;
    char *data;      /* owned: batch_rows samples */
    int32_t *target; /* owned */
} slot_t;

struct sl_loader {
    sl_dataset_t *dataset; /* borrowed */
    sl_loader_params_t params;
    int64_t n_samples;
    size_t data_bytes; /* of one sample */
    size_t n_targets;  /* of one sample */
    slot_t *slots;     /* owned; batch b's is the thread's to fill once
                          b < n_freed + n_slots, the reader's once b < n_made */
    uint64_t n_slots;

    /* of the prefetch thread alone */
    uint32_t *order;      /* owned; a permutation of the samples, or NULL */
    uint64_t order_epoch; /* which epoch `order` is of; UINT64_MAX = none */

    pthread_t thread;
    int is_started;
    atomic_int is_stopping; /* atomic; also read between two samples */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t n_made;         /* guarded by lock; only grows */
    uint64_t n_freed;        /* guarded by lock; only grows */
    sl_status_t failure;     /* guarded by lock */
    char error[ERROR_BYTES]; /* guarded by lock */

    uint64_t n_taken; /* of the reader alone */
};

/** Make `order` the permutation of an epoch (Fisher-Yates). */
static void order_draw(sl_loader_t *loader, uint64_t epoch)
{
    const sl_rng_t rng =
        sl_rng_at(loader->params.seed, (uint32_t)epoch, (uint32_t)(epoch >> 32),
                  0, SL_RNG_USE_SHUFFLE);
    const uint64_t n = (uint64_t)loader->n_samples;
    uint64_t i;

    if (loader->order == NULL || loader->order_epoch == epoch) {
        return;
    }
    for (i = 0; i < n; i++) {
        loader->order[i] = (uint32_t)i;
    }
    for (i = n - 1; i > 0; i--) {
        const uint64_t j = sl_rng_below(&rng, i, i + 1);
        const uint32_t kept = loader->order[i];

        loader->order[i] = loader->order[j];
        loader->order[j] = kept;
    }
    loader->order_epoch = epoch;
}

/** Epoch and place in it of a row of a training step. An epoch is whole
 *  batches, unless the split is smaller than one and wraps. */
static void row_position(uint64_t n, uint64_t rows, uint64_t step, uint64_t row,
                         uint64_t *epoch_p, uint64_t *position_p)
{
    const uint64_t n_batches = n / rows;

    if (n_batches == 0) {
        *epoch_p = (step * rows + row) / n;
        *position_p = (step * rows + row) % n;
    } else {
        *epoch_p = step / n_batches;
        *position_p = step % n_batches * rows + row;
    }
}

void sl_data_position(int64_t n_samples, int64_t batch_rows, uint64_t step,
                      uint64_t *epoch_p, uint64_t *sample_p)
{
    row_position((uint64_t)n_samples, (uint64_t)batch_rows, step, 0, epoch_p,
                 sample_p);
}

/** The sample of a row of a training step. */
static int64_t train_index(sl_loader_t *loader, uint64_t step, uint64_t row)
{
    uint64_t epoch, position;

    row_position((uint64_t)loader->n_samples,
                 (uint64_t)loader->params.batch_rows, step, row, &epoch,
                 &position);
    order_draw(loader, epoch);
    return loader->order != NULL ? (int64_t)loader->order[position]
                                 : (int64_t)position;
}

/** Write the first `rows` rows of a step; cut short when told to stop, as
 *  nobody will read them then. */
static sl_status_t rows_fill(sl_loader_t *loader, uint64_t step, int64_t rows,
                             slot_t *slot)
{
    const int is_train = loader->params.split == SL_DATA_TRAIN;
    const uint64_t base = step * (uint64_t)loader->params.batch_rows;
    sl_status_t status = SL_OK;
    int64_t row;

    for (row = 0; row < rows && !atomic_load(&loader->is_stopping); row++) {
        const int64_t index = is_train
                                  ? train_index(loader, step, (uint64_t)row)
                                  : (int64_t)base + row;

        SL_TRY(status,
               sl_dataset_try_sample(
                   loader->dataset, loader->params.split, index,
                   loader->params.seed, base + (uint64_t)row,
                   slot->data + (size_t)row * loader->data_bytes,
                   slot->target + (size_t)row * loader->n_targets),
               out);
    }
out:
    return status;
}

/** Batch number b of this loader, counted from its creation. */
static sl_status_t batch_make(sl_loader_t *loader, uint64_t b, slot_t *slot)
{
    const int64_t batch_rows = loader->params.batch_rows;
    uint64_t step = loader->params.first_step + b;
    int64_t rows = batch_rows;
    sl_status_t status;

    if (loader->params.split == SL_DATA_VALID) {
        /* a pass is its batches and one without rows */
        const uint64_t n_batches =
            ((uint64_t)loader->n_samples + (uint64_t)batch_rows - 1) /
            (uint64_t)batch_rows;
        int64_t left;

        step = b % (n_batches + 1);
        left = loader->n_samples - (int64_t)step * batch_rows;
        rows = step == n_batches ? 0 : (left < batch_rows ? left : batch_rows);
    }
    if (step > UINT32_MAX) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "loader: step %llu is past the last possible one",
                (unsigned long long)step);
    }
    SL_TRY(status, rows_fill(loader, step, rows, slot), out);
    slot->batch.rows = rows;
    slot->batch.data = slot->data;
    slot->batch.target = slot->target;
    slot->batch.step = (uint32_t)step;
out:
    return status;
}

/** Wait for a free slot for batch b. @return 0 when told to stop */
static int slot_wait(sl_loader_t *loader, uint64_t b)
{
    int is_stopping;

    (void)pthread_mutex_lock(&loader->lock);
    while (!atomic_load(&loader->is_stopping) &&
           b - loader->n_freed >= loader->n_slots) {
        (void)pthread_cond_wait(&loader->changed, &loader->lock);
    }
    is_stopping = atomic_load(&loader->is_stopping);
    (void)pthread_mutex_unlock(&loader->lock);
    return !is_stopping;
}

static void *prefetch(void *arg)
{
    sl_loader_t *loader = arg;
    sl_status_t status = SL_OK;
    uint64_t b;

    for (b = 0; status >= 0 && slot_wait(loader, b); b++) {
        status = batch_make(loader, b, &loader->slots[b % loader->n_slots]);

        (void)pthread_mutex_lock(&loader->lock);
        if (status < 0) {
            loader->failure = status;
            (void)snprintf(loader->error, sizeof(loader->error), "%s",
                           sl_last_error());
        } else {
            loader->n_made = b + 1;
        }
        (void)pthread_cond_broadcast(&loader->changed);
        (void)pthread_mutex_unlock(&loader->lock);
    }
    return NULL;
}

static sl_status_t params_check(const sl_dataset_t *dataset,
                                const sl_loader_params_t *params)
{
    sl_status_t status = SL_OK;

    if (params->split != SL_DATA_TRAIN && params->split != SL_DATA_VALID) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out, "loader: split %d",
                (int)params->split);
    }
    if (params->batch_rows < 1 || params->batch_rows > INT32_MAX) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "loader: batch of %lld rows; at least 1 and at most %d",
                (long long)params->batch_rows, INT32_MAX);
    }
    if (params->n_ahead < 0 || params->n_ahead > N_AHEAD_MAX) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "loader: %d batches ahead; it is from 1 to %d, or 0 for %d",
                params->n_ahead, N_AHEAD_MAX, N_AHEAD_DEFAULT);
    }
    if (sl_dataset_count(dataset, params->split) < 1) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "loader: the %s split has no samples",
                params->split == SL_DATA_TRAIN ? "train" : "held-out");
    }
out:
    return status;
}

/** Memory of n x bytes, aligned for vector loads; NULL when there is none. */
static void *aligned_array(size_t n, size_t bytes)
{
    size_t total;

    if (bytes != 0 && n > (SIZE_MAX - ALIGNMENT_BYTES) / bytes) {
        return NULL;
    }
    total =
        (n * bytes + ALIGNMENT_BYTES - 1) / ALIGNMENT_BYTES * ALIGNMENT_BYTES;
    return aligned_alloc(ALIGNMENT_BYTES, total);
}

static sl_status_t slots_make(sl_loader_t *loader)
{
    const size_t rows = (size_t)loader->params.batch_rows;
    sl_status_t status = SL_OK;
    uint64_t i;

    loader->slots = calloc(loader->n_slots, sizeof(*loader->slots));
    for (i = 0; loader->slots != NULL && i < loader->n_slots; i++) {
        slot_t *slot = &loader->slots[i];

        slot->data = aligned_array(rows, loader->data_bytes);
        slot->target =
            aligned_array(rows, loader->n_targets * sizeof(*slot->target));
        if (slot->data == NULL || slot->target == NULL) {
            break;
        }
    }
    if (i < loader->n_slots) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "loader: no host memory for %llu batches of %zu x %zu bytes",
                (unsigned long long)loader->n_slots, rows, loader->data_bytes);
    }
out:
    return status;
}

static sl_status_t order_make(sl_loader_t *loader)
{
    sl_status_t status = SL_OK;

    loader->order_epoch = UINT64_MAX;
    if (loader->params.split != SL_DATA_TRAIN || !loader->params.shuffle ||
        loader->dataset->format->is_random_start) {
        goto out;
    }
    /* images are at most 2^31: an index fits */
    loader->order = calloc((size_t)loader->n_samples, sizeof(*loader->order));
    if (loader->order == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "loader: no host memory to shuffle %lld samples",
                (long long)loader->n_samples);
    }
out:
    return status;
}

static sl_status_t thread_start(sl_loader_t *loader)
{
    sl_status_t status = SL_OK;
    sigset_t all, before;
    int code;

    /* signals are for the program's own threads */
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    code = pthread_create(&loader->thread, NULL, prefetch, loader);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code != 0) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "loader: no thread: %s",
                strerror(code));
    }
    loader->is_started = 1;
out:
    return status;
}

sl_status_t sl_loader_create(sl_dataset_t *dataset, const sl_loader_params_t *p,
                             sl_loader_t **loader_p)
{
    sl_loader_t *loader = NULL;
    sl_tensor_desc_t data, target;
    sl_status_t status;

    SL_TRY(status, params_check(dataset, p), out);
    loader = calloc(1, sizeof(*loader));
    if (loader == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "loader: no host memory");
    }
    loader->dataset = dataset;
    loader->params = *p;
    loader->n_samples = sl_dataset_count(dataset, p->split);
    sl_dataset_descs(dataset, &data, &target);
    loader->data_bytes = sl_tensor_bytes(&data);
    loader->n_targets = (size_t)sl_tensor_elements(&target);
    loader->n_slots =
        (uint64_t)(p->n_ahead == 0 ? N_AHEAD_DEFAULT : p->n_ahead) + 1;
    (void)pthread_mutex_init(&loader->lock, NULL);
    (void)pthread_cond_init(&loader->changed, NULL);
    SL_TRY(status, slots_make(loader), err_destroy);
    SL_TRY(status, order_make(loader), err_destroy);
    SL_TRY(status, thread_start(loader), err_destroy);
    *loader_p = loader;
    return SL_OK;

err_destroy:
    sl_loader_destroy(loader);
out:
    return status;
}

void sl_loader_destroy(sl_loader_t *loader)
{
    uint64_t i;

    if (loader == NULL) {
        return;
    }
    if (loader->is_started) {
        (void)pthread_mutex_lock(&loader->lock);
        atomic_store(&loader->is_stopping, 1);
        (void)pthread_cond_broadcast(&loader->changed);
        (void)pthread_mutex_unlock(&loader->lock);
        (void)pthread_join(loader->thread, NULL);
    }
    for (i = 0; loader->slots != NULL && i < loader->n_slots; i++) {
        free(loader->slots[i].data);
        free(loader->slots[i].target);
    }
    free(loader->slots);
    free(loader->order);
    (void)pthread_cond_destroy(&loader->changed);
    (void)pthread_mutex_destroy(&loader->lock);
    free(loader);
}

sl_status_t sl_loader_next(sl_loader_t *loader, sl_batch_t *batch_p)
{
    sl_status_t status = SL_OK;

    (void)pthread_mutex_lock(&loader->lock);
    /* the batch handed out before is now the thread's again */
    loader->n_freed = loader->n_taken;
    (void)pthread_cond_broadcast(&loader->changed);
    while (loader->n_made == loader->n_taken && loader->failure >= 0) {
        (void)pthread_cond_wait(&loader->changed, &loader->lock);
    }
    if (loader->n_made == loader->n_taken) {
        status = loader->failure;
        sl_last_error_set(loader->error);
    }
    (void)pthread_mutex_unlock(&loader->lock);
    if (status >= 0) {
        *batch_p = loader->slots[loader->n_taken % loader->n_slots].batch;
        loader->n_taken++;
    }
    return status;
}
