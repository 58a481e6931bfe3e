/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file ops_bed.h
 * Ops for op manager tests.
 */
#ifndef SL_TESTS_SCHEDULER_BED_H
#define SL_TESTS_SCHEDULER_BED_H

#include <stdatomic.h>

#include "base/clock.h"
#include "scheduler/scheduler.h"
#include "tests/support/sl_test.h"

/* The same tests on a CUDA device: ops that compute on the host while they
 * are handed over. */
#ifndef SL_TESTS_SCHEDULER_CUDA
#define SL_TESTS_SCHEDULER_CUDA 0
#endif
#if SL_TESTS_SCHEDULER_CUDA
#include "scheduler/cuda.h"
#endif

#define MS UINT64_C(1000000)

/* Times of ops that compute on the host. The marks that a device has around
 * one may pass at any time after they are queued: nothing is known of them. */
#define assert_time(condition)                                                 \
    assert_true(SL_TESTS_SCHEDULER_CUDA || (condition))

/* A gate that holds the device's thread until it is opened. */
typedef struct gate {
    atomic_int is_entered;
    atomic_int is_open;
} gate_t;

static inline sl_status_t gate_op(const void *args, void *stream)
{
    gate_t *gate = *(gate_t *const *)args;

    (void)stream;
    atomic_store(&gate->is_entered, 1);
    while (!atomic_load(&gate->is_open)) {
    }
    return SL_OK;
}

static inline void ops_bed_params(sl_op_manager_params_t *params)
{
    sl_op_manager_params_default(params);
    params->name = "bed:0";
#if SL_TESTS_SCHEDULER_CUDA
    params->backend = sl_op_backend_cuda();
#endif
}

static inline sl_op_manager_t *ops_bed_manager(int ring_ops)
{
    sl_op_manager_params_t params;
    sl_op_manager_t *manager = NULL;

    ops_bed_params(&params);
    params.ring_ops = ring_ops;
    sl_assert_ok(sl_op_manager_create(&params, &manager));
    return manager;
}

static inline void ops_bed_hold(sl_op_manager_t *manager, gate_t *gate)
{
    const sl_op_t op = {
        .fn = gate_op, .args = &gate, .args_bytes = sizeof(gate)};

    sl_assert_ok(sl_op_manager_submit(manager, &op, NULL));
    while (!atomic_load(&gate->is_entered)) {
    }
}

static inline void ops_bed_open(gate_t *gate)
{
    atomic_store(&gate->is_open, 1);
}

#endif /* SL_TESTS_SCHEDULER_BED_H */
