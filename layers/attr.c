/* SPDX-License-Identifier: Apache-2.0 */
/* Attributes by name into the struct of a type. */
#include "layers/attr.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/parse.h"

enum {
    PLACE_BYTES = 256
};

/* " at train.yaml:3:7" or nothing. */
static const char *place(const sl_attr_t *attr, char text[PLACE_BYTES])
{
    text[0] = '\0';
    if (attr->place != NULL) {
        (void)snprintf(text, PLACE_BYTES, " at %s", attr->place);
    }
    return text;
}

static int find_def(const sl_attr_def_t *defs, const char *name)
{
    int i;

    for (i = 0; defs[i].name != NULL; i++) {
        if (strcmp(defs[i].name, name) == 0) {
            return i;
        }
    }
    return -1;
}

/* Names of a table, comma separated, for messages. */
static void list_names(const sl_attr_def_t *defs, char *text, size_t bytes)
{
    size_t used = 0;
    int i;

    (void)snprintf(text, bytes, "none");
    for (i = 0; defs[i].name != NULL && used < bytes; i++) {
        used += (size_t)snprintf(text + used, bytes - used, "%s%s",
                                 i == 0 ? "" : ", ", defs[i].name);
    }
}

/* A given number or text as a number in [min, max]. */
static sl_status_t read_number(const sl_attr_def_t *def, const char *owner,
                               const sl_attr_t *attr, double *value_p)
{
    char line[PLACE_BYTES];
    char what[256];
    double value = attr->number;
    sl_status_t status = SL_OK;

    if (attr->text != NULL) {
        (void)snprintf(what, sizeof(what), "%s: attribute %s%s", owner,
                       def->name, place(attr, line));
        SL_TRY(status,
               sl_parse_float(what, attr->text, -HUGE_VAL, HUGE_VAL, &value),
               err_config);
    }
    if (!isfinite(value)) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "%s: attribute %s%s: %g is not finite", owner, def->name,
                place(attr, line), value);
    }
    if (def->kind == SL_ATTR_INT && value != floor(value)) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "%s: attribute %s%s: %.9g is not a whole number", owner,
                def->name, place(attr, line), value);
    }
    if (value < def->min || value > def->max) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "%s: attribute %s%s: %.9g is not in %.9g..%.9g", owner,
                def->name, place(attr, line), value, def->min, def->max);
    }
    *value_p = value;
    return SL_OK;

err_config:
    status = SL_ERR_CONFIG;
out:
    return status;
}

/* Index of `word` in "a|b|c", or -1. */
static int find_choice(const char *choices, const char *word)
{
    const size_t n = strlen(word);
    int index = 0;

    while (*choices != '\0') {
        const size_t length = strcspn(choices, "|");

        if (length == n && strncmp(choices, word, n) == 0) {
            return index;
        }
        choices += length;
        choices += *choices == '|';
        index++;
    }
    return -1;
}

static int n_choices(const char *choices)
{
    int n = 1;

    for (; *choices != '\0'; choices++) {
        n += *choices == '|';
    }
    return n;
}

static sl_status_t read_choice(const sl_attr_def_t *def, const char *owner,
                               const sl_attr_t *attr, const char *choices,
                               int *value_p)
{
    char line[PLACE_BYTES];
    sl_status_t status = SL_OK;
    int index;

    if (attr->text == NULL) {
        if (!(attr->number >= 0 && attr->number < n_choices(choices)) ||
            attr->number != floor(attr->number)) {
            SL_FAIL(status, SL_ERR_CONFIG, out,
                    "%s: attribute %s%s: %.9g is not one of %s", owner,
                    def->name, place(attr, line), attr->number, choices);
        }
        *value_p = (int)attr->number;
        return SL_OK;
    }
    index = find_choice(choices, attr->text);
    if (index < 0) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "%s: attribute %s%s: '%s' is not one of %s", owner, def->name,
                place(attr, line), attr->text, choices);
    }
    *value_p = index;
out:
    return status;
}

static sl_status_t read_text(const sl_attr_def_t *def, const char *owner,
                             const sl_attr_t *attr, char *field)
{
    char line[PLACE_BYTES];
    sl_status_t status = SL_OK;

    if (attr->text == NULL) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "%s: attribute %s%s: %.9g is not a text", owner, def->name,
                place(attr, line), attr->number);
    }
    if (strlen(attr->text) >= SL_ATTR_TEXT_BYTES) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "%s: attribute %s%s: '%.20s...' is longer than %d bytes", owner,
                def->name, place(attr, line), attr->text,
                SL_ATTR_TEXT_BYTES - 1);
    }
    memcpy(field, attr->text, strlen(attr->text) + 1);
out:
    return status;
}

static sl_status_t fill_one(const sl_attr_def_t *def, const char *owner,
                            const sl_attr_t *attr, char *out)
{
    sl_status_t status = SL_OK;
    double number = 0;
    int index = 0;

    switch (def->kind) {
    case SL_ATTR_INT:
        status = read_number(def, owner, attr, &number);
        *(int64_t *)(void *)(out + def->offset) = (int64_t)number;
        break;
    case SL_ATTR_FLOAT:
        status = read_number(def, owner, attr, &number);
        *(double *)(void *)(out + def->offset) = number;
        break;
    case SL_ATTR_BOOL:
        status = read_choice(def, owner, attr, "false|true", &index);
        *(int *)(void *)(out + def->offset) = index;
        break;
    case SL_ATTR_CHOICE:
        status = read_choice(def, owner, attr, def->choices, &index);
        *(int *)(void *)(out + def->offset) = index;
        break;
    case SL_ATTR_TEXT:
        status = read_text(def, owner, attr, out + def->offset);
        break;
    }
    return status;
}

static void fill_fallbacks(const sl_attr_def_t *defs, char *out)
{
    int i;

    for (i = 0; defs[i].name != NULL; i++) {
        char *field = out + defs[i].offset;

        if (defs[i].kind == SL_ATTR_INT) {
            *(int64_t *)(void *)field = (int64_t)defs[i].fallback;
        } else if (defs[i].kind == SL_ATTR_FLOAT) {
            *(double *)(void *)field = defs[i].fallback;
        } else if (defs[i].kind != SL_ATTR_TEXT) {
            *(int *)(void *)field = (int)defs[i].fallback;
        } else {
            field[0] = '\0';
        }
    }
}

sl_status_t sl_attr_fill(const sl_attr_def_t *defs, const char *owner,
                         const sl_attr_t *attrs, size_t n_attrs, void *out)
{
    char line[PLACE_BYTES];
    char names[512];
    sl_status_t status = SL_OK;
    size_t i, k;
    int d;

    fill_fallbacks(defs, out);
    for (i = 0; i < n_attrs; i++) {
        d = find_def(defs, attrs[i].name);
        if (d < 0) {
            list_names(defs, names, sizeof(names));
            SL_FAIL(status, SL_ERR_CONFIG, out,
                    "%s: no attribute '%s'%s; there are: %s", owner,
                    attrs[i].name, place(&attrs[i], line), names);
        }
        for (k = 0; k < i; k++) {
            if (strcmp(attrs[k].name, attrs[i].name) == 0) {
                SL_FAIL(status, SL_ERR_CONFIG, out,
                        "%s: attribute %s%s is given twice", owner,
                        attrs[i].name, place(&attrs[i], line));
            }
        }
        SL_TRY(status, fill_one(&defs[d], owner, &attrs[i], out), out);
    }
    for (d = 0; defs[d].name != NULL; d++) {
        for (i = 0; i < n_attrs && strcmp(attrs[i].name, defs[d].name) != 0;) {
            i++;
        }
        if (defs[d].is_required && i == n_attrs) {
            SL_FAIL(status, SL_ERR_CONFIG, out,
                    "%s: attribute %s (%s) must be given", owner, defs[d].name,
                    defs[d].brief);
        }
    }
out:
    return status;
}
