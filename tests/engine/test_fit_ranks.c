/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts under the limits of all ranks' devices: found whenever there are some,
 * the same on all ranks. */
#include <stdio.h>
#include <string.h>

#include "engine/fit.h"
#include "tests/engine/rank_bed.h"

enum {
    MAX_SLOTS = 6,
    N_LIMITS = 10
};

typedef struct outcome {
    int cuts[MAX_SLOTS + 1];
    sl_fit_t fit;
    int plan_fits;           /* a rehearsal of these cuts */
    int n_fit;               /* of all cuts there are; -1: not counted */
    size_t needs[MAX_SLOTS]; /* of the slots, with these cuts */
} outcome_t;

typedef struct search {
    size_t limits[MAX_SLOTS]; /* of the slots */
    int n_of_rank;            /* devices */
    int counts;               /* rehearse all cuts in two */
} search_t;

static outcome_t outcomes[RANKS_MAX];

static sl_model_t *build_resnet(void)
{
    const int64_t image[] = {1, 3, 32, 32}, label[] = {1};
    const sl_tensor_desc_t data = sl_tensor_desc(SL_DTYPE_F32, 4, image);
    const sl_tensor_desc_t target = sl_tensor_desc(SL_DTYPE_I32, 1, label);
    const sl_attr_t attrs[] = {{.name = "depth", .text = "18"},
                               {.name = "classes", .number = 10}};
    sl_model_t *model = NULL;

    sl_assert_ok(sl_model_build("resnet", attrs, 2, &data, &target, &model));
    return fixture_target(model);
}

static sl_status_t find(const sl_engine_params_t *params, outcome_t *outcome)
{
    const int n_micro = params->n_micro_batches * params->n_replicas;
    sl_part_problem_t problem = {.n_stages = params->n_stages,
                                 .recompute =
                                     params->recompute != SL_RECOMPUTE_NONE};
    sl_part_costs_t costs = {0};
    sl_part_speed_t speed;
    sl_status_t status;

    sl_part_speed_default(&speed, 1);
    status = sl_part_costs_analytic(
        params->model, sl_split_rows(params->batch_rows, n_micro, 0, NULL),
        &speed, &costs);
    if (status >= 0) {
        problem.costs = &costs;
        problem.link_bytes_per_us = speed.link_bytes_per_us;
        problem.link_latency_us = speed.link_latency_us;
        status = sl_engine_fit(params, &problem, outcome->cuts, &outcome->fit);
    }
    sl_part_costs_cleanup(&costs);
    return status;
}

static void set_limit(const sl_device_t *device, size_t bytes)
{
    sl_mem_limit_request(device->mem, bytes);
    sl_mem_boundary(device->mem, NULL);
}

/* Collective, as a rehearsal is. */
static int rehearse(bed_member_t *member, const int *cuts, size_t *needs)
{
    sl_engine_params_t params = member->params;
    sl_memory_plan_t plan;
    int d, fits;

    params.cuts = cuts;
    if (!MEMBER_OK(member, sl_engine_rehearse(&params, &plan))) {
        return 0;
    }
    for (d = 0; needs != NULL && d < plan.n_devices; d++) {
        needs[d] = plan.devices[d].held_bytes;
    }
    fits = plan.fits;
    sl_memory_plan_cleanup(&plan);
    return fits;
}

static void find_on_a_rank(bed_member_t *member)
{
    const search_t *search = member->bed->args;
    const int n = member->params.model->n_layers;
    outcome_t *got = &outcomes[member->rank];
    int d, cuts[3] = {0, 0, n};

    memset(got, 0, sizeof(*got));
    for (d = 0; d < search->n_of_rank; d++) {
        set_limit(&member->devices->devices[d],
                  search->limits[member->rank * search->n_of_rank + d]);
    }
    if (!MEMBER_OK(member, find(&member->params, got))) {
        return;
    }
    got->plan_fits = rehearse(member, got->cuts, got->needs);
    got->n_fit = search->counts ? 0 : -1;
    for (cuts[1] = 1; search->counts && cuts[1] < n; cuts[1]++) {
        got->n_fit += rehearse(member, cuts, NULL);
    }
}

/* All ranks have found the same, and it is right. */
static void check_outcome(const rank_bed_t *bed)
{
    const outcome_t *first = &outcomes[0];
    int r;

    for (r = 1; r < bed->n_ranks; r++) {
        const outcome_t *other = &outcomes[r];

        assert_memory_equal(first->cuts, other->cuts, sizeof(first->cuts));
        assert_int_equal(first->fit.fits, other->fit.fits);
        assert_int_equal(first->fit.n_rounds, other->fit.n_rounds);
        assert_int_equal(first->fit.slot, other->fit.slot);
        assert_true(first->fit.need_bytes == other->fit.need_bytes);
        assert_true(first->fit.limit_bytes == other->fit.limit_bytes);
    }
    assert_int_equal(first->fit.fits, first->plan_fits);
    if (first->n_fit >= 0) {
        assert_int_equal(first->fit.fits, first->n_fit > 0);
    }
    if (!first->fit.fits) {
        assert_true(first->fit.need_bytes > first->fit.limit_bytes);
    }
}

/* Kernels that are made once for all: by this thread, as a race detector does
 * not see how their library shares them. */
static void make_kernels(const fixture_run_t *run, int n_ranks)
{
    fixture_run_t alone = *run;
    sl_device_set_t *devices = NULL;
    sl_engine_params_t params;
    outcome_t outcome = {0};

    alone.n_devices = run->n_devices * n_ranks;
    fixture_params(&alone, &devices, &params);
    sl_assert_ok(find(&params, &outcome));
    set_limit(&devices->devices[0], 1 << 20);
    sl_assert_ok(find(&params, &outcome));
    sl_device_set_destroy(devices);
}

/* One slot has less and less, at last all have too little. */
static void check(const fixture_run_t *run, int n_ranks, int counts)
{
    const int n_slots = n_ranks * run->n_devices;
    static rank_bed_t bed;
    size_t needs[MAX_SLOTS];
    search_t search = {.n_of_rank = run->n_devices, .counts = counts};
    int i, d, n_moved = 0, n_none = 0;

    make_kernels(run, n_ranks);
    for (d = 0; d < n_slots; d++) {
        search.limits[d] = SIZE_MAX;
    }
    ranks_run(&bed, run, n_ranks, 0, find_on_a_rank, &search);
    check_outcome(&bed);
    assert_int_equal(outcomes[0].fit.n_rounds, 1);
    memcpy(needs, outcomes[0].needs, sizeof(needs));
    for (i = 0; i < N_LIMITS; i++) {
        const int short_slot = i % n_slots;

        for (d = 0; d < n_slots; d++) {
            search.limits[d] =
                i == N_LIMITS - 1 ? needs[d] / 8 : (size_t)SIZE_MAX;
        }
        if (i < N_LIMITS - 1) {
            search.limits[short_slot] =
                needs[short_slot] / N_LIMITS * (size_t)(N_LIMITS - i);
        }
        ranks_run(&bed, run, n_ranks, 0, find_on_a_rank, &search);
        check_outcome(&bed);
        n_moved += outcomes[0].fit.fits && outcomes[0].fit.n_rounds > 1;
        n_none += !outcomes[0].fit.fits;
    }
    print_message("%s: %d stages, %d ranks: %d limits move the cuts, %d fit "
                  "none\n",
                  run->model->name, run->n_stages, n_ranks, n_moved, n_none);
    assert_true(n_moved > 0 && n_none > 0);
}

static void ranks_find_cuts_that_fit(void **state)
{
    fixture_run_t run = {.rows = 16, .n_micro = 4, .n_stages = 2};

    (void)state;
    run.model = build_resnet();
    run.n_devices = 1;
    check(&run, 2, 1);
    run.n_stages = 4;
    run.n_devices = 2;
    run.schedule = SL_SCHEDULE_1F1B;
    check(&run, 2, 0);
    run.n_devices = 1;
    run.recompute = SL_RECOMPUTE_FULL;
    check(&run, 4, 0);
    run.n_stages = 2;
    run.n_replicas = 2;
    run.rows = 32;
    check(&run, 4, 0);
    sl_model_destroy(run.model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(ranks_find_cuts_that_fit),
    };

    return cmocka_run_group_tests_name("engine.fit_ranks", tests, NULL, NULL);
}
