/* SPDX-License-Identifier: Apache-2.0 */
/* Open addressing with linear probing; nothing is ever removed. */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "layers/names_internal.h"

/* The slot of a name, or the free one where it would go. */
static sl_name_slot_t *find_slot(sl_name_slot_t *slots, size_t n_slots,
                                 const char *name)
{
    size_t i = (size_t)sl_hash_text(name, 0) & (n_slots - 1);

    while (slots[i].name != NULL && strcmp(slots[i].name, name) != 0) {
        i = (i + 1) & (n_slots - 1);
    }
    return &slots[i];
}

static sl_status_t grow(sl_names_t *names)
{
    const size_t n_slots = names->n_slots == 0 ? 64 : names->n_slots * 2;
    sl_name_slot_t *slots = calloc(n_slots, sizeof(*slots));
    sl_status_t status = SL_OK;
    size_t i;

    if (slots == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "table of %zu layer names: no host memory", names->n_names);
    }
    for (i = 0; i < names->n_slots; i++) {
        if (names->slots[i].name != NULL) {
            *find_slot(slots, n_slots, names->slots[i].name) = names->slots[i];
        }
    }
    free(names->slots);
    names->slots = slots;
    names->n_slots = n_slots;
out:
    return status;
}

sl_status_t sl_names_set(sl_names_t *names, const char *name, int index)
{
    sl_name_slot_t *slot;
    sl_status_t status = SL_OK;

    if (names->n_slots < 2 * (names->n_names + 1)) {
        SL_TRY(status, grow(names), out);
    }
    slot = find_slot(names->slots, names->n_slots, name);
    names->n_names += slot->name == NULL;
    slot->name = name;
    slot->index = index;
out:
    return status;
}

int sl_names_get(const sl_names_t *names, const char *name, int absent)
{
    const sl_name_slot_t *slot;

    if (names->n_slots == 0) {
        return absent;
    }
    slot = find_slot(names->slots, names->n_slots, name);
    return slot->name == NULL ? absent : slot->index;
}

void sl_names_cleanup(sl_names_t *names)
{
    free(names->slots);
    memset(names, 0, sizeof(*names));
}
