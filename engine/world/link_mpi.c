/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that mpirun or srun started. The communication thread alone calls MPI,
 * from MPI_Init to MPI_Finalize; two communicators of our own keep control
 * messages and data apart. MPI has no way to sleep until something comes: ranks
 * of one host ring each other's bells (bells.h), of others MPI is asked as
 * often as the pace says. */
#include <mpi.h>
#if defined(OPEN_MPI) && OPEN_MPI
#include <mpi-ext.h>
#endif
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/world/bells.h"
#include "engine/world/world_internal.h"

enum {
    N_INBOXES = 16,
    FIRST_ROOM = 64,
    SPINS = 50 /* polls before the first sleep, one after the other: who yields
                  gives the core to a kernel for a slice, some ms */
};

/* Who has waited for t sleeps for t / PATIENCE more: each look costs a core
 * that may be computing some microseconds, and what comes late is late by a
 * small part of the time that was waited for it. */
static const uint64_t EAGER_NS = 10000, EAGER_MAX_NS = 2000000, PATIENCE = 32;
static const uint64_t LAZY_NS = 2000000, IDLE_NS = 5000000;
/* For what MPI may want to do between messages. */
static const uint64_t BELL_NS = 20000000;
static const uint64_t STOP_NS = 1000000000; /* for what is under way */

/* A control message on its way. */
typedef struct letter {
    size_t bytes;
    int peer;
    sl_notice_t control;
} letter_t;

/* What a request is for; both NULL when that is of no interest any more. */
typedef struct owner {
    letter_t *letter; /* owned */
    sl_xfer_t *xfer;
    int is_send;
} owner_t;

typedef struct mpi {
    sl_link_t base;
    sl_bells_t *bells; /* owned */
    MPI_Comm control, data;
    int is_owner; /* of MPI: nobody had called MPI_Init before */
    MPI_Request inboxes[N_INBOXES];
    sl_notice_t mail[N_INBOXES];
    int next_inbox; /* they are filled in this order */
    /* under way: of one length, n of n_room used */
    MPI_Request *requests;
    owner_t *owners;
    int *found;
    MPI_Status *statuses;
    int n, n_room;
    int n_leaving;        /* of these, sends */
    uint64_t n_come;      /* messages of ranks that ring */
    int n_quiet;          /* polls without an event or a wake-up */
    uint64_t quiet_at_ns; /* when the first of them was */
} mpi_t;

static mpi_t *mpi_of(sl_link_t *link)
{
    return (mpi_t *)link;
}

static sl_status_t mpi_status(int code, const char *what)
{
    char text[MPI_MAX_ERROR_STRING + 1] = "";
    sl_status_t status = SL_OK;
    int n = 0;

    if (code != MPI_SUCCESS) {
        (void)MPI_Error_string(code, text, &n);
        SL_REFUSE(status, SL_ERR_COMM, out, "%s: %s", what, text);
    }
out:
    return status;
}

/* ---- requests ---- */

static sl_status_t grow(mpi_t *mpi)
{
    const int n_room = mpi->n_room == 0 ? FIRST_ROOM : 2 * mpi->n_room;
    const size_t n = (size_t)n_room, used = (size_t)mpi->n;
    MPI_Request *requests = calloc(n, sizeof(*requests));
    owner_t *owners = calloc(n, sizeof(*owners));
    int *found = calloc(n, sizeof(*found));
    MPI_Status *statuses = calloc(n, sizeof(*statuses));
    sl_status_t status;

    if (requests == NULL || owners == NULL || found == NULL ||
        statuses == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, err_free,
                "no host memory for %d transfers", n_room);
    }
    if (used > 0) {
        memcpy(requests, mpi->requests, used * sizeof(*requests));
        memcpy(owners, mpi->owners, used * sizeof(*owners));
    }
    free(mpi->requests);
    free(mpi->owners);
    free(mpi->found);
    free(mpi->statuses);
    mpi->requests = requests;
    mpi->owners = owners;
    mpi->found = found;
    mpi->statuses = statuses;
    mpi->n_room = n_room;
    return SL_OK;
err_free:
    free(requests);
    free(owners);
    free(found);
    free(statuses);
    return status;
}

/* Room for one more, before MPI is asked to begin it. */
static sl_status_t reserve(mpi_t *mpi)
{
    return mpi->n < mpi->n_room ? SL_OK : grow(mpi);
}

static sl_status_t begun(mpi_t *mpi, int code, const char *what, owner_t owner)
{
    sl_status_t status = mpi_status(code, what);

    if (status == SL_OK) {
        mpi->owners[mpi->n++] = owner;
        mpi->n_leaving += owner.is_send;
    }
    return status;
}

static sl_status_t mpi_control(sl_link_t *link, int peer, const void *data,
                               size_t bytes)
{
    mpi_t *mpi = mpi_of(link);
    letter_t *letter = malloc(sizeof(*letter));
    sl_status_t status;

    if (letter == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "no host memory for a message");
    }
    memcpy(&letter->control, data, bytes);
    letter->bytes = bytes;
    letter->peer = peer;
    SL_TRY(status, reserve(mpi), err_free);
    SL_TRY(status,
           begun(mpi,
                 MPI_Isend(&letter->control, (int)bytes, MPI_BYTE, peer, 0,
                           mpi->control, &mpi->requests[mpi->n]),
                 "MPI_Isend", (owner_t){.letter = letter, .is_send = 1}),
           err_free);
    sl_bells_ring(mpi->bells, peer);
    return SL_OK;
err_free:
    free(letter);
out:
    return status;
}

static sl_status_t mpi_send(sl_link_t *link, sl_xfer_t *xfer)
{
    mpi_t *mpi = mpi_of(link);
    sl_status_t status;

    SL_TRY(status, reserve(mpi), out);
    SL_TRY(status,
           begun(mpi,
                 MPI_Isend(xfer->source, (int)xfer->bytes, MPI_BYTE, xfer->peer,
                           xfer->tag, mpi->data, &mpi->requests[mpi->n]),
                 "MPI_Isend", (owner_t){.xfer = xfer, .is_send = 1}),
           out);
    sl_bells_ring(mpi->bells, xfer->peer);
out:
    return status;
}

static sl_status_t mpi_receive(sl_link_t *link, sl_xfer_t *xfer)
{
    mpi_t *mpi = mpi_of(link);
    sl_status_t status;

    SL_TRY(status, reserve(mpi), out);
    SL_TRY(status,
           begun(mpi,
                 MPI_Irecv(xfer->target, (int)xfer->bytes, MPI_BYTE, xfer->peer,
                           xfer->tag, mpi->data, &mpi->requests[mpi->n]),
                 "MPI_Irecv", (owner_t){.xfer = xfer}),
           out);
out:
    return status;
}

/* A receive can be canceled; a send stays on the list until MPI gives it up,
 * of no interest to anybody. */
static void mpi_drop(sl_link_t *link, sl_xfer_t *xfer)
{
    mpi_t *mpi = mpi_of(link);
    int i;

    for (i = 0; i < mpi->n; i++) {
        if (mpi->owners[i].xfer == xfer) {
            mpi->owners[i].xfer = NULL;
            if (xfer->is_receive) {
                (void)MPI_Cancel(&mpi->requests[i]);
            }
        }
    }
}

static void count_come(mpi_t *mpi, int peer)
{
    mpi->n_come += (uint64_t)sl_bells_has(mpi->bells, peer);
}

static int take_mail(mpi_t *mpi)
{
    int n = 0, has_come = 1;

    while (has_come) {
        MPI_Request *inbox = &mpi->inboxes[mpi->next_inbox];
        MPI_Status status;
        int bytes = 0;

        has_come = 0;
        if (MPI_Test(inbox, &has_come, &status) != MPI_SUCCESS || !has_come) {
            break;
        }
        (void)MPI_Get_count(&status, MPI_BYTE, &bytes);
        count_come(mpi, status.MPI_SOURCE);
        sl_world_on_control(mpi->base.world, status.MPI_SOURCE,
                            &mpi->mail[mpi->next_inbox], (size_t)bytes);
        (void)MPI_Start(inbox);
        mpi->next_inbox = (mpi->next_inbox + 1) % N_INBOXES;
        n++;
    }
    return n;
}

static void letter_done(mpi_t *mpi, letter_t *letter, int code)
{
    if (code != MPI_SUCCESS) {
        (void)mpi_status(code, "message");
        sl_world_on_lost(mpi->base.world, letter->peer, sl_last_error());
    }
    free(letter);
}

/* Those that have ended leave the list; the transfers among them are returned
 * as a list, as the calls for them may add to ours. */
static sl_xfer_t *collect_done(mpi_t *mpi, int n_found, int is_in_status)
{
    sl_xfer_t *done = NULL;
    int i, kept = 0;

    for (i = 0; i < n_found; i++) {
        owner_t *owner = &mpi->owners[mpi->found[i]];
        const int code =
            is_in_status ? mpi->statuses[i].MPI_ERROR : MPI_SUCCESS;
        int bytes = 0;

        if (owner->letter != NULL) {
            letter_done(mpi, owner->letter, code);
        } else if (owner->xfer != NULL && code != MPI_SUCCESS) {
            (void)mpi_status(code, "transfer");
            sl_world_on_lost(mpi->base.world, owner->xfer->peer,
                             sl_last_error());
        } else if (owner->xfer != NULL) {
            if (owner->xfer->is_receive) {
                count_come(mpi, owner->xfer->peer);
                (void)MPI_Get_count(&mpi->statuses[i], MPI_BYTE, &bytes);
                owner->xfer->bytes = (size_t)bytes;
            }
            owner->xfer->next = done;
            done = owner->xfer;
        }
        mpi->n_leaving -= owner->is_send;
        mpi->requests[mpi->found[i]] = MPI_REQUEST_NULL;
    }
    for (i = 0; i < mpi->n; i++) {
        if (mpi->requests[i] != MPI_REQUEST_NULL) {
            mpi->requests[kept] = mpi->requests[i];
            mpi->owners[kept++] = mpi->owners[i];
        }
    }
    mpi->n = kept;
    return done;
}

static int test_requests(mpi_t *mpi)
{
    sl_xfer_t *done;
    int n_found = 0, code;

    if (mpi->n == 0) {
        return 0;
    }
    code = MPI_Testsome(mpi->n, mpi->requests, &n_found, mpi->found,
                        mpi->statuses);
    if (n_found == MPI_UNDEFINED || n_found <= 0) {
        return 0;
    }
    done = collect_done(mpi, n_found, code == MPI_ERR_IN_STATUS);
    while (done != NULL) {
        sl_xfer_t *next = done->next;

        sl_world_on_xfer(mpi->base.world, done);
        done = next;
    }
    return n_found;
}

static int mpi_poll(sl_link_t *link)
{
    mpi_t *mpi = mpi_of(link);
    const int n = take_mail(mpi) + test_requests(mpi);

    mpi->n_quiet = n > 0 ? 0 : mpi->n_quiet + 1;
    if (mpi->n_quiet == 1) {
        mpi->quiet_at_ns = sl_clock_ns();
    }
    return n;
}

static uint64_t eager_pause_ns(const mpi_t *mpi)
{
    const uint64_t pause_ns = (sl_clock_ns() - mpi->quiet_at_ns) / PATIENCE;

    return pause_ns < EAGER_NS       ? EAGER_NS
           : pause_ns > EAGER_MAX_NS ? EAGER_MAX_NS
                                     : pause_ns;
}

/* Something is on its way, and MPI must be asked to move it. What a failure has
 * dropped never comes, and is asked for at the slowest pace. */
static int is_moving(const mpi_t *mpi)
{
    return mpi->n_leaving > 0 || sl_bells_n_sent(mpi->bells) > mpi->n_come;
}

static uint64_t pause_ns(const mpi_t *mpi, sl_pace_t pace)
{
    if (is_moving(mpi) ||
        (pace == SL_PACE_EAGER && !sl_bells_are_complete(mpi->bells))) {
        return mpi->n_quiet < SPINS ? 0 : eager_pause_ns(mpi);
    }
    if (sl_bells_are_complete(mpi->bells)) {
        return BELL_NS;
    }
    return pace == SL_PACE_IDLE ? IDLE_NS : LAZY_NS;
}

static void mpi_wait(sl_link_t *link, sl_pace_t pace, uint64_t timeout_ns)
{
    mpi_t *mpi = mpi_of(link);
    const uint64_t ns = pause_ns(mpi, pace);

    if (ns > 0 &&
        sl_bells_wait(mpi->bells, ns < timeout_ns ? ns : timeout_ns)) {
        mpi->n_quiet = 0;
    }
}

static void mpi_wake(sl_link_t *link)
{
    sl_bells_wake(mpi_of(link)->bells);
}

/* ---- life ---- */

static sl_status_t begin_mpi(mpi_t *mpi)
{
    int is_begun = 0, is_ended = 0, level = MPI_THREAD_SINGLE;
    sl_status_t status;

    (void)MPI_Initialized(&is_begun);
    (void)MPI_Finalized(&is_ended);
    if (is_ended) {
        SL_FAIL(status, SL_ERR_COMM, out,
                "MPI was finalised: a process can join a job once");
    }
    if (!is_begun) {
        SL_TRY(
            status,
            mpi_status(MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level),
                       "MPI_Init_thread"),
            out);
        mpi->is_owner = 1;
    } else {
        (void)MPI_Query_thread(&level);
    }
    if (level < (mpi->is_owner ? MPI_THREAD_FUNNELED : MPI_THREAD_SERIALIZED)) {
        SL_FAIL(status, SL_ERR_COMM, out,
                "this MPI has thread level %d, too low for a communication "
                "thread",
                level);
    }
    return SL_OK;
out:
    return status;
}

static sl_status_t share_hosts(mpi_t *mpi)
{
    char host[SL_WORLD_HOST_BYTES];
    sl_status_t status;

    mpi->base.hosts = calloc((size_t)mpi->base.size, sizeof(*mpi->base.hosts));
    if (mpi->base.hosts == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "no host memory for %d ranks",
                mpi->base.size);
    }
    sl_link_host_name(host);
    SL_TRY(
        status,
        mpi_status(MPI_Allgather(host, sizeof(host), MPI_CHAR, mpi->base.hosts,
                                 sizeof(host), MPI_CHAR, mpi->control),
                   "MPI_Allgather"),
        out);
out:
    return status;
}

/* What MPI itself says; of others than Open MPI and its kin nothing is
 * known. */
static int is_cuda_aware(void)
{
#if defined(MPIX_CUDA_AWARE_SUPPORT)
    return MPIX_Query_cuda_support();
#else
    return 0;
#endif
}

static sl_status_t mpi_start(sl_link_t *link)
{
    mpi_t *mpi = mpi_of(link);
    sl_status_t status;
    int i;

    SL_TRY(status, begin_mpi(mpi), out);
    SL_TRY(
        status,
        mpi_status(MPI_Comm_dup(MPI_COMM_WORLD, &mpi->control), "MPI_Comm_dup"),
        out);
    SL_TRY(status,
           mpi_status(MPI_Comm_dup(MPI_COMM_WORLD, &mpi->data), "MPI_Comm_dup"),
           out);
    (void)MPI_Comm_set_errhandler(mpi->control, MPI_ERRORS_RETURN);
    (void)MPI_Comm_set_errhandler(mpi->data, MPI_ERRORS_RETURN);
    (void)MPI_Comm_rank(mpi->control, &link->rank);
    (void)MPI_Comm_size(mpi->control, &link->size);
    if (link->size == 1) {
        SL_FAIL(status, SL_ERR_COMM, out,
                "the launcher started several ranks, but MPI sees one: with "
                "srun, use --mpi=pmix");
    }
    SL_TRY(status, share_hosts(mpi), out);
    SL_TRY(status, sl_bells_share(mpi->bells, mpi->control), out);
    link->is_cuda_aware = is_cuda_aware();
    for (i = 0; i < N_INBOXES; i++) {
        SL_TRY(status,
               mpi_status(MPI_Recv_init(&mpi->mail[i], sizeof(mpi->mail[i]),
                                        MPI_BYTE, MPI_ANY_SOURCE, 0,
                                        mpi->control, &mpi->inboxes[i]),
                          "MPI_Recv_init"),
               out);
        SL_TRY(status, mpi_status(MPI_Start(&mpi->inboxes[i]), "MPI_Start"),
               out);
    }
out:
    return status;
}

static int has_letters(const mpi_t *mpi)
{
    int i;

    for (i = 0; i < mpi->n; i++) {
        if (mpi->owners[i].letter != NULL) {
            return 1;
        }
    }
    return 0;
}

/* The last words are heard, if there is somebody to hear them. */
static void flush_letters(mpi_t *mpi)
{
    const uint64_t until_ns = sl_clock_ns() + STOP_NS;

    while (has_letters(mpi) && sl_clock_ns() < until_ns) {
        (void)test_requests(mpi);
        (void)sched_yield();
    }
}

/* mpirun ends the others, also one that is stopped. One rank asks for it, the
 * others give it time. */
static void end_job(mpi_t *mpi, int is_first)
{
    if (!is_first) {
        (void)sleep(3);
    }
    (void)fflush(NULL);
    (void)MPI_Abort(mpi->control, EXIT_FAILURE);
}

static void mpi_stop(sl_link_t *link, sl_stop_t how)
{
    mpi_t *mpi = mpi_of(link);
    int i;

    flush_letters(mpi);
    if (how == SL_STOP_LOST_FIRST || how == SL_STOP_LOST) {
        end_job(mpi, how == SL_STOP_LOST_FIRST);
    }
    for (i = 0; i < N_INBOXES; i++) {
        (void)MPI_Cancel(&mpi->inboxes[i]);
        (void)MPI_Wait(&mpi->inboxes[i], MPI_STATUS_IGNORE);
        (void)MPI_Request_free(&mpi->inboxes[i]);
    }
    if (how == SL_STOP_CLEAN) {
        sl_bells_unshare(mpi->bells);
        (void)MPI_Comm_free(&mpi->data);
        (void)MPI_Comm_free(&mpi->control);
    }
    if (mpi->is_owner) {
        (void)MPI_Finalize();
    }
}

static void mpi_destroy(sl_link_t *link)
{
    mpi_t *mpi = mpi_of(link);
    int i;

    for (i = 0; i < mpi->n; i++) {
        free(mpi->owners[i].letter);
    }
    sl_bells_destroy(mpi->bells);
    free(mpi->requests);
    free(mpi->owners);
    free(mpi->found);
    free(mpi->statuses);
    free(link->hosts);
    free(mpi);
}

static const sl_link_ops_t mpi_ops = {
    .name = "mpi",
    .waits_for_all = 1,
    .start = mpi_start,
    .control = mpi_control,
    .send = mpi_send,
    .receive = mpi_receive,
    .drop = mpi_drop,
    .poll = mpi_poll,
    .wait = mpi_wait,
    .wake = mpi_wake,
    .stop = mpi_stop,
    .destroy = mpi_destroy,
};

sl_status_t sl_link_mpi_create(sl_link_t **link_p)
{
    mpi_t *mpi = calloc(1, sizeof(*mpi));
    sl_status_t status;

    if (mpi == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "no host memory for a link");
    }
    mpi->base.ops = &mpi_ops;
    mpi->bells = sl_bells_create();
    if (mpi->bells == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, err_free,
                "no host memory for a link");
    }
    *link_p = &mpi->base;
    return SL_OK;

err_free:
    free(mpi);
out:
    return status;
}
