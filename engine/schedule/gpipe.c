/* SPDX-License-Identifier: Apache-2.0 */
/* GPipe (Huang et al. 2019, section 2): all forwards, then all backwards. */
#include "engine/schedule/schedule_internal.h"

void sl_schedule_order_gpipe(sl_schedule_builder_t *builder)
{
    const sl_schedule_params_t *params = builder->params;
    const int n = params->n_micro_batches;
    int i;

    for (i = 0; i < n; i++) {
        sl_schedule_add_forward(builder, i);
    }
    for (i = 0; i < n; i++) {
        sl_schedule_add_backward(
            builder, params->order == SL_BACKWARD_FIFO ? i : n - 1 - i);
    }
}
