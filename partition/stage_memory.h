/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file stage_memory.h
 * An estimate of the memory that a stage needs, for any run of layers: what
 * the memory constraint of the policies is made from.
 *
 * It walks one micro-batch through the layers with the sizes of their plans,
 * as the engine does, and adds what the schedule has in flight. It does not
 * know of fragmentation; the engine's rehearsal does.
 */
#ifndef SL_PARTITION_STAGE_MEMORY_H
#define SL_PARTITION_STAGE_MEMORY_H

#include <stddef.h>

#include "base/status.h"
#include "layers/layers.h"

SL_BEGIN_DECLS

typedef struct sl_part_memory sl_part_memory_t; /* opaque */

/** What is recomputed of a micro-batch. */
typedef enum sl_part_recompute {
    SL_PART_RECOMPUTE_NONE,
    SL_PART_RECOMPUTE_FULL,
    SL_PART_RECOMPUTE_EXCEPT_LAST /**< all micro-batches but the last */
} sl_part_recompute_t;

typedef struct sl_part_memory_params {
    const sl_model_t *model; /**< borrowed; must outlive the estimate */
    int64_t rows;            /**< of the largest micro-batch */
    int n_threads;           /**< kernel threads of a device */
    int n_moments;           /**< of the optimizer, 0 to 2 */
    int n_stages;
    int n_micro_batches;
    const int *in_flight; /**< per stage: most micro-batches at once between
                               forward and backward; copied */
    int is_interleaved;   /**< forwards go on when backwards have begun */
    sl_part_recompute_t recompute;
} sl_part_memory_params_t;

/**
 * Plans are made once per distinct layer.
 *
 * @param[out] memory_p  the caller destroys it
 * @return SL_OK, SL_ERR_INVALID_ARG, SL_ERR_NO_MEMORY, SL_ERR_CONFIG (shape)
 */
SL_API SL_NODISCARD sl_status_t sl_part_memory_create(
    const sl_part_memory_params_t *params, sl_part_memory_t **memory_p);
/** NULL is allowed. */
SL_API void sl_part_memory_destroy(sl_part_memory_t *memory);

/** Peak bytes in blocks of a stage with the layers [begin, end): the
 *  `stage_need` of a sl_part_problem_t, whose ctx is the sl_part_memory_t.
 *  Results are kept, so that the next question about the same layers is
 *  cheap; not for several threads at once. */
SL_API size_t sl_part_memory_need(void *memory, int begin, int end, int stage);

SL_END_DECLS
#endif /* SL_PARTITION_STAGE_MEMORY_H */
