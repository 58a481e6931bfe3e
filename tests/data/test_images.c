/* SPDX-License-Identifier: Apache-2.0 */
/* Image formats: IDX, CIFAR, synthetic; what is refused, and why. */
#include <math.h>
#include <sys/stat.h>

#include <zlib.h>

#include "base/rng.h"
#include "tests/data/data_test.h"

enum {
    N = 3,
    H = 2,
    W = 3,
    HEADER = 16,
    IMAGES = HEADER + N * H * W
};

static const uint8_t good_images[IMAGES] = {
    0,  0,   8,   3,   0,   0, 0, N, 0, 0, 0, H,  0,  0,  0,  W,  0,
    51, 102, 153, 204, 255, 1, 2, 3, 4, 5, 6, 10, 20, 30, 40, 50, 60};
static const uint8_t good_labels[8 + N] = {0, 0, 8, 1, 0, 0, 0, N, 4, 0, 6};

static sl_data_params_t idx_params(const char *images, const char *labels)
{
    sl_data_params_t params;

    sl_data_params_default(&params);
    params.format = "idx";
    params.path = images;
    params.labels = labels;
    return params;
}

static const char *gz_file(const char *name, const void *bytes, size_t n)
{
    const char *path = test_path(name);
    gzFile gz = gzopen(path, "wb");

    assert_non_null(gz);
    assert_int_equal(gzwrite(gz, bytes, (unsigned)n), n);
    assert_int_equal(gzclose(gz), Z_OK);
    return path;
}

static void check_good_set(const char *images, const char *labels)
{
    const sl_data_params_t params = idx_params(images, labels);
    sl_dataset_t *dataset = NULL;
    sl_tensor_desc_t data, target;
    float pixels[H * W];
    int32_t label;
    int i, k;

    sl_assert_ok(sl_dataset_open(&params, &dataset));
    assert_int_equal(sl_dataset_count(dataset, SL_DATA_TRAIN), N);
    assert_int_equal(sl_dataset_count(dataset, SL_DATA_VALID), 0);
    assert_int_equal(sl_dataset_classes(dataset), 7);
    sl_dataset_descs(dataset, &data, &target);
    assert_int_equal(data.n_dims, 4);
    assert_int_equal(data.dims[0], 1);
    assert_int_equal(data.dims[1], 1);
    assert_int_equal(data.dims[2], H);
    assert_int_equal(data.dims[3], W);
    assert_int_equal(target.n_dims, 1);
    assert_int_equal(target.dtype, SL_DTYPE_I32);
    for (i = 0; i < N; i++) {
        sl_dataset_sample(dataset, SL_DATA_TRAIN, i, 1, 1, pixels, &label);
        assert_int_equal(label, good_labels[8 + i]);
        for (k = 0; k < H * W; k++) {
            const double byte = good_images[HEADER + i * H * W + k];
            const float want = (float)((byte / 255.0 - 0.1307) / 0.3081);

            assert_true(pixels[k] == want);
        }
    }
    sl_dataset_close(dataset);
}

static void idx_is_read_plain_and_gzipped(void **state)
{
    const char *images, *labels;

    (void)state;
    images = test_file("i", good_images, sizeof(good_images));
    labels = test_file("l", good_labels, sizeof(good_labels));
    check_good_set(images, labels);
    images = gz_file("i.gz", good_images, sizeof(good_images));
    labels = gz_file("l.gz", good_labels, sizeof(good_labels));
    check_good_set(images, labels);
}

static void larger_images_get_zeros_around(void **state)
{
    sl_data_params_t params =
        idx_params(test_file("i", good_images, sizeof(good_images)),
                   test_file("l", good_labels, sizeof(good_labels)));
    sl_dataset_t *dataset = NULL;
    float pixels[4 * 6];
    int32_t label;
    int y, x;

    (void)state;
    /* 2 x 3 centred in 4 x 6: one row above, one column of three left */
    params.height = 4;
    params.width = 6;
    params.mean[0] = 0.0;
    params.deviation[0] = 1.0 / 255.0;
    sl_assert_ok(sl_dataset_open(&params, &dataset));
    sl_dataset_sample(dataset, SL_DATA_TRAIN, 2, 0, 0, pixels, &label);
    for (y = 0; y < 4; y++) {
        for (x = 0; x < 6; x++) {
            const int inside = y >= 1 && y < 3 && x >= 1 && x < 4;
            const int byte =
                inside ? good_images[HEADER + 12 + (y - 1) * 3 + x - 1] : 0;

            assert_float_equal(pixels[y * 6 + x], (float)byte, 1e-3);
        }
    }
    sl_dataset_close(dataset);
    params.height = 1;
    sl_assert_status(sl_dataset_open(&params, &dataset), SL_ERR_CONFIG);
    sl_assert_contains(sl_last_error(), "height 1 asked, the file has 2");
}

/** Open with the images file replaced; the reason must hold `part`. */
static void refused(const void *bytes, size_t n, const char *part)
{
    const sl_data_params_t params =
        idx_params(test_file("bad", bytes, n),
                   test_file("l", good_labels, sizeof(good_labels)));
    sl_dataset_t *dataset = NULL;

    sl_assert_status(sl_dataset_open(&params, &dataset), SL_ERR_CORRUPT);
    sl_assert_contains(sl_last_error(), part);
    sl_assert_contains(sl_last_error(), "/bad");
    assert_null(dataset);
}

static void bad_headers_are_refused_with_the_reason(void **state)
{
    static const struct {
        size_t at;
        uint8_t byte;
        const char *part;
    } cases[] = {
        {0, 1, "no IDX file"},
        {1, 9, "no IDX file"},
        {2, 0x0D, "IDX type 0x0d at offset 2"},
        {3, 1, "1 dims at offset 3; images have 3"},
        {3, 4, "4 dims at offset 3"},
        {7, 0, "size 0 at offset 4"},
        {4, 0x80, "size 2147483651 at offset 4"},
        {4, 0x7F, "cannot hold them"},
        {12, 1, "size 16777219 at offset 12"},
        {7, N + 1, "cannot hold them"},
        {7, N - 1, "goes on after offset 28"},
    };
    uint8_t bytes[IMAGES + 1];
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        memcpy(bytes, good_images, IMAGES);
        bytes[cases[i].at] = cases[i].byte;
        refused(bytes, IMAGES, cases[i].part);
    }
    memcpy(bytes, good_images, IMAGES);
    bytes[IMAGES] = 0;
    refused(bytes, IMAGES + 1, "goes on after offset 34");
    refused(bytes, 0, "is empty");
}

static void every_truncation_is_refused(void **state)
{
    size_t n;

    (void)state;
    for (n = 1; n < IMAGES; n++) {
        refused(good_images, n,
                n < HEADER ? "ends at offset" : "cannot hold them");
    }
}

/** A good gzip file of the images, in memory. */
static size_t gz_bytes(uint8_t *bytes, size_t max)
{
    FILE *file = fopen(gz_file("g", good_images, IMAGES), "rb");
    size_t n;

    assert_non_null(file);
    n = fread(bytes, 1, max, file);
    assert_int_equal(fclose(file), 0);
    assert_true(n > 20 && n < max);
    return n;
}

static void damaged_gzip_is_refused(void **state)
{
    uint8_t good[256], bad[256];
    const size_t n = gz_bytes(good, sizeof(good));
    size_t i;

    (void)state;
    for (i = 1; i < n; i++) {
        refused(good, i, "data file");
    }
    /* checksum and length, at the end */
    for (i = n - 8; i < n; i++) {
        memcpy(bad, good, n);
        bad[i] ^= 0x10;
        refused(bad, n, "data file");
    }
}

static void other_files_are_refused(void **state)
{
    const char *labels = test_file("l", good_labels, sizeof(good_labels));
    sl_data_params_t params = idx_params(sl_test_directory(), labels);
    sl_dataset_t *dataset = NULL;

    (void)state;
    sl_assert_status(sl_dataset_open(&params, &dataset), SL_ERR_IO);
    sl_assert_contains(sl_last_error(), "is a directory");
    params.path = test_path("absent");
    sl_assert_status(sl_dataset_open(&params, &dataset), SL_ERR_IO);
    sl_assert_contains(sl_last_error(), "No such file");
    params.path = test_path("pipe");
    assert_int_equal(mkfifo(params.path, 0600), 0);
    sl_assert_status(sl_dataset_open(&params, &dataset), SL_ERR_IO);
    sl_assert_contains(sl_last_error(), "special file");
    params.path = NULL;
    sl_assert_status(sl_dataset_open(&params, &dataset), SL_ERR_CONFIG);
    sl_assert_contains(sl_last_error(), "needs 'path'");
    params.format = "jpeg";
    sl_assert_status(sl_dataset_open(&params, &dataset), SL_ERR_CONFIG);
    sl_assert_contains(sl_last_error(), "'jpeg' is not known; it is one of "
                                        "idx|cifar10");
}

static void labels_must_match_images(void **state)
{
    uint8_t labels[8 + N];
    sl_data_params_t params =
        idx_params(test_file("i", good_images, sizeof(good_images)), NULL);
    sl_dataset_t *dataset = NULL;

    (void)state;
    sl_assert_status(sl_dataset_open(&params, &dataset), SL_ERR_CONFIG);
    sl_assert_contains(sl_last_error(), "needs 'labels'");
    memcpy(labels, good_labels, sizeof(labels));
    labels[7] = N - 1;
    params.labels = test_file("few", labels, sizeof(labels) - 1);
    sl_assert_status(sl_dataset_open(&params, &dataset), SL_ERR_CORRUPT);
    sl_assert_contains(sl_last_error(), "2 labels, but");
    sl_assert_contains(sl_last_error(), "has 3 images");
    params.labels = params.path;
    sl_assert_status(sl_dataset_open(&params, &dataset), SL_ERR_CORRUPT);
    sl_assert_contains(sl_last_error(), "labels have 1");
    params.labels = test_file("l", good_labels, sizeof(good_labels));
    params.classes = 6;
    sl_assert_status(sl_dataset_open(&params, &dataset), SL_ERR_CONFIG);
    sl_assert_contains(sl_last_error(), "label 6 found, but classes is 6");
    params.classes = 0;
    params.n_valid = N;
    sl_assert_status(sl_dataset_open(&params, &dataset), SL_ERR_CONFIG);
    sl_assert_contains(sl_last_error(), "n_valid 3 of 3 images");
}

/** Whatever the bytes, opening ends with success or a plain refusal, and
 *  what opened can be read. */
static void open_any(const void *images, size_t n_images, const void *labels,
                     size_t n_labels)
{
    const sl_data_params_t params = idx_params(
        test_file("fi", images, n_images), test_file("fl", labels, n_labels));
    sl_dataset_t *dataset = NULL;
    const sl_status_t status = sl_dataset_open(&params, &dataset);
    int64_t i;

    (void)sl_test_log_take();
    assert_true(status == SL_OK || status == SL_ERR_CORRUPT);
    if (status == SL_OK) {
        test_sample_t sample = test_sample(dataset);

        for (i = 0; i < sl_dataset_count(dataset, SL_DATA_TRAIN); i++) {
            sl_dataset_sample(dataset, SL_DATA_TRAIN, i, 0, 0, sample.data,
                              sample.target);
            assert_in_range(*sample.target, 0, sl_dataset_classes(dataset) - 1);
        }
        test_sample_free(&sample);
        sl_dataset_close(dataset);
    }
}

static void random_damage_never_crashes(void **state)
{
    enum {
        ROUNDS = 3000
    };
    uint8_t packed[256];
    const size_t n_packed = gz_bytes(packed, sizeof(packed));
    uint32_t round;

    (void)state;
    for (round = 0; round < ROUNDS; round++) {
        const sl_rng_t rng = sl_rng_at(7, round, 0, 0, SL_RNG_USE_SYNTHETIC);
        const int is_packed = round % 3 == 0;
        const size_t n = is_packed ? n_packed : IMAGES;
        const uint64_t n_damages = 1 + sl_rng_below(&rng, 0, 6);
        uint8_t images[256], labels[8 + N];
        uint64_t i;

        memcpy(images, is_packed ? packed : good_images, n);
        memcpy(labels, good_labels, sizeof(labels));
        for (i = 0; i < n_damages; i++) {
            /* the header most of all */
            const uint64_t reach =
                sl_rng_below(&rng, 4 * i + 1, 2) ? HEADER : n;

            images[sl_rng_below(&rng, 4 * i + 2, reach)] =
                (uint8_t)sl_rng_below(&rng, 4 * i + 3, 256);
            if (round % 5 == 0) {
                labels[sl_rng_below(&rng, 4 * i + 4, sizeof(labels))] ^= 1;
            }
        }
        open_any(images, round % 7 == 0 ? sl_rng_below(&rng, 90, n) : n, labels,
                 sizeof(labels));
    }
}

/* ---- CIFAR ---- */

enum {
    PIXELS = 3072
};

/** n records; label of record i is (first + i) % classes, pixels its number
 *  plus the position, so that every byte is known. */
static const char *cifar_file(const char *name, int n, int first,
                              int label_bytes, int classes)
{
    const size_t record = (size_t)label_bytes + PIXELS;
    uint8_t *bytes = calloc((size_t)n, record);
    const char *path;
    int i, k;

    assert_non_null(bytes);
    for (i = 0; i < n; i++) {
        uint8_t *at = bytes + (size_t)i * record;

        at[label_bytes - 1] = (uint8_t)((first + i) % classes);
        for (k = 0; k < PIXELS; k++) {
            at[label_bytes + k] = (uint8_t)(first + i + k);
        }
    }
    path = test_file(name, bytes, (size_t)n * record);
    free(bytes);
    return path;
}

static sl_data_params_t cifar_params(const char *format, const char *path)
{
    sl_data_params_t params;

    sl_data_params_default(&params);
    params.format = format;
    params.path = path;
    return params;
}

/** Sample `index` must be record `number` of cifar_file(). */
static void check_record(const sl_dataset_t *dataset, sl_data_split_t split,
                         int64_t index, int number, int classes,
                         const double mean[3], const double deviation[3])
{
    float pixels[PIXELS];
    int32_t label;
    int k;

    sl_dataset_sample(dataset, split, index, 0, 0, pixels, &label);
    assert_int_equal(label, number % classes);
    for (k = 0; k < PIXELS; k++) {
        const int c = k / 1024;
        const double byte = (uint8_t)(number + k);

        assert_true(pixels[k] ==
                    (float)((byte / 255.0 - mean[c]) / deviation[c]));
    }
}

static void cifar10_directory_is_read(void **state)
{
    static const double mean[3] = {.4914, .4822, .4465};
    static const double deviation[3] = {.2470, .2435, .2616};
    sl_data_params_t params = cifar_params("cifar10", NULL);
    sl_dataset_t *dataset = NULL;
    int i;

    (void)state;
    params.path = sl_test_directory();
    for (i = 0; i < 5; i++) {
        char name[32];

        if (i == 3) { /* not there yet */
            continue;
        }
        (void)snprintf(name, sizeof(name), "data_batch_%d.bin", i + 1);
        (void)cifar_file(name, 4, 4 * i, 1, 10);
    }
    (void)cifar_file("test_batch.bin", 3, 100, 1, 10);
    sl_assert_status(sl_dataset_open(&params, &dataset), SL_ERR_IO);
    sl_assert_contains(sl_last_error(), "data_batch_4.bin");
    (void)cifar_file("data_batch_4.bin", 4, 12, 1, 10);
    sl_assert_ok(sl_dataset_open(&params, &dataset));
    assert_int_equal(sl_dataset_count(dataset, SL_DATA_TRAIN), 20);
    assert_int_equal(sl_dataset_count(dataset, SL_DATA_VALID), 3);
    assert_int_equal(sl_dataset_classes(dataset), 10);
    for (i = 0; i < 20; i++) {
        check_record(dataset, SL_DATA_TRAIN, i, i, 10, mean, deviation);
    }
    check_record(dataset, SL_DATA_VALID, 2, 102, 10, mean, deviation);
    sl_dataset_close(dataset);
    params.n_valid = 2;
    sl_assert_ok(sl_dataset_open(&params, &dataset));
    assert_int_equal(sl_dataset_count(dataset, SL_DATA_TRAIN), 18);
    check_record(dataset, SL_DATA_VALID, 1, 19, 10, mean, deviation);
    sl_dataset_close(dataset);
}

static void cifar100_has_fine_labels(void **state)
{
    static const double mean[3] = {.5071, .4865, .4409};
    static const double deviation[3] = {.2673, .2564, .2762};
    sl_data_params_t params =
        cifar_params("cifar100", cifar_file("train.bin", 5, 60, 2, 100));
    sl_dataset_t *dataset = NULL;

    (void)state;
    params.valid_path = cifar_file("test.bin", 2, 97, 2, 100);
    sl_assert_ok(sl_dataset_open(&params, &dataset));
    assert_int_equal(sl_dataset_classes(dataset), 100);
    check_record(dataset, SL_DATA_TRAIN, 4, 64, 100, mean, deviation);
    check_record(dataset, SL_DATA_VALID, 1, 98, 100, mean, deviation);
    sl_dataset_close(dataset);
    params.valid_path = NULL;
    params.path = sl_test_directory();
    sl_assert_ok(sl_dataset_open(&params, &dataset));
    assert_int_equal(sl_dataset_count(dataset, SL_DATA_VALID), 2);
    sl_dataset_close(dataset);
}

static void bad_cifar_is_refused(void **state)
{
    uint8_t bytes[2 * (PIXELS + 1)] = {0};
    sl_data_params_t params = cifar_params("cifar10", NULL);
    sl_dataset_t *dataset = NULL;

    (void)state;
    params.path = test_file("c", bytes, sizeof(bytes) - 1);
    sl_assert_status(sl_dataset_open(&params, &dataset), SL_ERR_CORRUPT);
    sl_assert_contains(sl_last_error(), "1 records of 3073 bytes and 3072");
    bytes[PIXELS + 1] = 10;
    params.path = test_file("c", bytes, sizeof(bytes));
    sl_assert_status(sl_dataset_open(&params, &dataset), SL_ERR_CORRUPT);
    sl_assert_contains(sl_last_error(), "label 10 at offset 3073");
    params.path = test_file("c", bytes, 0);
    sl_assert_status(sl_dataset_open(&params, &dataset), SL_ERR_CORRUPT);
    bytes[PIXELS + 1] = 0;
    params.path = test_file("c", bytes, sizeof(bytes));
    params.classes = 100;
    sl_assert_status(sl_dataset_open(&params, &dataset), SL_ERR_CONFIG);
    params.classes = 0;
    params.deviation[0] = NAN;
    sl_assert_status(sl_dataset_open(&params, &dataset), SL_ERR_CONFIG);
    params.deviation[0] = 1.0; /* and the other channels 0 */
    sl_assert_status(sl_dataset_open(&params, &dataset), SL_ERR_CONFIG);
    sl_assert_contains(sl_last_error(), "channel 1");
    params.deviation[0] = 0.0;
    params.crop_pad = 32;
    sl_assert_status(sl_dataset_open(&params, &dataset), SL_ERR_CONFIG);
    sl_assert_contains(sl_last_error(), "crop_pad 32");
}

/* ---- augmentation ---- */

/** Open the IDX set so that a pixel's value is its byte. */
static sl_dataset_t *byte_set(int flip, int64_t crop_pad, int64_t side)
{
    sl_data_params_t params =
        idx_params(test_file("i", good_images, sizeof(good_images)),
                   test_file("l", good_labels, sizeof(good_labels)));
    sl_dataset_t *dataset = NULL;

    params.deviation[0] = 1.0 / 255.0;
    params.flip = flip;
    params.crop_pad = crop_pad;
    params.height = side;
    params.width = side;
    params.n_valid = 1;
    sl_assert_ok(sl_dataset_open(&params, &dataset));
    return dataset;
}

static void flip_mirrors_half_of_the_train_images(void **state)
{
    sl_dataset_t *dataset = byte_set(1, 0, 0);
    float pixels[H * W];
    int n_mirrored = 0;
    int32_t label;
    uint64_t draw;
    int k;

    (void)state;
    for (draw = 0; draw < 400; draw++) {
        int is_mirrored;

        sl_dataset_sample(dataset, SL_DATA_TRAIN, 1, 3, draw, pixels, &label);
        is_mirrored = pixels[0] > 2.5f;
        n_mirrored += is_mirrored;
        for (k = 0; k < H * W; k++) {
            const int from = is_mirrored ? k / W * W + W - 1 - k % W : k;

            assert_float_equal(pixels[k], (float)(1 + from), 1e-3);
        }
        sl_dataset_sample(dataset, SL_DATA_VALID, 0, 3, draw, pixels, &label);
        assert_float_equal(pixels[0], 10.0f, 1e-3);
    }
    assert_in_range(n_mirrored, 150, 250);
    sl_dataset_close(dataset);
}

static void crop_shifts_within_the_border(void **state)
{
    sl_dataset_t *dataset = byte_set(0, 1, 5);
    int seen[3][3] = {{0}};
    float pixels[5 * 5];
    int32_t label;
    uint64_t draw;

    (void)state;
    for (draw = 0; draw < 400; draw++) {
        int at = 0, y, x;

        sl_dataset_sample(dataset, SL_DATA_TRAIN, 1, 3, draw, pixels, &label);
        while (at < 25 && pixels[at] < 0.5f) {
            at++;
        }
        /* unshifted, the first pixel is at row 1, column 1 */
        assert_in_range(at / 5, 0, 2);
        assert_in_range(at % 5, 0, 2);
        seen[at / 5][at % 5]++;
        for (y = 0; y < 5; y++) {
            for (x = 0; x < 5; x++) {
                const int r = y - at / 5, c = x - at % 5;
                const int inside = r >= 0 && r < H && c >= 0 && c < W;

                assert_float_equal(pixels[y * 5 + x],
                                   inside ? (float)(1 + r * W + c) : 0.0f,
                                   1e-3);
            }
        }
    }
    for (draw = 0; draw < 9; draw++) {
        assert_in_range(seen[draw / 3][draw % 3], 20, 80);
    }
    sl_dataset_close(dataset);
}

/* ---- synthetic ---- */

enum {
    SIDE = 16,
    CLASSES = 5,
    PER_IMAGE = 3 * SIDE * SIDE
};

static sl_dataset_t *synthetic(uint64_t seed)
{
    sl_data_params_t params;
    sl_dataset_t *dataset = NULL;

    sl_data_params_default(&params);
    params.format = "synthetic_images";
    params.height = SIDE;
    params.width = SIDE;
    params.classes = CLASSES;
    params.n_samples = 100;
    params.n_valid = 50;
    params.seed = seed;
    sl_assert_ok(sl_dataset_open(&params, &dataset));
    return dataset;
}

static void synthetic_images_can_be_learnt(void **state)
{
    static double centre[CLASSES][PER_IMAGE];
    sl_dataset_t *dataset = synthetic(1);
    float pixels[PER_IMAGE];
    int n_right = 0;
    int32_t label;
    int i, c, k;

    (void)state;
    assert_int_equal(sl_dataset_count(dataset, SL_DATA_TRAIN), 100);
    assert_int_equal(sl_dataset_count(dataset, SL_DATA_VALID), 50);
    for (i = 0; i < 100; i++) {
        sl_dataset_sample(dataset, SL_DATA_TRAIN, i, 0, 0, pixels, &label);
        assert_in_range(label, 0, CLASSES - 1);
        for (k = 0; k < PER_IMAGE; k++) {
            centre[label][k] += (double)pixels[k] / (100 / CLASSES);
        }
    }
    for (i = 0; i < 50; i++) {
        double nearest = INFINITY;
        int guess = -1;

        sl_dataset_sample(dataset, SL_DATA_VALID, i, 0, 0, pixels, &label);
        for (c = 0; c < CLASSES; c++) {
            double distance = 0.0;

            for (k = 0; k < PER_IMAGE; k++) {
                const double d = (double)pixels[k] - centre[c][k];

                distance += d * d;
            }
            if (distance < nearest) {
                nearest = distance;
                guess = c;
            }
        }
        n_right += guess == label;
    }
    assert_int_equal(n_right, 50);
    sl_dataset_close(dataset);
}

static void synthetic_images_are_a_function_of_seed_and_index(void **state)
{
    sl_dataset_t *a = synthetic(1), *b = synthetic(1), *other = synthetic(2);
    float x[PER_IMAGE], y[PER_IMAGE];
    int32_t label, label_b;

    (void)state;
    sl_dataset_sample(a, SL_DATA_TRAIN, 7, 0, 0, x, &label);
    sl_dataset_sample(b, SL_DATA_TRAIN, 7, 5, 9, y, &label_b);
    assert_memory_equal(x, y, sizeof(x));
    assert_int_equal(label, label_b);
    sl_dataset_sample(other, SL_DATA_TRAIN, 7, 0, 0, y, &label);
    assert_memory_not_equal(x, y, sizeof(x));
    sl_dataset_sample(a, SL_DATA_VALID, 7, 0, 0, y, &label);
    assert_memory_not_equal(x, y, sizeof(x));
    sl_dataset_close(a);
    sl_dataset_close(b);
    sl_dataset_close(other);
}

static void bad_synthetic_params_are_refused(void **state)
{
    sl_data_params_t good, params;
    sl_dataset_t *dataset = NULL;

    (void)state;
    sl_data_params_default(&good);
    good.format = "synthetic_images";
    params = good;
    params.classes = -1;
    sl_assert_status(sl_dataset_open(&params, &dataset), SL_ERR_CONFIG);
    params = good;
    params.n_samples = 0;
    sl_assert_status(sl_dataset_open(&params, &dataset), SL_ERR_CONFIG);
    params = good;
    params.n_samples = INT32_MAX;
    params.n_valid = 1;
    sl_assert_status(sl_dataset_open(&params, &dataset), SL_ERR_CONFIG);
    params = good;
    params.channels = 4;
    sl_assert_status(sl_dataset_open(&params, &dataset), SL_ERR_CONFIG);
    params = good;
    params.height = INT64_MAX;
    sl_assert_status(sl_dataset_open(&params, &dataset), SL_ERR_CONFIG);
    params = good;
    params.width = -3;
    sl_assert_status(sl_dataset_open(&params, &dataset), SL_ERR_CONFIG);
}

/* ---- real files ---- */

static void real_digits_are_read(void **state)
{
    static const int want[10] = {980, 1135, 1032, 1010, 982,
                                 892, 958,  1028, 974,  1009};
    char images[512], labels[512];
    const char *path = sl_test_data("t10k-images-idx3-ubyte.gz");
    sl_data_params_t params;
    sl_dataset_t *dataset = NULL;
    double sum = 0.0, squares = 0.0;
    const double n = 10000.0 * 784.0;
    static float pixels[784];
    int counts[10] = {0};
    int32_t label;
    int i, k;

    (void)state;
    if (path == NULL) {
        skip();
    }
    (void)snprintf(images, sizeof(images), "%s", path);
    path = sl_test_data("t10k-labels-idx1-ubyte.gz");
    if (path == NULL) {
        skip();
    }
    (void)snprintf(labels, sizeof(labels), "%s", path);
    params = idx_params(images, labels);
    sl_assert_ok(sl_dataset_open(&params, &dataset));
    assert_int_equal(sl_dataset_count(dataset, SL_DATA_TRAIN), 10000);
    assert_int_equal(sl_dataset_classes(dataset), 10);
    for (i = 0; i < 10000; i++) {
        sl_dataset_sample(dataset, SL_DATA_TRAIN, i, 0, 0, pixels, &label);
        counts[label]++;
        if (i == 0) {
            assert_int_equal(label, 7);
        }
        for (k = 0; k < 784; k++) {
            sum += (double)pixels[k];
            squares += (double)pixels[k] * (double)pixels[k];
        }
    }
    for (i = 0; i < 10; i++) {
        assert_int_equal(counts[i], want[i]);
    }
    /* normalised with the constants of the training digits */
    assert_true(fabs(sum / n) < 0.02);
    assert_true(fabs(sqrt(squares / n) - 1.0) < 0.02);
    sl_dataset_close(dataset);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(idx_is_read_plain_and_gzipped),
        sl_unit_test(larger_images_get_zeros_around),
        sl_unit_test(bad_headers_are_refused_with_the_reason),
        sl_unit_test(every_truncation_is_refused),
        sl_unit_test(damaged_gzip_is_refused),
        sl_unit_test(other_files_are_refused),
        sl_unit_test(labels_must_match_images),
        sl_unit_test(random_damage_never_crashes),
        sl_unit_test(cifar10_directory_is_read),
        sl_unit_test(cifar100_has_fine_labels),
        sl_unit_test(bad_cifar_is_refused),
        sl_unit_test(flip_mirrors_half_of_the_train_images),
        sl_unit_test(crop_shifts_within_the_border),
        sl_unit_test(synthetic_images_can_be_learnt),
        sl_unit_test(synthetic_images_are_a_function_of_seed_and_index),
        sl_unit_test(bad_synthetic_params_are_refused),
        sl_unit_test(real_digits_are_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
