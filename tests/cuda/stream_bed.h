/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file stream_bed.h
 * Op managers on a CUDA device, and ops of known effect and device time.
 */
#ifndef SL_TESTS_CUDA_STREAM_BED_H
#define SL_TESTS_CUDA_STREAM_BED_H

#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "memory/cuda.h"
#include "scheduler/cuda.h"
#include "tests/cuda/standin_bed.h"

#define MS UINT64_C(1000000)

static inline sl_op_manager_t *manager_make(int in_flight)
{
    sl_op_manager_params_t params;
    sl_op_manager_t *manager = NULL;

    sl_op_manager_params_default(&params);
    params.name = "cuda:0";
    params.backend = sl_op_backend_cuda();
    params.in_flight = in_flight;
    sl_assert_ok(sl_op_manager_create(&params, &manager));
    return manager;
}

static inline void pause_ms(long ms)
{
    const struct timespec nap = {.tv_sec = ms / 1000,
                                 .tv_nsec = ms % 1000 * 1000000};

    (void)nanosleep(&nap, NULL);
}

/* Until it holds; a bound, not a measure. */
#define wait_for(condition)                                                    \
    do {                                                                       \
        int tries = 0;                                                         \
        while (!(condition) && tries++ < 20000) {                              \
            pause_ms(1);                                                       \
        }                                                                      \
        assert_true(condition);                                                \
    } while (0)

/* ---- ops ---- */

/* Device time, and who counts when it is handed over and when it runs. */
typedef struct work {
    unsigned us;
    atomic_int *n_queued; /* NULL: nobody */
    atomic_int *n_ended;
} work_t;

static inline void count_one(void *user_data)
{
    (void)atomic_fetch_add((atomic_int *)user_data, 1);
}

static inline sl_status_t work_op(const void *args, void *stream)
{
    const work_t *work = args;
    const sl_cuda_stream_t *cuda = stream;
    sl_status_t status = SL_OK;

    if (work->n_queued != NULL) {
        (void)atomic_fetch_add(work->n_queued, 1);
    }
    if (work->us > 0) {
        SL_TRY(status, SL_CUDA(standin_sleep(cuda->queue, work->us)), out);
    }
    if (work->n_ended != NULL) {
        SL_TRY(
            status,
            SL_CUDA(cudaLaunchHostFunc(cuda->queue, count_one, work->n_ended)),
            out);
    }
out:
    return status;
}

static inline sl_status_t submit_work_in(sl_op_manager_t *manager,
                                         const char *name, work_t work,
                                         sl_op_span_t *span, uint64_t *ticket_p)
{
    const sl_op_t op = {.fn = work_op,
                        .name_id = sl_op_manager_name(manager, name),
                        .span = span,
                        .args = &work,
                        .args_bytes = sizeof(work)};

    return sl_op_manager_submit(manager, &op, ticket_p);
}

static inline sl_status_t submit_work(sl_op_manager_t *manager,
                                      const char *name, work_t work,
                                      uint64_t *ticket_p)
{
    return submit_work_in(manager, name, work, NULL, ticket_p);
}

/* Work that does not end before the gate is open, however busy the machine. */
typedef struct held {
    atomic_int *is_open;
    atomic_int *n_queued; /* NULL: nobody */
    atomic_int *n_ended;
} held_t;

static inline void await_gate(void *user_data)
{
    while (!atomic_load((atomic_int *)user_data)) {
        pause_ms(2);
    }
}

static inline sl_status_t held_op(const void *args, void *stream)
{
    const held_t *held = args;
    const work_t rest = {0, held->n_queued, held->n_ended};
    const sl_cuda_stream_t *cuda = stream;
    sl_status_t status;

    SL_TRY(status,
           SL_CUDA(cudaLaunchHostFunc(cuda->queue, await_gate, held->is_open)),
           out);
    status = work_op(&rest, stream);
out:
    return status;
}

static inline void submit_held(sl_op_manager_t *manager, held_t held,
                               uint64_t *ticket_p)
{
    const sl_op_t op = {
        .fn = held_op, .args = &held, .args_bytes = sizeof(held)};

    sl_assert_ok(sl_op_manager_submit(manager, &op, ticket_p));
}

/* ---- work that takes longer than it was to ----
 *
 * On a busy machine a sleep may take any time. A share is exceeded by what was
 * in flight when that happened, and pays for it afterwards. */

enum {
    TIMED_MAX = 16384,
    TIMED_IN_FLIGHT = 64 /* more than any manager here has */
};

typedef struct timed_work {
    sl_op_manager_t *manager;
    unsigned us; /* of each op */
    uint64_t n;  /* submitted so far */
    sl_op_span_t spans[TIMED_MAX];
} timed_work_t;

static inline void submit_timed(timed_work_t *timed)
{
    assert_true(timed->n < TIMED_MAX);
    sl_assert_ok(submit_work_in(timed->manager, "work",
                                (work_t){timed->us, NULL, NULL},
                                &timed->spans[timed->n++], NULL));
}

static inline void timed_begin(timed_work_t *timed, sl_op_manager_t *manager,
                               unsigned us)
{
    memset(timed, 0, sizeof(*timed));
    timed->manager = manager;
    timed->us = us;
}

/* By how much the latest of `n_run` ops took longer than they were to; nothing
 * is in flight. */
static inline double timed_excess_ns(const timed_work_t *timed, uint64_t n_run)
{
    const uint64_t end =
        n_run + TIMED_IN_FLIGHT < timed->n ? n_run + TIMED_IN_FLIGHT : timed->n;
    uint64_t i = n_run > TIMED_IN_FLIGHT ? n_run - TIMED_IN_FLIGHT : 0;
    double excess_ns = 0.0;

    for (; i < end; i++) {
        const double ns = (double)timed->spans[i].busy_ns - 1e3 * timed->us;

        excess_ns += ns > 0.0 ? ns : 0.0;
    }
    return excess_ns;
}

/* out[i] = in[i] + 1, on N floats. */
typedef struct add {
    const float *in;
    float *out;
} add_t;

static inline sl_status_t add_op(const void *args, void *stream)
{
    const add_t *add = args;
    const sl_cuda_stream_t *cuda = stream;

    return SL_CUDA(kernel_launch(KERNEL_ADD, 4, 256, add->in, add->out, N, N, 1,
                                 cuda->queue));
}

static inline sl_status_t submit_add(sl_op_manager_t *manager, const float *in,
                                     float *out, uint64_t *ticket_p)
{
    const add_t add = {in, out};
    const sl_op_t op = {.fn = add_op,
                        .name_id = sl_op_manager_name(manager, "add"),
                        .args = &add,
                        .args_bytes = sizeof(add)};

    return sl_op_manager_submit(manager, &op, ticket_p);
}

/* N floats from anywhere to anywhere. */
typedef struct copy {
    float *to;
    const float *from;
} copy_t;

static inline sl_status_t copy_op(const void *args, void *stream)
{
    const copy_t *copy = args;
    const sl_cuda_stream_t *cuda = stream;

    return SL_CUDA(cudaMemcpyAsync(copy->to, copy->from, N * sizeof(float),
                                   cudaMemcpyDefault, cuda->queue));
}

static inline sl_op_t copy_of(const copy_t *copy)
{
    const sl_op_t op = {
        .fn = copy_op, .args = copy, .args_bytes = sizeof(*copy)};

    return op;
}

static inline float *pinned_alloc(void)
{
    void *ptr = NULL;

    ok(cudaHostAlloc(&ptr, N * sizeof(float), 0));
    return ptr;
}

#endif /* SL_TESTS_CUDA_STREAM_BED_H */
