/* SPDX-License-Identifier: Apache-2.0 */
/* A document: its arena, its tree, changes from the command line. */
#include "base/yaml.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base_internal.h"
#include "base/file.h"
#include "base/parse.h"
#include "base/yaml_internal.h"

enum {
    CHUNK_BYTES = 32 << 10,
    ALIGN_BYTES = 16,
    NAME_SHOWN_BYTES = 256
};

struct sl_yaml_chunk {
    sl_yaml_chunk_t *next;
    size_t used_bytes, capacity_bytes;
    _Alignas(ALIGN_BYTES) unsigned char data[];
};

/* ---- arena ---- */

void *sl_yaml_alloc(sl_yaml_t *yaml, size_t bytes)
{
    sl_yaml_chunk_t *chunk = yaml->chunks;
    void *memory;

    if (bytes > SIZE_MAX / 2) {
        return NULL;
    }
    bytes = (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
    if (chunk == NULL || chunk->capacity_bytes - chunk->used_bytes < bytes) {
        const size_t capacity = bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES;

        chunk = calloc(1, sizeof(*chunk) + capacity);
        if (chunk == NULL) {
            return NULL;
        }
        chunk->capacity_bytes = capacity;
        chunk->next = yaml->chunks;
        yaml->chunks = chunk;
    }
    memory = chunk->data + chunk->used_bytes;
    chunk->used_bytes += bytes;
    return memory;
}

const char *sl_yaml_copy(sl_yaml_t *yaml, const char *text, size_t n_bytes)
{
    char *copy = sl_yaml_alloc(yaml, n_bytes + 1);

    if (copy != NULL && n_bytes > 0) {
        memcpy(copy, text, n_bytes);
    }
    return copy;
}

/* ---- nodes ---- */

const char *sl_yaml_mark_text(const sl_yaml_mark_t *mark,
                              char out[SL_YAML_PLACE_BYTES])
{
    if (mark->source->is_override) {
        (void)snprintf(out, SL_YAML_PLACE_BYTES, "%s", mark->source->name);
    } else {
        (void)snprintf(out, SL_YAML_PLACE_BYTES, "%s:%d:%d", mark->source->name,
                       mark->line, mark->column);
    }
    return out;
}

sl_status_t sl_yaml_node_create(sl_yaml_t *yaml, sl_yaml_kind_t kind,
                                const sl_yaml_mark_t *mark,
                                sl_yaml_node_t **node_p)
{
    char place[SL_YAML_PLACE_BYTES];
    sl_yaml_node_t *node;
    sl_status_t status;

    if (yaml->n_nodes >= SL_YAML_MAX_NODES) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "%s: more than %d values, aliases written out",
                sl_yaml_mark_text(mark, place), SL_YAML_MAX_NODES);
    }
    node = sl_yaml_alloc(yaml, sizeof(*node));
    if (node != NULL) {
        node->track = sl_yaml_alloc(yaml, sizeof(*node->track));
    }
    if (node == NULL || node->track == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "%s: no memory for a value",
                sl_yaml_mark_text(mark, place));
    }
    yaml->n_nodes++;
    node->yaml = yaml;
    node->kind = kind;
    node->mark = *mark;
    *node_p = node;
    return SL_OK;

out:
    return status;
}

sl_status_t sl_yaml_node_add(sl_yaml_node_t *parent, const char *key,
                             const sl_yaml_mark_t *key_mark,
                             sl_yaml_node_t *node)
{
    sl_yaml_entry_t *entry;
    char place[SL_YAML_PLACE_BYTES];
    sl_status_t status;

    if (parent->n_entries == parent->capacity) {
        const size_t capacity =
            parent->capacity == 0 ? 4 : parent->capacity * 2;
        sl_yaml_entry_t *grown =
            sl_yaml_alloc(parent->yaml, capacity * sizeof(*grown));

        if (grown == NULL) {
            SL_FAIL(status, SL_ERR_NO_MEMORY, out, "%s: no memory for a value",
                    sl_yaml_mark_text(&node->mark, place));
        }
        if (parent->n_entries > 0) {
            memcpy(grown, parent->entries, parent->n_entries * sizeof(*grown));
        }
        parent->entries = grown;
        parent->capacity = capacity;
    }
    entry = &parent->entries[parent->n_entries];
    entry->key = key;
    if (key != NULL) {
        entry->key_mark = *key_mark;
    }
    entry->node = node;
    parent->n_entries++;
    return SL_OK;

out:
    return status;
}

sl_yaml_entry_t *sl_yaml_find(const sl_yaml_node_t *mapping, const char *key)
{
    size_t i;

    for (i = 0; i < mapping->n_entries; i++) {
        if (mapping->entries[i].key != NULL &&
            strcmp(mapping->entries[i].key, key) == 0) {
            return &mapping->entries[i];
        }
    }
    return NULL;
}

int sl_yaml_is_null(const sl_yaml_node_t *node)
{
    static const char *const nulls[] = {"", "~", "null", "Null", "NULL"};
    size_t i;

    if (node == NULL) {
        return 1;
    }
    if (node->kind != SL_YAML_SCALAR || node->is_quoted) {
        return 0;
    }
    for (i = 0; i < sizeof(nulls) / sizeof(*nulls); i++) {
        if (strcmp(node->text, nulls[i]) == 0) {
            return 1;
        }
    }
    return 0;
}

const char *sl_yaml_kind_text(const sl_yaml_node_t *node)
{
    switch (node->kind) {
    case SL_YAML_SCALAR:
        return "a single value";
    case SL_YAML_SEQUENCE:
        return "a list";
    case SL_YAML_MAPPING:
        break;
    }
    return "a mapping";
}

/* ---- documents ---- */

/* The source of a name, its end kept when long so that messages fit. */
static sl_yaml_source_t *source_create(sl_yaml_t *yaml, const char *prefix,
                                       const char *name, size_t n)
{
    const char *dots = n > NAME_SHOWN_BYTES ? "..." : "";
    const size_t n_prefix = strlen(prefix), n_dots = strlen(dots);
    sl_yaml_source_t *source = sl_yaml_alloc(yaml, sizeof(*source));
    const size_t n_shown = n > NAME_SHOWN_BYTES ? NAME_SHOWN_BYTES : n;
    char *text = sl_yaml_alloc(yaml, n_prefix + n_dots + n_shown + 1);
    size_t i;

    if (source == NULL || text == NULL) {
        return NULL;
    }
    memcpy(text, prefix, n_prefix);
    memcpy(text + n_prefix, dots, n_dots);
    memcpy(text + n_prefix + n_dots, name + n - n_shown, n_shown);
    for (i = 0; text[i] != '\0'; i++) {
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7F) {
            text[i] = '?';
        }
    }
    source->name = text;
    return source;
}

static sl_status_t build_root(sl_yaml_t *yaml, const char *name,
                              const char *text, size_t n_bytes)
{
    const sl_yaml_source_t *source =
        source_create(yaml, "", name, strlen(name));
    sl_yaml_mark_t top = {source, 1, 1};
    char place[SL_YAML_PLACE_BYTES];
    sl_status_t status;

    if (source == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "%s: no memory to read it",
                name);
    }
    SL_TRY(status, sl_yaml_build(yaml, source, text, n_bytes, 0, &yaml->root),
           out);
    if (sl_yaml_is_null(yaml->root)) {
        SL_TRY(status,
               sl_yaml_node_create(yaml, SL_YAML_MAPPING, &top, &yaml->root),
               out);
    }
    if (yaml->root->kind != SL_YAML_MAPPING) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "%s: the document is %s; a mapping (key: value) is needed",
                sl_yaml_mark_text(&yaml->root->mark, place),
                sl_yaml_kind_text(yaml->root));
    }
    yaml->root->track->is_used = 1;
out:
    return status;
}

sl_status_t sl_yaml_parse(const char *name, const char *text, size_t n_bytes,
                          sl_yaml_t **yaml_p)
{
    sl_yaml_t *yaml = NULL;
    sl_status_t status;

    if (n_bytes > SL_YAML_MAX_BYTES) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "%s: %zu bytes; allowed: at most %d", name, n_bytes,
                SL_YAML_MAX_BYTES);
    }
    yaml = calloc(1, sizeof(*yaml));
    if (yaml == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "%s: no memory to read it",
                name);
    }
    SL_TRY(status, build_root(yaml, name, n_bytes == 0 ? "" : text, n_bytes),
           err_close);
    *yaml_p = yaml;
    return SL_OK;

err_close:
    sl_yaml_close(yaml);
out:
    return status;
}

sl_status_t sl_yaml_open(const char *path, sl_yaml_t **yaml_p)
{
    char *text = NULL;
    size_t n_bytes = 0;
    sl_status_t status;

    SL_TRY(status, sl_file_read(path, SL_YAML_MAX_BYTES, &text, &n_bytes), out);
    status = sl_yaml_parse(path, text, n_bytes, yaml_p);
    free(text);
out:
    return status;
}

void sl_yaml_close(sl_yaml_t *yaml)
{
    sl_yaml_chunk_t *chunk, *next;

    if (yaml == NULL) {
        return;
    }
    for (chunk = yaml->chunks; chunk != NULL; chunk = next) {
        next = chunk->next;
        free(chunk);
    }
    free(yaml);
}

/* ---- changes from the command line ---- */

/* A dotted path, cut into its parts. */
typedef struct path {
    sl_yaml_mark_t mark; /* "--set KEY" */
    const char *parts[SL_YAML_MAX_DEPTH];
    int n;
} path_t;

static sl_status_t path_add(path_t *path, sl_yaml_t *yaml, const char *part,
                            size_t n)
{
    sl_status_t status = SL_OK;

    if (n == 0) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "%s: an empty name in the path; write NAME.NAME=VALUE",
                path->mark.source->name);
    }
    if (path->n >= SL_YAML_MAX_DEPTH) {
        SL_FAIL(status, SL_ERR_CONFIG, out, "%s: more than %d levels nested",
                path->mark.source->name, SL_YAML_MAX_DEPTH);
    }
    path->parts[path->n] = sl_yaml_copy(yaml, part, n);
    if (path->parts[path->n] == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "%s: no memory",
                path->mark.source->name);
    }
    path->n++;
out:
    return status;
}

static sl_status_t path_init(path_t *path, sl_yaml_t *yaml, const char *text,
                             size_t n)
{
    sl_yaml_source_t *source = source_create(yaml, "--set ", text, n);
    size_t i, first = 0;
    sl_status_t status;

    memset(path, 0, sizeof(*path));
    if (source == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "--set: no memory");
    }
    source->is_override = 1;
    path->mark.source = source;
    path->mark.line = 1;
    path->mark.column = 1;
    for (i = 0; i <= n; i++) {
        if (i == n || text[i] == '.') {
            SL_TRY(status, path_add(path, yaml, text + first, i - first), out);
            first = i + 1;
        }
    }
    status = SL_OK;
out:
    return status;
}

/* The entry that part `i` names in `node`; NULL for a new key of a mapping. */
static sl_status_t find_slot(const path_t *path, int i,
                             const sl_yaml_node_t *node,
                             sl_yaml_entry_t **slot_p)
{
    const char *name = path->mark.source->name;
    char what[SL_YAML_PLACE_BYTES], shown[SL_SHOW_BYTES];
    int64_t index = 0;
    sl_status_t status = SL_OK;

    if (node->kind == SL_YAML_MAPPING) {
        *slot_p = sl_yaml_find(node, path->parts[i]);
        return SL_OK;
    }
    if (node->kind == SL_YAML_SCALAR || node->n_entries == 0) {
        SL_FAIL(status, SL_ERR_CONFIG, out, "%s: '%s' is %s, without '%s'",
                name, i == 0 ? "" : path->parts[i - 1],
                node->kind == SL_YAML_SCALAR ? "a single value"
                                             : "an empty list",
                sl_show(path->parts[i], shown));
    }
    (void)snprintf(what, sizeof(what), "%s: index into the list '%s'", name,
                   sl_show(i == 0 ? "" : path->parts[i - 1], shown));
    SL_TRY(status,
           sl_parse_int(what, path->parts[i], 0, (int64_t)node->n_entries - 1,
                        &index),
           err_config);
    *slot_p = &node->entries[index];
    return SL_OK;

err_config:
    status = SL_ERR_CONFIG;
out:
    return status;
}

/* Mappings for the parts `first` and later around the value. */
static sl_status_t wrap_value(sl_yaml_t *yaml, const path_t *path, int first,
                              sl_yaml_node_t **value_p)
{
    sl_status_t status = SL_OK;
    int i;

    for (i = path->n - 1; i >= first; i--) {
        sl_yaml_node_t *outer = NULL;

        SL_TRY(status,
               sl_yaml_node_create(yaml, SL_YAML_MAPPING, &path->mark, &outer),
               out);
        SL_TRY(status,
               sl_yaml_node_add(outer, path->parts[i], &path->mark, *value_p),
               out);
        *value_p = outer;
    }
out:
    return status;
}

/* Walk down as far as the tree goes, then link the value in one step: a
 * failure leaves the tree as it was. */
static sl_status_t set_value(sl_yaml_t *yaml, const path_t *path,
                             sl_yaml_node_t *value)
{
    sl_yaml_node_t *node = yaml->root;
    sl_yaml_entry_t *slot = NULL;
    sl_status_t status;
    int i;

    for (i = 0; i < path->n; i++) {
        SL_TRY(status, find_slot(path, i, node, &slot), out);
        if (slot == NULL || i == path->n - 1 || sl_yaml_is_null(slot->node)) {
            break;
        }
        node = slot->node;
    }
    SL_TRY(status, wrap_value(yaml, path, i + 1, &value), out);
    if (slot == NULL) {
        status = sl_yaml_node_add(node, path->parts[i], &path->mark, value);
    } else {
        slot->node = value;
        slot->key_mark = path->mark;
    }
out:
    return status;
}

sl_status_t sl_yaml_override(sl_yaml_t *yaml, const char *assignment)
{
    const char *equals = strchr(assignment, '=');
    char shown[SL_SHOW_BYTES];
    sl_yaml_node_t *value = NULL;
    path_t path;
    sl_status_t status;

    if (equals == NULL) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "--set %s: no '=' in it; write KEY=VALUE",
                sl_show(assignment, shown));
    }
    SL_TRY(status,
           path_init(&path, yaml, assignment, (size_t)(equals - assignment)),
           out);
    if (strlen(equals + 1) > SL_YAML_MAX_BYTES) {
        SL_FAIL(status, SL_ERR_CONFIG, out, "%s: more than %d bytes",
                path.mark.source->name, SL_YAML_MAX_BYTES);
    }
    SL_TRY(status,
           sl_yaml_build(yaml, path.mark.source, equals + 1, strlen(equals + 1),
                         path.n, &value),
           out);
    if (value == NULL) {
        SL_TRY(status,
               sl_yaml_node_create(yaml, SL_YAML_SCALAR, &path.mark, &value),
               out);
        value->text = "";
    }
    status = set_value(yaml, &path, value);
out:
    return status;
}
