/* SPDX-License-Identifier: Apache-2.0 */
/* concat: each input is a run of the output's channels. */
#include "layers/cpu/channels.h"

static sl_status_t plan(sl_layer_plan_t *plan_p)
{
    plan_p->accumulates = (1 << plan_p->layer->n_inputs) - 1;
    return SL_OK;
}

static sl_status_t forward(const sl_layer_run_t *run, void *stream)
{
    const sl_layer_plan_t *p = run->plan;
    const sl_channels_t to = sl_channels_of(&p->out);
    const int threads = sl_cpu_threads(run, to.batch * to.padded * to.pixels);
    int t;

    (void)stream;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (t = 0; t < threads; t++) {
        const sl_cpu_range_t batch = sl_cpu_split(to.batch, threads, t, 1);
        int64_t c = 0;
        int i;

        for (i = 0; i < p->layer->n_inputs; i++) {
            const sl_channels_t from = sl_channels_of(&p->in[i]);

            sl_channels_copy(from, run->in[i], 0, to, run->out, NULL, c,
                             from.channels, batch);
            c += from.channels;
        }
        sl_channels_clear_padding(to, run->out, batch);
    }
    return SL_OK;
}

static sl_status_t backward(const sl_layer_run_t *run, void *stream)
{
    const sl_layer_plan_t *p = run->plan;
    const sl_channels_t from = sl_channels_of(&p->out);
    const int threads =
        sl_cpu_threads(run, from.batch * from.padded * from.pixels);
    int t;

    (void)stream;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (t = 0; t < threads; t++) {
        const sl_cpu_range_t batch = sl_cpu_split(from.batch, threads, t, 1);
        int64_t c = 0;
        int i;

        for (i = 0; i < p->layer->n_inputs; i++) {
            const sl_channels_t to = sl_channels_of(&p->in[i]);

            if (run->din[i] != NULL) {
                sl_channels_copy(from, run->dout, c, to, run->din[i],
                                 run->din_prev[i], 0, to.channels, batch);
                sl_channels_clear_padding(to, run->din[i], batch);
            }
            c += to.channels;
        }
    }
    return SL_OK;
}

const sl_layer_kernels_t sl_cpu_concat = {
    .size = sizeof(sl_layer_kernels_t),
    .plan = plan,
    .forward = forward,
    .backward = backward,
};
