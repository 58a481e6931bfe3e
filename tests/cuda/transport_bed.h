/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file transport_bed.h
 * Channels between ranks that are threads of one process, each with a device
 * of its own: what every transport must do, written once. A fault is noted and
 * printed; a test's assertions belong to its main thread.
 */
#ifndef SL_TESTS_CUDA_TRANSPORT_BED_H
#define SL_TESTS_CUDA_TRANSPORT_BED_H

#include <stdatomic.h>

#include "engine/transport.h"
#include "engine/world.h"

enum {
    LINES_MAX = 8,
    BED_RANKS_MAX = 4
};

/** One channel. */
typedef struct bed_line {
    int from, to; /**< ranks */
    int n_slots;
    int n_messages;
    size_t max_bytes; /**< messages have 1 to as many, by number */
    int is_even;      /**< all messages have max_bytes */
} bed_line_t;

struct bed_rank;

typedef struct bed_plan {
    const char *spec; /**< of each rank's devices */
    sl_transport_t transport;
    int n_ranks, n_lines;
    bed_line_t lines[LINES_MAX];
    int n_rounds;
    uint64_t dead_ns;  /**< 0: the default */
    uint64_t stuck_ns; /**< of nccl, as the next two; 0: the default */
    uint64_t meet_ns, end_ns;
    /** Called by every rank after it has opened its channels, before and in
     *  the middle of each round; NULL: nothing. */
    void (*hook)(struct bed_rank *rank, int round, int is_middle);
    int expects_failure; /**< of some round: recover and go on */
    int expects_no_nccl; /**< its lanes cannot be made: there are no rounds */
    const void *args;    /**< of the hook */
} bed_plan_t;

typedef struct bed_rank {
    const bed_plan_t *plan;
    int rank;
    sl_world_t *world;
    sl_device_set_t *devices;
    struct sl_nccl *nccl;
    sl_abort_t abort;
    sl_channel_t channels[LINES_MAX]; /**< peer -1: not of this rank */
    int n_failed;                     /**< rounds */
    char detail[1024];                /**< of the latest failure */
    sl_status_t status;               /**< likewise */
    uint64_t n_made;                  /**< communicators, at the end */
    int is_over;                      /**< does not take part any more */
    atomic_int n_judged;              /**< rounds; INT_MAX: over */
} bed_rank_t;

/** Run it. @return faults; ranks[] has what came out */
int bed_run(const bed_plan_t *plan, bed_rank_t *ranks);

void bed_fault(const char *what, const char *file, int line);
#define BED_TRUE(cond)                                                         \
    do {                                                                       \
        if (!(cond)) {                                                         \
            bed_fault(#cond, __FILE__, __LINE__);                              \
        }                                                                      \
    } while (0)

#endif /* SL_TESTS_CUDA_TRANSPORT_BED_H */
