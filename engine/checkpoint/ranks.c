/* SPDX-License-Identifier: Apache-2.0 */
/* What all ranks must decide alike. */
#include <stdio.h>

#include "engine/checkpoint/checkpoint_internal.h"
#include "engine/parallel/together.h"

sl_status_t sl_ranks_result(const sl_checkpoint_run_t *run, sl_status_t status)
{
    return status < 0 ? sl_engine_together(run->engine, status) : status;
}

int sl_ranks_is_over(sl_status_t status)
{
    return status == SL_ERR_COMM || status == SL_ERR_CANCELED;
}

sl_status_t sl_ranks_agree(const sl_checkpoint_run_t *run, sl_status_t own,
                           const char *what)
{
    char detail[SL_CHECKPOINT_REASON_BYTES];
    double n_failed = own < 0;
    sl_status_t status;

    if (sl_world_size(run->world) == 1) {
        return own;
    }
    (void)snprintf(detail, sizeof(detail), "%s", sl_last_error());
    SL_TRY(status, sl_ranks_result(run, sl_world_sum(run->world, &n_failed, 1)),
           out);
    if (own < 0) {
        sl_last_error_set(detail);
        return own;
    }
    if (n_failed > 0.0) {
        SL_REFUSE(status, SL_ERR_IO, out, "%s: it failed on %.0f other %s",
                  what, n_failed, n_failed > 1.0 ? "ranks" : "rank");
    }
out:
    return status;
}
