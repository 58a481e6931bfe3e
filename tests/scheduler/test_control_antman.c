/* SPDX-License-Identifier: Apache-2.0 */
/* AntMan's files: a coordinator written for them drives a job; and the
 * Prometheus text. */
#include <jansson.h>
#include <sys/stat.h>
#include <unistd.h>

#include "scheduler/control/antman.h"
#include "tests/scheduler/control_bed.h"

static int is_near(double a, double b)
{
    return a - b < 1e-6 && b - a < 1e-6;
}

/* ---- as text ---- */

static char keys[3][SL_ANTMAN_KEY_BYTES];

static sl_status_t parse(const char *text, sl_antman_config_t *config)
{
    sl_antman_key("cpu:0", NULL, keys[0]);
    sl_antman_key("cpu:1", NULL, keys[1]);
    sl_antman_key("cuda:0", "0000:3D:00.0", keys[2]);
    return sl_antman_config_parse(text, strlen(text), 3, keys, config);
}

static void keys_are_names_or_short_pci_ids(void **state)
{
    sl_antman_config_t config;

    (void)state;
    sl_assert_ok(parse("{}", &config));
    assert_string_equal(keys[0], "cpu:0");
    assert_string_equal(keys[2], "3d:00.0");
    sl_assert_ok(parse("{\"gpuConfigInfo\":{"
                       "\"3d:00.0\":{\"maxDeviceMem\":7},"
                       "\"cpu:1\":{\"maxDeviceMem\":1048576},"
                       "\"af:00.0\":{\"maxDeviceMem\":9}}}",
                       &config));
    assert_int_equal(config.limit_bytes[0], 0);
    assert_int_equal(config.limit_bytes[1], 1048576);
    assert_int_equal(config.limit_bytes[2], 7);
    sl_assert_ok(parse("{\"gpuConfigInfo\":{\"0000:3D:00.0\":"
                       "{\"maxDeviceMem\":8}}}",
                       &config));
    assert_int_equal(config.limit_bytes[2], 8);
}

/* Two devices of a job may be halves of a GPU, which has one key there. */
static void devices_on_one_gpu_divide_its_limit(void **state)
{
    static const char text[] = "{\"gpuConfigInfo\":{\"3d:00.0\":"
                               "{\"maxDeviceMem\":1001}}}";
    static const sl_antman_use_t uses[2] = {
        {.peak_bytes = 60, .used_bytes = 7, .host_pool_bytes = 1},
        {.peak_bytes = 40, .used_bytes = 5, .host_pool_bytes = 2}};
    sl_antman_config_t config;
    char *told = NULL;

    (void)state;
    sl_antman_key("cuda:0", "0000:3D:00.0", keys[0]);
    sl_antman_key("cuda:1", "0000:3D:00.0", keys[1]);
    sl_antman_key("cuda:2", "0000:3E:00.0", keys[2]);
    sl_assert_ok(sl_antman_config_parse(text, strlen(text), 3, keys, &config));
    assert_int_equal(config.limit_bytes[0], 500);
    assert_int_equal(config.limit_bytes[1], 500);
    assert_int_equal(config.limit_bytes[2], 0);
    sl_assert_ok(sl_antman_status_format(2, keys, uses, 10.0, &told));
    sl_assert_contains(told, "{\"3d:00.0\":{\"deviceMemUsedMax\":100,"
                             "\"deviceMemUsedMin\":12,");
    sl_assert_contains(told, "\"hostMemPoolSize\":3,");
    free(told);
}

/* AntMan's tolerance: all fields optional, wrong types ignored. */
static void absent_fields_and_wrong_types_are_ignored(void **state)
{
    static const char *const texts[] = {
        "{}",
        "{\"name\":5,\"perfControl\":\"50\",\"gpuConfigInfo\":[]}",
        "{\"perfControl\":null,\"gpuConfigInfo\":{\"cpu:0\":3}}",
        "{\"perfControl\":50.5}",
        "{\"gpuConfigInfo\":{\"cpu:0\":{\"maxDeviceMem\":\"1\"}},\"x\":1}",
    };
    sl_antman_config_t config;
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
        sl_assert_ok(parse(texts[i], &config));
        assert_int_equal(config.share, -1);
        assert_int_equal(config.limit_bytes[0], 0);
    }
    sl_assert_ok(parse("{\"perfControl\":0}", &config));
    assert_int_equal(config.share, 0);
}

/* Its released range check is never true: it accepts 7000. */
static void what_is_out_of_range_is_refused(void **state)
{
    static const char *const texts[] = {
        "",
        "[]",
        "{\"perfControl\":50",
        "{\"perfControl\":7000}",
        "{\"perfControl\":101}",
        "{\"perfControl\":-1}",
        "{\"gpuConfigInfo\":{\"cpu:0\":{\"maxDeviceMem\":-1}}}",
        "{\"perfControl\":50,\"perfControl\":60}",
    };
    sl_antman_config_t config;
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
        sl_assert_status(parse(texts[i], &config), SL_ERR_CORRUPT);
    }
}

static void a_spill_says_why(void **state)
{
    sl_antman_use_t use = {.peak_bytes = 60, .held_bytes = 100};
    char *text = NULL;

    (void)state;
    sl_antman_key("cpu:0", NULL, keys[0]);
    sl_assert_ok(sl_antman_status_format(1, keys, &use, 10.0, &text));
    sl_assert_contains(text, "\"swapReason\":\"\"");
    free(text);
    use.host_peak_bytes = 50; /* more than the pool: it could not fit */
    sl_assert_ok(sl_antman_status_format(1, keys, &use, 10.0, &text));
    sl_assert_contains(text, "\"swapReason\":\"OOM\"");
    free(text);
    use.host_peak_bytes = 40; /* it would have fitted, had it been whole */
    sl_assert_ok(sl_antman_status_format(1, keys, &use, 10.0, &text));
    sl_assert_contains(text, "\"swapReason\":\"FRAGMENT\"");
    free(text);
}

/* ---- a coordinator written for AntMan ---- */

/* It knows two paths, JSON and nothing else of us. */
typedef struct antman_coordinator {
    char config[BED_PATH_BYTES];
    char status[BED_PATH_BYTES];
} antman_coordinator_t;

static void bed_init_antman(control_bed_t *bed, antman_coordinator_t *them)
{
    bed_init(bed, "cpu:2");
    (void)snprintf(them->config, sizeof(them->config), "%s/pod_sche2pai.json",
                   sl_test_directory());
    (void)snprintf(them->status, sizeof(them->status), "%s/pod_pai2sche.json",
                   sl_test_directory());
    bed->params.antman_config = them->config;
    bed->params.antman_status = them->status;
}

static void the_environment_names_the_files(void **state)
{
    sl_control_params_t params;

    (void)state;
    assert_int_equal(setenv("GPU_CONFIG_FILE", "/a/b_sche2pai.json", 1), 0);
    assert_int_equal(setenv("GPU_STATUS_FILE", "/a/b_pai2sche.json", 1), 0);
    sl_control_params_default(&params);
    assert_string_equal(params.antman_config, "/a/b_sche2pai.json");
    assert_string_equal(params.antman_status, "/a/b_pai2sche.json");
    assert_int_equal(unsetenv("GPU_CONFIG_FILE"), 0);
    assert_int_equal(setenv("GPU_STATUS_FILE", "", 1), 0);
    sl_control_params_default(&params);
    assert_null(params.antman_config);
    assert_null(params.antman_status);
    assert_int_equal(unsetenv("GPU_STATUS_FILE"), 0);
}

static void it_reads_status_and_moves_both_gates(void **state)
{
    antman_coordinator_t them;
    control_bed_t bed;
    json_t *root, *device;
    json_error_t error;
    sl_mem_stats_t mem;
    int i;

    (void)state;
    bed_init_antman(&bed, &them);
    bed_open(&bed);
    for (i = 0; i < 20; i++) {
        (void)bed_boundary(&bed);
    }
    bed_wait_for(access(them.status, F_OK) == 0);
    root = json_load_file(them.status, 0, &error);
    assert_non_null(root);
    assert_int_equal(
        json_integer_value(json_object_get(root, "miniBatchDuration")), 1000);
    assert_int_equal(json_integer_value(json_object_get(
                         json_object_get(root, "Durations"), "graph_0")),
                     1000);
    device = json_object_get(json_object_get(root, "gpuUsageInfo"), "cpu:0");
    assert_true(json_integer_value(
                    json_object_get(device, "deviceMemUsedMax")) >= 1000);
    assert_true(json_is_integer(json_object_get(device, "deviceMemUsedMin")));
    assert_true(json_is_integer(json_object_get(device, "deviceMemPoolSize")));
    assert_true(json_is_integer(json_object_get(device, "deviceMemStable")));
    assert_true(json_is_integer(json_object_get(device, "hostMemUsedMax")));
    assert_true(json_is_integer(json_object_get(device, "hostMemUsedMin")));
    assert_int_equal(
        json_integer_value(json_object_get(device, "hostMemPoolSize")),
        BED_CAPACITY);
    assert_string_equal(
        json_string_value(json_object_get(device, "swapReason")), "");
    assert_int_equal(
        json_integer_value(json_object_get(device, "deviceMemUsedNvidia")), -1);
    json_decref(root);

    bed_put(them.config, "{\"name\":\"pod\",\"perfControl\":40,"
                         "\"gpuConfigInfo\":{\"cpu:0\":"
                         "{\"maxDeviceMem\":2097152}}}");
    bed_wait_for(is_near(bed_share(&bed, 0), 40.0));
    bed_wait_for(is_near(bed_share(&bed, 1), 40.0));
    (void)bed_boundary(&bed);
    sl_mem_stats(bed.devices->devices[0].mem, &mem);
    assert_int_equal(mem.limit_bytes, 2097152);
    sl_mem_stats(bed.devices->devices[1].mem, &mem);
    assert_int_equal(mem.limit_bytes, BED_CAPACITY);
    bed_close(&bed);
}

static void its_bad_config_is_refused_and_the_last_stays(void **state)
{
    antman_coordinator_t them;
    control_bed_t bed;

    (void)state;
    bed_init_antman(&bed, &them);
    bed_put(them.config, "{\"perfControl\":40}"); /* there before the job */
    bed_open(&bed);
    bed_wait_for(is_near(bed_share(&bed, 0), 40.0));
    bed_put(them.config, "{\"perfControl\":7000}");
    bed_wait_for(bed_status(&bed).n_refused == 1);
    sl_assert_contains(sl_test_log_take(), "7000");
    bed_put(them.config, "{\"perfControl\":4");
    bed_wait_for(bed_status(&bed).n_refused == 2);
    assert_int_equal(chmod(them.config, 0666), 0);
    bed_wait_for(bed_status(&bed).n_refused == 3);
    sl_assert_contains(sl_test_log_take(), "go-w");
    assert_true(is_near(bed_share(&bed, 0), 40.0));
    assert_int_equal(unlink(them.config), 0); /* gone: silent */
    assert_int_equal(mkdir(them.config, 0700), 0);
    bed_wait_for(bed_status(&bed).n_refused == 4);
    sl_assert_contains(sl_test_log_take(), "a directory");
    bed_close(&bed);
}

/* perfControl 0 suspends; there is no TTL in its files, so there is one of
 * ours for a guest, renewed by every write or touch. */
static void check_suspension(sl_job_class_t job_class, double left)
{
    antman_coordinator_t them;
    control_bed_t bed;

    bed_init_antman(&bed, &them);
    bed.params.job_class = job_class;
    (void)unlink(them.config);
    bed_open(&bed);
    bed_put(them.config, "{\"perfControl\":0}");
    bed_wait_for(is_near(bed_share(&bed, 0), 0.0));
    (void)atomic_fetch_add(&bed.now_ns, UINT64_C(59000000000));
    bed_nap();
    bed_nap();
    bed_nap();
    assert_true(is_near(bed_share(&bed, 0), 0.0));
    (void)atomic_fetch_add(&bed.now_ns, UINT64_C(2000000000));
    bed_wait_for(is_near(bed_share(&bed, 0), left));
    bed_put(them.config, "{\"perfControl\":90}");
    bed_wait_for(is_near(bed_share(&bed, 0), 90.0));
    bed_close(&bed);
}

static void its_suspension_ends_when_it_dies(void **state)
{
    (void)state;
    check_suspension(SL_JOB_CLASS_OPPORTUNISTIC, 5.0);
    check_suspension(SL_JOB_CLASS_NONE, 5.0); /* nobody said what it is */
    check_suspension(SL_JOB_CLASS_GUARANTEE, 100.0);
}

/* The place on the bus is the key, whatever the job calls the device. */
static void limits_go_by_the_place_on_the_bus(void **state)
{
    antman_coordinator_t them;
    control_bed_t bed;
    sl_mem_stats_t mem;
    json_error_t error;
    json_t *root;

    (void)state;
    bed_init_antman(&bed, &them);
    strcpy(bed.devices->devices[1].bus_id, "0000:3D:00.0");
    bed_open(&bed);
    bed_put(them.config, "{\"perfControl\":30,\"gpuConfigInfo\":{"
                         "\"3d:00.0\":{\"maxDeviceMem\":2097152}}}");
    bed_wait_for(is_near(bed_share(&bed, 1), 30.0));
    (void)bed_boundary(&bed);
    sl_mem_stats(bed.devices->devices[0].mem, &mem);
    assert_int_equal(mem.limit_bytes, BED_CAPACITY);
    sl_mem_stats(bed.devices->devices[1].mem, &mem);
    assert_int_equal(mem.limit_bytes, 2097152);
    bed_wait_for(access(them.status, F_OK) == 0);
    root = json_load_file(them.status, 0, &error);
    assert_non_null(root);
    assert_non_null(
        json_object_get(json_object_get(root, "gpuUsageInfo"), "3d:00.0"));
    assert_null(
        json_object_get(json_object_get(root, "gpuUsageInfo"), "cpu:1"));
    json_decref(root);
    bed_close(&bed);
}

static void it_works_without_a_run_directory(void **state)
{
    antman_coordinator_t them;
    control_bed_t bed;

    (void)state;
    bed_init_antman(&bed, &them);
    bed.params.run_dir = "/proc/nowhere";
    bed_open(&bed);
    assert_null(sl_control_id(bed.control));
    sl_assert_contains(sl_test_log_take(), "without a control plane");
    bed_put(them.config, "{\"perfControl\":40}");
    bed_wait_for(is_near(bed_share(&bed, 0), 40.0));
    bed_close(&bed);
}

/* ---- Prometheus ---- */

static char *read_text(const char *path)
{
    FILE *file = fopen(path, "r");
    char *text = calloc(1, 65536);

    assert_non_null(file);
    assert_non_null(text);
    (void)!fread(text, 1, 65535, file);
    (void)fclose(file);
    return text;
}

/* Every line is a comment or `name{labels} value`. */
static void check_lines(const char *text)
{
    while (*text != '\0') {
        const char *end = strchr(text, '\n');
        double value;

        assert_non_null(end);
        if (*text != '#') {
            const char *space = end;

            while (space > text && *space != ' ') {
                space--;
            }
            assert_int_equal(sscanf(space, " %lf\n", &value), 1);
            assert_true(space[-1] == '}');
            assert_memory_equal(text, "sluice_", 7);
        }
        text = end + 1;
    }
}

static void the_prometheus_file_is_kept(void **state)
{
    char path[BED_PATH_BYTES];
    control_bed_t bed;
    char *text;

    (void)state;
    bed_init(&bed, "cpu:2");
    (void)snprintf(path, sizeof(path), "%s/sluice.prom", sl_test_directory());
    bed.params.prometheus = path;
    bed.params.job_class = SL_JOB_CLASS_GUARANTEE;
    bed_open(&bed);
    bed_wait_for(access(path, F_OK) == 0);
    (void)bed_boundary(&bed);
    bed_close(&bed);
    text = read_text(path);
    check_lines(text);
    sl_assert_contains(text, "class=\"guarantee\",state=\"done\"} 1\n");
    sl_assert_contains(text, "# TYPE sluice_job_minibatches_total counter\n");
    sl_assert_contains(text, "sluice_job_minibatches_total{job_name=\"bed\",");
    sl_assert_contains(text, "device=\"cpu:1\"} 67108864\n");
    sl_assert_contains(text, "class=\"stash\",place=\"host\"} 0\n");
    free(text);
}

static void a_prometheus_file_that_cannot_be_written_warns_once(void **state)
{
    control_bed_t bed;

    (void)state;
    bed_init(&bed, "cpu:1");
    bed.params.prometheus = "/nonexistent/sluice.prom";
    bed_open(&bed);
    bed_wait_for(bed_status(&bed).sequence > 2 || bed_boundary(&bed) != 0);
    bed_close(&bed);
    sl_assert_contains(sl_test_log_take(), "/nonexistent/sluice.prom");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(keys_are_names_or_short_pci_ids),
        sl_unit_test(devices_on_one_gpu_divide_its_limit),
        sl_unit_test(absent_fields_and_wrong_types_are_ignored),
        sl_unit_test(what_is_out_of_range_is_refused),
        sl_unit_test(a_spill_says_why),
        sl_unit_test(the_environment_names_the_files),
        sl_unit_test(it_reads_status_and_moves_both_gates),
        sl_unit_test(its_bad_config_is_refused_and_the_last_stays),
        sl_unit_test(its_suspension_ends_when_it_dies),
        sl_unit_test(limits_go_by_the_place_on_the_bus),
        sl_unit_test(it_works_without_a_run_directory),
        sl_unit_test(the_prometheus_file_is_kept),
        sl_unit_test(a_prometheus_file_that_cannot_be_written_warns_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
