/* SPDX-License-Identifier: Apache-2.0 */
/* Equal layer counts: the baseline that looks at nothing. */
#include "partition/partition.h"

static sl_status_t uniform_split(const sl_part_problem_t *problem, int *cuts)
{
    const int n_layers = problem->costs->n_layers;
    const int n_stages = problem->n_stages;
    const int n_larger = n_layers % n_stages;
    int stage;

    cuts[0] = 0;
    for (stage = 0; stage < n_stages; stage++) {
        cuts[stage + 1] =
            cuts[stage] + n_layers / n_stages + (stage < n_larger ? 1 : 0);
    }
    return SL_OK;
}

const sl_part_ops_t sl_part_uniform = {
    .size = sizeof(sl_part_ops_t),
    .name = "uniform",
    .brief = "layer counts differ by at most one, larger stages first",
    .split = uniform_split,
};
