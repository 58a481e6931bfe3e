/* SPDX-License-Identifier: Apache-2.0 */
/* The cumulative rule of GPipe's open source (lingvo): layer i, which ends at
 * the share h_i of all forward flops, goes to min(floor(h_i * K), K - 1). */
#include <math.h>

#include "partition/partition.h"

static double layer_weight(const sl_part_costs_t *costs, int layer, int is_flat)
{
    return is_flat ? 1.0 : costs->layers[layer].forward_flops;
}

/** The rule itself: cuts[k] is the first layer of stage k or of a later one,
 *  so a stage may be empty. */
static void apply_rule(const sl_part_costs_t *costs, int n_stages, int *cuts)
{
    double total = 0.0, sum = 0.0;
    int is_flat, layer, stage = 0;

    for (layer = 0; layer < costs->n_layers; layer++) {
        total += layer_weight(costs, layer, 0);
    }
    is_flat = !(total > 0.0); /* no flops anywhere: all layers weigh 1 */
    if (is_flat) {
        total = costs->n_layers;
    }
    cuts[0] = 0;
    for (layer = 0; layer < costs->n_layers; layer++) {
        int target;

        sum += layer_weight(costs, layer, is_flat);
        target = (int)fmin(floor(sum * n_stages / total), n_stages - 1);
        while (stage < target) {
            cuts[++stage] = layer;
        }
    }
    while (stage < n_stages) {
        cuts[++stage] = costs->n_layers;
    }
}

/**
 * Give each empty stage a layer, moving cuts as little as possible: from the
 * front each cut moves right until its stage has a layer, then from the back
 * each moves left until the later stages have one each.
 */
static void repair(int n_layers, int n_stages, int *cuts)
{
    int stage;

    for (stage = 1; stage < n_stages; stage++) {
        if (cuts[stage] <= cuts[stage - 1]) {
            cuts[stage] = cuts[stage - 1] + 1;
        }
    }
    for (stage = n_stages - 1; stage > 0; stage--) {
        const int most = n_layers - (n_stages - stage);

        if (cuts[stage] > most) {
            cuts[stage] = most;
        }
    }
}

static sl_status_t gpipe_split(const sl_part_problem_t *problem, int *cuts)
{
    apply_rule(problem->costs, problem->n_stages, cuts);
    repair(problem->costs->n_layers, problem->n_stages, cuts);
    return SL_OK;
}

const sl_part_ops_t sl_part_gpipe = {
    .size = sizeof(sl_part_ops_t),
    .name = "gpipe",
    .brief = "GPipe's rule: equal shares of the cumulative forward flops",
    .split = gpipe_split,
};
