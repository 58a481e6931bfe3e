/* SPDX-License-Identifier: Apache-2.0 */
/* What all ranks do together, of messages between two on binomial trees. */
#include <stdlib.h>
#include <string.h>

#include "engine/world/world_internal.h"

static sl_status_t check_peer(const sl_world_t *world, int peer)
{
    sl_status_t status = SL_OK;

    if (peer < 0 || peer >= world->size || peer == world->rank) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "rank %d of %d exchanges with rank %d", world->rank,
                world->size, peer);
    }
out:
    return status;
}

static sl_status_t exchange(sl_world_t *world, sl_request_t *request)
{
    sl_status_t status = check_peer(world, request->peer);

    if (status == SL_OK) {
        sl_world_request(world, request);
        status = request->status;
    }
    return status;
}

sl_status_t sl_world_put(sl_world_t *world, int peer, const void *data,
                         size_t bytes)
{
    sl_request_t request = {
        .kind = SL_REQUEST_PUT, .peer = peer, .source = data, .bytes = bytes};

    return world == NULL ? SL_OK : exchange(world, &request);
}

sl_status_t sl_world_get(sl_world_t *world, int peer, void *data, size_t bytes)
{
    sl_request_t request = {
        .kind = SL_REQUEST_GET, .peer = peer, .target = data, .bytes = bytes};

    return world == NULL ? SL_OK : exchange(world, &request);
}

static void count_one(sl_world_t *world)
{
    if (world != NULL) {
        world->n_waits++;
    }
}

uint64_t sl_world_n_waits(const sl_world_t *world)
{
    return world == NULL ? 0 : world->n_waits;
}

/* A failure on one rank alone would leave the others waiting. */
static sl_status_t fail_all(sl_world_t *world, sl_status_t status)
{
    if (status < 0 && status != SL_ERR_CANCELED) {
        sl_world_abort(world, status, sl_last_error());
    }
    return status;
}

/* Blocks of ranks r, r+1, ... collect on rank 0. */
static sl_status_t collect(sl_world_t *world, size_t bytes, char *all)
{
    const int size = world->size, rank = world->rank;
    sl_status_t status = SL_OK;
    int step;

    for (step = 1; step < size && status == SL_OK; step *= 2) {
        if ((rank & step) != 0) {
            const int n = step < size - rank ? step : size - rank;

            return sl_world_put(world, rank - step, all + (size_t)rank * bytes,
                                (size_t)n * bytes);
        }
        if (rank + step < size) {
            const int left = size - rank - step;
            const int n = step < left ? step : left;

            status = sl_world_get(world, rank + step,
                                  all + (size_t)(rank + step) * bytes,
                                  (size_t)n * bytes);
        }
    }
    return status;
}

/* A rank gets from the one without its lowest bit, then gives to those with a
 * lower bit more; `rank` 0 is the root. */
static sl_status_t spread(sl_world_t *world, int root, void *data, size_t bytes)
{
    const int size = world->size;
    const int rank = (world->rank - root + size) % size;
    sl_status_t status = SL_OK;
    int step = 1;

    while (step < size && (rank & step) == 0) {
        step *= 2;
    }
    if (rank != 0) {
        status = sl_world_get(world, (rank - step + root) % size, data, bytes);
    }
    for (step /= 2; step > 0 && status == SL_OK; step /= 2) {
        if (rank + step < size) {
            status =
                sl_world_put(world, (rank + step + root) % size, data, bytes);
        }
    }
    return status;
}

sl_status_t sl_world_gather(sl_world_t *world, const void *mine, size_t bytes,
                            void *all)
{
    const size_t size = (size_t)sl_world_size(world);
    sl_status_t status = SL_OK;

    count_one(world);
    if (bytes > 0) {
        memmove((char *)all + (size_t)sl_world_rank(world) * bytes, mine,
                bytes);
    }
    if (size > 1) {
        SL_TRY(status, collect(world, bytes, all), out);
        SL_TRY(status, spread(world, 0, all, size * bytes), out);
    }
out:
    return fail_all(world, status);
}

sl_status_t sl_world_broadcast(sl_world_t *world, int root, void *data,
                               size_t bytes)
{
    sl_status_t status = SL_OK;

    count_one(world);
    if (root < 0 || root >= sl_world_size(world)) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out, "broadcast from rank %d of %d",
                root, sl_world_size(world));
    }
    if (sl_world_size(world) > 1) {
        SL_TRY(status, spread(world, root, data, bytes), out);
    }
out:
    return fail_all(world, status);
}

static void add_in_rank_order(double *values, size_t n, const double *all,
                              int size)
{
    size_t i;
    int rank;

    for (i = 0; i < n; i++) {
        double sum = all[i];

        for (rank = 1; rank < size; rank++) {
            sum += all[(size_t)rank * n + i];
        }
        values[i] = sum;
    }
}

static void keep_sum(sl_world_t *world, double *values, size_t n)
{
    free(world->last_sum);
    world->last_sum = values;
    world->n_last_sum = n;
}

static double *room_for(size_t n)
{
    return malloc((n > 0 ? n : 1) * sizeof(double));
}

sl_status_t sl_world_sum(sl_world_t *world, double *values, size_t n)
{
    const int size = sl_world_size(world);
    double *all = NULL, *sum = NULL;
    sl_status_t status = SL_OK;

    if (size == 1) {
        return SL_OK;
    }
    count_one(world);
    world->is_late_sum = 0;
    all = room_for((size_t)size * n);
    sum = room_for(n);
    if (all == NULL || sum == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "sum over %d ranks: no host memory for %zu values", size, n);
    }
    if (n > 0) {
        memcpy(all + (size_t)world->rank * n, values, n * sizeof(*all));
    }
    SL_TRY(status, collect(world, n * sizeof(*all), (char *)all), out);
    if (world->rank == 0) {
        /* from here on it has taken place, whatever fails */
        add_in_rank_order(sum, n, all, size);
        (void)spread(world, 0, sum, n * sizeof(*sum));
    } else {
        SL_TRY(status, spread(world, 0, sum, n * sizeof(*sum)), out);
    }
    if (n > 0) {
        memcpy(values, sum, n * sizeof(*values));
    }
    world->n_sums++;
    keep_sum(world, sum, n);
    sum = NULL;
out:
    free(sum);
    free(all);
    return fail_all(world, status);
}

sl_status_t sl_world_share_sum(sl_world_t *world)
{
    uint64_t head[2] = {world->n_sums, world->n_last_sum};
    double *values = NULL;
    sl_status_t status;

    SL_TRY(status, sl_world_broadcast(world, 0, head, sizeof(head)), out);
    values = room_for(head[1]);
    if (values == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "no host memory for %llu values",
                (unsigned long long)head[1]);
    }
    if (world->rank == 0 && head[1] > 0) {
        memcpy(values, world->last_sum, head[1] * sizeof(*values));
    }
    SL_TRY(status,
           sl_world_broadcast(world, 0, values, head[1] * sizeof(*values)),
           out);
    if (world->n_sums != head[0]) {
        world->n_sums = head[0];
        world->is_late_sum = 1;
        keep_sum(world, values, head[1]);
        values = NULL;
    }
out:
    free(values);
    return fail_all(world, status);
}

int sl_world_late_sum(sl_world_t *world, double *values, size_t n)
{
    if (world == NULL || !world->is_late_sum || world->n_last_sum != n) {
        return 0;
    }
    if (n > 0) {
        memcpy(values, world->last_sum, n * sizeof(*values));
    }
    return 1;
}
