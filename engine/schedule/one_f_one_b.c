/* SPDX-License-Identifier: Apache-2.0 */
/* 1F1B with flush (Narayanan et al. 2021): as many warm-up forwards as there
 * are stages behind, then one forward and one backward in turn, then the
 * backwards that are left. */
#include "engine/schedule/schedule_internal.h"

void sl_schedule_order_1f1b(sl_schedule_builder_t *builder)
{
    const sl_schedule_params_t *params = builder->params;
    const int n = params->n_micro_batches;
    const int n_behind = params->n_stages - builder->stage - 1;
    const int n_warm_up = n_behind < n ? n_behind : n;
    int i;

    for (i = 0; i < n_warm_up; i++) {
        sl_schedule_add_forward(builder, i);
    }
    for (i = n_warm_up; i < n; i++) {
        sl_schedule_add_forward(builder, i);
        sl_schedule_add_backward(builder, i - n_warm_up);
    }
    for (i = n - n_warm_up; i < n; i++) {
        sl_schedule_add_backward(builder, i);
    }
}
