/* SPDX-License-Identifier: Apache-2.0 */
/* Messages between ranks 0 and 1: latency and bandwidth a size, the time of a
 * sum of all ranks, and what the communication thread costs when nothing
 * happens. Two ranks that are threads, or as many as a launcher started:
 *     bench_world
 *     mpirun -n 2 bench_world */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "engine/world.h"

enum {
    N_SLOTS = 4,
    N_SUMS = 300
};

static const size_t sizes[] = {0, 64, 1024, 16384, 262144, 4194304, 67108864};

typedef struct end {
    sl_port_t *port;
    atomic_int n; /* left or arrived */
} end_t;

static void check(sl_status_t status)
{
    if (status < 0) {
        (void)fprintf(stderr, "bench_world: %s\n", sl_last_error());
        exit(EXIT_FAILURE);
    }
}

static void on_message(void *ctx, uint64_t i, void *slot, size_t bytes)
{
    end_t *end = ctx;

    (void)i;
    (void)bytes;
    if (slot != NULL) {
        sl_port_release(end->port);
    }
    (void)atomic_fetch_add(&end->n, 1);
}

static void wait_for(end_t *end, int n)
{
    const struct timespec pause = {.tv_nsec = 1000};

    while (atomic_load(&end->n) < n) {
        (void)nanosleep(&pause, NULL);
    }
}

static double cpu_s(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* One message at a time there and back: half of that. */
static double latency_us(sl_world_t *world, end_t *out, end_t *in, char *data,
                         size_t bytes, int n)
{
    const uint64_t start_ns = sl_clock_ns();
    int i;

    sl_world_expect(world, 1);
    for (i = 0; i < n; i++) {
        if (sl_world_rank(world) == 0) {
            sl_port_send(out->port, data, bytes);
            wait_for(in, i + 1);
        } else {
            wait_for(in, i + 1);
            sl_port_send(out->port, data, bytes);
        }
    }
    sl_world_expect(world, -1);
    wait_for(out, n);
    return (double)(sl_clock_ns() - start_ns) * 1e-3 / (2.0 * n);
}

/* As many as fit, one way; until the last has arrived. */
static double bandwidth_gb(sl_world_t *world, end_t *out, end_t *in, char *data,
                           size_t bytes, int n)
{
    const uint64_t start_ns = sl_clock_ns();
    double nothing = 0.0;
    int i;

    sl_world_expect(world, 1);
    for (i = 0; i < n && sl_world_rank(world) == 0; i++) {
        sl_port_send(out->port, data, bytes);
    }
    wait_for(sl_world_rank(world) == 0 ? out : in, n);
    sl_world_expect(world, -1);
    check(sl_world_sum(world, &nothing, 1));
    return (double)bytes * n / (double)(sl_clock_ns() - start_ns);
}

static void measure_size(sl_world_t *world, size_t bytes)
{
    const int rank = sl_world_rank(world);
    const int n = bytes > 1000000 ? 20 : 1000;
    char *data = calloc(N_SLOTS + 1, bytes + 1);
    void *slots[N_SLOTS];
    end_t out = {0}, in = {0};
    const sl_port_events_t to = {.on_message = on_message, .ctx = &out};
    const sl_port_events_t from = {.on_message = on_message, .ctx = &in};
    double us, gb, nothing = 0.0;
    int i;

    if (data == NULL) {
        (void)fprintf(stderr, "bench_world: no memory\n");
        exit(EXIT_FAILURE);
    }
    for (i = 0; i < N_SLOTS; i++) {
        slots[i] = data + (size_t)(i + 1) * (bytes + 1);
    }
    check(sl_port_open_receive(world, 1 - rank, 0, N_SLOTS, bytes, slots, &from,
                               &in.port));
    check(
        sl_port_open_send(world, 1 - rank, 0, N_SLOTS, bytes, &to, &out.port));
    check(sl_world_sum(world, &nothing, 1));
    us = latency_us(world, &out, &in, data, bytes, n);
    atomic_store(&out.n, 0);
    atomic_store(&in.n, 0);
    check(sl_world_sum(world, &nothing, 1));
    gb = bandwidth_gb(world, &out, &in, data, bytes, n);
    if (rank == 0) {
        (void)printf("| %zu | %.1f | %.2f |\n", bytes, us, gb);
        (void)fflush(stdout);
    }
    sl_port_close(in.port);
    sl_port_close(out.port);
    free(data);
}

static void measure_sums(sl_world_t *world)
{
    const uint64_t start_ns = sl_clock_ns();
    double value = 1.0;
    int i;

    for (i = 0; i < N_SUMS; i++) {
        value = 1.0;
        check(sl_world_sum(world, &value, 1));
    }
    if (sl_world_rank(world) == 0) {
        (void)printf("sum of one value over %d ranks: %.1f us\n",
                     sl_world_size(world),
                     (double)(sl_clock_ns() - start_ns) * 1e-3 / N_SUMS);
    }
}

/* CPU time of the process over a second in which it waits. */
static void measure_rest(sl_world_t *world, const char *what)
{
    const struct timespec second = {.tv_sec = 1};
    const double start_s = cpu_s();

    (void)nanosleep(&second, NULL);
    if (sl_world_rank(world) == 0) {
        (void)printf("processor share of a rank, %s: %.2f %%\n", what,
                     100.0 * (cpu_s() - start_s));
    }
}

static void measure(sl_world_t *world)
{
    const int rank = sl_world_rank(world);
    sl_port_t *port = NULL;
    char memory[8];
    void *slots[1] = {memory};
    size_t i;

    if (rank == 0) {
        (void)printf("link %s\n\n| bytes | latency, us | bandwidth, GB/s |\n"
                     "|---|---|---|\n",
                     sl_world_link_name(world));
    }
    for (i = 0; i < sizeof(sizes) / sizeof(*sizes) && rank < 2; i++) {
        measure_size(world, sizes[i]);
    }
    measure_sums(world);
    measure_rest(world, "no port open");
    if (rank < 2) {
        check(
            sl_port_open_receive(world, 1 - rank, 1, 1, 8, slots, NULL, &port));
    }
    measure_rest(world, "a port open");
    sl_world_expect(world, 1);
    measure_rest(world, "a thread waits");
    sl_world_expect(world, -1);
    sl_port_close(port);
    sl_world_leave(world);
}

static void *run_rank(void *world)
{
    measure(world);
    return NULL;
}

int main(void)
{
    sl_world_params_t params;
    sl_world_t *worlds[2] = {NULL, NULL};
    pthread_t other;

    sl_world_params_default(&params);
    check(sl_world_join(&params, &worlds[0]));
    if (worlds[0] != NULL) {
        measure(worlds[0]);
        return EXIT_SUCCESS;
    }
    check(sl_world_local(2, &params, worlds));
    if (pthread_create(&other, NULL, run_rank, worlds[1]) != 0) {
        return EXIT_FAILURE;
    }
    measure(worlds[0]);
    (void)pthread_join(other, NULL);
    return EXIT_SUCCESS;
}
