/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file names_internal.h
 * A table from names to layer indices.
 */
#ifndef SL_LAYERS_NAMES_INTERNAL_H
#define SL_LAYERS_NAMES_INTERNAL_H

#include <stddef.h>

#include "base/status.h"

SL_BEGIN_DECLS

typedef struct sl_name_slot {
    const char *name; /**< borrowed; NULL: free */
    int index;
} sl_name_slot_t;

/** Start from zeroes. */
typedef struct sl_names {
    sl_name_slot_t *slots;
    size_t n_slots; /**< a power of two, at least twice n_names; or 0 */
    size_t n_names;
} sl_names_t;

/** Set the index of a name; the name must live as long as the table.
 *  @return SL_OK, SL_ERR_NO_MEMORY */
SL_NODISCARD sl_status_t sl_names_set(sl_names_t *names, const char *name,
                                      int index);
/** The index of a name; `absent` when it is not there. */
int sl_names_get(const sl_names_t *names, const char *name, int absent);
void sl_names_cleanup(sl_names_t *names);

SL_END_DECLS
#endif /* SL_LAYERS_NAMES_INTERNAL_H */
