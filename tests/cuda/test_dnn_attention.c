/* SPDX-License-Identifier: Apache-2.0 */
/* Attention fused by cuDNN. */
#include <cuda_runtime_api.h>
#include <math.h>
#include <string.h>

#include "layers/cuda/dnn_attention.h"
#include "tests/cuda/image_check.h"

#ifdef SL_CUDA_STANDIN
#include "dnn.h"
#include "standin.h"
#endif

typedef struct run {
    sl_cuda_attention_shape_t shape;
    sl_cuda_dnn_attention_t *attention;
    sl_cuda_dnn_attention_args_t args;
    float *qkv, *dout; /* on the host, as stored */
    size_t n;          /* elements of out */
} run_t;

static sl_cuda_attention_shape_t shape_of(int64_t time, int64_t head_dim,
                                          int is_causal)
{
    sl_cuda_attention_shape_t shape = {.batch = 2,
                                       .heads = 3,
                                       .time = time,
                                       .head_dim = head_dim,
                                       .dtype = SL_DTYPE_BF16,
                                       .is_causal = is_causal,
                                       .is_training = 1};

    shape.scale = (float)(1.0 / sqrt((double)head_dim));
    return shape;
}

static sl_cuda_type_t type_of(const sl_cuda_attention_shape_t *shape)
{
    return shape->dtype == SL_DTYPE_BF16 ? SL_CUDA_BF16 : SL_CUDA_F16;
}

static void run_make(run_t *run, const sl_cuda_attention_shape_t *shape)
{
    size_t forward, backward;

    memset(run, 0, sizeof(*run));
    run->shape = *shape;
    sl_assert_ok(sl_cuda_dnn_attention_plan(shape, &run->attention));
    run->n =
        (size_t)(shape->batch * shape->heads * shape->time * shape->head_dim);
    run->qkv = bed_random(3 * run->n, 1, 1);
    run->dout = bed_random(run->n, 2, 1);
    forward = sl_cuda_dnn_attention_forward_workspace_bytes(run->attention);
    backward = sl_cuda_dnn_attention_backward_workspace_bytes(run->attention);
    run->args.qkv = bed_upload(type_of(shape), run->qkv, 3 * run->n, 0);
    run->args.dout = bed_upload(type_of(shape), run->dout, run->n, 0);
    run->args.out = bed_array(type_of(shape), run->n, 0);
    run->args.dqkv = bed_array(type_of(shape), 3 * run->n, 0);
    run->args.saved =
        bed_bytes(sl_cuda_dnn_attention_saved_bytes(run->attention));
    run->args.workspace = bed_bytes(forward > backward ? forward : backward);
}

static void run_both(void *args)
{
    run_t *run = args;

    sl_assert_ok(sl_cuda_dnn_attention_forward(run->attention, &run->args,
                                               image_stream()));
    if (sl_cuda_dnn_attention_has_backward(run->attention)) {
        sl_assert_ok(sl_cuda_dnn_attention_backward(run->attention, &run->args,
                                                    image_stream()));
    }
}

/* Within roundings to the type on the way, of the largest: sums cancel. */
static void compare(const char *what, const run_t *run, const void *array,
                    const float *want, size_t n)
{
    double *expected = bed_doubles(n);
    double most = 0;
    size_t i;

    for (i = 0; i < n; i++) {
        expected[i] = (double)want[i];
        most = fmax(most, fabs(expected[i]));
    }
    bed_assert_close(what, bed_fetch(type_of(&run->shape), array, n), expected,
                     n, 2 * bed_epsilon(type_of(&run->shape)),
                     4 * bed_epsilon(type_of(&run->shape)) * most);
}

/* Against the CPU's layer. */
static void check(const sl_cuda_attention_shape_t *shape)
{
    const int64_t width = shape->heads * shape->head_dim;
    const int64_t dims[3] = {shape->batch, shape->time, 3 * width};
    const sl_tensor_desc_t in = sl_tensor_desc(SL_DTYPE_F32, 3, dims);
    const sl_attr_t attrs[] = {
        {.name = "heads", .number = (double)shape->heads},
        {.name = "causal", .number = shape->is_causal}};
    bed_layer_t *cpu = bed_cpu_layer("attention", attrs, 2, &in, 1);
    const size_t saved_bytes =
        (size_t)(shape->batch * shape->heads * shape->time) * sizeof(float);
    run_t run;

    run_make(&run, shape);
    assert_true(sl_cuda_dnn_attention_has_backward(run.attention));
    assert_true(sl_cuda_dnn_attention_saved_bytes(run.attention) ==
                saved_bytes);
    cpu->layer->inputs[0] = 0;
    cpu->run.in[0] = run.qkv;
    cpu->run.out = bed_floats(run.n);
    cpu->run.dout = run.dout;
    cpu->run.din[0] = bed_floats(3 * run.n);
    bed_cpu_forward(cpu);
    bed_cpu_backward(cpu);
    run_both(&run);
    compare("out", &run, run.args.out, cpu->run.out, run.n);
    compare("dqkv", &run, run.args.dqkv, cpu->run.din[0], 3 * run.n);
    {
        const bed_output_t outputs[] = {{run.args.out, run.n * 2},
                                        {run.args.dqkv, 3 * run.n * 2},
                                        {run.args.saved, saved_bytes}};

        bed_assert_repeats(run_both, &run, outputs, 3);
    }
    sl_cuda_dnn_attention_destroy(run.attention);
    image_end();
}

static void shapes_agree(void **state)
{
    static const int64_t shapes[][2] = {{5, 8}, {33, 16}, {150, 32}};
    size_t i;
    int is_causal;

    (void)state;
    for (i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        for (is_causal = 0; is_causal < 2; is_causal++) {
            sl_cuda_attention_shape_t shape =
                shape_of(shapes[i][0], shapes[i][1], is_causal);

            check(&shape);
            shape.dtype = SL_DTYPE_F16;
            check(&shape);
        }
    }
}

static void inference_saves_nothing(void **state)
{
    sl_cuda_attention_shape_t shape = shape_of(9, 24, 1);
    run_t run;

    (void)state;
    shape.is_training = 0;
    run_make(&run, &shape);
    assert_false(sl_cuda_dnn_attention_has_backward(run.attention));
    assert_int_equal(sl_cuda_dnn_attention_saved_bytes(run.attention), 0);
    run_both(&run);
    sl_cuda_dnn_attention_destroy(run.attention);
    image_end();
}

static void refused(const sl_cuda_attention_shape_t *shape)
{
    sl_cuda_dnn_attention_t *attention = NULL;

    sl_assert_status(sl_cuda_dnn_attention_plan(shape, &attention),
                     SL_ERR_UNSUPPORTED);
    assert_null(attention);
}

static void others_are_left_to_products(void **state)
{
    sl_cuda_attention_shape_t shape = shape_of(16, 16, 1);

    (void)state;
    shape.dtype = SL_DTYPE_F32;
    refused(&shape);
    shape = shape_of(16, 12, 1);
    refused(&shape);
    shape = shape_of(16, 136, 1);
    refused(&shape);
    shape = shape_of(1, 16, 1);
    refused(&shape);
}

#ifdef SL_CUDA_STANDIN

static int has_backward(const sl_cuda_attention_shape_t *shape)
{
    sl_cuda_dnn_attention_t *attention = NULL;
    int has;

    sl_assert_ok(sl_cuda_dnn_attention_plan(shape, &attention));
    has = sl_cuda_dnn_attention_has_backward(attention);
    sl_cuda_dnn_attention_destroy(attention);
    return has;
}

/* Forward has two products, backward five. */
static void a_refused_graph_is_not_used(void **state)
{
    sl_cuda_attention_shape_t shape = shape_of(16, 40, 1);

    (void)state;
    standin_dnn_refuse_graphs(1);
    refused(&shape);
    standin_dnn_refuse_graphs(3);
    shape = shape_of(16, 48, 1);
    assert_false(has_backward(&shape));
    standin_dnn_refuse_graphs(0);
}

/* Wrong numbers are found once, told, and the graph is never used again. */
static void a_wrong_graph_is_not_used(void **state)
{
    sl_cuda_attention_shape_t shape = shape_of(16, 56, 1);
    sl_cuda_dnn_attention_t *attention = NULL;

    (void)state;
    standin_dnn_break_graphs(1);
    assert_int_equal(sl_cuda_dnn_attention_plan(&shape, &attention),
                     SL_ERR_UNSUPPORTED);
    sl_assert_contains(sl_test_log_take(), "forward, of bf16 heads of 56");
    standin_dnn_break_graphs(0);
    refused(&shape);
    standin_dnn_break_graphs(3);
    shape = shape_of(16, 64, 0);
    assert_false(has_backward(&shape));
    sl_assert_contains(sl_test_log_take(), "backward, of bf16 heads of 64");
    standin_dnn_break_graphs(0);
    assert_false(has_backward(&shape));
}

/* The check is made once for a kind of shape. */
static void the_check_is_made_once(void **state)
{
    sl_cuda_attention_shape_t shape = shape_of(200, 72, 1);
    uint64_t n;

    (void)state;
    assert_true(has_backward(&shape));
    n = standin_n_calls(STANDIN_cudnnBackendExecute);
    assert_true(n == 2);
    shape.time = 264;
    shape.batch = 1;
    shape.heads = 7;
    assert_true(has_backward(&shape));
    assert_true(standin_n_calls(STANDIN_cudnnBackendExecute) == n);
    shape.time = 265;
    assert_true(has_backward(&shape));
    assert_true(standin_n_calls(STANDIN_cudnnBackendExecute) == n + 2);
}

/* What one kind of shape was found to be says nothing of another. */
static void each_kind_is_checked(void **state)
{
    const sl_cuda_attention_shape_t first = shape_of(40, 80, 1);
    sl_cuda_attention_shape_t others[5];
    size_t i;

    (void)state;
    assert_true(has_backward(&first));
    for (i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        const uint64_t n = standin_n_calls(STANDIN_cudnnBackendExecute);

        others[i] = first;
        others[i].dtype = i == 0 ? SL_DTYPE_F16 : first.dtype;
        others[i].is_causal = i == 1 ? 0 : first.is_causal;
        others[i].is_training = i == 2 ? 0 : first.is_training;
        others[i].scale *= i == 3 ? 2 : 1;
        others[i].head_dim = i == 4 ? 88 : first.head_dim;
        (void)has_backward(&others[i]);
        assert_true(standin_n_calls(STANDIN_cudnnBackendExecute) > n);
        assert_true(has_backward(&first) == 1);
    }
}

static sl_status_t plan_and_run(const sl_cuda_attention_shape_t *shape,
                                const run_t *run)
{
    sl_cuda_dnn_attention_t *attention = NULL;
    sl_status_t status;

    SL_TRY(status, sl_cuda_dnn_attention_plan(shape, &attention), out);
    status =
        sl_cuda_dnn_attention_forward(attention, &run->args, image_stream());
    sl_cuda_dnn_attention_destroy(attention);
out:
    return status;
}

/* At the n-th call of an entry point, until there is none. */
static void fail_each(standin_entry_t entry, cudnnStatus_t code,
                      const run_t *run)
{
    const int n_live = standin_n_live();
    uint64_t n;
    int is_done = 0;

    for (n = 1; !is_done; n += 1 + n / 4) {
        sl_status_t status;

        standin_fail(entry, n, (cudaError_t)code, STANDIN_FAIL_CALL);
        status = plan_and_run(&run->shape, run);
        is_done = !standin_has_failed();
        if (status == SL_ERR_DEVICE || status == SL_ERR_NO_MEMORY) {
            (void)sl_test_log_take();
        } else {
            assert_true(status == SL_OK || status == SL_ERR_UNSUPPORTED);
        }
        image_end();
        assert_int_equal(standin_n_live(), n_live);
    }
    standin_fail(entry, UINT64_MAX / 2, cudaSuccess, STANDIN_FAIL_CALL);
}

static void every_failure_unwinds(void **state)
{
    static const standin_entry_t entries[] = {
        STANDIN_cudnnBackendCreateDescriptor,
        STANDIN_cudnnBackendDestroyDescriptor,
        STANDIN_cudnnBackendFinalize,
        STANDIN_cudnnBackendSetAttribute,
        STANDIN_cudnnBackendGetAttribute,
        STANDIN_cudnnBackendExecute};
    const sl_cuda_attention_shape_t shape = shape_of(8, 80, 1);
    run_t run;
    size_t i;

    (void)state;
    run_make(&run, &shape);
    for (i = 0; i < sizeof(entries) / sizeof(entries[0]); i++) {
        fail_each(entries[i],
                  CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, &run);
        fail_each(entries[i], CUDNN_STATUS_EXECUTION_FAILED, &run);
    }
    sl_assert_ok(plan_and_run(&shape, &run));
    sl_cuda_dnn_attention_destroy(run.attention);
    image_end();
}

/* A plan made while another device was current. */
static void a_plan_goes_to_its_device(void **state)
{
    const sl_cuda_attention_shape_t shape = shape_of(8, 96, 1);
    sl_cuda_stream_t other = {.device = 1};
    cudaStream_t queue;
    void *memory[6];
    run_t run;
    int i;

    (void)state;
    run_make(&run, &shape);
    run_both(&run);
    image_end();
    assert_int_equal(cudaSetDevice(1), cudaSuccess);
    assert_int_equal(cudaStreamCreateWithFlags(&queue, cudaStreamNonBlocking),
                     cudaSuccess);
    for (i = 0; i < 6; i++) {
        assert_int_equal(cudaMalloc(&memory[i], 1 << 16), cudaSuccess);
        assert_int_equal(cudaMemset(memory[i], 0, 1 << 16), cudaSuccess);
    }
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    other.queue = queue;
    run.args.qkv = memory[0];
    run.args.dout = memory[1];
    run.args.out = memory[2];
    run.args.dqkv = memory[3];
    run.args.saved = memory[4];
    run.args.workspace = memory[5];
    sl_assert_ok(
        sl_cuda_dnn_attention_forward(run.attention, &run.args, &other));
    sl_assert_ok(
        sl_cuda_dnn_attention_backward(run.attention, &run.args, &other));
    assert_int_equal(cudaStreamSynchronize(queue), cudaSuccess);
    other.release[SL_CUDA_LIBRARY_DNN](other.handles[SL_CUDA_LIBRARY_DNN]);
    for (i = 0; i < 6; i++) {
        assert_int_equal(cudaFree(memory[i]), cudaSuccess);
    }
    assert_int_equal(cudaStreamDestroy(queue), cudaSuccess);
    assert_int_equal(cudaSetDevice(0), cudaSuccess);
    sl_cuda_dnn_attention_destroy(run.attention);
}

/* Without memory of the device the check is made all the same. */
static void a_full_device_is_no_verdict(void **state)
{
    const sl_cuda_attention_shape_t shape = shape_of(8, 88, 1);
    const int n_live = standin_n_live();

    (void)state;
    standin_fail(STANDIN_cudaMalloc, 1, cudaErrorMemoryAllocation,
                 STANDIN_FAIL_CALL);
    assert_true(has_backward(&shape));
    assert_true(standin_has_failed());
    assert_int_equal(standin_n_calls(STANDIN_cudaHostAlloc), 1);
    assert_int_equal(standin_n_calls(STANDIN_cudnnBackendExecute), 2);
    assert_int_equal(standin_n_live(), n_live);
}

/* Nor is a host without any; that is told, and tried again. */
static void no_memory_at_all_is_told(void **state)
{
    const sl_cuda_attention_shape_t shape = shape_of(8, 104, 1);
    sl_cuda_dnn_attention_t *attention = NULL;

    (void)state;
    standin_set_memory(standin_device_bytes(0));
    standin_fail(STANDIN_cudaHostAlloc, 1, cudaErrorMemoryAllocation,
                 STANDIN_FAIL_CALL);
    sl_assert_status(sl_cuda_dnn_attention_plan(&shape, &attention),
                     SL_ERR_NO_MEMORY);
    assert_true(standin_has_failed());
    assert_int_equal(standin_n_calls(STANDIN_cudnnBackendExecute), 0);
    assert_true(has_backward(&shape));
}

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        BED_TEST(shapes_agree),
        BED_TEST(inference_saves_nothing),
        BED_TEST(others_are_left_to_products),
#ifdef SL_CUDA_STANDIN
        BED_TEST(a_refused_graph_is_not_used),
        BED_TEST(a_wrong_graph_is_not_used),
        BED_TEST(the_check_is_made_once),
        BED_TEST(each_kind_is_checked),
        BED_TEST(every_failure_unwinds),
        BED_TEST(a_plan_goes_to_its_device),
        BED_TEST(a_full_device_is_no_verdict),
        BED_TEST(no_memory_at_all_is_told),
#endif
    };

    return !bed_has_device() ? 77 : cmocka_run_group_tests(tests, NULL, NULL);
}
