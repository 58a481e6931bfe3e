/* SPDX-License-Identifier: Apache-2.0 */
/* Whose pulse a guest follows: of each guarantee job, the devices that share
 * hardware with its own. CPU devices do when they are bound to a core in
 * common, or when it is not known where one of them runs; others when they
 * are on the same GPU. */
#include <string.h>

#include "scheduler/coordinator/coordinator_internal.h"

static int is_shared(const sl_coord_device_t *a, const sl_coord_device_t *b)
{
    if (sl_coord_is_cpu(a) != sl_coord_is_cpu(b)) {
        return 0;
    }
    return sl_coord_is_cpu(a)
               ? sl_control_cores_overlap(a->core_list, b->core_list)
               : sl_coord_is_same(a, b);
}

/* @return how many the device yields to, `n` before */
static int yield_to_job(const sl_coord_device_t *device, int d,
                        const sl_coord_job_t *host, int h, int n,
                        sl_coord_decision_t *decision)
{
    int e;

    for (e = 0; e < host->n_devices && n < SL_CONTROL_DEVICE_YIELDS &&
                decision->n_yields < SL_CONTROL_MAX_YIELDS;
         e++) {
        if (is_shared(device, &host->devices[e])) {
            const sl_coord_yield_to_t yield = {d, h, e};

            decision->yields[decision->n_yields++] = yield;
            n++;
        }
    }
    return n;
}

void sl_coord_set_yields(const sl_coord_snapshot_t *seen,
                         sl_coord_decisions_t *decisions)
{
    int i, d, h, n;

    for (i = 0; i < seen->n_jobs; i++) {
        const sl_coord_job_t *job = &seen->jobs[i];

        for (d = 0; d < job->n_devices && decisions->jobs[i].is_background;
             d++) {
            n = 0;
            for (h = 0; h < seen->n_jobs; h++) {
                if (seen->jobs[h].job_class == SL_JOB_CLASS_GUARANTEE &&
                    seen->jobs[h].has_pulse &&
                    sl_coord_is_active(seen, decisions, h)) {
                    n = yield_to_job(&job->devices[d], d, &seen->jobs[h], h, n,
                                     &decisions->jobs[i]);
                }
            }
        }
    }
}
