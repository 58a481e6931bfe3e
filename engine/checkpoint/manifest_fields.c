/* SPDX-License-Identifier: Apache-2.0 */
/* Members of a JSON object that may be anything, each checked for its kind,
 * size and range. Refusals are silent. */
#include "engine/checkpoint/manifest_fields.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

sl_status_t sl_object_u64(sl_object_t from, const char *key, uint64_t max,
                          uint64_t *value_p)
{
    const json_t *value = json_object_get(from.json, key);
    sl_status_t status;

    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        (uint64_t)json_integer_value(value) > max) {
        SL_REFUSE(status, SL_ERR_CORRUPT, out,
                  "%s: %s is not a whole number from 0 to %" PRIu64, from.what,
                  key, max);
    }
    *value_p = (uint64_t)json_integer_value(value);
    return SL_OK;
out:
    return status;
}

/* NULL in JSON is NaN. */
sl_status_t sl_object_number(sl_object_t from, const char *key, double *value_p)
{
    const json_t *value = json_object_get(from.json, key);
    sl_status_t status;

    if (!json_is_number(value) && !json_is_null(value)) {
        SL_REFUSE(status, SL_ERR_CORRUPT, out,
                  "%s: %s is neither a number nor null", from.what, key);
    }
    *value_p = json_is_null(value) ? (double)NAN : json_number_value(value);
    return SL_OK;
out:
    return status;
}

/* Texts are printed and compared: printable, of bounded length, no NUL. */
sl_status_t sl_object_check_text(const char *what, const char *key,
                                 const json_t *value, size_t room,
                                 const char **text_p)
{
    const char *text = json_string_value(value);
    sl_status_t status;
    size_t i;

    if (text == NULL || text[0] == '\0' || strlen(text) >= room ||
        strlen(text) != json_string_length(value)) {
        SL_REFUSE(status, SL_ERR_CORRUPT, out,
                  "%s: %s is not a text of 1 to %zu bytes", what, key,
                  room - 1);
    }
    for (i = 0; text[i] != '\0'; i++) {
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f) {
            SL_REFUSE(status, SL_ERR_CORRUPT, out,
                      "%s: %s has a control character", what, key);
        }
    }
    *text_p = text;
    return SL_OK;
out:
    return status;
}

sl_status_t sl_object_text(sl_object_t from, const char *key, size_t room,
                           const char **text_p)
{
    return sl_object_check_text(from.what, key, json_object_get(from.json, key),
                                room, text_p);
}

sl_status_t sl_object_hash(sl_object_t from, const char *key, uint64_t *value_p)
{
    const char *text = NULL;
    sl_status_t status;

    SL_TRY(status, sl_object_text(from, key, 17, &text), out);
    if (strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16) {
        SL_REFUSE(status, SL_ERR_CORRUPT, out,
                  "%s: %s is not 16 digits from 0 to f", from.what, key);
    }
    *value_p = strtoull(text, NULL, 16);
out:
    return status;
}

sl_status_t sl_object_array(sl_object_t from, const char *key, size_t max,
                            json_t **array_p)
{
    json_t *array = json_object_get(from.json, key);
    sl_status_t status;

    if (!json_is_array(array) || json_array_size(array) > max) {
        SL_REFUSE(status, SL_ERR_CORRUPT, out,
                  "%s: %s is not a list of at most %zu", from.what, key, max);
    }
    *array_p = array;
    return SL_OK;
out:
    return status;
}

sl_status_t sl_object_object(sl_object_t from, const char *key,
                             sl_object_t *object_p)
{
    const json_t *object = json_object_get(from.json, key);
    sl_status_t status;

    if (!json_is_object(object)) {
        SL_REFUSE(status, SL_ERR_CORRUPT, out, "%s: %s is not an object",
                  from.what, key);
    }
    object_p->what = from.what;
    object_p->json = object;
    return SL_OK;
out:
    return status;
}
