/* SPDX-License-Identifier: Apache-2.0 */
/* Strict readers of JSON objects. */
#include "scheduler/control/json_fields.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SHOWN_BYTES = 80,
    REAL_DIGITS = 12
};

/* What came from a file goes to terminals: only printable ASCII. */
static void make_printable(char *text)
{
    for (; *text != '\0'; text++) {
        if (*text < 0x20 || *text > 0x7e) {
            *text = '?';
        }
    }
}

static const char *printable(const char *text, char *shown)
{
    (void)snprintf(shown, SHOWN_BYTES, "%s", text);
    make_printable(shown);
    return shown;
}

sl_status_t sl_fields_load(const char *what, const char *text, size_t n_bytes,
                           json_t **root_p)
{
    json_error_t error;
    sl_status_t status = SL_OK;
    json_t *root = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &error);

    if (root == NULL) {
        make_printable(error.text);
        SL_REFUSE(status, SL_ERR_CORRUPT, out, "%s line %d column %d: %s", what,
                  error.line, error.column, error.text);
    }
    if (!json_is_object(root)) {
        json_decref(root);
        SL_REFUSE(status, SL_ERR_CORRUPT, out, "%s: it is not one JSON object",
                  what);
    }
    *root_p = root;
out:
    return status;
}

sl_status_t sl_fields_check(sl_fields_t fields, const char *const *allowed)
{
    sl_status_t status = SL_OK;
    const char *key;
    char shown[SHOWN_BYTES];
    void *at;

    for (at = json_object_iter(fields.object); at != NULL;
         at = json_object_iter_next(fields.object, at)) {
        const char *const *name = allowed;

        key = json_object_iter_key(at);
        while (*name != NULL && strcmp(*name, key) != 0) {
            name++;
        }
        if (*name == NULL) {
            SL_REFUSE(status, SL_ERR_CORRUPT, out, "%s: unknown key \"%s\"",
                      fields.what, printable(key, shown));
        }
    }
out:
    return status;
}

/* The value, or NULL; required ones that are absent are a failure. */
static sl_status_t find(sl_fields_t fields, const char *key,
                        sl_field_need_t need, json_t **value_p)
{
    json_t *value = json_object_get(fields.object, key);
    sl_status_t status = SL_OK;

    if (value == NULL && need == SL_FIELD_REQUIRED) {
        SL_REFUSE(status, SL_ERR_CORRUPT, out, "%s: \"%s\" is missing",
                  fields.what, key);
    }
    *value_p = value;
out:
    return status;
}

sl_status_t sl_fields_u64(sl_fields_t fields, const char *key,
                          sl_field_need_t need, uint64_t min, uint64_t max,
                          uint64_t *value_p)
{
    json_t *value = NULL;
    sl_status_t status;
    json_int_t number;

    SL_TRY(status, find(fields, key, need, &value), out);
    if (value == NULL) {
        goto out;
    }
    if (!json_is_integer(value)) {
        SL_REFUSE(status, SL_ERR_CORRUPT, out, "%s: \"%s\" is not an integer",
                  fields.what, key);
    }
    number = json_integer_value(value);
    if (number < 0 || (uint64_t)number < min || (uint64_t)number > max) {
        SL_REFUSE(status, SL_ERR_CORRUPT, out,
                  "%s: \"%s\" is %" JSON_INTEGER_FORMAT "; %" PRIu64
                  " to %" PRIu64 " is allowed",
                  fields.what, key, number, min, max);
    }
    *value_p = (uint64_t)number;
out:
    return status;
}

sl_status_t sl_fields_number(sl_fields_t fields, const char *key,
                             sl_field_need_t need, double min, double max,
                             double *value_p)
{
    json_t *value = NULL;
    sl_status_t status;
    double number;

    SL_TRY(status, find(fields, key, need, &value), out);
    if (value == NULL) {
        goto out;
    }
    if (!json_is_number(value)) {
        SL_REFUSE(status, SL_ERR_CORRUPT, out, "%s: \"%s\" is not a number",
                  fields.what, key);
    }
    number = json_number_value(value);
    if (!(number >= min && number <= max)) {
        SL_REFUSE(status, SL_ERR_CORRUPT, out,
                  "%s: \"%s\" is %g; %g to %g is allowed", fields.what, key,
                  number, min, max);
    }
    *value_p = number;
out:
    return status;
}

static int is_alnum_ascii(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c >= '0' && c <= '9');
}

static int is_allowed(char c, const char *extra)
{
    if (extra == NULL) {
        return c >= 0x20 && c <= 0x7e;
    }
    return is_alnum_ascii(c) || (c != '\0' && strchr(extra, c) != NULL);
}

sl_status_t sl_fields_text(sl_fields_t fields, const char *key,
                           sl_field_need_t need, const char *extra, char *text,
                           size_t room)
{
    json_t *value = NULL;
    sl_status_t status;
    const char *from;
    size_t n, i;

    SL_TRY(status, find(fields, key, need, &value), out);
    if (value == NULL) {
        goto out;
    }
    if (!json_is_string(value)) {
        SL_REFUSE(status, SL_ERR_CORRUPT, out, "%s: \"%s\" is not a text",
                  fields.what, key);
    }
    from = json_string_value(value);
    n = json_string_length(value);
    if (n >= room) {
        SL_REFUSE(status, SL_ERR_CORRUPT, out,
                  "%s: \"%s\" has %zu bytes; %zu are allowed", fields.what, key,
                  n, room - 1);
    }
    for (i = 0; i < n; i++) {
        if (!is_allowed(from[i], extra)) {
            SL_REFUSE(status, SL_ERR_CORRUPT, out,
                      "%s: \"%s\" has a character that is not allowed",
                      fields.what, key);
        }
    }
    memcpy(text, from, n + 1);
out:
    return status;
}

sl_status_t sl_fields_choice(sl_fields_t fields, const char *key,
                             sl_field_need_t need, sl_choice_name_fn name,
                             int n, int *value_p)
{
    json_t *value = NULL;
    sl_status_t status;
    char shown[SHOWN_BYTES];
    int i;

    SL_TRY(status, find(fields, key, need, &value), out);
    if (value == NULL) {
        goto out;
    }
    if (!json_is_string(value)) {
        SL_REFUSE(status, SL_ERR_CORRUPT, out, "%s: \"%s\" is not a text",
                  fields.what, key);
    }
    for (i = 0; i < n; i++) {
        if (strcmp(name(i), json_string_value(value)) == 0) {
            *value_p = i;
            goto out;
        }
    }
    SL_REFUSE(status, SL_ERR_CORRUPT, out, "%s: \"%s\" cannot be \"%s\"",
              fields.what, key, printable(json_string_value(value), shown));
out:
    return status;
}

sl_status_t sl_fields_bool(sl_fields_t fields, const char *key,
                           sl_field_need_t need, int *value_p)
{
    json_t *value = NULL;
    sl_status_t status;

    SL_TRY(status, find(fields, key, need, &value), out);
    if (value == NULL) {
        goto out;
    }
    if (!json_is_boolean(value)) {
        SL_REFUSE(status, SL_ERR_CORRUPT, out, "%s: \"%s\" is no boolean",
                  fields.what, key);
    }
    *value_p = json_is_true(value) ? 1 : 0;
out:
    return status;
}

sl_status_t sl_fields_object(sl_fields_t fields, const char *key,
                             sl_field_need_t need, json_t **object_p)
{
    json_t *value = NULL;
    sl_status_t status;

    SL_TRY(status, find(fields, key, need, &value), out);
    if (value != NULL && !json_is_object(value)) {
        SL_REFUSE(status, SL_ERR_CORRUPT, out, "%s: \"%s\" is not an object",
                  fields.what, key);
    }
    *object_p = value;
out:
    return status;
}

sl_status_t sl_fields_array(sl_fields_t fields, const char *key,
                            size_t max_entries, json_t **array_p)
{
    json_t *value = NULL;
    sl_status_t status;

    SL_TRY(status, find(fields, key, SL_FIELD_REQUIRED, &value), out);
    if (!json_is_array(value) || json_array_size(value) > max_entries) {
        SL_REFUSE(status, SL_ERR_CORRUPT, out,
                  "%s: \"%s\" is not a list of at most %zu", fields.what, key,
                  max_entries);
    }
    *array_p = value;
out:
    return status;
}

static int is_name(const char *name, const char *extra, size_t room)
{
    size_t i;

    if (!is_alnum_ascii(name[0])) {
        return 0;
    }
    for (i = 0; name[i] != '\0'; i++) {
        if (i + 1 >= room || !is_allowed(name[i], extra)) {
            return 0;
        }
    }
    return 1;
}

int sl_name_is_valid(const char *name, size_t room)
{
    return is_name(name, "._-", room);
}

int sl_device_name_is_valid(const char *name, size_t room)
{
    return is_name(name, "._-:", room);
}

sl_status_t sl_fields_dump(const char *what, json_t *take_root, char **text_p)
{
    sl_status_t status = SL_OK;
    char *text = NULL;
    char *grown;
    size_t n;

    if (take_root != NULL) {
        text = json_dumps(take_root,
                          JSON_COMPACT | JSON_REAL_PRECISION(REAL_DIGITS));
    }
    json_decref(take_root);
    n = text != NULL ? strlen(text) : 0;
    grown = text != NULL ? realloc(text, n + 2) : NULL;
    if (grown == NULL) {
        free(text);
        SL_REFUSE(status, SL_ERR_NO_MEMORY, out, "no host memory for %s", what);
    }
    memcpy(grown + n, "\n", 2);
    *text_p = grown;
out:
    return status;
}
