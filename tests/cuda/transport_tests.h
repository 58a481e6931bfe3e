/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file transport_tests.h
 * What every transport must do, as a table of plans, and the parts for plans
 * of one transport's own.
 */
#ifndef SL_TESTS_CUDA_TRANSPORT_TESTS_H
#define SL_TESTS_CUDA_TRANSPORT_TESTS_H

#include "tests/cuda/transport_bed.h"
#include "tests/support/sl_test.h"

/** Of the test that runs. */
extern bed_rank_t transport_ranks[BED_RANKS_MAX];

/** Run the plans of the table by `transport` on `n_gpus` GPUs of the stand-in,
 *  then the tests of its own; what anybody leaves behind fails.
 *  @return for main() */
int transport_tests_run(sl_transport_t transport, int n_gpus,
                        const struct CMUnitTest *own, size_t n_own);
/** A test of its own. */
#define TRANSPORT_TEST(f)                                                      \
    cmocka_unit_test_setup_teardown(f, transport_setup, transport_teardown)
int transport_setup(void **state);
int transport_teardown(void **state);

/** A plan of the table, on CUDA devices by `transport`. */
bed_plan_t transport_plan(bed_plan_t plan, sl_transport_t transport);

/** Two ranks, several channels each way, small and large tensors. */
bed_plan_t both_ways(int n_messages);

/** Of n rounds, some fail on some rank at some moment; each is tried once. */
void set_chaos(bed_plan_t *plan, int n_rounds);
/** After it: all ranks have failed in the same rounds, and not in all. */
void check_chaos(const bed_plan_t *plan, const bed_rank_t *ranks);

#endif /* SL_TESTS_CUDA_TRANSPORT_TESTS_H */
