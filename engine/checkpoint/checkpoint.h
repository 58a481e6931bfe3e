/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file checkpoint.h
 * The whole state of a training run on disk, and a run from it.
 *
 * A checkpoint is a directory `step-00001200` with safetensors files (shards)
 * and `manifest.json`, which says what they hold. It is written beside the
 * others under a temporary name and gets its own by one rename, so it is there
 * completely or not at all. `latest` names the one written last.
 *
 * Everything a step depends on is a function of the state, the settings and
 * the step's number, so a run that goes on from a checkpoint ends with the
 * same bits as one that was never interrupted, over any number of stages and
 * with any schedule, when replicas, threads and micro-batches are the same.
 *
 * What is read is not trusted: every size, name and number is checked against
 * fixed bounds first, no link is followed and no path leaves the directory.
 */
#ifndef SL_ENGINE_CHECKPOINT_CHECKPOINT_H
#define SL_ENGINE_CHECKPOINT_CHECKPOINT_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "engine/data/data.h"
#include "engine/engine.h"
#include "engine/world.h"

SL_BEGIN_DECLS

enum {
    SL_CHECKPOINT_NAME_BYTES = 24, /**< "step-00001200" */
    SL_CHECKPOINT_DATE_BYTES = 24, /**< "2026-01-31T12:00:00Z" */
    SL_CHECKPOINT_REASON_BYTES = 512
};

/** The run that is saved or goes on. All pointers are borrowed. */
typedef struct sl_checkpoint_run {
    sl_engine_t *engine;
    sl_world_t *world;            /**< NULL = one process */
    const sl_data_params_t *data; /**< NULL = not known, not compared */
    int64_t n_samples;            /**< of the train split; 0 = not known */
} sl_checkpoint_run_t;

/* ---- what there is ---- */

typedef struct sl_checkpoint_info {
    char name[SL_CHECKPOINT_NAME_BYTES];
    sl_status_t status; /**< SL_OK, or why it cannot be used; then only name,
                             step and reason are set */
    char reason[SL_CHECKPOINT_REASON_BYTES];
    uint32_t step;
    uint64_t sequence; /**< larger = written later */
    char date[SL_CHECKPOINT_DATE_BYTES];
    double loss;            /**< of the last step; NaN = not known */
    double validation_loss; /**< NaN = not known */
    uint64_t n_bytes;       /**< of all shards */
    size_t n_shards, n_tensors;
    int is_latest; /**< the pointer names it */
    int is_best;   /**< least validation loss */
} sl_checkpoint_info_t;

/**
 * The checkpoints of a directory, the latest first, unusable ones last. Sizes
 * are compared with the manifest, contents are not read.
 *
 * @param[out] infos_p owned (free); NULL when there are none
 * @return SL_OK; SL_ERR_NOT_FOUND (no such directory); SL_ERR_IO;
 *         SL_ERR_NO_MEMORY
 */
SL_API SL_NODISCARD sl_status_t sl_checkpoint_list(
    const char *dir, sl_checkpoint_info_t **infos_p, size_t *n_p);

/** Read all of a checkpoint and compare its checksums. `info_p` is filled
 *  also when it is not good.
 *  @return SL_OK, SL_ERR_CORRUPT, SL_ERR_IO, ... with what is wrong */
SL_API SL_NODISCARD sl_status_t sl_checkpoint_verify(
    const char *dir, const char *name, sl_checkpoint_info_t *info_p);

/**
 * Split "DIR/step-00001200" into directory and name; a path whose last part
 * is no such name is a directory, and *name becomes empty.
 *
 * @return SL_OK; SL_ERR_INVALID_ARG when it is longer than `dir_bytes`
 */
SL_API SL_NODISCARD sl_status_t
sl_checkpoint_path_split(const char *path, char *dir, size_t dir_bytes,
                         char name[SL_CHECKPOINT_NAME_BYTES]);

/* ---- saving ---- */

typedef struct sl_checkpoint_params {
    const char *dir;     /**< made when missing; required */
    int64_t keep;        /**< newest ones to keep, 0 = all (default 3) */
    int keeps_best;      /**< also the one with the least validation loss */
    int is_required;     /**< a failure to write is an error; default: it is
                              told as a warning and training goes on */
    const char *program; /**< version, for the manifest; required */
    /** Told of each that is complete on disk, on rank 0's writer thread. NULL
     *  (default): nobody is. */
    void (*on_written)(const char *name);
} sl_checkpoint_params_t;

SL_API void sl_checkpoint_params_default(sl_checkpoint_params_t *params);

/** Writes checkpoints of one run, on a thread of its own. One at a time: a
 *  save while another is being written waits for that, and says so. */
typedef struct sl_saver sl_saver_t; /* opaque */

/**
 * Open the directory for writing, exclusively; what an earlier run left half
 * done is removed. Collective over the run's world.
 *
 * @return SL_OK; SL_ERR_IO (also when another process writes there);
 *         SL_ERR_NO_MEMORY
 */
SL_API SL_NODISCARD sl_status_t
sl_saver_create(const sl_checkpoint_params_t *params,
                const sl_checkpoint_run_t *run, sl_saver_t **saver_p);
/** Waits for the one being written; its failure is logged. NULL allowed. */
SL_API void sl_saver_destroy(sl_saver_t *saver);

/**
 * Between steps: copy the state to host memory and begin to write it. The
 * engine may go on at once. Collective.
 *
 * @param[in] loss, validation_loss  NaN = not known
 * @return SL_OK, also when it failed and is not required; else why
 */
SL_API SL_NODISCARD sl_status_t sl_saver_save(sl_saver_t *saver, double loss,
                                              double validation_loss);
/** Call between steps, all ranks alike: tells how a write ended.
 *  @return SL_OK; when checkpoints are required, its failure */
SL_API SL_NODISCARD sl_status_t sl_saver_boundary(sl_saver_t *saver);
/** Wait for the one being written, and tell. Collective. */
SL_API SL_NODISCARD sl_status_t sl_saver_wait(sl_saver_t *saver);

typedef struct sl_saver_stats {
    uint64_t n_written, n_failed;
    uint64_t snapshot_bytes; /**< host memory held for snapshots */
    uint64_t snapshot_ns;    /**< time training stood still, all together */
    uint64_t write_ns;       /**< of the writer */
    uint64_t wait_ns;        /**< for an earlier one to be written */
    char last[SL_CHECKPOINT_NAME_BYTES]; /**< written; empty = none */
} sl_saver_stats_t;
SL_API void sl_saver_stats(sl_saver_t *saver, sl_saver_stats_t *stats_p);

/* ---- going on ---- */

typedef enum sl_resume_kind {
    SL_RESUME_EXACT,   /**< a setting that differs is refused */
    SL_RESUME_CHANGED, /**< it is told instead; model and optimizer must fit */
    SL_RESUME_WEIGHTS  /**< parameters and statistics only, from step 0 */
} sl_resume_kind_t;

typedef struct sl_resume {
    const char *dir;  /**< required */
    const char *name; /**< "step-00001200": this one or none. NULL: the newest
                           that is good; those before it that are not are
                           told as warnings */
    int is_latest;    /**< begin with the one that `latest` names */
    sl_resume_kind_t kind;
} sl_resume_t;

/**
 * Load a checkpoint into the run's engine. Everything is checked before the
 * first value is changed. Collective: all ranks take the same one.
 *
 * @return SL_OK; SL_ERR_NOT_FOUND (there is none at all); SL_ERR_CONFIG (it is
 *         of another run: what differs); SL_ERR_CORRUPT, SL_ERR_IO,
 *         SL_ERR_UNSUPPORTED (none is good)
 */
SL_API SL_NODISCARD sl_status_t
sl_checkpoint_resume(const sl_checkpoint_run_t *run, const sl_resume_t *resume,
                     sl_checkpoint_info_t *info_p);

/* ---- other forms ---- */

/** Write a checkpoint as one safetensors file: the weights, or all tensors
 *  and the manifest as metadata, from which sl_checkpoint_split makes a
 *  checkpoint again. */
SL_API SL_NODISCARD sl_status_t sl_checkpoint_merge(const char *dir,
                                                    const char *name,
                                                    const char *path,
                                                    int with_moments);
/** Make a checkpoint of `n_shards` shards in `dir` from the one at `from`: a
 *  merged file with moments, or "DIR/step-00001200". */
SL_API SL_NODISCARD sl_status_t
sl_checkpoint_split(const char *from, const char *dir, int n_shards,
                    char name_p[SL_CHECKPOINT_NAME_BYTES]);

SL_END_DECLS
#endif /* SL_ENGINE_CHECKPOINT_CHECKPOINT_H */
