/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file manifest_fields.h
 * Strict readers of the members of a JSON object. Each failure is a silent
 * refusal (SL_ERR_CORRUPT) that names file and member.
 */
#ifndef SL_ENGINE_CHECKPOINT_MANIFEST_FIELDS_H
#define SL_ENGINE_CHECKPOINT_MANIFEST_FIELDS_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/** An object, and how messages call its file. */
typedef struct sl_object {
    const char *what;
    const json_t *json;
} sl_object_t;

/** A whole number from 0 to max. */
SL_NODISCARD sl_status_t sl_object_u64(sl_object_t from, const char *key,
                                       uint64_t max, uint64_t *value_p);
/** JSON's null is NaN. */
SL_NODISCARD sl_status_t sl_object_number(sl_object_t from, const char *key,
                                          double *value_p);
/** A text that may be printed and compared: 1 to room - 1 bytes, no control
 *  characters. */
SL_NODISCARD sl_status_t sl_object_check_text(const char *what, const char *key,
                                              const json_t *value, size_t room,
                                              const char **text_p);
SL_NODISCARD sl_status_t sl_object_text(sl_object_t from, const char *key,
                                        size_t room, const char **text_p);
/** 16 hexadecimal digits. */
SL_NODISCARD sl_status_t sl_object_hash(sl_object_t from, const char *key,
                                        uint64_t *value_p);
SL_NODISCARD sl_status_t sl_object_array(sl_object_t from, const char *key,
                                         size_t max, json_t **array_p);
SL_NODISCARD sl_status_t sl_object_object(sl_object_t from, const char *key,
                                          sl_object_t *object_p);

#endif /* SL_ENGINE_CHECKPOINT_MANIFEST_FIELDS_H */
