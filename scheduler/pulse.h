/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file pulse.h
 * The pulse of a guarantee job: a page that its op managers write and its
 * guests read before each op, private to scheduler/ (docs/share.md).
 *
 * The page is the file `pulse` in the job's directory, one slot a device. It
 * is shared memory: what is read of it may be anything at any time. A reader
 * takes it for a hint, by which an op starts now or later; how much later is
 * bounded by the reader's own clock.
 */
#ifndef SL_SCHEDULER_PULSE_H
#define SL_SCHEDULER_PULSE_H

#include <stdalign.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum {
    SL_PULSE_VERSION = 1,
    SL_PULSE_SLOTS = 64,
    SL_PULSE_SLOT_BYTES = 128,
    SL_PULSE_FILE_BYTES = SL_PULSE_SLOT_BYTES * (1 + SL_PULSE_SLOTS),
    SL_PULSE_POSITIONS = 1024, /**< whose idle times are remembered */
    SL_PULSE_PLACES = 4,       /**< idle times told apart at a position */
    SL_PULSE_MAX_HOSTS = 8     /**< slots that one device yields to */
};
#define SL_PULSE_FILE "pulse"
#define SL_PULSE_MAGIC UINT64_C(0x31534c5550434c53) /* "SLCPULS1" */
/** An idle time of unknown length. */
#define SL_PULSE_UNKNOWN UINT64_MAX

typedef struct sl_pulse_head {
    alignas(SL_PULSE_SLOT_BYTES) uint64_t magic;
    uint32_t version;
    uint32_t n_slots;
    /** Counted on several times a second by the job's control thread: a job
     *  that is stopped does not. */
    _Atomic uint64_t beat;
} sl_pulse_head_t;

/** One device. Written by its thread only. */
typedef struct sl_pulse_slot {
    /** 0 = busy; else idle, and expected to be so until then. */
    alignas(SL_PULSE_SLOT_BYTES) _Atomic uint64_t until_ns;
    _Atomic uint64_t since_ns;   /**< when that began */
    _Atomic uint64_t longest_ns; /**< of the latest idle times */
    _Atomic uint32_t n_idles;    /**< idle times so far; a futex */
} sl_pulse_slot_t;

typedef struct sl_pulse_map {
    sl_pulse_head_t head;
    sl_pulse_slot_t slots[SL_PULSE_SLOTS];
} sl_pulse_map_t;

/* ---- the file ---- */

/** Make the page of a job with `n_slots` devices, all idle. Replaces a file
 *  of that name. @return SL_OK, SL_ERR_IO; not logged */
SL_NODISCARD sl_status_t sl_pulse_create(int dir_fd, int n_slots,
                                         sl_pulse_map_t **map_p);
void sl_pulse_unmap(const sl_pulse_map_t *map);

/** Map another job's page, to read only: a regular file, no link, owned by
 *  this user or root, not writable by others, of the right size and version.
 *  @return SL_OK, SL_ERR_NOT_FOUND, SL_ERR_IO, SL_ERR_CORRUPT; not logged */
SL_NODISCARD sl_status_t sl_pulse_open(int dir_fd, const sl_pulse_map_t **map_p,
                                       int *n_slots_p);

/* ---- the host: what a device publishes ---- */

/** A device's side of its slot. */
typedef struct sl_pulse_writer {
    sl_pulse_slot_t *slot; /**< borrowed; NULL = nobody is told */
    int is_idle;
    int is_learning; /**< this idle time has a position */
    uint64_t since_ns;
    uint64_t longest_ns;
    uint32_t position;                     /**< of the latest idle time, */
    uint32_t n_before;                     /**< how many came before it there */
    size_t index;                          /**< and where it is remembered */
    uint64_t expected[SL_PULSE_POSITIONS]; /**< ns; 0 = not known */
} sl_pulse_writer_t;

/** The queue is empty; `position` 0 = for an unknown time. Where there is
 *  more than one idle time at a position, each is remembered by itself.
 *  @return 0; else guests were not woken for an idle time that short: tell
 *  sl_pulse_late when it lasts longer than so many ns */
uint64_t sl_pulse_idle(sl_pulse_writer_t *writer, uint32_t position,
                       uint64_t now_ns);
/** It lasts longer: nobody knows for how long. */
void sl_pulse_late(sl_pulse_writer_t *writer);
/** Ops run again. */
void sl_pulse_busy(sl_pulse_writer_t *writer, uint64_t now_ns);

/* ---- the guest: when an op may start ---- */

/** An op expected to take no longer may start in any idle time that is at
 *  least as long: should the host come back meanwhile, it takes the core. */
#define SL_PULSE_SHORT_NS UINT64_C(50000)
/** Longest wait without a look at the clock, and for the floor. */
#define SL_PULSE_LOOK_NS UINT64_C(10000000)
#define SL_PULSE_FLOOR_WAIT_NS UINT64_C(30000000000)
/** A guest that had more than its floor lately is not owed it at once. */
#define SL_PULSE_AHEAD_NS UINT64_C(200000000)

/** A slot as read at one instant. */
typedef struct sl_pulse_reading {
    uint64_t until_ns, since_ns, longest_ns;
} sl_pulse_reading_t;

void sl_pulse_read(const sl_pulse_slot_t *slot, sl_pulse_reading_t *reading);

/** Whether an op that takes `cost_ns` may start in that idle time: it ends
 *  within it; or it is longer than all of them and this one has just begun. */
int sl_pulse_fits(const sl_pulse_reading_t *reading, uint64_t cost_ns,
                  uint64_t now_ns);

/** What a device is owed, whatever the pages say. Not thread-safe. */
typedef struct sl_yield_law {
    double floor;      /**< least part of the time, above 0 to 1 */
    uint64_t enter_ns; /**< since when the op waits */
    uint64_t paid_ns;  /**< up to when it had its floor */
    int by_floor;      /**< the op that runs started by it */
} sl_yield_law_t;

void sl_yield_init(sl_yield_law_t *law, double floor);
/** An op is there. */
void sl_yield_enter(sl_yield_law_t *law, uint64_t now_ns);
/** Time until the op may start: 0 = now, else look again then at the latest,
 *  or when a host gets idle. */
uint64_t sl_yield_wait_ns(sl_yield_law_t *law,
                          const sl_pulse_reading_t *readings, int n,
                          uint64_t cost_ns, uint64_t now_ns);
/** The op that started has ended. */
void sl_yield_leave(sl_yield_law_t *law, uint64_t used_ns, uint64_t now_ns);

/* ---- slots that a device yields to ---- */

/** Another job's page; it is unmapped with its last reference. */
typedef struct sl_pulse_view {
    atomic_int n_refs;
    const sl_pulse_map_t *map; /**< owned */
} sl_pulse_view_t;

/** Takes the map. NULL when there is no memory: then it is unmapped. */
sl_pulse_view_t *sl_pulse_view_create(const sl_pulse_map_t *take_map);
void sl_pulse_view_release(sl_pulse_view_t *view); /* NULL is allowed */

typedef struct sl_yield_set {
    atomic_int n_refs;
    int n;
    sl_pulse_view_t *views[SL_PULSE_MAX_HOSTS];
    const sl_pulse_slot_t *slots[SL_PULSE_MAX_HOSTS];
} sl_yield_set_t;

/** An empty set; NULL when there is no memory. */
sl_yield_set_t *sl_yield_set_create(void);
/** Shares the view. Nothing happens when the set is full. */
void sl_yield_set_add(sl_yield_set_t *set, sl_pulse_view_t *view, int slot);
sl_yield_set_t *sl_yield_set_share(sl_yield_set_t *set); /* NULL is allowed */
void sl_yield_set_release(sl_yield_set_t *set);          /* NULL is allowed */

/** Sleep until the slot's device gets idle anew, `timeout_ns` at most; at
 *  once when its count is not `n_idles` any more. */
void sl_pulse_sleep(const sl_pulse_slot_t *slot, uint32_t n_idles,
                    uint64_t timeout_ns);

/* ---- op managers (op_pulse.c) ---- */

struct sl_op_manager;

/** The cores it is bound to; borrowed, NULL with *n_p 0 when it is not. */
const int *sl_op_manager_cores(const struct sl_op_manager *manager, int *n_p);

/** Publish the device's state in `slot` from now on; NULL = nowhere. */
void sl_op_manager_pulse_set(struct sl_op_manager *manager,
                             sl_pulse_slot_t *slot);
/** Start ops only in the idle times of the set's slots, but for `floor` of
 *  the time. Takes the set; NULL = at any time. */
void sl_op_manager_yield_set(struct sl_op_manager *manager,
                             sl_yield_set_t *take_set, double floor);

#endif /* SL_SCHEDULER_PULSE_H */
