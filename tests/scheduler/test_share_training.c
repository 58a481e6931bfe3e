/* SPDX-License-Identifier: Apache-2.0 */
/* Training under shares: the same bits, and no stage gives up on another that
 * is suspended. */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "scheduler/pulse.h"
#include "tests/engine/engine_fixture.h"

enum {
    N_STEPS = 4,
    ROWS = 8,
    HALT_MS = 200
};

/* What a person or coordinator does to the devices while a job trains. */
typedef struct hand {
    const sl_device_set_t *devices;
    atomic_int is_over;
    int n_refused;         /* shares */
    uint64_t n_run_halted; /* ops that ran while nothing should */
    pthread_t thread;
} hand_t;

static void pause_ms(long ms)
{
    const struct timespec nap = {.tv_nsec = ms * 1000000};

    (void)nanosleep(&nap, NULL);
}

static void set(hand_t *hand, int d, double percent)
{
    hand->n_refused +=
        sl_op_manager_share_set(hand->devices->devices[d].ops, percent,
                                SL_SHARE_TOKEN_BUCKET) != SL_OK;
}

/* Shares move all the time, in no order, one device apart from the other. */
static void *move_shares(void *arg)
{
    hand_t *hand = arg;
    int i;

    for (i = 0; !atomic_load(&hand->is_over); i++) {
        set(hand, i % 2, 5 + i * 37 % 95);
        pause_ms(1);
    }
    set(hand, 0, 100);
    set(hand, 1, 100);
    return NULL;
}

static uint64_t n_run(const hand_t *hand, int d)
{
    sl_op_stats_t stats;

    sl_op_manager_stats(hand->devices->devices[d].ops, &stats);
    return stats.n_run;
}

/* The last stage is suspended: the first one comes to a halt as well, and both
 * go on when the share is raised. */
static void *resume_last(void *arg)
{
    hand_t *hand = arg;
    int i;

    for (i = 0; i < 50 && (i == 0 || hand->n_run_halted > 0); i++) {
        const uint64_t before = n_run(hand, 0) + n_run(hand, 1);

        pause_ms(HALT_MS);
        hand->n_run_halted = n_run(hand, 0) + n_run(hand, 1) - before;
    }
    set(hand, 1, 100);
    return NULL;
}

static uint64_t train(sl_model_t *model, int n_devices, hand_t *hand,
                      void *(*act)(void *))
{
    const fixture_run_t run = {.model = model,
                               .n_devices = n_devices,
                               .n_stages = n_devices,
                               .rows = ROWS,
                               .n_micro = 4,
                               .schedule = SL_SCHEDULE_1F1B};
    sl_device_set_t *devices = NULL;
    sl_engine_t *engine = NULL;
    uint64_t hash = 0;
    uint64_t start_ns;
    int step;

    fixture_engine(&run, &devices, &engine);
    hand->devices = devices;
    atomic_store(&hand->is_over, 0);
    if (act == resume_last) {
        set(hand, 1, 0);
    }
    if (act != NULL) {
        assert_int_equal(pthread_create(&hand->thread, NULL, act, hand), 0);
    }
    start_ns = sl_clock_ns();
    for (step = 0; step < N_STEPS; step++) {
        const sl_batch_t batch = fixture_batch(model, ROWS, step, 0);
        sl_step_report_t report;

        sl_assert_ok(sl_engine_step(engine, &batch, &report));
    }
    if (act != NULL) {
        atomic_store(&hand->is_over, 1);
        assert_int_equal(pthread_join(hand->thread, NULL), 0);
    }
    if (act == resume_last) {
        assert_true(sl_clock_ns() - start_ns >= HALT_MS * UINT64_C(1000000));
    }
    assert_int_equal(hand->n_refused, 0);
    assert_int_equal(hand->n_run_halted, 0);
    sl_assert_ok(sl_engine_state_hash(engine, &hash));
    sl_engine_destroy(engine);
    sl_device_set_destroy(devices);
    return hash;
}

static void shares_do_not_change_results(void **state)
{
    sl_model_t *model = fixture_gpt();
    hand_t hand = {0};
    const uint64_t free_hash = train(model, 2, &hand, NULL);

    (void)state;
    assert_true(train(model, 1, &hand, NULL) == free_hash);
    assert_true(train(model, 2, &hand, move_shares) == free_hash);
    sl_model_destroy(model);
}

static void a_suspended_stage_holds_its_peers(void **state)
{
    sl_model_t *model = fixture_mlp();
    hand_t hand = {0};
    const uint64_t free_hash = train(model, 2, &hand, NULL);

    (void)state;
    assert_true(train(model, 2, &hand, resume_last) == free_hash);
    sl_model_destroy(model);
}

/* A host that works and rests: works until the guest has waited, and then
 * whatever the guest does. */
typedef struct host {
    sl_pulse_map_t *page;
    sl_pulse_writer_t writers[2];
    const sl_op_manager_t *guest;
    atomic_int is_over;
    pthread_t thread;
} host_t;

static void begin_work(host_t *host)
{
    int d;

    for (d = 0; d < 2; d++) {
        host->writers[d].slot = &host->page->slots[d];
        (void)sl_pulse_idle(&host->writers[d], 0, sl_clock_ns());
        sl_pulse_busy(&host->writers[d], sl_clock_ns());
    }
}

static uint64_t throttled_ns(const sl_op_manager_t *ops)
{
    sl_op_stats_t stats;

    sl_op_manager_stats(ops, &stats);
    return stats.throttled_ns;
}

static void *beat(void *arg)
{
    host_t *host = arg;
    int i, d;

    while (throttled_ns(host->guest) == 0 && !atomic_load(&host->is_over)) {
        pause_ms(1);
    }
    for (i = 0; !atomic_load(&host->is_over); i++) {
        for (d = 0; d < 2; d++) {
            if ((i * 7 + d * 3) % 5 < 3) {
                sl_pulse_busy(&host->writers[d], sl_clock_ns());
            } else {
                (void)sl_pulse_idle(&host->writers[d], 1 + (uint32_t)i % 3,
                                    sl_clock_ns());
            }
        }
        pause_ms(1);
    }
    return NULL;
}

static void follow(const sl_device_set_t *guest, int dir_fd, int d)
{
    sl_yield_set_t *set = sl_yield_set_create();
    const sl_pulse_map_t *map = NULL;
    sl_pulse_view_t *view;
    int n_slots = 0;

    assert_non_null(set);
    sl_assert_ok(sl_pulse_open(dir_fd, &map, &n_slots));
    view = sl_pulse_view_create(map);
    assert_non_null(view);
    sl_yield_set_add(set, view, d);
    sl_pulse_view_release(view);
    sl_op_manager_yield_set(guest->devices[d].ops, set, 0.05);
}

static void a_pulse_does_not_change_results(void **state)
{
    const int dir_fd = open(sl_test_directory(), O_RDONLY | O_DIRECTORY);
    sl_model_t *model = fixture_gpt();
    const fixture_run_t run = {.model = model,
                               .n_devices = 2,
                               .n_stages = 2,
                               .rows = ROWS,
                               .n_micro = 4,
                               .schedule = SL_SCHEDULE_1F1B};
    sl_device_set_t *devices = NULL;
    sl_engine_t *engine = NULL;
    hand_t hand = {0};
    const uint64_t free_hash = train(model, 2, &hand, NULL);
    static host_t host;
    uint64_t hash = 0;
    int d, step;

    (void)state;
    assert_true(dir_fd >= 0);
    sl_assert_ok(sl_pulse_create(dir_fd, 2, &host.page));
    fixture_engine(&run, &devices, &engine);
    host.guest = devices->devices[0].ops;
    begin_work(&host);
    for (d = 0; d < 2; d++) {
        follow(devices, dir_fd, d);
    }
    assert_int_equal(pthread_create(&host.thread, NULL, beat, &host), 0);
    for (step = 0; step < N_STEPS; step++) {
        const sl_batch_t batch = fixture_batch(model, ROWS, step, 0);
        sl_step_report_t report;

        sl_assert_ok(sl_engine_step(engine, &batch, &report));
    }
    atomic_store(&host.is_over, 1);
    assert_int_equal(pthread_join(host.thread, NULL), 0);
    sl_assert_ok(sl_engine_state_hash(engine, &hash));
    assert_true(hash == free_hash);
    assert_true(throttled_ns(host.guest) > 0);
    sl_engine_destroy(engine);
    sl_device_set_destroy(devices);
    sl_pulse_unmap(host.page);
    sl_model_destroy(model);
    (void)close(dir_fd);
}

static sl_status_t nothing_op(const void *args, void *stream)
{
    (void)args;
    (void)stream;
    return SL_OK;
}

static sl_status_t failing_op(const void *args, void *stream)
{
    (void)args;
    (void)stream;
    sl_last_error_set("not a number");
    return SL_ERR_NUMERIC;
}

/* One device fails while another is suspended with work in its queue: the
 * step ends with the failure, and the next one may succeed. */
static void a_failure_ends_a_suspended_peer(void **state)
{
    sl_model_t *model = fixture_mlp();
    const fixture_run_t run = {.model = model,
                               .n_devices = 2,
                               .n_stages = 2,
                               .rows = ROWS,
                               .n_micro = 4,
                               .schedule = SL_SCHEDULE_1F1B};
    const sl_batch_t batch = fixture_batch(model, ROWS, 0, 0);
    const sl_op_t queued = {.fn = nothing_op};
    const sl_op_t failing = {.fn = failing_op};
    sl_device_set_t *devices = NULL;
    sl_engine_t *engine = NULL;
    sl_step_report_t report;
    hand_t hand = {0};

    (void)state;
    fixture_engine(&run, &devices, &engine);
    hand.devices = devices;
    set(&hand, 1, 0);
    sl_assert_ok(sl_op_manager_submit(devices->devices[1].ops, &queued, NULL));
    sl_assert_ok(sl_op_manager_submit(devices->devices[0].ops, &failing, NULL));
    sl_assert_status(sl_engine_step(engine, &batch, &report), SL_ERR_NUMERIC);
    sl_assert_contains(sl_last_error(), "not a number");
    set(&hand, 1, 100);
    sl_assert_ok(sl_engine_step(engine, &batch, &report));
    sl_engine_destroy(engine);
    sl_device_set_destroy(devices);
    sl_model_destroy(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(shares_do_not_change_results),
        sl_unit_test(a_pulse_does_not_change_results),
        sl_unit_test(a_suspended_stage_holds_its_peers),
        sl_unit_test(a_failure_ends_a_suspended_peer),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
