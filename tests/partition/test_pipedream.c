/* SPDX-License-Identifier: Apache-2.0 */
/* Real layer times: the profiles published with PipeDream. The exact policy
 * must reach the least possible bottleneck, found here in another way. */
#include "tests/support/sl_test.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "partition/partition.h"

enum {
    MAX_NODES = 4096,
    LINE_BYTES = 1 << 16
};

static const char *const profiles[] = {
    "image_classification_alexnet",
    "image_classification_densenet121",
    "image_classification_inception_v3",
    "image_classification_nasnetalarge",
    "image_classification_nasnetamobile",
    "image_classification_resnet101",
    "image_classification_resnet18",
    "image_classification_resnet50",
    "image_classification_resnext101",
    "image_classification_resnext50",
    "image_classification_squeezenet1_0",
    "image_classification_vgg16",
    "translation_gnmt",
    "translation_gnmt_large",
};
enum {
    N_PROFILES = sizeof(profiles) / sizeof(profiles[0])
};

/** A node; its times are whole microseconds (the files have ms, 3 digits). */
typedef struct node {
    int id;
    int64_t forward_us;
    int64_t backward_us;
} node_t;

static int by_id(const void *a, const void *b)
{
    return ((const node_t *)a)->id - ((const node_t *)b)->id;
}

static int64_t field_us(const char *line, const char *name)
{
    const char *at = strstr(line, name);

    assert_non_null(at);
    return llround(1000.0 * strtod(at + strlen(name), NULL));
}

/** The nodes in order, without the first: it loads data. */
static int read_nodes(const char *path, node_t *nodes)
{
    static char line[LINE_BYTES];
    FILE *file = fopen(path, "r");
    int n = 0;

    assert_non_null(file);
    while (fgets(line, sizeof(line), file) != NULL) {
        if (strncmp(line, "node", 4) == 0) {
            assert_true(n < MAX_NODES);
            nodes[n].id = (int)strtol(line + 4, NULL, 10);
            nodes[n].forward_us = field_us(line, "forward_compute_time=");
            nodes[n].backward_us = field_us(line, "backward_compute_time=");
            n++;
        }
    }
    (void)fclose(file);
    assert_true(n > 1);
    qsort(nodes, (size_t)n, sizeof(nodes[0]), by_id);
    memmove(nodes, nodes + 1, (size_t)(n - 1) * sizeof(nodes[0]));
    return n - 1;
}

/** Whether `n_stages` stages of at most `limit_us` hold all nodes. */
static int fits(const node_t *nodes, int n, int n_stages, int64_t limit_us)
{
    int64_t sum = 0;
    int i, used = 1;

    for (i = 0; i < n; i++) {
        const int64_t us = nodes[i].forward_us + nodes[i].backward_us;

        if (us > limit_us) {
            return 0;
        }
        if (sum + us > limit_us) {
            used++;
            sum = 0;
        }
        sum += us;
    }
    return used <= n_stages;
}

/** Least possible bottleneck: bisection with a greedy filling. */
static int64_t least_bottleneck_us(const node_t *nodes, int n, int n_stages)
{
    int64_t low = 0, high = 0;
    int i;

    for (i = 0; i < n; i++) {
        high += nodes[i].forward_us + nodes[i].backward_us;
    }
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;

        if (fits(nodes, n, n_stages, middle)) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

static double ratio(const char *name, const sl_part_problem_t *problem,
                    int64_t least_us)
{
    int cuts[SL_PART_MAX_STAGES + 1];

    sl_assert_ok(sl_part_split(sl_part_find(name), problem, cuts));
    return sl_part_bottleneck_us(problem, cuts) / (double)least_us;
}

static void compare(const char *profile, const node_t *nodes, int n)
{
    sl_part_costs_t costs = {.n_layers = n};
    int i, n_stages;

    costs.layers = calloc((size_t)n, sizeof(costs.layers[0]));
    assert_non_null(costs.layers);
    for (i = 0; i < n; i++) {
        costs.layers[i].forward_us = (double)nodes[i].forward_us;
        costs.layers[i].backward_us = (double)nodes[i].backward_us;
        costs.layers[i].forward_flops = (double)nodes[i].forward_us;
    }
    for (n_stages = 2; n_stages <= 8; n_stages *= 2) {
        const sl_part_problem_t problem = {.costs = &costs,
                                           .n_stages = n_stages};
        const int64_t us = least_bottleneck_us(nodes, n, n_stages);
        const double dp = ratio("dp", &problem, us);

        print_message("%-36s %4d layers %d stages, best %8" PRId64
                      " us: dp %.3f gpipe %.3f uniform %.3f\n",
                      profile, n, n_stages, us, dp,
                      ratio("gpipe", &problem, us),
                      ratio("uniform", &problem, us));
        assert_true(dp == 1.0);
    }
    free(costs.layers);
}

static void dp_is_exact_on_real_profiles(void **state)
{
    static node_t nodes[MAX_NODES];
    size_t i;

    (void)state;
    for (i = 0; i < N_PROFILES; i++) {
        char name[128];
        const char *path;

        (void)snprintf(name, sizeof(name), "profiles/%s.txt", profiles[i]);
        path = sl_test_data(name);
        if (path == NULL) {
            skip();
            return;
        }
        compare(profiles[i], nodes, read_nodes(path, nodes));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(dp_is_exact_on_real_profiles),
    };

    return cmocka_run_group_tests_name("partition.pipedream", tests, NULL,
                                       NULL);
}
