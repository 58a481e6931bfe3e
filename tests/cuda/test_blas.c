/* SPDX-License-Identifier: Apache-2.0 */
/* Planned products of matrices on a CUDA device. */
#include "layers/cuda/blas.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <string.h>

#include "layers/cuda/handles.h"
#include "tests/cuda/blas_values.h"
#include "tests/cuda/layer_run.h"
#ifdef SL_CUDA_STANDIN
#include "tests/cuda_standin/blas.h"
#include "tests/cuda_standin/standin.h"
#endif

/* A product with its matrices on the device, and what it must give. */
typedef struct work {
    sl_cuda_product_params_t params;
    sl_cuda_product_t *product;
    sl_cuda_product_args_t args;
    sl_cuda_type_t type, d_type;
    float *a, *b, *d, *extra; /* as the device has them */
    size_t a_n, b_n, d_n, extra_n;
    double *want, *bound; /* of d; the bound is the sum of all terms' sizes */
    double *want_extra;
} work_t;

/* Elements of a batch of matrices as stored. */
static size_t extent(const sl_cuda_matrix_t *matrix, int64_t rows,
                     int64_t columns, int64_t batch)
{
    return (size_t)((batch - 1) * matrix->batch_stride +
                    (rows - 1) * matrix->stride + columns);
}

static int64_t batch_of(const work_t *work)
{
    return work->params.batch > 1 ? work->params.batch : 1;
}

static double element(const sl_cuda_matrix_t *matrix, const float *values,
                      int64_t batch, int64_t row, int64_t column)
{
    const int64_t at = batch * matrix->batch_stride +
                       (matrix->is_transposed ? column * matrix->stride + row
                                              : row * matrix->stride + column);

    return (double)values[at];
}

static void reference(work_t *work)
{
    const sl_cuda_product_params_t *p = &work->params;
    int64_t batch, i, j, k;

    work->want = bed_doubles(work->d_n);
    work->bound = bed_doubles(work->d_n);
    for (batch = 0; batch < batch_of(work); batch++) {
        for (i = 0; i < p->m; i++) {
            for (j = 0; j < p->n; j++) {
                const int64_t at =
                    batch * p->d.batch_stride + i * p->d.stride + j;
                double sum = 0, size = 0;

                for (k = 0; k < p->k; k++) {
                    const double x = element(&p->a, work->a, batch, i, k) *
                                     element(&p->b, work->b, batch, k, j);

                    sum += x;
                    size += fabs(x);
                }
                sum *= (double)work->args.alpha;
                if (work->args.beta != 0) {
                    sum += (double)work->args.beta * (double)work->d[at];
                    size += fabs((double)work->d[at]);
                }
                if (p->epilogue == SL_CUDA_EPILOGUE_BIAS) {
                    sum += (double)work->extra[j];
                    size += fabs((double)work->extra[j]);
                }
                work->want[at] = sum;
                work->bound[at] = size;
            }
        }
    }
    work->want_extra = bed_doubles((size_t)p->m);
    for (i = 0; i < p->m; i++) {
        for (k = 0; k < p->k; k++) {
            work->want_extra[i] += element(&p->a, work->a, 0, i, k);
        }
    }
}

/* Matrices with these row distances; the d of beta 0 is NaN. */
static work_t work_make(sl_cuda_product_params_t params, float alpha,
                        float beta)
{
    work_t work = {.params = params,
                   .type = params.a.type,
                   .d_type = params.d.type,
                   .args = {.alpha = alpha, .beta = beta}};
    const sl_cuda_product_params_t *p = &work.params;
    const int64_t batch = batch_of(&work);
    const int is_a = p->a.is_transposed, is_b = p->b.is_transposed;

    work.params.name = "test";
    work.a_n = extent(&p->a, is_a ? p->k : p->m, is_a ? p->m : p->k, batch);
    work.b_n = extent(&p->b, is_b ? p->n : p->k, is_b ? p->k : p->n, batch);
    work.d_n = extent(&p->d, p->m, p->n, batch);
    work.a = bed_random(work.a_n, 1, 1);
    work.b = bed_random(work.b_n, 2, 1);
    work.d = bed_random(work.d_n, 3, 1);
    work.args.a = bed_upload(work.type, work.a, work.a_n, 0);
    work.args.b = bed_upload(work.type, work.b, work.b_n, 0);
    work.args.d = beta != 0 ? bed_upload(work.d_type, work.d, work.d_n, 0)
                            : bed_array(work.d_type, work.d_n, 0);
    if (p->epilogue == SL_CUDA_EPILOGUE_BIAS) {
        work.extra_n = (size_t)p->n;
        work.extra = bed_random(work.extra_n, 4, 1);
        work.args.extra = bed_upload(work.d_type, work.extra, work.extra_n, 0);
    } else if (p->epilogue == SL_CUDA_EPILOGUE_ROW_SUMS) {
        work.extra_n = (size_t)p->m;
        work.args.extra = bed_array(work.d_type, work.extra_n, 0);
    }
    sl_assert_ok(sl_cuda_product_create(&work.params, &work.product));
    work.args.workspace =
        bed_bytes(sl_cuda_product_workspace_bytes(work.product));
    return work;
}

static void work_run(work_t *work)
{
    sl_assert_ok(sl_cuda_product_run(work->product, &work->args, run_stream()));
}

/* Every element within what rounding can do; what lies between rows is as it
 * was. */
static void work_check(work_t *work, double input_error)
{
    const sl_cuda_product_params_t *p = &work->params;
    const double sums = (double)(p->k + 4) * 0x1p-24 + input_error;
    const double store = bed_epsilon(work->d_type);
    const float *got = bed_fetch(work->d_type, work->args.d, work->d_n);
    const float *extra = NULL;
    char *is_result;
    int64_t batch, i, j;
    size_t at;

    reference(work);
    is_result = (char *)bed_floats(work->d_n);
    for (batch = 0; batch < batch_of(work); batch++) {
        for (i = 0; i < p->m; i++) {
            for (j = 0; j < p->n; j++) {
                is_result[batch * p->d.batch_stride + i * p->d.stride + j] = 1;
            }
        }
    }
    for (at = 0; at < work->d_n; at++) {
        const double want = work->want[at];
        const double most = sums * work->bound[at] + store * fabs(want) + 1e-30;

        if (!is_result[at]) {
            assert_true(work->args.beta == 0 ? isnan(got[at])
                                             : got[at] == work->d[at]);
        } else if (!(fabs((double)got[at] - want) <= most)) {
            fail_msg("element %zu is %.9g, not %.9g (+- %.3g)", at,
                     (double)got[at], want, most);
        }
    }
    if (p->epilogue == SL_CUDA_EPILOGUE_ROW_SUMS) {
        extra = bed_fetch(work->d_type, work->args.extra, work->extra_n);
        bed_assert_close("row sums", extra, work->want_extra, work->extra_n,
                         store + 1e-6, 1e-5);
    }
}

static void work_free(work_t *work)
{
    sl_cuda_product_destroy(work->product);
}

/* Rows apart by `gap` elements more than they are long. */
static sl_cuda_product_params_t params_make(int64_t m, int64_t n, int64_t k,
                                            int is_a, int is_b,
                                            sl_cuda_type_t type,
                                            sl_cuda_type_t d_type, int64_t gap)
{
    const sl_cuda_product_params_t params = {
        .m = m,
        .n = n,
        .k = k,
        .a = {.type = type,
              .stride = (is_a ? m : k) + gap,
              .is_transposed = is_a},
        .b = {.type = type,
              .stride = (is_b ? k : n) + gap,
              .is_transposed = is_b},
        .d = {.type = d_type, .stride = n + gap}};

    return params;
}

static const struct {
    int64_t m, n, k, gap;
} shapes[] = {{1, 1, 1, 0},   {2, 3, 5, 0},     {7, 1, 9, 1},
              {1, 31, 17, 0}, {16, 24, 64, 8},  {33, 17, 130, 3},
              {40, 9, 1, 0},  {64, 128, 96, 0}, {5, 65, 300, 7}};

enum {
    N_SHAPES = sizeof(shapes) / sizeof(*shapes)
};

static void check_one(sl_cuda_product_params_t params, float alpha, float beta)
{
    work_t work = work_make(params, alpha, beta);

    work_run(&work);
    work_check(&work, 0);
    work_free(&work);
}

/* Every type, to itself and to fp32; every way to lie in memory. */
static void it_is_right(void **state)
{
    int type, to_f32, way;
    size_t s;

    (void)state;
    for (type = 0; type < SL_CUDA_N_TYPES; type++) {
        for (to_f32 = 0; to_f32 <= (type != SL_CUDA_F32); to_f32++) {
            const sl_cuda_type_t t = (sl_cuda_type_t)type;

            for (s = 0; s < N_SHAPES; s++) {
                way = (int)s % 4;
                check_one(params_make(shapes[s].m, shapes[s].n, shapes[s].k,
                                      way & 1, way >> 1, t,
                                      to_f32 ? SL_CUDA_F32 : t, shapes[s].gap),
                          1, 0);
            }
            for (way = 0; way < 4; way++) {
                check_one(params_make(19, 40, 23, way & 1, way >> 1, t,
                                      to_f32 ? SL_CUDA_F32 : t, 5),
                          0.5f, way % 2 == 0 ? 1.0f : 0.25f);
            }
        }
    }
}

static void batches_are_right(void **state)
{
    int type, way;

    (void)state;
    for (type = 0; type < SL_CUDA_N_TYPES; type++) {
        for (way = 0; way < 4; way++) {
            const sl_cuda_type_t t = (sl_cuda_type_t)type;
            sl_cuda_product_params_t params =
                params_make(6, 10, 7, way & 1, way >> 1, t, SL_CUDA_F32, 30);

            /* side by side within a row, and one after another */
            params.batch = 3;
            params.a.batch_stride = 12;
            params.b.batch_stride = 13;
            params.d.batch_stride = 6 * params.d.stride + 4;
            params.a.align_bytes = params.b.align_bytes = 2;
            params.d.align_bytes = 4;
            check_one(params, 2, 0);
            check_one(params, 1, 1);
        }
    }
}

/* A GPU's library may lack one for a type: a layer then has another way. */
static int is_offered(const sl_cuda_product_params_t *params)
{
    sl_cuda_product_params_t asked = *params;
    sl_cuda_product_t *product = NULL;
    sl_status_t status;

    asked.is_optional = 1;
    asked.name = "test";
    status = sl_cuda_product_create(&asked, &product);
    sl_cuda_product_destroy(product);
#ifdef SL_CUDA_STANDIN
    assert_int_equal(status, SL_OK);
#endif
    return status >= 0;
}

static void epilogues_are_right(void **state)
{
    static const sl_cuda_epilogue_t epilogues[] = {SL_CUDA_EPILOGUE_BIAS,
                                                   SL_CUDA_EPILOGUE_ROW_SUMS};
    int type, to_f32, e;

    (void)state;
    for (type = 0; type < SL_CUDA_N_TYPES; type++) {
        for (to_f32 = 0; to_f32 <= (type != SL_CUDA_F32); to_f32++) {
            for (e = 0; e < 2; e++) {
                const sl_cuda_type_t t = (sl_cuda_type_t)type;
                sl_cuda_product_params_t params = params_make(
                    24, 16, 40, e, !e, t, to_f32 ? SL_CUDA_F32 : t, 0);

                params.epilogue = epilogues[e];
                if (is_offered(&params)) {
                    check_one(params, 1, 0);
                    check_one(params, 1, 1);
                }
            }
        }
    }
}

static void nothing_is_read_for_beta_0(void **state)
{
    work_t work;

    (void)state;
    /* d was NaN: work_check sees it */
    work = work_make(params_make(8, 8, 8, 0, 0, SL_CUDA_BF16, SL_CUDA_BF16, 0),
                     1, 0);
    work_run(&work);
    work_run(&work);
    work_check(&work, 0);
    work_free(&work);
}

static void nan_and_infinity_come_through(void **state)
{
    work_t work;
    float *got;

    (void)state;
    work = work_make(params_make(2, 2, 3, 0, 0, SL_CUDA_F32, SL_CUDA_F32, 0), 1,
                     0);
    work.a[1] = NAN;
    work.a[4] = INFINITY;
    work.args.a = bed_upload(SL_CUDA_F32, work.a, work.a_n, 0);
    work_run(&work);
    got = bed_fetch(SL_CUDA_F32, work.args.d, 4);
    assert_true(isnan(got[0]) && isnan(got[1]));
    assert_true(!isfinite(got[2]) && !isfinite(got[3]));
    work_free(&work);
}

/* Only where it is allowed. */
static void tf32_is_less_exact(void **state)
{
    sl_cuda_product_params_t params =
        params_make(32, 32, 64, 0, 1, SL_CUDA_F32, SL_CUDA_F32, 0);
    work_t exact = work_make(params, 1, 0), rough;

    (void)state;
    params.is_tf32 = 1;
    rough = work_make(params, 1, 0);
    work_run(&exact);
    work_run(&rough);
    work_check(&exact, 0);
    work_check(&rough, 0x1p-10);
#ifdef SL_CUDA_STANDIN
    assert_memory_not_equal(bed_fetch(SL_CUDA_F32, exact.args.d, exact.d_n),
                            bed_fetch(SL_CUDA_F32, rough.args.d, rough.d_n),
                            exact.d_n * sizeof(float));
#endif
    work_free(&exact);
    work_free(&rough);
}

static void run_work(void *args)
{
    work_run(args);
}

static void bits_repeat(void **state)
{
    work_t work = work_make(
        params_make(65, 129, 500, 1, 0, SL_CUDA_BF16, SL_CUDA_F32, 0), 1, 0);
    const bed_output_t output = {work.args.d, work.d_n * sizeof(float)};

    (void)state;
    bed_assert_repeats(run_work, &work, &output, 1);
    bed_assert_repeats(run_work, &work, &output, 1);
    work_free(&work);
}

/* The workspace is within its limit, and the last thing touched of it. */
static void it_stays_in_its_workspace(void **state)
{
    work_t work = work_make(
        params_make(64, 64, 64, 0, 1, SL_CUDA_F16, SL_CUDA_F16, 0), 1, 0);

    (void)state;
    assert_true(sl_cuda_product_workspace_bytes(work.product) <=
                SL_CUDA_BLAS_WORKSPACE_BYTES);
    assert_int_equal(sl_cuda_product_workspace_bytes(NULL), 0);
    work_run(&work); /* guards are checked by the teardown */
    work_free(&work);
}

static void sizes_have_a_limit(void **state)
{
    sl_cuda_product_params_t params =
        params_make((int64_t)1 << 31, 1, 1, 0, 0, SL_CUDA_F32, SL_CUDA_F32, 0);
    sl_cuda_product_t *product = NULL;

    (void)state;
    params.name = "layer big (linear), forward";
    sl_assert_status(sl_cuda_product_create(&params, &product),
                     SL_ERR_UNSUPPORTED);
    assert_null(product);
    sl_assert_contains(sl_last_error(), "layer big (linear), forward");
    sl_assert_contains(sl_last_error(), "[2147483648, 1]");
}

static void the_interface_is_the_real_one(void **state)
{
    const void *const *calls = (const void *const *)(const void *)&blas_calls;
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(blas_calls) / sizeof(*calls); i++) {
        assert_non_null(calls[i]);
    }
}

static void handles_are_kept(void **state)
{
    struct cublasLtContext *a = NULL, *b = NULL, *c = NULL;

    (void)state;
    sl_assert_ok(sl_cuda_blas(run_stream(), &a));
    sl_assert_ok(sl_cuda_blas(run_stream(), &b));
    assert_ptr_equal(a, b);
    sl_assert_ok(sl_cuda_blas_borrow(&b));
    sl_cuda_blas_give_back();
    sl_assert_ok(sl_cuda_blas_borrow(&c));
    sl_cuda_blas_give_back();
    assert_ptr_equal(b, c);
    assert_ptr_not_equal(a, b);
}

/* A product in a captured graph, the first of its device. */
static void it_can_be_captured(void **state)
{
    work_t work = work_make(
        params_make(17, 9, 33, 0, 1, SL_CUDA_BF16, SL_CUDA_F32, 0), 1, 1);
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    float *got;
    size_t i;
    int times;

    (void)state;
    assert_int_equal(
        cudaStreamBeginCapture(bed_stream(), cudaStreamCaptureModeThreadLocal),
        cudaSuccess);
    work_run(&work);
    assert_int_equal(cudaStreamEndCapture(bed_stream(), &graph), cudaSuccess);
    assert_int_equal(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    assert_int_equal(cudaGraphDestroy(graph), cudaSuccess);
    for (times = 0; times < 2; times++) {
        assert_int_equal(cudaGraphLaunch(exec, bed_stream()), cudaSuccess);
    }
    got = bed_fetch(SL_CUDA_F32, work.args.d, work.d_n);
    reference(&work); /* of one run: the second has added as much again */
    for (i = 0; i < work.d_n; i++) {
        work.want[i] += work.want[i] - (double)work.d[i];
    }
    bed_assert_close("d", got, work.want, work.d_n, 1e-5, 1e-4);
    assert_int_equal(cudaGraphExecDestroy(exec), cudaSuccess);
    work_free(&work);
}

#ifdef SL_CUDA_STANDIN
static sl_status_t plan_and_run(const work_t *like)
{
    sl_cuda_product_t *product = NULL;
    sl_status_t status;

    SL_TRY(status, sl_cuda_product_create(&like->params, &product), out);
    status = sl_cuda_product_run(product, &like->args, run_stream());
    sl_cuda_product_destroy(product);
out:
    return status;
}

/* What a failing call of this must do to a plan and a run. */
static sl_status_t expected(standin_entry_t entry)
{
    return entry == STANDIN_cublasLtMatrixLayoutDestroy ||
                   entry == STANDIN_cublasLtMatmulDescDestroy ||
                   entry == STANDIN_cublasLtMatmulPreferenceDestroy ||
                   entry == STANDIN_cublasLtMatmulAlgoConfigGetAttribute
               ? SL_OK
               : SL_ERR_DEVICE;
}

static void forget_handle(void)
{
    sl_cuda_stream_t *stream = run_stream();

    if (stream->handles[SL_CUDA_LIBRARY_BLAS] != NULL) {
        stream->release[SL_CUDA_LIBRARY_BLAS](
            stream->handles[SL_CUDA_LIBRARY_BLAS]);
        stream->handles[SL_CUDA_LIBRARY_BLAS] = NULL;
    }
}

/* Each call of each entry point once: told with its name, nothing left. */
static void every_failure_is_told(void **state)
{
    static const standin_entry_t entries[] = {
#define X(name) STANDIN_##name,
        SL_STANDIN_BLAS_MAP(X)
#undef X
    };
    sl_cuda_product_params_t params =
        params_make(8, 8, 8, 0, 1, SL_CUDA_BF16, SL_CUDA_BF16, 0);
    work_t work;
    size_t e;
    uint64_t n;

    (void)state;
    params.epilogue = SL_CUDA_EPILOGUE_BIAS;
    work = work_make(params, 1, 0);
    for (e = 0; e < sizeof(entries) / sizeof(*entries); e++) {
        for (n = 1;; n++) {
            sl_status_t status;

            forget_handle();
            standin_fail(entries[e], n,
                         (cudaError_t)CUBLAS_STATUS_INTERNAL_ERROR,
                         STANDIN_FAIL_CALL);
            status = plan_and_run(&work);
            forget_handle();
            if (!standin_has_failed()) {
                assert_int_equal(status, SL_OK);
                break;
            }
            assert_int_equal(status, entries[e] == STANDIN_cublasLtDestroy
                                         ? SL_OK
                                         : expected(entries[e]));
            if (status != SL_OK) {
                sl_assert_contains(sl_test_log_take(),
                                   standin_entry_name(entries[e]));
                sl_assert_contains(sl_last_error(),
                                   "CUBLAS_STATUS_INTERNAL_ERROR");
            }
        }
        /* layouts of unbatched products have no attributes */
        assert_true(n > 1 ||
                    entries[e] == STANDIN_cublasLtMatrixLayoutSetAttribute);
        standin_reset();
    }
    assert_int_equal(plan_and_run(&work), SL_OK);
    work_free(&work);
}

/* Of an algorithm that does not say how it sums nothing is known: the next
 * one, which has no workspace here, is taken. */
static void one_that_does_not_answer_is_not_taken(void **state)
{
    const sl_cuda_product_params_t params =
        params_make(8, 8, 8, 0, 1, SL_CUDA_F32, SL_CUDA_F32, 0);
    work_t work = work_make(params, 1, 0);
    sl_cuda_product_t *product = NULL;

    (void)state;
    assert_true(sl_cuda_product_workspace_bytes(work.product) > 0);
    standin_fail(STANDIN_cublasLtMatmulAlgoConfigGetAttribute, 1,
                 (cudaError_t)CUBLAS_STATUS_INTERNAL_ERROR, STANDIN_FAIL_CALL);
    sl_assert_ok(sl_cuda_product_create(&params, &product));
    assert_true(standin_has_failed());
    assert_int_equal(sl_cuda_product_workspace_bytes(product), 0);
    sl_cuda_product_destroy(product);
    work_free(&work);
}

static void refused_memory_is_normal(void **state)
{
    sl_cuda_product_params_t params =
        params_make(8, 8, 8, 0, 1, SL_CUDA_F32, SL_CUDA_F32, 0);
    work_t work = work_make(params, 1, 0);

    (void)state;
    standin_fail(STANDIN_cublasLtMatmulDescCreate, 1,
                 (cudaError_t)CUBLAS_STATUS_ALLOC_FAILED, STANDIN_FAIL_CALL);
    assert_int_equal(plan_and_run(&work), SL_ERR_NO_MEMORY);
    assert_string_equal(sl_test_log_take(), "");
    work_free(&work);
}

/* A sticky error comes back from each later call, which says why. */
static void a_failed_device_stays_failed(void **state)
{
    work_t work = work_make(
        params_make(8, 8, 8, 0, 1, SL_CUDA_F32, SL_CUDA_F32, 0), 1, 0);

    (void)state;
    standin_fail(STANDIN_cublasLtMatmul, 1, cudaErrorIllegalAddress,
                 STANDIN_FAIL_RUN);
    work_run(&work);
    assert_int_equal(cudaStreamSynchronize(bed_stream()),
                     cudaErrorIllegalAddress);
    sl_assert_status(
        sl_cuda_product_run(work.product, &work.args, run_stream()),
        SL_ERR_DEVICE);
    sl_assert_contains(sl_last_error(), "CUBLAS_STATUS_EXECUTION_FAILED");
    sl_assert_contains(sl_last_error(), "cudaErrorIllegalAddress");
    standin_reset();
    work_run(&work);
    work_check(&work, 0);
    work_free(&work);
}

/* Those that split sums are offered first, when nothing is said. */
static void no_algorithm_is_named(void **state)
{
    sl_cuda_product_params_t params =
        params_make(8, 16, 24, 0, 1, SL_CUDA_BF16, SL_CUDA_BF16, 0);
    sl_cuda_product_t *product = NULL;

    (void)state;
    params.name = "layer fc (linear), forward";
    params.epilogue = SL_CUDA_EPILOGUE_BIAS;
    standin_blas_refuse(CUBLASLT_EPILOGUE_BIAS);
    params.is_optional = 1;
    assert_int_equal(sl_cuda_product_create(&params, &product),
                     SL_ERR_UNSUPPORTED);
    assert_string_equal(sl_test_log_take(), "");
    params.is_optional = 0;
    sl_assert_status(sl_cuda_product_create(&params, &product),
                     SL_ERR_UNSUPPORTED);
    assert_null(product);
    sl_assert_contains(sl_last_error(), "layer fc (linear), forward");
    sl_assert_contains(sl_last_error(), "bf16 [8, 24] by [24, 16]");
    sl_assert_contains(sl_last_error(), "bias added");
}

/* The order checker sees what a product reads and writes: here bytes between
 * the rows, which are of the matrix too. */
static void unordered_use_is_seen(void **state)
{
    work_t work = work_make(
        params_make(8, 8, 8, 0, 1, SL_CUDA_F32, SL_CUDA_F32, 8), 1, 0);
    cudaStream_t other;

    (void)state;
    assert_int_equal(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking),
                     cudaSuccess);
    work_run(&work);
    assert_int_equal(
        cudaMemsetAsync((float *)work.args.d + 8, 0xff, sizeof(float), other),
        cudaSuccess);
    assert_int_equal(standin_n_reports(), 1);
    sl_assert_contains(standin_report(0), "cublasLtMatmul");
    standin_clear_reports();
    assert_int_equal(cudaStreamSynchronize(bed_stream()), cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(other), cudaSuccess);
    assert_int_equal(cudaStreamDestroy(other), cudaSuccess);
    work_free(&work);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUN_TEST(it_is_right),
        RUN_TEST(batches_are_right),
        RUN_TEST(epilogues_are_right),
        RUN_TEST(nothing_is_read_for_beta_0),
        RUN_TEST(nan_and_infinity_come_through),
        RUN_TEST(tf32_is_less_exact),
        RUN_TEST(bits_repeat),
        RUN_TEST(it_stays_in_its_workspace),
        RUN_TEST(sizes_have_a_limit),
        RUN_TEST(the_interface_is_the_real_one),
        RUN_TEST(handles_are_kept),
        RUN_TEST(it_can_be_captured),
#ifdef SL_CUDA_STANDIN
        RUN_TEST(every_failure_is_told),
        RUN_TEST(one_that_does_not_answer_is_not_taken),
        RUN_TEST(refused_memory_is_normal),
        RUN_TEST(a_failed_device_stays_failed),
        RUN_TEST(no_algorithm_is_named),
        RUN_TEST(unordered_use_is_seen),
#endif
    };

    return bed_has_device() ? cmocka_run_group_tests(tests, NULL, NULL) : 77;
}
