/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file fit_search.h
 * A search for cuts that fit: what is known, and what all ranks do together.
 */
#ifndef SL_ENGINE_FIT_SEARCH_H
#define SL_ENGINE_FIT_SEARCH_H

#include "engine/fit.h"
#include "engine/grid.h"
#include "engine/rehearse.h"

/* A device of any rank: a slot of the grid. */
typedef struct sl_fit_slot {
    size_t limit_bytes; /* that the next boundary brings */
    /* as the latest rehearsal has found it */
    size_t peak_bytes, held_bytes;
    int fits;
} sl_fit_slot_t;

/* A stage that was rehearsed and did not fit. */
typedef struct sl_fit_misfit {
    int begin, end, stage;
} sl_fit_misfit_t;

typedef struct sl_fit_search {
    sl_engine_params_t params; /* with `cuts` */
    sl_part_problem_t problem;
    int *cuts;                /* owned */
    sl_part_memory_t *memory; /* owned */
    size_t *limits;           /* owned, per stage */
    size_t *extra;            /* owned, per stage: added to estimates */
    double factor;            /* of estimates */
    sl_fit_misfit_t *misfits; /* owned */
    int n_misfits, misfits_room;
    sl_rehearsal_t *rehearsal; /* owned; of this rank, the latest */
    int n_slots;
    sl_fit_slot_t *slots; /* owned: of all ranks, the same on all */
    sl_fit_slot_t *rows;  /* owned: what the ranks say, n_slots each */
    sl_fit_t fit;
} sl_fit_search_t;

/* fit_ranks.c; all are collective */

/** The limits that the next boundary brings, as far as memory in use allows
 *  it. */
SL_NODISCARD sl_status_t sl_fit_read_limits(sl_fit_search_t *search);
/** The cuts that the policy makes of what is known, as rank 0 finds them: a
 *  rank may have measured other times.
 *  @param[out] found_p whether there are some */
SL_NODISCARD sl_status_t sl_fit_split(sl_fit_search_t *search, int *found_p);
/** Rehearse them: this rank's cells, then what all have found. */
SL_NODISCARD sl_status_t sl_fit_rehearse(sl_fit_search_t *search);

#endif /* SL_ENGINE_FIT_SEARCH_H */
