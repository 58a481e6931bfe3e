/* SPDX-License-Identifier: Apache-2.0 */
/* What the rooms of the simulator share: time, places, cells, events. */
#ifndef SL_ENGINE_SIMULATE_SIMULATE_INTERNAL_H
#define SL_ENGINE_SIMULATE_SIMULATE_INTERNAL_H

#include "engine/simulate/simulate.h"

/* ---- time ---- */

static inline void sl_sim_spend(sl_sim_path_t *path, sl_sim_part_t part,
                                double us)
{
    path->at_us += us;
    path->part_us[part] += us;
}

/** The later of two; the first when they are equal. */
static inline const sl_sim_path_t *sl_sim_later(const sl_sim_path_t *a,
                                                const sl_sim_path_t *b)
{
    return b->at_us > a->at_us ? b : a;
}

/* ---- events: a heap, by time and then by age ---- */

typedef enum sl_sim_event_kind {
    SL_SIM_EVENT_RUN,      /**< cell: goes on with its program */
    SL_SIM_EVENT_HEAD,     /**< cell, arg: direction; the first byte of the
                                edge's next message comes to the receiver */
    SL_SIM_EVENT_BUCKET,   /**< cell, arg: bucket; its gradients are there */
    SL_SIM_EVENT_EXCHANGE, /**< arg: 2 * exchange + is_far; its first bytes are
                                there */
    SL_SIM_EVENT_TIE       /**< cell: receiver, arg: mail box of a tie */
} sl_sim_event_kind_t;

typedef struct sl_sim_event {
    double at_us;
    uint64_t age;
    sl_sim_event_kind_t kind;
    int cell, arg;
} sl_sim_event_t;

typedef struct sl_sim_queue {
    sl_sim_event_t *heap; /**< owned */
    size_t n, room;
    uint64_t n_pushed;
} sl_sim_queue_t;

SL_NODISCARD sl_status_t sl_sim_queue_push(sl_sim_queue_t *queue,
                                           const sl_sim_event_t *event);
/** The next event; there is one. */
sl_sim_event_t sl_sim_queue_pop(sl_sim_queue_t *queue);

/* ---- places ---- */

/** Things that serve one at a time, in the order asked; a path says until
 *  when they are taken, and by what chain. */
typedef struct sl_sim_device {
    const sl_cluster_group_t *group;
    int host;
    sl_sim_path_t compute, out, in;
} sl_sim_device_t;

typedef struct sl_sim_host {
    sl_sim_path_t out, in;
} sl_sim_host_t;

/** Something on its way. */
typedef struct sl_sim_flight {
    sl_sim_path_t head; /**< its first byte is at the receiver's link */
    sl_sim_path_t tail; /**< its last byte; after arrival: it is there */
} sl_sim_flight_t;

/* ---- what a stage does, the same in all replicas ---- */

typedef struct sl_sim_bucket {
    double bytes;
    double ready;  /**< share of the last backward after which it is there */
    int waits_tie; /**< gradients of tied users have to be added first */
} sl_sim_bucket_t;

typedef struct sl_sim_work {
    sl_instruction_list_t list; /**< owned */
    size_t last_backward;       /**< its index in the list */
    double forward_us, recompute_us, backward_us;
    double update_bytes; /**< of trained values that this stage owns */
    double in_bytes;     /**< of the cut before the stage */
    int n_buckets;
    sl_sim_bucket_t *buckets; /**< owned; in backward order; none for R = 1 */
} sl_sim_work_t;

/* ---- cells ---- */

typedef enum sl_sim_direction {
    SL_SIM_FROM_BEFORE, /**< activations from the stage before */
    SL_SIM_FROM_BEHIND  /**< gradients from the stage behind */
} sl_sim_direction_t;

enum {
    SL_SIM_MAX_SLOTS = 8
};

/** The receiving end of an edge; message i is in slot i % n_slots. */
typedef struct sl_sim_edge {
    uint64_t n_sent, n_heads, n_taken;
    sl_sim_flight_t flights[SL_SIM_MAX_SLOTS];
    sl_sim_path_t taken[SL_SIM_MAX_SLOTS]; /**< when the sender knows */
} sl_sim_edge_t;

/** After the list's compute: how far the update has come. */
typedef enum sl_sim_phase {
    SL_SIM_PHASE_LIST,
    SL_SIM_PHASE_TIES,   /**< gradients of tied users come, in order */
    SL_SIM_PHASE_SUM,    /**< replicas' parts come, and are added */
    SL_SIM_PHASE_SUMMED, /**< not sharded: the others' sums come */
    SL_SIM_PHASE_MEET,
    SL_SIM_PHASE_UPDATE,
    SL_SIM_PHASE_VALUES, /**< sharded: the others' new values come */
    SL_SIM_PHASE_TIED_VALUES,
    SL_SIM_PHASE_DONE
} sl_sim_phase_t;

/** What a blocked cell waits for, and so who may wake it. */
typedef enum sl_sim_wait {
    SL_SIM_WAIT_NOTHING,
    SL_SIM_WAIT_HEAD,     /**< arg: sl_sim_direction_t */
    SL_SIM_WAIT_SLOT,     /**< arg: whether the receiver is behind */
    SL_SIM_WAIT_EXCHANGE, /**< arg: which */
    SL_SIM_WAIT_MAIL,     /**< arg: which */
    SL_SIM_WAIT_MEETING
} sl_sim_wait_t;

typedef struct sl_sim_cell {
    int number, replica, stage, device;
    int n_near, n_far; /**< other replicas of the stage, on other devices */
    int near, far;     /**< device of one of them */
    const sl_sim_work_t *work;
    sl_sim_path_t path; /**< until when the cell is done */
    size_t pc;
    sl_sim_phase_t phase;
    int cursor;     /**< in the phase */
    int is_working; /**< the device works on what came */
    sl_sim_wait_t waits;
    int waits_arg;
    sl_sim_path_t last_backward; /**< its start */
    sl_sim_edge_t edges[2];      /**< what comes in; sl_sim_direction_t */
    double compute_us, copy_us;
    sl_sim_path_t *parts;  /**< owned by the simulation; arrival, by bucket */
    sl_sim_path_t *values; /**< likewise; second exchange of each bucket */
} sl_sim_cell_t;

/** All to all among the replicas of a stage, for one bucket. */
typedef struct sl_sim_exchange {
    int n_posted;
    int has_first[2]; /**< within hosts, between: something is on its way */
    int n_awaited;    /**< first bytes that will be there */
    int is_open;      /**< all members' arrivals are known */
    sl_sim_path_t first[2]; /**< its first byte */
    sl_sim_path_t tail;     /**< the latest last byte that was sent */
} sl_sim_exchange_t;

/** A tie's gradient or values, of one replica. */
typedef struct sl_sim_mail {
    int from_device, is_there;
    sl_sim_flight_t flight;
} sl_sim_mail_t;

typedef struct sl_sim {
    const sl_sim_params_t *params;
    int n_cells, n_devices, max_buckets;
    double now_us;
    sl_sim_queue_t queue;
    sl_sim_device_t *devices;     /**< owned */
    sl_sim_host_t *hosts;         /**< owned */
    sl_sim_work_t *work;          /**< owned, n_stages */
    sl_sim_cell_t *cells;         /**< owned */
    sl_sim_path_t *arrivals;      /**< owned; parts and values of all cells */
    sl_sim_exchange_t *exchanges; /**< owned; [stage][bucket][2] */
    sl_sim_mail_t *mail;          /**< owned; [replica][tie][2] */
    int n_met;
    double meet_us;
    sl_sim_path_t met, end; /**< the last to come */
    int n_done;
    uint64_t n_events, n_messages;
    double near_bytes, far_bytes;
    sl_status_t status;      /**< the first failure */
    sl_trace_event_t *trace; /**< owned until the end */
    size_t n_trace;
} sl_sim_t;

/* ---- work.c ---- */

SL_NODISCARD sl_status_t sl_sim_check(const sl_sim_params_t *params);
SL_NODISCARD sl_status_t sl_sim_work_init(const sl_sim_params_t *params,
                                          int stage, sl_sim_work_t *work);
void sl_sim_work_cleanup(sl_sim_work_t *work);
/** Estimate of the peak of a device that has this stage alone. */
size_t sl_sim_memory(const sl_sim_params_t *params, int stage);
/** Memory traffic of the update of one byte of trained values. */
double sl_sim_update_traffic(const sl_sim_params_t *params);
/** Device of a cell, of `n_devices` in use. */
static inline int sl_sim_slot(int cell, int n_devices, int n_cells)
{
    return (int)((int64_t)cell * n_devices / n_cells);
}

/* ---- link.c ---- */

/** Put `n` messages of together `bytes` on the way at path's time; the
 *  arrival is due at flight->head. */
void sl_sim_send(sl_sim_t *sim, int from, int to, double bytes, int n,
                 const sl_sim_path_t *path, sl_sim_flight_t *flight);
/** At flight->head: take the receiver's link. flight->tail becomes the
 *  arrival of the last byte. `is_far`: it came from another host. */
void sl_sim_arrive(sl_sim_t *sim, int to, int is_far, double bytes, int n,
                   sl_sim_flight_t *flight);
/** Latency from device to device. */
double sl_sim_latency(const sl_sim_t *sim, int from, int to);
static inline int sl_sim_is_far(const sl_sim_t *sim, int from, int to)
{
    return sim->devices[from].host != sim->devices[to].host;
}

/* ---- cell.c ---- */

void sl_sim_push(sl_sim_t *sim, double at_us, sl_sim_event_kind_t kind,
                 int cell, int arg);
/** Let the cell's device work for it, from its time on. */
void sl_sim_occupy(sl_sim_t *sim, sl_sim_cell_t *cell, sl_sim_part_t part,
                   double us);
/** Time of moving bytes through the memory of the cell's device. */
double sl_sim_memory_us(const sl_sim_t *sim, const sl_sim_cell_t *cell,
                        double bytes);
/** The cell cannot go on. @return 0 */
int sl_sim_block(sl_sim_cell_t *cell, sl_sim_wait_t waits, int arg);
/** If the cell waits for that, it goes on at `at_us`. */
void sl_sim_wake(sl_sim_t *sim, sl_sim_cell_t *cell, sl_sim_wait_t waits,
                 int arg, double at_us);
/** The cell has nothing to do before that. @return whether that is later
 *  than what it has done */
int sl_sim_wait_for(sl_sim_cell_t *cell, const sl_sim_path_t *path);
/** Follow the program as far as it goes now. */
void sl_sim_advance(sl_sim_t *sim, sl_sim_cell_t *cell);
void sl_sim_head(sl_sim_t *sim, sl_sim_cell_t *cell, sl_sim_direction_t from);

/* ---- update.c ---- */

/** One step of the phases after the list. @return 0: the cell is blocked */
int sl_sim_update_step(sl_sim_t *sim, sl_sim_cell_t *cell);
/** The last backward starts: its buckets will be ready. */
void sl_sim_announce_buckets(sl_sim_t *sim, const sl_sim_cell_t *cell,
                             double backward_us);
void sl_sim_bucket(sl_sim_t *sim, const sl_sim_cell_t *cell, int bucket);
void sl_sim_exchange(sl_sim_t *sim, int exchange, int is_far);
void sl_sim_tie_head(sl_sim_t *sim, sl_sim_cell_t *cell, int mail);

#endif /* SL_ENGINE_SIMULATE_SIMULATE_INTERNAL_H */
