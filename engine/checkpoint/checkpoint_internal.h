/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file checkpoint_internal.h
 * The manifest, the directory of checkpoints, and what is between them.
 */
#ifndef SL_ENGINE_CHECKPOINT_CHECKPOINT_INTERNAL_H
#define SL_ENGINE_CHECKPOINT_CHECKPOINT_INTERNAL_H

#include "engine/checkpoint/checkpoint.h"
#include "engine/safetensors.h"

/* ---- manifest ---- */

enum {
    SL_MANIFEST_VERSION = 1, /**< of the format; others are refused */
    SL_MANIFEST_MAX_BYTES = 64 << 20,
    SL_MANIFEST_MAX_SHARDS = 65536,
    SL_MANIFEST_MAX_TENSORS = 1 << 20,
    SL_MANIFEST_MAX_LAYERS = 1 << 20,
    SL_MANIFEST_MAX_SETTINGS = 256,
    SL_MANIFEST_NAME_BYTES = 256, /**< of a tensor, setting or shard */
    SL_MANIFEST_TEXT_BYTES = 2048 /**< of a layer */
};

/** Who may differ from the run that goes on. */
typedef enum sl_setting_rule {
    SL_SETTING_MUST,  /**< the state would not fit */
    SL_SETTING_EXACT, /**< training would take another course */
    SL_SETTING_BITS,  /**< the same course, not the same bits */
    SL_SETTING_TOLD   /**< nothing depends on it */
} sl_setting_rule_t;

typedef struct sl_setting {
    const char *name;
    const char *value;
    sl_setting_rule_t rule; /**< of this program; not in the file */
} sl_setting_t;

typedef struct sl_manifest_shard {
    const char *file;
    uint64_t n_bytes;
    uint64_t hash;
    size_t first_tensor, n_tensors; /**< into `tensors` */
} sl_manifest_shard_t;

/** What manifest.json says. Texts are borrowed: from `json` when it was read,
 *  else from whoever filled it in. */
typedef struct sl_manifest {
    uint32_t step;
    uint64_t sequence;
    const char *date, *program, *model;
    uint64_t fingerprint; /**< of `layers` */
    size_t n_layers;
    const char *const
        *layers; /**< one text each: name, type, attributes, shapes */
    size_t n_settings;
    sl_setting_t *settings;
    uint64_t epoch, sample; /**< where in the data the next step begins */
    double learning_rate;   /**< of the next step */
    sl_loss_scale_t scale;  /**< likewise; factor 0: there is none */
    double loss, validation_loss;
    size_t n_shards;
    sl_manifest_shard_t *shards;
    size_t n_tensors;
    const char **tensors; /**< shard by shard, in the order of the file */
    void *json;           /**< owned; NULL when it was not read */
} sl_manifest_t;

/** As text, checksum included; *text_p is owned (free). */
SL_NODISCARD sl_status_t sl_manifest_format(const sl_manifest_t *manifest,
                                            char **text_p);
/** Strict; `what` names it in messages. All arrays are owned then. Refusals
 *  are silent (SL_REFUSE).
 *  @return SL_OK, SL_ERR_CORRUPT, SL_ERR_UNSUPPORTED (another version),
 *          SL_ERR_NO_MEMORY */
SL_NODISCARD sl_status_t sl_manifest_parse(const char *what, const char *text,
                                           size_t n_bytes,
                                           sl_manifest_t *manifest_p);
/** Only of one that was parsed. */
void sl_manifest_cleanup(sl_manifest_t *manifest);
/** The value of a setting, or NULL. */
const char *sl_manifest_setting(const sl_manifest_t *manifest,
                                const char *name);
/** The checksum of a manifest: a hash of its members but "checksum". */
SL_NODISCARD sl_status_t sl_manifest_checksum(const void *json,
                                              uint64_t *hash_p);
uint64_t sl_manifest_fingerprint(const char *const *layers, size_t n);
/** Letters, digits, '-', '_', '.', not first a '.', ends in .safetensors. */
int sl_manifest_file_is_valid(const char *file);

/* ---- the run as the manifest describes it ---- */

/** A tensor of the state, in model order. */
typedef struct sl_state_tensor {
    int layer, param;
    int moment; /**< -1: the values */
    char name[SL_MANIFEST_NAME_BYTES];
    sl_safetensors_entry_t entry; /**< its name is `name` */
    uint64_t n_bytes;
} sl_state_tensor_t;

typedef struct sl_run_description {
    size_t n_layers;
    char **layers; /**< owned, each too */
    size_t n_settings;
    sl_setting_t *settings; /**< owned; values too */
    size_t n_tensors;
    sl_state_tensor_t *tensors; /**< owned */
    int rank;                   /**< of this process; the first one warns */
} sl_run_description_t;

SL_NODISCARD sl_status_t sl_run_describe(const sl_checkpoint_run_t *run,
                                         sl_run_description_t *d_p);
void sl_run_description_cleanup(sl_run_description_t *d);
/**
 * Compare a manifest with the run. Differences that the kind allows are
 * warned about; the first few others make the detail of the failure.
 *
 * @return SL_OK, SL_ERR_CONFIG
 */
SL_NODISCARD sl_status_t sl_run_compare(const char *what,
                                        const sl_run_description_t *d,
                                        const sl_manifest_t *manifest,
                                        sl_resume_kind_t kind);

/** The rank that writes a tensor: where replica 0 has it. */
int sl_tensor_rank(const sl_engine_t *engine, const sl_state_tensor_t *tensor);
/** Whether this rank has it, or one that is tied to it. */
int sl_tensor_is_needed(const sl_engine_t *engine,
                        const sl_state_tensor_t *tensor);
/** Into `values` of that rank. All ranks call it alike, and
 *  sl_engine_together() after the last; a failure is this rank's. */
SL_NODISCARD sl_status_t sl_tensor_read(const sl_engine_t *engine,
                                        const sl_state_tensor_t *tensor,
                                        float *values);
/** Into this rank's replicas, those tied to it too. */
SL_NODISCARD sl_status_t sl_tensor_write(sl_engine_t *engine,
                                         const sl_state_tensor_t *tensor,
                                         const float *values);

/* ---- the directory ---- */

typedef struct sl_store {
    char *dir;
    int fd;
    int lock_fd; /**< -1: not for writing */
} sl_store_t;

/** Names of entries of ours that are no checkpoints yet or any more. */
#define SL_STORE_WRITING "writing-"   /**< being written */
#define SL_STORE_REPLACED "replaced-" /**< a new one takes its name */
#define SL_STORE_REMOVED "removed-"   /**< being removed */

/** Refusals are silent. @return SL_OK, SL_ERR_NOT_FOUND, SL_ERR_IO */
SL_NODISCARD sl_status_t sl_store_open(const char *dir, sl_store_t *store_p);
/** Make the directory when missing, lock it, remove what was left half
 *  done. */
SL_NODISCARD sl_status_t sl_store_open_for_writing(const char *dir,
                                                   sl_store_t *store_p);
void sl_store_close(sl_store_t *store);

void sl_store_name(uint32_t step, char name[SL_CHECKPOINT_NAME_BYTES]);
/** Whether it is a checkpoint's name; *step_p may be NULL. */
int sl_store_name_parse(const char *name, uint32_t *step_p);

/** Names of all checkpoints, by step; *names_p is owned (free). */
typedef char sl_store_name_t[SL_CHECKPOINT_NAME_BYTES];
SL_NODISCARD sl_status_t sl_store_names(const sl_store_t *store,
                                        sl_store_name_t **names_p, size_t *n_p);
/** What the pointer names; empty when it is missing or not valid. */
void sl_store_latest(const sl_store_t *store, char *name);
SL_NODISCARD sl_status_t sl_store_set_latest(const sl_store_t *store,
                                             const char *name);

/** Open a checkpoint's directory and read its manifest. */
SL_NODISCARD sl_status_t sl_store_manifest(const sl_store_t *store,
                                           const char *name, int *fd_p,
                                           sl_manifest_t *manifest_p);
/** The latest failure's detail without the place in the source. */
const char *sl_store_reason(void);
/** Info of one, status and reason included; reads the manifest. */
void sl_store_info(const sl_store_t *store, const char *name,
                   sl_checkpoint_info_t *info_p);
/** All infos, the latest first; *infos_p is owned. */
SL_NODISCARD sl_status_t sl_store_infos(const sl_store_t *store,
                                        sl_checkpoint_info_t **infos_p,
                                        size_t *n_p);

/** Begin the temporary directory of a checkpoint; *path_p is owned. */
SL_NODISCARD sl_status_t sl_store_begin(const sl_store_t *store,
                                        const char *name, char **path_p);
/** The path of it, for ranks that do not make it; owned. */
SL_NODISCARD sl_status_t sl_store_writing_path(const sl_store_t *store,
                                               const char *name, char **path_p);
/** Everything is in it and synced: give it its name, then set the pointer. */
SL_NODISCARD sl_status_t sl_store_commit(const sl_store_t *store,
                                         const char *name);
/** Drop what was written of it. */
void sl_store_abort(const sl_store_t *store, const char *name);
/** Remove all but the newest `keep`, the best one (when asked), and `name`.
 *  Unusable ones are left alone. */
void sl_store_retain(const sl_store_t *store, const char *name, int64_t keep,
                     int keeps_best);

/* ---- shards ---- */

/** Open a shard by its name in a checkpoint's directory; no links. */
SL_NODISCARD sl_status_t sl_shard_open(int dir_fd, const char *what,
                                       const sl_manifest_shard_t *shard,
                                       int *fd_p);
/** Compare a shard's size and checksum. */
SL_NODISCARD sl_status_t sl_shard_verify(int dir_fd, const char *what,
                                         const sl_manifest_shard_t *shard);
enum {
    SL_SHARD_NAME_BYTES = 64
};
/** Name of the i-th shard that a rank writes. */
void sl_shard_name(int rank, size_t i, char name[SL_SHARD_NAME_BYTES]);

/** The index of a tensor's name in the manifest: sorted for search. */
typedef struct sl_tensor_index {
    const char *name;
    size_t shard;
} sl_tensor_index_t;
/** *index_p is owned, n_tensors long. */
SL_NODISCARD sl_status_t sl_tensor_index(const sl_manifest_t *manifest,
                                         sl_tensor_index_t **index_p);
const sl_tensor_index_t *sl_tensor_find(const sl_tensor_index_t *index,
                                        size_t n, const char *name);

/* ---- who writes what, and the copy of it ---- */

typedef struct sl_shard_plan {
    char file[SL_SHARD_NAME_BYTES];
    int rank;        /**< who writes it */
    size_t n;        /**< tensors */
    size_t *tensors; /**< owned: into the description's, in model order */
    uint64_t n_bytes, hash; /**< of the file, once written */
} sl_shard_plan_t;

/** The same on all ranks; *shards_p is owned, see sl_shard_plans_free. */
SL_NODISCARD sl_status_t sl_shard_plans(const sl_checkpoint_run_t *run,
                                        const sl_run_description_t *d,
                                        sl_shard_plan_t **shards_p,
                                        size_t *n_p);
void sl_shard_plans_free(sl_shard_plan_t *shards, size_t n);

/** Copies of the tensors that this rank writes. */
typedef struct sl_snapshot {
    uint64_t n_bytes;
    char *data;        /**< owned; NULL until the first */
    uint64_t *offsets; /**< owned: per tensor of the description; UINT64_MAX =
                            another rank's */
} sl_snapshot_t;

SL_NODISCARD sl_status_t sl_snapshot_init(sl_snapshot_t *snapshot, int rank,
                                          const sl_run_description_t *d,
                                          const sl_shard_plan_t *shards,
                                          size_t n_shards);
void sl_snapshot_cleanup(sl_snapshot_t *snapshot);
/** Memory for it, kept for the next one. */
SL_NODISCARD sl_status_t sl_snapshot_reserve(sl_snapshot_t *snapshot);
/** Copy the state, between steps. Collective. */
SL_NODISCARD sl_status_t sl_snapshot_take(sl_snapshot_t *snapshot,
                                          sl_engine_t *engine,
                                          const sl_run_description_t *d);

/* ---- agreement of the ranks ---- */

/** All ranks succeed or all fail: who did not fail itself says what did not
 *  work. SL_ERR_IO then. */
SL_NODISCARD sl_status_t sl_ranks_agree(const sl_checkpoint_run_t *run,
                                        sl_status_t own, const char *what);
/** The status of a call of engine/world.h: when that was cut short the job
 *  has failed, and this is why. */
SL_NODISCARD sl_status_t sl_ranks_result(const sl_checkpoint_run_t *run,
                                         sl_status_t status);
/** Whether it is such a failure, which no setting can overlook. */
int sl_ranks_is_over(sl_status_t status);

#endif /* SL_ENGINE_CHECKPOINT_CHECKPOINT_INTERNAL_H */
