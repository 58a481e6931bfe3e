/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in for the CUDA runtime: what it does, and that what it is there
 * to find is found. */
#include "tests/cuda/standin_bed.h"

#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- memory ---- */

static int child_status(const float *ptr)
{
    const pid_t pid = fork();
    int status = 0;

    assert_true(pid >= 0);
    if (pid == 0) {
        (void)signal(SIGSEGV, SIG_DFL);
        _exit(*(const volatile float *)ptr == 1 ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static void the_host_cannot_touch_device_memory(void **state)
{
    const float here = 1;
    bed_t bed = bed_make();

    (void)state;
    assert_int_equal(child_status(&here), 0);
    assert_true(WIFSIGNALED(child_status(bed.x)));
    bed_free(&bed);
}

static void new_memory_is_not_a_number(void **state)
{
    bed_t bed = bed_make();
    float x;

    (void)state;
    ok(cudaMemcpy(&x, bed.x, sizeof(x), cudaMemcpyDeviceToHost));
    assert_true(x != x);
    bed_free(&bed);
}

static void a_full_device_says_so_and_goes_on(void **state)
{
    void *ptr = NULL;
    size_t free_bytes, total;

    (void)state;
    standin_set_memory(1 << 20);
    assert_error(cudaMalloc(&ptr, (1 << 20) + 1), cudaErrorMemoryAllocation);
    assert_null(ptr);
    assert_error(cudaPeekAtLastError(), cudaErrorMemoryAllocation);
    assert_error(cudaGetLastError(), cudaErrorMemoryAllocation);
    ok(cudaGetLastError());
    ptr = device_alloc(1 << 20);
    ok(cudaMemGetInfo(&free_bytes, &total));
    assert_int_equal(free_bytes, 0);
    assert_int_equal(total, 1 << 20);
    ok(cudaFree(ptr));
    assert_int_equal(standin_device_bytes(0), 0);
}

/* Work that is queued behind a gate waits until it opens. */
static void wait_for_gate(void *user_data)
{
    while (atomic_load((atomic_int *)user_data) == 0) {
        (void)sched_yield();
    }
}

static void gate_close(atomic_int *gate, cudaStream_t stream)
{
    atomic_init(gate, 0);
    ok(cudaLaunchHostFunc(stream, wait_for_gate, gate));
}

static void use_after_free_is_found(void **state)
{
    bed_t bed = bed_make();
    void *ptr = device_alloc(64);

    (void)state;
    ok(cudaFree(ptr));
    (void)cudaMemsetAsync(ptr, 0, 64, bed.a);
    assert_error(cudaGetLastError(), cudaErrorInvalidValue);
    assert_error(cudaFree(ptr), cudaErrorInvalidValue);
    assert_true(standin_n_reports() > 0);
    standin_clear_reports();
    /* other streams must be done before a stream frees */
    ok(cudaMallocAsync(&ptr, 64, bed.a));
    ok(cudaMemsetAsync(ptr, 0, 64, bed.a));
    assert_int_equal(standin_n_reports(), 0);
    standin_wait_unseen(bed.a);
    ok(cudaMemsetAsync(ptr, 0, 64, bed.b));
    expect_report("cudaMemsetAsync on stream");
    standin_wait_unseen(bed.b);
    ok(cudaFreeAsync(ptr, bed.a));
    expect_report("cudaFreeAsync on stream");
    bed_free(&bed);
}

static void use_after_a_queued_free_is_found(void **state)
{
    bed_t bed = bed_make();
    atomic_int gate;
    void *ptr;

    (void)state;
    gate_close(&gate, bed.a);
    ok(cudaMallocAsync(&ptr, 64, bed.a));
    ok(cudaMemsetAsync(ptr, 0, 32, bed.a));
    ok(cudaFreeAsync(ptr, bed.a));
    assert_error(cudaMemsetAsync(ptr, 0, 32, bed.a), cudaErrorInvalidValue);
    expect_report("freed");
    atomic_store(&gate, 1);
    bed_free(&bed);
}

static void bytes_past_the_end_are_found(void **state)
{
    bed_t bed = bed_make();

    (void)state;
    ok(kernel_launch(KERNEL_ADD, 4, 256, bed.x, bed.y, N, N + 1, 1, bed.a));
    assert_error(cudaStreamSynchronize(bed.a), cudaErrorIllegalAddress);
    expect_report("past the end");
    standin_reset();
    bed_free(&bed);
}

static void undeclared_addresses_are_found(void **state)
{
    bed_t bed = bed_make();

    (void)state;
    ok(kernel_launch(KERNEL_ADD, 4, 256, bed.x, bed.y, 0, 0, 0, bed.a));
    assert_int_equal(standin_n_reports(), 2);
    sl_assert_contains(standin_report(0), "does not declare");
    standin_clear_reports();
    bed_free(&bed);
}

/* Ordinary host memory is read by the call, pinned memory by the stream. */
static void copies_read_the_host_when_cuda_does(void **state)
{
    bed_t bed = bed_make();
    float ordinary = 1, got;
    atomic_int gate;
    void *memory;
    float *pinned;

    (void)state;
    ok(cudaHostAlloc(&memory, sizeof(*pinned), cudaHostAllocPortable));
    pinned = memory;
    *pinned = 1;
    gate_close(&gate, bed.a);
    ok(cudaMemcpyAsync(bed.x, &ordinary, 4, cudaMemcpyHostToDevice, bed.a));
    ok(cudaMemcpyAsync(bed.y, pinned, 4, cudaMemcpyHostToDevice, bed.a));
    ordinary = 2;
    *pinned = 2;
    atomic_store(&gate, 1);
    ok(cudaMemcpyAsync(&got, bed.x, 4, cudaMemcpyDeviceToHost, bed.a));
    assert_true(got == 1);
    ok(cudaMemcpyAsync(&got, bed.y, 4, cudaMemcpyDeviceToHost, bed.a));
    assert_true(got == 2);
    ok(cudaFreeHost(pinned));
    bed_free(&bed);
}

static void bad_copies_are_refused(void **state)
{
    bed_t bed = bed_make();
    float x = 0;

    (void)state;
    assert_error(cudaMemcpy(bed.x, &x, 4, cudaMemcpyDeviceToHost),
                 cudaErrorInvalidMemcpyDirection);
    assert_error(cudaMemcpyAsync(&x, bed.x, 4, cudaMemcpyHostToDevice, bed.a),
                 cudaErrorInvalidMemcpyDirection);
    assert_error(cudaMemset(&x, 0, 4), cudaErrorInvalidValue);
    assert_error(cudaFreeHost(&x), cudaErrorInvalidValue);
    expect_report("not pinned");
    bed_free(&bed);
}

/* ---- order ---- */

static void unordered_streams_are_found(void **state)
{
    bed_t bed = bed_make();

    (void)state;
    ok(cudaMemsetAsync(bed.x, 0, N * sizeof(float), bed.a));
    standin_wait_unseen(bed.a);
    launch(KERNEL_ADD, &bed, bed.b);
    expect_report("is not ordered before it");
    bed_free(&bed);
}

static void a_write_after_a_read_is_found(void **state)
{
    bed_t bed = bed_make();

    (void)state;
    ok(cudaMemset(bed.x, 0, N * sizeof(float)));
    ok(cudaDeviceSynchronize());
    launch(KERNEL_ADD, &bed, bed.a);
    /* reads do not disturb each other */
    ok(kernel_launch(KERNEL_MIN, 1, 1, bed.x, bed.y, 0, 0, 0, bed.a));
    standin_clear_reports();
    standin_wait_unseen(bed.a);
    ok(cudaMemsetAsync(bed.x, 0, 4, bed.b));
    expect_report("add on stream");
    bed_free(&bed);
}

static void events_order_streams(void **state)
{
    bed_t bed = bed_make();
    cudaEvent_t event;

    (void)state;
    ok(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    ok(cudaMemsetAsync(bed.x, 0, N * sizeof(float), bed.a));
    ok(cudaEventRecord(event, bed.a));
    ok(cudaStreamWaitEvent(bed.b, event, 0));
    launch(KERNEL_ADD, &bed, bed.b);
    assert_int_equal(standin_n_reports(), 0);
    /* an event says nothing of what came after it */
    standin_wait_unseen(bed.b);
    ok(cudaMemsetAsync(bed.x, 0, 4, bed.a));
    expect_report("cudaMemsetAsync on stream");
    ok(cudaEventDestroy(event));
    bed_free(&bed);
}

static void the_host_orders_streams(void **state)
{
    bed_t bed = bed_make();
    cudaEvent_t event;

    (void)state;
    ok(cudaEventCreateWithFlags(&event, cudaEventDefault));
    ok(cudaMemsetAsync(bed.x, 0, N * sizeof(float), bed.a));
    ok(cudaStreamSynchronize(bed.a));
    launch(KERNEL_ADD, &bed, bed.b);
    ok(cudaEventRecord(event, bed.b));
    while (cudaEventQuery(event) == cudaErrorNotReady) {
    }
    (void)cudaGetLastError();
    ok(cudaMemsetAsync(bed.y, 0, N * sizeof(float), bed.a));
    while (cudaStreamQuery(bed.a) == cudaErrorNotReady) {
    }
    (void)cudaGetLastError();
    ok(cudaMemsetAsync(bed.y, 0, N * sizeof(float), bed.b));
    ok(cudaEventDestroy(event));
    bed_free(&bed);
}

static void the_default_stream_orders_blocking_ones(void **state)
{
    bed_t bed = bed_make();
    cudaStream_t blocking;

    (void)state;
    ok(cudaStreamCreateWithFlags(&blocking, cudaStreamDefault));
    ok(cudaMemsetAsync(bed.x, 0, N * sizeof(float), blocking));
    ok(cudaMemsetAsync(bed.x, 0, N * sizeof(float), NULL));
    launch(KERNEL_ADD, &bed, blocking);
    assert_int_equal(standin_n_reports(), 0);
    ok(cudaMemsetAsync(bed.x, 0, N * sizeof(float), NULL));
    assert_int_equal(standin_n_reports(), 0);
    standin_wait_unseen(NULL);
    ok(cudaMemsetAsync(bed.x, 0, N * sizeof(float), bed.a));
    expect_report("is not ordered before it");
    ok(cudaStreamDestroy(blocking));
    bed_free(&bed);
}

static void events_tell_time(void **state)
{
    bed_t bed = bed_make();
    cudaEvent_t start, end, bare;
    atomic_int gate;
    float ms = -1;

    (void)state;
    ok(cudaEventCreateWithFlags(&start, cudaEventDefault));
    ok(cudaEventCreateWithFlags(&end, cudaEventDefault));
    ok(cudaEventCreateWithFlags(&bare, cudaEventDisableTiming));
    standin_set_delay_us(3000);
    gate_close(&gate, bed.a);
    ok(cudaEventRecord(start, bed.a));
    ok(cudaMemsetAsync(bed.x, 0, 4, bed.a));
    ok(cudaEventRecord(end, bed.a));
    ok(cudaEventRecord(bare, bed.a));
    assert_error(cudaEventElapsedTime(&ms, start, end), cudaErrorNotReady);
    assert_error(cudaStreamQuery(bed.a), cudaErrorNotReady);
    assert_error(cudaEventQuery(end), cudaErrorNotReady);
    atomic_store(&gate, 1);
    ok(cudaEventSynchronize(end));
    ok(cudaEventElapsedTime(&ms, start, end));
    assert_true(ms >= 3.0f);
    assert_error(cudaEventElapsedTime(&ms, start, bare),
                 cudaErrorInvalidResourceHandle);
    ok(cudaEventDestroy(start));
    ok(cudaEventDestroy(end));
    ok(cudaEventDestroy(bare));
    bed_free(&bed);
}

static void count_call(void *user_data)
{
    (*(int *)user_data)++;
}

static void host_functions_run_in_order(void **state)
{
    bed_t bed = bed_make();
    int n = 0;

    (void)state;
    ok(cudaLaunchHostFunc(bed.a, count_call, &n));
    ok(cudaLaunchHostFunc(bed.a, count_call, &n));
    ok(cudaStreamSynchronize(bed.a));
    assert_int_equal(n, 2);
    bed_free(&bed);
}

/* ---- devices ---- */

static void devices_are_told_apart(void **state)
{
    struct cudaDeviceProp prop;
    cudaStream_t stream;
    bed_t bed;
    void *other;
    int n, can;

    (void)state;
    ok(cudaGetDeviceCount(&n));
    assert_int_equal(n, 2);
    assert_error(cudaSetDevice(2), cudaErrorInvalidDevice);
    ok(cudaGetDeviceProperties(&prop, 1));
    assert_string_equal(prop.name, "stand-in 1");
    bed = bed_make();
    ok(cudaMemset(bed.x, 0, N * sizeof(float)));
    ok(cudaDeviceSynchronize());
    ok(cudaSetDevice(1));
    other = device_alloc(N * sizeof(float));
    ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    assert_error(kernel_launch(KERNEL_ADD, 1, 32, bed.x, other, N, N, 1, bed.a),
                 cudaErrorInvalidResourceHandle);
    ok(kernel_launch(KERNEL_ADD, 1, 32, bed.x, other, N, N, 1, stream));
    expect_report("without peer access");
    ok(cudaMemcpyPeerAsync(other, 1, bed.x, 0, N * sizeof(float), stream));
    ok(cudaDeviceCanAccessPeer(&can, 1, 0));
    assert_int_equal(can, 1);
    ok(cudaDeviceEnablePeerAccess(0, 0));
    ok(kernel_launch(KERNEL_ADD, 1, 32, bed.x, other, N, N, 1, stream));
    assert_error(cudaDeviceEnablePeerAccess(0, 0),
                 cudaErrorPeerAccessAlreadyEnabled);
    ok(cudaStreamDestroy(stream));
    ok(cudaFree(other));
    ok(cudaSetDevice(0));
    bed_free(&bed);
    standin_set_devices(0);
    assert_error(cudaGetDeviceCount(&n), cudaErrorNoDevice);
}

/* ---- kernels ---- */

static void fetch(float *to, const float *from, int n, cudaStream_t stream)
{
    ok(cudaMemcpyAsync(to, from, (size_t)n * sizeof(*to),
                       cudaMemcpyDeviceToHost, stream));
}

static void kernels_compute(void **state)
{
    bed_t bed = bed_make();
    float in[N], out[N];
    int i, is_reverse;

    (void)state;
    for (i = 0; i < N; i++) {
        in[i] = (float)(i + 1);
    }
    ok(cudaMemcpyAsync(bed.x, in, sizeof(in), cudaMemcpyHostToDevice, bed.a));
    for (is_reverse = 0; is_reverse < 2; is_reverse++) {
        standin_set_reverse(is_reverse);
        launch(KERNEL_ADD, &bed, bed.a);
        fetch(out, bed.y, N, bed.a);
        for (i = 0; i < N; i++) {
            assert_true(out[i] == (float)(i + 2));
        }
        launch(KERNEL_SUM, &bed, bed.a);
        fetch(out, bed.y, 4, bed.a);
        assert_true(out[0] == 500500 && out[3] == 500500);
        ok(kernel_launch(KERNEL_BALLOT, 1, 70, bed.x, bed.y, N, 70, 1, bed.a));
        fetch(out, bed.y, 70, bed.a);
        for (i = 0; i < 70; i++) {
            assert_true(out[i] == (float)(i % 32 / 2));
        }
        ok(kernel_launch(KERNEL_ENDED, 1, 64, bed.x, bed.y, N, 32, 1, bed.a));
        fetch(out, bed.y, 32, bed.a);
        assert_true(out[0] == 32 && out[31] == 1);
        launch(KERNEL_ANY, &bed, bed.a);
        fetch(out, bed.y, N, bed.a);
        assert_true(out[0] == 0 && out[N - 1] == 0);
        ok(cudaMemsetAsync(bed.x + 300, 0, 4, bed.a));
        launch(KERNEL_ANY, &bed, bed.a);
        fetch(out, bed.y, N, bed.a);
        assert_true(out[255] == 0 && out[256] == 1 && out[511] == 1);
        assert_true(out[512] == 0);
        ok(cudaMemcpyAsync(bed.x, in, sizeof(in), cudaMemcpyHostToDevice,
                           bed.a));
        ok(cudaMemsetAsync(bed.y, 0xff, 4, bed.a));
        launch(KERNEL_MIN, &bed, bed.a);
        fetch(out, bed.y, 1, bed.a);
        assert_true(memcmp(out, &(unsigned){1}, 4) == 0);
    }
    bed_free(&bed);
}

static void a_missing_barrier_shows_in_reverse(void **state)
{
    bed_t bed = bed_make();
    float forth[256], back[256];

    (void)state;
    ok(cudaMemset(bed.x, 0x3f, N * sizeof(float)));
    ok(cudaDeviceSynchronize());
    ok(kernel_launch(KERNEL_NO_BARRIER, 1, 256, bed.x, bed.y, N, 256, 1,
                     bed.a));
    fetch(forth, bed.y, 256, bed.a);
    standin_set_reverse(1);
    ok(kernel_launch(KERNEL_NO_BARRIER, 1, 256, bed.x, bed.y, N, 256, 1,
                     bed.a));
    fetch(back, bed.y, 256, bed.a);
    assert_true(memcmp(forth, back, sizeof(forth)) != 0);
    bed_free(&bed);
}

static void wrong_kernels_fail_the_device(void **state)
{
    static const struct {
        kernel_t kernel;
        const char *report;
    } wrong[] = {{KERNEL_STUCK, "barriers that others do not reach"},
                 {KERNEL_SPLIT, "barriers that others do not reach"},
                 {KERNEL_WRONG_LANE, "lane that is not in the mask"},
                 {KERNEL_TRAP, "__trap()"}};
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
        bed_t bed = bed_make();

        ok(kernel_launch(wrong[i].kernel, 2, 64, bed.x, bed.y, N, N, 1, bed.a));
        assert_error(cudaStreamSynchronize(bed.a), cudaErrorLaunchFailure);
        expect_report(wrong[i].report);
        /* it stays so */
        assert_error(cudaGetLastError(), cudaErrorLaunchFailure);
        assert_error(cudaMemset(bed.x, 0, 4), cudaErrorLaunchFailure);
        standin_reset();
        ok(cudaMemset(bed.x, 0, 4));
        bed_free(&bed);
    }
}

static void bad_launches_are_refused(void **state)
{
    bed_t bed = bed_make();

    (void)state;
    assert_error(kernel_launch(KERNEL_ADD, 0, 32, bed.x, bed.y, N, N, 1, bed.a),
                 cudaErrorInvalidConfiguration);
    assert_error(
        kernel_launch(KERNEL_ADD, 1, 1025, bed.x, bed.y, N, N, 1, bed.a),
        cudaErrorInvalidConfiguration);
    ok(cudaStreamSynchronize(bed.a));
    bed_free(&bed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(the_host_cannot_touch_device_memory),
        T(new_memory_is_not_a_number),
        T(a_full_device_says_so_and_goes_on),
        T(use_after_free_is_found),
        T(use_after_a_queued_free_is_found),
        T(bytes_past_the_end_are_found),
        T(undeclared_addresses_are_found),
        T(copies_read_the_host_when_cuda_does),
        T(bad_copies_are_refused),
        T(unordered_streams_are_found),
        T(a_write_after_a_read_is_found),
        T(events_order_streams),
        T(the_host_orders_streams),
        T(the_default_stream_orders_blocking_ones),
        T(events_tell_time),
        T(host_functions_run_in_order),
        T(devices_are_told_apart),
        T(kernels_compute),
        T(a_missing_barrier_shows_in_reverse),
        T(wrong_kernels_fail_the_device),
        T(bad_launches_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
