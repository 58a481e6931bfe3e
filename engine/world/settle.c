/* SPDX-License-Identifier: Apache-2.0 */
/* What all ranks did together has ended on each of them: nobody waits to hear
 * of that but a failure. Counts go up a binomial tree, and down from rank 0
 * what all have reached. */
#include "engine/world/world_internal.h"

void sl_world_settle(sl_world_t *world)
{
    if (world == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&world->lock);
    world->n_settled += !world->is_failed;
    (void)pthread_mutex_unlock(&world->lock);
    sl_world_wake(world);
}

/* The k-th rank below this one, or 0: there are no more. */
static int below(const sl_world_t *world, int k)
{
    const int step = 1 << k;

    return step < world->size && world->rank % (2 * step) == 0 &&
                   world->rank + step < world->size
               ? world->rank + step
               : 0;
}

static int above(const sl_world_t *world)
{
    return world->rank & (world->rank - 1);
}

static void spread(sl_world_t *world, uint64_t n)
{
    const sl_notice_t all = {.kind = SL_NOTICE_ALL_SETTLED, .n = n};
    int k;

    world->n_all_settled = n;
    for (k = 0; below(world, k) > 0; k++) {
        sl_notice_send(world, below(world, k), &all);
    }
}

/* What this rank and all below it have reached. */
static void progress(sl_world_t *world)
{
    sl_notice_t mine = {.kind = SL_NOTICE_SETTLED, .n = world->n_settled_here};
    int k;

    for (k = 0; below(world, k) > 0; k++) {
        const uint64_t n = world->peers[below(world, k)].n_settled;

        mine.n = n < mine.n ? n : mine.n;
    }
    if (mine.n == world->n_settled_told) {
        return;
    }
    world->n_settled_told = mine.n;
    if (world->rank == 0) {
        spread(world, mine.n);
    } else {
        sl_notice_send(world, above(world), &mine);
    }
}

void sl_settle_here(sl_world_t *world, uint64_t n)
{
    if (n != world->n_settled_here) {
        world->n_settled_here = n;
        world->n_events++;
        progress(world);
    }
}

void sl_settle_heard(sl_world_t *world, int from, const sl_notice_t *control)
{
    if (control->kind == SL_NOTICE_ALL_SETTLED) {
        spread(world, control->n);
    } else {
        world->peers[from].n_settled = control->n;
        progress(world);
    }
}

void sl_settle_restart(sl_world_t *world)
{
    int peer;

    (void)pthread_mutex_lock(&world->lock);
    world->n_settled = 0;
    (void)pthread_mutex_unlock(&world->lock);
    world->n_settled_here = world->n_settled_told = world->n_all_settled = 0;
    for (peer = 0; peer < world->size; peer++) {
        world->peers[peer].n_settled = 0;
    }
}
