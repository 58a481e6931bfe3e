/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file json_fields.h
 * Strict readers of JSON objects. Each failure is a silent refusal
 * (SL_ERR_CORRUPT) whose detail names file, field, value and range.
 */
#ifndef SL_SCHEDULER_CONTROL_JSON_FIELDS_H
#define SL_SCHEDULER_CONTROL_JSON_FIELDS_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/** An object and how messages call it: "control.json devices cpu:0". */
typedef struct sl_fields {
    const char *what;
    json_t *object;
} sl_fields_t;

typedef enum sl_field_need {
    SL_FIELD_OPTIONAL, /**< absent: the value is left as it is */
    SL_FIELD_REQUIRED
} sl_field_need_t;

/** Name of value `i`, for choices; in [0, n). */
typedef const char *(*sl_choice_name_fn)(int i);

/** One object, nothing after it, no duplicate keys. *root_p is owned. */
SL_NODISCARD sl_status_t sl_fields_load(const char *what, const char *text,
                                        size_t n_bytes, json_t **root_p);
/** Fail when there is a key outside the NULL terminated list. */
SL_NODISCARD sl_status_t sl_fields_check(sl_fields_t fields,
                                         const char *const *allowed);
SL_NODISCARD sl_status_t sl_fields_u64(sl_fields_t fields, const char *key,
                                       sl_field_need_t need, uint64_t min,
                                       uint64_t max, uint64_t *value_p);
SL_NODISCARD sl_status_t sl_fields_number(sl_fields_t fields, const char *key,
                                          sl_field_need_t need, double min,
                                          double max, double *value_p);
/** Printable ASCII, shorter than `room`; `extra` NULL allows all of it, else
 *  letters, digits and the characters of `extra`. */
SL_NODISCARD sl_status_t sl_fields_text(sl_fields_t fields, const char *key,
                                        sl_field_need_t need, const char *extra,
                                        char *text, size_t room);
SL_NODISCARD sl_status_t sl_fields_choice(sl_fields_t fields, const char *key,
                                          sl_field_need_t need,
                                          sl_choice_name_fn name, int n,
                                          int *value_p);
SL_NODISCARD sl_status_t sl_fields_bool(sl_fields_t fields, const char *key,
                                        sl_field_need_t need, int *value_p);
/** NULL when absent and optional. */
SL_NODISCARD sl_status_t sl_fields_object(sl_fields_t fields, const char *key,
                                          sl_field_need_t need,
                                          json_t **object_p);
SL_NODISCARD sl_status_t sl_fields_array(sl_fields_t fields, const char *key,
                                         size_t max_entries, json_t **array_p);

/** Whether a text is a name: a letter or digit, then letters, digits and
 *  '.', '_', '-'; shorter than `room`. */
int sl_name_is_valid(const char *name, size_t room);
/** The same for a device: also ':' after the first character. */
int sl_device_name_is_valid(const char *name, size_t room);

/** Compact text with a newline; *text_p is owned. Takes the root. */
SL_NODISCARD sl_status_t sl_fields_dump(const char *what, json_t *take_root,
                                        char **text_p);

#endif /* SL_SCHEDULER_CONTROL_JSON_FIELDS_H */
