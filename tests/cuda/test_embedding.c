/* SPDX-License-Identifier: Apache-2.0 */
/* Embedding on a CUDA device: in fp32 the CPU's bits. */
#include <math.h>
#include <string.h>

#include "tests/cuda/kernel_bed.h"

typedef struct table {
    size_t batch, time, width, vocab, positions, n;
    int32_t *tokens;
    float *weight, *position, *dout, *grads[2];
    sl_cuda_embedding_t args;
} table_t;

static void table_make(table_t *table, sl_cuda_type_t type, size_t batch,
                       size_t time, size_t width, size_t vocab,
                       size_t positions)
{
    const sl_rng_t rng = sl_rng_at(5, 1, 1, 1, 1);
    const size_t n = batch * time;
    size_t i;

    memset(table, 0, sizeof(*table));
    table->batch = batch;
    table->time = time;
    table->width = width;
    table->vocab = vocab;
    table->positions = positions;
    table->n = n;
    table->tokens = (int32_t *)(void *)bed_floats(n);
    for (i = 0; i < n; i++) {
        table->tokens[i] = (int32_t)sl_rng_below(&rng, i, vocab);
    }
    table->weight = bed_random(vocab * width, 1, 1);
    table->position = bed_random(positions * width, 2, 1);
    table->dout = bed_random(n * width, 3, 1);
    table->grads[0] = bed_random(vocab * width, 4, 1);
    table->grads[1] = bed_random(positions * width, 5, 1);
    table->args = (sl_cuda_embedding_t){.type = type,
                                        .n = (int64_t)n,
                                        .time = (int64_t)time,
                                        .width = (int64_t)width,
                                        .vocab = (int64_t)vocab,
                                        .positions = (int64_t)positions,
                                        .is_first = 1};
    table->args.tokens = bed_upload_bytes(table->tokens, n * sizeof(int32_t));
    table->args.weight =
        bed_upload(SL_CUDA_F32, table->weight, vocab * width, 0);
    table->args.position =
        bed_upload(SL_CUDA_F32, table->position, positions * width, 0);
    table->args.out = bed_array(type, n * width, 1);
    table->args.workspace = bed_bytes(
        sl_cuda_embedding_workspace_bytes((int64_t)n, (int64_t)vocab));
    table->args.dout = bed_upload(type, table->dout, n * width, 0);
    table->args.dweight = bed_array(SL_CUDA_F32, vocab * width, 0);
    table->args.dposition = bed_array(SL_CUDA_F32, positions * width, 0);
}

static void run_both(void *args)
{
    sl_assert_ok(sl_cuda_embedding_forward(args, bed_stream()));
    sl_assert_ok(sl_cuda_embedding_backward(args, bed_stream()));
}

static bed_layer_t *cpu_make(const table_t *table, float *grads[2])
{
    const int64_t dims[] = {(int64_t)table->batch, (int64_t)table->time};
    const sl_tensor_desc_t in = sl_tensor_desc(SL_DTYPE_I32, 2, dims);
    const sl_attr_t attrs[] = {
        {.name = "vocab", .number = (double)table->vocab},
        {.name = "width", .number = (double)table->width},
        {.name = "positions", .number = table->positions > 0}};
    bed_layer_t *cpu = bed_cpu_layer("embedding", attrs, 3, &in, 1);

    cpu->run.in[0] = table->tokens;
    cpu->run.out = bed_floats(table->n * table->width);
    cpu->run.dout = table->dout;
    cpu->run.param[0] = table->weight;
    cpu->run.param[1] = table->position;
    cpu->run.grad[0] = grads[0];
    cpu->run.grad[1] = table->positions > 0 ? grads[1] : NULL;
    return cpu;
}

static void check_against_the_cpu(table_t *table)
{
    const size_t n_weight = table->vocab * table->width;
    const size_t n_position = table->positions * table->width;
    float *grads[2] = {bed_random(n_weight, 4, 1),
                       bed_random(n_position, 5, 1)};
    bed_layer_t *cpu = cpu_make(table, grads);

    run_both(&table->args);
    cpu->run.step.is_first_backward = 1;
    bed_cpu_forward(cpu);
    bed_cpu_backward(cpu);
    bed_assert_same(
        "out", bed_fetch(SL_CUDA_F32, table->args.out, table->n * table->width),
        cpu->run.out, table->n * table->width);
    bed_assert_same("dweight",
                    bed_fetch(SL_CUDA_F32, table->args.dweight, n_weight),
                    grads[0], n_weight);
    bed_assert_same("dposition",
                    bed_fetch(SL_CUDA_F32, table->args.dposition, n_position),
                    grads[1], n_position);
    /* and once more, on top */
    cpu->run.step.is_first_backward = 0;
    table->args.is_first = 0;
    bed_cpu_backward(cpu);
    sl_assert_ok(sl_cuda_embedding_backward(&table->args, bed_stream()));
    bed_assert_same("dweight +",
                    bed_fetch(SL_CUDA_F32, table->args.dweight, n_weight),
                    grads[0], n_weight);
    bed_assert_same("dposition +",
                    bed_fetch(SL_CUDA_F32, table->args.dposition, n_position),
                    grads[1], n_position);
}

static void fp32_has_the_cpus_bits(void **state)
{
    static const struct {
        size_t batch, time, width, vocab, positions;
    } shapes[] = {{1, 1, 1, 1, 1},
                  {3, 7, 5, 11, 7},
                  {4, 65, 33, 3, 65},
                  {2, 200, 130, 50, 0},
                  {1, 300, 4, 1000, 0},
                  {3, 700, 12, 70000, 0},  /* three passes of the sort */
                  {1, 8500, 4, 2, 0},      /* tiles above the smallest */
                  {4, 600, 260, 255, 600}, /* two blocks of columns */
                  {1, 5, 3, 256, 0}};
    table_t table;
    size_t s;

    (void)state;
    for (s = 0; s < sizeof(shapes) / sizeof(*shapes); s++) {
        table_make(&table, SL_CUDA_F32, shapes[s].batch, shapes[s].time,
                   shapes[s].width, shapes[s].vocab, shapes[s].positions);
        check_against_the_cpu(&table);
    }
}

static void types_of_16_bits_are_right(void **state)
{
    enum {
        N = 60,
        WIDTH = 9,
        VOCAB = 13,
        TIME = 20
    };
    table_t table;
    int type;

    (void)state;
    for (type = SL_CUDA_BF16; type < SL_CUDA_N_TYPES; type++) {
        double *out = bed_doubles(N * WIDTH);
        double *dweight = bed_doubles(VOCAB * WIDTH);
        double *dposition = bed_doubles(TIME * WIDTH);
        size_t i, k;

        table_make(&table, (sl_cuda_type_t)type, N / TIME, TIME, WIDTH, VOCAB,
                   TIME);
        for (i = 0; i < N; i++) {
            const size_t token = (size_t)table.tokens[i];

            for (k = 0; k < WIDTH; k++) {
                const double d = (double)table.dout[i * WIDTH + k];

                out[i * WIDTH + k] =
                    (double)table.weight[token * WIDTH + k] +
                    (double)table.position[i % TIME * WIDTH + k];
                dweight[token * WIDTH + k] += d;
                dposition[i % TIME * WIDTH + k] += d;
            }
        }
        run_both(&table.args);
        bed_assert_close(
            "out", bed_fetch((sl_cuda_type_t)type, table.args.out, N * WIDTH),
            out, N * WIDTH, bed_epsilon((sl_cuda_type_t)type) + 1e-6, 2e-7);
        bed_assert_close(
            "dweight",
            bed_fetch(SL_CUDA_F32, table.args.dweight, VOCAB * WIDTH), dweight,
            VOCAB * WIDTH, 1e-6, 1e-6);
        bed_assert_close(
            "dposition",
            bed_fetch(SL_CUDA_F32, table.args.dposition, TIME * WIDTH),
            dposition, TIME * WIDTH, 1e-6, 1e-6);
    }
}

static void bits_repeat(void **state)
{
    table_t table;
    bed_output_t outputs[3];

    (void)state;
    table_make(&table, SL_CUDA_F32, 5, 50, 40, 17, 50);
    outputs[0] = (bed_output_t){table.args.out, 250 * 40 * sizeof(float)};
    outputs[1] = (bed_output_t){table.args.dweight, 17 * 40 * sizeof(float)};
    outputs[2] = (bed_output_t){table.args.dposition, 50 * 40 * sizeof(float)};
    bed_assert_repeats(run_both, &table.args, outputs, 3);
}

/* A bad token touches no row of the table and does not stop the others. */
static void a_bad_token_gives_nan(void **state)
{
    table_t table;
    float *out, *dweight;
    double *want;
    size_t i;

    (void)state;
    table_make(&table, SL_CUDA_F32, 2, 20, 8, 10, 20);
    table.tokens[13] = 10;
    table.tokens[5] = -1;
    table.tokens[39] = INT32_MAX;
    table.args.tokens = bed_upload_bytes(table.tokens, 40 * sizeof(int32_t));
    run_both(&table.args);
    out = bed_fetch(SL_CUDA_F32, table.args.out, 40 * 8);
    for (i = 0; i < 40 * 8; i++) {
        const size_t row = i / 8;

        assert_int_equal(isnan(out[i]) != 0,
                         row == 5 || row == 13 || row == 39);
    }
    want = bed_doubles(10 * 8);
    for (i = 0; i < 40 * 8; i++) {
        const int32_t token = table.tokens[i / 8];

        if (token >= 0 && token < 10) {
            want[(size_t)token * 8 + i % 8] += (double)table.dout[i];
        }
    }
    dweight = bed_fetch(SL_CUDA_F32, table.args.dweight, 10 * 8);
    bed_assert_close("dweight", dweight, want, 10 * 8, 1e-6, 1e-6);
}

/* No tokens, frozen tables. */
static void parts_can_be_left_out(void **state)
{
    table_t table;
    float *dweight;
    size_t i;

    (void)state;
    table_make(&table, SL_CUDA_F32, 2, 5, 4, 6, 0);
    table.args.dposition = NULL;
    table.args.position = NULL;
    table.args.n = 0;
    run_both(&table.args);
    dweight = bed_fetch(SL_CUDA_F32, table.args.dweight, 24);
    for (i = 0; i < 24; i++) {
        assert_true(dweight[i] == 0);
    }
    table.args.n = 10;
    table.args.dweight = NULL;
    run_both(&table.args);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BED_TEST(fp32_has_the_cpus_bits),
        BED_TEST(types_of_16_bits_are_right),
        BED_TEST(bits_repeat),
        BED_TEST(a_bad_token_gives_nan),
        BED_TEST(parts_can_be_left_out),
    };

    return bed_has_device() ? cmocka_run_group_tests(tests, NULL, NULL) : 77;
}
