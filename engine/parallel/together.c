/* SPDX-License-Identifier: Apache-2.0 */
/* Failing together, and state on its way. */
#include "engine/parallel/together.h"

#include <stdio.h>

#include "engine/parallel/edges.h"
#include "engine/parallel/parallel.h"
#include "engine/world.h"

enum {
    /* the reason comes with the cancel, on another thread */
    REASON_MS = 5000
};

static void on_abort(void *abort, sl_status_t status, const char *detail)
{
    sl_abort_raise_remote(abort, status, detail);
}

void sl_together_watch(sl_world_t *world, sl_abort_t *abort)
{
    if (world != NULL) {
        sl_world_watch(world, abort == NULL ? NULL : on_abort, abort);
    }
}

sl_status_t sl_together_sum(sl_world_t *world, sl_abort_t *abort,
                            double *values, size_t n)
{
    sl_status_t status = sl_world_sum(world, values, n);

    if (status == SL_ERR_CANCELED && !sl_abort_await(abort, REASON_MS)) {
        SL_FAIL(status, SL_ERR_COMM, out,
                "another rank has ended the job and gives no reason");
    }
out:
    return status;
}

void sl_together_settle(sl_world_t *world)
{
    double none = 0.0;

    (void)!sl_world_sum(world, &none, 1);
}

/* The error to report of what has failed: another rank's, when this one was
 * only stopped by it. */
static sl_status_t reason(sl_abort_t *abort, sl_status_t status)
{
    if (status == SL_ERR_CANCELED && sl_abort_await(abort, REASON_MS)) {
        return sl_abort_status(abort);
    }
    return status;
}

/* Fail with the others, without what follows. */
static sl_status_t end_or_fail(sl_world_t *world, sl_abort_t *abort,
                               sl_status_t status)
{
    double none = 0.0;

    if (status >= 0) {
        status = sl_together_sum(world, abort, &none, 1);
    }
    if (status >= 0) {
        sl_together_settle(world);
    } else {
        status = reason(abort, status);
        sl_world_abort(world, status, sl_last_error());
    }
    return status;
}

sl_status_t sl_together_end(sl_world_t *world, sl_abort_t *abort,
                            sl_status_t status)
{
    char detail[SL_ERROR_DETAIL_BYTES];

    if (world == NULL) {
        return status;
    }
    status = end_or_fail(world, abort, status);
    if (status < 0) {
        (void)snprintf(detail, sizeof(detail), "%s", sl_last_error());
        (void)!sl_world_recover(world);
        sl_last_error_set(detail);
    }
    return status;
}

sl_status_t sl_engine_together(sl_engine_t *engine, sl_status_t status)
{
    sl_world_t *world = engine->params.world;
    char detail[SL_ERROR_DETAIL_BYTES];

    if (world == NULL || engine->is_alone) {
        return status;
    }
    status = end_or_fail(world, &engine->abort, status);
    if (status < 0) {
        (void)snprintf(detail, sizeof(detail), "%s", sl_last_error());
        sl_engine_recover_world(engine);
        sl_abort_reset(&engine->abort);
        sl_together_watch(world, &engine->abort);
        sl_last_error_set(detail);
    }
    return status;
}

void sl_engine_recover_world(sl_engine_t *engine)
{
    sl_world_t *world = engine->params.world;
    int c;

    if (world == NULL || engine->is_alone) {
        return;
    }
    sl_transport_pause(engine);
    if (sl_transport_recover(engine, sl_world_recover(world)) < 0) {
        engine->is_alone = 1;
        engine->is_failed = 1;
        return;
    }
    engine->is_overtaken = sl_agreement_was_missed(engine);
    engine->is_agreeing = 0;
    for (c = 0; c < engine->n_channels; c++) {
        sl_channel_recover(&engine->channels[c]);
    }
    /* nobody sends before all count from 0 */
    sl_together_settle(world);
}

/* ---- state ---- */

sl_status_t sl_engine_move(const sl_engine_t *engine, int from, int to,
                           void *data, size_t bytes)
{
    const int own = engine->grid->rank;

    if (from == to || (own != from && own != to)) {
        return SL_OK;
    }
    return own == from ? sl_world_put(engine->params.world, to, data, bytes)
                       : sl_world_get(engine->params.world, from, data, bytes);
}

sl_status_t sl_engine_broadcast(const sl_engine_t *engine, int root, void *data,
                                size_t bytes)
{
    return engine->params.world == NULL
               ? SL_OK
               : sl_world_broadcast(engine->params.world, root, data, bytes);
}
