/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers beside compute: the sums of times, what both ends of an edge say,
 * gradients that leave while the backward goes on; and ten thousand
 * micro-batches over an edge. */
#include <string.h>

#include "base/rng.h"
#include "engine/parallel/overlap.h"
#include "tests/engine/rank_bed.h"

enum {
    N_POINTS = 400,
    MANY = 10000 /* micro-batches */
};

/* ---- the sums ---- */

/* Every moment looked at by itself. */
static void sums_are_those_of_every_moment(void **state)
{
    sl_interval_t spans[40], joined[40], interval;
    uint32_t trial;

    (void)state;
    for (trial = 0; trial < 500; trial++) {
        const sl_rng_t rng = sl_rng_at(11, trial, 0, 0, 0);
        const size_t n = sl_rng_u32(&rng, 0) % 40;
        char is_busy[N_POINTS] = {0};
        uint64_t i, t, want = 0;
        size_t n_joined;

        for (i = 0; i < n; i++) {
            spans[i].start_ns = sl_rng_u32(&rng, 10 + i) % (N_POINTS - 50);
            spans[i].end_ns =
                spans[i].start_ns + sl_rng_u32(&rng, 100 + i) % 30;
            for (t = spans[i].start_ns; t < spans[i].end_ns; t++) {
                is_busy[t] = 1;
            }
        }
        memcpy(joined, spans, sizeof(joined));
        n_joined = sl_overlap_join(joined, n);
        for (i = 1; i < n_joined; i++) {
            assert_true(joined[i - 1].end_ns < joined[i].start_ns);
        }
        interval.start_ns = sl_rng_u32(&rng, 1) % (N_POINTS / 2);
        interval.end_ns =
            interval.start_ns + sl_rng_u32(&rng, 2) % (N_POINTS / 2);
        for (t = interval.start_ns; t < interval.end_ns; t++) {
            want += (uint64_t)is_busy[t];
        }
        assert_true(sl_overlap_under(joined, n_joined, &interval) == want);
    }
}

/* ---- edges ---- */

enum {
    MAX_EDGES = 64
};

static sl_edge_t edges[RANKS_MAX][MAX_EDGES];
static int n_edges[RANKS_MAX];

static void train_and_measure(bed_member_t *member)
{
    sl_step_report_t report;
    sl_edge_t *own = edges[member->rank];
    int i;

    n_edges[member->rank] = 0;
    if (!member_create(member)) {
        return;
    }
    for (i = 0; i < member->bed->n_batches; i++) {
        if (!MEMBER_OK(member,
                       sl_engine_step(member->engine, &member->bed->batches[i],
                                      &report))) {
            return;
        }
    }
    (void)MEMBER_OK(member, sl_engine_measure_overlap(member->engine));
    for (i = 0; i < MAX_EDGES && sl_engine_edge(member->engine, i, &own[i]);
         i++) {
        n_edges[member->rank]++;
    }
    (void)MEMBER_OK(member,
                    sl_engine_state_hash(member->engine, &member->result.hash));
}

static int is_other_end(const sl_edge_t *a, const sl_edge_t *b)
{
    return strcmp(a->kind, b->kind) == 0 && a->layer == b->layer &&
           a->from_replica == b->from_replica &&
           a->from_stage == b->from_stage && a->to_replica == b->to_replica &&
           a->to_stage == b->to_stage && a->is_sender != b->is_sender;
}

static void check_edges(const rank_bed_t *bed)
{
    int r, i, j, n_found, n_timed = 0;

    for (r = 0; r < bed->n_ranks; r++) {
        for (i = 0; i < n_edges[r]; i++) {
            const sl_edge_t *own = &edges[r][i];

            n_found = 0;
            for (j = 0; j < n_edges[own->peer]; j++) {
                const sl_edge_t *other = &edges[own->peer][j];

                if (is_other_end(own, other)) {
                    n_found++;
                    assert_true(own->n_timed == other->n_timed);
                    assert_true(own->transfer_ns == other->transfer_ns);
                    assert_true(own->under_sender_ns == other->under_sender_ns);
                    assert_true(own->under_receiver_ns ==
                                other->under_receiver_ns);
                }
            }
            assert_int_equal(n_found, 1);
            assert_true(own->n_timed == own->n_messages);
            assert_true(own->under_sender_ns <= own->transfer_ns);
            assert_true(own->under_receiver_ns <= own->transfer_ns);
            n_timed += own->n_timed > 0;
        }
    }
    assert_true(n_timed > 0);
}

static void both_ends_of_an_edge_say_the_same(void **state)
{
    static rank_bed_t bed;
    fixture_run_t run = {.rows = 12,
                         .n_micro = 3,
                         .n_devices = 1,
                         .n_stages = 2,
                         .n_replicas = 2,
                         .n_steps = 3};

    (void)state;
    run.model = fixture_gpt();
    ranks_run(&bed, &run, 4, 3, train_and_measure, NULL);
    check_edges(&bed);
    run.n_replicas = 1;
    run.n_stages = 4;
    run.n_devices = 2; /* several cells a rank */
    ranks_run(&bed, &run, 2, 3, train_and_measure, NULL);
    check_edges(&bed);
    sl_model_destroy(run.model);
}

/* ---- gradients ---- */

/* The end of the step's last backward here. */
static uint64_t last_backward_ns(const sl_engine_t *engine)
{
    const sl_trace_event_t *events;
    const size_t n = sl_engine_trace(engine, &events);
    uint64_t end_ns = 0;
    size_t i;

    for (i = 0; i < n; i++) {
        if (events[i].instruction.kind == SL_INSTRUCTION_BACKWARD &&
            events[i].end_ns > end_ns) {
            end_ns = events[i].end_ns;
        }
    }
    return end_ns;
}

/* One step. Ops run in order, so what was sent before a backward was submitted
 * is on its way before that ends, however slow the machine. */
static void step_and_look_at_parts(bed_member_t *member)
{
    sl_step_report_t report;
    sl_interval_t interval;
    uint64_t end_ns, i;
    int c, n_parts = 0, n_early = 0;

    if (!member_create(member) ||
        !MEMBER_OK(member, sl_engine_step(member->engine,
                                          &member->bed->batches[0], &report))) {
        return;
    }
    end_ns = last_backward_ns(member->engine);
    for (c = 0; c < member->engine->n_channels; c++) {
        const sl_channel_t *channel = &member->engine->channels[c];

        for (i = 0; channel->kind == SL_CHANNEL_PARTS && channel->is_sender &&
                    sl_channel_transfer(channel, i, &interval);
             i++) {
            n_parts++;
            n_early += interval.start_ns < end_ns;
        }
    }
    (void)MEMBER_CHECK(member, n_parts >= 4);
    (void)MEMBER_CHECK(member, n_early >= n_parts / 2);
}

static void gradients_leave_before_backward_ends(void **state)
{
    static rank_bed_t bed;
    fixture_run_t run = {.rows = 8,
                         .n_micro = 2,
                         .n_devices = 1,
                         .n_stages = 1,
                         .n_replicas = 2,
                         .bucket_bytes = 1};

    (void)state;
    run.model = fixture_gpt();
    for (run.zero1 = 0; run.zero1 < 2; run.zero1++) {
        ranks_run(&bed, &run, 2, 1, step_and_look_at_parts, NULL);
    }
    sl_model_destroy(run.model);
}

/* ---- many micro-batches ---- */

static void ten_thousand_micro_batches_cross_an_edge(void **state)
{
    static rank_bed_t bed;
    fixture_run_t run = {.rows = MANY,
                         .n_micro = MANY,
                         .n_devices = 1,
                         .n_stages = 2,
                         .schedule = SL_SCHEDULE_1F1B,
                         .n_steps = 1};
    fixture_result_t want;
    int i;

    (void)state;
    run.model = fixture_mlp();
    ranks_run(&bed, &run, 2, 1, train_and_measure, NULL);
    for (i = 0; i < n_edges[0]; i++) {
        assert_true(edges[0][i].n_messages == MANY);
        assert_true(edges[0][i].n_timed > 0);
    }
    run.n_stages = 1;
    want = fixture_train(&run);
    assert_true(bed.members[0].result.hash == want.hash);
    assert_true(bed.members[1].result.hash == want.hash);
    sl_model_destroy(run.model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(sums_are_those_of_every_moment),
        sl_unit_test(both_ends_of_an_edge_say_the_same),
        sl_unit_test(gradients_leave_before_backward_ends),
        sl_unit_test(ten_thousand_micro_batches_cross_an_edge),
    };

    return cmocka_run_group_tests_name("engine.overlap", tests, NULL, NULL);
}
