/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks over plain sockets, one between any two. Control messages and pieces
 * of messages take turns on it, so pieces are small here. epoll sleeps until
 * something comes. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "engine/world/tcp_internal.h"

enum {
    N_EVENTS = 32,
    FRAMES_PER_POLL = 64, /* of one peer, so that others get their turn */
    NOTICE_TAG = -1
};

static const size_t PIECE_BYTES = (size_t)1 << 20;
static const uint64_t MEET_NS = 60000000000;
static const uint64_t STOP_NS = 1000000000; /* for the last words */

typedef struct frame {
    int32_t tag; /* NOTICE_TAG: a control message */
    uint32_t bytes;
} frame_t;

typedef struct letter {
    struct letter *next;
    size_t bytes;
    sl_notice_t notice;
} letter_t;

typedef struct queue {
    sl_xfer_t *first, **end;
} queue_t;

typedef struct peer {
    int fd; /* -1: none, or closed */
    int can_read, can_write;
    queue_t sends, posted;
    letter_t *letters, **letters_end; /* go before the sends */
    /* the frame being written, and the one being read */
    frame_t out, in;
    size_t n_out, n_in; /* bytes of it so far, with its head */
    letter_t *out_letter;
    sl_xfer_t *out_xfer, *in_xfer;
    char *in_at;
    sl_notice_t in_notice;
} peer_t;

typedef struct tcp {
    sl_link_t base;
    sl_tcp_place_t place;
    peer_t *peers;
    int epoll_fd, wake_fd;
    atomic_int is_woken;
} tcp_t;

static tcp_t *tcp_of(sl_link_t *link)
{
    return (tcp_t *)link;
}

static void queue_init(queue_t *queue)
{
    queue->first = NULL;
    queue->end = &queue->first;
}

static void queue_add(queue_t *queue, sl_xfer_t *xfer)
{
    xfer->next = NULL;
    *queue->end = xfer;
    queue->end = &xfer->next;
}

static void queue_remove(queue_t *queue, const sl_xfer_t *xfer)
{
    sl_xfer_t **at = &queue->first;

    while (*at != NULL && *at != xfer) {
        at = &(*at)->next;
    }
    if (*at != NULL) {
        *at = xfer->next;
        if (xfer->next == NULL) {
            queue->end = at;
        }
    }
}

static void hang_up(peer_t *peer)
{
    if (peer->fd >= 0) {
        (void)close(peer->fd);
        peer->fd = -1;
    }
    peer->can_read = peer->can_write = 0;
}

static void lose(tcp_t *tcp, int rank, const char *why)
{
    hang_up(&tcp->peers[rank]);
    sl_world_on_lost(tcp->base.world, rank, why);
}

/* ---- writing ---- */

static sl_status_t tcp_control(sl_link_t *link, int rank, const void *data,
                               size_t bytes)
{
    peer_t *peer = &tcp_of(link)->peers[rank];
    letter_t *letter;
    sl_status_t status;

    if (peer->fd < 0) {
        return SL_OK; /* which is known already */
    }
    letter = malloc(sizeof(*letter));
    if (letter == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "no host memory for a message");
    }
    letter->next = NULL;
    letter->bytes = bytes;
    memcpy(&letter->notice, data, bytes);
    *peer->letters_end = letter;
    peer->letters_end = &letter->next;
    return SL_OK;
out:
    return status;
}

static sl_status_t tcp_send(sl_link_t *link, sl_xfer_t *xfer)
{
    queue_add(&tcp_of(link)->peers[xfer->peer].sends, xfer);
    return SL_OK;
}

/* Chooses what goes next; 0 when there is nothing. */
static int begin_frame(peer_t *peer)
{
    if (peer->letters != NULL) {
        peer->out_letter = peer->letters;
        peer->letters = peer->letters->next;
        if (peer->letters == NULL) {
            peer->letters_end = &peer->letters;
        }
        peer->out = (frame_t){.tag = NOTICE_TAG,
                              .bytes = (uint32_t)peer->out_letter->bytes};
    } else if (peer->sends.first != NULL) {
        peer->out_xfer = peer->sends.first;
        queue_remove(&peer->sends, peer->out_xfer);
        peer->out = (frame_t){.tag = peer->out_xfer->tag,
                              .bytes = (uint32_t)peer->out_xfer->bytes};
    } else {
        return 0;
    }
    peer->n_out = 0;
    return 1;
}

/* Bytes written, 0 when the socket is full, below 0 when it is broken. */
static ssize_t write_some(peer_t *peer)
{
    const void *body = peer->out_letter != NULL
                           ? (const void *)&peer->out_letter->notice
                           : peer->out_xfer->source;
    const size_t head = sizeof(peer->out), total = head + peer->out.bytes;
    struct iovec parts[2];
    struct msghdr message = {.msg_iov = parts};
    ssize_t n;

    if (peer->n_out < head) {
        parts[0].iov_base = (char *)&peer->out + peer->n_out;
        parts[0].iov_len = head - peer->n_out;
        message.msg_iovlen = 1;
    }
    if (total > head) {
        const size_t done = peer->n_out > head ? peer->n_out - head : 0;

        parts[message.msg_iovlen].iov_base = (void *)((uintptr_t)body + done);
        parts[message.msg_iovlen++].iov_len = peer->out.bytes - done;
    }
    do {
        n = sendmsg(peer->fd, &message, MSG_NOSIGNAL);
    } while (n < 0 && errno == EINTR);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        return 0;
    }
    return n;
}

/* Writes until there is nothing left or the socket is full. */
static int write_peer(tcp_t *tcp, int rank)
{
    peer_t *peer = &tcp->peers[rank];
    int n_frames = 0;

    while (peer->can_write && n_frames < FRAMES_PER_POLL) {
        const int has_frame =
            peer->out_letter != NULL || peer->out_xfer != NULL;
        sl_xfer_t *xfer;
        ssize_t n;

        if (!has_frame && !begin_frame(peer)) {
            break;
        }
        n = write_some(peer);
        if (n < 0) {
            lose(tcp, rank, strerror(errno));
            break;
        }
        if (n == 0) {
            peer->can_write = 0;
            break;
        }
        peer->n_out += (size_t)n;
        if (peer->n_out < sizeof(peer->out) + peer->out.bytes) {
            continue;
        }
        n_frames++;
        xfer = peer->out_xfer;
        free(peer->out_letter);
        peer->out_letter = NULL;
        peer->out_xfer = NULL;
        if (xfer != NULL) {
            sl_world_on_xfer(tcp->base.world, xfer);
        }
    }
    return n_frames;
}

/* ---- reading ---- */

static sl_status_t tcp_receive(sl_link_t *link, sl_xfer_t *xfer)
{
    queue_add(&tcp_of(link)->peers[xfer->peer].posted, xfer);
    return SL_OK;
}

/* Bytes read, 0 when there is none now, below 0 when the socket is broken. */
static ssize_t read_some(peer_t *peer, void *to, size_t bytes)
{
    ssize_t n;

    do {
        n = recv(peer->fd, to, bytes, 0);
    } while (n < 0 && errno == EINTR);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        peer->can_read = 0;
        return 0;
    }
    if (n == 0) {
        errno = ECONNRESET;
        return -1;
    }
    return n;
}

/* Finds where the body goes; 0 when it fits nowhere. */
static int begin_body(peer_t *peer)
{
    sl_xfer_t *xfer = peer->posted.first;

    if (peer->in.tag == NOTICE_TAG) {
        peer->in_at = (char *)&peer->in_notice;
        return peer->in.bytes <= sizeof(peer->in_notice);
    }
    while (xfer != NULL && xfer->tag != peer->in.tag) {
        xfer = xfer->next;
    }
    if (xfer == NULL || peer->in.bytes > xfer->bytes) {
        return 0;
    }
    queue_remove(&peer->posted, xfer);
    xfer->bytes = peer->in.bytes;
    peer->in_xfer = xfer;
    peer->in_at = xfer->target;
    return 1;
}

static void end_body(tcp_t *tcp, int rank)
{
    peer_t *peer = &tcp->peers[rank];
    sl_xfer_t *xfer = peer->in_xfer;

    peer->n_in = 0;
    peer->in_xfer = NULL;
    if (xfer != NULL) {
        sl_world_on_xfer(tcp->base.world, xfer);
    } else {
        sl_world_on_control(tcp->base.world, rank, &peer->in_notice,
                            peer->in.bytes);
    }
}

/* One step; 1 when a frame has ended. */
static int read_step(tcp_t *tcp, int rank)
{
    peer_t *peer = &tcp->peers[rank];
    const size_t head = sizeof(peer->in);
    ssize_t n;

    if (peer->n_in < head) {
        n = read_some(peer, (char *)&peer->in + peer->n_in, head - peer->n_in);
    } else {
        n = read_some(peer, peer->in_at + (peer->n_in - head),
                      head + peer->in.bytes - peer->n_in);
    }
    if (n < 0) {
        lose(tcp, rank, "its connection ended");
        return 0;
    }
    if (n == 0) {
        return 0;
    }
    peer->n_in += (size_t)n;
    if (peer->n_in == head && !begin_body(peer)) {
        lose(tcp, rank, "it sent what was not asked for");
        return 0;
    }
    if (peer->n_in < head || peer->n_in < head + peer->in.bytes) {
        return 0;
    }
    end_body(tcp, rank);
    return 1;
}

static int read_peer(tcp_t *tcp, int rank)
{
    int n_frames = 0;

    while (tcp->peers[rank].can_read && n_frames < FRAMES_PER_POLL) {
        n_frames += read_step(tcp, rank);
    }
    return n_frames;
}

/* A transfer in the middle of a frame ends the connection: what follows would
 * have no meaning. */
static void tcp_drop(sl_link_t *link, sl_xfer_t *xfer)
{
    peer_t *peer = &tcp_of(link)->peers[xfer->peer];

    if (peer->out_xfer == xfer || peer->in_xfer == xfer) {
        hang_up(peer);
        peer->out_xfer = peer->out_xfer == xfer ? NULL : peer->out_xfer;
        peer->in_xfer = peer->in_xfer == xfer ? NULL : peer->in_xfer;
        return;
    }
    queue_remove(xfer->is_receive ? &peer->posted : &peer->sends, xfer);
}

/* ---- waiting ---- */

/* Returns whether somebody woke us: then there is something in the inbox. */
static int take_events(tcp_t *tcp, int timeout_ms)
{
    struct epoll_event events[N_EVENTS];
    const int n = epoll_wait(tcp->epoll_fd, events, N_EVENTS, timeout_ms);
    int i, is_woken = 0;

    for (i = 0; i < n; i++) {
        const uint32_t rank = events[i].data.u32;
        uint64_t count;

        if (rank == (uint32_t)tcp->base.size) {
            /* in this order: a wake in between is one for nothing */
            (void)!read(tcp->wake_fd, &count, sizeof(count));
            atomic_store(&tcp->is_woken, 0);
            is_woken = 1;
            continue;
        }
        tcp->peers[rank].can_read |=
            (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0;
        tcp->peers[rank].can_write |= (events[i].events & EPOLLOUT) != 0;
    }
    return is_woken;
}

static int write_all(tcp_t *tcp)
{
    int n = 0, rank;

    for (rank = 0; rank < tcp->base.size; rank++) {
        n += write_peer(tcp, rank);
    }
    return n;
}

static int tcp_poll(sl_link_t *link)
{
    tcp_t *tcp = tcp_of(link);
    int n = take_events(tcp, 0), rank;

    n += write_all(tcp);
    for (rank = 0; rank < link->size; rank++) {
        n += read_peer(tcp, rank);
    }
    return n;
}

static void tcp_wait(sl_link_t *link, sl_pace_t pace, uint64_t timeout_ns)
{
    const uint64_t ms = timeout_ns / 1000000 + 1;
    tcp_t *tcp = tcp_of(link);

    (void)pace;
    if (write_all(tcp) == 0) {
        (void)take_events(tcp, ms > 1000 ? 1000 : (int)ms);
    }
}

static void tcp_wake(sl_link_t *link)
{
    tcp_t *tcp = tcp_of(link);
    const uint64_t one = 1;

    if (!atomic_exchange(&tcp->is_woken, 1)) {
        (void)!write(tcp->wake_fd, &one, sizeof(one));
    }
}

/* ---- life ---- */

static sl_status_t watch_socket(tcp_t *tcp, int fd, uint32_t rank)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET,
                                .data.u32 = rank};
    const int on = 1;
    sl_status_t status;

    if (rank == (uint32_t)tcp->base.size) {
        event.events = EPOLLIN;
    } else {
        (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    }
    if (epoll_ctl(tcp->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
        SL_FAIL(status, SL_ERR_COMM, out, "a socket cannot be watched: %s",
                strerror(errno));
    }
    return SL_OK;
out:
    return status;
}

static sl_status_t make_room(tcp_t *tcp, int **sockets_p)
{
    const size_t size = (size_t)tcp->place.size;
    sl_status_t status;
    size_t i;

    tcp->peers = calloc(size, sizeof(*tcp->peers));
    tcp->base.hosts = calloc(size, sizeof(*tcp->base.hosts));
    *sockets_p = calloc(size, sizeof(**sockets_p));
    if (tcp->peers == NULL || tcp->base.hosts == NULL || *sockets_p == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "no host memory for %zu ranks",
                size);
    }
    for (i = 0; i < size; i++) {
        peer_t *peer = &tcp->peers[i];

        peer->fd = -1;
        queue_init(&peer->sends);
        queue_init(&peer->posted);
        peer->letters_end = &peer->letters;
    }
    return SL_OK;
out:
    return status;
}

static sl_status_t tcp_start(sl_link_t *link)
{
    tcp_t *tcp = tcp_of(link);
    int *sockets = NULL;
    sl_status_t status;
    int i;

    SL_TRY(status, make_room(tcp, &sockets), out);
    SL_TRY(status, sl_tcp_meet(&tcp->place, MEET_NS, sockets, link->hosts),
           out);
    link->rank = tcp->place.rank;
    link->size = tcp->place.size;
    if (link->world->piece_bytes > PIECE_BYTES) {
        link->world->piece_bytes = PIECE_BYTES;
    }
    for (i = 0; i < link->size; i++) {
        tcp->peers[i].fd = sockets[i];
    }
    tcp->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    tcp->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    SL_TRY(status, watch_socket(tcp, tcp->wake_fd, (uint32_t)link->size), out);
    for (i = 0; i < link->size; i++) {
        if (sockets[i] >= 0) {
            SL_TRY(status, watch_socket(tcp, sockets[i], (uint32_t)i), out);
        }
    }
out:
    free(sockets);
    return status;
}

static int has_last_words(const peer_t *peer)
{
    return peer->fd >= 0 && (peer->letters != NULL || peer->out_letter != NULL);
}

/* Says the last words, then reads on until the other side has ended too: a
 * close with something unread would cut off what it has yet to read. */
static void part(tcp_t *tcp, uint64_t until_ns)
{
    char rest[4096];
    int rank, is_done = 0;

    while (!is_done && sl_clock_ns() < until_ns) {
        is_done = 1;
        (void)take_events(tcp, 1);
        for (rank = 0; rank < tcp->base.size; rank++) {
            peer_t *peer = &tcp->peers[rank];

            if (peer->fd < 0) {
                continue;
            }
            if (has_last_words(peer)) {
                (void)write_peer(tcp, rank);
                is_done = 0;
                continue;
            }
            (void)shutdown(peer->fd, SHUT_WR);
            if (recv(peer->fd, rest, sizeof(rest), MSG_DONTWAIT) == 0) {
                hang_up(peer);
            } else {
                is_done = 0;
            }
        }
    }
}

static void tcp_stop(sl_link_t *link, sl_stop_t how)
{
    tcp_t *tcp = tcp_of(link);
    int rank;

    if (how != SL_STOP_UNMET) {
        part(tcp, sl_clock_ns() + STOP_NS);
    }
    for (rank = 0; rank < link->size; rank++) {
        hang_up(&tcp->peers[rank]);
    }
}

static void tcp_destroy(sl_link_t *link)
{
    tcp_t *tcp = tcp_of(link);
    int rank;

    for (rank = 0; tcp->peers != NULL && rank < tcp->place.size; rank++) {
        peer_t *peer = &tcp->peers[rank];

        hang_up(peer);
        free(peer->out_letter);
        while (peer->letters != NULL) {
            letter_t *next = peer->letters->next;

            free(peer->letters);
            peer->letters = next;
        }
    }
    if (tcp->epoll_fd >= 0) {
        (void)close(tcp->epoll_fd);
    }
    if (tcp->wake_fd >= 0) {
        (void)close(tcp->wake_fd);
    }
    free(tcp->peers);
    free(link->hosts);
    free(tcp);
}

static const sl_link_ops_t tcp_ops = {
    .name = "tcp",
    .start = tcp_start,
    .control = tcp_control,
    .send = tcp_send,
    .receive = tcp_receive,
    .drop = tcp_drop,
    .poll = tcp_poll,
    .wait = tcp_wait,
    .wake = tcp_wake,
    .stop = tcp_stop,
    .destroy = tcp_destroy,
};

sl_status_t sl_link_tcp_create(sl_link_t **link_p)
{
    tcp_t *tcp = calloc(1, sizeof(*tcp));
    sl_status_t status;

    if (tcp == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "no host memory for a link");
    }
    SL_TRY(status, sl_tcp_place_of_environment(&tcp->place), err_free);
    if (tcp->place.size == 1) {
        free(tcp);
        *link_p = NULL;
        return SL_OK;
    }
    tcp->base.ops = &tcp_ops;
    tcp->epoll_fd = tcp->wake_fd = -1;
    *link_p = &tcp->base;
    return SL_OK;
err_free:
    free(tcp);
out:
    return status;
}
