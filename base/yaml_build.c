/* SPDX-License-Identifier: Apache-2.0 */
/* From libyaml's events to our tree. Events, not its documents: limits on
 * depth, nodes and anchors then hold before the work is done, and no input
 * costs more than linear time. */
#include <stdlib.h>
#include <string.h>

#include <yaml.h>

#include "base/base_internal.h"
#include "base/yaml_internal.h"

enum {
    MAX_ANCHORS = 256,
    MAX_TAG_DIRECTIVES = 16
};

typedef struct frame {
    sl_yaml_node_t *node; /* an open collection */
    const char *key;      /* of a mapping: read, its value not yet; or NULL */
    sl_yaml_mark_t key_mark;
} frame_t;

typedef struct anchor {
    const char *name;
    sl_yaml_node_t *node;
} anchor_t;

typedef struct builder {
    sl_yaml_t *yaml;
    const sl_yaml_source_t *source;
    yaml_parser_t *parser;
    const char *text;
    size_t n_bytes;
    int level; /* collections around the document */
    int depth; /* open collections: frames in use */
    int n_documents;
    int n_anchors;
    frame_t frames[SL_YAML_MAX_DEPTH];
    anchor_t anchors[MAX_ANCHORS];
    sl_yaml_node_t *root;
} builder_t;

static sl_yaml_mark_t mark_of(const builder_t *b, const yaml_mark_t *at)
{
    sl_yaml_mark_t mark;

    mark.source = b->source;
    mark.line = (int)at->line + 1;
    mark.column = (int)at->column + 1;
    return mark;
}

/* Line and column of a byte, for errors that libyaml gives an offset of. */
static sl_yaml_mark_t mark_of_offset(const builder_t *b, size_t offset)
{
    sl_yaml_mark_t mark = {b->source, 1, 1};
    size_t i;

    for (i = 0; i < offset && i < b->n_bytes; i++) {
        if (b->text[i] == '\n') {
            mark.line++;
            mark.column = 1;
        } else {
            mark.column++;
        }
    }
    return mark;
}

/* A tab where an indent is due is the one error whose text misleads. Only
 * white space is before it on its line, so its column counts bytes. */
static const char *hint(const builder_t *b)
{
    const yaml_mark_t *mark = &b->parser->problem_mark;
    const char *problem = b->parser->problem;
    const char *at = b->text, *end = b->text + b->n_bytes;
    size_t line;

    if (problem == NULL || strstr(problem, "cannot start any token") == NULL) {
        return "";
    }
    for (line = 0; line < mark->line && at != NULL; line++) {
        at = memchr(at, '\n', (size_t)(end - at));
        at = at == NULL ? NULL : at + 1;
    }
    if (at != NULL && mark->column < (size_t)(end - at) &&
        at[mark->column] == '\t') {
        return " (a tab; indent with spaces)";
    }
    return "";
}

static sl_status_t parser_error(const builder_t *b)
{
    const yaml_parser_t *parser = b->parser;
    const char *problem = parser->problem;
    char place[SL_YAML_PLACE_BYTES];
    sl_yaml_mark_t mark = mark_of(b, &parser->problem_mark);
    sl_status_t status;

    if (parser->error == YAML_MEMORY_ERROR) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "%s: no memory to read it",
                b->source->name);
    }
    if (parser->error == YAML_READER_ERROR) {
        mark = mark_of_offset(b, parser->problem_offset);
    }
    SL_FAIL(status, SL_ERR_CONFIG, out, "%s: not valid YAML: %s%s%s%s%s",
            sl_yaml_mark_text(&mark, place),
            problem == NULL ? "unknown error" : problem, hint(b),
            parser->context == NULL ? "" : " (",
            parser->context == NULL ? "" : parser->context,
            parser->context == NULL ? "" : ")");
out:
    return status;
}

/* Depth first, each alias its own copy: which keys were asked for is known
 * apart for every place. Recursion is bounded by SL_YAML_MAX_DEPTH. */
static sl_status_t clone(const builder_t *b, const sl_yaml_mark_t *at,
                         const sl_yaml_node_t *node, int level,
                         sl_yaml_node_t **copy_p)
{
    char place[SL_YAML_PLACE_BYTES];
    sl_yaml_node_t *copy = NULL;
    sl_status_t status;
    size_t i;

    if (node->kind != SL_YAML_SCALAR && level >= SL_YAML_MAX_DEPTH) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "%s: with this alias more than %d levels are nested",
                sl_yaml_mark_text(at, place), SL_YAML_MAX_DEPTH);
    }
    SL_TRY(status, sl_yaml_node_create(b->yaml, node->kind, &node->mark, &copy),
           out);
    copy->text = node->text;
    copy->is_quoted = node->is_quoted;
    for (i = 0; i < node->n_entries; i++) {
        const sl_yaml_entry_t *entry = &node->entries[i];
        sl_yaml_node_t *child = NULL;

        SL_TRY(status, clone(b, at, entry->node, level + 1, &child), out);
        SL_TRY(status,
               sl_yaml_node_add(copy, entry->key, &entry->key_mark, child),
               out);
    }
    *copy_p = copy;
    return SL_OK;

out:
    return status;
}

static sl_status_t take_key(frame_t *frame, const sl_yaml_node_t *node,
                            const sl_yaml_mark_t *mark)
{
    char place[SL_YAML_PLACE_BYTES];
    sl_status_t status = SL_OK;

    if (node->kind != SL_YAML_SCALAR) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "%s: %s cannot be a key; a key is a word",
                sl_yaml_mark_text(mark, place), sl_yaml_kind_text(node));
    }
    if (strcmp(node->text, "<<") == 0 && !node->is_quoted) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "%s: the merge key << is not supported; write the keys out",
                sl_yaml_mark_text(mark, place));
    }
    frame->key = node->text;
    frame->key_mark = *mark;
out:
    return status;
}

/* Put a finished scalar, a copy or a new collection where it belongs. */
static sl_status_t attach(builder_t *b, sl_yaml_node_t *node,
                          const sl_yaml_mark_t *mark)
{
    frame_t *frame;
    sl_status_t status;

    if (b->depth == 0) {
        b->root = node;
        return SL_OK;
    }
    frame = &b->frames[b->depth - 1];
    if (frame->node->kind == SL_YAML_MAPPING && frame->key == NULL) {
        return take_key(frame, node, mark);
    }
    status = sl_yaml_node_add(frame->node, frame->key, &frame->key_mark, node);
    frame->key = NULL;
    return status;
}

static anchor_t *find_anchor(builder_t *b, const char *name)
{
    int i;

    for (i = 0; i < b->n_anchors; i++) {
        if (strcmp(b->anchors[i].name, name) == 0) {
            return &b->anchors[i];
        }
    }
    return NULL;
}

/* Remember the node under its anchor, if it has one; a name may be reused. */
static sl_status_t add_anchor(builder_t *b, const yaml_char_t *name,
                              sl_yaml_node_t *node)
{
    const char *text = (const char *)name;
    char place[SL_YAML_PLACE_BYTES];
    anchor_t *anchor;
    sl_status_t status = SL_OK;

    if (name == NULL) {
        return SL_OK;
    }
    anchor = find_anchor(b, text);
    if (anchor == NULL) {
        if (b->n_anchors == MAX_ANCHORS) {
            SL_FAIL(status, SL_ERR_CONFIG, out, "%s: more than %d anchors",
                    sl_yaml_mark_text(&node->mark, place), MAX_ANCHORS);
        }
        anchor = &b->anchors[b->n_anchors];
        anchor->name = sl_yaml_copy(b->yaml, text, strlen(text));
        if (anchor->name == NULL) {
            SL_FAIL(status, SL_ERR_NO_MEMORY, out, "%s: no memory for a name",
                    b->source->name);
        }
        b->n_anchors++;
    }
    anchor->node = node;
out:
    return status;
}

static sl_status_t on_alias(builder_t *b, const yaml_event_t *event)
{
    const char *name = (const char *)event->data.alias.anchor;
    const sl_yaml_mark_t mark = mark_of(b, &event->start_mark);
    const anchor_t *anchor = find_anchor(b, name);
    char place[SL_YAML_PLACE_BYTES], shown[SL_SHOW_BYTES];
    sl_yaml_node_t *copy = NULL;
    sl_status_t status;
    int i;

    if (anchor == NULL) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "%s: alias *%s has no anchor before it",
                sl_yaml_mark_text(&mark, place), sl_show(name, shown));
    }
    for (i = 0; i < b->depth; i++) {
        if (b->frames[i].node == anchor->node) {
            SL_FAIL(status, SL_ERR_CONFIG, out,
                    "%s: alias *%s is inside its own anchor",
                    sl_yaml_mark_text(&mark, place), sl_show(name, shown));
        }
    }
    SL_TRY(status, clone(b, &mark, anchor->node, b->level + b->depth, &copy),
           out);
    status = attach(b, copy, &mark);
out:
    return status;
}

static sl_status_t check_tag(const builder_t *b, const yaml_char_t *tag,
                             const yaml_mark_t *at)
{
    const sl_yaml_mark_t mark = mark_of(b, at);
    char place[SL_YAML_PLACE_BYTES], shown[SL_SHOW_BYTES];
    sl_status_t status = SL_OK;

    if (tag != NULL) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "%s: tags are not supported; remove '%s'",
                sl_yaml_mark_text(&mark, place),
                sl_show((const char *)tag, shown));
    }
out:
    return status;
}

static sl_status_t on_scalar(builder_t *b, const yaml_event_t *event)
{
    const char *value = (const char *)event->data.scalar.value;
    const size_t n = event->data.scalar.length;
    const sl_yaml_mark_t mark = mark_of(b, &event->start_mark);
    char place[SL_YAML_PLACE_BYTES];
    sl_yaml_node_t *node = NULL;
    sl_status_t status;

    SL_TRY(status, check_tag(b, event->data.scalar.tag, &event->start_mark),
           out);
    if (memchr(value, '\0', n) != NULL) {
        SL_FAIL(status, SL_ERR_CONFIG, out, "%s: a text with a zero byte in it",
                sl_yaml_mark_text(&mark, place));
    }
    SL_TRY(status, sl_yaml_node_create(b->yaml, SL_YAML_SCALAR, &mark, &node),
           out);
    node->is_quoted = event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    node->text = sl_yaml_copy(b->yaml, value, n);
    if (node->text == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "%s: no memory for a value",
                b->source->name);
    }
    SL_TRY(status, add_anchor(b, event->data.scalar.anchor, node), out);
    status = attach(b, node, &mark);
out:
    return status;
}

static sl_status_t on_start(builder_t *b, sl_yaml_kind_t kind,
                            const yaml_event_t *event)
{
    const int is_mapping = kind == SL_YAML_MAPPING;
    const yaml_char_t *tag = is_mapping ? event->data.mapping_start.tag
                                        : event->data.sequence_start.tag;
    const yaml_char_t *anchor = is_mapping ? event->data.mapping_start.anchor
                                           : event->data.sequence_start.anchor;
    const sl_yaml_mark_t mark = mark_of(b, &event->start_mark);
    char place[SL_YAML_PLACE_BYTES];
    sl_yaml_node_t *node = NULL;
    sl_status_t status;

    SL_TRY(status, check_tag(b, tag, &event->start_mark), out);
    if (b->level + b->depth >= SL_YAML_MAX_DEPTH) {
        SL_FAIL(status, SL_ERR_CONFIG, out, "%s: more than %d levels nested",
                sl_yaml_mark_text(&mark, place), SL_YAML_MAX_DEPTH);
    }
    SL_TRY(status, sl_yaml_node_create(b->yaml, kind, &mark, &node), out);
    SL_TRY(status, add_anchor(b, anchor, node), out);
    SL_TRY(status, attach(b, node, &mark), out);
    b->frames[b->depth].node = node;
    b->frames[b->depth].key = NULL;
    b->depth++;
out:
    return status;
}

static int compare_entries(const void *left, const void *right)
{
    const sl_yaml_entry_t *a = *(const sl_yaml_entry_t *const *)left;
    const sl_yaml_entry_t *b = *(const sl_yaml_entry_t *const *)right;
    const int order = strcmp(a->key, b->key);

    return order != 0 ? order : (a > b) - (a < b);
}

/* Sorted, so that a mapping of 1e5 keys does not take 1e10 comparisons. */
static sl_status_t check_duplicates(const builder_t *b,
                                    const sl_yaml_node_t *node)
{
    const size_t n = node->n_entries;
    char place[SL_YAML_PLACE_BYTES], shown[SL_SHOW_BYTES];
    const sl_yaml_entry_t **sorted, *first = NULL;
    sl_status_t status = SL_OK;
    size_t i;

    if (n < 2) {
        return SL_OK;
    }
    sorted = malloc(n * sizeof(*sorted));
    if (sorted == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "%s: no memory to check keys",
                b->source->name);
    }
    for (i = 0; i < n; i++) {
        sorted[i] = &node->entries[i];
    }
    qsort(sorted, n, sizeof(*sorted), compare_entries);
    for (i = 1; i < n; i++) {
        if (strcmp(sorted[i - 1]->key, sorted[i]->key) == 0 &&
            (first == NULL || sorted[i] < first)) {
            first = sorted[i];
        }
    }
    if (first != NULL) {
        SL_FAIL(status, SL_ERR_CONFIG, out_free,
                "%s: key '%s' is there twice; first on line %d",
                sl_yaml_mark_text(&first->key_mark, place),
                sl_show(first->key, shown),
                sl_yaml_find(node, first->key)->key_mark.line);
    }
out_free:
    free(sorted);
out:
    return status;
}

static sl_status_t on_document(builder_t *b, const yaml_event_t *event)
{
    const sl_yaml_mark_t mark = mark_of(b, &event->start_mark);
    char place[SL_YAML_PLACE_BYTES];
    sl_status_t status = SL_OK;

    if (b->n_documents > 0) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "%s: a second document starts here; only one is allowed",
                sl_yaml_mark_text(&mark, place));
    }
    b->n_documents++;
out:
    return status;
}

static sl_status_t on_event(builder_t *b, const yaml_event_t *event)
{
    switch (event->type) {
    case YAML_DOCUMENT_START_EVENT:
        return on_document(b, event);
    case YAML_ALIAS_EVENT:
        return on_alias(b, event);
    case YAML_SCALAR_EVENT:
        return on_scalar(b, event);
    case YAML_SEQUENCE_START_EVENT:
        return on_start(b, SL_YAML_SEQUENCE, event);
    case YAML_MAPPING_START_EVENT:
        return on_start(b, SL_YAML_MAPPING, event);
    case YAML_SEQUENCE_END_EVENT:
        b->depth--;
        return SL_OK;
    case YAML_MAPPING_END_EVENT:
        b->depth--;
        return check_duplicates(b, b->frames[b->depth].node);
    case YAML_NO_EVENT:
    case YAML_STREAM_START_EVENT:
    case YAML_STREAM_END_EVENT:
    case YAML_DOCUMENT_END_EVENT:
        break;
    }
    return SL_OK;
}

/* libyaml compares every %TAG directive with all earlier ones before the
 * first event: a file full of them would take hours. */
static sl_status_t check_directives(const builder_t *b)
{
    const char *at = b->text, *end = b->text + b->n_bytes;
    sl_status_t status = SL_OK;
    int n = 0;

    while (at < end && (at = memchr(at, '%', (size_t)(end - at))) != NULL) {
        if (end - at >= 4 && memcmp(at, "%TAG", 4) == 0 &&
            ++n > MAX_TAG_DIRECTIVES) {
            SL_FAIL(status, SL_ERR_CONFIG, out,
                    "%s: more than %d %%TAG directives; tags are not supported",
                    b->source->name, MAX_TAG_DIRECTIVES);
        }
        at++;
    }
out:
    return status;
}

static sl_status_t run_parser(builder_t *b)
{
    yaml_event_type_t type = YAML_NO_EVENT;
    sl_status_t status = SL_OK;

    while (status == SL_OK && type != YAML_STREAM_END_EVENT) {
        yaml_event_t event;

        if (!yaml_parser_parse(b->parser, &event)) {
            return parser_error(b);
        }
        type = event.type;
        status = on_event(b, &event);
        yaml_event_delete(&event);
    }
    return status;
}

sl_status_t sl_yaml_build(sl_yaml_t *yaml, const sl_yaml_source_t *source,
                          const char *text, size_t n_bytes, int level,
                          sl_yaml_node_t **root_p)
{
    yaml_parser_t parser;
    builder_t *b = NULL;
    sl_status_t status;

    if (n_bytes >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0) {
        text += 3; /* a byte order mark is not a column */
        n_bytes -= 3;
    }
    b = calloc(1, sizeof(*b));
    if (b == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "%s: no memory to read it",
                source->name);
    }
    b->yaml = yaml;
    b->source = source;
    b->parser = &parser;
    b->text = text;
    b->n_bytes = n_bytes;
    b->level = level;
    SL_TRY(status, check_directives(b), out);
    if (!yaml_parser_initialize(&parser)) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "%s: no memory for a parser",
                source->name);
    }
    yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, n_bytes);
    status = run_parser(b);
    yaml_parser_delete(&parser);
    if (status == SL_OK) {
        *root_p = b->root;
    }
out:
    free(b);
    return status;
}
