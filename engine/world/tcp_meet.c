/* SPDX-License-Identifier: Apache-2.0 */
/* How ranks meet: all go to rank 0 and say where they listen, rank 0 tells all,
 * and every rank connects with those before it. */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/world/tcp_internal.h"

enum {
    VERSION = 1,
    HELLO_S = 5 /* for a stranger to say who it is */
};

static const uint64_t MAGIC = 0x736c756963653031; /* "sluice01" */
static const uint64_t RETRY_NS = 100000000;

typedef struct hello {
    uint64_t magic;
    uint32_t version, control_bytes;
    int32_t rank, size;
    uint32_t port; /* where it listens, in network order */
    char host[SL_WORLD_HOST_BYTES];
} hello_t;

typedef struct entry {
    struct sockaddr_storage address;
    uint32_t address_bytes;
    char host[SL_WORLD_HOST_BYTES];
} entry_t;

/* One rank's view of the meeting. */
typedef struct meeting {
    const sl_tcp_place_t *place;
    uint64_t until_ns;
    int listener;
    int *sockets;
    entry_t *table; /* owned */
} meeting_t;

/* ---- the environment ---- */

static int read_number(const char *name, int max, int *value_p)
{
    const char *text = getenv(name);
    char *end = NULL;
    long value;

    if (text == NULL || *text == '\0') {
        return 0;
    }
    errno = 0;
    value = strtol(text, &end, 10);
    if (*end != '\0' || errno != 0 || value < 0 || value > max) {
        return 0;
    }
    *value_p = (int)value;
    return 1;
}

/* host:port or [address]:port */
static int split_address(const char *text, sl_tcp_place_t *place)
{
    const char *colon = text == NULL ? NULL : strrchr(text, ':');
    size_t n;

    if (colon == NULL || colon == text || colon[1] == '\0' ||
        strlen(colon + 1) >= sizeof(place->port)) {
        return 0;
    }
    n = (size_t)(colon - text);
    if (text[0] == '[' && text[n - 1] == ']') {
        text++;
        n -= 2;
    }
    if (n == 0 || n >= sizeof(place->host)) {
        return 0;
    }
    memcpy(place->host, text, n);
    place->host[n] = '\0';
    (void)snprintf(place->port, sizeof(place->port), "%s", colon + 1);
    return 1;
}

sl_status_t sl_tcp_place_of_environment(sl_tcp_place_t *place)
{
    sl_status_t status;

    if (!read_number("SLUICE_RANK", SL_WORLD_MAX_RANKS, &place->rank) ||
        !read_number("SLUICE_WORLD", SL_WORLD_MAX_RANKS, &place->size) ||
        place->rank >= place->size) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "SLUICE_RANK (0 to ranks - 1) and SLUICE_WORLD (the number of "
                "ranks) must both be set and fit");
    }
    if (place->size > 1 && !split_address(getenv("SLUICE_MASTER"), place)) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "SLUICE_MASTER must be host:port or [address]:port, where "
                "rank 0 is");
    }
    return SL_OK;
out:
    return status;
}

/* ---- sockets ---- */

static int ms_left(const meeting_t *meeting)
{
    const uint64_t now_ns = sl_clock_ns();

    return now_ns >= meeting->until_ns
               ? 0
               : (int)((meeting->until_ns - now_ns) / 1000000) + 1;
}

static void set_timeout(int fd, int ms)
{
    const struct timeval timeout = {.tv_sec = ms / 1000,
                                    .tv_usec = ms % 1000 * 1000 + 1};

    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
}

static int send_whole(int fd, const void *data, size_t bytes)
{
    const char *at = data;

    while (bytes > 0) {
        const ssize_t n = send(fd, at, bytes, MSG_NOSIGNAL);

        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return 0;
        }
        at += n;
        bytes -= (size_t)n;
    }
    return 1;
}

static int receive_whole(int fd, void *data, size_t bytes)
{
    char *at = data;

    while (bytes > 0) {
        const ssize_t n = recv(fd, at, bytes, 0);

        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return 0;
        }
        at += n;
        bytes -= (size_t)n;
    }
    return 1;
}

static uint32_t port_of(const struct sockaddr_storage *address)
{
    return address->ss_family == AF_INET6
               ? ((const struct sockaddr_in6 *)address)->sin6_port
               : ((const struct sockaddr_in *)address)->sin_port;
}

static void set_port(struct sockaddr_storage *address, uint32_t port)
{
    if (address->ss_family == AF_INET6) {
        ((struct sockaddr_in6 *)address)->sin6_port = (in_port_t)port;
    } else {
        ((struct sockaddr_in *)address)->sin_port = (in_port_t)port;
    }
}

static int listen_at(const struct sockaddr *address, socklen_t bytes)
{
    const int on = 1;
    const int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd >= 0) {
        (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
        if (bind(fd, address, bytes) == 0 && listen(fd, SOMAXCONN) == 0) {
            return fd;
        }
        (void)close(fd);
    }
    return -1;
}

static int connect_to(const struct sockaddr *address, socklen_t bytes,
                      int timeout_ms)
{
    const int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0) {
        return -1;
    }
    set_timeout(fd, timeout_ms);
    if (connect(fd, address, bytes) != 0) {
        const int error = errno;

        (void)close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

/* ---- saying who one is ---- */

static hello_t own_hello(const meeting_t *meeting)
{
    struct sockaddr_storage address = {0};
    socklen_t bytes = sizeof(address);
    hello_t hello = {.magic = MAGIC,
                     .version = VERSION,
                     .control_bytes = sizeof(sl_notice_t),
                     .rank = meeting->place->rank,
                     .size = meeting->place->size};

    (void)getsockname(meeting->listener, (struct sockaddr *)&address, &bytes);
    hello.port = port_of(&address);
    sl_link_host_name(hello.host);
    return hello;
}

static int is_expected(const meeting_t *meeting, const hello_t *hello)
{
    return hello->magic == MAGIC && hello->version == VERSION &&
           hello->control_bytes == sizeof(sl_notice_t) &&
           hello->size == meeting->place->size &&
           hello->rank > meeting->place->rank &&
           hello->rank < meeting->place->size &&
           meeting->sockets[hello->rank] < 0;
}

/* Waits for a rank that is still missing; others are sent away. */
static sl_status_t accept_one(meeting_t *meeting, hello_t *hello)
{
    sl_status_t status;

    for (;;) {
        struct pollfd listener = {.fd = meeting->listener, .events = POLLIN};
        const int n = poll(&listener, 1, ms_left(meeting));
        int fd;

        if (n == 0 || ms_left(meeting) == 0) {
            SL_FAIL(status, SL_ERR_COMM, out,
                    "rank %d of %d: some of the others have not come in time",
                    meeting->place->rank, meeting->place->size);
        }
        /* after a signal there may be nobody */
        fd = n > 0 ? accept(meeting->listener, NULL, NULL) : -1;
        if (fd < 0) {
            continue;
        }
        set_timeout(fd, HELLO_S * 1000);
        if (receive_whole(fd, hello, sizeof(*hello)) &&
            is_expected(meeting, hello)) {
            hello->host[sizeof(hello->host) - 1] = '\0';
            meeting->sockets[hello->rank] = fd;
            return SL_OK;
        }
        sl_warn("rank %d: a stranger, or a rank of another job or version, "
                "was sent away",
                meeting->place->rank);
        (void)close(fd);
    }
out:
    return status;
}

/* ---- rank 0 ---- */

static struct addrinfo *resolve(const meeting_t *meeting, int is_passive)
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC,
                                   .ai_socktype = SOCK_STREAM,
                                   .ai_flags = is_passive ? AI_PASSIVE : 0};
    struct addrinfo *list = NULL;

    return getaddrinfo(meeting->place->host, meeting->place->port, &hints,
                       &list) == 0
               ? list
               : NULL;
}

static sl_status_t open_at_master(meeting_t *meeting)
{
    const sl_tcp_place_t *place = meeting->place;
    struct addrinfo *list = resolve(meeting, 1);
    const struct addrinfo *at;
    sl_status_t status;

    for (at = list; at != NULL && meeting->listener < 0; at = at->ai_next) {
        meeting->listener = listen_at(at->ai_addr, at->ai_addrlen);
    }
    if (list != NULL) {
        freeaddrinfo(list);
    }
    if (meeting->listener < 0) {
        SL_FAIL(status, SL_ERR_COMM, out,
                "rank 0 cannot listen at SLUICE_MASTER %s port %s: %s",
                place->host, place->port, strerror(errno));
    }
    return SL_OK;
out:
    return status;
}

static sl_status_t gather_all(meeting_t *meeting)
{
    const int size = meeting->place->size;
    const size_t bytes = (size_t)size * sizeof(*meeting->table);
    sl_status_t status;
    int i;

    SL_TRY(status, open_at_master(meeting), out);
    sl_link_host_name(meeting->table[0].host);
    for (i = 1; i < size; i++) {
        hello_t hello;
        entry_t *entry;
        socklen_t n = sizeof(entry->address);

        SL_TRY(status, accept_one(meeting, &hello), out);
        entry = &meeting->table[hello.rank];
        (void)getpeername(meeting->sockets[hello.rank],
                          (struct sockaddr *)&entry->address, &n);
        entry->address_bytes = n;
        set_port(&entry->address, hello.port);
        memcpy(entry->host, hello.host, sizeof(entry->host));
    }
    for (i = 1; i < size; i++) {
        if (!send_whole(meeting->sockets[i], meeting->table, bytes)) {
            SL_FAIL(status, SL_ERR_COMM, out, "rank %d went away again", i);
        }
    }
out:
    return status;
}

/* ---- the others ---- */

/* Rank 0 may start later than we do. */
static sl_status_t connect_to_master(meeting_t *meeting)
{
    const struct timespec pause = {.tv_nsec = (long)RETRY_NS};
    sl_status_t status;

    while (meeting->sockets[0] < 0 && ms_left(meeting) > 0) {
        struct addrinfo *list = resolve(meeting, 0);
        const struct addrinfo *at;

        for (at = list; at != NULL && meeting->sockets[0] < 0;
             at = at->ai_next) {
            meeting->sockets[0] =
                connect_to(at->ai_addr, at->ai_addrlen, ms_left(meeting));
        }
        if (list != NULL) {
            freeaddrinfo(list);
        }
        if (meeting->sockets[0] < 0) {
            (void)nanosleep(&pause, NULL);
        }
    }
    if (meeting->sockets[0] < 0) {
        SL_FAIL(status, SL_ERR_COMM, out,
                "rank %d of %d: rank 0 at SLUICE_MASTER %s port %s cannot be "
                "reached",
                meeting->place->rank, meeting->place->size,
                meeting->place->host, meeting->place->port);
    }
    return SL_OK;
out:
    return status;
}

/* On the address that reaches rank 0, and on no other. */
static sl_status_t open_beside(meeting_t *meeting)
{
    struct sockaddr_storage address = {0};
    socklen_t bytes = sizeof(address);
    sl_status_t status;

    (void)getsockname(meeting->sockets[0], (struct sockaddr *)&address, &bytes);
    set_port(&address, 0);
    meeting->listener = listen_at((struct sockaddr *)&address, bytes);
    if (meeting->listener < 0) {
        SL_FAIL(status, SL_ERR_COMM, out, "rank %d cannot listen: %s",
                meeting->place->rank, strerror(errno));
    }
    return SL_OK;
out:
    return status;
}

static sl_status_t join_all(meeting_t *meeting)
{
    const int size = meeting->place->size, rank = meeting->place->rank;
    const size_t bytes = (size_t)size * sizeof(*meeting->table);
    hello_t hello;
    sl_status_t status;
    int i;

    SL_TRY(status, connect_to_master(meeting), out);
    SL_TRY(status, open_beside(meeting), out);
    hello = own_hello(meeting);
    if (!send_whole(meeting->sockets[0], &hello, sizeof(hello)) ||
        !receive_whole(meeting->sockets[0], meeting->table, bytes)) {
        SL_FAIL(status, SL_ERR_COMM, out,
                "rank %d of %d: rank 0 did not let it in: are the number of "
                "ranks and the version the same, and is no rank there twice?",
                rank, size);
    }
    for (i = 1; i < rank; i++) {
        const entry_t *entry = &meeting->table[i];

        meeting->sockets[i] =
            connect_to((const struct sockaddr *)&entry->address,
                       entry->address_bytes, ms_left(meeting));
        if (meeting->sockets[i] < 0 ||
            !send_whole(meeting->sockets[i], &hello, sizeof(hello))) {
            SL_FAIL(status, SL_ERR_COMM, out,
                    "rank %d cannot reach rank %d on host %s: %s", rank, i,
                    entry->host, strerror(errno));
        }
    }
    for (i = rank + 1; i < size; i++) {
        SL_TRY(status, accept_one(meeting, &hello), out);
    }
out:
    return status;
}

sl_status_t sl_tcp_meet(const sl_tcp_place_t *place, uint64_t timeout_ns,
                        int *sockets, char (*hosts)[SL_WORLD_HOST_BYTES])
{
    meeting_t meeting = {.place = place,
                         .until_ns = sl_clock_ns() + timeout_ns,
                         .listener = -1,
                         .sockets = sockets};
    sl_status_t status = SL_OK;
    int i;

    for (i = 0; i < place->size; i++) {
        sockets[i] = -1;
    }
    meeting.table = calloc((unsigned)place->size, sizeof(*meeting.table));
    if (meeting.table == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "no host memory for %d ranks",
                place->size);
    }
    if (place->size == 1) {
        sl_link_host_name(meeting.table[0].host);
    } else if (place->rank == 0) {
        status = gather_all(&meeting);
    } else {
        status = join_all(&meeting);
    }
    for (i = 0; i < place->size; i++) {
        memcpy(hosts[i], meeting.table[i].host, SL_WORLD_HOST_BYTES);
        hosts[i][SL_WORLD_HOST_BYTES - 1] = '\0';
    }
out:
    if (meeting.listener >= 0) {
        (void)close(meeting.listener);
    }
    for (i = 0; status < 0 && i < place->size; i++) {
        if (sockets[i] >= 0) {
            (void)close(sockets[i]);
            sockets[i] = -1;
        }
    }
    free(meeting.table);
    return status;
}
