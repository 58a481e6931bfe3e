/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file attr.h
 * Attributes of layers and models ("out", "kernel", "p") by name, so that a
 * C program and a config file describe a layer the same way, and one table a
 * type drives parsing, checking and help.
 */
#ifndef SL_LAYERS_ATTR_H
#define SL_LAYERS_ATTR_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

SL_BEGIN_DECLS

/** A given value. From C: {.name = "out", .number = 64} or
 *  {.name = "kind", .text = "tanh"}; `text` wins when not NULL. */
typedef struct sl_attr {
    const char *name;
    double number;
    const char *text;
    const char *place; /**< in a config, "train.yaml:3:7"; NULL = from C */
} sl_attr_t;

typedef enum sl_attr_kind {
    SL_ATTR_INT,    /**< int64_t field */
    SL_ATTR_FLOAT,  /**< double field */
    SL_ATTR_BOOL,   /**< int field: true/false, 1/0 */
    SL_ATTR_CHOICE, /**< int field: index of the word in `choices` */
    SL_ATTR_TEXT    /**< char[SL_ATTR_TEXT_BYTES] field */
} sl_attr_kind_t;

enum {
    SL_ATTR_TEXT_BYTES = 64
};

/** One row of a type's table; ends with a row whose name is NULL. */
typedef struct sl_attr_def {
    const char *name;
    sl_attr_kind_t kind;
    size_t offset; /**< of the field in the attribute struct */
    int is_required;
    double fallback;     /**< default when not given (text: empty) */
    double min, max;     /**< allowed, both included (int, float) */
    const char *choices; /**< "tanh|erf" */
    const char *brief;
} sl_attr_def_t;

/**
 * Fill the zeroed struct `out` from the given values.
 *
 * @param[in] owner  for messages: "layer conv1 (conv2d)"
 * @return SL_OK; SL_ERR_CONFIG naming owner, attribute, value, what is
 *         allowed and the line: unknown name, given twice, missing, not a
 *         whole number, out of range, not finite
 */
SL_API SL_NODISCARD sl_status_t sl_attr_fill(const sl_attr_def_t *defs,
                                             const char *owner,
                                             const sl_attr_t *attrs,
                                             size_t n_attrs, void *out);

SL_END_DECLS
#endif /* SL_LAYERS_ATTR_H */
