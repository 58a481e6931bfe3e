/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that the ranks of a communicator share, and messages through it. A
 * send ends when the receiver has taken all of it, as the real one may do. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "nccl_internal.h"

static const char PREFIX[] = "/sluice-nccl-";

/* What comes before the bytes of a message. */
typedef struct head {
    uint64_t n, type;
} head_t;

/* ---- the hub ---- */

int hub_make(ncclUniqueId *id)
{
    static atomic_uint n_made;
    struct timespec now;
    int file, failed;

    memset(id, 0, sizeof(*id));
    (void)clock_gettime(CLOCK_REALTIME, &now);
    (void)snprintf(id->internal, sizeof(id->internal), "%s%ld-%u-%lld%09ld",
                   PREFIX, (long)getpid(), atomic_fetch_add(&n_made, 1),
                   (long long)now.tv_sec, now.tv_nsec);
    file = shm_open(id->internal, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (file < 0) {
        return 0;
    }
    failed = ftruncate(file, (off_t)sizeof(hub_t));
    (void)close(file);
    return failed == 0;
}

hub_t *hub_open(const ncclUniqueId *id)
{
    void *hub;
    int file;

    if (strncmp(id->internal, PREFIX, sizeof(PREFIX) - 1) != 0 ||
        memchr(id->internal, 0, sizeof(id->internal)) == NULL) {
        return NULL;
    }
    file = shm_open(id->internal, O_RDWR, 0600);
    if (file < 0) {
        return NULL;
    }
    hub =
        mmap(NULL, sizeof(hub_t), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    (void)close(file);
    return hub == MAP_FAILED ? NULL : hub;
}

void hub_forget(const ncclUniqueId *id)
{
    (void)shm_unlink(id->internal);
}

void hub_close(hub_t *hub)
{
    if (hub != NULL) {
        (void)munmap(hub, sizeof(*hub));
    }
}

/* ---- messages ---- */

static ring_t *ring_of(const op_t *op)
{
    const ncclComm_t comm = op->comm;

    return op->is_send ? &comm->hub->rings[comm->rank][op->peer]
                       : &comm->hub->rings[op->peer][comm->rank];
}

/* Copy between the ring, from position `at` on, and linear memory. */
static void copy_in(ring_t *ring, uint64_t at, const void *from, size_t bytes)
{
    const size_t first = at % RING_BYTES;
    const size_t n = bytes < RING_BYTES - first ? bytes : RING_BYTES - first;

    memcpy(ring->data + first, from, n);
    memcpy(ring->data, (const unsigned char *)from + n, bytes - n);
}

static void copy_out(const ring_t *ring, uint64_t at, void *to, size_t bytes)
{
    const size_t first = at % RING_BYTES;
    const size_t n = bytes < RING_BYTES - first ? bytes : RING_BYTES - first;

    memcpy(to, ring->data + first, n);
    memcpy((unsigned char *)to + n, ring->data, bytes - n);
}

static size_t least(uint64_t a, uint64_t b)
{
    return (size_t)(a < b ? a : b);
}

static int send_some(op_t *op)
{
    ring_t *ring = ring_of(op);
    const uint64_t at =
        atomic_load_explicit(&ring->n_written, memory_order_relaxed);
    const uint64_t taken =
        atomic_load_explicit(&ring->n_read, memory_order_acquire);
    const uint64_t room = RING_BYTES - (at - taken);
    const unsigned char *from = memory_alias(op->memory);
    size_t n;

    if (op->has_head && op->n_moved == op->bytes) {
        op->is_done = taken >= op->end;
        return op->is_done;
    }
    if (!op->has_head) {
        const head_t head = {.n = op->n, .type = op->type};

        if (room < sizeof(head)) {
            return 0;
        }
        copy_in(ring, at, &head, sizeof(head));
        op->has_head = 1;
        op->end = at + sizeof(head) + op->bytes;
        atomic_store_explicit(&ring->n_written, at + sizeof(head),
                              memory_order_release);
        return 1;
    }
    n = least(room, op->bytes - op->n_moved);
    if (n > 0) {
        copy_in(ring, at, from + op->n_moved, n);
        op->n_moved += n;
        atomic_store_explicit(&ring->n_written, at + n, memory_order_release);
    }
    return n > 0;
}

/* The real one would wait for ever, or write past the end. */
static void check_head(const op_t *op, const head_t *head)
{
    if (head->n != op->n || head->type != op->type) {
        lock();
        standin_complain(
            "ncclRecv of %llu elements of type %llu from rank %d "
            "meets an ncclSend of %llu of type %llu",
            (unsigned long long)op->n, (unsigned long long)op->type, op->peer,
            (unsigned long long)head->n, (unsigned long long)head->type);
        unlock();
        atomic_store(&op->comm->async_error, ncclInternalError);
    }
}

static int receive_some(op_t *op)
{
    ring_t *ring = ring_of(op);
    const uint64_t at =
        atomic_load_explicit(&ring->n_read, memory_order_relaxed);
    const uint64_t there =
        atomic_load_explicit(&ring->n_written, memory_order_acquire);
    unsigned char *to = memory_alias(op->memory);
    size_t n;

    if (!op->has_head) {
        head_t head;

        if (there - at < sizeof(head)) {
            return 0;
        }
        copy_out(ring, at, &head, sizeof(head));
        check_head(op, &head);
        op->has_head = 1;
        op->is_done = op->bytes == 0;
        atomic_store_explicit(&ring->n_read, at + sizeof(head),
                              memory_order_release);
        return 1;
    }
    n = least(there - at, op->bytes - op->n_moved);
    if (n > 0) {
        copy_out(ring, at, to + op->n_moved, n);
        op->n_moved += n;
        op->is_done = op->n_moved == op->bytes;
        atomic_store_explicit(&ring->n_read, at + n, memory_order_release);
    }
    return n > 0;
}

int op_progress(op_t *op)
{
    return op->is_send ? send_some(op) : receive_some(op);
}

void nccl_pause(void)
{
    const struct timespec pause = {.tv_nsec = 20000};

    (void)nanosleep(&pause, NULL);
}
