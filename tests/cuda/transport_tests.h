/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file transport_tests.h
 * Plans that every transport runs.
 */
#ifndef SL_TESTS_CUDA_TRANSPORT_TESTS_H
#define SL_TESTS_CUDA_TRANSPORT_TESTS_H

#include "tests/cuda/transport_bed.h"

/** Two ranks, several channels each way, small and large tensors. */
bed_plan_t both_ways(int n_messages);
/** Two ranks, one channel each way, 8 bytes at a time. */
bed_plan_t many_small(int n_messages);
/** Each rank to the next one, and the reverse. */
bed_plan_t ring(int n_ranks, int n_messages);

/** Of n rounds, some fail on some rank at some moment; each is tried once. */
void set_chaos(bed_plan_t *plan, int n_rounds);
/** After it: all ranks have failed in the same rounds, and not in all. */
void check_chaos(const bed_plan_t *plan, const bed_rank_t *ranks);
/** Rank 1 stops answering in the middle. */
void set_hang(bed_plan_t *plan);

#endif /* SL_TESTS_CUDA_TRANSPORT_TESTS_H */
