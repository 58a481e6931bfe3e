/* SPDX-License-Identifier: Apache-2.0 */
/* Sections, for who submits: ops wait in the ring, not published, until the
 * piece that they are a part of is whole. */
#include "scheduler/op_manager_internal.h"

/* The ops held become one piece; lock held. */
void sl_op_section_cut(sl_op_manager_t *manager)
{
    const uint64_t submitted =
        atomic_load_explicit(&manager->n_submitted, memory_order_relaxed) +
        manager->n_held;

    if (manager->n_held > 0) {
        manager->ring[(submitted - 1) & (manager->n_slots - 1)].is_last = 1;
        manager->n_held = 0;
        manager->section_piece++;
        sl_op_manager_announce(manager, submitted);
    }
}

/* Whether the op in its slot waits for the rest of its piece; lock held. What
 * cannot be a part of one ends it: what tells the host, what runs beside the
 * others, and what is another thread's, who may wait for it. */
int sl_op_section_hold(sl_op_manager_t *manager, sl_op_slot_t *slot)
{
    if (slot->is_host || slot->is_load || slot->is_send ||
        !pthread_equal(manager->section_thread, pthread_self())) {
        sl_op_section_cut(manager);
        return 0;
    }
    slot->section = (uint64_t)manager->section << 32 | manager->section_piece;
    manager->n_held++;
    if (manager->n_held >= manager->n_slots / 2) {
        sl_op_section_cut(manager);
    }
    return 1;
}

static int has_sections(const sl_op_manager_t *manager)
{
    return manager->backend != NULL && manager->backend->capture_begin != NULL;
}

void sl_op_section_flush(sl_op_manager_t *manager)
{
    if (has_sections(manager)) {
        (void)pthread_mutex_lock(manager->lock);
        sl_op_section_cut(manager);
        (void)pthread_mutex_unlock(manager->lock);
    }
}

void sl_op_manager_section_begin(sl_op_manager_t *manager, uint32_t section)
{
    if (has_sections(manager)) {
        (void)pthread_mutex_lock(manager->lock);
        sl_op_section_cut(manager);
        manager->section = section;
        manager->section_piece = 0;
        manager->section_thread = pthread_self();
        (void)pthread_mutex_unlock(manager->lock);
    }
}

void sl_op_manager_section_end(sl_op_manager_t *manager)
{
    if (has_sections(manager)) {
        (void)pthread_mutex_lock(manager->lock);
        sl_op_section_cut(manager);
        manager->section = 0;
        (void)pthread_mutex_unlock(manager->lock);
    }
}
