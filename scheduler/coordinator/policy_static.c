/* SPDX-License-Identifier: Apache-2.0 */
/* static: guests share a fixed percentage, guarantee jobs the rest. A job
 * without a neighbour of the other kind has all of it. */
#include "scheduler/coordinator/coordinator_internal.h"

static int is_guarantee(const sl_coord_job_t *job)
{
    return job->job_class == SL_JOB_CLASS_GUARANTEE;
}

static double share_of(const sl_coord_t *coord, const sl_coord_snapshot_t *seen,
                       const sl_coord_decisions_t *decisions, int i)
{
    const int mine = is_guarantee(&seen->jobs[i]);
    double percent = 100.0;
    int j, n_same = 0, n_other = 0;

    for (j = 0; j < seen->n_jobs; j++) {
        if (sl_coord_is_active(seen, decisions, j) &&
            sl_coord_is_neighbour(&seen->jobs[i], &seen->jobs[j])) {
            if (is_guarantee(&seen->jobs[j]) == mine) {
                n_same++;
            } else {
                n_other++;
            }
        }
    }
    if (n_other > 0) {
        percent = coord->params.static_percent;
        percent = mine ? 100.0 - percent : percent;
    }
    return n_same > 1 ? percent / n_same : percent;
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

const sl_coord_policy_t sl_coord_policy_static = {
    .size = sizeof(sl_coord_policy_t),
    .name = "static",
    .brief = "guests have a fixed share, guarantee jobs the rest",
    .set_shares = set_shares,
};
