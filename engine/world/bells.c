/* SPDX-License-Identifier: Apache-2.0 */
/* syscall() for the futex */
#define _GNU_SOURCE
#include "engine/world/bells.h"

#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    BELL_BYTES = 128 /* apart; MPI's memory begins anywhere */
};

/* One rank's. */
typedef struct bell {
    _Atomic uint32_t n_rung;    /* ever; a futex */
    _Atomic uint32_t is_asleep; /* its rank waits for the futex */
    _Atomic uint64_t n_sent;    /* by other ranks */
} bell_t;

struct sl_bells {
    bell_t alone; /* while nothing is shared */
    bell_t *own;
    bell_t **bells; /* by rank; owned; NULL: on another host */
    int n_ranks, n_here;
    MPI_Comm host;
    MPI_Win window;
    uint32_t n_seen; /* the waiting thread's */
};

sl_bells_t *sl_bells_create(void)
{
    sl_bells_t *bells = calloc(1, sizeof(*bells));

    if (bells != NULL) {
        bells->host = MPI_COMM_NULL;
        bells->window = MPI_WIN_NULL;
        bells->own = &bells->alone;
    }
    return bells;
}

/* ---- sharing ---- */

static void init_bell(bell_t *bell)
{
    atomic_init(&bell->n_rung, 0);
    atomic_init(&bell->is_asleep, 0);
    atomic_init(&bell->n_sent, 0);
}

/* This host's memory, or none on any of its ranks. */
static void make_window(sl_bells_t *bells)
{
    bell_t *own = NULL;
    int is_made =
        MPI_Win_allocate_shared(BELL_BYTES, 1, MPI_INFO_NULL, bells->host, &own,
                                &bells->window) == MPI_SUCCESS;
    const int is_mine = is_made;

    (void)MPI_Allreduce(MPI_IN_PLACE, &is_made, 1, MPI_INT, MPI_MIN,
                        bells->host);
    if (!is_made) {
        if (is_mine) {
            (void)MPI_Win_free(&bells->window);
        }
        bells->window = MPI_WIN_NULL;
        return;
    }
    init_bell(own);
    bells->own = own;
}

/* Where the bells of the ranks of this host lie. */
static int find_bells(sl_bells_t *bells, MPI_Comm comm)
{
    MPI_Group here, all;
    int i, n_found = 0;

    (void)MPI_Comm_size(bells->host, &bells->n_here);
    (void)MPI_Comm_group(bells->host, &here);
    (void)MPI_Comm_group(comm, &all);
    for (i = 0; i < bells->n_here; i++) {
        int rank = MPI_UNDEFINED, unit;
        MPI_Aint bytes;
        void *base = NULL;

        if (MPI_Group_translate_ranks(here, 1, &i, all, &rank) == MPI_SUCCESS &&
            rank != MPI_UNDEFINED &&
            MPI_Win_shared_query(bells->window, i, &bytes, &unit, &base) ==
                MPI_SUCCESS) {
            bells->bells[rank] = base;
            n_found++;
        }
    }
    (void)MPI_Group_free(&here);
    (void)MPI_Group_free(&all);
    return n_found == bells->n_here;
}

sl_status_t sl_bells_share(sl_bells_t *bells, MPI_Comm comm)
{
    sl_status_t status = SL_OK;

    (void)MPI_Comm_size(comm, &bells->n_ranks);
    bells->bells = calloc((size_t)bells->n_ranks, sizeof(bell_t *));
    if (bells->bells == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "no host memory for %d ranks",
                bells->n_ranks);
    }
    if (MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL,
                            &bells->host) != MPI_SUCCESS) {
        SL_FAIL(status, SL_ERR_COMM, out,
                "MPI_Comm_split_type: the ranks of this host are not known");
    }
    (void)MPI_Comm_set_errhandler(bells->host, MPI_ERRORS_RETURN);
    make_window(bells);
    if (bells->window != MPI_WIN_NULL && !find_bells(bells, comm)) {
        SL_FAIL(status, SL_ERR_COMM, out,
                "MPI_Win_shared_query: memory of ranks of this host is "
                "missing");
    }
    /* all are initialised before anybody rings */
    (void)MPI_Barrier(bells->host);
out:
    return status;
}

void sl_bells_unshare(sl_bells_t *bells)
{
    bells->own = &bells->alone;
    free(bells->bells);
    bells->bells = NULL;
    if (bells->window != MPI_WIN_NULL) {
        (void)MPI_Win_free(&bells->window);
    }
    if (bells->host != MPI_COMM_NULL) {
        (void)MPI_Comm_free(&bells->host);
    }
}

void sl_bells_destroy(sl_bells_t *bells)
{
    if (bells != NULL) {
        free(bells->bells);
        free(bells);
    }
}

/* ---- ringing ---- */

int sl_bells_has(const sl_bells_t *bells, int peer)
{
    return bells->bells != NULL && bells->bells[peer] != NULL;
}

int sl_bells_are_complete(const sl_bells_t *bells)
{
    return bells->window != MPI_WIN_NULL && bells->n_here == bells->n_ranks;
}

/* Either the sleeper sees the number, or we see that it sleeps. */
static void ring(bell_t *bell)
{
    (void)atomic_fetch_add(&bell->n_rung, 1);
    if (atomic_load(&bell->is_asleep)) {
        (void)syscall(SYS_futex, &bell->n_rung, FUTEX_WAKE, INT_MAX, NULL, NULL,
                      0);
    }
}

void sl_bells_ring(sl_bells_t *bells, int peer)
{
    if (sl_bells_has(bells, peer)) {
        bell_t *bell = bells->bells[peer];

        (void)atomic_fetch_add(&bell->n_sent, 1);
        ring(bell);
    }
}

uint64_t sl_bells_n_sent(const sl_bells_t *bells)
{
    return atomic_load(&bells->own->n_sent);
}

void sl_bells_wake(sl_bells_t *bells)
{
    ring(bells->own);
}

int sl_bells_wait(sl_bells_t *bells, uint64_t timeout_ns)
{
    const struct timespec timeout = {
        .tv_sec = (time_t)(timeout_ns / 1000000000),
        .tv_nsec = (long)(timeout_ns % 1000000000)};
    bell_t *own = bells->own;
    const uint32_t n_before = bells->n_seen;

    atomic_store(&own->is_asleep, 1);
    if (atomic_load(&own->n_rung) == n_before) {
        (void)syscall(SYS_futex, &own->n_rung, FUTEX_WAIT, n_before, &timeout,
                      NULL, 0);
    }
    atomic_store(&own->is_asleep, 0);
    bells->n_seen = atomic_load(&own->n_rung);
    return bells->n_seen != n_before;
}
