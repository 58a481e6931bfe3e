/* SPDX-License-Identifier: Apache-2.0 */
/* A slow, lossy cable between two network interfaces, for kernels without
 * netem:
 *   relay INTERFACE INTERFACE DELAY_MS LOSS_PERCENT
 * Frames go from each to the other, all delayed alike, some dropped (by a
 * fixed sequence of random numbers). Runs until it is killed. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* offsets of the packet socket's structures */
#endif
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <linux/virtio_net.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    FRAME_BYTES = 70000, /* with segmentation left to the device */
    N_FRAMES_MAX = 4096, /* on their way in one direction */
    BUFFER_BYTES = 8 << 20
};

typedef struct frame {
    struct frame *next;
    uint64_t due_ns;
    size_t n_bytes;
    char bytes[];
} frame_t;

typedef struct way {
    int from, to;
    frame_t *first, **last_p;
    int n;
} way_t;

static uint64_t now_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* With the header that says which checksums and cuts are still to be made:
 * between the ends of a veth pair nobody makes them. */
static int open_interface(const char *name)
{
    const int fd =
        socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK, htons(ETH_P_ALL));
    const int on = 1;
    const int buffer = BUFFER_BYTES;
    struct sockaddr_ll address;
    struct packet_mreq everything;

    memset(&address, 0, sizeof(address));
    address.sll_family = AF_PACKET;
    address.sll_protocol = htons(ETH_P_ALL);
    address.sll_ifindex = (int)if_nametoindex(name);
    memset(&everything, 0, sizeof(everything));
    everything.mr_ifindex = address.sll_ifindex;
    everything.mr_type = PACKET_MR_PROMISC;
    if (fd < 0 || address.sll_ifindex == 0 ||
        setsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &on, sizeof(on)) != 0 ||
        setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof(on)) !=
            0 ||
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof(buffer)) != 0 ||
        bind(fd, (const struct sockaddr *)&address, sizeof(address)) != 0 ||
        setsockopt(fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &everything,
                   sizeof(everything)) != 0) {
        (void)fprintf(stderr, "relay: %s: %s\n", name, strerror(errno));
        exit(1);
    }
    return fd;
}

static void take(way_t *way, uint64_t delay_ns, double loss)
{
    static char bytes[FRAME_BYTES];
    static uint64_t random = 88172645463325252u;
    ssize_t n;

    while ((n = recv(way->from, bytes, sizeof(bytes), 0)) > 0) {
        frame_t *frame;

        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        if ((double)(random >> 11) * 0x1p-53 < loss || way->n == N_FRAMES_MAX) {
            continue;
        }
        frame = malloc(sizeof(*frame) + (size_t)n);
        if (frame == NULL) {
            continue;
        }
        frame->next = NULL;
        frame->due_ns = now_ns() + delay_ns;
        frame->n_bytes = (size_t)n;
        memcpy(frame->bytes, bytes, (size_t)n);
        *way->last_p = frame;
        way->last_p = &frame->next;
        way->n++;
    }
}

static void hand_over(way_t *way)
{
    const uint64_t now = now_ns();

    while (way->first != NULL && way->first->due_ns <= now) {
        frame_t *frame = way->first;

        if (send(way->to, frame->bytes, frame->n_bytes, 0) < 0 &&
            (errno == EAGAIN || errno == ENOBUFS)) {
            return;
        }
        way->first = frame->next;
        if (way->first == NULL) {
            way->last_p = &way->first;
        }
        way->n--;
        free(frame);
    }
}

static int wait_ms(const way_t *ways)
{
    const uint64_t now = now_ns();
    uint64_t due_ns = UINT64_MAX;
    int i;

    for (i = 0; i < 2; i++) {
        if (ways[i].first != NULL && ways[i].first->due_ns < due_ns) {
            due_ns = ways[i].first->due_ns;
        }
    }
    if (due_ns == UINT64_MAX) {
        return -1;
    }
    return due_ns <= now ? 0 : (int)((due_ns - now) / 1000000u) + 1;
}

int main(int argc, char **argv)
{
    struct pollfd fds[2];
    way_t ways[2];
    uint64_t delay_ns;
    double loss;
    int i;

    if (argc != 5) {
        (void)fprintf(stderr, "relay INTERFACE INTERFACE DELAY_MS LOSS\n");
        return 2;
    }
    delay_ns = (uint64_t)(strtod(argv[3], NULL) * 1e6);
    loss = strtod(argv[4], NULL) / 100.0;
    for (i = 0; i < 2; i++) {
        fds[i].fd = open_interface(argv[1 + i]);
        fds[i].events = POLLIN;
    }
    for (i = 0; i < 2; i++) {
        ways[i].from = fds[i].fd;
        ways[i].to = fds[1 - i].fd;
        ways[i].first = NULL;
        ways[i].last_p = &ways[i].first;
        ways[i].n = 0;
    }
    for (;;) {
        (void)poll(fds, 2, wait_ms(ways));
        for (i = 0; i < 2; i++) {
            take(&ways[i], delay_ns, loss);
            hand_over(&ways[i]);
        }
    }
}
