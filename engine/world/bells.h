/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file bells.h
 * How ranks of one host wake each other, for the link over MPI. MPI cannot
 * sleep until something comes, and looking for it takes a core from those who
 * compute; so who sends rings, and who waits sleeps.
 *
 * Each rank has a bell in memory that the ranks of its host share (a window of
 * MPI, which also gives it back). Without such memory only the own threads of a
 * rank can ring its bell.
 */
#ifndef SL_ENGINE_WORLD_BELLS_H
#define SL_ENGINE_WORLD_BELLS_H

#include <mpi.h>
#include <stdint.h>

#include "base/status.h"

typedef struct sl_bells sl_bells_t; /* opaque */

/** Alone at first. NULL: no host memory. */
sl_bells_t *sl_bells_create(void);
/** Find the bells of the other ranks of this host. Collective over `comm`; no
 *  thread uses the bells meanwhile.
 *  @return an error of MPI; where memory cannot be shared SL_OK, without
 *          bells */
SL_NODISCARD sl_status_t sl_bells_share(sl_bells_t *bells, MPI_Comm comm);
/** Give back what is shared: collective over the ranks of the host. */
void sl_bells_unshare(sl_bells_t *bells);
/** Free; what is shared stays until the process ends. NULL is allowed. */
void sl_bells_destroy(sl_bells_t *bells);

/** Whether all ranks of `comm` have bells. */
int sl_bells_are_complete(const sl_bells_t *bells);
int sl_bells_has(const sl_bells_t *bells, int peer);

/** Something has been sent to this rank. Without a bell of it: nothing. */
void sl_bells_ring(sl_bells_t *bells, int peer);
/** How often others have rung that something was sent to us. */
uint64_t sl_bells_n_sent(const sl_bells_t *bells);

/** Wake the thread that waits; from any thread. */
void sl_bells_wake(sl_bells_t *bells);
/** Sleep until somebody has rung since the last call. One thread of a rank.
 *  @return whether somebody has */
int sl_bells_wait(sl_bells_t *bells, uint64_t timeout_ns);

#endif /* SL_ENGINE_WORLD_BELLS_H */
