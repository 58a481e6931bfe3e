/* SPDX-License-Identifier: Apache-2.0 */
/* The page: its file, what a host writes into it, and the wait for it. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* syscall */
#endif
#include "scheduler/pulse.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

_Static_assert(sizeof(sl_pulse_map_t) == SL_PULSE_FILE_BYTES,
               "the file's layout");
_Static_assert(offsetof(sl_pulse_slot_t, n_idles) == 24 &&
                   offsetof(sl_pulse_head_t, beat) == 16,
               "the file's layout");

/* ---- the file ---- */

/* Not writable by name: a stray `>pulse` would take the page from under all
 * who have it mapped. Its blocks are taken here, as a store into a hole of a
 * full disk cannot fail in any good way. */
sl_status_t sl_pulse_create(int dir_fd, int n_slots, sl_pulse_map_t **map_p)
{
    sl_pulse_map_t *map;
    sl_status_t status;
    int fd, error, i;

    SL_ASSERT(n_slots >= 0 && n_slots <= SL_PULSE_SLOTS);
    (void)unlinkat(dir_fd, SL_PULSE_FILE, 0);
    fd = openat(dir_fd, SL_PULSE_FILE,
                O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0400);
    if (fd < 0) {
        SL_REFUSE(status, SL_ERR_IO, out, "cannot make %s: %s", SL_PULSE_FILE,
                  strerror(errno));
    }
    error = posix_fallocate(fd, 0, SL_PULSE_FILE_BYTES);
    if (error != 0) {
        SL_REFUSE(status, SL_ERR_IO, err_close, "no room for %s: %s",
                  SL_PULSE_FILE, strerror(error));
    }
    map = mmap(NULL, SL_PULSE_FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED,
               fd, 0);
    if (map == MAP_FAILED) {
        SL_REFUSE(status, SL_ERR_IO, err_close, "cannot map %s: %s",
                  SL_PULSE_FILE, strerror(errno));
    }
    (void)close(fd);
    for (i = 0; i < SL_PULSE_SLOTS; i++) {
        atomic_store_explicit(&map->slots[i].until_ns, SL_PULSE_UNKNOWN,
                              memory_order_relaxed);
    }
    map->head.version = SL_PULSE_VERSION;
    map->head.n_slots = (uint32_t)n_slots;
    map->head.magic = SL_PULSE_MAGIC;
    *map_p = map;
    return SL_OK;

err_close:
    (void)close(fd);
    (void)unlinkat(dir_fd, SL_PULSE_FILE, 0);
out:
    return status;
}

void sl_pulse_unmap(const sl_pulse_map_t *map)
{
    if (map != NULL) {
        /* the mapping's address is the caller's, whatever it may write */
        (void)munmap((void *)(uintptr_t)map, SL_PULSE_FILE_BYTES);
    }
}

static sl_status_t check_file(int fd)
{
    sl_status_t status = SL_OK;
    struct stat info;

    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        SL_REFUSE(status, SL_ERR_IO, out, "%s is not a regular file",
                  SL_PULSE_FILE);
    }
    if (info.st_uid != geteuid() && info.st_uid != 0) {
        SL_REFUSE(status, SL_ERR_IO, out, "%s belongs to user %ld",
                  SL_PULSE_FILE, (long)info.st_uid);
    }
    if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
        SL_REFUSE(status, SL_ERR_IO, out,
                  "%s can be written by group or others (mode %04o)",
                  SL_PULSE_FILE, (unsigned)(info.st_mode & 07777));
    }
    if (info.st_size != SL_PULSE_FILE_BYTES) {
        SL_REFUSE(status, SL_ERR_CORRUPT, out,
                  "%s has %lld bytes; a page has %d", SL_PULSE_FILE,
                  (long long)info.st_size, (int)SL_PULSE_FILE_BYTES);
    }
out:
    return status;
}

sl_status_t sl_pulse_open(int dir_fd, const sl_pulse_map_t **map_p,
                          int *n_slots_p)
{
    const int fd =
        openat(dir_fd, SL_PULSE_FILE,
               O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    const sl_pulse_map_t *map;
    sl_status_t status;
    uint32_t n_slots;

    if (fd < 0) {
        SL_REFUSE(status, errno == ENOENT ? SL_ERR_NOT_FOUND : SL_ERR_IO, out,
                  "cannot open %s: %s", SL_PULSE_FILE, strerror(errno));
    }
    SL_TRY(status, check_file(fd), out_close);
    map = mmap(NULL, SL_PULSE_FILE_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        SL_REFUSE(status, SL_ERR_IO, out_close, "cannot map %s: %s",
                  SL_PULSE_FILE, strerror(errno));
    }
    n_slots = map->head.n_slots;
    if (map->head.magic != SL_PULSE_MAGIC ||
        map->head.version != SL_PULSE_VERSION || n_slots > SL_PULSE_SLOTS) {
        sl_pulse_unmap(map);
        SL_REFUSE(status, SL_ERR_CORRUPT, out_close,
                  "%s is no page of version %d", SL_PULSE_FILE,
                  (int)SL_PULSE_VERSION);
    }
    *map_p = map;
    *n_slots_p = (int)n_slots;
out_close:
    (void)close(fd);
out:
    return status;
}

/* ---- the host ---- */

static size_t index_of(uint32_t position, uint32_t place)
{
    const uint32_t key = position * SL_PULSE_PLACES + place;

    return (size_t)(key * UINT32_C(2654435761) >> 22) % SL_PULSE_POSITIONS;
}

/* The n-th idle time at a position: while it waits for a tensor, say, and
 * then for the op that uses it. */
static void find_place(sl_pulse_writer_t *writer, uint32_t position)
{
    if (position != writer->position) {
        writer->position = position;
        writer->n_before = 0;
    } else if (writer->n_before < SL_PULSE_PLACES - 1) {
        writer->n_before++;
    }
    writer->index = index_of(position, writer->n_before);
}

/* Fast down and slowly up: rather too short than too long, as the host pays
 * for what is too long. A single pause counts little. */
static void learn(uint64_t *expected, uint64_t length_ns)
{
    const uint64_t before = *expected;
    uint64_t step;

    if (before == 0) {
        *expected = length_ns / 2 + 1;
    } else if (length_ns < before) {
        *expected = before - (before - length_ns) / 2;
    } else {
        step = (length_ns - before) / 8;
        *expected = before + (step < before / 4 + SL_PULSE_SHORT_NS
                                  ? step
                                  : before / 4 + SL_PULSE_SHORT_NS);
    }
}

static void wake_guests(sl_pulse_slot_t *slot)
{
#ifdef __linux__
    (void)syscall(SYS_futex, &slot->n_idles, FUTEX_WAKE, INT_MAX, NULL, NULL,
                  0);
#else
    (void)slot;
#endif
}

uint64_t sl_pulse_idle(sl_pulse_writer_t *writer, uint32_t position,
                       uint64_t now_ns)
{
    sl_pulse_slot_t *slot = writer->slot;
    uint64_t expected;

    if (slot == NULL) {
        return 0;
    }
    writer->is_idle = 1;
    writer->is_learning = position != 0;
    find_place(writer, position);
    writer->since_ns = now_ns;
    expected = position != 0 ? writer->expected[writer->index] : 0;
    atomic_store_explicit(&slot->since_ns, now_ns, memory_order_relaxed);
    atomic_store_explicit(&slot->longest_ns, writer->longest_ns,
                          memory_order_relaxed);
    atomic_store_explicit(&slot->until_ns,
                          expected > 0 ? now_ns + expected : SL_PULSE_UNKNOWN,
                          memory_order_release);
    (void)atomic_fetch_add_explicit(&slot->n_idles, 1, memory_order_release);
    if (expected > 0 && expected < SL_PULSE_SHORT_NS) {
        return 2 * SL_PULSE_SHORT_NS;
    }
    wake_guests(slot);
    return 0;
}

void sl_pulse_late(sl_pulse_writer_t *writer)
{
    sl_pulse_slot_t *slot = writer->slot;

    if (slot != NULL && writer->is_idle) {
        atomic_store_explicit(&slot->until_ns, SL_PULSE_UNKNOWN,
                              memory_order_release);
        (void)atomic_fetch_add_explicit(&slot->n_idles, 1,
                                        memory_order_release);
        wake_guests(slot);
    }
}

void sl_pulse_busy(sl_pulse_writer_t *writer, uint64_t now_ns)
{
    const uint64_t length_ns = now_ns - writer->since_ns;

    if (writer->slot == NULL || !writer->is_idle) {
        return;
    }
    atomic_store_explicit(&writer->slot->until_ns, 0, memory_order_release);
    atomic_store_explicit(&writer->slot->since_ns, now_ns,
                          memory_order_relaxed);
    writer->is_idle = 0;
    if (writer->is_learning && now_ns >= writer->since_ns) {
        uint64_t *expected = &writer->expected[writer->index];

        learn(expected, length_ns);
        writer->longest_ns -= writer->longest_ns / 64;
        if (*expected > writer->longest_ns) {
            writer->longest_ns = *expected;
        }
    }
}

/* ---- pages of others ---- */

sl_pulse_view_t *sl_pulse_view_create(const sl_pulse_map_t *take_map)
{
    sl_pulse_view_t *view = malloc(sizeof(*view));

    if (view == NULL) {
        sl_pulse_unmap(take_map);
        return NULL;
    }
    atomic_init(&view->n_refs, 1);
    view->map = take_map;
    return view;
}

void sl_pulse_view_release(sl_pulse_view_t *view)
{
    if (view != NULL && atomic_fetch_sub(&view->n_refs, 1) == 1) {
        sl_pulse_unmap(view->map);
        free(view);
    }
}

sl_yield_set_t *sl_yield_set_create(void)
{
    sl_yield_set_t *set = calloc(1, sizeof(*set));

    if (set != NULL) {
        atomic_init(&set->n_refs, 1);
    }
    return set;
}

void sl_yield_set_add(sl_yield_set_t *set, sl_pulse_view_t *view, int slot)
{
    if (set->n < SL_PULSE_MAX_HOSTS && slot >= 0 && slot < SL_PULSE_SLOTS) {
        (void)atomic_fetch_add(&view->n_refs, 1);
        set->views[set->n] = view;
        set->slots[set->n] = &view->map->slots[slot];
        set->n++;
    }
}

sl_yield_set_t *sl_yield_set_share(sl_yield_set_t *set)
{
    if (set != NULL) {
        (void)atomic_fetch_add(&set->n_refs, 1);
    }
    return set;
}

void sl_yield_set_release(sl_yield_set_t *set)
{
    int i;

    if (set != NULL && atomic_fetch_sub(&set->n_refs, 1) == 1) {
        for (i = 0; i < set->n; i++) {
            sl_pulse_view_release(set->views[i]);
        }
        free(set);
    }
}

void sl_pulse_read(const sl_pulse_slot_t *slot, sl_pulse_reading_t *reading)
{
    reading->until_ns =
        atomic_load_explicit(&slot->until_ns, memory_order_acquire);
    reading->since_ns =
        atomic_load_explicit(&slot->since_ns, memory_order_relaxed);
    reading->longest_ns =
        atomic_load_explicit(&slot->longest_ns, memory_order_relaxed);
}

void sl_pulse_sleep(const sl_pulse_slot_t *slot, uint32_t n_idles,
                    uint64_t timeout_ns)
{
    const struct timespec timeout = {
        .tv_sec = (time_t)(timeout_ns / UINT64_C(1000000000)),
        .tv_nsec = (long)(timeout_ns % UINT64_C(1000000000))};

#ifdef __linux__
    (void)syscall(SYS_futex, &slot->n_idles, FUTEX_WAIT, n_idles, &timeout,
                  NULL, 0);
#else
    const struct timespec nap = {.tv_nsec = 200000};

    (void)slot;
    (void)n_idles;
    (void)nanosleep(timeout_ns < 200000 ? &timeout : &nap, NULL);
#endif
}
