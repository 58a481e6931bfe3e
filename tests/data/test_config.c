/* SPDX-License-Identifier: Apache-2.0 */
/* The "data" section of a config. */
#include "base/yaml.h"
#include "engine/data/data_config.h"
#include "tests/data/data_test.h"

typedef struct parsed {
    sl_yaml_t *yaml;
    sl_data_strings_t strings;
    sl_data_params_t params;
} parsed_t;

static sl_status_t parse(const char *text, const char *directory, parsed_t *p)
{
    const sl_yaml_node_t *data = NULL;
    sl_status_t status;

    memset(p, 0, sizeof(*p));
    sl_assert_ok(sl_yaml_parse("train.yaml", text, strlen(text), &p->yaml));
    data = sl_yaml_get(sl_yaml_root(p->yaml), "data");
    status = sl_data_params_from_yaml(data, directory, &p->strings, &p->params);
    if (status == SL_OK) {
        sl_assert_ok(sl_yaml_check_used(sl_yaml_root(p->yaml)));
    }
    return status;
}

static void parsed_free(parsed_t *p)
{
    sl_data_strings_cleanup(&p->strings);
    sl_yaml_close(p->yaml);
}

static void every_key_is_read(void **state)
{
    parsed_t p;

    (void)state;
    sl_assert_ok(parse("data:\n"
                       "  format: idx\n"
                       "  path: mnist/images.gz\n"
                       "  labels: /abs/labels.gz\n"
                       "  n_valid: 1000\n"
                       "  classes: 12\n"
                       "  image: {channels: 1, height: 32, width: 30}\n"
                       "  mean: 0.25\n"
                       "  deviation: [0.5]\n"
                       "  flip: true\n"
                       "  crop_pad: 4\n",
                       "conf/dir", &p));
    assert_string_equal(p.params.format, "idx");
    assert_string_equal(p.params.path, "conf/dir/mnist/images.gz");
    assert_string_equal(p.params.labels, "/abs/labels.gz");
    assert_null(p.params.valid_path);
    assert_int_equal(p.params.n_valid, 1000);
    assert_int_equal(p.params.classes, 12);
    assert_int_equal(p.params.channels, 1);
    assert_int_equal(p.params.height, 32);
    assert_int_equal(p.params.width, 30);
    assert_true(p.params.mean[0] == 0.25);
    assert_true(p.params.deviation[0] == 0.5);
    assert_int_equal(p.params.flip, 1);
    assert_int_equal(p.params.crop_pad, 4);
    parsed_free(&p);

    sl_assert_ok(parse("data: {format: cifar10, path: c, valid_path: v.bin,\n"
                       "  mean: [0.1, 0.2, 0.3], deviation: 0.5}\n",
                       NULL, &p));
    assert_string_equal(p.params.path, "c");
    assert_string_equal(p.params.valid_path, "v.bin");
    assert_true(p.params.mean[2] == 0.3);
    assert_true(p.params.deviation[2] == 0.5);
    parsed_free(&p);

    sl_assert_ok(parse("data: {format: text, path: t.txt, context: 64,\n"
                       "  valid_fraction: 0.05}\n",
                       "", &p));
    assert_string_equal(p.params.path, "t.txt");
    assert_int_equal(p.params.context, 64);
    assert_true(p.params.valid_fraction == 0.05);
    parsed_free(&p);

    sl_assert_ok(parse("data: {format: synthetic_tokens, n_samples: 99,\n"
                       "  seed: 5, classes: 50257, context: 16}\n",
                       "d", &p));
    assert_int_equal(p.params.n_samples, 99);
    assert_int_equal(p.params.seed, 5);
    assert_null(p.params.path);
    parsed_free(&p);
}

static void absent_keys_have_their_defaults(void **state)
{
    sl_data_params_t defaults;
    parsed_t p;

    (void)state;
    sl_data_params_default(&defaults);
    sl_assert_ok(parse("data: {format: synthetic_images}\n", "d", &p));
    assert_int_equal(p.params.n_samples, defaults.n_samples);
    assert_int_equal(p.params.context, defaults.context);
    assert_true(p.params.valid_fraction == defaults.valid_fraction);
    assert_true(p.params.deviation[0] == 0.0);
    assert_int_equal(p.params.n_valid, 0);
    assert_int_equal(p.params.classes, 0);
    assert_int_equal(p.params.channels, 0);
    assert_int_equal(p.params.flip, 0);
    parsed_free(&p);
}

static void errors_name_the_place(void **state)
{
    static const struct {
        const char *text, *place, *part;
    } cases[] = {
        {"model: 1\n", "config", "there is no 'data' section"},
        {"data: 3\n", "train.yaml:1", "no mapping"},
        {"data:\n  path: x\n", "train.yaml:2", "needs 'format', one of idx|"},
        {"data:\n  format: jpeg\n", "train.yaml:2", "jpeg"},
        {"data:\n  format: text\n", "train.yaml:2", "needs 'path'"},
        {"data:\n  format: idx\n  path: x\n", "train.yaml:2", "needs 'labels'"},
        {"data: {format: idx, path: x, labels: y, valid_path: z}\n",
         "train.yaml:1", "needs 'valid_labels'"},
        {"data: {format: idx, path: x, labels: y, valid_labels: z}\n",
         "train.yaml:1", "needs 'valid_path'"},
        {"data:\n  format: cifar10\n  path: x\n  context: 4\n", "train.yaml:4",
         "data.context has no meaning for format cifar10"},
        {"data:\n  format: text\n  path: x\n  flip: yes\n", "train.yaml:4",
         "data.flip has no meaning for format text"},
        {"data:\n  format: text\n  path: x\n  context: 0\n", "train.yaml:4",
         "context"},
        {"data:\n  format: text\n  path: x\n  valid_fraction: 1\n",
         "train.yaml:4", "valid_fraction"},
        {"data:\n  format: text\n  path: x\n  valid_path: y\n"
         "  valid_fraction: 0.1\n",
         "train.yaml:5", "are both set"},
        {"data:\n  format: cifar10\n  path: x\n  mean: [1, 2, 3]\n",
         "train.yaml:4", "set without data.deviation"},
        {"data:\n  format: cifar10\n  path: x\n  mean: [1, 2]\n"
         "  deviation: 1\n",
         "train.yaml:4", "fewer numbers than the images have channels, 3"},
        {"data:\n  format: cifar10\n  path: x\n  mean: [1, 2, 3, 4]\n"
         "  deviation: 1\n",
         "train.yaml:4", "a list of 1 to 3"},
        {"data:\n  format: cifar10\n  path: x\n  mean: 0\n"
         "  deviation: [1, 0, 1]\n",
         "train.yaml:5", "deviation"},
        {"data:\n  format: cifar10\n  path: x\n  mean: 0\n"
         "  deviation: [1, [2], 1]\n",
         "train.yaml:5", "no number"},
        {"data:\n  format: cifar10\n  path: x\n  mean: abc\n"
         "  deviation: 1\n",
         "train.yaml:4", "data.mean"},
        {"data:\n  format: synthetic_images\n  image: 32\n", "train.yaml:3",
         "image"},
        {"data:\n  format: synthetic_images\n  image: {channels: 4}\n",
         "train.yaml:3", "channels"},
        {"data:\n  format: synthetic_images\n  crop_pad: -1\n", "train.yaml:3",
         "crop_pad"},
        {"data:\n  format: synthetic_images\n  path: x\n", "train.yaml:3",
         "data.path has no meaning"},
    };
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        parsed_t p;

        sl_assert_status(parse(cases[i].text, "d", &p), SL_ERR_CONFIG);
        sl_assert_contains(sl_last_error(), cases[i].place);
        sl_assert_contains(sl_last_error(), cases[i].part);
        assert_null(p.strings.paths[0]);
        assert_null(p.params.format);
        parsed_free(&p);
    }
}

static void a_config_opens_its_data(void **state)
{
    parsed_t p;
    sl_dataset_t *dataset = NULL;

    (void)state;
    (void)test_file("t.txt", "to be or not to be, that is the question", 40);
    sl_assert_ok(parse("data: {format: text, path: t.txt, context: 5,\n"
                       "  valid_fraction: 0.25}\n",
                       sl_test_directory(), &p));
    sl_assert_ok(sl_dataset_open(&p.params, &dataset));
    /* the paths are not needed once it is open */
    parsed_free(&p);
    assert_int_equal(sl_dataset_count(dataset, SL_DATA_TRAIN), 5);
    assert_int_equal(sl_dataset_count(dataset, SL_DATA_VALID), 1);
    sl_dataset_close(dataset);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(every_key_is_read),
        sl_unit_test(absent_keys_have_their_defaults),
        sl_unit_test(errors_name_the_place),
        sl_unit_test(a_config_opens_its_data),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
