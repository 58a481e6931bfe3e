/* SPDX-License-Identifier: Apache-2.0 */
/* Failures that the stand-in injects. */
#include "tests/cuda/standin_bed.h"

#include <stdlib.h>

static void count_call(void *user_data)
{
    (*(int *)user_data)++;
}

/* One call of every entry point, in an order that works. */
static cudaError_t call_all(cudaError_t *errors)
{
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    struct cudaDeviceProp prop;
    cudaStream_t stream = NULL;
    cudaEvent_t start = NULL, end = NULL;
    cudaGraphExecUpdateResultInfo info;
    cudaGraphExec_t exec = NULL;
    cudaGraph_t graph = NULL;
    void *x = NULL, *y = NULL, *pinned = NULL, *async = NULL;
    size_t free_bytes, total;
    enum cudaDriverEntryPointQueryResult found;
    void *function;
    char text[32];
    int n, i;
    float ms;

    for (i = 0; i < STANDIN_N_ENTRIES; i++) {
        errors[i] = cudaSuccess;
    }
#define CALL(entry, args)                                                      \
    do {                                                                       \
        const cudaError_t call_error = entry args;                             \
                                                                               \
        if (errors[STANDIN_##entry] == cudaSuccess) {                          \
            errors[STANDIN_##entry] = call_error;                              \
        }                                                                      \
    } while (0)
    CALL(cudaRuntimeGetVersion, (&n));
    CALL(cudaDriverGetVersion, (&n));
    CALL(cudaGetDeviceCount, (&n));
    CALL(cudaSetDevice, (0));
    CALL(cudaSetDeviceFlags, (cudaDeviceScheduleBlockingSync));
    CALL(cudaGetDevice, (&n));
    CALL(cudaGetDeviceProperties, (&prop, 0));
    CALL(cudaDeviceGetAttribute, (&n, cudaDevAttrMultiProcessorCount, 0));
    CALL(cudaDeviceCanAccessPeer, (&n, 0, 1));
    CALL(cudaDeviceEnablePeerAccess, (1, 0));
    CALL(cudaDeviceGetPCIBusId, (text, sizeof(text), 0));
    CALL(cudaGetDriverEntryPointByVersion,
         ("cuDeviceGet", &function, 12000, cudaEnableDefault, &found));
    CALL(cudaMemGetInfo, (&free_bytes, &total));
    CALL(cudaThreadExchangeStreamCaptureMode, (&mode));
    CALL(cudaStreamCreateWithFlags, (&stream, cudaStreamNonBlocking));
    CALL(cudaEventCreateWithFlags, (&start, cudaEventDefault));
    CALL(cudaEventCreateWithFlags, (&end, cudaEventDefault));
    CALL(cudaMalloc, (&x, 1024));
    CALL(cudaMalloc, (&y, 1024));
    CALL(cudaHostAlloc, (&pinned, 1024, 0));
    CALL(cudaMallocAsync, (&async, 64, stream));
    if (stream != NULL && start != NULL && end != NULL) {
        CALL(cudaEventRecord, (start, stream));
        CALL(cudaStreamWaitEvent, (stream, start, 0));
        CALL(cudaEventRecord, (end, stream));
        CALL(cudaEventSynchronize, (end));
        CALL(cudaEventQuery, (end));
        CALL(cudaEventElapsedTime, (&ms, start, end));
        CALL(cudaStreamQuery, (stream));
        CALL(cudaLaunchHostFunc, (stream, count_call, &n));
    }
    if (x != NULL && y != NULL && pinned != NULL && stream != NULL) {
        CALL(cudaMemset, (x, 0, 64));
        CALL(cudaDeviceSynchronize, ());
        CALL(cudaDeviceSynchronize, ());
        CALL(cudaMemsetAsync, (y, 0, 64, stream));
        CALL(cudaMemcpyAsync, (x, pinned, 64, cudaMemcpyDefault, stream));
        CALL(cudaMemcpyPeerAsync, (x, 0, y, 0, 64, stream));
        errors[STANDIN_cudaLaunchKernelEx] =
            kernel_launch(KERNEL_ADD, 1, 32, x, y, 16, 16, 1, stream);
        CALL(cudaStreamSynchronize, (stream));
        CALL(cudaStreamSynchronize, (stream)); /* one may fail */
        CALL(cudaMemcpy, (x, y, 64, cudaMemcpyDefault));
    }
    if (stream != NULL) {
        CALL(cudaStreamBeginCapture,
             (stream, cudaStreamCaptureModeThreadLocal));
        CALL(cudaStreamEndCapture, (stream, &graph));
    }
    if (graph != NULL) {
        CALL(cudaGraphInstantiate, (&exec, graph, 0));
    }
    if (exec != NULL) {
        CALL(cudaGraphExecUpdate, (exec, graph, &info));
        CALL(cudaGraphLaunch, (exec, stream));
        CALL(cudaGraphExecDestroy, (exec));
    }
    if (graph != NULL) {
        CALL(cudaGraphDestroy, (graph));
    }
    if (async != NULL) {
        CALL(cudaFreeAsync, (async, stream));
        CALL(cudaDeviceSynchronize, ());
    }
    CALL(cudaFree, (x));
    CALL(cudaFree, (y));
    CALL(cudaFreeHost, (pinned));
    CALL(cudaEventDestroy, (start));
    CALL(cudaEventDestroy, (end));
    CALL(cudaStreamDestroy, (stream));
    return cudaSuccess;
}

/* The libraries' and the driver's own are tried where they are used. */
static int is_of_runtime(int entry)
{
    return strncmp(standin_entry_name((standin_entry_t)entry), "cuda", 4) == 0;
}

static void every_entry_can_fail_once(void **state)
{
    cudaError_t errors[STANDIN_N_ENTRIES];
    int i, k;

    (void)state;
    for (k = 0; k < STANDIN_N_ENTRIES; k++) {
        if (!is_of_runtime(k)) {
            continue;
        }
        standin_reset();
        (void)call_all(errors);
        for (i = 0; i < STANDIN_N_ENTRIES; i++) {
            if (errors[i] != cudaSuccess) {
                fail_msg("%s", standin_entry_name((standin_entry_t)i));
            }
            if (is_of_runtime(i)) {
                assert_true(standin_n_calls((standin_entry_t)i) >= 1);
            }
        }
        assert_int_equal(standin_n_live(), 0);
        /* a call that leaves nothing behind when it fails */
        if (k == STANDIN_cudaStreamCreateWithFlags ||
            k == STANDIN_cudaEventCreateWithFlags || k == STANDIN_cudaMalloc ||
            k == STANDIN_cudaHostAlloc || k == STANDIN_cudaMallocAsync ||
            k == STANDIN_cudaFreeAsync || k == STANDIN_cudaStreamBeginCapture ||
            k == STANDIN_cudaStreamEndCapture ||
            k == STANDIN_cudaGraphInstantiate) {
            continue;
        }
        standin_reset();
        standin_fail((standin_entry_t)k, 1, cudaErrorUnknown,
                     STANDIN_FAIL_CALL);
        (void)call_all(errors);
        assert_true(standin_has_failed());
        assert_error(errors[k], cudaErrorUnknown);
        assert_int_equal(standin_n_live(), 0);
        assert_int_equal(standin_n_reports(), 0);
    }
}

static void allocations_can_fail_at_the_nth_call(void **state)
{
    void *ptr = NULL;
    cudaStream_t stream;
    cudaEvent_t event;

    (void)state;
    standin_fail(STANDIN_cudaMalloc, 2, cudaErrorMemoryAllocation,
                 STANDIN_FAIL_CALL);
    ok(cudaMalloc(&ptr, 64));
    ok(cudaFree(ptr));
    ptr = NULL;
    assert_error(cudaMalloc(&ptr, 64), cudaErrorMemoryAllocation);
    assert_null(ptr);
    standin_fail(STANDIN_cudaHostAlloc, 1, cudaErrorMemoryAllocation,
                 STANDIN_FAIL_CALL);
    assert_error(cudaHostAlloc(&ptr, 64, 0), cudaErrorMemoryAllocation);
    standin_fail(STANDIN_cudaMallocAsync, 1, cudaErrorMemoryAllocation,
                 STANDIN_FAIL_CALL);
    assert_error(cudaMallocAsync(&ptr, 64, NULL), cudaErrorMemoryAllocation);
    standin_fail(STANDIN_cudaStreamCreateWithFlags, 1, cudaErrorUnknown,
                 STANDIN_FAIL_CALL);
    assert_error(cudaStreamCreateWithFlags(&stream, 0), cudaErrorUnknown);
    standin_fail(STANDIN_cudaEventCreateWithFlags, 1, cudaErrorUnknown,
                 STANDIN_FAIL_CALL);
    assert_error(cudaEventCreateWithFlags(&event, 0), cudaErrorUnknown);
    assert_true(standin_has_failed());
}

static void late_failures_stay(void **state)
{
    static const standin_entry_t late[] = {STANDIN_cudaLaunchKernelEx,
                                           STANDIN_cudaMemsetAsync};
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(late) / sizeof(*late); i++) {
        bed_t bed = bed_make();
        void *ptr;

        standin_fail(late[i], 1, cudaErrorECCUncorrectable, STANDIN_FAIL_RUN);
        ok(cudaMemsetAsync(bed.x, 0, N * sizeof(float), bed.a));
        (void)kernel_launch(KERNEL_ADD, 4, 256, bed.x, bed.y, N, N, 1, bed.a);
        assert_error(cudaStreamSynchronize(bed.a), cudaErrorECCUncorrectable);
        assert_error(cudaMalloc(&ptr, 4), cudaErrorECCUncorrectable);
        assert_error(cudaGetLastError(), cudaErrorECCUncorrectable);
        assert_error(cudaGetLastError(), cudaErrorECCUncorrectable);
        /* memory and streams can still be given back */
        assert_error(cudaFree(bed.x), cudaErrorECCUncorrectable);
        assert_error(cudaFree(bed.y), cudaErrorECCUncorrectable);
        assert_error(cudaStreamDestroy(bed.a), cudaErrorECCUncorrectable);
        assert_error(cudaStreamDestroy(bed.b), cudaErrorECCUncorrectable);
        assert_int_equal(standin_n_live(), 0);
        standin_reset();
    }
}

static void the_environment_injects(void **state)
{
    void *ptr;

    (void)state;
    assert_int_equal(setenv("SL_STANDIN_FAIL", "cudaMalloc:2:46", 1), 0);
    standin_reset();
    ok(cudaMalloc(&ptr, 4));
    ok(cudaFree(ptr));
    assert_error(cudaMalloc(&ptr, 4), cudaErrorDevicesUnavailable);
    assert_int_equal(unsetenv("SL_STANDIN_FAIL"), 0);
    standin_reset();
    ok(cudaMalloc(&ptr, 4));
    ok(cudaFree(ptr));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(every_entry_can_fail_once),
        T(allocations_can_fail_at_the_nth_call),
        T(late_failures_stay),
        T(the_environment_injects),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
