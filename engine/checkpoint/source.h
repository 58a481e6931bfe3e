/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file source.h
 * Reading the tensors of one checkpoint, from its directory or from a merged
 * file. One shard is open at a time: ask in the manifest's order.
 */
#ifndef SL_ENGINE_CHECKPOINT_SOURCE_H
#define SL_ENGINE_CHECKPOINT_SOURCE_H

#include "engine/checkpoint/checkpoint_internal.h"

/** Key of a merged file's metadata: the manifest's text. */
#define SL_SOURCE_METADATA "sluice.manifest"

typedef struct sl_source {
    char what[1024]; /**< for messages */
    sl_manifest_t manifest;
    sl_tensor_index_t *index; /**< owned */
    int dir_fd;               /**< -1: a file */
    int is_file;
    sl_safetensors_t *file; /**< the one that is open; NULL = none */
    size_t shard;           /**< which it is */
} sl_source_t;

/** Refusals are silent. */
SL_NODISCARD sl_status_t sl_source_open(const sl_store_t *store,
                                        const char *name,
                                        sl_source_t *source_p);
SL_NODISCARD sl_status_t sl_source_open_file(const char *path,
                                             sl_source_t *source_p);
void sl_source_close(sl_source_t *source);
/** Compare all checksums; of a directory. */
SL_NODISCARD sl_status_t sl_source_verify(const sl_source_t *source);
/** The entry of a tensor, NULL when the manifest has none of that name;
 *  borrowed from source->file until the next call. */
SL_NODISCARD sl_status_t sl_source_find(sl_source_t *source, const char *name,
                                        const sl_safetensors_entry_t **entry_p);

#endif /* SL_ENGINE_CHECKPOINT_SOURCE_H */
