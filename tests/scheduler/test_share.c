/* SPDX-License-Identifier: Apache-2.0 */
/* The share's arithmetic in virtual time: what it promises, exactly. */
#include <math.h>
#include <stdio.h>

#include "scheduler/share.h"
#include "tests/support/sl_test.h"

#define S UINT64_C(1000000000)
#define MS UINT64_C(1000000)
#define US UINT64_C(1000)

enum {
    N_WINDOWS_MAX = 64
};

/* A device whose queue is never empty, on a clock that moves by what the ops
 * and the sleeps take. Seconds are counted from start_ns. */
typedef struct device {
    sl_share_t share;
    uint64_t now_ns;
    uint64_t start_ns;
    uint64_t late_ns; /* sleepers wake up to this much too late */
    uint64_t random;
    double busy_ns[N_WINDOWS_MAX]; /* by second */
} device_t;

#define assert_near(a, b, room) near((a), (b), (room), __FILE__, __LINE__)

static void near(double a, double b, double room, const char *file, int line)
{
    if (!(fabs(a - b) <= room)) {
        print_error("%.9g is not %.9g within %.9g\n", a, b, room);
        _fail(file, line);
    }
}

static void device_init(device_t *device, double percent, sl_share_law_t law)
{
    *device = (device_t){.now_ns = 7 * S, .start_ns = 7 * S, .random = 1};
    sl_share_init(&device->share);
    sl_share_set(&device->share, percent, law, device->now_ns);
}

static void count_window(device_t *device, uint64_t first_ns, uint64_t end_ns)
{
    uint64_t from_ns = first_ns - device->start_ns;
    const uint64_t to_ns = end_ns - device->start_ns;

    while (from_ns < to_ns) {
        const uint64_t second = from_ns / S;
        const uint64_t next_ns =
            (second + 1) * S < to_ns ? (second + 1) * S : to_ns;

        if (second < N_WINDOWS_MAX) {
            device->busy_ns[second] += (double)(next_ns - from_ns);
        }
        from_ns = next_ns;
    }
}

static uint64_t next_random(device_t *device)
{
    device->random = device->random * UINT64_C(6364136223846793005) +
                     UINT64_C(1442695040888963407);
    return device->random >> 33;
}

/* Run one op as the op manager does. @return time it had to wait */
static uint64_t run_op(device_t *device, uint64_t op_ns, double expected_ns)
{
    const uint64_t begin_ns = device->now_ns;
    uint64_t wait_ns;
    uint64_t waited_ns;

    while ((wait_ns = sl_share_wait_ns(&device->share, expected_ns,
                                       device->now_ns)) > 0) {
        assert_true(wait_ns != SL_SHARE_SUSPENDED);
        device->now_ns += wait_ns;
        if (device->late_ns > 0) {
            device->now_ns += next_random(device) % device->late_ns;
        }
    }
    waited_ns = device->now_ns - begin_ns;
    sl_share_start(&device->share, expected_ns, device->now_ns);
    count_window(device, device->now_ns, device->now_ns + op_ns);
    device->now_ns += op_ns;
    sl_share_finish(&device->share, (double)op_ns, device->now_ns);
    return waited_ns;
}

static void run_seconds(device_t *device, uint64_t seconds, uint64_t op_ns,
                        double expected_ns)
{
    const uint64_t end_ns = device->now_ns + seconds * S;

    while (device->now_ns < end_ns) {
        (void)run_op(device, op_ns, expected_ns);
    }
}

/* Error of the share over seconds [first, end), in points. */
static double mean_error(const device_t *device, int first, int end,
                         double *rms_p)
{
    double sum = 0.0;
    double squares = 0.0;
    int i;

    for (i = first; i < end; i++) {
        const double error =
            device->busy_ns[i] / (double)S * 100.0 - device->share.percent;

        sum += error;
        squares += error * error;
    }
    *rms_p = sqrt(squares / (end - first));
    return sum / (end - first);
}

static void check_share(const device_t *device, int first, int end)
{
    double rms;
    const double mean = mean_error(device, first, end, &rms);

    if (!(fabs(mean) <= 0.5) || !(rms <= 3.0)) {
        fail_msg("share %g: mean error %.3f points, rms %.3f",
                 device->share.percent, mean, rms);
    }
}

static const uint64_t op_lengths_ns[] = {50 * US, 500 * US, 5 * MS, 50 * MS};

enum {
    N_LENGTHS = sizeof(op_lengths_ns) / sizeof(*op_lengths_ns)
};

/* The promise is 2 points in the mean and 3 rms per second. */
static void ops_of_any_length_get_the_share_asked(void **state)
{
    int percent;
    int k;

    (void)state;
    for (k = 0; k < N_LENGTHS; k++) {
        for (percent = 10; percent <= 90; percent += 10) {
            device_t device;

            device_init(&device, percent, SL_SHARE_TOKEN_BUCKET);
            device.late_ns = 150 * US;
            run_seconds(&device, 20, op_lengths_ns[k],
                        (double)op_lengths_ns[k]);
            check_share(&device, 0, 20);
        }
    }
}

static void ops_of_mixed_lengths_get_the_share_asked(void **state)
{
    int percent;

    (void)state;
    for (percent = 10; percent <= 90; percent += 20) {
        device_t device;

        device_init(&device, percent, SL_SHARE_TOKEN_BUCKET);
        device.late_ns = 150 * US;
        while (device.now_ns - device.start_ns < 20 * S) {
            const uint64_t op_ns =
                op_lengths_ns[next_random(&device) % N_LENGTHS];

            /* one name for all: the estimate is hardly ever right */
            (void)run_op(&device, op_ns, 14e6);
        }
        check_share(&device, 0, 20);
    }
}

/* A loaded machine wakes sleepers late: that time is not lost. */
static void late_sleepers_get_the_share_asked(void **state)
{
    int percent;

    (void)state;
    for (percent = 10; percent <= 90; percent += 10) {
        device_t device;

        device_init(&device, percent, SL_SHARE_TOKEN_BUCKET);
        device.late_ns = 10 * MS;
        run_seconds(&device, 20, 500 * US, 500e3);
        check_share(&device, 0, 20);
    }
}

/* Neither the grid nor the caller's estimate says what an op takes. */
static void a_wrong_estimate_is_settled(void **state)
{
    static const double estimates_ns[] = {0.0, 1.0, 50e3, 5e9};
    size_t k;

    (void)state;
    for (k = 0; k < sizeof(estimates_ns) / sizeof(*estimates_ns); k++) {
        device_t device;

        device_init(&device, 30, SL_SHARE_TOKEN_BUCKET);
        run_seconds(&device, 20, 5 * MS, estimates_ns[k]);
        check_share(&device, 0, 20);
    }
}

/* Short ops are not let through by one sleep each. */
static void short_ops_run_in_bunches(void **state)
{
    device_t device;
    int n_ops = 0;
    int n_sleeps = 0;

    (void)state;
    device_init(&device, 50, SL_SHARE_TOKEN_BUCKET);
    while (device.now_ns - device.start_ns < S) {
        n_ops++;
        n_sleeps += run_op(&device, 50 * US, 50e3) > 0;
    }
    assert_true(n_ops >= 9900);
    assert_true(n_sleeps <= 520);
}

/* ---- pains of other sharing systems ---- */

/* A cap of 50 that lets 99 % through for minutes: kernels back to back, the
 * queue always full. */
static void a_cap_holds_from_the_first_second_on(void **state)
{
    static const uint64_t kernels_ns[] = {100 * US, 2 * MS, 20 * MS};
    static const double percents[] = {20, 50, 80};
    int k, p, second;

    (void)state;
    for (k = 0; k < 3; k++) {
        for (p = 0; p < 3; p++) {
            device_t device;

            device_init(&device, percents[p], SL_SHARE_TOKEN_BUCKET);
            device.late_ns = 150 * US;
            run_seconds(&device, 10, kernels_ns[k], 0.0);
            for (second = 0; second < 10; second++) {
                assert_near(device.busy_ns[second] / (double)S * 100.0,
                            percents[p], 3.0);
            }
        }
    }
}

/* Two jobs on one core, which takes turns between them as the system does. */
typedef struct runner {
    sl_share_t share;
    uint64_t op_ns;
    uint64_t left_ns;  /* of the op that runs; 0 = none */
    uint64_t start_ns; /* of that op */
    uint64_t wake_ns;
    double busy_ns[N_WINDOWS_MAX];
} runner_t;

typedef struct core {
    runner_t runners[2];
    uint64_t now_ns;
    int turn;
    int charges_wall; /* what the op took of the clock, not of the core */
} core_t;

static const uint64_t SLICE_NS = 3 * MS;
static const uint64_t CORE_START_NS = 7 * S;

static void core_init(core_t *core, double first_percent, double second_percent)
{
    int i;

    *core = (core_t){.now_ns = CORE_START_NS};
    for (i = 0; i < 2; i++) {
        runner_t *runner = &core->runners[i];

        sl_share_init(&runner->share);
        sl_share_set(&runner->share, i == 0 ? first_percent : second_percent,
                     SL_SHARE_TOKEN_BUCKET, core->now_ns);
        runner->op_ns = i == 0 ? 2 * MS : 5 * MS;
    }
}

/* Whether it has something to run now. */
static int is_ready(core_t *core, runner_t *runner)
{
    uint64_t wait_ns;

    if (runner->left_ns > 0) {
        return 1;
    }
    wait_ns =
        sl_share_wait_ns(&runner->share, (double)runner->op_ns, core->now_ns);
    runner->wake_ns = core->now_ns + wait_ns;
    if (wait_ns > 0) {
        return 0;
    }
    sl_share_start(&runner->share, (double)runner->op_ns, core->now_ns);
    runner->start_ns = core->now_ns;
    runner->left_ns = runner->op_ns;
    return 1;
}

static void run_slice(core_t *core, runner_t *runner)
{
    const uint64_t slice_ns =
        runner->left_ns < SLICE_NS ? runner->left_ns : SLICE_NS;
    const uint64_t second = (core->now_ns - CORE_START_NS) / S;

    if (second < N_WINDOWS_MAX) {
        runner->busy_ns[second] += (double)slice_ns;
    }
    core->now_ns += slice_ns;
    runner->left_ns -= slice_ns;
    if (runner->left_ns == 0) {
        const uint64_t wall_ns = core->now_ns - runner->start_ns;

        sl_share_finish(&runner->share,
                        (double)(core->charges_wall ? wall_ns : runner->op_ns),
                        core->now_ns);
    }
}

static void core_run(core_t *core, uint64_t seconds)
{
    const uint64_t end_ns = core->now_ns + seconds * S;

    while (core->now_ns < end_ns) {
        runner_t *first = &core->runners[core->turn];
        runner_t *second = &core->runners[1 - core->turn];

        if (is_ready(core, first)) {
            (void)is_ready(core, second); /* it waits for the core */
            run_slice(core, first);
            core->turn = 1 - core->turn;
        } else if (is_ready(core, second)) {
            run_slice(core, second);
        } else {
            core->now_ns = first->wake_ns < second->wake_ns ? first->wake_ns
                                                            : second->wake_ns;
        }
    }
}

/* Part of the core in seconds [0, end). */
static double core_part(const runner_t *runner, int end)
{
    double sum = 0.0;
    int i;

    for (i = 0; i < end; i++) {
        sum += runner->busy_ns[i];
    }
    return sum / (double)S / end;
}

/* Where the clock is billed and not the device, 50 + 50 leave much of it
 * idle. */
static void fifty_and_fifty_are_the_whole_device(void **state)
{
    core_t core;
    double sum;

    (void)state;
    core_init(&core, 50, 50);
    core_run(&core, 20);
    assert_near(core_part(&core.runners[0], 20), 0.5, 0.01);
    assert_near(core_part(&core.runners[1], 20), 0.5, 0.01);
    core_init(&core, 50, 50); /* the pain, for comparison */
    core.charges_wall = 1;
    core_run(&core, 20);
    sum = core_part(&core.runners[0], 20) + core_part(&core.runners[1], 20);
    print_message("50 + 50 by the clock: %.2f\n", sum);
    assert_true(sum < 0.9);
}

/* Shares are ceilings: more than there is to have is divided by the system's
 * scheduler, and neither is shut out. */
static void eighty_and_eighty_have_half_each(void **state)
{
    core_t core;

    (void)state;
    core_init(&core, 80, 80);
    core.runners[1].op_ns = core.runners[0].op_ns;
    core_run(&core, 20);
    assert_near(core_part(&core.runners[0], 20), 0.5, 0.01);
    assert_near(core_part(&core.runners[1], 20), 0.5, 0.01);
}

/* Windows of seconds, grants that are late: each second is off. */
static void thirty_and_sixty_hold_in_each_second(void **state)
{
    core_t core;
    int second;

    (void)state;
    core_init(&core, 30, 60);
    core_run(&core, 30);
    for (second = 0; second < 30; second++) {
        assert_near(core.runners[0].busy_ns[second] / 1e9, 0.3, 0.03);
        assert_near(core.runners[1].busy_ns[second] / 1e9, 0.6, 0.03);
    }
}

/* ---- bursts and debts ---- */

static void a_pause_is_credited_up_to_the_depth(void **state)
{
    device_t device;
    double burst_ns = 0.0;

    (void)state;
    device_init(&device, 50, SL_SHARE_TOKEN_BUCKET);
    device.now_ns += 3600 * S;
    while (run_op(&device, 100 * US, 100e3) == 0) {
        burst_ns += 100e3;
    }
    /* 20 ms, and what flows in while they are used */
    assert_near(burst_ns, 40e6, 0.3e6);
}

/* A job that leaves gaps by itself is not slowed below its share. */
static void short_gaps_are_not_throttled(void **state)
{
    device_t device;
    int i;

    (void)state;
    device_init(&device, 60, SL_SHARE_TOKEN_BUCKET);
    device.now_ns += 10 * MS;
    for (i = 0; i < 1000; i++) {
        assert_int_equal(run_op(&device, 5 * MS, 5e6), 0);
        device.now_ns += 5 * MS;
    }
}

/* In no stretch of time is there more than the rate and one bucketful. */
static void a_burst_is_bounded(void **state)
{
    device_t device;
    double worst_ns = 0.0;
    double level_ns = 0.0; /* of a leaky bucket that watches */
    uint64_t before_ns;
    int i;

    (void)state;
    device_init(&device, 25, SL_SHARE_TOKEN_BUCKET);
    before_ns = device.now_ns;
    for (i = 0; i < 100000; i++) {
        const uint64_t op_ns = next_random(&device) % (4 * MS);

        if (next_random(&device) % 50 == 0) {
            device.now_ns += next_random(&device) % S;
        }
        (void)run_op(&device, op_ns, (double)op_ns);
        level_ns -= 0.25 * (double)(device.now_ns - before_ns);
        level_ns = (level_ns > 0.0 ? level_ns : 0.0) + (double)op_ns;
        before_ns = device.now_ns;
        worst_ns = level_ns > worst_ns ? level_ns : worst_ns;
    }
    assert_true(worst_ns <= SL_SHARE_DEPTH_NS + 4e6);
    assert_true(worst_ns >= SL_SHARE_DEPTH_NS / 2);
}

static void a_long_op_is_paid_for_by_idle_time(void **state)
{
    device_t device;

    (void)state;
    device_init(&device, 10, SL_SHARE_TOKEN_BUCKET);
    assert_int_equal(run_op(&device, S, 0.0), 0);
    /* 1 s at 10 % is 9 s idle, and 1 ms to go on with */
    assert_near((double)run_op(&device, MS, 1e6), 9.01e9, 1e4);
}

/* As a process that was stopped inside an op for a night. */
static void a_debt_is_bounded(void **state)
{
    device_t device;

    (void)state;
    device_init(&device, 50, SL_SHARE_TOKEN_BUCKET);
    (void)run_op(&device, 40000 * S, 0.0);
    assert_near((double)run_op(&device, MS, 1e6), 20.002e9, 1e4);
}

/* ---- changes ---- */

/* After a cut no second is above what was asked, and none is idle. */
static void a_cut_neither_overshoots_nor_starves(void **state)
{
    int k;

    (void)state;
    for (k = 0; k < 3; k++) {
        device_t device;
        int i;

        device_init(&device, 100, SL_SHARE_TOKEN_BUCKET);
        run_seconds(&device, 3, op_lengths_ns[k], (double)op_lengths_ns[k]);
        device.start_ns = device.now_ns;
        for (i = 0; i < N_WINDOWS_MAX; i++) {
            device.busy_ns[i] = 0.0;
        }
        sl_share_set(&device.share, 20, SL_SHARE_TOKEN_BUCKET, device.now_ns);
        run_seconds(&device, 10, op_lengths_ns[k], (double)op_lengths_ns[k]);
        for (i = 0; i < 10; i++) {
            assert_near(device.busy_ns[i] / 1e9, 0.2, 0.02);
        }
    }
}

/* A controller that moves the share often forgives no debt by it. */
static void changes_keep_the_debt(void **state)
{
    device_t device;
    double used_ns = 0.0;
    int i;

    (void)state;
    device_init(&device, 10, SL_SHARE_TOKEN_BUCKET);
    for (i = 0; i < 1000; i++) {
        const uint64_t end_ns = device.now_ns + 100 * MS;

        sl_share_set(&device.share, i % 2 == 0 ? 9 : 11, SL_SHARE_TOKEN_BUCKET,
                     device.now_ns);
        while (device.now_ns < end_ns) {
            if (sl_share_wait_ns(&device.share, 50e6, device.now_ns) == 0) {
                (void)run_op(&device, 50 * MS, 50e6);
                used_ns += 50e6;
            } else {
                device.now_ns += MS;
            }
        }
    }
    assert_near(used_ns / (double)(device.now_ns - device.start_ns), 0.1,
                0.003);
}

static void a_suspended_share_waits_for_a_change(void **state)
{
    device_t device;

    (void)state;
    device_init(&device, 50, SL_SHARE_TOKEN_BUCKET);
    (void)run_op(&device, 100 * MS, 0.0);
    sl_share_set(&device.share, 0, SL_SHARE_TOKEN_BUCKET, device.now_ns);
    assert_true(sl_share_wait_ns(&device.share, 0.0, device.now_ns) ==
                SL_SHARE_SUSPENDED);
    device.now_ns += 3600 * S;
    assert_true(sl_share_wait_ns(&device.share, 0.0, device.now_ns) ==
                SL_SHARE_SUSPENDED);
    sl_share_set(&device.share, 50, SL_SHARE_TOKEN_BUCKET, device.now_ns);
    /* nothing is owed any more, and nothing was saved up */
    assert_near((double)run_op(&device, MS, 2e6), 4e6, 10);
}

static void a_full_share_never_waits(void **state)
{
    device_t device;
    int i;

    (void)state;
    device_init(&device, 10, SL_SHARE_TOKEN_BUCKET);
    (void)run_op(&device, S, 0.0);
    sl_share_set(&device.share, 100, SL_SHARE_TOKEN_BUCKET, device.now_ns);
    for (i = 0; i < 1000; i++) {
        assert_int_equal(run_op(&device, 5 * MS, 5e6), 0);
    }
    /* the past is forgotten */
    sl_share_set(&device.share, 10, SL_SHARE_TOKEN_BUCKET, device.now_ns);
    assert_int_equal(run_op(&device, 5 * MS, 0.0), 0);
}

static void another_law_begins_anew(void **state)
{
    device_t device;

    (void)state;
    device_init(&device, 50, SL_SHARE_TOKEN_BUCKET);
    (void)run_op(&device, S, 0.0);
    sl_share_set(&device.share, 50, SL_SHARE_ANTMAN, device.now_ns);
    assert_int_equal(run_op(&device, S, 0.0), 0);
    sl_share_set(&device.share, 50, SL_SHARE_TOKEN_BUCKET, device.now_ns);
    assert_int_equal(run_op(&device, S, 0.0), 0);
}

static void a_change_inside_an_op_charges_it_once(void **state)
{
    device_t device;

    (void)state;
    device_init(&device, 50, SL_SHARE_TOKEN_BUCKET);
    sl_share_start(&device.share, 8e6, device.now_ns);
    sl_share_set(&device.share, 100, SL_SHARE_TOKEN_BUCKET, device.now_ns);
    sl_share_set(&device.share, 50, SL_SHARE_TOKEN_BUCKET, device.now_ns);
    device.now_ns += 4 * MS;
    sl_share_finish(&device.share, 4e6, device.now_ns);
    assert_near(device.share.tokens_ns, -2e6, 1);
}

static void strange_times_and_shares_are_harmless(void **state)
{
    sl_share_t share;
    uint64_t wait_ns;

    (void)state;
    sl_share_init(&share);
    sl_share_set(&share, 1e-300, SL_SHARE_TOKEN_BUCKET, UINT64_MAX - 1);
    wait_ns = sl_share_wait_ns(&share, INFINITY, UINT64_MAX);
    assert_true(wait_ns > 3599 * S && wait_ns != SL_SHARE_SUSPENDED);
    /* a clock that goes back stands still */
    sl_share_set(&share, 50, SL_SHARE_TOKEN_BUCKET, 5 * S);
    assert_true(share.tokens_ns >= 0.0 && share.tokens_ns < 1.0);
    (void)sl_share_wait_ns(&share, 0.0, 0);
    assert_true(share.tokens_ns >= 0.0 && share.tokens_ns < 1.0);
    (void)sl_share_wait_ns(&share, 0.0, UINT64_MAX);
    assert_true(share.tokens_ns < 1.0);
}

/* ---- AntMan ---- */

/* Steps of n ops, as the published law drives them. @return share in percent
 * over all but the first steps; lump_p: part of the idle time in lumps */
static double antman_share(double percent, int n_ops, uint64_t op_ns,
                           double *lump_p)
{
    device_t device;
    double busy_ns = 0.0;
    double lump_ns = 0.0;
    uint64_t from_ns = 0;
    int step;
    int i;

    device_init(&device, percent, SL_SHARE_ANTMAN);
    for (step = 0; step < 120; step++) {
        const uint64_t step_ns = device.now_ns;

        if (step == 100) {
            from_ns = device.now_ns;
            busy_ns = 0.0;
            lump_ns = 0.0;
        }
        lump_ns += device.share.lump_ns;
        for (i = 0; i < n_ops; i++) {
            (void)run_op(&device, op_ns, 0.0);
            busy_ns += (double)op_ns;
        }
        /* the slot after the last op ends the step, as in the original */
        device.now_ns += sl_share_wait_ns(&device.share, 0.0, device.now_ns);
        sl_share_boundary(&device.share, (double)(device.now_ns - step_ns),
                          device.now_ns);
    }
    *lump_p = lump_ns / ((double)(device.now_ns - from_ns) - busy_ns);
    return busy_ns / (double)(device.now_ns - from_ns) * 100.0;
}

static void antman_reaches_its_share_with_long_steps(void **state)
{
    double lump;
    int percent;

    (void)state;
    for (percent = 10; percent <= 90; percent += 10) {
        /* it leaves out 50 us a step: 0.0x points at 200 ms */
        assert_near(antman_share(percent, 100, 2 * MS, &lump), percent, 0.1);
        assert_near(lump, 0.613, 0.01);
    }
    assert_near(antman_share(50, 1, 200 * MS, &lump), 50, 0.1);
}

static void antman_does_not_throttle_short_steps(void **state)
{
    double lump;

    (void)state;
    assert_near(antman_share(80, 10, 20 * US, &lump), 100, 0.01);
    assert_near(antman_share(90, 10, 100 * US, &lump), 94, 0.5);
}

static uint64_t boundary_wait_ns(device_t *device, double step_ns)
{
    sl_share_boundary(&device->share, step_ns, device->now_ns);
    return sl_share_wait_ns(&device->share, 0.0, device->now_ns);
}

static void antman_suspends_and_opens_too(void **state)
{
    device_t device;

    (void)state;
    device_init(&device, 50, SL_SHARE_ANTMAN);
    assert_int_equal(boundary_wait_ns(&device, 1e6), 950000);
    /* at another share the rest of the lump is void, and so is a pause */
    device.now_ns += 450 * US;
    sl_share_set(&device.share, 0, SL_SHARE_ANTMAN, device.now_ns);
    assert_true(boundary_wait_ns(&device, 1e6) == SL_SHARE_SUSPENDED);
    sl_share_set(&device.share, 50, SL_SHARE_ANTMAN, device.now_ns);
    assert_int_equal(boundary_wait_ns(&device, 1e6), 950000);
    device.now_ns += 450 * US;
    sl_share_set(&device.share, 0, SL_SHARE_ANTMAN, device.now_ns);
    device.now_ns += 60 * S;
    sl_share_set(&device.share, 50, SL_SHARE_ANTMAN, device.now_ns);
    assert_int_equal(run_op(&device, 2 * MS, 0.0), 0);
    assert_int_equal(boundary_wait_ns(&device, 60.00245e9), 1950000);
    assert_int_equal(boundary_wait_ns(&device, NAN), 0);
    sl_share_set(&device.share, 100, SL_SHARE_ANTMAN, device.now_ns);
    assert_int_equal(boundary_wait_ns(&device, 1e6), 0);
    assert_int_equal(run_op(&device, MS, 0.0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(ops_of_any_length_get_the_share_asked),
        sl_unit_test(ops_of_mixed_lengths_get_the_share_asked),
        sl_unit_test(late_sleepers_get_the_share_asked),
        sl_unit_test(a_wrong_estimate_is_settled),
        sl_unit_test(short_ops_run_in_bunches),
        sl_unit_test(a_cap_holds_from_the_first_second_on),
        sl_unit_test(fifty_and_fifty_are_the_whole_device),
        sl_unit_test(eighty_and_eighty_have_half_each),
        sl_unit_test(thirty_and_sixty_hold_in_each_second),
        sl_unit_test(a_pause_is_credited_up_to_the_depth),
        sl_unit_test(short_gaps_are_not_throttled),
        sl_unit_test(a_burst_is_bounded),
        sl_unit_test(a_long_op_is_paid_for_by_idle_time),
        sl_unit_test(a_debt_is_bounded),
        sl_unit_test(a_cut_neither_overshoots_nor_starves),
        sl_unit_test(changes_keep_the_debt),
        sl_unit_test(a_suspended_share_waits_for_a_change),
        sl_unit_test(a_full_share_never_waits),
        sl_unit_test(another_law_begins_anew),
        sl_unit_test(a_change_inside_an_op_charges_it_once),
        sl_unit_test(strange_times_and_shares_are_harmless),
        sl_unit_test(antman_reaches_its_share_with_long_steps),
        sl_unit_test(antman_does_not_throttle_short_steps),
        sl_unit_test(antman_suspends_and_opens_too),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
