/* SPDX-License-Identifier: Apache-2.0 */
/* The order of messages and receives, for tests: this program's MPI_Isend and
 * MPI_Irecv, which stand before MPI's own, write what they do to
 * $SLUICE_TEST_MPI_LOG.RANK, a line each: s or r, from, to, tag, nanoseconds.
 * Not on the communicator that only sends: of notices, which have receives
 * that are always there. Called on the communication thread only. */
#include <inttypes.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"

enum {
    MAX_HELD = 1 << 16
};

typedef struct message {
    MPI_Comm comm;
    int peer, tag;
    uint64_t ns;
} message_t;

static FILE *file;
static int rank;
static MPI_Comm data = MPI_COMM_NULL; /* until the first receive */
static message_t held[MAX_HELD];      /* sends before that */
static int n_held;

static int open_log(MPI_Comm comm)
{
    const char *path = getenv("SLUICE_TEST_MPI_LOG");
    char name[512];

    if (file == NULL && path != NULL) {
        (void)PMPI_Comm_rank(comm, &rank);
        (void)snprintf(name, sizeof(name), "%s.%d", path, rank);
        file = fopen(name, "w");
        if (file == NULL) {
            abort();
        }
    }
    return file != NULL;
}

static void write_send(const message_t *message)
{
    if (message->comm == data) {
        (void)fprintf(file, "s %d %d %d %" PRIu64 "\n", rank, message->peer,
                      message->tag, message->ns);
    }
}

static void note_send(const message_t *message)
{
    if (data != MPI_COMM_NULL) {
        write_send(message);
    } else if (n_held < MAX_HELD) {
        held[n_held++] = *message;
    } else {
        abort();
    }
}

static void note_receive(const message_t *message)
{
    int i;

    if (data == MPI_COMM_NULL) {
        data = message->comm;
        for (i = 0; i < n_held; i++) {
            write_send(&held[i]);
        }
    }
    (void)fprintf(file, "r %d %d %d %" PRIu64 "\n", message->peer, rank,
                  message->tag, message->ns);
}

int MPI_Isend(const void *buffer, int count, MPI_Datatype type, int peer,
              int tag, MPI_Comm comm, MPI_Request *request)
{
    if (open_log(comm)) {
        const message_t message = {comm, peer, tag, sl_clock_ns()};

        note_send(&message);
    }
    return PMPI_Isend(buffer, count, type, peer, tag, comm, request);
}

int MPI_Irecv(void *buffer, int count, MPI_Datatype type, int peer, int tag,
              MPI_Comm comm, MPI_Request *request)
{
    const int code = PMPI_Irecv(buffer, count, type, peer, tag, comm, request);

    if (open_log(comm)) {
        const message_t message = {comm, peer, tag, sl_clock_ns()};

        note_receive(&message);
    }
    return code;
}
