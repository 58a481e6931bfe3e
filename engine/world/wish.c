/* SPDX-License-Identifier: Apache-2.0 */
/* A wish of one rank that all hear of, and the time without a sign of life:
 * what may be said at any time, whatever the job does. */
#include "base/clock.h"
#include "engine/world/world_internal.h"

void sl_world_wish_set(sl_world_t *world, int (*is_wished)(void *ctx),
                       void *ctx)
{
    if (world == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&world->watch_lock);
    world->wish = is_wished;
    world->wish_ctx = ctx;
    (void)pthread_mutex_unlock(&world->watch_lock);
}

int sl_world_is_wished(const sl_world_t *world)
{
    return world != NULL && atomic_load(&world->is_wished);
}

void sl_wish_look(sl_world_t *world)
{
    const sl_notice_t wish = {.kind = SL_NOTICE_WISH};
    int is_wished = 0, peer;

    if (world->is_wish_told || world->leave != NULL) {
        return;
    }
    (void)pthread_mutex_lock(&world->watch_lock);
    if (world->wish != NULL) {
        is_wished = world->wish(world->wish_ctx);
    }
    (void)pthread_mutex_unlock(&world->watch_lock);
    if (!is_wished) {
        return;
    }
    world->is_wish_told = 1;
    atomic_store(&world->is_wished, 1);
    for (peer = 0; peer < world->size; peer++) {
        if (peer != world->rank) {
            sl_notice_send(world, peer, &wish);
        }
    }
}

void sl_wish_heard(sl_world_t *world)
{
    world->is_wish_told = 1; /* who began has told all */
    atomic_store(&world->is_wished, 1);
}

void sl_world_dead_after(sl_world_t *world, uint64_t dead_ns)
{
    if (world != NULL && dead_ns > 0) {
        (void)pthread_mutex_lock(&world->lock);
        world->dead_asked_ns = dead_ns;
        (void)pthread_mutex_unlock(&world->lock);
        sl_world_wake(world);
    }
}

/* Signs of life come at least four times in it. Those of the others come as
 * often as before for a moment: until they have been told the same. */
void sl_wish_take_dead(sl_world_t *world, uint64_t dead_ns)
{
    const uint64_t most_ns = dead_ns < 4 ? 1 : dead_ns / 4;
    const uint64_t now_ns = sl_clock_ns();
    int peer;

    world->params.dead_ns = dead_ns;
    if (world->params.heartbeat_ns > most_ns) {
        for (peer = 0; peer < world->size; peer++) {
            world->peers[peer].seen_ns =
                now_ns + 2 * world->params.heartbeat_ns;
        }
        world->params.heartbeat_ns = most_ns;
        world->beat_ns = now_ns;
    }
}
