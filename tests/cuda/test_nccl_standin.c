/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in for NCCL: what it carries, what it finds wrong, and that it
 * waits where the real one would. */
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <nccl.h>

#include "tests/cuda/standin_bed.h"

extern char **environ;

enum {
    BYTES = 1 << 20,
    HANG_MS = 50
};

/* One rank of a communicator of two; device r. */
typedef struct end {
    int rank;
    ncclComm_t comm;
    cudaStream_t stream;
    unsigned char *out, *in; /* of the device */
} end_t;

static void pause_ms(long ms)
{
    const struct timespec pause = {.tv_sec = ms / 1000,
                                   .tv_nsec = ms % 1000 * 1000000};

    (void)nanosleep(&pause, NULL);
}

/* A call's result once it is no longer in progress. */
static ncclResult_t settle(ncclComm_t comm, ncclResult_t result)
{
    while (result == ncclInProgress) {
        pause_ms(1);
        assert_int_equal(ncclCommGetAsyncError(comm, &result), ncclSuccess);
    }
    return result;
}

static void use(const end_t *end)
{
    ok(cudaSetDevice(end->rank));
}

static ncclResult_t begin(end_t *end, const ncclUniqueId *id, int rank,
                          int device)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;

    config.blocking = 0;
    end->rank = rank;
    ok(cudaSetDevice(device));
    return ncclCommInitRankConfig(&end->comm, 2, *id, rank, &config);
}

static void make_memory(end_t *end)
{
    use(end);
    ok(cudaStreamCreateWithFlags(&end->stream, cudaStreamNonBlocking));
    end->out = device_alloc(BYTES);
    end->in = device_alloc(BYTES);
    ok(cudaMemset(end->out, 1 + end->rank, BYTES));
    ok(cudaMemset(end->in, 99, BYTES));
    ok(cudaDeviceSynchronize());
}

static void make_pair(end_t ends[2])
{
    ncclUniqueId id;
    int r;

    assert_int_equal(ncclGetUniqueId(&id), ncclSuccess);
    for (r = 0; r < 2; r++) {
        assert_int_equal(begin(&ends[r], &id, r, r), ncclInProgress);
    }
    for (r = 0; r < 2; r++) {
        assert_int_equal(settle(ends[r].comm, ncclInProgress), ncclSuccess);
        make_memory(&ends[r]);
    }
}

static void free_memory(end_t *end)
{
    use(end);
    ok(cudaFree(end->out));
    ok(cudaFree(end->in));
    ok(cudaStreamDestroy(end->stream));
}

static void free_pair(end_t ends[2])
{
    int r;

    for (r = 0; r < 2; r++) {
        assert_int_equal(settle(ends[r].comm, ncclCommFinalize(ends[r].comm)),
                         ncclSuccess);
    }
    for (r = 0; r < 2; r++) {
        assert_int_equal(ncclCommDestroy(ends[r].comm), ncclSuccess);
        free_memory(&ends[r]);
    }
    assert_int_equal(standin_n_communicators(), 0);
}

static void abort_pair(end_t ends[2])
{
    int r;

    for (r = 0; r < 2; r++) {
        assert_int_equal(ncclCommAbort(ends[r].comm), ncclSuccess);
    }
    for (r = 0; r < 2; r++) {
        free_memory(&ends[r]);
    }
    assert_int_equal(standin_n_communicators(), 0);
}

static ncclResult_t send(const end_t *end, size_t n)
{
    use(end);
    return ncclSend(end->out, n, ncclUint8, 1 - end->rank, end->comm,
                    end->stream);
}

static ncclResult_t receive(const end_t *end, size_t n)
{
    use(end);
    return ncclRecv(end->in, n, ncclUint8, 1 - end->rank, end->comm,
                    end->stream);
}

/* What arrived: n bytes of the other's, then what was there. */
static void check_in(const end_t *end, size_t n)
{
    static unsigned char host[BYTES];
    size_t i;

    use(end);
    ok(cudaStreamSynchronize(end->stream));
    ok(cudaMemcpy(host, end->in, BYTES, cudaMemcpyDeviceToHost));
    for (i = 0; i < BYTES; i++) {
        assert_int_equal(host[i], i < n ? 2 - end->rank : 99);
    }
}

/* ---- what it carries ---- */

static void messages_arrive(void **state)
{
    const size_t sizes[] = {1, 7, 65520, 65536, 65537, BYTES, 0};
    end_t ends[2];
    size_t i;

    (void)state;
    make_pair(ends);
    for (i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        ncclResult_t sent = send(&ends[0], sizes[i]);
        ncclResult_t received = receive(&ends[1], sizes[i]);

        assert_int_equal(settle(ends[0].comm, sent), ncclSuccess);
        assert_int_equal(settle(ends[1].comm, received), ncclSuccess);
        check_in(&ends[1], sizes[i]);
        ok(cudaMemset(ends[1].in, 99, BYTES));
        ok(cudaDeviceSynchronize());
    }
    free_pair(ends);
}

static ncclResult_t exchange(const end_t *end, size_t n)
{
    assert_int_equal(ncclGroupStart(), ncclSuccess);
    assert_int_equal(send(end, n), ncclSuccess);
    assert_int_equal(receive(end, n), ncclSuccess);
    return ncclGroupEnd();
}

static void a_group_goes_both_ways(void **state)
{
    end_t ends[2];
    int i;

    (void)state;
    make_pair(ends);
    for (i = 0; i < 5; i++) {
        const ncclResult_t a = exchange(&ends[0], BYTES);
        const ncclResult_t b = exchange(&ends[1], BYTES);

        assert_int_equal(settle(ends[0].comm, a), ncclSuccess);
        assert_int_equal(settle(ends[1].comm, b), ncclSuccess);
        check_in(&ends[0], BYTES);
        check_in(&ends[1], BYTES);
    }
    free_pair(ends);
}

/* Several messages between two ranks keep their order. */
static void a_group_keeps_the_order(void **state)
{
    enum {
        PARTS = 8,
        PART = BYTES / PARTS
    };
    static unsigned char host[BYTES];
    ncclResult_t results[2];
    end_t ends[2];
    int r, i;

    (void)state;
    make_pair(ends);
    for (i = 0; i < PARTS; i++) {
        use(&ends[0]);
        ok(cudaMemset(ends[0].out + i * PART, 10 + i, PART));
    }
    ok(cudaDeviceSynchronize());
    for (r = 0; r < 2; r++) {
        use(&ends[r]);
        assert_int_equal(ncclGroupStart(), ncclSuccess);
        for (i = 0; i < PARTS; i++) {
            assert_int_equal(
                r == 0 ? ncclSend(ends[0].out + i * PART, PART / 4, ncclInt32,
                                  1, ends[0].comm, ends[0].stream)
                       : ncclRecv(ends[1].in + i * PART, PART / 4, ncclInt32, 0,
                                  ends[1].comm, ends[1].stream),
                ncclSuccess);
        }
        results[r] = ncclGroupEnd();
    }
    for (r = 0; r < 2; r++) {
        assert_int_equal(settle(ends[r].comm, results[r]), ncclSuccess);
    }
    use(&ends[1]);
    ok(cudaStreamSynchronize(ends[1].stream));
    ok(cudaMemcpy(host, ends[1].in, BYTES, cudaMemcpyDeviceToHost));
    for (i = 0; i < BYTES; i++) {
        assert_int_equal(host[i], 10 + i / PART);
    }
    free_pair(ends);
}

/* The other rank is another process: this program, started anew. */
static int child_main(const char *id_text)
{
    end_t end;
    ncclUniqueId id;
    ncclResult_t result;

    memset(&id, 0, sizeof(id));
    (void)snprintf(id.internal, sizeof(id.internal), "%s", id_text);
    result = settle(end.comm, begin(&end, &id, 1, 1));
    make_memory(&end);
    result = settle(end.comm, exchange(&end, BYTES));
    if (result == ncclSuccess) {
        check_in(&end, BYTES);
        result = settle(end.comm, ncclCommFinalize(end.comm));
    }
    (void)ncclCommDestroy(end.comm);
    free_memory(&end);
    return result == ncclSuccess ? 0 : 1;
}

static void ranks_may_be_processes(void **state)
{
    char path[] = "/proc/self/exe";
    ncclUniqueId id;
    char *args[] = {path, id.internal, NULL};
    end_t end;
    pid_t child;
    int status = -1;

    (void)state;
    assert_int_equal(ncclGetUniqueId(&id), ncclSuccess);
    assert_int_equal(posix_spawn(&child, path, NULL, NULL, args, environ), 0);
    assert_int_equal(settle(end.comm, begin(&end, &id, 0, 0)), ncclSuccess);
    make_memory(&end);
    assert_int_equal(settle(end.comm, exchange(&end, BYTES)), ncclSuccess);
    check_in(&end, BYTES);
    assert_int_equal(settle(end.comm, ncclCommFinalize(end.comm)), ncclSuccess);
    assert_int_equal(ncclCommDestroy(end.comm), ncclSuccess);
    free_memory(&end);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

/* ---- where it waits ---- */

static int is_busy(const end_t *end)
{
    use(end);
    return cudaStreamQuery(end->stream) == cudaErrorNotReady;
}

/* A first exchange, so that later calls do not wait for connections. */
static void warm_up(end_t ends[2])
{
    const ncclResult_t a = exchange(&ends[0], 1);
    const ncclResult_t b = exchange(&ends[1], 1);

    assert_int_equal(settle(ends[0].comm, a), ncclSuccess);
    assert_int_equal(settle(ends[1].comm, b), ncclSuccess);
    ok(cudaStreamSynchronize(ends[0].stream));
    ok(cudaStreamSynchronize(ends[1].stream));
}

static void opposite_sends_wait_for_ever(void **state)
{
    end_t ends[2];
    int r;

    (void)state;
    make_pair(ends);
    warm_up(ends);
    for (r = 0; r < 2; r++) {
        assert_int_equal(settle(ends[r].comm, send(&ends[r], 8)), ncclSuccess);
        assert_int_equal(settle(ends[r].comm, receive(&ends[r], 8)),
                         ncclSuccess);
    }
    pause_ms(HANG_MS);
    assert_true(is_busy(&ends[0]) && is_busy(&ends[1]));
    abort_pair(ends);
}

static void a_send_alone_waits_and_is_aborted(void **state)
{
    end_t ends[2];

    (void)state;
    make_pair(ends);
    warm_up(ends);
    assert_int_equal(settle(ends[0].comm, send(&ends[0], 8)), ncclSuccess);
    pause_ms(HANG_MS);
    assert_true(is_busy(&ends[0]));
    abort_pair(ends);
}

/* The first message of two ranks makes a connection: until the other side has
 * called too, the call is in progress. */
static void a_first_call_waits_for_the_other(void **state)
{
    ncclResult_t result = ncclSuccess;
    end_t ends[2];

    (void)state;
    make_pair(ends);
    assert_int_equal(send(&ends[0], 8), ncclInProgress);
    pause_ms(HANG_MS);
    assert_int_equal(ncclCommGetAsyncError(ends[0].comm, &result), ncclSuccess);
    assert_int_equal(result, ncclInProgress);
    abort_pair(ends);
}

static void a_rank_that_never_comes_is_given_up(void **state)
{
    ncclResult_t result = ncclSuccess;
    ncclUniqueId id;
    end_t end;

    (void)state;
    assert_int_equal(ncclGetUniqueId(&id), ncclSuccess);
    assert_int_equal(begin(&end, &id, 0, 0), ncclInProgress);
    pause_ms(HANG_MS);
    assert_int_equal(ncclCommGetAsyncError(end.comm, &result), ncclSuccess);
    assert_int_equal(result, ncclInProgress);
    assert_int_equal(ncclCommAbort(end.comm), ncclSuccess);
    assert_int_equal(standin_n_communicators(), 0);
}

/* ---- what is wrong ---- */

static void a_call_while_in_progress_is_reported(void **state)
{
    end_t ends[2];

    (void)state;
    make_pair(ends);
    assert_int_equal(send(&ends[0], 8), ncclInProgress);
    assert_int_equal(send(&ends[0], 8), ncclInvalidArgument);
    expect_report("still in progress");
    abort_pair(ends);
}

static void other_sizes_are_reported(void **state)
{
    ncclResult_t result = ncclSuccess;
    end_t ends[2];

    (void)state;
    make_pair(ends);
    warm_up(ends);
    assert_int_equal(settle(ends[0].comm, send(&ends[0], 8)), ncclSuccess);
    assert_int_equal(settle(ends[1].comm, receive(&ends[1], 9)), ncclSuccess);
    while (result == ncclSuccess) {
        pause_ms(1);
        assert_int_equal(ncclCommGetAsyncError(ends[1].comm, &result),
                         ncclSuccess);
    }
    expect_report("ncclRecv of 9 elements");
    abort_pair(ends);
}

static void two_ranks_need_two_devices(void **state)
{
    ncclUniqueId id;
    end_t ends[2];
    int r;

    (void)state;
    assert_int_equal(ncclGetUniqueId(&id), ncclSuccess);
    for (r = 0; r < 2; r++) {
        assert_int_equal(begin(&ends[r], &id, r, 1), ncclInProgress);
    }
    for (r = 0; r < 2; r++) {
        assert_int_equal(settle(ends[r].comm, ncclInProgress),
                         ncclInvalidUsage);
        sl_assert_contains(ncclGetLastError(ends[r].comm), "Duplicate GPU");
        assert_int_equal(ncclCommAbort(ends[r].comm), ncclSuccess);
    }
}

/* Memory that another stream still works on. */
static void a_missing_wait_is_reported(void **state)
{
    cudaStream_t other;
    end_t ends[2];

    (void)state;
    make_pair(ends);
    warm_up(ends);
    use(&ends[1]);
    ok(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    ok(cudaMemsetAsync(ends[1].in, 0, 8, other));
    assert_int_equal(settle(ends[0].comm, send(&ends[0], 8)), ncclSuccess);
    assert_int_equal(settle(ends[1].comm, receive(&ends[1], 8)), ncclSuccess);
    use(&ends[1]);
    ok(cudaStreamSynchronize(ends[1].stream));
    ok(cudaStreamDestroy(other));
    expect_report("ncclRecv");
    free_pair(ends);
}

static void freed_memory_is_reported(void **state)
{
    end_t ends[2];
    void *gone;

    (void)state;
    make_pair(ends);
    warm_up(ends);
    use(&ends[0]);
    gone = device_alloc(64);
    ok(cudaFree(gone));
    assert_int_equal(
        settle(ends[0].comm,
               ncclSend(gone, 64, ncclUint8, 1, ends[0].comm, ends[0].stream)),
        ncclInvalidArgument);
    expect_report("ncclSend");
    abort_pair(ends);
}

static void failures_are_injected(void **state)
{
    ncclResult_t result = ncclSuccess;
    ncclUniqueId id;
    end_t ends[2];

    (void)state;
    standin_fail(STANDIN_ncclGetUniqueId, 1, (cudaError_t)ncclSystemError,
                 STANDIN_FAIL_CALL);
    assert_int_equal(ncclGetUniqueId(&id), ncclSystemError);
    make_pair(ends);
    warm_up(ends);
    standin_fail(STANDIN_ncclSend, 1, (cudaError_t)ncclInternalError,
                 STANDIN_FAIL_CALL);
    assert_int_equal(send(&ends[0], 8), ncclInternalError);
    standin_fail(STANDIN_ncclGroupEnd, 1, (cudaError_t)ncclSystemError,
                 STANDIN_FAIL_CALL);
    assert_int_equal(exchange(&ends[0], 8), ncclSystemError);

    /* an error while it runs: the stream goes on when it is aborted */
    standin_fail(STANDIN_ncclSend, 1, (cudaError_t)ncclRemoteError,
                 STANDIN_FAIL_RUN);
    assert_int_equal(settle(ends[0].comm, send(&ends[0], 8)), ncclSuccess);
    while (result == ncclSuccess) {
        pause_ms(1);
        assert_int_equal(ncclCommGetAsyncError(ends[0].comm, &result),
                         ncclSuccess);
    }
    assert_int_equal(result, ncclRemoteError);
    assert_true(is_busy(&ends[0]));
    abort_pair(ends);
}

static void a_blocking_communicator_returns_when_done(void **state)
{
    ncclUniqueId id;
    ncclComm_t comm;

    (void)state;
    assert_int_equal(ncclGetUniqueId(&id), ncclSuccess);
    assert_int_equal(ncclCommInitRankConfig(&comm, 1, id, 0, NULL),
                     ncclSuccess);
    assert_int_equal(ncclCommFinalize(comm), ncclSuccess);
    assert_int_equal(ncclCommDestroy(comm), ncclSuccess);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        T(messages_arrive),
        T(a_group_goes_both_ways),
        T(a_group_keeps_the_order),
        T(ranks_may_be_processes),
        T(opposite_sends_wait_for_ever),
        T(a_send_alone_waits_and_is_aborted),
        T(a_first_call_waits_for_the_other),
        T(a_rank_that_never_comes_is_given_up),
        T(a_call_while_in_progress_is_reported),
        T(other_sizes_are_reported),
        T(two_ranks_need_two_devices),
        T(a_missing_wait_is_reported),
        T(freed_memory_is_reported),
        T(failures_are_injected),
        T(a_blocking_communicator_returns_when_done),
    };

    return argc > 1 ? child_main(argv[1])
                    : cmocka_run_group_tests(tests, NULL, NULL);
}
