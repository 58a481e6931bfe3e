/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file yaml.h
 * A YAML document as a tree whose nodes know their line and column, so that
 * every error about a config names the place. Reading is libyaml's; this
 * adds typed, checked access: a key nobody asked for is an error too.
 *
 * Nodes are borrowed from the document and die with it. One document, one
 * thread: reading marks what was read.
 */
#ifndef SL_BASE_YAML_H
#define SL_BASE_YAML_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

SL_BEGIN_DECLS

typedef struct sl_yaml sl_yaml_t;           /* a document; opaque */
typedef struct sl_yaml_node sl_yaml_node_t; /* opaque */

typedef enum sl_yaml_kind {
    SL_YAML_SCALAR,
    SL_YAML_SEQUENCE,
    SL_YAML_MAPPING
} sl_yaml_kind_t;

enum {
    SL_YAML_MAX_BYTES = 16 << 20,
    SL_YAML_MAX_DEPTH = 64
};

/** Read a file. Duplicate keys, keys that are no scalars, tags, merge keys
 *  ("<<"), more than one document or 256 anchors, aliases that make the tree
 *  larger than 1e6 nodes or are inside their own anchor, and over-deep
 *  nesting are errors. An empty document is an empty mapping.
 *  @return SL_OK, SL_ERR_IO, SL_ERR_CONFIG (with file:line:column) */
SL_API SL_NODISCARD sl_status_t sl_yaml_open(const char *path,
                                             sl_yaml_t **yaml_p);
/** As open, from memory; `name` stands for the file in messages. */
SL_API SL_NODISCARD sl_status_t sl_yaml_parse(const char *name,
                                              const char *text, size_t n_bytes,
                                              sl_yaml_t **yaml_p);
SL_API void sl_yaml_close(sl_yaml_t *yaml);

/** Set or replace the value at a dotted path ("optimizer.lr"), creating
 *  mappings on the way; "key=value" is cut at the first '='. In a list a
 *  part is an index from 0 ("layers.3.out=64"). The value is parsed as YAML,
 *  so lists work. Messages about it say "--set KEY". A failure leaves the
 *  document as it was. */
SL_API SL_NODISCARD sl_status_t sl_yaml_override(sl_yaml_t *yaml,
                                                 const char *assignment);

/** The top node (a mapping, possibly empty). */
SL_API const sl_yaml_node_t *sl_yaml_root(const sl_yaml_t *yaml);
SL_API sl_yaml_kind_t sl_yaml_kind(const sl_yaml_node_t *node);
SL_API int sl_yaml_line(const sl_yaml_node_t *node); /**< from 1 */
/** "train.yaml:12:3" for messages; valid as long as the document. */
SL_API const char *sl_yaml_place(const sl_yaml_node_t *node);

/** Entries of a sequence or a mapping (0 for a scalar). */
SL_API size_t sl_yaml_count(const sl_yaml_node_t *node);
/** The i-th value; for a mapping its key too (may be NULL). Marks it used. */
SL_API const sl_yaml_node_t *sl_yaml_entry(const sl_yaml_node_t *node, size_t i,
                                           const char **key_p);
/** Value of a key, NULL when absent or `mapping` is NULL. Marks it used. */
SL_API const sl_yaml_node_t *sl_yaml_get(const sl_yaml_node_t *mapping,
                                         const char *key);

/** The text of a scalar (NULL for others), and whether it was quoted. */
SL_API const char *sl_yaml_text(const sl_yaml_node_t *node, int *is_quoted_p);

/* Typed access by key. Absent or null key: *value_p keeps its value (set the
 * default before). A NULL mapping reads as empty. SL_ERR_CONFIG names file,
 * line, column, key, the value and what is allowed. A quoted integer, float
 * or bool is an error: YAML makes it a text. */
SL_API SL_NODISCARD sl_status_t sl_yaml_int(const sl_yaml_node_t *mapping,
                                            const char *key, int64_t min,
                                            int64_t max, int64_t *value_p);
SL_API SL_NODISCARD sl_status_t sl_yaml_float(const sl_yaml_node_t *mapping,
                                              const char *key, double min,
                                              double max, double *value_p);
SL_API SL_NODISCARD sl_status_t sl_yaml_bool(const sl_yaml_node_t *mapping,
                                             const char *key, int *value_p);
/** Borrowed text; an empty one is an error. */
SL_API SL_NODISCARD sl_status_t sl_yaml_string(const sl_yaml_node_t *mapping,
                                               const char *key,
                                               const char **value_p);
/** Index of the word in "a|b|c". */
SL_API SL_NODISCARD sl_status_t sl_yaml_choice(const sl_yaml_node_t *mapping,
                                               const char *key,
                                               const char *choices,
                                               int *value_p);
/** A size as sl_parse_bytes reads it. */
SL_API SL_NODISCARD sl_status_t sl_yaml_bytes(const sl_yaml_node_t *mapping,
                                              const char *key,
                                              uint64_t *value_p);
/** A nested mapping or NULL when absent; another kind is an error. */
SL_API SL_NODISCARD sl_status_t sl_yaml_mapping(const sl_yaml_node_t *mapping,
                                                const char *key,
                                                const sl_yaml_node_t **node_p);

/** After reading: SL_ERR_CONFIG for the first key in the whole tree below
 *  `node` that nobody asked for, with the nearest known key when close. */
SL_API SL_NODISCARD sl_status_t sl_yaml_check_used(const sl_yaml_node_t *node);

SL_END_DECLS
#endif /* SL_BASE_YAML_H */
