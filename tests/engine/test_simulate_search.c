/* SPDX-License-Identifier: Apache-2.0 */
/* The search of the best grid beside trying them all; a thousand devices;
 * host allocations that fail. */
#include "tests/engine/sim_bed.h"
#include "tests/support/alloc_fail.h"

enum {
    N_LAYERS = 12,
    MAX_ALLOCS = 2000
};

typedef struct contest {
    bed_t bed;
    sl_part_layer_t large[N_LAYERS];
    sl_part_costs_t large_costs;
    sl_search_size_t sizes[2];
    sl_search_params_t params;
} contest_t;

/* Micro-batches of one row, and of four, which cost less a row. */
static void contest_init(contest_t *contest, int n_devices)
{
    bed_t *bed = &contest->bed;
    sl_cluster_group_t *group = &bed->cluster.groups[0];
    int l;

    memset(contest, 0, sizeof(*contest));
    bed_init(bed, N_LAYERS, (n_devices + 3) / 4, 4);
    for (l = 0; l < N_LAYERS; l++) {
        bed->layers[l].forward_us = 100.0 + 37.0 * (l % 5);
        bed->layers[l].backward_us = 230.0 + 11.0 * (l % 3);
        bed->layers[l].cut_bytes = l == 0 ? 0 : 20000;
        bed->layers[l].trained_bytes = 400000;
        bed->layers[l].param_bytes = 400000;
        bed->layers[l].kept_bytes = 100000;
        contest->large[l] = bed->layers[l];
        contest->large[l].forward_us *= 3.0;
        contest->large[l].backward_us *= 3.0;
        contest->large[l].cut_bytes *= 4;
        contest->large[l].kept_bytes *= 4;
    }
    group->link =
        (sl_cluster_link_t){.latency_us = 5.0, .bytes_per_us = 1000.0};
    group->network =
        (sl_cluster_link_t){.latency_us = 20.0, .bytes_per_us = 2000.0};
    group->memory_bytes_per_us = 10000.0;
    contest->large_costs.n_layers = N_LAYERS;
    contest->large_costs.layers = contest->large;
    contest->sizes[0] = (sl_search_size_t){.rows = 1, .costs = &bed->costs};
    contest->sizes[1] =
        (sl_search_size_t){.rows = 4, .costs = &contest->large_costs};
    contest->params = (sl_search_params_t){.base = bed->params,
                                           .policy = &sl_part_dp,
                                           .sizes = contest->sizes,
                                           .n_sizes = 2,
                                           .batch_rows = 64,
                                           .n_devices = n_devices};
}

/* The least step of all grids with `n` devices and a size; HUGE_VAL: none
 * fits. */
static double try_all_us(contest_t *contest, const sl_search_size_t *size)
{
    const int n = contest->params.n_devices;
    const int n_micro = (int)(contest->params.batch_rows / size->rows);
    bed_t *bed = &contest->bed;
    double best = HUGE_VAL;
    int k;

    bed->params.costs = size->costs;
    for (k = 1; k <= n && k <= N_LAYERS; k++) {
        if (n % k != 0 && k != 1 && k != 2 && k != 4 && k != 8) {
            continue;
        }
        bed->params.n_stages = k;
        bed->params.n_replicas = n / k < n_micro ? n / k : n_micro;
        bed->params.n_micro_batches =
            (n_micro + bed->params.n_replicas - 1) / bed->params.n_replicas;
        sl_assert_ok(sl_search_cuts(&sl_part_dp, &bed->params, bed->cuts));
        (void)bed_run(bed);
        if (bed->result.fits && bed->result.step_us < best) {
            best = bed->result.step_us;
        }
    }
    return best;
}

static void the_search_finds_the_best(void **state)
{
    static contest_t contest;
    sl_search_choice_t choice;
    int n, memory;

    (void)state;
    for (n = 1; n <= 32; n++) {
        for (memory = 0; memory < 3; memory++) {
            double best;

            contest_init(&contest, n);
            contest.params.base.is_sharded = n % 2;
            contest.bed.params.is_sharded = n % 2;
            contest.bed.cluster.groups[0].memory_bytes = memory == 0 ? 0
                                                         : memory == 1
                                                             ? 8000000
                                                             : 2000000;
            sl_assert_ok(sl_search(&contest.params, &choice));
            best = fmin(try_all_us(&contest, &contest.sizes[0]),
                        try_all_us(&contest, &contest.sizes[1]));
            if (choice.n_simulated == 0) {
                assert_true(best >= HUGE_VAL);
                assert_int_equal(choice.n_fitting, 0);
            } else {
                assert_us(choice.result.step_us, best);
                assert_true(choice.free_us <= best * (1.0 + 1e-9));
                assert_true(choice.n_replicas * choice.n_stages <= n);
                assert_us(choice.rows_per_s, 64e6 / best);
            }
            bed_cleanup(&contest.bed);
        }
    }
}

/* A device that is three times as fast gets about three times as much. */
static void cuts_follow_the_speeds(void **state)
{
    bed_t bed;
    int l;

    (void)state;
    bed_init(&bed, N_LAYERS, 1, 1);
    for (l = 0; l < N_LAYERS; l++) {
        bed.layers[l].cut_bytes = 10;
    }
    bed.cluster.groups[1] = bed.cluster.groups[0];
    bed.cluster.groups[1].speed = 3.0;
    bed.cluster.n_groups = 2;
    bed.cluster.n_hosts = 2;
    bed.cluster.n_devices = 2;
    bed.params.n_stages = 2;
    bed.params.n_micro_batches = 4;
    sl_assert_ok(sl_search_cuts(&sl_part_dp, &bed.params, bed.cuts));
    assert_int_equal(bed.cuts[1], 3);
    /* three layers' passes in 900 us on both: (4 + 1) of them */
    assert_us(bed_run(&bed), 5 * 900.0);
    assert_us(bed.result.efficiency, 4 * 12 * 300.0 / (4.0 * 5 * 900.0));
    bed_cleanup(&bed);
}

static void a_thousand_devices(void **state)
{
    static contest_t contest;
    sl_search_choice_t choice;

    (void)state;
    contest_init(&contest, 1024);
    contest.params.batch_rows = 4096;
    sl_assert_ok(sl_search(&contest.params, &choice));
    assert_in_range(choice.n_simulated, 1, choice.n_tried);
    assert_true(choice.result.n_devices > 512);
    assert_true(choice.result.efficiency <= 1.0);
}

static void bad_searches_are_refused(void **state)
{
    static contest_t contest;
    sl_search_choice_t choice;

    (void)state;
    contest_init(&contest, 4);
    contest.params.n_devices = 5;
    sl_assert_status(sl_search(&contest.params, &choice), SL_ERR_INVALID_ARG);
    sl_assert_contains(sl_last_error(), "5 devices asked, the cluster has 4");
    contest.params.n_devices = 4;
    contest.params.policy = NULL;
    sl_assert_status(sl_search(&contest.params, &choice), SL_ERR_INVALID_ARG);
}

static void every_allocation_may_fail(void **state)
{
    static contest_t contest;
    sl_sim_tie_t tie = {.owner_layer = 0, .user_layer = 11, .bytes = 1000};
    sl_search_choice_t choice;
    int n, is_hit = 1;

    (void)state;
    contest_init(&contest, 4);
    contest.params.base.ties = &tie;
    contest.params.base.n_ties = 1;
    contest.params.base.recompute = SL_RECOMPUTE_AUTO;
    for (n = 0; is_hit && n < MAX_ALLOCS; n++) {
        sl_status_t status;

        sl_test_alloc_fail_at(n);
        status = sl_search(&contest.params, &choice);
        is_hit = sl_test_alloc_fail_end();
        assert_int_equal(status, is_hit ? SL_ERR_NO_MEMORY : SL_OK);
        (void)sl_test_log_take();
    }
    assert_in_range(n, 20, MAX_ALLOCS - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(the_search_finds_the_best),
        sl_unit_test(cuts_follow_the_speeds),
        sl_unit_test(a_thousand_devices),
        sl_unit_test(bad_searches_are_refused),
        sl_unit_test(every_allocation_may_fail),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
