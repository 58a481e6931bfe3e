/* SPDX-License-Identifier: Apache-2.0 */
/* The edges of a rank as lines of JSON. */
#include "cli/train_edges.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

static void write_edge(FILE *stream, int rank, const sl_edge_t *edge)
{
    const double n = (double)(edge->n_messages > 0 ? edge->n_messages : 1);

    (void)fprintf(stream,
                  "{\"rank\": %d, \"peer\": %d, \"kind\": \"%s\", "
                  "\"from\": [%d, %d], \"to\": [%d, %d], \"layer\": %d, "
                  "\"is_sender\": %s, \"messages\": %" PRIu64
                  ", \"bytes\": %" PRIu64 ", \"stalls\": %" PRIu64,
                  rank, edge->peer, edge->kind, edge->from_replica,
                  edge->from_stage, edge->to_replica, edge->to_stage,
                  edge->layer, edge->is_sender ? "true" : "false",
                  edge->n_messages, edge->n_bytes, edge->n_stalls);
    if (edge->is_sender) {
        (void)fprintf(stream, ", \"mean_latency_us\": %.3f",
                      (double)edge->latency_ns * 1e-3 / n);
    }
    if (edge->n_timed > 0 && edge->transfer_ns > 0) {
        const double all_ns = (double)edge->transfer_ns;

        (void)fprintf(stream,
                      ", \"timed\": %" PRIu64 ", \"timed_us\": %.3f, "
                      "\"under_sender\": %.4f, \"under_receiver\": %.4f",
                      edge->n_timed, all_ns * 1e-3,
                      (double)edge->under_sender_ns / all_ns,
                      (double)edge->under_receiver_ns / all_ns);
    }
    (void)fprintf(stream, "}\n");
}

sl_status_t sl_train_edges_write(const char *path, const sl_job_t *job)
{
    const int rank = sl_world_rank(job->world);
    const size_t bytes = strlen(path) + 16;
    char *name = malloc(bytes);
    sl_file_writer_t *writer;
    sl_edge_t edge;
    sl_status_t status;
    int i;

    if (name == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "no host memory for the name of a file of edges");
    }
    (void)snprintf(name, bytes, "%s.%d", path, rank);
    SL_TRY(status, sl_file_begin(name, &writer), out);
    for (i = 0; sl_engine_edge(job->engine, i, &edge); i++) {
        write_edge(sl_file_stream(writer), rank, &edge);
    }
    status = sl_file_end(writer);
out:
    free(name);
    return status;
}
