/* SPDX-License-Identifier: Apache-2.0 */
/* Schedules: golden texts, verification over a grid, makespans. */
#include "tests/support/sl_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/schedule/schedule.h"

enum {
    MAX_STAGES = 8,
    TEXT_BYTES = 1 << 14
};

typedef struct lists {
    sl_schedule_params_t params;
    sl_instruction_list_t items[MAX_STAGES];
} lists_t;

static void lists_init(lists_t *lists, sl_schedule_kind_t kind,
                       sl_backward_order_t order, sl_recompute_t recompute,
                       int n_stages, int n_micro_batches)
{
    int k;

    lists->params = (sl_schedule_params_t){.kind = kind,
                                           .order = order,
                                           .recompute = recompute,
                                           .n_stages = n_stages,
                                           .n_micro_batches = n_micro_batches};
    for (k = 0; k < n_stages; k++) {
        sl_assert_ok(sl_schedule_generate(&lists->params, k, &lists->items[k]));
    }
}

static void lists_cleanup(lists_t *lists)
{
    int k;

    for (k = 0; k < lists->params.n_stages; k++) {
        sl_schedule_cleanup(&lists->items[k]);
    }
}

/* ---- golden texts ---- */

typedef struct golden {
    sl_schedule_kind_t kind;
    sl_backward_order_t order;
    sl_recompute_t recompute;
    int n_stages, n_micro_batches, stage;
    const char *text;
} golden_t;

#define GPIPE SL_SCHEDULE_GPIPE
#define OFOB SL_SCHEDULE_1F1B
#define FIFO SL_BACKWARD_FIFO
#define LIFO SL_BACKWARD_LIFO
#define NONE SL_RECOMPUTE_NONE
#define FULL SL_RECOMPUTE_FULL
#define EXCEPT_LAST SL_RECOMPUTE_EXCEPT_LAST

static const golden_t goldens[] = {
    {GPIPE, FIFO, NONE, 1, 1, 0, "F0 B0 U"},
    {OFOB, FIFO, NONE, 1, 1, 0, "F0 B0 U"},
    {GPIPE, FIFO, NONE, 1, 3, 0, "F0 F1 F2 B0 B1 B2 U"},
    {GPIPE, LIFO, NONE, 1, 3, 0, "F0 F1 F2 B2 B1 B0 U"},
    {OFOB, FIFO, NONE, 1, 3, 0, "F0 B0 F1 B1 F2 B2 U"},
    {OFOB, FIFO, FULL, 1, 2, 0, "F0 R0 B0 F1 R1 B1 U"},
    {GPIPE, FIFO, NONE, 2, 1, 0, "F0 sf0 rb0 B0 U"},
    {OFOB, FIFO, NONE, 2, 1, 0, "F0 sf0 rb0 B0 U"},
    {GPIPE, FIFO, NONE, 2, 1, 1, "rf0 F0 B0 sb0 U"},
    {OFOB, FIFO, NONE, 2, 1, 1, "rf0 F0 B0 sb0 U"},
    {GPIPE, FIFO, NONE, 2, 3, 0, "F0 sf0 F1 sf1 F2 sf2 rb0 B0 rb1 B1 rb2 B2 U"},
    {GPIPE, FIFO, NONE, 2, 3, 1, "rf0 F0 rf1 F1 rf2 F2 B0 sb0 B1 sb1 B2 sb2 U"},
    {GPIPE, LIFO, NONE, 2, 3, 0, "F0 sf0 F1 sf1 F2 sf2 rb2 B2 rb1 B1 rb0 B0 U"},
    {GPIPE, LIFO, NONE, 2, 3, 1, "rf0 F0 rf1 F1 rf2 F2 B2 sb2 B1 sb1 B0 sb0 U"},
    {GPIPE, FIFO, FULL, 2, 3, 0,
     "F0 sf0 F1 sf1 F2 sf2 R0 rb0 B0 R1 rb1 B1 R2 rb2 B2 U"},
    {GPIPE, FIFO, FULL, 2, 3, 1,
     "rf0 F0 rf1 F1 rf2 F2 R0 B0 sb0 R1 B1 sb1 R2 B2 sb2 U"},
    {GPIPE, FIFO, EXCEPT_LAST, 2, 3, 0,
     "F0 sf0 F1 sf1 F2 sf2 R0 rb0 B0 R1 rb1 B1 rb2 B2 U"},
    {GPIPE, LIFO, EXCEPT_LAST, 2, 3, 1,
     "rf0 F0 rf1 F1 rf2 F2 B2 sb2 R1 B1 sb1 R0 B0 sb0 U"},
    {OFOB, FIFO, NONE, 2, 3, 0, "F0 sf0 F1 sf1 rb0 B0 F2 sf2 rb1 B1 rb2 B2 U"},
    {OFOB, FIFO, NONE, 2, 3, 1, "rf0 F0 B0 sb0 rf1 F1 B1 sb1 rf2 F2 B2 sb2 U"},
    {OFOB, FIFO, FULL, 2, 3, 0,
     "F0 sf0 F1 sf1 R0 rb0 B0 F2 sf2 R1 rb1 B1 R2 rb2 B2 U"},
    {OFOB, FIFO, EXCEPT_LAST, 2, 3, 1,
     "rf0 F0 R0 B0 sb0 rf1 F1 R1 B1 sb1 rf2 F2 B2 sb2 U"},
    {GPIPE, FIFO, NONE, 3, 2, 1,
     "rf0 F0 sf0 rf1 F1 sf1 rb0 B0 sb0 rb1 B1 sb1 U"},
    {OFOB, FIFO, NONE, 3, 2, 1,
     "rf0 F0 sf0 rf1 F1 sf1 rb0 B0 sb0 rb1 B1 sb1 U"},
    /* fewer micro-batches than stages: all of them are warm-up */
    {OFOB, FIFO, NONE, 4, 2, 0, "F0 sf0 F1 sf1 rb0 B0 rb1 B1 U"},
    {OFOB, FIFO, NONE, 4, 2, 2,
     "rf0 F0 sf0 rf1 F1 sf1 rb0 B0 sb0 rb1 B1 sb1 U"},
    {OFOB, FIFO, NONE, 4, 2, 3, "rf0 F0 B0 sb0 rf1 F1 B1 sb1 U"},
    {OFOB, FIFO, NONE, 4, 8, 0,
     "F0 sf0 F1 sf1 F2 sf2 F3 sf3 rb0 B0 F4 sf4 rb1 B1 F5 sf5 rb2 B2 F6 sf6 "
     "rb3 B3 F7 sf7 rb4 B4 rb5 B5 rb6 B6 rb7 B7 U"},
    {OFOB, FIFO, NONE, 4, 8, 1,
     "rf0 F0 sf0 rf1 F1 sf1 rf2 F2 sf2 rb0 B0 sb0 rf3 F3 sf3 rb1 B1 sb1 rf4 "
     "F4 sf4 rb2 B2 sb2 rf5 F5 sf5 rb3 B3 sb3 rf6 F6 sf6 rb4 B4 sb4 rf7 F7 "
     "sf7 rb5 B5 sb5 rb6 B6 sb6 rb7 B7 sb7 U"},
    {OFOB, FIFO, NONE, 4, 8, 3,
     "rf0 F0 B0 sb0 rf1 F1 B1 sb1 rf2 F2 B2 sb2 rf3 F3 B3 sb3 rf4 F4 B4 sb4 "
     "rf5 F5 B5 sb5 rf6 F6 B6 sb6 rf7 F7 B7 sb7 U"},
};

static void test_golden_texts(void **state)
{
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(goldens) / sizeof(*goldens); i++) {
        const golden_t *golden = &goldens[i];
        char text[TEXT_BYTES];
        lists_t lists;
        int length;

        lists_init(&lists, golden->kind, golden->order, golden->recompute,
                   golden->n_stages, golden->n_micro_batches);
        length =
            sl_schedule_format(&lists.items[golden->stage], text, sizeof(text));
        assert_string_equal(text, golden->text);
        assert_int_equal(length, (int)strlen(golden->text));
        lists_cleanup(&lists);
    }
}

/* The compute order written down a second time, from the definitions. */
static void expected_order(const sl_schedule_params_t *params, int stage,
                           char *text, size_t text_bytes)
{
    const int n = params->n_micro_batches;
    int warm_up = params->n_stages - stage - 1, forward = 0, backward = 0;
    size_t used = 0;

    if (params->kind == SL_SCHEDULE_GPIPE || warm_up > n) {
        warm_up = n;
    }
    while (backward < n) {
        if (forward < n && forward - backward <= warm_up &&
            (forward < warm_up || forward == backward + warm_up)) {
            used += (size_t)snprintf(text + used, text_bytes - used, "F%d ",
                                     forward++);
        } else {
            const int m =
                params->order == SL_BACKWARD_LIFO ? n - 1 - backward : backward;

            used += (size_t)snprintf(text + used, text_bytes - used, "B%d ", m);
            backward++;
        }
    }
    (void)snprintf(text + used, text_bytes - used, "U");
}

/* Keep what computes. */
static void keep_compute(sl_instruction_list_t *list)
{
    size_t i, n = 0;

    for (i = 0; i < list->n; i++) {
        const sl_instruction_kind_t kind = list->items[i].kind;

        if (kind == SL_INSTRUCTION_FORWARD || kind == SL_INSTRUCTION_BACKWARD ||
            kind == SL_INSTRUCTION_UPDATE) {
            list->items[n++] = list->items[i];
        }
    }
    list->n = n;
}

static void test_compute_order(void **state)
{
    int k, m, stage, variant;

    (void)state;
    for (variant = 0; variant < 3; variant++) {
        for (k = 1; k <= 4; k++) {
            for (m = 1; m <= 8; m++) {
                char text[TEXT_BYTES], expected[TEXT_BYTES];
                lists_t lists;

                lists_init(&lists, variant == 2 ? OFOB : GPIPE,
                           variant == 1 ? LIFO : FIFO, FULL, k, m);
                for (stage = 0; stage < k; stage++) {
                    keep_compute(&lists.items[stage]);
                    (void)sl_schedule_format(&lists.items[stage], text,
                                             sizeof(text));
                    expected_order(&lists.params, stage, expected,
                                   sizeof(expected));
                    assert_string_equal(text, expected);
                }
                lists_cleanup(&lists);
            }
        }
    }
}

static void test_format_is_cut(void **state)
{
    char text[8] = "xxxxxxx";
    lists_t lists;

    (void)state;
    lists_init(&lists, GPIPE, FIFO, NONE, 1, 3);
    assert_int_equal(sl_schedule_format(&lists.items[0], text, 6), 19);
    assert_string_equal(text, "F0 F1");
    assert_int_equal(text[6], 'x');
    assert_int_equal(sl_schedule_format(&lists.items[0], NULL, 0), 19);
    lists_cleanup(&lists);
}

/* ---- memory ---- */

static int most_in_flight(const sl_instruction_list_t *list)
{
    int now = 0, most = 0;
    size_t i;

    for (i = 0; i < list->n; i++) {
        now += list->items[i].kind == SL_INSTRUCTION_FORWARD;
        now -= list->items[i].kind == SL_INSTRUCTION_BACKWARD;
        most = now > most ? now : most;
    }
    return most;
}

static void test_in_flight(void **state)
{
    int k, m, stage;

    (void)state;
    for (k = 1; k <= MAX_STAGES; k++) {
        for (m = 1; m <= 20; m++) {
            lists_t lists;

            lists_init(&lists, OFOB, FIFO, NONE, k, m);
            for (stage = 0; stage < k; stage++) {
                assert_int_equal(most_in_flight(&lists.items[stage]),
                                 k - stage < m ? k - stage : m);
            }
            lists_cleanup(&lists);
            lists_init(&lists, GPIPE, FIFO, NONE, k, m);
            for (stage = 0; stage < k; stage++) {
                assert_int_equal(most_in_flight(&lists.items[stage]), m);
            }
            lists_cleanup(&lists);
        }
    }
}

/* ---- verification and makespans ---- */

/* Unit tests of time are exact in double: all are small integers. */
static void assert_makespan(double got, double want)
{
    if (got != want) {
        (void)fprintf(stderr, "makespan %g, not %g\n", got, want);
        fail();
    }
}

/* All stages equal, transfers free. Recomputation is hidden everywhere but
 * on the last stage, which never waits for a gradient. */
static double ideal(const sl_schedule_params_t *params, double forward,
                    double backward)
{
    const int k = params->n_stages, m = params->n_micro_batches;
    int n_recomputed = 0, i;

    for (i = 0; i < m; i++) {
        n_recomputed += sl_schedule_is_recomputed(params, i);
    }
    return (m + k - 1) * (forward + backward) + n_recomputed * forward;
}

static void check_case(lists_t *lists)
{
    static const double backwards[] = {1.0, 2.0, 3.0};
    const sl_schedule_params_t *params = &lists->params;
    size_t i;

    for (i = 0; i < sizeof(backwards) / sizeof(*backwards); i++) {
        sl_schedule_times_t times = {1.0, backwards[i],
                                     params->n_micro_batches};
        double makespan = -1.0;

        sl_assert_ok(sl_schedule_verify(params, lists->items, 1.0, backwards[i],
                                        &makespan));
        assert_makespan(makespan, ideal(params, 1.0, backwards[i]));
        /* as in the engine: sends never wait */
        sl_assert_ok(
            sl_schedule_simulate(params, lists->items, &times, &makespan));
        assert_makespan(makespan, ideal(params, 1.0, backwards[i]));
    }
}

static void test_grid(void **state)
{
    static const int stages[] = {1, 2, 3, 4, 8};
    static const sl_recompute_t recomputes[] = {NONE, FULL, EXCEPT_LAST};
    size_t s, b, r;
    int variant;

    (void)state;
    for (s = 0; s < sizeof(stages) / sizeof(*stages); s++) {
        const int k = stages[s];
        const int batches[] = {1, 2, k - 1, k, k + 1, 2 * k, 128};

        for (b = 0; b < sizeof(batches) / sizeof(*batches); b++) {
            for (r = 0; r < 3 && batches[b] > 0; r++) {
                for (variant = 0; variant < 3; variant++) {
                    lists_t lists;

                    lists_init(&lists, variant == 2 ? OFOB : GPIPE,
                               variant == 1 ? LIFO : FIFO, recomputes[r], k,
                               batches[b]);
                    check_case(&lists);
                    lists_cleanup(&lists);
                }
            }
        }
    }
}

/* Late recomputation, for comparison: R after rb. */
static void recompute_late(sl_instruction_list_t *list)
{
    size_t i;

    for (i = 0; i + 1 < list->n; i++) {
        if (list->items[i].kind == SL_INSTRUCTION_RECOMPUTE &&
            list->items[i + 1].kind == SL_INSTRUCTION_RECV_BACKWARD) {
            const sl_instruction_t recompute = list->items[i];

            list->items[i] = list->items[i + 1];
            list->items[i + 1] = recompute;
        }
    }
}

static void test_early_recomputation_is_faster(void **state)
{
    const int k = 4, m = 8;
    double makespan = 0.0;
    lists_t lists;
    int stage;

    (void)state;
    lists_init(&lists, GPIPE, FIFO, FULL, k, m);
    sl_assert_ok(
        sl_schedule_verify(&lists.params, lists.items, 1.0, 2.0, &makespan));
    assert_makespan(makespan, m * (2 * 1.0 + 2.0) + (k - 1) * (1.0 + 2.0));
    for (stage = 0; stage < k; stage++) {
        recompute_late(&lists.items[stage]);
    }
    sl_assert_ok(
        sl_schedule_verify(&lists.params, lists.items, 1.0, 2.0, &makespan));
    assert_makespan(makespan, m * (2 * 1.0 + 2.0) + (k - 1) * (2 * 1.0 + 2.0));
    lists_cleanup(&lists);
}

/* Neighbours in 1f1b's steady state send to each other: without a slot that
 * is a deadlock, and the verifier must see it. */
static void test_rendezvous(void **state)
{
    const sl_schedule_times_t times = {1.0, 2.0, 0};
    lists_t lists;

    (void)state;
    lists_init(&lists, GPIPE, LIFO, FULL, 4, 8);
    sl_assert_ok(
        sl_schedule_simulate(&lists.params, lists.items, &times, NULL));
    lists_cleanup(&lists);

    lists_init(&lists, OFOB, FIFO, NONE, 2, 3);
    sl_assert_status(
        sl_schedule_simulate(&lists.params, lists.items, &times, NULL),
        SL_ERR_CORRUPT);
    sl_assert_contains(sl_last_error(),
                       "deadlock: stage 0 waits at instruction 3 of 13, sf1, "
                       "for stage 1, which is at sb0");
    lists_cleanup(&lists);
}

/* ---- broken lists ---- */

static size_t find(const sl_instruction_list_t *list,
                   sl_instruction_kind_t kind, int micro_batch)
{
    size_t i;

    for (i = 0; i < list->n; i++) {
        if (list->items[i].kind == kind &&
            list->items[i].micro_batch == micro_batch) {
            return i;
        }
    }
    fail();
    return 0;
}

static void swap(sl_instruction_list_t *list, size_t a, size_t b)
{
    const sl_instruction_t item = list->items[a];

    list->items[a] = list->items[b];
    list->items[b] = item;
}

static void assert_broken(lists_t *lists, const char *message)
{
    double makespan = -1.0;

    sl_assert_status(
        sl_schedule_verify(&lists->params, lists->items, 1.0, 1.0, &makespan),
        SL_ERR_CORRUPT);
    sl_assert_contains(sl_last_error(), message);
    assert_makespan(makespan, -1.0);
    lists_cleanup(lists);
}

static void test_broken_lists(void **state)
{
    sl_instruction_list_t *list;
    lists_t lists;
    size_t i;

    (void)state;
    lists_init(&lists, GPIPE, FIFO, NONE, 2, 3);
    list = &lists.items[1];
    swap(list, find(list, SL_INSTRUCTION_RECV_FORWARD, 1),
         find(list, SL_INSTRUCTION_FORWARD, 1));
    assert_broken(&lists, "F1: what it needs does not come before it");

    lists_init(&lists, GPIPE, FIFO, NONE, 2, 3);
    lists.items[0].items[2].micro_batch = 0;
    assert_broken(&lists, "F0: it is there twice");

    lists_init(&lists, GPIPE, FIFO, NONE, 2, 3);
    lists.items[0].items[0].micro_batch = 3;
    assert_broken(&lists, "F3: there is no such instruction");

    lists_init(&lists, GPIPE, FIFO, NONE, 2, 3);
    lists.items[0].n--;
    assert_broken(&lists, "stage 0 does not end with the update");

    lists_init(&lists, GPIPE, FIFO, NONE, 2, 3);
    list = &lists.items[0];
    list->items[list->n - 2] = list->items[list->n - 1];
    list->n--;
    assert_broken(&lists, "stage 0 leaves out a part of micro-batch 2");

    lists_init(&lists, GPIPE, FIFO, NONE, 2, 3);
    lists.items[0].items[0].kind = SL_INSTRUCTION_RECV_FORWARD;
    assert_broken(&lists, "rf0: this stage does not need it");

    lists_init(&lists, GPIPE, FIFO, FULL, 1, 2);
    list = &lists.items[0];
    swap(list, find(list, SL_INSTRUCTION_RECOMPUTE, 0),
         find(list, SL_INSTRUCTION_BACKWARD, 0));
    assert_broken(&lists, "B0: what it needs does not come before it");

    /* gradients would be summed in another order */
    lists_init(&lists, GPIPE, LIFO, NONE, 2, 3);
    lists.params.order = FIFO;
    assert_broken(&lists, "backwards are not in the order asked");

    lists_init(&lists, GPIPE, FIFO, NONE, 1, 3);
    lists.params.kind = OFOB;
    assert_broken(&lists, "F1: more micro-batches are in flight");

    /* receives that cross, and a stage that waits before it sends */
    lists_init(&lists, GPIPE, FIFO, NONE, 2, 2);
    list = &lists.items[1];
    i = find(list, SL_INSTRUCTION_FORWARD, 0);
    swap(list, i, find(list, SL_INSTRUCTION_RECV_FORWARD, 1));
    swap(list, 0, 1);
    assert_broken(&lists, "rf1: its neighbour sends another micro-batch");

    lists_init(&lists, GPIPE, FIFO, NONE, 2, 1);
    list = &lists.items[0];
    swap(list, find(list, SL_INSTRUCTION_SEND_FORWARD, 0),
         find(list, SL_INSTRUCTION_RECV_BACKWARD, 0));
    assert_broken(&lists, "deadlock: stage 0 waits at instruction 1 of 5, "
                          "rb0, for stage 1, which is at rf0");
}

static void test_bad_params(void **state)
{
    const sl_schedule_params_t good = {GPIPE, FIFO, NONE, 2, 3};
    sl_schedule_params_t params = good;
    sl_instruction_list_t list = {0, NULL};

    (void)state;
    params.kind = OFOB;
    params.order = LIFO;
    sl_assert_status(sl_schedule_generate(&params, 0, &list), SL_ERR_CONFIG);
    sl_assert_contains(sl_last_error(), "lifo needs schedule gpipe");
    params = good;
    params.n_stages = 0;
    sl_assert_status(sl_schedule_generate(&params, 0, &list), SL_ERR_CONFIG);
    params = good;
    params.n_micro_batches = 0;
    sl_assert_status(sl_schedule_generate(&params, 0, &list), SL_ERR_CONFIG);
    params = good;
    sl_assert_status(sl_schedule_generate(&params, 2, &list), SL_ERR_CONFIG);
    sl_assert_contains(sl_last_error(), "stage 2 asked; there are stages 0");
    sl_assert_status(sl_schedule_generate(&params, -1, &list), SL_ERR_CONFIG);
    params.kind = (sl_schedule_kind_t)7;
    sl_assert_status(sl_schedule_generate(&params, 0, &list), SL_ERR_CONFIG);
    params = good;
    params.order = (sl_backward_order_t)7;
    sl_assert_status(sl_schedule_generate(&params, 0, &list), SL_ERR_CONFIG);
    params = good;
    params.recompute = (sl_recompute_t)7;
    sl_assert_status(sl_schedule_generate(&params, 0, &list), SL_ERR_CONFIG);
    assert_null(list.items);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(test_golden_texts),
        sl_unit_test(test_compute_order),
        sl_unit_test(test_format_is_cut),
        sl_unit_test(test_in_flight),
        sl_unit_test(test_grid),
        sl_unit_test(test_early_recomputation_is_faster),
        sl_unit_test(test_rendezvous),
        sl_unit_test(test_broken_lists),
        sl_unit_test(test_bad_params),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
