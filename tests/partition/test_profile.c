/* SPDX-License-Identifier: Apache-2.0 */
/* Measured costs: what is timed, what goes through the gates, the cache. */
#include "tests/support/sl_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "partition/partition.h"

enum {
    PATH_BYTES = 512,
    N_REPEATS = 4
};
#define KEY UINT64_C(0x0123456789abcdef)

static sl_device_set_t *make_device(size_t memory_bytes)
{
    sl_device_params_t params;
    sl_device_set_t *set;

    sl_device_params_default(&params);
    params.spec = "cpu:1";
    params.n_threads = 1;
    params.memory_bytes = memory_bytes;
    sl_assert_ok(sl_device_set_create(&params, &set));
    return set;
}

static void add(sl_model_t *model, const char *type, const char *attr,
                double value)
{
    const sl_attr_t given = {.name = attr, .number = value};
    const sl_layer_spec_t spec = {
        .type = type, .attrs = &given, .n_attrs = attr == NULL ? 0 : 1};

    sl_assert_ok(sl_model_add(model, &spec, NULL));
}

/** data [1, width] -> linear -> relu -> linear -> relu -> linear -> loss;
 *  the middle linear and the relus have equals. */
static sl_model_t *mlp(int64_t width)
{
    const int64_t data_dims[] = {1, width}, target_dims[] = {1};
    const sl_tensor_desc_t data = sl_tensor_desc(SL_DTYPE_F32, 2, data_dims);
    const sl_tensor_desc_t target =
        sl_tensor_desc(SL_DTYPE_I32, 1, target_dims);
    sl_model_t *model;

    sl_assert_ok(sl_model_create("mlp", &data, &target, &model));
    add(model, "linear", "out", (double)width);
    add(model, "relu", NULL, 0);
    add(model, "linear", "out", (double)width);
    add(model, "relu", NULL, 0);
    add(model, "linear", "out", (double)width);
    add(model, "softmax_cross_entropy", NULL, 0);
    sl_assert_ok(sl_model_check(model));
    return model;
}

static sl_part_speed_t speed_of_one(void)
{
    sl_part_speed_t speed;

    sl_part_speed_default(&speed, 1);
    return speed;
}

/* ---- measuring ---- */

static uint64_t count_ops(const sl_device_t *device, const char *name)
{
    sl_op_name_stats_t stats[64];
    const size_t n = sl_op_manager_name_stats(device->ops, stats, 64);
    size_t i;

    for (i = 0; i < n && i < 64; i++) {
        if (strcmp(stats[i].name, name) == 0) {
            return stats[i].n_ops;
        }
    }
    return 0;
}

static void assert_all_given_back(const sl_device_t *device)
{
    sl_mem_stats_t stats;

    sl_mem_stats(device->mem, &stats);
    assert_int_equal(stats.n_live_blocks, 0);
    assert_int_equal(stats.used_bytes, 0);
}

static void every_layer_is_measured(void **state)
{
    const sl_part_speed_t speed = speed_of_one();
    sl_device_set_t *set = make_device((size_t)256 << 20);
    sl_device_t *device = &set->devices[0];
    sl_model_t *model = mlp(128);
    const uint64_t runs = sl_layer_n_kernel_runs();
    sl_part_costs_t costs, analytic;
    sl_mem_stats_t stats;
    int i;

    (void)state;
    sl_assert_ok(
        sl_part_profile_measure(model, 32, device, N_REPEATS, &speed, &costs));
    sl_assert_ok(sl_part_costs_analytic(model, 32, &speed, &analytic));
    assert_int_equal(costs.n_layers, model->n_layers);
    assert_int_equal(costs.is_measured, 1);
    for (i = 0; i < costs.n_layers; i++) {
        assert_true(costs.layers[i].forward_us > 0.0);
        assert_true(costs.layers[i].backward_us > 0.0);
        assert_int_equal(costs.layers[i].cut_bytes,
                         analytic.layers[i].cut_bytes);
        assert_int_equal(costs.layers[i].kept_bytes,
                         analytic.layers[i].kept_bytes);
        assert_true(costs.layers[i].forward_flops ==
                    analytic.layers[i].forward_flops);
    }
    /* linear fed by the batch, linear, relu, loss: 4 distinct layers; all
     * kernels went through the op manager, all memory through the pool */
    assert_int_equal(count_ops(device, "profile forward"), 4 * N_REPEATS);
    assert_int_equal(count_ops(device, "profile backward"), 4 * N_REPEATS);
    assert_int_equal(sl_layer_n_kernel_runs() - runs, 8 * N_REPEATS);
    assert_true(costs.layers[2].forward_us == costs.layers[4].forward_us);
    sl_mem_stats(device->mem, &stats);
    assert_true(stats.classes[SL_MEM_CLASS_PERSISTENT].n_allocs > 0);
    assert_true(stats.classes[SL_MEM_CLASS_ACTIVATION].n_allocs > 0);
    assert_all_given_back(device);
    sl_part_costs_cleanup(&costs);
    sl_part_costs_cleanup(&analytic);
    sl_model_destroy(model);
    sl_device_set_destroy(set);
}

static void measure_built_in(const char *type, const sl_attr_t *attrs,
                             size_t n_attrs, const sl_tensor_desc_t *data,
                             const sl_tensor_desc_t *target)
{
    const sl_part_speed_t speed = speed_of_one();
    sl_device_set_t *set = make_device((size_t)1 << 30);
    double measured = 0.0, predicted = 0.0;
    sl_part_costs_t costs, analytic;
    sl_model_t *model;
    int i;

    sl_assert_ok(sl_model_build(type, attrs, n_attrs, data, target, &model));
    sl_assert_ok(
        sl_part_profile_measure(model, 2, &set->devices[0], 3, &speed, &costs));
    sl_assert_ok(sl_part_costs_analytic(model, 2, &speed, &analytic));
    for (i = 0; i < costs.n_layers; i++) {
        assert_true(costs.layers[i].forward_us > 0.0);
        assert_true(isfinite(costs.layers[i].backward_us));
        assert_true((costs.layers[i].backward_us > 0.0) ==
                    (analytic.layers[i].backward_us > 0.0));
        measured += costs.layers[i].forward_us + costs.layers[i].backward_us;
        predicted +=
            analytic.layers[i].forward_us + analytic.layers[i].backward_us;
    }
    print_message("%s: %d layers, 2 samples: measured %.0f us, analytic %.0f "
                  "us\n",
                  type, costs.n_layers, measured, predicted);
    assert_all_given_back(&set->devices[0]);
    sl_part_costs_cleanup(&costs);
    sl_part_costs_cleanup(&analytic);
    sl_model_destroy(model);
    sl_device_set_destroy(set);
}

static void built_in_models_are_measured(void **state)
{
    const sl_attr_t depth[] = {{.name = "depth", .text = "50"},
                               {.name = "classes", .number = 10}};
    const sl_attr_t small[] = {{.name = "layers", .number = 2},
                               {.name = "heads", .number = 4},
                               {.name = "width", .number = 64},
                               {.name = "vocab", .number = 300}};
    const sl_tensor_desc_t image =
        sl_tensor_desc(SL_DTYPE_F32, 4, (const int64_t[]){1, 3, 64, 64});
    const sl_tensor_desc_t label =
        sl_tensor_desc(SL_DTYPE_I32, 1, (const int64_t[]){1});
    const sl_tensor_desc_t tokens =
        sl_tensor_desc(SL_DTYPE_I32, 2, (const int64_t[]){1, 32});

    (void)state;
    measure_built_in("resnet", depth, 2, &image, &label);
    measure_built_in("gpt", small, 4, &tokens, &tokens);
}

static void a_layer_that_does_not_fit_is_refused(void **state)
{
    const sl_part_speed_t speed = speed_of_one();
    sl_device_set_t *set = make_device((size_t)4 << 20);
    sl_part_costs_t costs = {.n_layers = -5};
    sl_model_t *model = mlp(2048);

    (void)state;
    sl_assert_status(
        sl_part_profile_measure(model, 2, &set->devices[0], 2, &speed, &costs),
        SL_ERR_QUOTA);
    assert_int_equal(costs.n_layers, -5);
    assert_all_given_back(&set->devices[0]);
    sl_assert_status(
        sl_part_profile_measure(model, 2, &set->devices[0], 1, &speed, &costs),
        SL_ERR_INVALID_ARG);
    sl_model_destroy(model);
    sl_device_set_destroy(set);
}

/* ---- what is counted: a layer of our own ---- */

enum {
    SLOW_NS = 20 * 1000 * 1000
};
static int n_slow_calls; /* how many more calls are slow */
static int fails_at;     /* the call that fails, counted down; 0 = none */

static sl_status_t odd_infer(const sl_layer_t *layer,
                             const sl_tensor_desc_t *in,
                             sl_tensor_desc_t *out_p)
{
    (void)layer;
    *out_p = in[0];
    return SL_OK;
}

static void odd_cost(const sl_layer_t *layer, const sl_tensor_desc_t *in,
                     const sl_tensor_desc_t *out, sl_layer_cost_t *cost_p)
{
    (void)layer;
    (void)in;
    (void)out;
    cost_p->forward_flops = 1.0;
}

static sl_status_t odd_plan(sl_layer_plan_t *plan)
{
    (void)plan;
    return SL_OK;
}

static sl_status_t odd_pass(const sl_layer_run_t *run, void *stream)
{
    const uint64_t start_ns = sl_clock_ns();
    sl_status_t status = SL_OK;

    (void)run;
    (void)stream;
    if (n_slow_calls > 0) {
        n_slow_calls--;
        while (sl_clock_ns() - start_ns < SLOW_NS) {
        }
    }
    if (fails_at > 0 && --fails_at == 0) {
        SL_FAIL(status, SL_ERR_NUMERIC, out, "odd layer fails");
    }
out:
    return status;
}

static const sl_layer_kernels_t odd_kernels = {
    .size = sizeof(sl_layer_kernels_t),
    .plan = odd_plan,
    .forward = odd_pass,
};
static const sl_attr_def_t no_attrs[] = {{.name = NULL}};
static const sl_layer_ops_t odd_ops = {
    .size = sizeof(sl_layer_ops_t),
    .name = "odd",
    .attr_defs = no_attrs,
    .n_inputs_min = 1,
    .n_inputs_max = 1,
    .infer = odd_infer,
    .cost = odd_cost,
    .kernels = {[SL_DEVICE_KIND_CPU] = &odd_kernels},
};

/** One odd layer that reads the batch. */
static sl_status_t measure_odd(sl_device_t *device, sl_part_costs_t *costs)
{
    const int64_t dims[] = {1, 4};
    const sl_part_speed_t speed = speed_of_one();
    char name[] = "odd", model_name[] = "odd model";
    sl_layer_t layer = {.ops = &odd_ops,
                        .name = name,
                        .n_inputs = 1,
                        .inputs = {SL_INPUT_DATA}};
    sl_layer_t *layers[] = {&layer};
    const sl_model_t model = {.name = model_name,
                              .data = sl_tensor_desc(SL_DTYPE_F32, 2, dims),
                              .target = sl_tensor_desc(SL_DTYPE_I32, 1, dims),
                              .n_layers = 1,
                              .layers = layers};

    return sl_part_profile_measure(&model, 3, device, 3, &speed, costs);
}

static void the_first_call_does_not_count(void **state)
{
    sl_device_set_t *set = make_device((size_t)64 << 20);
    sl_part_costs_t costs;
    double forward_us;
    int tries = 0;

    (void)state;
    fails_at = 0;
    do { /* again when something else made the other calls as slow */
        assert_true(tries++ < 20);
        n_slow_calls = 1;
        sl_assert_ok(measure_odd(&set->devices[0], &costs));
        assert_int_equal(n_slow_calls, 0);
        forward_us = costs.layers[0].forward_us;
        assert_true(forward_us > 0.0);
        assert_true(costs.layers[0].backward_us == 0.0); /* it has none */
        sl_part_costs_cleanup(&costs);
    } while (forward_us >= SLOW_NS * 1e-3);
    n_slow_calls = 3; /* all: nothing faster is made up */
    sl_assert_ok(measure_odd(&set->devices[0], &costs));
    assert_true(costs.layers[0].forward_us >= SLOW_NS * 1e-3);
    sl_part_costs_cleanup(&costs);
    sl_device_set_destroy(set);
}

static void a_failing_kernel_ends_the_profile(void **state)
{
    sl_part_costs_t costs = {.n_layers = -5};
    int at;

    (void)state;
    for (at = 1; at <= 3; at++) {
        sl_device_set_t *set = make_device((size_t)64 << 20);

        n_slow_calls = 0;
        fails_at = at;
        sl_assert_status(measure_odd(&set->devices[0], &costs), SL_ERR_NUMERIC);
        assert_int_equal(costs.n_layers, -5);
        assert_all_given_back(&set->devices[0]);
        sl_device_set_destroy(set);
    }
}

/* ---- keys and paths ---- */

static void keys_tell_profiles_apart(void **state)
{
    sl_model_t *a = mlp(64), *b = mlp(64), *c = mlp(96);
    const uint64_t key = sl_part_profile_key(a, 8, SL_DEVICE_KIND_CPU, 1);

    (void)state;
    b->layers[1]->name[0] = 'X'; /* names do not matter */
    assert_true(sl_part_profile_key(b, 8, SL_DEVICE_KIND_CPU, 1) == key);
    assert_true(sl_part_profile_key(c, 8, SL_DEVICE_KIND_CPU, 1) != key);
    assert_true(sl_part_profile_key(a, 9, SL_DEVICE_KIND_CPU, 1) != key);
    assert_true(sl_part_profile_key(a, 8, SL_DEVICE_KIND_CPU, 2) != key);
    b->layers[4]->inputs[0] = 1; /* structure does */
    assert_true(sl_part_profile_key(b, 8, SL_DEVICE_KIND_CPU, 1) != key);
    sl_model_destroy(a);
    sl_model_destroy(b);
    sl_model_destroy(c);
}

static void paths_follow_the_environment(void **state)
{
    char *home = getenv("HOME") == NULL ? NULL : strdup(getenv("HOME"));
    char *cache = getenv("XDG_CACHE_HOME") == NULL
                      ? NULL
                      : strdup(getenv("XDG_CACHE_HOME"));
    char path[PATH_BYTES];

    (void)state;
    assert_int_equal(setenv("HOME", "/home/someone", 1), 0);
    assert_int_equal(setenv("XDG_CACHE_HOME", "/cache", 1), 0);
    sl_part_profile_path(KEY, path, sizeof(path));
    assert_string_equal(path, "/cache/sluice/profile-0123456789abcdef.json");
    assert_int_equal(setenv("XDG_CACHE_HOME", "not/absolute", 1), 0);
    sl_part_profile_path(KEY, path, sizeof(path));
    assert_string_equal(
        path, "/home/someone/.cache/sluice/profile-0123456789abcdef.json");
    sl_part_profile_path(KEY, path, 20);
    assert_string_equal(path, "");
    assert_int_equal(unsetenv("HOME"), 0);
    sl_part_profile_path(KEY, path, sizeof(path));
    assert_string_equal(path, "");
    assert_int_equal(unsetenv("XDG_CACHE_HOME"), 0);
    if (home != NULL) {
        assert_int_equal(setenv("HOME", home, 1), 0);
    }
    if (cache != NULL) {
        assert_int_equal(setenv("XDG_CACHE_HOME", cache, 1), 0);
    }
    free(home);
    free(cache);
}

/* ---- the file ---- */

/** Costs of the six layers of mlp() with times that need all digits. */
static void fill_costs(sl_part_costs_t *costs, sl_part_layer_t *layers)
{
    int i;

    memset(layers, 0, 6 * sizeof(layers[0]));
    *costs = (sl_part_costs_t){.n_layers = 6, .layers = layers};
    for (i = 0; i < 6; i++) {
        layers[i].forward_us = 100.0 / (i + 3);
        layers[i].backward_us = i == 3 ? 0.0 : exp(i);
    }
}

static void path_in(char path[PATH_BYTES], const char *name)
{
    (void)snprintf(path, PATH_BYTES, "%s/%s", sl_test_directory(), name);
}

static void a_profile_survives_its_file(void **state)
{
    sl_part_layer_t layers[6], read_layers[6] = {{0}};
    sl_part_costs_t costs, got = {.n_layers = 6, .layers = read_layers};
    sl_model_t *model = mlp(64);
    char path[PATH_BYTES];
    int i;

    (void)state;
    fill_costs(&costs, layers);
    path_in(path, "deep/er/profile.json"); /* directories are made */
    read_layers[2].cut_bytes = 77;
    sl_assert_ok(sl_part_profile_save(path, KEY, model, &costs));
    sl_assert_ok(sl_part_profile_load(path, KEY, &got));
    assert_int_equal(got.is_measured, 1);
    for (i = 0; i < 6; i++) {
        assert_true(read_layers[i].forward_us == layers[i].forward_us);
        assert_true(read_layers[i].backward_us == layers[i].backward_us);
    }
    assert_int_equal(read_layers[2].cut_bytes, 77);
    sl_model_destroy(model);
}

static void absent_profiles_are_not_errors(void **state)
{
    sl_part_layer_t layers[6];
    sl_part_costs_t costs;
    sl_model_t *model = mlp(64);
    char path[PATH_BYTES];

    (void)state;
    fill_costs(&costs, layers);
    path_in(path, "none.json");
    /* nothing is logged: the fixture fails on a message */
    assert_int_equal(sl_part_profile_load(path, KEY, &costs), SL_ERR_NOT_FOUND);
    sl_assert_ok(sl_part_profile_save(path, KEY, model, &costs));
    assert_int_equal(sl_part_profile_load(path, KEY + 1, &costs),
                     SL_ERR_NOT_FOUND);
    assert_int_equal(costs.is_measured, 0);
    layers[4].forward_us = NAN;
    sl_assert_status(sl_part_profile_save(path, KEY, model, &costs),
                     SL_ERR_INVALID_ARG);
    sl_assert_status(sl_part_profile_save("", KEY, model, &costs),
                     SL_ERR_INVALID_ARG);
    sl_model_destroy(model);
}

/** Write `text` and expect that it is refused and changes nothing. */
static void assert_corrupt(const char *path, const char *text, size_t n_bytes)
{
    sl_part_layer_t layers[6], before[6];
    sl_part_costs_t costs;

    fill_costs(&costs, layers);
    memcpy(before, layers, sizeof(before));
    sl_assert_ok(sl_file_write(path, text, n_bytes));
    sl_assert_status(sl_part_profile_load(path, KEY, &costs), SL_ERR_CORRUPT);
    sl_assert_contains(sl_last_error(), path);
    assert_memory_equal(before, layers, sizeof(before));
    assert_int_equal(costs.is_measured, 0);
}

/** `text` with the first `from` replaced; owned. */
static char *replaced(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    const size_t n = strlen(text) + strlen(to) + 1;
    char *result = malloc(n);

    assert_non_null(at);
    assert_non_null(result);
    (void)snprintf(result, n, "%.*s%s%s", (int)(at - text), text, to,
                   at + strlen(from));
    return result;
}

static void corrupt_files_are_refused(void **state)
{
    static const char *const edits[][2] = {
        {"\"forward_us\": 25.0", "\"forward_us\": -25.0"},
        {"\"forward_us\": 25.0", "\"forward_us\": NaN"},
        {"\"forward_us\": 25.0", "\"forward_us\": 1e999"},
        {"\"forward_us\": 25.0", "\"forward_us\": 1e30"},
        {"\"forward_us\": 25.0", "\"forward_us\": \"25\""},
        {"\"forward_us\": 25.0", "\"forward_us\": null"},
        {"\"forward_us\": 25.0", "\"forward_us\": 25, \"forward_us\": 26"},
        {"\"forward_us\": 25.0", "\"sideways_us\": 25.0"},
        {"\"forward_us\": 25.0", "\"forward_us\": 25.0, \"more\": 1"},
        {"\"layers\": [", "\"layers\": [ {},"},
        {"\"layers\": [", "\"layers\": [ 7,"},
        {"\"layers\": [", "\"layers\": {}, \"old\": ["},
        {"\"version\": 1", "\"version\": 2"},
        {"\"version\": 1", "\"version\": \"1\""},
        {"sluice-profile", "other"},
        {"\"key\": \"0123456789abcdef\"", "\"key\": \"0123456789ABCDEF\""},
        {"\"key\": \"0123456789abcdef\"", "\"key\": 12"},
        {"\"key\": \"0123456789abcdef\"", "\"lock\": \"0123456789abcdef\""},
    };
    sl_model_t *model = mlp(64);
    sl_part_layer_t layers[6];
    sl_part_costs_t costs;
    char path[PATH_BYTES];
    size_t n_bytes, i;
    char *text;

    (void)state;
    fill_costs(&costs, layers);
    path_in(path, "profile.json");
    sl_assert_ok(sl_part_profile_save(path, KEY, model, &costs));
    sl_assert_ok(sl_file_read(path, 1 << 20, &text, &n_bytes));
    for (i = 0; i < sizeof(edits) / sizeof(edits[0]); i++) {
        char *bad = replaced(text, edits[i][0], edits[i][1]);

        assert_corrupt(path, bad, strlen(bad));
        free(bad);
    }
    for (i = 0; i < n_bytes - 1; i += 7) { /* cut short anywhere */
        assert_corrupt(path, text, i);
    }
    assert_corrupt(path, "[]", 2);
    assert_corrupt(path, "\0\0\0", 3);
    free(text);
    sl_model_destroy(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(every_layer_is_measured),
        sl_unit_test(built_in_models_are_measured),
        sl_unit_test(a_layer_that_does_not_fit_is_refused),
        sl_unit_test(the_first_call_does_not_count),
        sl_unit_test(a_failing_kernel_ends_the_profile),
        sl_unit_test(keys_tell_profiles_apart),
        sl_unit_test(paths_follow_the_environment),
        sl_unit_test(a_profile_survives_its_file),
        sl_unit_test(absent_profiles_are_not_errors),
        sl_unit_test(corrupt_files_are_refused),
    };

    return cmocka_run_group_tests_name("partition.profile", tests, NULL, NULL);
}
