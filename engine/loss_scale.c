/* SPDX-License-Identifier: Apache-2.0 */
/* Dynamic loss scaling. The factor is a power of two, so multiplying by it and
 * dividing it out again changes no bit of what neither overflows nor
 * underflows. It changes at the end of a step, alike on all ranks. */
#include <math.h>

#include "base/log.h"
#include "engine/engine_internal.h"

/* Below 1 it is not the scale that makes gradients too large for f16; far above
 * its largest value, 2^16, hardly any step would be a good one. */
static const double MIN_FACTOR = 1.0;
static const double MAX_FACTOR = 16777216.0;
static const double FIRST_FACTOR = 65536.0;

static int is_scaled(const sl_engine_t *engine)
{
    return engine->params.model->dtype == SL_DTYPE_F16;
}

int sl_loss_scale_is_valid(const sl_loss_scale_t *scale)
{
    int exponent = 0;

    return scale->factor >= MIN_FACTOR && scale->factor <= MAX_FACTOR &&
           frexp(scale->factor, &exponent) == 0.5;
}

void sl_loss_scale_init(sl_engine_t *engine)
{
    engine->scale.factor = is_scaled(engine) ? FIRST_FACTOR : 1.0;
    engine->scale.n_good_steps = 0;
    engine->gradient_scale = 1.0;
}

int sl_loss_scale_is_too_large(const sl_engine_t *engine, double loss,
                               double norm)
{
    return is_scaled(engine) && isfinite(loss) && !isfinite(norm) &&
           engine->scale.factor > MIN_FACTOR;
}

void sl_loss_scale_step(sl_engine_t *engine)
{
    sl_loss_scale_t *scale = &engine->scale;

    engine->gradient_scale = scale->factor;
    if (!is_scaled(engine)) {
        return;
    }
    if (engine->is_overflow) {
        scale->factor *= 0.5;
        scale->n_good_steps = 0;
        if (engine->grid->rank == 0) {
            sl_info("step %u: a gradient is too large for f16: skipped, loss "
                    "scale %g",
                    engine->n_steps, scale->factor);
        }
    } else if (!engine->is_skipped &&
               ++scale->n_good_steps >= engine->params.loss_scale_steps) {
        scale->factor *= scale->factor < MAX_FACTOR ? 2.0 : 1.0;
        scale->n_good_steps = 0;
    }
}

int sl_engine_loss_scale(const sl_engine_t *engine, sl_loss_scale_t *scale_p)
{
    *scale_p = engine->scale;
    return is_scaled(engine);
}

sl_status_t sl_engine_set_loss_scale(sl_engine_t *engine,
                                     const sl_loss_scale_t *scale)
{
    sl_status_t status = SL_OK;

    if (!sl_loss_scale_is_valid(scale)) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "engine: a loss scale of %g; it must be a power of two from "
                "%g to %g",
                scale->factor, MIN_FACTOR, MAX_FACTOR);
    }
    if (is_scaled(engine)) {
        engine->scale = *scale;
    }
out:
    return status;
}
