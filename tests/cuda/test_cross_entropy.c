/* SPDX-License-Identifier: Apache-2.0 */
/* Softmax and cross-entropy on a CUDA device. */
#include <math.h>
#include <string.h>

#include "tests/cuda/kernel_bed.h"

enum {
    IGNORED = -100
};

typedef struct loss {
    size_t rows, classes, pixels, n;
    double smoothing;
    int32_t *targets;
    float *logits;
    double sums[4];
    double *din;
    sl_cuda_cross_entropy_t args;
} loss_t;

static size_t place_of(const loss_t *loss, size_t row, size_t c)
{
    const size_t pixels = loss->pixels;

    return pixels == 0 ? row * loss->classes + c
                       : row / pixels * loss->classes * pixels + c * pixels +
                             row % pixels;
}

/* Loss of one row of logits in double. */
static double row_loss(const loss_t *loss, const double *x, size_t target)
{
    const size_t n = loss->classes;
    double max = x[0], exps = 0, mean = 0;
    size_t c;

    for (c = 1; c < n; c++) {
        max = x[c] > max ? x[c] : max;
    }
    for (c = 0; c < n; c++) {
        exps += exp(x[c] - max);
        mean += (x[c] - max) / (double)n;
    }
    return log(exps) - (1 - loss->smoothing) * (x[target] - max) -
           loss->smoothing * mean;
}

static size_t best_of(const loss_t *loss, size_t row)
{
    size_t best = 0, c;

    for (c = 1; c < loss->classes; c++) {
        if (loss->logits[place_of(loss, row, c)] >
            loss->logits[place_of(loss, row, best)]) {
            best = c;
        }
    }
    return best;
}

static void reference(loss_t *loss)
{
    const size_t n = loss->classes;
    double *x = bed_doubles(n);
    size_t row, c;

    memset(loss->sums, 0, sizeof(loss->sums));
    for (row = 0; row < loss->rows; row++) {
        const int32_t target = loss->targets[row];
        size_t best = 0;
        double exps = 0;

        for (c = 0; c < n; c++) {
            x[c] = (double)loss->logits[place_of(loss, row, c)];
            best = x[c] > x[best] ? c : best;
            loss->din[place_of(loss, row, c)] = 0;
        }
        if (target == IGNORED) {
            continue;
        }
        loss->sums[0] += row_loss(loss, x, (size_t)target);
        loss->sums[1] += 1;
        loss->sums[2] += best == (size_t)target;
        for (c = 0; c < n; c++) {
            exps += exp(x[c] - x[best]);
        }
        for (c = 0; c < n; c++) {
            loss->din[place_of(loss, row, c)] =
                (exp(x[c] - x[best]) / exps - loss->smoothing / (double)n -
                 (c == (size_t)target ? 1 - loss->smoothing : 0)) *
                (double)loss->args.loss_scale;
        }
    }
}

static void loss_make(loss_t *loss, sl_cuda_type_t type, size_t rows,
                      size_t classes, size_t pixels, double smoothing)
{
    const sl_rng_t rng = sl_rng_at(5, 1, 1, 1, 1);
    size_t i;

    memset(loss, 0, sizeof(*loss));
    loss->rows = rows;
    loss->classes = classes;
    loss->pixels = pixels;
    loss->n = rows * classes;
    loss->smoothing = smoothing;
    loss->targets = (int32_t *)(void *)bed_floats(rows);
    for (i = 0; i < rows; i++) {
        loss->targets[i] = (int32_t)sl_rng_below(&rng, i, classes);
        if (i % 5 == 3) {
            loss->targets[i] = IGNORED;
        }
    }
    loss->logits = bed_random(loss->n, 1, 3);
    loss->din = bed_doubles(loss->n);
    loss->args = (sl_cuda_cross_entropy_t){.type = type,
                                           .rows = (int64_t)rows,
                                           .classes = (int64_t)classes,
                                           .pixels = (int64_t)pixels,
                                           .ignore_index = IGNORED,
                                           .label_smoothing = smoothing,
                                           .loss_scale = 0.25f};
    loss->args.logits = bed_upload(type, loss->logits, loss->n, 1);
    for (i = 0; i < rows; i += 2) { /* after the logits are rounded */
        if (loss->targets[i] != IGNORED) {
            loss->targets[i] = (int32_t)best_of(loss, i);
        }
    }
    loss->args.targets = bed_upload_bytes(loss->targets, rows * 4);
    loss->args.out = bed_bytes(4 * sizeof(double));
    loss->args.saved = bed_array(SL_CUDA_F32, 2 * rows, 0);
    loss->args.din = bed_array(type, loss->n, 0);
    loss->args.workspace =
        bed_bytes(sl_cuda_cross_entropy_workspace_bytes((int64_t)rows));
}

static void run_both(void *args)
{
    sl_assert_ok(sl_cuda_cross_entropy_forward(args, bed_stream()));
    sl_assert_ok(sl_cuda_cross_entropy_backward(args, bed_stream()));
}

static void check_sums(const loss_t *loss, const double *want)
{
    double got[4];

    bed_fetch_bytes(got, loss->args.out, sizeof(got));
    assert_true(fabs(got[0] - want[0]) <=
                1e-6 * (fabs(want[0]) + (double)loss->rows));
    assert_true(got[1] == want[1] && got[2] == want[2] && got[3] == 0);
}

static void it_is_right(void **state)
{
    static const struct {
        size_t rows, classes, pixels;
        double smoothing;
    } shapes[] = {{1, 1, 0, 0},     {7, 10, 0, 0},     {33, 65, 0, 0.1},
                  {3, 3001, 0, 0},  {2, 1000, 0, 0.3}, {30, 4, 15, 0},
                  {48, 33, 12, 0.1}};
    loss_t loss;
    size_t s;
    int type;

    (void)state;
    for (type = 0; type < SL_CUDA_N_TYPES; type++) {
        const double e = bed_epsilon((sl_cuda_type_t)type);

        for (s = 0; s < sizeof(shapes) / sizeof(*shapes); s++) {
            loss_make(&loss, (sl_cuda_type_t)type, shapes[s].rows,
                      shapes[s].classes, shapes[s].pixels, shapes[s].smoothing);
            reference(&loss);
            run_both(&loss.args);
            check_sums(&loss, loss.sums);
            bed_assert_close(
                "din", bed_fetch((sl_cuda_type_t)type, loss.args.din, loss.n),
                loss.din, loss.n, e + 2e-6, 1e-7);
        }
    }
}

static void gradients_are_differences(void **state)
{
    loss_t loss;
    double *x;
    float *din;
    size_t c;

    (void)state;
    loss_make(&loss, SL_CUDA_F32, 1, 23, 0, 0.2);
    run_both(&loss.args);
    din = bed_fetch(SL_CUDA_F32, loss.args.din, 23);
    x = bed_doubles(23);
    for (c = 0; c < 23; c++) {
        x[c] = (double)loss.logits[c];
    }
    for (c = 0; c < 23; c++) {
        const double at = x[c], h = 1e-5;
        double slope;

        x[c] = at + h;
        slope = row_loss(&loss, x, (size_t)loss.targets[0]);
        x[c] = at - h;
        slope -= row_loss(&loss, x, (size_t)loss.targets[0]);
        x[c] = at;
        slope *= 0.25 / (2 * h);
        bed_assert_close("slope", &din[c], &slope, 1, 1e-5, 1e-7);
    }
}

static void bits_repeat(void **state)
{
    loss_t loss;
    bed_output_t outputs[2];

    (void)state;
    loss_make(&loss, SL_CUDA_F32, 301, 300, 0, 0.1);
    outputs[0] = (bed_output_t){loss.args.out, 4 * sizeof(double)};
    outputs[1] = (bed_output_t){loss.args.din, loss.n * sizeof(float)};
    bed_assert_repeats(run_both, &loss.args, outputs, 2);
    loss_make(&loss, SL_CUDA_F32, 300, 7, 100, 0);
    outputs[0] = (bed_output_t){loss.args.out, 4 * sizeof(double)};
    outputs[1] = (bed_output_t){loss.args.din, loss.n * sizeof(float)};
    bed_assert_repeats(run_both, &loss.args, outputs, 2);
}

static void check_against_the_cpu(const int64_t *dims, int n_dims, size_t rows,
                                  size_t classes, size_t pixels)
{
    const int64_t image[] = {dims[0], n_dims == 4 ? dims[2] : 0,
                             n_dims == 4 ? dims[3] : 0};
    const sl_tensor_desc_t in[] = {sl_tensor_desc(SL_DTYPE_F32, n_dims, dims),
                                   sl_tensor_desc(SL_DTYPE_I32,
                                                  n_dims == 4 ? 3 : n_dims - 1,
                                                  n_dims == 4 ? image : dims)};
    const sl_attr_t attrs[] = {{.name = "ignore_index", .number = IGNORED},
                               {.name = "label_smoothing", .number = 0.1}};
    bed_layer_t *cpu = bed_cpu_layer("softmax_cross_entropy", attrs, 2, in, 2);
    double sums[4];
    loss_t loss;

    loss_make(&loss, SL_CUDA_F32, rows, classes, pixels, 0.1);
    run_both(&loss.args);
    cpu->run.in[0] = loss.logits;
    cpu->run.in[1] = loss.targets;
    cpu->run.out = sums;
    cpu->run.din[0] = bed_floats(loss.n);
    cpu->run.step.loss_scale = 0.25f;
    bed_cpu_forward(cpu);
    bed_cpu_backward(cpu);
    check_sums(&loss, sums);
    sl_assert_close(bed_fetch(SL_CUDA_F32, loss.args.din, loss.n),
                    cpu->run.din[0], loss.n, 2e-6, 1e-7);
}

static void it_agrees_with_the_cpu(void **state)
{
    const int64_t rows[] = {6, 11, 50};
    const int64_t image[] = {2, 5, 3, 7};

    (void)state;
    check_against_the_cpu(rows, 3, 66, 50, 0);
    check_against_the_cpu(image, 4, 42, 5, 21);
}

/* Equal largest logits: the first counts, as on the CPU. */
static void ties_go_to_the_first(void **state)
{
    static const int32_t targets[] = {0, 1};
    double got[4];
    loss_t loss;
    size_t i, pixels;

    (void)state;
    for (pixels = 0; pixels < 2; pixels++) {
        loss_make(&loss, SL_CUDA_F32, 2, 40, pixels, 0);
        for (i = 0; i < 80; i++) {
            loss.logits[i] = 1;
        }
        loss.args.logits = bed_upload(SL_CUDA_F32, loss.logits, 80, 0);
        loss.args.targets = bed_upload_bytes(targets, sizeof(targets));
        run_both(&loss.args);
        bed_fetch_bytes(got, loss.args.out, sizeof(got));
        assert_true(got[1] == 2 && got[2] == 1);
    }
}

static void a_bad_target_gives_nan(void **state)
{
    loss_t loss;
    double got[4];
    float *din;
    size_t i, pixels;

    (void)state;
    for (pixels = 0; pixels <= 5; pixels += 5) {
        loss_make(&loss, SL_CUDA_F32, 10, 8, pixels, 0);
        loss.targets[7] = 8;
        loss.targets[6] = -1;
        loss.args.targets = bed_upload_bytes(loss.targets, 40);
        run_both(&loss.args);
        bed_fetch_bytes(got, loss.args.out, sizeof(got));
        assert_true(isnan(got[0]));
        din = bed_fetch(SL_CUDA_F32, loss.args.din, loss.n);
        for (i = 0; i < 10; i++) {
            assert_int_equal(isnan(din[place_of(&loss, i, 3)]) != 0,
                             i == 6 || i == 7);
        }
    }
}

static void large_logits_and_in_place(void **state)
{
    void *logits;
    float *din;
    loss_t loss;
    size_t i;

    (void)state;
    loss_make(&loss, SL_CUDA_F32, 9, 100, 0, 0);
    for (i = 0; i < loss.n; i++) {
        loss.logits[i] *= 1e4f;
    }
    logits = bed_upload(SL_CUDA_F32, loss.logits, loss.n, 0);
    loss.args.logits = logits;
    loss.args.din = logits;
    reference(&loss);
    run_both(&loss.args);
    check_sums(&loss, loss.sums);
    din = bed_fetch(SL_CUDA_F32, logits, loss.n);
    bed_assert_close("din", din, loss.din, loss.n, 1e-3, 1e-3);
    loss.args.rows = 0;
    run_both(&loss.args);
    memset(loss.sums, 0, sizeof(loss.sums));
    check_sums(&loss, loss.sums);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BED_TEST(it_is_right),
        BED_TEST(gradients_are_differences),
        BED_TEST(bits_repeat),
        BED_TEST(it_agrees_with_the_cpu),
        BED_TEST(ties_go_to_the_first),
        BED_TEST(a_bad_target_gives_nan),
        BED_TEST(large_logits_and_in_place),
    };

    return bed_has_device() ? cmocka_run_group_tests(tests, NULL, NULL) : 77;
}
