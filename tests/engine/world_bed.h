/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file world_bed.h
 * What every link must do, written once: each function is run by all ranks,
 * be they threads or processes. A fault is noted and printed, so that it can
 * be found on any thread.
 */
#ifndef SL_TESTS_ENGINE_WORLD_BED_H
#define SL_TESTS_ENGINE_WORLD_BED_H

#include <pthread.h>
#include <stdint.h>

#include "engine/world.h"

/** Faults noted so far, of all threads of this process. */
int bed_n_faults(void);
#define BED_CHECK(cond) bed_check((cond), #cond, __FILE__, __LINE__)
int bed_check(int ok, const char *what, const char *file, int line);

uint64_t bed_random(uint64_t seed, uint64_t a, uint64_t b, uint64_t c);
void bed_sleep_us(uint64_t us);

/** One end of one edge. */
typedef struct bed_edge {
    struct bed_rank *rank;
    sl_port_t *port;
    int peer, tag, is_sender, n_slots;
    size_t max_bytes;
    uint64_t n_events; /**< left or arrived; guarded by lock */
    uint64_t n_taken;
    uint64_t base; /**< messages before this round; guarded by lock */
    size_t *sizes; /**< that arrived; guarded by lock */
    void **slots;
    unsigned char *memory;
} bed_edge_t;

/** A rank with two edges to and from every other. */
typedef struct bed_rank {
    sl_world_t *world;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int n_messages; /**< of each edge, a round */
    int n_aborts;   /**< calls of the watcher; guarded by lock */
    int is_aborted; /**< guarded by lock */
    sl_status_t status;
    char detail[1024];
    int canceled_sum; /**< of this round, -1 when none */
    int n_edges;
    bed_edge_t *edges;
} bed_rank_t;

void bed_rank_init(bed_rank_t *rank, sl_world_t *world, int n_messages);
void bed_rank_cleanup(bed_rank_t *rank);
/** After a recovery. */
void bed_begin_anew(bed_rank_t *rank);
void bed_open(bed_rank_t *rank, uint64_t seed);
void bed_close(bed_rank_t *rank, uint64_t seed);
/** All messages of a round, checked byte by byte, with sums in between.
 *  @return 0 when the job was aborted in the middle */
int bed_traffic(bed_rank_t *rank, uint64_t seed);

void bed_collectives(sl_world_t *world);
/** Ports closed and opened again, the ends in different order. */
void bed_reopen(sl_world_t *world, int n_rounds);
/** Aborts at random instants, recovery, and right traffic after it.
 *  @return rounds that had ended on another rank only */
uint64_t bed_aborts(sl_world_t *world, uint64_t seed, int n_rounds);

#endif /* SL_TESTS_ENGINE_WORLD_BED_H */
