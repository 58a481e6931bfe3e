/* SPDX-License-Identifier: Apache-2.0 */
/* Which devices have one memory, and how much it is. A job may have several
 * devices on a GPU, and two jobs may call different GPUs by one name. */
#include "scheduler/coordinator/coordinator_internal.h"
#include "scheduler/device_internal.h"

uint64_t sl_coord_plus(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

/* The devices of two pools turn out to have one memory. */
static void merge(sl_coord_pools_t *pools, const sl_coord_snapshot_t *seen,
                  int last, int from, int to)
{
    int i, d;

    for (i = 0; i <= last; i++) {
        for (d = 0; d < seen->jobs[i].n_devices; d++) {
            if (pools->of[i][d] == from) {
                pools->of[i][d] = to;
            }
        }
    }
}

/* Put the d-th device of job i to those before it that it is one with. When
 * its GPU is not known, it may be one with devices on several. */
static void place(sl_coord_pools_t *pools, const sl_coord_snapshot_t *seen,
                  int i, int d)
{
    const sl_coord_device_t *device = &seen->jobs[i].devices[d];
    int j, e, pool = -1;

    pools->of[i][d] = -1;
    for (j = 0; j <= i; j++) {
        const int n = j < i ? seen->jobs[j].n_devices : d;

        for (e = 0; e < n; e++) {
            if (pools->of[j][e] == pool ||
                !sl_coord_is_same(device, &seen->jobs[j].devices[e])) {
                continue;
            }
            if (pool < 0) {
                pool = pools->of[j][e];
            } else {
                merge(pools, seen, i, pools->of[j][e], pool);
            }
        }
    }
    pools->of[i][d] = pool < 0 ? pools->n++ : pool;
}

void sl_coord_find_pools(sl_coord_pools_t *pools,
                         const sl_coord_snapshot_t *seen)
{
    int i, d;

    pools->n = 0;
    for (i = 0; i < seen->n_jobs; i++) {
        for (d = 0; d < SL_CONTROL_MAX_DEVICES; d++) {
            pools->of[i][d] = -1;
        }
    }
    for (i = 0; i < seen->n_jobs; i++) {
        for (d = 0; d < seen->jobs[i].n_devices; d++) {
            place(pools, seen, i, d);
        }
    }
}

/* What a job's files say of a pool. @return how many devices it has there */
static int look_at_job(const sl_coord_pools_t *pools,
                       const sl_coord_snapshot_t *seen, int i, int pool,
                       uint64_t *capacity_p, uint64_t *gpu_bytes_p)
{
    int d, n = 0;

    *capacity_p = 0;
    for (d = 0; d < seen->jobs[i].n_devices; d++) {
        const sl_coord_device_t *device = &seen->jobs[i].devices[d];

        if (pools->of[i][d] == pool) {
            n++;
            *capacity_p = sl_coord_plus(*capacity_p, device->capacity_bytes);
            if (device->gpu_bytes > *gpu_bytes_p) {
                *gpu_bytes_p = device->gpu_bytes;
            }
        }
    }
    return n;
}

uint64_t sl_coord_capacity(const sl_coord_t *coord,
                           const sl_coord_snapshot_t *seen, int pool,
                           int is_alone)
{
    uint64_t capacity = 0, most = 0, gpu_bytes = 0;
    int i, n_jobs = 0;

    if (coord->params.capacity_bytes > 0) {
        return coord->params.capacity_bytes;
    }
    for (i = 0; i < seen->n_jobs; i++) {
        n_jobs += look_at_job(&coord->pools, seen, i, pool, &capacity,
                              &gpu_bytes) > 0;
        most = capacity > most ? capacity : most;
    }
    if (gpu_bytes == 0 || n_jobs == 0) {
        return most;
    }
    n_jobs = is_alone ? 1 : n_jobs;
    return gpu_bytes - (uint64_t)n_jobs *
                           sl_device_gpu_reserve(gpu_bytes / (uint64_t)n_jobs);
}
