/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file schedule.h
 * The order of work of each stage, as a list of instructions that a person
 * can read: "F0 F1 R0 B0 R1 B1 U".
 *
 * A generator gives the compute order; transfers are placed around it. A
 * recomputation comes before its gradient is waited for (early
 * recomputation), so that it fills time in which the stage would be idle.
 */
#ifndef SL_ENGINE_SCHEDULE_SCHEDULE_H
#define SL_ENGINE_SCHEDULE_SCHEDULE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

SL_BEGIN_DECLS

typedef enum sl_schedule_kind {
    SL_SCHEDULE_GPIPE, /**< all forwards, then all backwards (GPipe, sec. 2) */
    SL_SCHEDULE_1F1B   /**< one forward, one backward, with flush
                            (PipeDream-2BW, Narayanan et al. 2021) */
} sl_schedule_kind_t;
#define SL_SCHEDULE_CHOICES "gpipe|1f1b"

typedef enum sl_backward_order {
    SL_BACKWARD_FIFO, /**< micro-batch 0 first: 1f1b's order, the default */
    SL_BACKWARD_LIFO  /**< last micro-batch first, gpipe only (lingvo) */
} sl_backward_order_t;
#define SL_BACKWARD_CHOICES "fifo|lifo"

typedef enum sl_recompute {
    SL_RECOMPUTE_NONE,
    SL_RECOMPUTE_FULL,        /**< every micro-batch */
    SL_RECOMPUTE_EXCEPT_LAST, /**< all but micro-batch M-1 (torchgpipe) */
    SL_RECOMPUTE_AUTO         /**< every micro-batch, but only the layers that
                                   the memory plan chose */
} sl_recompute_t;
#define SL_RECOMPUTE_CHOICES "none|full|except-last|auto"

typedef enum sl_instruction_kind {
    SL_INSTRUCTION_FORWARD,       /**< F: keeps what backward needs, unless the
                                       micro-batch is recomputed */
    SL_INSTRUCTION_RECOMPUTE,     /**< R */
    SL_INSTRUCTION_BACKWARD,      /**< B */
    SL_INSTRUCTION_RECV_FORWARD,  /**< rf: wait for the inputs from earlier
                                       stages */
    SL_INSTRUCTION_SEND_FORWARD,  /**< sf */
    SL_INSTRUCTION_RECV_BACKWARD, /**< rb: wait for the gradients */
    SL_INSTRUCTION_SEND_BACKWARD, /**< sb */
    SL_INSTRUCTION_UPDATE         /**< U: once, last */
} sl_instruction_kind_t;

typedef struct sl_instruction {
    sl_instruction_kind_t kind;
    int micro_batch; /**< -1 for UPDATE */
} sl_instruction_t;

typedef struct sl_instruction_list {
    size_t n;
    sl_instruction_t *items; /**< owned */
} sl_instruction_list_t;

typedef struct sl_schedule_params {
    sl_schedule_kind_t kind;
    sl_backward_order_t order;
    sl_recompute_t recompute;
    int n_stages;
    int n_micro_batches;
} sl_schedule_params_t;

/** Instructions of one stage, transfers included: rf before F (not on stage
 *  0), sf after F (not on the last), rb before B (not on the last), sb after
 *  B (not on stage 0); R before rb.
 *  @return SL_OK, SL_ERR_CONFIG, SL_ERR_NO_MEMORY */
SL_API SL_NODISCARD sl_status_t
sl_schedule_generate(const sl_schedule_params_t *params, int stage,
                     sl_instruction_list_t *list_p);
SL_API void sl_schedule_cleanup(sl_instruction_list_t *list);

/** Whether a micro-batch is recomputed under `params`. */
SL_API int sl_schedule_is_recomputed(const sl_schedule_params_t *params,
                                     int micro_batch);

/** "F", "R", "B", "rf", "sf", "rb", "sb" or "U". */
SL_API const char *sl_instruction_kind_name(sl_instruction_kind_t kind);

/** Text form "F0 sf0 F1 sf1 rb0 B0 ... U"; returns snprintf's length. */
SL_API int sl_schedule_format(const sl_instruction_list_t *list, char *text,
                              size_t text_bytes);

/** What sl_schedule_simulate assumes. All stages are equal. */
typedef struct sl_schedule_times {
    double forward_us;  /**< of F and of R */
    double backward_us; /**< of B */
    int n_slots;        /**< tensors an edge holds, each direction, that were
                             sent and not yet received. A send waits for a
                             free slot; 0 = rendezvous: it waits for the
                             receive itself. */
} sl_schedule_times_t;

/**
 * Check all stages' lists and run them in simulated time; transfers take
 * none.
 *
 * Checked per stage: each micro-batch is received, computed, sent once, in
 * this order; forwards in rising order, backwards in the order asked, so that
 * gradients are summed alike on all stages; a recomputation where asked,
 * between forward and backward; no more micro-batches in flight than the
 * schedule promises; the update once, last. Checked per edge: receives take
 * what was sent, in order, and nobody waits for ever.
 *
 * More slots never bring a deadlock, so a pass with n slots holds for all
 * larger numbers. The engine's sends never wait.
 *
 * @param[in]  lists      n_stages of them
 * @param[out] makespan_p time until all stages are done; may be NULL
 * @return SL_OK; SL_ERR_CORRUPT with stage and instruction; SL_ERR_CONFIG;
 *         SL_ERR_NO_MEMORY
 */
SL_API SL_NODISCARD sl_status_t sl_schedule_simulate(
    const sl_schedule_params_t *params, const sl_instruction_list_t *lists,
    const sl_schedule_times_t *times, double *makespan_p);

/**
 * sl_schedule_simulate with the fewest slots the schedule needs: none
 * for gpipe; one for 1f1b, where neighbours in steady state send to each
 * other at the same time (one receive posted ahead, on each side).
 */
SL_API SL_NODISCARD sl_status_t sl_schedule_verify(
    const sl_schedule_params_t *params, const sl_instruction_list_t *lists,
    double forward_us, double backward_us, double *makespan_p);

SL_END_DECLS
#endif /* SL_ENGINE_SCHEDULE_SCHEDULE_H */
