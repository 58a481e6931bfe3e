/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file saver_internal.h
 * The saver, as its two threads see it.
 *
 * A save goes through phases: the caller copies the state (idle -> writing),
 * the writer writes this rank's shards (-> written), rank 0's writes the
 * manifest once all ranks have written (-> committing -> done), the caller
 * tells the result (-> idle). Alone, the writer goes from writing to done.
 */
#ifndef SL_ENGINE_CHECKPOINT_SAVER_INTERNAL_H
#define SL_ENGINE_CHECKPOINT_SAVER_INTERNAL_H

#include <pthread.h>

#include "engine/checkpoint/checkpoint_internal.h"

typedef enum sl_save_phase {
    SL_SAVE_IDLE,
    SL_SAVE_WRITING,    /**< the writer's */
    SL_SAVE_WRITTEN,    /**< the caller's */
    SL_SAVE_COMMITTING, /**< rank 0: the writer's; others: waiting */
    SL_SAVE_DONE,       /**< the caller's */
    SL_SAVE_END         /**< the writer ends */
} sl_save_phase_t;

struct sl_saver {
    sl_checkpoint_params_t params; /**< dir is the store's */
    char *program;                 /**< owned */
    sl_checkpoint_run_t run;
    int rank, n_ranks;
    sl_store_t store; /**< rank 0 holds the lock */
    sl_run_description_t description;
    size_t n_shards;
    sl_shard_plan_t *shards; /**< results are the phase owner's */
    sl_snapshot_t snapshot;  /**< the phase owner's */
    uint64_t sequence;       /**< of the next one; rank 0 */
    int has_waited;          /**< it has been said */
    int is_committing;       /**< many ranks: all shards are written */

    /* the save in flight: set by the caller, read by the writer */
    char name[SL_CHECKPOINT_NAME_BYTES];
    char *path; /**< owned: the directory while it is written */
    uint32_t step;
    double loss, validation_loss, learning_rate;
    sl_loss_scale_t scale; /**< factor 0: there is none */

    pthread_t thread;
    int has_thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    sl_save_phase_t phase; /**< guarded by lock */
    sl_status_t status;    /**< guarded by lock: of the save in flight */
    char detail[SL_CHECKPOINT_REASON_BYTES]; /**< guarded by lock */
    sl_saver_stats_t stats;                  /**< guarded by lock */
};

/* saver.c */
/** Wait until the writer has nothing to do; the lock is held. */
void sl_saver_await_writer(sl_saver_t *saver);

/* saver_result.c */
sl_save_phase_t sl_saver_phase(sl_saver_t *saver);
/** A save has ended: count it, say it (an empty detail: another rank does).
 * @return SL_OK, or its failure when checkpoints are required */
SL_NODISCARD sl_status_t sl_saver_tell(sl_saver_t *saver, sl_status_t status,
                                       const char *detail);

/** The writer's thread; ends at SL_SAVE_END. */
void *sl_saver_main(void *saver);

#endif /* SL_ENGINE_CHECKPOINT_SAVER_INTERNAL_H */
