/* SPDX-License-Identifier: Apache-2.0 */
/* The pulse's page and law: the file, what is learned, and in virtual time
 * when a guest's op starts, also with pages full of nonsense. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "scheduler/pulse.h"
#include "tests/support/sl_test.h"

#define S UINT64_C(1000000000)
#define MS UINT64_C(1000000)
#define US UINT64_C(1000)

/* ---- the file ---- */

static int open_folder(void)
{
    const int fd = open(sl_test_directory(), O_RDONLY | O_DIRECTORY);

    assert_true(fd >= 0);
    return fd;
}

static void the_page_is_made_private_and_read_by_others(void **state)
{
    const int fd = open_folder();
    const sl_pulse_map_t *seen = NULL;
    sl_pulse_map_t *map = NULL;
    sl_pulse_reading_t reading;
    struct stat info;
    int n_slots = 0;

    (void)state;
    assert_int_equal(sl_pulse_open(fd, &seen, &n_slots), SL_ERR_NOT_FOUND);
    sl_assert_ok(sl_pulse_create(fd, 3, &map));
    assert_int_equal(fstatat(fd, SL_PULSE_FILE, &info, 0), 0);
    assert_int_equal(info.st_size, 8320);
    assert_int_equal(info.st_mode & 07777, 0400);
    sl_assert_ok(sl_pulse_open(fd, &seen, &n_slots));
    assert_int_equal(n_slots, 3);
    assert_true(seen != map);
    assert_int_equal((const char *)&seen->slots[2] - (const char *)seen, 384);
    sl_pulse_read(&seen->slots[1], &reading);
    assert_true(reading.until_ns == SL_PULSE_UNKNOWN); /* nothing said yet */
    atomic_store(&map->slots[1].until_ns, 77);
    sl_pulse_read(&seen->slots[1], &reading);
    assert_true(reading.until_ns == 77);
    /* another one under its name: who has the old one keeps it */
    sl_pulse_unmap(map);
    sl_assert_ok(sl_pulse_create(fd, 1, &map));
    sl_pulse_read(&seen->slots[1], &reading);
    assert_true(reading.until_ns == 77);
    sl_pulse_unmap(seen);
    sl_pulse_unmap(map);
    (void)close(fd);
}

static void refuse(int fd, sl_status_t status, const char *why)
{
    const sl_pulse_map_t *map = NULL;
    int n_slots = 0;

    assert_int_equal(sl_pulse_open(fd, &map, &n_slots), status);
    sl_assert_contains(sl_last_error(), why);
    assert_null(map);
}

static void write_page(int fd, const sl_pulse_map_t *page, size_t n_bytes)
{
    int file;

    (void)unlinkat(fd, SL_PULSE_FILE, 0);
    file = openat(fd, SL_PULSE_FILE, O_WRONLY | O_CREAT, 0600);
    assert_true(file >= 0);
    assert_int_equal(write(file, page, n_bytes), (ssize_t)n_bytes);
    assert_int_equal(close(file), 0);
}

static void a_file_that_is_no_page_is_refused(void **state)
{
    const int fd = open_folder();
    sl_pulse_map_t page;

    (void)state;
    memset(&page, 0, sizeof(page));
    page.head.magic = SL_PULSE_MAGIC;
    page.head.version = SL_PULSE_VERSION + 1;
    write_page(fd, &page, sizeof(page));
    refuse(fd, SL_ERR_CORRUPT, "no page of version");
    page.head.version = SL_PULSE_VERSION;
    page.head.n_slots = SL_PULSE_SLOTS + 1;
    write_page(fd, &page, sizeof(page));
    refuse(fd, SL_ERR_CORRUPT, "no page of version");
    page.head.n_slots = 1;
    page.head.magic++;
    write_page(fd, &page, sizeof(page));
    refuse(fd, SL_ERR_CORRUPT, "no page of version");
    page.head.magic--;
    write_page(fd, &page, sizeof(page) - 1);
    refuse(fd, SL_ERR_CORRUPT, "8319 bytes");
    write_page(fd, &page, sizeof(page));
    assert_int_equal(fchmodat(fd, SL_PULSE_FILE, 0666, 0), 0);
    refuse(fd, SL_ERR_IO, "written by group or others");
    assert_int_equal(renameat(fd, SL_PULSE_FILE, fd, "elsewhere"), 0);
    assert_int_equal(symlinkat("elsewhere", fd, SL_PULSE_FILE), 0);
    refuse(fd, SL_ERR_IO, "cannot open");
    assert_int_equal(unlinkat(fd, SL_PULSE_FILE, 0), 0);
    assert_int_equal(mkfifoat(fd, SL_PULSE_FILE, 0600), 0);
    refuse(fd, SL_ERR_IO, "not a regular file");
    assert_int_equal(unlinkat(fd, SL_PULSE_FILE, 0), 0);
    assert_int_equal(mkdirat(fd, SL_PULSE_FILE, 0700), 0);
    refuse(fd, SL_ERR_IO, "not a regular file");
    assert_int_equal(unlinkat(fd, SL_PULSE_FILE, AT_REMOVEDIR), 0);
    if (geteuid() == 0) { /* only root can make a file of another user */
        write_page(fd, &page, sizeof(page));
        assert_int_equal(fchownat(fd, SL_PULSE_FILE, 12345, 12345, 0), 0);
        refuse(fd, SL_ERR_IO, "belongs to user 12345");
    }
    (void)close(fd);
}

static void a_page_lives_as_long_as_somebody_has_it(void **state)
{
    const int fd = open_folder();
    const sl_pulse_map_t *seen = NULL;
    sl_pulse_map_t *map = NULL;
    sl_yield_set_t *set = sl_yield_set_create();
    sl_pulse_view_t *view;
    int i, n_slots = 0;

    (void)state;
    assert_non_null(set);
    sl_assert_ok(sl_pulse_create(fd, 2, &map));
    sl_assert_ok(sl_pulse_open(fd, &seen, &n_slots));
    view = sl_pulse_view_create(seen);
    assert_non_null(view);
    sl_yield_set_add(set, view, SL_PULSE_SLOTS);
    sl_yield_set_add(set, view, -1);
    assert_int_equal(set->n, 0);
    for (i = 0; i < SL_PULSE_MAX_HOSTS + 1; i++) {
        sl_yield_set_add(set, view, i);
    }
    assert_int_equal(set->n, SL_PULSE_MAX_HOSTS);
    sl_pulse_view_release(view);
    assert_ptr_equal(sl_yield_set_share(set), set);
    sl_yield_set_release(set);
    assert_true(atomic_load(&set->slots[0]->until_ns) == SL_PULSE_UNKNOWN);
    sl_yield_set_release(set);
    sl_yield_set_release(NULL);
    sl_pulse_view_release(NULL);
    sl_pulse_unmap(map);
    (void)close(fd);
}

/* ---- what a host learns ---- */

static sl_pulse_slot_t slot;
static sl_pulse_writer_t writer;

static void writer_init(void)
{
    memset(&slot, 0, sizeof(slot));
    memset(&writer, 0, sizeof(writer));
    writer.slot = &slot;
}

/* One idle time. @return how long it was said to last; 0 = not known */
static uint64_t idle_once(uint32_t position, uint64_t *now_ns, uint64_t ns)
{
    sl_pulse_reading_t reading;

    writer.n_before = 0;
    writer.position = 0; /* another was between */
    (void)sl_pulse_idle(&writer, position, *now_ns);
    sl_pulse_read(&slot, &reading);
    assert_true(reading.since_ns == *now_ns);
    *now_ns += ns;
    sl_pulse_busy(&writer, *now_ns);
    assert_true(atomic_load(&slot.until_ns) == 0);
    return reading.until_ns == SL_PULSE_UNKNOWN
               ? 0
               : reading.until_ns - reading.since_ns;
}

static void idle_times_are_learned_by_position(void **state)
{
    uint64_t now_ns = S;
    uint64_t told_ns;
    int i;

    (void)state;
    writer_init();
    assert_int_equal(idle_once(0, &now_ns, 9 * MS), 0);
    assert_int_equal(idle_once(0, &now_ns, 9 * MS), 0); /* has no place */
    assert_int_equal(idle_once(1, &now_ns, 3 * MS), 0);
    assert_int_equal(idle_once(2, &now_ns, 100 * US), 0);
    for (i = 0; i < 40; i++) {
        (void)idle_once(1, &now_ns, 3 * MS);
        (void)idle_once(2, &now_ns, 100 * US);
    }
    told_ns = idle_once(1, &now_ns, 3 * MS);
    assert_in_range(told_ns, 29 * MS / 10, 3 * MS);
    told_ns = idle_once(2, &now_ns, 100 * US);
    assert_in_range(told_ns, 95 * US, 100 * US);
    assert_in_range(atomic_load(&slot.longest_ns), 29 * MS / 10, 3 * MS);
    assert_int_equal(atomic_load(&slot.n_idles), 86);
}

/* As one evaluation, or a night under suspension, between two steps. */
static void one_pause_changes_little(void **state)
{
    uint64_t now_ns = S;
    int i;

    (void)state;
    writer_init();
    for (i = 0; i < 40; i++) {
        (void)idle_once(7, &now_ns, MS);
    }
    (void)idle_once(7, &now_ns, 40000 * S);
    assert_in_range(idle_once(7, &now_ns, MS), 1 * MS, 13 * MS / 10 + 1);
    /* shorter ones are believed at once */
    for (i = 0; i < 6; i++) {
        (void)idle_once(7, &now_ns, 100 * US);
    }
    assert_in_range(idle_once(7, &now_ns, MS), 90 * US, 130 * US);
}

/* While it waits for a tensor, and then for the op that uses it. */
static void idle_times_of_one_position_are_told_apart(void **state)
{
    const uint64_t lengths_ns[] = {4 * MS, 10 * US, 300 * US};
    uint64_t now_ns = S;
    uint64_t late_ns = 0;
    int i, k;

    (void)state;
    writer_init();
    for (i = 0; i < 60; i++) {
        for (k = 0; k < 3; k++) {
            sl_pulse_reading_t reading;

            late_ns = sl_pulse_idle(&writer, 9, now_ns);
            sl_pulse_read(&slot, &reading);
            if (i == 59) {
                assert_in_range(reading.until_ns - reading.since_ns,
                                9 * lengths_ns[k] / 10, lengths_ns[k]);
                assert_int_equal(late_ns, k == 1 ? 100 * US : 0);
            }
            now_ns += lengths_ns[k];
            sl_pulse_busy(&writer, now_ns);
        }
        (void)sl_pulse_idle(&writer, 10, now_ns);
        sl_pulse_busy(&writer, now_ns + MS);
    }
    /* the short one is not short this time: then nobody knows */
    (void)sl_pulse_idle(&writer, 9, now_ns);
    sl_pulse_busy(&writer, now_ns);
    (void)sl_pulse_idle(&writer, 9, now_ns);
    i = (int)atomic_load(&slot.n_idles);
    assert_true(atomic_load(&slot.until_ns) < now_ns + 50 * US);
    sl_pulse_late(&writer);
    assert_true(atomic_load(&slot.until_ns) == SL_PULSE_UNKNOWN);
    assert_int_equal(atomic_load(&slot.n_idles), i + 1);
    sl_pulse_busy(&writer, now_ns + MS);
    sl_pulse_late(&writer); /* too late */
    assert_true(atomic_load(&slot.until_ns) == 0);
}

static void without_a_page_nothing_is_published(void **state)
{
    (void)state;
    writer_init();
    writer.slot = NULL;
    assert_int_equal(sl_pulse_idle(&writer, 1, S), 0);
    sl_pulse_late(&writer);
    sl_pulse_busy(&writer, 2 * S);
    assert_int_equal(writer.is_idle, 0);
}

/* ---- when a guest's op starts ---- */

static int fits(uint64_t since_ns, uint64_t until_ns, uint64_t longest_ns,
                uint64_t cost_ns, uint64_t now_ns)
{
    const sl_pulse_reading_t reading = {
        .until_ns = until_ns, .since_ns = since_ns, .longest_ns = longest_ns};

    return sl_pulse_fits(&reading, cost_ns, now_ns);
}

static void an_op_starts_where_it_fits(void **state)
{
    const uint64_t from = S, to = S + 4 * MS;

    (void)state;
    assert_false(fits(from, 0, 4 * MS, 1, from)); /* busy */
    assert_true(fits(from, SL_PULSE_UNKNOWN, 0, 9 * S, from));
    assert_true(fits(from, to, 4 * MS, 4 * MS, from));
    assert_true(fits(from, to, 4 * MS, 1 * MS, from + 3 * MS));
    assert_false(fits(from, to, 4 * MS, 1 * MS, from + 3 * MS + 1));
    assert_false(fits(from, to, 4 * MS, 4 * MS, from + 1));
    /* a short one always: the host takes the core from it */
    assert_true(fits(from, to, 4 * MS, 50 * US, to - 1));
    assert_true(fits(from, to, 4 * MS, 50 * US, to + 1));
    /* but not where it could hardly begin */
    assert_false(fits(from, from + 40 * US, 4 * MS, 45 * US, from));
    assert_true(fits(from, from + 40 * US, 4 * MS, 30 * US, from));
    /* longer than any: at the beginning */
    assert_true(fits(from, to, 4 * MS, 9 * MS, from));
    assert_true(fits(from, to, 4 * MS, 9 * MS, from + 500 * US));
    assert_false(fits(from, to, 4 * MS, 9 * MS, from + 600 * US));
    /* longer than this one, but another takes it */
    assert_false(fits(from, to, 20 * MS, 9 * MS, from));
    /* an end that did not come is none */
    assert_false(fits(from, to, 4 * MS, 1 * MS, to));
    assert_false(fits(from, to, 4 * MS, 1 * MS, to + 4 * MS));
    assert_true(fits(from, to, 4 * MS, 1 * MS, to + 5 * MS));
}

/* A guest that always has an op, on a clock that moves by what ops and waits
 * take. */
typedef struct guest {
    sl_yield_law_t law;
    uint64_t now_ns;
    uint64_t used_ns;
    uint64_t look_ns; /* a host's change is seen so soon; 0 = at the end */
    uint64_t random;
} guest_t;

static uint64_t next_random(guest_t *guest)
{
    guest->random = guest->random * UINT64_C(6364136223846793005) +
                    UINT64_C(1442695040888963407);
    return guest->random >> 11;
}

static void guest_init(guest_t *guest, double floor)
{
    memset(guest, 0, sizeof(*guest));
    guest->now_ns = 7 * S;
    guest->random = 1;
    sl_yield_init(&guest->law, floor);
}

typedef void (*host_fn)(guest_t *guest, sl_pulse_reading_t *readings, int n);

static void run_op(guest_t *guest, host_fn host, int n, uint64_t op_ns)
{
    sl_pulse_reading_t readings[SL_PULSE_MAX_HOSTS];
    uint64_t wait_ns;

    sl_yield_enter(&guest->law, guest->now_ns);
    do {
        host(guest, readings, n);
        wait_ns =
            sl_yield_wait_ns(&guest->law, readings, n, op_ns, guest->now_ns);
        assert_true(wait_ns <= SL_PULSE_LOOK_NS);
        guest->now_ns += guest->look_ns > 0 && wait_ns > guest->look_ns
                             ? guest->look_ns
                             : wait_ns;
    } while (wait_ns > 0);
    guest->now_ns += op_ns;
    guest->used_ns += op_ns;
    sl_yield_leave(&guest->law, op_ns, guest->now_ns);
}

static void always_busy(guest_t *guest, sl_pulse_reading_t *readings, int n)
{
    (void)guest;
    memset(readings, 0, (size_t)n * sizeof(*readings));
}

/* Whatever the pages say, and not more when they say busy. */
static void a_guest_has_its_floor(void **state)
{
    static const uint64_t lengths_ns[] = {US, 50 * US, MS, 100 * MS};
    static const double floors[] = {0.01, 0.05, 0.5};
    size_t i, k;

    (void)state;
    for (i = 0; i < sizeof(floors) / sizeof(*floors); i++) {
        for (k = 1; k < sizeof(lengths_ns) / sizeof(*lengths_ns); k++) {
            guest_t guest;
            double share;

            guest_init(&guest, floors[i]);
            while (guest.now_ns < 2007 * S) {
                run_op(&guest, always_busy, 2, lengths_ns[k]);
            }
            share = (double)guest.used_ns / (double)(guest.now_ns - 7 * S);
            assert_true(share >= 0.99 * floors[i] / (1.0 + floors[i]));
            assert_true(share <= 1.01 * floors[i]);
        }
    }
}

static void any_readings(guest_t *guest, sl_pulse_reading_t *readings, int n)
{
    int i;

    for (i = 0; i < n; i++) {
        uint64_t *words[] = {&readings[i].until_ns, &readings[i].since_ns,
                             &readings[i].longest_ns};
        size_t k;

        for (k = 0; k < 3; k++) {
            const uint64_t kind = next_random(guest) % 5;

            *words[k] = kind == 0   ? 0
                        : kind == 1 ? UINT64_MAX - next_random(guest) % 3
                        : kind == 2 ? next_random(guest) << 11
                        : kind == 3 ? guest->now_ns - 50 * MS +
                                          next_random(guest) % (100 * MS)
                                    : next_random(guest) % 100;
        }
    }
}

/* 1e5 ops, each with pages full of nonsense that changes all the time. */
static void nonsense_holds_no_guest_past_its_floor(void **state)
{
    guest_t guest;
    int i;

    (void)state;
    guest_init(&guest, 0.01);
    for (i = 0; i < 100000; i++) {
        const uint64_t op_ns = next_random(&guest) % (2 * MS);
        const uint64_t begin_ns = guest.now_ns;
        const uint64_t least_ns = op_ns > 50 * US ? op_ns : 50 * US;

        run_op(&guest, any_readings, 1 + i % SL_PULSE_MAX_HOSTS, op_ns);
        assert_true(guest.now_ns - begin_ns <=
                    SL_PULSE_AHEAD_NS + 100 * least_ns + op_ns + 10);
    }
}

static void no_op_waits_for_ever(void **state)
{
    guest_t guest;

    (void)state;
    guest_init(&guest, 0.01);
    run_op(&guest, always_busy, 1, 40000 * S); /* its mean may be wrong */
    assert_true(guest.now_ns - guest.used_ns <= 7 * S + 31 * S);
    guest_init(&guest, -1.0);
    run_op(&guest, always_busy, 1, MS); /* no floor at all is none */
    assert_true(guest.now_ns - guest.used_ns == 7 * S + MS);
}

/* A host that is busy for 6 ms and idle for 4, on and on, and says so. */
static void periodic(guest_t *guest, sl_pulse_reading_t *readings, int n)
{
    const uint64_t at_ns = guest->now_ns % (10 * MS);
    const uint64_t begin_ns = guest->now_ns - at_ns;
    int i;

    for (i = 0; i < n; i++) {
        readings[i].longest_ns = 4 * MS;
        readings[i].since_ns = at_ns < 6 * MS ? begin_ns : begin_ns + 6 * MS;
        readings[i].until_ns = at_ns < 6 * MS ? 0 : begin_ns + 10 * MS;
    }
}

/* Ops of a bubble end within it, and fill it. The wait is asked for again
 * after at most 10 us, as the futex would. */
static void ops_fill_the_idle_times_and_no_more(void **state)
{
    static const uint64_t lengths_ns[] = {60 * US, 500 * US, 2 * MS, 4 * MS};
    size_t k;

    (void)state;
    for (k = 0; k < sizeof(lengths_ns) / sizeof(*lengths_ns); k++) {
        sl_pulse_reading_t reading;
        uint64_t outside_ns = 0;
        guest_t guest;

        guest_init(&guest, 0.01);
        while (guest.now_ns < 37 * S) {
            const uint64_t op_ns = lengths_ns[k];
            uint64_t wait_ns;

            sl_yield_enter(&guest.law, guest.now_ns);
            for (;;) {
                periodic(&guest, &reading, 1);
                wait_ns = sl_yield_wait_ns(&guest.law, &reading, 1, op_ns,
                                           guest.now_ns);
                if (wait_ns == 0) {
                    break;
                }
                guest.now_ns += wait_ns < 10 * US ? wait_ns : 10 * US;
            }
            guest.used_ns += op_ns;
            outside_ns += reading.until_ns == 0 ? op_ns : 0;
            guest.now_ns += op_ns;
            sl_yield_leave(&guest.law, op_ns, guest.now_ns);
        }
        assert_true(guest.used_ns >= 9 * 12 * S / 10);
        assert_true(outside_ns <= guest.used_ns / 1000);
    }
}

static void periodic_then_busy(guest_t *guest, sl_pulse_reading_t *readings,
                               int n)
{
    if (guest->now_ns < 8 * S) {
        periodic(guest, readings, n);
    } else {
        always_busy(guest, readings, n);
    }
}

/* Its guests are out of the way before the next op, and keep the floor. */
static void a_host_whose_load_steps_up_has_its_device_at_once(void **state)
{
    uint64_t before_ns;
    guest_t guest;

    (void)state;
    guest_init(&guest, 0.01);
    guest.look_ns = 10 * US;
    while (guest.now_ns < 8 * S) {
        run_op(&guest, periodic_then_busy, 1, 100 * US);
    }
    assert_true(guest.used_ns >= 300 * MS);
    before_ns = guest.used_ns;
    while (guest.now_ns < 9 * S) {
        run_op(&guest, periodic_then_busy, 1, 100 * US);
    }
    assert_in_range(guest.used_ns - before_ns, 7 * MS, 10 * MS + 100 * US);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(the_page_is_made_private_and_read_by_others),
        sl_unit_test(a_file_that_is_no_page_is_refused),
        sl_unit_test(a_page_lives_as_long_as_somebody_has_it),
        sl_unit_test(idle_times_are_learned_by_position),
        sl_unit_test(one_pause_changes_little),
        sl_unit_test(idle_times_of_one_position_are_told_apart),
        sl_unit_test(without_a_page_nothing_is_published),
        sl_unit_test(an_op_starts_where_it_fits),
        sl_unit_test(a_guest_has_its_floor),
        sl_unit_test(nonsense_holds_no_guest_past_its_floor),
        sl_unit_test(no_op_waits_for_ever),
        sl_unit_test(ops_fill_the_idle_times_and_no_more),
        sl_unit_test(a_host_whose_load_steps_up_has_its_device_at_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
