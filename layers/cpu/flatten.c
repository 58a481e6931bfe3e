/* SPDX-License-Identifier: Apache-2.0 */
/* flatten: a copy, or a change of layout for blocked images. */
#include <string.h>

#include "layers/attrs_internal.h"
#include "layers/cpu/channels.h"

/* The plain side as an image like the input. */
static sl_channels_t plain_of(const sl_tensor_desc_t *in)
{
    sl_tensor_desc_t desc = *in;

    desc.layout = SL_LAYOUT_PLAIN;
    return sl_channels_of(&desc);
}

static sl_status_t forward(const sl_layer_run_t *run, void *stream)
{
    const sl_tensor_desc_t *in = &run->plan->in[0];
    const sl_channels_t from = sl_channels_of(in);
    const sl_channels_t to = plain_of(in);
    const sl_cpu_range_t batch = {0, from.batch};

    (void)stream;
    if (run->out == run->in[0]) {
        return SL_OK;
    }
    if (in->dtype == SL_DTYPE_I32) {
        memcpy(run->out, run->in[0], sl_tensor_bytes(in));
    } else {
        sl_channels_copy(from, run->in[0], 0, to, run->out, NULL, 0,
                         from.channels, batch);
    }
    return SL_OK;
}

static sl_status_t backward(const sl_layer_run_t *run, void *stream)
{
    const sl_tensor_desc_t *in = &run->plan->in[0];
    const sl_channels_t from = plain_of(in);
    const sl_channels_t to = sl_channels_of(in);
    const sl_cpu_range_t batch = {0, from.batch};

    (void)stream;
    if (run->din[0] != NULL) {
        sl_channels_copy(from, run->dout, 0, to, run->din[0], run->din_prev[0],
                         0, from.channels, batch);
        sl_channels_clear_padding(to, run->din[0], batch);
    }
    return SL_OK;
}

const sl_layer_kernels_t sl_cpu_flatten = {
    .size = sizeof(sl_layer_kernels_t),
    .plan = sl_flatten_plan,
    .forward = forward,
    .backward = backward,
};
