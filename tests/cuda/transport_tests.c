/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/cuda/transport_tests.h"

#include <stdatomic.h>
#include <time.h>

#include "base/rng.h"
#include "engine/world/world_internal.h"
#include "tests/support/sl_test.h"

enum {
    LARGE = 100000
};

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

bed_plan_t many_small(int n_messages)
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

bed_plan_t ring(int n_ranks, int n_messages)
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

void set_hang(bed_plan_t *plan)
{
    atomic_store(&has_hung, 0);
    atomic_store(&other, NULL);
    plan->n_rounds = 1;
    plan->hook = hang;
    plan->expects_failure = 1;
    /* the others' threads, too, may stand still for a while */
    plan->dead_ns = UINT64_C(3000000000);
}
