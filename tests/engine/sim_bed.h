/* SPDX-License-Identifier: Apache-2.0 */
/* Made-up costs and clusters for the tests of the simulator. */
#ifndef SL_TESTS_ENGINE_SIM_BED_H
#define SL_TESTS_ENGINE_SIM_BED_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "engine/simulate/search.h"
#include "engine/simulate/simulate.h"
#include "tests/support/sl_test.h"

enum {
    BED_LAYERS = 64
};

/* A model of `n` layers and a cluster of one group. */
typedef struct bed {
    sl_part_layer_t layers[BED_LAYERS];
    sl_part_costs_t costs;
    sl_cluster_t cluster;
    int cuts[BED_LAYERS + 1];
    sl_sim_params_t params;
    sl_sim_result_t result;
} bed_t;

/* One layer a stage, all equal; each device is alone on its link. */
static inline void bed_init(bed_t *bed, int n_layers, int n_hosts,
                            int n_devices)
{
    int i;

    memset(bed, 0, sizeof(*bed));
    for (i = 0; i < n_layers; i++) {
        bed->layers[i].forward_us = 100.0;
        bed->layers[i].backward_us = 200.0;
        bed->cuts[i + 1] = i + 1;
    }
    bed->costs.n_layers = n_layers;
    bed->costs.layers = bed->layers;
    bed->cluster.n_groups = 1;
    bed->cluster.groups[0].n_hosts = n_hosts;
    bed->cluster.groups[0].n_devices = n_devices;
    bed->cluster.groups[0].speed = 1.0;
    bed->cluster.n_hosts = n_hosts;
    bed->cluster.n_devices = n_hosts * n_devices;
    sl_sim_params_default(&bed->params);
    bed->params.cluster = &bed->cluster;
    bed->params.costs = &bed->costs;
    bed->params.cuts = bed->cuts;
    bed->params.n_stages = n_layers;
}

/* Simulate; the step's time. The result is checked for what always holds. */
static inline double bed_run(bed_t *bed)
{
    double sum = 0.0, bound = 0.0;
    int p;

    sl_sim_result_cleanup(&bed->result);
    sl_assert_ok(sl_simulate(&bed->params, &bed->result));
    for (p = 0; p < SL_SIM_N_PARTS; p++) {
        assert_true(bed->result.path.part_us[p] >= 0.0);
        sum += bed->result.path.part_us[p];
    }
    /* the critical path has no gap */
    assert_true(fabs(sum - bed->result.step_us) <= 1e-9 * bed->result.step_us);
    sl_assert_ok(sl_sim_bound(&bed->params, &bound));
    assert_true(bound <= bed->result.step_us * (1.0 + 1e-9));
    assert_true(bed->result.bubble > -1e-9 && bed->result.bubble < 1.0);
    return bed->result.step_us;
}

static inline void bed_cleanup(bed_t *bed)
{
    sl_sim_result_cleanup(&bed->result);
}

/* Equal up to rounding. */
static inline void assert_us(double got, double want)
{
    if (!(fabs(got - want) <= 1e-6 + 1e-9 * fabs(want))) {
        fail_msg("%.9f us, not %.9f us", got, want);
    }
}

/* A number below `bound`, by index. */
static inline int bed_draw(uint64_t seed, uint64_t *n_drawn, int bound)
{
    const sl_rng_t rng = sl_rng_at(seed, 0, 0, 0, SL_RNG_USE_SYNTHETIC);

    return (int)sl_rng_below(&rng, (*n_drawn)++, (uint32_t)bound);
}

#endif /* SL_TESTS_ENGINE_SIM_BED_H */
