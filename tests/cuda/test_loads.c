/* SPDX-License-Identifier: Apache-2.0 */
/* The batch's way to the device while a model trains: loads run beside the
 * pass before the one that reads them, change no bit, and take no memory that
 * a step cannot spare. The stand-in watches their order in all of it. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/engine_internal.h"
#include "engine/schedule/schedule.h"
#include "standin.h"
#include "tests/engine/engine_fixture.h"

enum {
    N_MICRO = 5,
    MAX_DEVICES = 2,
    MAX_GRAPHS = 4 * N_MICRO + 1,
    N_TRIES = 20000, /* of a millisecond: a bound, not a measure */
    N_STEPS = 3,
    TAKEN_BYTES = 32 << 10,
    MAX_TAKEN = 32
};

static int reset(void **state)
{
    const int n_reports = standin_n_reports();

    standin_set_graph_hook(NULL);
    standin_reset();
    return sl_test_teardown(state) || n_reports != 0;
}

static void pause_ms(void)
{
    const struct timespec nap = {.tv_nsec = 1000000};

    (void)nanosleep(&nap, NULL);
}

/* ---- beside the compute ---- */

/* Of a step: how many loads have to come before the n-th graph ends. */
typedef struct expected {
    uint64_t n_loads[MAX_GRAPHS];
    int n_graphs;
    uint64_t before; /* the step */
    atomic_int n_begun;
} expected_t;

static expected_t expected[MAX_DEVICES];
static atomic_int n_late;

/* The pass does not go on before what the next one reads is there. Were that
 * loaded in the order of the ops, it would never be. */
static void await_loads(int device)
{
    expected_t *of = &expected[device];
    const int i = atomic_fetch_add(&of->n_begun, 1);
    int tries = 0;

    if (i >= of->n_graphs) {
        return; /* the update */
    }
    while (standin_n_loads(device) - of->before < of->n_loads[i] &&
           atomic_load(&n_late) == 0) {
        if (tries++ == N_TRIES) {
            (void)atomic_fetch_add(&n_late, 1);
        }
        pause_ms();
    }
}

static int is_pass(sl_instruction_kind_t kind)
{
    return kind == SL_INSTRUCTION_FORWARD || kind == SL_INSTRUCTION_RECOMPUTE ||
           kind == SL_INSTRUCTION_BACKWARD;
}

/* The passes of a stage are graphs, in the order of its program. */
static void expect(const fixture_run_t *run, int stage, uint64_t n_loads)
{
    const sl_schedule_params_t params = {.kind = run->schedule,
                                         .order = run->order,
                                         .recompute = run->recompute,
                                         .n_stages = run->n_stages,
                                         .n_micro_batches = N_MICRO};
    const uint64_t by_forward =
        (uint64_t)(stage == 0) + (uint64_t)(stage == run->n_stages - 1);
    const uint64_t by_recompute = n_loads / N_MICRO - by_forward;
    expected_t *of = &expected[stage];
    sl_instruction_list_t list;
    uint64_t n = 0;
    size_t i;

    of->n_graphs = 0;
    sl_assert_ok(sl_schedule_generate(&params, stage, &list));
    for (i = 0; i < list.n; i++) {
        const sl_instruction_kind_t kind = list.items[i].kind;

        if (is_pass(kind)) {
            n += kind == SL_INSTRUCTION_FORWARD     ? by_forward
                 : kind == SL_INSTRUCTION_RECOMPUTE ? by_recompute
                                                    : 0;
            /* and before the pass that this one follows had ended */
            if (of->n_graphs > 0) {
                of->n_loads[of->n_graphs - 1] = n;
            }
            of->n_loads[of->n_graphs++] = n;
        }
    }
    assert_int_equal(n, n_loads);
    sl_schedule_cleanup(&list);
}

/* Loads of each device in one more step. */
static void count_loads(sl_engine_t *engine, const fixture_run_t *run, int i,
                        uint64_t *n_loads)
{
    int d;

    for (d = 0; d < run->n_devices; d++) {
        n_loads[d] = standin_n_loads(d);
    }
    (void)fixture_step(run, engine, i);
    for (d = 0; d < run->n_devices; d++) {
        n_loads[d] = standin_n_loads(d) - n_loads[d];
    }
}

static void check_beside(const fixture_run_t *run)
{
    sl_device_set_t *devices = NULL;
    sl_engine_t *engine = NULL;
    uint64_t n_loads[MAX_DEVICES], n_watched[MAX_DEVICES];
    int d, i;

    fixture_engine(run, &devices, &engine);
    (void)fixture_step(run, engine, 0);
    (void)fixture_step(run, engine, 1); /* from here on passes are graphs */
    count_loads(engine, run, 2, n_loads);
    for (d = 0; d < run->n_devices; d++) {
        expect(run, d, n_loads[d]);
    }
    for (i = 3; i < 5; i++) {
        for (d = 0; d < run->n_devices; d++) {
            expected[d].before = standin_n_loads(d);
            atomic_store(&expected[d].n_begun, 0);
        }
        standin_set_graph_hook(await_loads);
        count_loads(engine, run, i, n_watched);
        standin_set_graph_hook(NULL);
        for (d = 0; d < run->n_devices; d++) {
            assert_true(atomic_load(&expected[d].n_begun) >=
                        expected[d].n_graphs);
            assert_int_equal(n_watched[d], n_loads[d]);
        }
        if (atomic_load(&n_late) != 0) {
            (void)fprintf(stderr,
                          "%s: stages %d schedule %d recompute %d: a pass "
                          "ended before the loads of the next began\n",
                          run->model->name, run->n_stages, (int)run->schedule,
                          (int)run->recompute);
            fail();
        }
    }
    sl_engine_destroy(engine);
    sl_device_set_destroy(devices);
}

typedef sl_model_t *(*make_model_fn)(void);

static const make_model_fn models[] = {fixture_gpt, fixture_resnet,
                                       fixture_unet};

enum {
    N_MODELS = sizeof(models) / sizeof(*models)
};

static sl_model_t *make(make_model_fn make_model, sl_precision_t precision)
{
    sl_model_t *model = make_model();

    sl_assert_ok(sl_model_set_precision(model, SL_DEVICE_KIND_CUDA, precision));
    return model;
}

static void the_next_pass_is_loaded_beside_this_one(void **state)
{
    int i, schedule, recompute;

    (void)state;
    for (i = 0; i < N_MODELS; i++) {
        fixture_run_t run = {.rows = 2 * N_MICRO, .n_micro = N_MICRO};

        run.model = make(models[i], SL_PRECISION_F32);
        for (schedule = 0; schedule <= SL_SCHEDULE_1F1B; schedule++) {
            for (recompute = 0; recompute <= SL_RECOMPUTE_FULL; recompute++) {
                run.schedule = (sl_schedule_kind_t)schedule;
                run.recompute = (sl_recompute_t)recompute;
                for (run.n_stages = 1; run.n_stages <= 2; run.n_stages++) {
                    run.n_devices = run.n_stages;
                    check_beside(&run);
                }
            }
        }
        sl_model_destroy(run.model);
    }
}

/* ---- the same bits ---- */

/* Streams that are late, evaluation between the steps, a batch with fewer rows,
 * several stages on a device. */
static void loads_change_no_bit(void **state)
{
    int i;

    (void)state;
    for (i = 0; i < N_MODELS; i++) {
        fixture_run_t run = {.rows = 3 * N_MICRO,
                             .n_micro = N_MICRO,
                             .n_devices = 1,
                             .n_stages = 1,
                             .n_steps = N_STEPS,
                             .uneven_last = 1,
                             .eval_between = 1};
        fixture_result_t want, got;

        run.model = make(models[i], SL_PRECISION_BF16);
        run.memory_bytes = 1; /* all on the host: nothing is taken ahead */
        run.host_bytes = (size_t)1 << 30;
        want = fixture_train(&run);
        run.memory_bytes = run.host_bytes = 0;
        for (run.n_stages = 1; run.n_stages <= 3; run.n_stages++) {
            run.schedule = (sl_schedule_kind_t)(run.n_stages % 2);
            run.recompute = (sl_recompute_t)(run.n_stages % 3);
            for (run.n_devices = 1; run.n_devices <= run.n_stages;
                 run.n_devices++) {
                standin_set_delay_us(run.n_stages == 2 ? 20 : 0);
                got = fixture_train(&run);
                assert_true(got.hash == want.hash);
                assert_memory_equal(got.losses, want.losses,
                                    sizeof(got.losses));
            }
        }
        standin_set_delay_us(0);
        sl_model_destroy(run.model);
    }
}

static void a_share_changes_no_bit(void **state)
{
    fixture_run_t run = {.rows = 2 * N_MICRO,
                         .n_micro = N_MICRO,
                         .n_devices = 2,
                         .n_stages = 2,
                         .n_steps = N_STEPS};
    sl_device_set_t *devices = NULL;
    sl_engine_t *engine = NULL;
    fixture_result_t want;
    uint64_t hash = 0;
    int i, d;

    (void)state;
    run.model = make(fixture_mlp, SL_PRECISION_F32);
    want = fixture_train(&run);
    fixture_engine(&run, &devices, &engine);
    for (i = 0; i < N_STEPS; i++) {
        for (d = 0; d < 2; d++) {
            sl_assert_ok(sl_op_manager_share_set(devices->devices[d].ops,
                                                 i % 2 == 0 ? 60.0 : 100.0,
                                                 SL_SHARE_TOKEN_BUCKET));
        }
        (void)fixture_step(&run, engine, i);
    }
    sl_assert_ok(sl_engine_state_hash(engine, &hash));
    assert_true(hash == want.hash);
    sl_engine_destroy(engine);
    sl_device_set_destroy(devices);
    sl_model_destroy(run.model);
}

/* What was loaded ahead for a job that failed is no part of the next. */
static void a_failed_step_leaves_nothing_ahead(void **state)
{
    const fixture_run_t like = {.rows = 2 * N_MICRO,
                                .n_micro = N_MICRO,
                                .n_devices = 2,
                                .n_stages = 2,
                                .n_steps = 2};
    fixture_run_t run = like;
    fixture_result_t want;
    int bad;

    (void)state;
    run.model = make(fixture_gpt, SL_PRECISION_F32);
    want = fixture_train(&run);
    for (bad = 0; bad < N_MICRO; bad++) {
        sl_device_set_t *devices = NULL;
        sl_engine_t *engine = NULL;
        sl_step_report_t report;
        uint64_t hash = 0;
        sl_batch_t batch;
        int32_t *target;

        fixture_engine(&run, &devices, &engine);
        (void)fixture_step(&run, engine, 0);
        batch = fixture_batch(run.model, run.rows, 1, 0);
        target = malloc(sizeof(int32_t) *
                        (size_t)sl_tensor_elements(&run.model->target) *
                        (size_t)run.rows);
        assert_non_null(target);
        memcpy(target, batch.target,
               sizeof(int32_t) *
                   (size_t)sl_tensor_elements(&run.model->target) *
                   (size_t)run.rows);
        target[2 * bad * (int)sl_tensor_elements(&run.model->target)] = 1000;
        batch.target = target;
        sl_assert_status(sl_engine_step(engine, &batch, &report),
                         SL_ERR_INVALID_ARG);
        free(target);
        (void)fixture_step(&run, engine, 1);
        sl_assert_ok(sl_engine_state_hash(engine, &hash));
        assert_true(hash == want.hash);
        sl_engine_destroy(engine);
        sl_device_set_destroy(devices);
    }
    sl_model_destroy(run.model);
}

/* ---- memory ---- */

/* The batch is most of what it needs. */
static sl_model_t *wide_model(void)
{
    const int64_t image[] = {1, 1, 64, 64}, label[] = {1};
    const sl_tensor_desc_t data = sl_tensor_desc(SL_DTYPE_F32, 4, image);
    const sl_tensor_desc_t target = sl_tensor_desc(SL_DTYPE_I32, 1, label);
    const sl_attr_t out = {.name = "out", .number = 5};
    const sl_layer_spec_t specs[] = {{.type = "flatten",
                                      .name = "flat",
                                      .n_inputs = 1,
                                      .inputs = {SL_INPUT_DATA}},
                                     {.type = "linear",
                                      .name = "fc",
                                      .n_inputs = 1,
                                      .inputs = {0},
                                      .attrs = &out,
                                      .n_attrs = 1},
                                     {.type = "softmax_cross_entropy",
                                      .name = "loss",
                                      .n_inputs = 2,
                                      .inputs = {1, SL_INPUT_TARGET}}};
    sl_model_t *model = NULL;
    size_t i;

    sl_assert_ok(sl_model_create("wide", &data, &target, &model));
    for (i = 0; i < sizeof(specs) / sizeof(*specs); i++) {
        sl_assert_ok(sl_model_add(model, &specs[i], NULL));
    }
    sl_assert_ok(sl_model_check(model));
    return model;
}

static fixture_bytes_t train_within(const fixture_run_t *run)
{
    const fixture_bytes_t got = fixture_measure(run);
    sl_memory_plan_t plan = fixture_rehearse(run);

    assert_true(got.status == SL_OK || got.status == SL_ERR_QUOTA);
    assert_int_equal(plan.fits, got.status == SL_OK);
    if (plan.fits) {
        assert_int_equal(plan.devices[0].held_bytes, got.held[0]);
    }
    sl_memory_plan_cleanup(&plan);
    return got;
}

/* Below what it takes with memory to spare it loads nothing ahead, and trains
 * with less; a plan says so. */
static void short_memory_is_not_spent_ahead(void **state)
{
    fixture_run_t run = {.rows = 16,
                         .n_micro = 4,
                         .n_devices = 1,
                         .n_stages = 1,
                         .n_steps = 2,
                         .schedule = SL_SCHEDULE_1F1B};
    const size_t input_bytes = (size_t)4 * 64 * 64 * sizeof(float);
    const size_t by = (size_t)16 << 10;
    size_t least, least_peak = 0;
    fixture_bytes_t want, got;

    (void)state;
    standin_set_granularity(0); /* regions to the byte */
    run.model = wide_model();
    sl_assert_ok(sl_model_set_precision(run.model, SL_DEVICE_KIND_CUDA,
                                        SL_PRECISION_F32));
    want = train_within(&run);
    sl_assert_ok(want.status);
    /* the first region is larger than all that is needed */
    for (least = (size_t)1 << 20; least > by; least -= by) {
        run.memory_bytes = least;
        got = train_within(&run);
        if (got.status < 0) {
            break;
        }
        assert_true(got.hash == want.hash);
        assert_true(got.held[0] <= run.memory_bytes);
        least_peak = got.peak[0];
    }
    /* it was ahead where it could be, and not where that takes too much */
    assert_true(least_peak + input_bytes <= want.peak[0]);
    assert_true(least + by < want.peak[0]);
    sl_model_destroy(run.model);
}

/* What a step with that much taken away from it came to. */
typedef struct short_step {
    sl_status_t status;
    int has_landed; /* it began with landings */
    int gave_up;
    uint64_t hash;
} short_step_t;

/* The third step, when somebody else has taken blocks; if it fails, once more
 * with all that there is. */
static short_step_t step_short(const fixture_run_t *run, int n_taken)
{
    const sl_batch_t batch = fixture_batch(run->model, run->rows, 2, 0);
    sl_device_set_t *devices = NULL;
    sl_engine_t *engine = NULL;
    sl_mem_block_t *taken[MAX_TAKEN];
    short_step_t got;
    sl_step_report_t report;
    int i;

    fixture_engine(run, &devices, &engine);
    (void)fixture_step(run, engine, 0);
    (void)fixture_step(run, engine, 1);
    for (i = 0; i < n_taken; i++) {
        sl_assert_ok(sl_mem_alloc(devices->devices[0].mem, SL_MEM_CLASS_STASH,
                                  TAKEN_BYTES, &taken[i]));
    }
    got.status = sl_engine_step(engine, &batch, &report);
    got.has_landed = engine->stages[0].ahead.has_landed;
    got.gave_up = got.has_landed && engine->stages[0].ahead.is_short;
    for (i = 0; i < n_taken; i++) {
        sl_mem_release(taken[i]);
    }
    if (got.status < 0) {
        sl_assert_ok(sl_engine_step(engine, &batch, &report));
    }
    sl_assert_ok(sl_engine_state_hash(engine, &got.hash));
    sl_engine_destroy(engine);
    sl_device_set_destroy(devices);
    return got;
}

/* Memory that somebody takes after landings were planned: a step that finds no
 * room gives them up and goes on. */
static void landings_are_given_up_for_a_block(void **state)
{
    fixture_run_t run = {.rows = 16,
                         .n_micro = 4,
                         .n_devices = 1,
                         .n_stages = 1,
                         .memory_bytes = (size_t)1 << 20};
    short_step_t want, got = {.status = SL_OK};
    int n, n_well = 0, n_given_up = 0;

    (void)state;
    standin_set_granularity(0); /* regions to the byte */
    run.model = wide_model();
    sl_assert_ok(sl_model_set_precision(run.model, SL_DEVICE_KIND_CUDA,
                                        SL_PRECISION_F32));
    want = step_short(&run, 0);
    sl_assert_ok(want.status);
    assert_true(want.has_landed && !want.gave_up);
    for (n = 0; n < MAX_TAKEN && got.status >= 0; n++) {
        got = step_short(&run, n);
        assert_true(got.status == SL_OK || got.status == SL_ERR_QUOTA);
        assert_true(got.hash == want.hash);
        n_well += got.status >= 0 && !got.gave_up;
        n_given_up += got.status >= 0 && got.gave_up;
    }
    assert_true(got.status < 0 && n_well > 0 && n_given_up > 0);
    sl_model_destroy(run.model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_next_pass_is_loaded_beside_this_one,
                                        sl_test_setup, reset),
        cmocka_unit_test_setup_teardown(loads_change_no_bit, sl_test_setup,
                                        reset),
        cmocka_unit_test_setup_teardown(a_share_changes_no_bit, sl_test_setup,
                                        reset),
        cmocka_unit_test_setup_teardown(a_failed_step_leaves_nothing_ahead,
                                        sl_test_setup, reset),
        cmocka_unit_test_setup_teardown(short_memory_is_not_spent_ahead,
                                        sl_test_setup, reset),
        cmocka_unit_test_setup_teardown(landings_are_given_up_for_a_block,
                                        sl_test_setup, reset),
    };

    return cmocka_run_group_tests_name("cuda.loads", tests, NULL, NULL);
}
