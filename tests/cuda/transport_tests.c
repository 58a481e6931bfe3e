/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/cuda/transport_tests.h"

#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

#include "base/rng.h"
#include "engine/world/world_internal.h"
#include "standin.h"

enum {
    LARGE = 100000,
    TESTS_MAX = 24
};

bed_rank_t transport_ranks[BED_RANKS_MAX];

bed_plan_t both_ways(int n_messages)
{
    bed_plan_t plan = {
        .n_ranks = 2,
        .n_lines = 5,
        .n_rounds = 2,
        .lines = {{.from = 0, .to = 1, .n_slots = 2, .max_bytes = LARGE},
                  {.from = 1, .to = 0, .n_slots = 1, .max_bytes = 700},
                  {.from = 0, .to = 1, .n_slots = 4, .max_bytes = 1},
                  {.from = 1, .to = 0, .n_slots = 3, .max_bytes = LARGE},
                  {.from = 0,
                   .to = 1,
                   .n_slots = 1,
                   .max_bytes = 4096,
                   .is_even = 1}}};
    int i;

    for (i = 0; i < plan.n_lines; i++) {
        plan.lines[i].n_messages = n_messages;
    }
    return plan;
}

/* Two ranks, one channel each way, 8 bytes at a time. */
static bed_plan_t many_small(int n_messages)
{
    const bed_plan_t plan = {.n_ranks = 2,
                             .n_lines = 2,
                             .n_rounds = 1,
                             .lines = {{.from = 0,
                                        .to = 1,
                                        .n_slots = 2,
                                        .max_bytes = 8,
                                        .is_even = 1,
                                        .n_messages = n_messages},
                                       {.from = 1,
                                        .to = 0,
                                        .n_slots = 2,
                                        .max_bytes = 8,
                                        .is_even = 1,
                                        .n_messages = n_messages}}};

    return plan;
}

/* Each rank to the next one, and the reverse. */
static bed_plan_t ring(int n_ranks, int n_messages)
{
    bed_plan_t plan = {.n_ranks = n_ranks, .n_rounds = 2};
    int r;

    for (r = 0; r < n_ranks; r++) {
        const int next = (r + 1) % n_ranks;
        const bed_line_t line = {.from = r,
                                 .to = next,
                                 .n_slots = 2,
                                 .max_bytes = 5000,
                                 .n_messages = n_messages};

        plan.lines[plan.n_lines] = line;
        plan.lines[plan.n_lines + 1] = line;
        plan.lines[plan.n_lines + 1].from = next;
        plan.lines[plan.n_lines + 1].to = r;
        plan.n_lines += 2;
    }
    return plan;
}

static uint32_t draw(int round, uint32_t what)
{
    const sl_rng_t rng = sl_rng_at(77, (uint32_t)round, what, 0, 0);

    return sl_rng_u32(&rng, 0);
}

/* Which rank fails in a round; -1: none. */
static int unlucky(const bed_plan_t *plan, int round)
{
    return draw(round, 0) % 3u == 0 || round == plan->n_rounds - 1
               ? -1
               : (int)(draw(round, 1) % (uint32_t)plan->n_ranks);
}

static void chaos(struct bed_rank *rank, int round, int is_middle)
{
    const int wants_middle = draw(round, 2) % 2u == 0;
    const struct timespec pause = {.tv_nsec =
                                       (long)(draw(round, 3) % 2000000u)};
    sl_status_t status = SL_OK;

    if (unlucky(rank->plan, round) == rank->rank && is_middle == wants_middle) {
        (void)nanosleep(&pause, NULL);
        SL_REFUSE(status, SL_ERR_QUOTA, out, "rank %d is unlucky", rank->rank);
    }
    return;
out:
    sl_abort_raise(&rank->abort, status);
    sl_world_abort(rank->world, status, sl_last_error());
}

void set_chaos(bed_plan_t *plan, int n_rounds)
{
    plan->n_rounds = n_rounds;
    plan->hook = chaos;
    plan->expects_failure = 1;
}

void check_chaos(const bed_plan_t *plan, const bed_rank_t *ranks)
{
    int r, round, n_failures = 0;

    for (round = 0; round < plan->n_rounds; round++) {
        n_failures += unlucky(plan, round) >= 0;
    }
    assert_true(n_failures > 0);
    for (r = 0; r < plan->n_ranks; r++) {
        assert_false(ranks[r].is_over);
        assert_int_equal(ranks[r].n_failed, n_failures);
        sl_assert_contains(ranks[r].detail, "is unlucky");
    }
}

static atomic_int has_hung;
static _Atomic(sl_abort_t *) other; /* rank 0's */

/* Until rank 0 has given rank 1 up. */
static void hang(struct bed_rank *rank, int round, int is_middle)
{
    const struct timespec pause = {.tv_nsec = 10000000};
    int n;

    if (rank->rank == 0 && !is_middle) {
        atomic_store(&other, &rank->abort);
    }
    if (rank->rank == 1 && round == 0 && is_middle &&
        !atomic_exchange(&has_hung, 1)) {
        sl_world_hook_stall(rank->world, 1);
        for (n = 0; n < 6000 && (atomic_load(&other) == NULL ||
                                 !sl_abort_is_set(atomic_load(&other)));
             n++) {
            (void)nanosleep(&pause, NULL);
        }
        sl_world_hook_stall(rank->world, 0);
    }
}

/* Rank 1 stops answering in the middle. */
static void set_hang(bed_plan_t *plan)
{
    atomic_store(&has_hung, 0);
    atomic_store(&other, NULL);
    plan->n_rounds = 1;
    plan->hook = hang;
    plan->expects_failure = 1;
    /* the others' threads, too, may stand still for a while */
    plan->dead_ns = UINT64_C(3000000000);
}

static void check_hang(const bed_plan_t *plan, const bed_rank_t *ranks)
{
    (void)plan;
    sl_assert_contains(ranks[0].detail, "rank 1");
    sl_assert_contains(ranks[0].detail, "has not answered");
}

/* ---- the table ---- */

static bed_plan_t all_sizes(void)
{
    return both_ways(300);
}

static bed_plan_t many_small_messages(void)
{
    return many_small(10000);
}

static bed_plan_t one_message(void)
{
    bed_plan_t plan = both_ways(1);

    plan.n_rounds = 5;
    return plan;
}

static bed_plan_t many_ranks(void)
{
    return ring(4, 40);
}

static bed_plan_t few_messages(void)
{
    return both_ways(20);
}

static bed_plan_t recovery(void)
{
    bed_plan_t plan = both_ways(60);

    set_chaos(&plan, 16);
    return plan;
}

static bed_plan_t recovery_of_many(void)
{
    bed_plan_t plan = ring(3, 40);

    set_chaos(&plan, 12);
    return plan;
}

static bed_plan_t a_rank_that_hangs(void)
{
    bed_plan_t plan = both_ways(60);

    set_hang(&plan);
    return plan;
}

typedef struct transport_case {
    const char *name;
    bed_plan_t (*make)(void);
    void (*check)(const bed_plan_t *plan, const bed_rank_t *ranks);
    uint64_t n_made;   /* of nccl: communicators of rank 0; 0 = any number */
    unsigned delay_us; /* of streams */
} transport_case_t;

static const transport_case_t cases[] = {
    {"all sizes", all_sizes, .n_made = 2},
    {"many small messages", many_small_messages, .n_made = 2},
    {"one message", one_message, .n_made = 2},
    {"many ranks", many_ranks, .n_made = 4},
    /* what is written and what is overwritten must be ordered */
    {"late streams", few_messages, .delay_us = 300},
    /* of nccl: lanes on which both sides have queued the same live on; others
     * are made anew */
    {"recovery", recovery, .check = check_chaos},
    {"recovery of many", recovery_of_many, .check = check_chaos},
    {"a rank that hangs", a_rank_that_hangs, .check = check_hang},
};

enum {
    N_CASES = sizeof(cases) / sizeof(*cases)
};

/* Of the process. */
static sl_transport_t by;
static int gpus;

bed_plan_t transport_plan(bed_plan_t plan, sl_transport_t transport)
{
    plan.spec = "cuda:1";
    plan.transport = transport;
    return plan;
}

static void run_case(void **state)
{
    const transport_case_t *one = *state;
    const bed_plan_t plan = transport_plan(one->make(), by);
    const bed_rank_t *ranks = transport_ranks;

    standin_set_delay_us(one->delay_us);
    assert_int_equal(bed_run(&plan, transport_ranks), 0);
    if (one->check != NULL) {
        one->check(&plan, ranks);
        (void)sl_test_log_take();
    }
    if (by == SL_TRANSPORT_NCCL && one->n_made > 0) {
        assert_int_equal(ranks[0].n_made, one->n_made);
    }
    if (plan.n_ranks == 2) {
        assert_int_equal(ranks[0].n_made, ranks[1].n_made);
    }
}

int transport_setup(void **state)
{
    standin_reset();
    standin_set_devices(gpus);
    return sl_test_setup(state);
}

int transport_teardown(void **state)
{
    const int n_reports = standin_n_reports();
    const int n_comms = standin_n_communicators();
    const int n_live = standin_n_live();

    if (n_reports > 0) {
        (void)fprintf(stderr, "%s\n", standin_report(0));
    }
    if (n_comms != 0 || n_live != 0) {
        (void)fprintf(stderr, "live: %d communicators, %d others\n", n_comms,
                      n_live);
    }
    standin_reset();
    return sl_test_teardown(state) || n_reports > 0 || n_comms != 0 ||
           n_live != 0;
}

int transport_tests_run(sl_transport_t transport, int n_gpus,
                        const struct CMUnitTest *own, size_t n_own)
{
    static transport_case_t states[N_CASES];
    struct CMUnitTest tests[TESTS_MAX] = {{0}};
    size_t i;

    by = transport;
    gpus = n_gpus;
    for (i = 0; i < N_CASES; i++) {
        states[i] = cases[i];
        tests[i] = (struct CMUnitTest){.name = cases[i].name,
                                       .test_func = run_case,
                                       .setup_func = transport_setup,
                                       .teardown_func = transport_teardown,
                                       .initial_state = &states[i]};
    }
    for (i = 0; i < n_own && N_CASES + i < TESTS_MAX; i++) {
        tests[N_CASES + i] = own[i];
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
