/* SPDX-License-Identifier: Apache-2.0 */
/* Which rank computes what, as a table. */
#include <stdio.h>
#include <string.h>

#include "cli/job.h"

enum {
    N_LINES_MAX = 64
};

/* Only where there is a choice. */
static void print_transport(const sl_job_t *job)
{
    const char *way =
        job->engine == NULL ? "none" : sl_engine_transport(job->engine);

    if (strcmp(way, "none") != 0 && strcmp(way, "host") != 0) {
        (void)printf("  tensors between ranks: %s, the rest: %s\n", way,
                     sl_world_link_name(job->world));
    }
}

void sl_job_print_mapping(const sl_job_t *job)
{
    const int n_cells = (int)job->config.replicas * job->n_stages;
    const int n_lines = n_cells < N_LINES_MAX ? n_cells : N_LINES_MAX;
    int c;

    (void)printf(
        "%d rank%s: %lld replica%s of %d stage%s\n"
        "  replica  stage  layers     rank  host / device\n",
        sl_world_size(job->world), sl_world_size(job->world) == 1 ? "" : "s",
        (long long)job->config.replicas, job->config.replicas == 1 ? "" : "s",
        job->n_stages, job->n_stages == 1 ? "" : "s");
    for (c = 0; c < n_lines; c++) {
        const sl_grid_slot_t *slot = sl_grid_slot(job->grid, c, n_cells);
        const int k = c % job->n_stages;
        char layers[32];

        (void)snprintf(layers, sizeof(layers), "%d-%d", job->cuts[k],
                       job->cuts[k + 1] - 1);
        (void)printf("  %7d  %5d  %-9s  %4d  %s / %s\n", c / job->n_stages, k,
                     layers, slot->rank, slot->host_name, slot->name);
    }
    if (n_lines < n_cells) {
        (void)printf("  and %d more: see `sluice plan`\n", n_cells - n_lines);
    }
    print_transport(job);
    (void)fflush(stdout);
}
