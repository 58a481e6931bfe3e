/* SPDX-License-Identifier: Apache-2.0 */
/* fair: neighbours have equal shares, whatever their class, and what one
 * does not use goes to those that use all of theirs (max-min). */
#include "scheduler/coordinator/coordinator_internal.h"

static const double USES_ALL = 0.9; /* of its share */
static const double SLACK = 1.25;   /* over what a job uses, so that it can
                                       show that it could use more */

/* The most that a job could use; 100 when it uses all it has. */
static double demand(const sl_coord_job_t *job)
{
    double most = 0.0;
    int d;

    for (d = 0; d < job->n_devices; d++) {
        const sl_coord_device_t *device = &job->devices[d];

        if (device->achieved_percent < 0.0 ||
            device->achieved_percent >= USES_ALL * device->share_percent) {
            return 100.0;
        }
        if (device->achieved_percent > most) {
            most = device->achieved_percent;
        }
    }
    return most * SLACK;
}

/* Max-min: whoever wants less than an equal part of what is left has what it
 * wants; the others divide the rest equally. What nobody wants is divided
 * too, so that a share is never what keeps a job from showing more. */
static double share_of(const sl_coord_t *coord, const sl_coord_snapshot_t *seen,
                       const sl_coord_decisions_t *decisions, int i)
{
    double demands[SL_COORD_MAX_JOBS];
    const double mine = demand(&seen->jobs[i]);
    double left = 100.0, share;
    int j, n = 0, n_left, n_before;

    for (j = 0; j < seen->n_jobs; j++) {
        if (sl_coord_is_active(seen, decisions, j) &&
            sl_coord_is_neighbour(&seen->jobs[i], &seen->jobs[j])) {
            demands[n++] = demand(&seen->jobs[j]);
        }
    }
    n_left = n;
    do {
        const double part = left / (n_left > 0 ? n_left : 1);

        n_before = n_left;
        for (j = 0; j < n; j++) {
            if (demands[j] >= 0.0 && demands[j] < part) {
                left -= demands[j];
                demands[j] = -1.0; /* served */
                n_left--;
            }
        }
    } while (n_left > 0 && n_left < n_before);
    if (n_left == 0) {
        share = mine + left / n;
    } else {
        share = mine < left / n_left ? mine : left / n_left;
    }
    return share < coord->params.floor_percent ? coord->params.floor_percent
                                               : share;
}

static void set_shares(sl_coord_t *coord, const sl_coord_snapshot_t *seen,
                       sl_coord_decisions_t *decisions)
{
    int i;

    for (i = 0; i < seen->n_jobs; i++) {
        if (sl_coord_is_active(seen, decisions, i)) {
            sl_coord_set_share(decisions, seen, i,
                               share_of(coord, seen, decisions, i));
        }
    }
}

const sl_coord_policy_t sl_coord_policy_fair = {
    .size = sizeof(sl_coord_policy_t),
    .name = "fair",
    .brief = "equal shares for all jobs, unused ones passed on",
    .set_shares = set_shares,
};
