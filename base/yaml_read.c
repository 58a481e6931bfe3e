/* SPDX-License-Identifier: Apache-2.0 */
/* Typed access to a YAML tree, and the check that nothing was left unread. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base_internal.h"
#include "base/parse.h"
#include "base/yaml_internal.h"

enum {
    MAX_WORD = 64,
    LIST_BYTES = 400,
    WHAT_BYTES = 480
};

/* ---- the tree ---- */

const sl_yaml_node_t *sl_yaml_root(const sl_yaml_t *yaml)
{
    return yaml->root;
}

sl_yaml_kind_t sl_yaml_kind(const sl_yaml_node_t *node)
{
    return node->kind;
}

int sl_yaml_line(const sl_yaml_node_t *node)
{
    return node->mark.line;
}

const char *sl_yaml_place(const sl_yaml_node_t *node)
{
    sl_yaml_track_t *track = node->track;
    char place[SL_YAML_PLACE_BYTES];

    if (track->place == NULL) {
        (void)sl_yaml_mark_text(&node->mark, place);
        track->place = sl_yaml_copy(node->yaml, place, strlen(place));
    }
    /* without memory a message still names the file */
    return track->place != NULL ? track->place : node->mark.source->name;
}

size_t sl_yaml_count(const sl_yaml_node_t *node)
{
    return node == NULL ? 0 : node->n_entries;
}

const sl_yaml_node_t *sl_yaml_entry(const sl_yaml_node_t *node, size_t i,
                                    const char **key_p)
{
    if (node == NULL || i >= node->n_entries) {
        return NULL;
    }
    node->entries[i].node->track->is_used = 1;
    if (key_p != NULL) {
        *key_p = node->entries[i].key;
    }
    return node->entries[i].node;
}

/* Keys asked for are the known ones; losing one for lack of memory only
 * loses a suggestion. */
static void remember_asked(const sl_yaml_node_t *mapping, const char *key)
{
    sl_yaml_track_t *track = mapping->track;
    int i;

    for (i = 0; i < track->n_asked; i++) {
        if (strcmp(track->asked[i], key) == 0) {
            return;
        }
    }
    if (track->n_asked == SL_YAML_MAX_ASKED) {
        return;
    }
    /* room for 8, 16, 32, ...: full exactly at these counts */
    if (track->n_asked == 0 ||
        (track->n_asked >= 8 && (track->n_asked & (track->n_asked - 1)) == 0)) {
        const size_t room =
            track->n_asked == 0 ? 8 : 2 * (size_t)track->n_asked;
        const char **grown =
            sl_yaml_alloc(mapping->yaml, room * sizeof(*grown));

        if (grown == NULL) {
            return;
        }
        for (i = 0; i < track->n_asked; i++) {
            grown[i] = track->asked[i];
        }
        track->asked = grown;
    }
    key = sl_yaml_copy(mapping->yaml, key, strlen(key));
    if (key != NULL) {
        track->asked[track->n_asked++] = key;
    }
}

const sl_yaml_node_t *sl_yaml_get(const sl_yaml_node_t *mapping,
                                  const char *key)
{
    sl_yaml_entry_t *entry;

    if (mapping == NULL || mapping->kind != SL_YAML_MAPPING) {
        return NULL;
    }
    remember_asked(mapping, key);
    entry = sl_yaml_find(mapping, key);
    if (entry == NULL) {
        return NULL;
    }
    entry->node->track->is_used = 1;
    return entry->node;
}

const char *sl_yaml_text(const sl_yaml_node_t *node, int *is_quoted_p)
{
    if (node == NULL || node->kind != SL_YAML_SCALAR) {
        return NULL;
    }
    if (is_quoted_p != NULL) {
        *is_quoted_p = node->is_quoted;
    }
    return node->text;
}

/* ---- typed values ---- */

/* "train.yaml:12:3: lr", what every message about a value starts with. */
static const char *what_text(const sl_yaml_node_t *node, const char *key,
                             char out[WHAT_BYTES])
{
    char place[SL_YAML_PLACE_BYTES], shown[SL_SHOW_BYTES];

    (void)snprintf(out, WHAT_BYTES, "%s: %s",
                   sl_yaml_mark_text(&node->mark, place), sl_show(key, shown));
    return out;
}

/* The scalar of a key, NULL when absent or null. */
static sl_status_t get_scalar(const sl_yaml_node_t *mapping, const char *key,
                              const char *needed, const sl_yaml_node_t **node_p)
{
    const sl_yaml_node_t *node = sl_yaml_get(mapping, key);
    char what[WHAT_BYTES];
    sl_status_t status = SL_OK;

    *node_p = NULL;
    if (sl_yaml_is_null(node)) {
        return SL_OK;
    }
    if (node->kind != SL_YAML_SCALAR) {
        SL_FAIL(status, SL_ERR_CONFIG, out, "%s: it is %s; allowed: %s",
                what_text(node, key, what), sl_yaml_kind_text(node), needed);
    }
    *node_p = node;
out:
    return status;
}

/* As get_scalar, for the types that YAML writes without quotes. */
static sl_status_t get_plain(const sl_yaml_node_t *mapping, const char *key,
                             const char *needed, const sl_yaml_node_t **node_p)
{
    char what[WHAT_BYTES], shown[SL_SHOW_BYTES];
    sl_status_t status;

    SL_TRY(status, get_scalar(mapping, key, needed, node_p), out);
    if (*node_p != NULL && (*node_p)->is_quoted) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "%s: '%s' in quotes is a text; allowed: %s without quotes",
                what_text(*node_p, key, what), sl_show((*node_p)->text, shown),
                needed);
    }
out:
    return status;
}

/* In a config a value that does not parse is a config error; the reader has
 * recorded the detail. */
static sl_status_t as_config(sl_status_t status)
{
    return status == SL_ERR_INVALID_ARG ? SL_ERR_CONFIG : status;
}

sl_status_t sl_yaml_int(const sl_yaml_node_t *mapping, const char *key,
                        int64_t min, int64_t max, int64_t *value_p)
{
    const sl_yaml_node_t *node = NULL;
    char what[WHAT_BYTES];
    sl_status_t status;

    SL_TRY(status, get_plain(mapping, key, "an integer", &node), out);
    if (node != NULL) {
        status = as_config(sl_parse_int(what_text(node, key, what), node->text,
                                        min, max, value_p));
    }
out:
    return status;
}

sl_status_t sl_yaml_float(const sl_yaml_node_t *mapping, const char *key,
                          double min, double max, double *value_p)
{
    const sl_yaml_node_t *node = NULL;
    char what[WHAT_BYTES];
    sl_status_t status;

    SL_TRY(status, get_plain(mapping, key, "a number", &node), out);
    if (node != NULL) {
        status = as_config(sl_parse_float(what_text(node, key, what),
                                          node->text, min, max, value_p));
    }
out:
    return status;
}

sl_status_t sl_yaml_bool(const sl_yaml_node_t *mapping, const char *key,
                         int *value_p)
{
    static const char *const words[] = {"false", "true",  "False",
                                        "True",  "FALSE", "TRUE"};
    const sl_yaml_node_t *node = NULL;
    char what[WHAT_BYTES], shown[SL_SHOW_BYTES];
    sl_status_t status;
    size_t i;

    SL_TRY(status, get_plain(mapping, key, "true or false", &node), out);
    if (node == NULL) {
        return SL_OK;
    }
    for (i = 0; i < sizeof(words) / sizeof(*words); i++) {
        if (strcmp(node->text, words[i]) == 0) {
            *value_p = (int)(i % 2);
            return SL_OK;
        }
    }
    SL_FAIL(status, SL_ERR_CONFIG, out, "%s: '%s'; allowed: true or false",
            what_text(node, key, what), sl_show(node->text, shown));
out:
    return status;
}

sl_status_t sl_yaml_string(const sl_yaml_node_t *mapping, const char *key,
                           const char **value_p)
{
    const sl_yaml_node_t *node = NULL;
    char what[WHAT_BYTES];
    sl_status_t status;

    SL_TRY(status, get_scalar(mapping, key, "a text", &node), out);
    if (node == NULL) {
        return SL_OK;
    }
    if (node->text[0] == '\0') {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "%s: the text is empty; leave the key out for its default",
                what_text(node, key, what));
    }
    *value_p = node->text;
out:
    return status;
}

/* Index of a word in "a|b|c", or -1. */
static int find_choice(const char *choices, const char *word)
{
    const size_t n = strlen(word);
    int index = 0;

    for (;;) {
        const size_t n_choice = strcspn(choices, "|");

        if (n_choice == n && memcmp(choices, word, n) == 0) {
            return index;
        }
        if (choices[n_choice] == '\0') {
            return -1;
        }
        choices += n_choice + 1;
        index++;
    }
}

sl_status_t sl_yaml_choice(const sl_yaml_node_t *mapping, const char *key,
                           const char *choices, int *value_p)
{
    const sl_yaml_node_t *node = NULL;
    char what[WHAT_BYTES], shown[SL_SHOW_BYTES];
    sl_status_t status;
    int index;

    SL_TRY(status, get_scalar(mapping, key, choices, &node), out);
    if (node == NULL) {
        return SL_OK;
    }
    index = find_choice(choices, node->text);
    if (index < 0) {
        SL_FAIL(status, SL_ERR_CONFIG, out, "%s: '%s'; allowed: %s",
                what_text(node, key, what), sl_show(node->text, shown),
                choices);
    }
    *value_p = index;
out:
    return status;
}

sl_status_t sl_yaml_bytes(const sl_yaml_node_t *mapping, const char *key,
                          uint64_t *value_p)
{
    const sl_yaml_node_t *node = NULL;
    char what[WHAT_BYTES];
    sl_status_t status;

    SL_TRY(status, get_scalar(mapping, key, "a size such as 4GB", &node), out);
    if (node != NULL) {
        status = as_config(
            sl_parse_bytes(what_text(node, key, what), node->text, value_p));
    }
out:
    return status;
}

sl_status_t sl_yaml_mapping(const sl_yaml_node_t *mapping, const char *key,
                            const sl_yaml_node_t **node_p)
{
    const sl_yaml_node_t *node = sl_yaml_get(mapping, key);
    char what[WHAT_BYTES];
    sl_status_t status = SL_OK;

    if (sl_yaml_is_null(node)) {
        node = NULL;
    } else if (node->kind != SL_YAML_MAPPING) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "%s: it is %s; allowed: a mapping (key: value)",
                what_text(node, key, what), sl_yaml_kind_text(node));
    }
    *node_p = node;
out:
    return status;
}

/* ---- keys nobody asked for ---- */

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Levenshtein's distance; MAX_WORD when a word is too long to be typed. */
static size_t edit_distance(const char *a, const char *b)
{
    const size_t n_a = strlen(a), n_b = strlen(b);
    size_t row[MAX_WORD + 1];
    size_t i, j;

    if (n_a > MAX_WORD || n_b > MAX_WORD) {
        return MAX_WORD;
    }
    for (j = 0; j <= n_b; j++) {
        row[j] = j;
    }
    for (i = 1; i <= n_a; i++) {
        size_t diagonal = row[0];

        row[0] = i;
        for (j = 1; j <= n_b; j++) {
            const size_t swap = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);

            diagonal = row[j];
            row[j] = min_size(swap, 1 + min_size(row[j], row[j - 1]));
        }
    }
    return row[n_b];
}

/* "; did you mean 'lr'?", or the known keys when none is near. */
static const char *suggestion(const sl_yaml_node_t *mapping, const char *key,
                              char out[LIST_BYTES])
{
    const sl_yaml_track_t *track = mapping->track;
    const char *nearest = NULL;
    size_t best = (strlen(key) + 2) / 3 + 1, used = 0;
    int i;

    out[0] = '\0';
    for (i = 0; i < track->n_asked; i++) {
        const size_t distance = edit_distance(key, track->asked[i]);

        if (distance < best && sl_yaml_find(mapping, track->asked[i]) == NULL) {
            best = distance;
            nearest = track->asked[i];
        }
    }
    if (nearest != NULL) {
        (void)snprintf(out, LIST_BYTES, "; did you mean '%s'?", nearest);
        return out;
    }
    for (i = 0; i < track->n_asked && used < LIST_BYTES; i++) {
        used +=
            (size_t)snprintf(out + used, LIST_BYTES - used, "%s%s",
                             i == 0 ? "; known keys: " : ", ", track->asked[i]);
    }
    return out;
}

sl_status_t sl_yaml_check_used(const sl_yaml_node_t *node)
{
    char place[SL_YAML_PLACE_BYTES], shown[SL_SHOW_BYTES], list[LIST_BYTES];
    sl_status_t status = SL_OK;
    size_t i;

    for (i = 0; node != NULL && i < node->n_entries; i++) {
        const sl_yaml_entry_t *entry = &node->entries[i];

        if (entry->key != NULL && !entry->node->track->is_used) {
            SL_FAIL(status, SL_ERR_CONFIG, out, "%s: key '%s' is not known%s",
                    sl_yaml_mark_text(&entry->key_mark, place),
                    sl_show(entry->key, shown),
                    suggestion(node, entry->key, list));
        }
        SL_TRY(status, sl_yaml_check_used(entry->node), out);
    }
out:
    return status;
}
