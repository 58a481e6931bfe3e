/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file yaml_internal.h
 * The tree behind yaml.h: yaml.c owns it, yaml_build.c makes it from
 * libyaml's events, yaml_read.c reads it.
 *
 * Everything of a document lives in its arena and dies with it.
 */
#ifndef SL_BASE_YAML_INTERNAL_H
#define SL_BASE_YAML_INTERNAL_H

#include "base/yaml.h"

enum {
    SL_YAML_MAX_NODES = 1000000,
    SL_YAML_MAX_ASKED = 256, /* keys remembered a mapping, for suggestions */
    SL_YAML_PLACE_BYTES = 320
};

/** Where nodes came from. */
typedef struct sl_yaml_source {
    const char *name;
    int is_override; /**< one line of the command line: no line or column */
} sl_yaml_source_t;

typedef struct sl_yaml_mark {
    const sl_yaml_source_t *source;
    int line, column; /**< from 1 */
} sl_yaml_mark_t;

/** What reading leaves behind on a node that is const for the reader. */
typedef struct sl_yaml_track {
    int is_used;
    int n_asked;
    const char **asked; /**< the keys asked of a mapping; NULL when none */
    const char *place;  /**< NULL until asked for */
} sl_yaml_track_t;

typedef struct sl_yaml_entry {
    const char *key; /**< NULL in a sequence */
    sl_yaml_mark_t key_mark;
    sl_yaml_node_t *node;
} sl_yaml_entry_t;

struct sl_yaml_node {
    sl_yaml_t *yaml;
    sl_yaml_track_t *track;
    sl_yaml_kind_t kind;
    int is_quoted; /**< a scalar that is not plain */
    sl_yaml_mark_t mark;
    const char *text; /**< of a scalar, else NULL */
    sl_yaml_entry_t *entries;
    size_t n_entries, capacity;
};

typedef struct sl_yaml_chunk sl_yaml_chunk_t;

struct sl_yaml {
    sl_yaml_chunk_t *chunks; /**< the arena; the first one has room */
    size_t n_nodes;
    sl_yaml_node_t *root;
};

/** Zeroed memory of the document, or NULL (nothing recorded). */
void *sl_yaml_alloc(sl_yaml_t *yaml, size_t bytes);
/** A copy with a NUL after it, or NULL. */
const char *sl_yaml_copy(sl_yaml_t *yaml, const char *text, size_t n_bytes);

/** "train.yaml:12:3" or "--set lr" into `out`; returns it. */
const char *sl_yaml_mark_text(const sl_yaml_mark_t *mark,
                              char out[SL_YAML_PLACE_BYTES]);

/** A node; SL_ERR_CONFIG past SL_YAML_MAX_NODES. */
SL_NODISCARD sl_status_t sl_yaml_node_create(sl_yaml_t *yaml,
                                             sl_yaml_kind_t kind,
                                             const sl_yaml_mark_t *mark,
                                             sl_yaml_node_t **node_p);
/** Append to a collection; `key` is borrowed from the arena or NULL. */
SL_NODISCARD sl_status_t sl_yaml_node_add(sl_yaml_node_t *parent,
                                          const char *key,
                                          const sl_yaml_mark_t *key_mark,
                                          sl_yaml_node_t *node);
/** The entry of a key, or NULL. */
sl_yaml_entry_t *sl_yaml_find(const sl_yaml_node_t *mapping, const char *key);
/** Whether a node is absent, or a plain scalar that spells null. */
int sl_yaml_is_null(const sl_yaml_node_t *node);
/** "a value", "a list", "a mapping". */
const char *sl_yaml_kind_text(const sl_yaml_node_t *node);

/** Read one document. `level` collections are around it already. *root_p is
 *  NULL for an empty document. */
SL_NODISCARD sl_status_t sl_yaml_build(sl_yaml_t *yaml,
                                       const sl_yaml_source_t *source,
                                       const char *text, size_t n_bytes,
                                       int level, sl_yaml_node_t **root_p);

#endif /* SL_BASE_YAML_INTERNAL_H */
