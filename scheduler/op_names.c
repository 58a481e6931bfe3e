/* SPDX-License-Identifier: Apache-2.0 */
/* Op names and their statistics. */
#include "scheduler/op_names.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    INDEX_SLOTS = 2 * SL_OP_MAX_NAMES,
    MEAN_PART = 8 /* each op moves the recent mean by this part of the way */
};

/* Sums only grow; a reset moves the base they are read against, so that the
 * device's thread stays their only writer and needs no locked instruction. */
typedef struct op_name {
    char *text;               /* guarded by the manager's lock */
    _Atomic uint64_t n_ops;   /* atomic, written by the device's thread */
    _Atomic uint64_t busy_ns; /* atomic, written by the device's thread */
    _Atomic uint64_t min_ns;  /* atomic */
    _Atomic uint64_t mean_ns; /* atomic, written by the device's thread */
    uint64_t base_n_ops;      /* guarded by the manager's lock */
    uint64_t base_busy_ns;    /* guarded by the manager's lock */
} op_name_t;

struct sl_op_names {
    size_t n_names;              /* guarded by the manager's lock */
    uint16_t index[INDEX_SLOTS]; /* id + 1 by hash; same guard */
    op_name_t names[SL_OP_MAX_NAMES];
};

static size_t hash_of(const char *text)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325); /* FNV-1a */

    for (; *text != '\0'; text++) {
        hash = (hash ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    }
    return (size_t)(hash ^ (hash >> 32));
}

uint32_t sl_op_names_id(sl_op_names_t *names, const char *name)
{
    size_t slot = hash_of(name) % INDEX_SLOTS;
    op_name_t *entry;
    size_t bytes;

    while (names->index[slot] != 0) {
        const uint32_t id = names->index[slot] - 1u;

        if (strcmp(names->names[id].text, name) == 0) {
            return id;
        }
        slot = (slot + 1) % INDEX_SLOTS;
    }
    if (names->n_names == SL_OP_MAX_NAMES) {
        return 0;
    }
    bytes = strlen(name) + 1;
    entry = &names->names[names->n_names];
    entry->text = malloc(bytes);
    if (entry->text == NULL) {
        return 0;
    }
    memcpy(entry->text, name, bytes);
    atomic_store_explicit(&entry->min_ns, UINT64_MAX, memory_order_relaxed);
    names->n_names++;
    names->index[slot] = (uint16_t)names->n_names;
    return (uint32_t)(names->n_names - 1);
}

sl_op_names_t *sl_op_names_create(void)
{
    sl_op_names_t *names = calloc(1, sizeof(*names));

    if (names != NULL) {
        (void)sl_op_names_id(names, "other");
        if (names->n_names == 0) {
            free(names);
            names = NULL;
        }
    }
    return names;
}

void sl_op_names_destroy(sl_op_names_t *names)
{
    size_t i;

    if (names == NULL) {
        return;
    }
    for (i = 0; i < names->n_names; i++) {
        free(names->names[i].text);
    }
    free(names);
}

size_t sl_op_names_count(const sl_op_names_t *names)
{
    return names->n_names;
}

const char *sl_op_names_text(const sl_op_names_t *names, uint32_t id)
{
    return names->names[id < names->n_names ? id : 0].text;
}

void sl_op_names_add(sl_op_names_t *names, uint32_t id, uint64_t busy_ns)
{
    op_name_t *name = &names->names[id];
    uint64_t min_ns = atomic_load_explicit(&name->min_ns, memory_order_relaxed);
    uint64_t mean_ns =
        atomic_load_explicit(&name->mean_ns, memory_order_relaxed);

    atomic_store_explicit(
        &name->n_ops,
        atomic_load_explicit(&name->n_ops, memory_order_relaxed) + 1,
        memory_order_relaxed);
    atomic_store_explicit(
        &name->busy_ns,
        atomic_load_explicit(&name->busy_ns, memory_order_relaxed) + busy_ns,
        memory_order_relaxed);
    while (busy_ns < min_ns &&
           !atomic_compare_exchange_weak_explicit(&name->min_ns, &min_ns,
                                                  busy_ns, memory_order_relaxed,
                                                  memory_order_relaxed)) {
    }
    mean_ns = mean_ns == 0
                  ? busy_ns
                  : mean_ns - mean_ns / MEAN_PART + busy_ns / MEAN_PART;
    atomic_store_explicit(&name->mean_ns, mean_ns, memory_order_relaxed);
}

uint64_t sl_op_names_mean_ns(const sl_op_names_t *names, uint32_t id)
{
    return atomic_load_explicit(&names->names[id].mean_ns,
                                memory_order_relaxed);
}

void sl_op_names_stats(const sl_op_names_t *names, uint32_t id,
                       sl_op_name_stats_t *stats_p)
{
    const op_name_t *name = &names->names[id];

    stats_p->name = name->text;
    stats_p->n_ops = atomic_load_explicit(&name->n_ops, memory_order_relaxed) -
                     name->base_n_ops;
    stats_p->busy_ns =
        atomic_load_explicit(&name->busy_ns, memory_order_relaxed) -
        name->base_busy_ns;
    stats_p->min_ns = atomic_load_explicit(&name->min_ns, memory_order_relaxed);
    stats_p->mean_ns =
        atomic_load_explicit(&name->mean_ns, memory_order_relaxed);
}

void sl_op_names_reset(sl_op_names_t *names)
{
    size_t i;

    for (i = 0; i < names->n_names; i++) {
        op_name_t *name = &names->names[i];

        name->base_n_ops =
            atomic_load_explicit(&name->n_ops, memory_order_relaxed);
        name->base_busy_ns =
            atomic_load_explicit(&name->busy_ns, memory_order_relaxed);
        atomic_store_explicit(&name->min_ns, UINT64_MAX, memory_order_relaxed);
    }
}
