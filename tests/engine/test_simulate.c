/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator beside closed forms, the schedules' own verifier, and what
 * must hold for every step. */
#include "tests/engine/sim_bed.h"

/* ---- uniform stages, free links: (M + K - 1) (f + b) ---- */

static void uniform_stages_follow_the_law(void **state)
{
    bed_t bed;
    int k, m, kind;

    (void)state;
    for (k = 1; k <= 16; k++) {
        for (m = 1; m <= 40; m = m < 9 ? m + 1 : m * 2) {
            for (kind = 0; kind < 2; kind++) {
                bed_init(&bed, k, 1, k);
                bed.params.schedule = (sl_schedule_kind_t)kind;
                bed.params.n_micro_batches = m;
                assert_us(bed_run(&bed), (m + k - 1) * 300.0);
                assert_us(bed.result.bubble, (k - 1.0) / (m + k - 1));
                assert_us(bed.result.one_device_us, m * k * 300.0);
                assert_us(bed.result.efficiency, m / (m + k - 1.0));
                assert_int_equal(bed.result.n_messages, 2 * m * (k - 1));
                bed_cleanup(&bed);
            }
        }
    }
}

/* Latency is paid once on the way in and once on the way out, as long as it
 * is no longer than a forward; and by the two meetings, up and down. */
static void latency_is_paid_at_the_ends(void **state)
{
    bed_t bed;
    int k, m;

    (void)state;
    for (k = 2; k <= 9; k++) {
        for (m = 1; m <= 12; m++) {
            bed_init(&bed, k, 1, k);
            bed.cluster.groups[0].link.latency_us = 7.0;
            bed.params.n_micro_batches = m;
            assert_us(bed_run(&bed), (m + k - 1) * 300.0 + 2 * (k - 1) * 7.0 +
                                         4 * ceil(log2(k)) * 7.0);
            bed_cleanup(&bed);
        }
    }
}

/* Bytes on the wire, then the copy on the receiver's device: with two stages
 * a transfer each way lengthens the step, the rest hides. */
static void bytes_take_the_wire_and_the_device(void **state)
{
    bed_t bed;

    (void)state;
    bed_init(&bed, 2, 2, 1);
    bed.layers[1].cut_bytes = 1000;
    bed.cluster.groups[0].network.bytes_per_us = 100.0;
    bed.cluster.groups[0].memory_bytes_per_us = 400.0;
    bed.params.n_micro_batches = 1;
    /* 10 us on the wire, 2 * 1000 / 400 = 5 us to copy, each way */
    assert_us(bed_run(&bed), 600.0 + 2 * 15.0);
    assert_us(bed.result.path.part_us[SL_SIM_WIRE], 20.0);
    assert_us(bed.result.path.part_us[SL_SIM_COPY], 10.0);
    assert_int_equal(bed.result.path.n_hops, 2);
    assert_us(bed.result.far_bytes, 2000.0);
    assert_us(bed.result.near_bytes, 0.0);
    bed.params.has_free_links = 1;
    assert_us(bed_run(&bed), 600.0);
    bed_cleanup(&bed);
}

/* ---- the schedules' own verifier: all kinds, orders, recompute modes ---- */

static double verifier_us(const sl_sim_params_t *params, int n_slots)
{
    const sl_schedule_params_t schedule = {.kind = params->schedule,
                                           .order = params->backward_order,
                                           .recompute = params->recompute,
                                           .n_stages = params->n_stages,
                                           .n_micro_batches =
                                               params->n_micro_batches};
    const sl_schedule_times_t times = {
        .forward_us = 100.0, .backward_us = 200.0, .n_slots = n_slots};
    sl_instruction_list_t lists[BED_LAYERS];
    double makespan_us = 0.0;
    int k;

    for (k = 0; k < params->n_stages; k++) {
        sl_assert_ok(sl_schedule_generate(&schedule, k, &lists[k]));
    }
    sl_assert_ok(sl_schedule_simulate(&schedule, lists, &times, &makespan_us));
    for (k = 0; k < params->n_stages; k++) {
        sl_schedule_cleanup(&lists[k]);
    }
    return makespan_us;
}

static void every_schedule_agrees_with_the_verifier(void **state)
{
    static const sl_recompute_t modes[] = {SL_RECOMPUTE_NONE, SL_RECOMPUTE_FULL,
                                           SL_RECOMPUTE_EXCEPT_LAST,
                                           SL_RECOMPUTE_AUTO};
    bed_t bed;
    int k, m, i, mode, slots;

    (void)state;
    for (i = 0; i < 3 * 4 * 3; i++) {
        mode = i / 3 % 4;
        slots = 1 + i / 12;
        for (k = 1; k <= 7; k++) {
            for (m = 1; m <= 9; m++) {
                bed_init(&bed, k, 1, k);
                bed.params.schedule =
                    i % 3 == 0 ? SL_SCHEDULE_1F1B : SL_SCHEDULE_GPIPE;
                bed.params.backward_order =
                    i % 3 == 2 ? SL_BACKWARD_LIFO : SL_BACKWARD_FIFO;
                bed.params.recompute = modes[mode];
                bed.params.n_micro_batches = m;
                bed.params.n_slots = slots;
                assert_us(bed_run(&bed), verifier_us(&bed.params, slots));
                bed_cleanup(&bed);
            }
        }
    }
}

static void kept_layers_are_not_recomputed(void **state)
{
    unsigned char keeps[2] = {1, 0};
    bed_t bed;

    (void)state;
    bed_init(&bed, 2, 1, 1);
    bed.params.n_stages = 1;
    bed.cuts[1] = 2;
    bed.params.n_micro_batches = 3;
    bed.params.recompute = SL_RECOMPUTE_AUTO;
    bed.params.keeps = keeps;
    assert_us(bed_run(&bed), 3 * (600.0 + 100.0));
    assert_us(bed.result.path.part_us[SL_SIM_RECOMPUTE], 300.0);
    bed_cleanup(&bed);
}

/* ---- replicas ---- */

static void replicas_on_free_links_cost_nothing(void **state)
{
    bed_t bed;
    double alone_us;
    int r, k, l;

    (void)state;
    for (k = 1; k <= 4; k++) {
        bed_init(&bed, 8, 4, 4);
        for (l = 0; l < 8; l++) {
            bed.layers[l].trained_bytes = (size_t)3 << 20;
            bed.layers[l].cut_bytes = 1000;
        }
        for (l = 0; l <= k; l++) {
            bed.cuts[l] = 8 * l / k;
        }
        bed.params.n_stages = k;
        bed.params.n_micro_batches = 5;
        alone_us = bed_run(&bed);
        for (r = 2; r <= 4; r++) {
            bed.params.n_replicas = r;
            bed.params.is_sharded = r % 2;
            assert_us(bed_run(&bed), alone_us);
            assert_us(bed.result.efficiency, 2400.0 * 5 / (k * alone_us));
        }
        bed_cleanup(&bed);
    }
}

/* Two replicas of one stage on two hosts, a bucket of 8 MiB at the end. */
static void init_pair(bed_t *bed)
{
    bed_init(bed, 1, 2, 1);
    bed->layers[0].trained_bytes = 8000000;
    bed->cluster.groups[0].network =
        (sl_cluster_link_t){.latency_us = 5.0, .bytes_per_us = 1000.0};
    bed->cluster.groups[0].memory_bytes_per_us = 10000.0;
    bed->params.n_replicas = 2;
    bed->params.n_micro_batches = 2;
}

static void one_bucket_of_two_replicas(void **state)
{
    const double wire = 4000.0, latency = 5.0, sum = 3 * 400.0;
    const double copy = 2 * 400.0, meet = 2 * latency, update = 4 * 800.0;
    bed_t bed;

    (void)state;
    init_pair(&bed);
    /* half the bucket to the owner, the sum of two parts, sums to all */
    assert_us(bed_run(&bed), 600.0 + (latency + wire) + sum + (latency + wire) +
                                 copy + meet + update + meet);
    assert_int_equal(bed.result.n_messages, 4);
    assert_us(bed.result.far_bytes, 4 * 4e6);
    /* each updates half, new values to all */
    bed.params.is_sharded = 1;
    assert_us(bed_run(&bed), 600.0 + (latency + wire) + sum + meet +
                                 update / 2 + (latency + wire) + copy + meet);
    /* moments: each is read and written */
    bed.params.n_moments = 2;
    assert_us(bed.result.path.part_us[SL_SIM_UPDATE], update / 2);
    (void)bed_run(&bed);
    assert_us(bed.result.path.part_us[SL_SIM_UPDATE], update);
    bed_cleanup(&bed);
}

/* The bucket of the later layer travels while the earlier one's backward
 * runs. */
static void buckets_hide_behind_the_backward(void **state)
{
    const double tail = 4000.0 + 5.0;
    bed_t bed;

    (void)state;
    init_pair(&bed);
    bed.cluster.groups[0].memory_bytes_per_us = 0.0;
    bed.costs.n_layers = 2;
    bed.cuts[1] = 2;
    bed.layers[1] = bed.layers[0];
    bed.layers[0].trained_bytes = 4;
    bed.layers[0].forward_us = 100.0;
    bed.layers[0].backward_us = 5000.0;
    bed.params.n_micro_batches = 1;
    bed.params.is_sharded = 1;
    /* the first bucket is there before the second is ready; the values of
     * both come after the update */
    assert_us(bed_run(&bed), 100.0 + 100.0 + 200.0 + 5000.0 + (5.0 + 0.002) +
                                 10.0 + (tail + 0.002) + 10.0);
    /* one bucket of both waits for the last layer */
    bed.params.bucket_bytes = 100 << 20;
    assert_us(bed_run(&bed), 100.0 + 100.0 + 200.0 + 5000.0 + (tail + 0.002) +
                                 10.0 + (tail + 0.002) + 10.0);
    bed_cleanup(&bed);
}

/* Four replicas on two hosts of two devices: what goes to the other host
 * passes one card, what stays has a link of its own. */
static void a_host_has_one_card(void **state)
{
    bed_t bed;

    (void)state;
    init_pair(&bed);
    bed.cluster.groups[0].n_devices = 2;
    bed.cluster.n_devices = 4;
    bed.cluster.groups[0].memory_bytes_per_us = 0.0;
    bed.params.n_replicas = 4;
    bed.params.is_sharded = 1;
    /* each device sends 2 of 4 chunks of 2 MB to the other host: 2 devices,
     * 8 ms; the meeting: one link down, one host across */
    assert_us(bed_run(&bed),
              600.0 + (5.0 + 8000.0) + 10.0 + (5.0 + 8000.0) + 10.0);
    assert_us(bed.result.far_bytes, 2 * 4 * 4e6);
    assert_us(bed.result.near_bytes, 2 * 4 * 2e6);
    /* each message costs the card time */
    bed.cluster.groups[0].network.message_us = 3.0;
    assert_us(bed_run(&bed), 600.0 + 2 * (5.0 + 8000.0 + 4 * 3.0) + 2 * 10.0);
    bed_cleanup(&bed);
}

static void tied_gradients_go_to_the_owner_and_values_back(void **state)
{
    const sl_sim_tie_t tie = {.owner_layer = 0, .user_layer = 2, .bytes = 4000};
    bed_t bed;
    double untied_us;

    (void)state;
    bed_init(&bed, 3, 1, 6);
    bed.layers[0].trained_bytes = 4000;
    bed.layers[2].trained_bytes = 4000;
    bed.cluster.groups[0].link.bytes_per_us = 20.0;
    untied_us = bed_run(&bed);
    bed.params.ties = &tie;
    bed.params.n_ties = 1;
    /* the gradient leaves after the last stage's backward, 200 us before the
     * first stage's begins; the values after the update */
    assert_us(bed_run(&bed), untied_us + 200.0);
    /* longer: the first stage's own gradient comes behind it */
    bed.cluster.groups[0].link.bytes_per_us = 10.0;
    assert_us(bed_run(&bed), untied_us + 200.0 + 400.0);
    /* with replicas the shared parameter has a bucket of its own: 4 messages
     * between two cells, 1 for the other stages' bucket each */
    bed.layers[0].trained_bytes = 5000;
    bed.layers[1].trained_bytes = 1000;
    bed.params.n_replicas = 2;
    (void)bed_run(&bed);
    assert_int_equal(bed.result.n_messages, 3 * 4 + 2 * (4 + 2));
    bed_cleanup(&bed);
}

/* ---- what must hold ---- */

static void init_random(bed_t *bed, uint64_t seed)
{
    uint64_t n = 0;
    const int n_hosts = 1 + bed_draw(seed, &n, 4);
    const int n_devices = 1 + bed_draw(seed, &n, 4);
    int k = 1 + bed_draw(seed, &n, 6), l;
    sl_cluster_group_t *group = &bed->cluster.groups[0];

    bed_init(bed, 12, n_hosts, n_devices);
    for (l = 0; l < 12; l++) {
        bed->layers[l].forward_us = bed_draw(seed, &n, 1000);
        bed->layers[l].backward_us = bed_draw(seed, &n, 2000);
        bed->layers[l].cut_bytes = (size_t)bed_draw(seed, &n, 100000);
        bed->layers[l].trained_bytes = (size_t)bed_draw(seed, &n, 1000000);
        bed->layers[l].kept_bytes = (size_t)bed_draw(seed, &n, 1000000);
    }
    for (l = 0; l <= k; l++) {
        bed->cuts[l] = 12 * l / k;
    }
    group->link =
        (sl_cluster_link_t){.latency_us = bed_draw(seed, &n, 50),
                            .bytes_per_us = 100.0 * bed_draw(seed, &n, 20)};
    group->network =
        (sl_cluster_link_t){.latency_us = bed_draw(seed, &n, 100),
                            .bytes_per_us = 100.0 * bed_draw(seed, &n, 20),
                            .message_us = bed_draw(seed, &n, 3)};
    group->memory_bytes_per_us = 1000.0 * bed_draw(seed, &n, 20);
    bed->params.n_stages = k;
    bed->params.n_replicas = 1 + bed_draw(seed, &n, 5);
    bed->params.n_micro_batches = 1 + bed_draw(seed, &n, 9);
    bed->params.schedule = (sl_schedule_kind_t)bed_draw(seed, &n, 2);
    bed->params.recompute = (sl_recompute_t)bed_draw(seed, &n, 4);
    bed->params.is_sharded = bed_draw(seed, &n, 2);
    bed->params.n_moments = bed_draw(seed, &n, 3);
    bed->params.bucket_bytes = 1 + (size_t)bed_draw(seed, &n, 2000000);
    bed->params.n_slots = 1 + bed_draw(seed, &n, 4);
}

static void random_steps_are_sound(void **state)
{
    bed_t bed;
    uint64_t seed;

    (void)state;
    for (seed = 0; seed < 400; seed++) {
        sl_sim_path_t path;
        double step_us, free_us;

        init_random(&bed, seed);
        step_us = bed_run(&bed);
        path = bed.result.path;
        /* the same again, to the bit */
        (void)bed_run(&bed);
        assert_memory_equal(&path, &bed.result.path, sizeof(path));
        bed.params.has_free_links = 1;
        free_us = bed_run(&bed);
        if (bed.params.n_replicas * bed.params.n_stages <=
            bed.cluster.n_devices) {
            assert_true(free_us <= step_us * (1.0 + 1e-9));
        }
        /* all twice as fast: half the time */
        bed.cluster.groups[0].speed = 2.0;
        bed.cluster.groups[0].memory_bytes_per_us *= 2.0;
        assert_us(bed_run(&bed), free_us / 2);
        bed_cleanup(&bed);
    }
}

/* Two stages on two hosts: no transfer has to wait for another kind. */
static void faster_networks_are_not_slower(void **state)
{
    bed_t bed;
    uint64_t seed, n = 0;

    (void)state;
    for (seed = 0; seed < 100; seed++) {
        double before_us;

        init_random(&bed, seed);
        bed.params.n_stages = 2;
        bed.params.n_replicas = 1;
        bed.cuts[0] = 0;
        bed.cuts[1] = 1 + bed_draw(seed, &n, 10);
        bed.cuts[2] = 12;
        bed.cluster.n_hosts = 2;
        bed.cluster.n_devices = 2;
        bed.cluster.groups[0].n_hosts = 2;
        bed.cluster.groups[0].n_devices = 1;
        bed.cluster.groups[0].network.bytes_per_us = 10.0;
        before_us = bed_run(&bed);
        bed.cluster.groups[0].network.bytes_per_us = 50.0;
        assert_true(bed_run(&bed) <= before_us);
        before_us = bed.result.step_us;
        bed.cluster.groups[0].network.latency_us /= 2;
        assert_true(bed_run(&bed) <= before_us);
        bed_cleanup(&bed);
    }
}

static void a_device_does_one_thing_at_a_time(void **state)
{
    bed_t bed;
    uint64_t seed;
    size_t i, j;

    (void)state;
    for (seed = 0; seed < 40; seed++) {
        init_random(&bed, seed);
        bed.params.has_trace = 1;
        /* one device has all cells in half of the cases */
        if (seed % 2 == 0) {
            bed.cluster.groups[0].n_hosts = 1;
            bed.cluster.groups[0].n_devices = 1;
            bed.cluster.n_hosts = 1;
            bed.cluster.n_devices = 1;
        }
        (void)bed_run(&bed);
        assert_true(bed.result.n_trace > 0);
        for (i = 0; i < bed.result.n_trace; i++) {
            const sl_trace_event_t *a = &bed.result.trace[i];

            assert_in_range(a->stage, 0,
                            bed.params.n_stages * bed.params.n_replicas - 1);
            assert_true((double)a->end_ns <= bed.result.step_us * 1e3 + 2);
            for (j = 0; j < i; j++) {
                const sl_trace_event_t *b = &bed.result.trace[j];

                if (seed % 2 == 0 || a->stage == b->stage) {
                    /* times are cut to whole nanoseconds */
                    assert_true(a->start_ns + 1 >= b->end_ns ||
                                b->start_ns + 1 >= a->end_ns);
                }
            }
        }
        bed_cleanup(&bed);
    }
}

/* ---- memory ---- */

static void memory_is_checked_by_device(void **state)
{
    bed_t bed;
    int k;

    (void)state;
    bed_init(&bed, 4, 1, 4);
    for (k = 0; k < 4; k++) {
        bed.layers[k].kept_bytes = 1000;
        bed.layers[k].param_bytes = 100;
        bed.layers[k].trained_bytes = 100;
    }
    bed.params.n_micro_batches = 8;
    bed.params.n_moments = 2;
    bed.cluster.groups[0].memory_bytes = 8400;
    (void)bed_run(&bed);
    assert_int_equal(bed.result.stages[0].memory_bytes, 8 * 1000 + 400);
    assert_true(bed.result.fits);
    /* 1f1b holds no more than the stages behind */
    bed.params.schedule = SL_SCHEDULE_1F1B;
    (void)bed_run(&bed);
    for (k = 0; k < 4; k++) {
        assert_int_equal(bed.result.stages[k].memory_bytes,
                         (4 - k) * 1000 + 400);
    }
    bed.cluster.groups[0].memory_bytes = 3000;
    (void)bed_run(&bed);
    assert_false(bed.result.fits);
    assert_false(bed.result.stages[0].fits);
    assert_true(bed.result.stages[2].fits);
    bed_cleanup(&bed);
}

static void auto_recomputes_until_it_fits(void **state)
{
    unsigned char keeps[4];
    bed_t bed;
    int k;

    (void)state;
    bed_init(&bed, 4, 1, 1);
    bed.params.n_stages = 1;
    bed.cuts[1] = 4;
    bed.params.recompute = SL_RECOMPUTE_AUTO;
    bed.params.n_micro_batches = 8;
    for (k = 0; k < 4; k++) {
        bed.layers[k].kept_bytes = (size_t)(k + 1) * 100;
    }
    sl_sim_choose_keeps(&bed.params, keeps);
    assert_memory_equal(keeps, "\1\1\1\1", 4);
    bed.cluster.groups[0].memory_bytes = 8 * 600 + 400;
    sl_sim_choose_keeps(&bed.params, keeps);
    assert_memory_equal(keeps, "\1\1\1\0", 4);
    bed.cluster.groups[0].memory_bytes = 1;
    sl_sim_choose_keeps(&bed.params, keeps);
    assert_memory_equal(keeps, "\0\0\0\0", 4);
    bed_cleanup(&bed);
}

/* ---- refusals ---- */

static void impossible_grids_are_refused(void **state)
{
    sl_sim_tie_t tie = {.owner_layer = 2, .user_layer = 1};
    bed_t bed;

    (void)state;
    bed_init(&bed, 4, 1, 4);
    bed.params.n_replicas = 0;
    sl_assert_status(sl_simulate(&bed.params, &bed.result), SL_ERR_CONFIG);
    bed.params.n_replicas = 40000;
    sl_assert_status(sl_simulate(&bed.params, &bed.result), SL_ERR_CONFIG);
    sl_assert_contains(sl_last_error(), "40000 replicas of 4 stages");
    bed.params.n_replicas = 1;
    bed.params.n_stages = 5;
    sl_assert_status(sl_simulate(&bed.params, &bed.result), SL_ERR_CONFIG);
    bed.params.n_stages = 4;
    bed.params.n_micro_batches = 0;
    sl_assert_status(sl_simulate(&bed.params, &bed.result), SL_ERR_CONFIG);
    bed.params.n_micro_batches = 1;
    bed.params.n_slots = 0;
    sl_assert_status(sl_simulate(&bed.params, &bed.result), SL_ERR_INVALID_ARG);
    bed.params.n_slots = 2;
    bed.params.ties = &tie;
    bed.params.n_ties = 1;
    sl_assert_status(sl_simulate(&bed.params, &bed.result), SL_ERR_INVALID_ARG);
    bed.params.n_ties = 0;
    bed.layers[3].backward_us = NAN;
    sl_assert_status(sl_simulate(&bed.params, &bed.result), SL_ERR_INVALID_ARG);
    sl_assert_contains(sl_last_error(), "layer 3 takes");
    bed.layers[3].backward_us = 1.0;
    bed.cuts[2] = 1;
    sl_assert_status(sl_simulate(&bed.params, &bed.result), SL_ERR_CONFIG);
    assert_null(bed.result.stages);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(uniform_stages_follow_the_law),
        sl_unit_test(latency_is_paid_at_the_ends),
        sl_unit_test(bytes_take_the_wire_and_the_device),
        sl_unit_test(every_schedule_agrees_with_the_verifier),
        sl_unit_test(kept_layers_are_not_recomputed),
        sl_unit_test(replicas_on_free_links_cost_nothing),
        sl_unit_test(one_bucket_of_two_replicas),
        sl_unit_test(buckets_hide_behind_the_backward),
        sl_unit_test(a_host_has_one_card),
        sl_unit_test(tied_gradients_go_to_the_owner_and_values_back),
        sl_unit_test(random_steps_are_sound),
        sl_unit_test(faster_networks_are_not_slower),
        sl_unit_test(a_device_does_one_thing_at_a_time),
        sl_unit_test(memory_is_checked_by_device),
        sl_unit_test(auto_recomputes_until_it_fits),
        sl_unit_test(impossible_grids_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
