/* SPDX-License-Identifier: Apache-2.0 */
/* Cost of allocation pairs, and traces replayed, through this library or
 * through malloc, which LD_PRELOAD may replace.
 *
 *     bench_alloc sluice|malloc pairs
 *     bench_alloc sluice|malloc replay TRACE
 *     bench_alloc sluice limit TRACE
 *
 * One line of JSON each. A replay measures peak memory of the process, so run
 * it once a process. */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "bench/memory/trace_file.h"
#include "memory/memory.h"

enum {
    PAGE_BYTES = 4096,
    N_PAIRS = 100000,
    N_REPEATS = 30
};

static const char *allocator; /* "sluice" or "malloc" */
static sl_mem_t *mem;         /* NULL for malloc */

static int open_mem(size_t limit_bytes)
{
    sl_mem_params_t params;

    if (strcmp(allocator, "sluice") != 0) {
        return 0;
    }
    sl_mem_params_default(&params);
    params.limit_bytes = limit_bytes;
    return sl_mem_create(&params, &mem) == SL_OK ? 0 : -1;
}

static void close_mem(void)
{
    sl_mem_destroy(mem);
    mem = NULL;
}

/* ---- pairs ---- */

static void *run_pairs(void *arg)
{
    static const size_t sizes[] = {100,    4096,  71680, 1000,
                                   307200, 20480, 512,   40960};
    size_t i;

    for (i = 0; i < N_PAIRS; i++) {
        const size_t bytes = sizes[i % (sizeof(sizes) / sizeof(*sizes))];

        if (mem != NULL) {
            sl_mem_block_t *block = NULL;

            if (sl_mem_alloc(mem, SL_MEM_CLASS_ACTIVATION, bytes, &block) !=
                SL_OK) {
                return arg;
            }
            sl_mem_release(block);
        } else {
            volatile char *ptr = malloc(bytes);

            if (ptr == NULL) {
                return arg;
            }
            ptr[0] = 1; /* keep the pair from being optimised away */
            free((void *)(uintptr_t)ptr);
        }
    }
    return NULL;
}

static double pairs_ns(int n_threads)
{
    pthread_t threads[64];
    const uint64_t start_ns = sl_clock_ns();
    int i;

    for (i = 0; i < n_threads; i++) {
        if (pthread_create(&threads[i], NULL, run_pairs, threads) != 0) {
            return -1.0;
        }
    }
    for (i = 0; i < n_threads; i++) {
        void *failed = NULL;

        if (pthread_join(threads[i], &failed) != 0 || failed != NULL) {
            return -1.0;
        }
    }
    return (double)(sl_clock_ns() - start_ns) / N_PAIRS / n_threads;
}

static int pairs(void)
{
    static const int counts[] = {1, 4, 16};
    size_t i;
    int r;

    for (i = 0; i < sizeof(counts) / sizeof(*counts); i++) {
        double best = 0.0;

        for (r = 0; r < N_REPEATS; r++) {
            const double ns =
                open_mem(SIZE_MAX) == 0 ? pairs_ns(counts[i]) : -1.0;

            close_mem();
            if (ns < 0.0) {
                return 1;
            }
            best = r == 0 || ns < best ? ns : best;
        }
        (void)printf("{\"allocator\": \"%s\", \"threads\": %d, "
                     "\"ns_per_pair\": %.1f}\n",
                     allocator, counts[i], best);
    }
    return 0;
}

/* ---- replay ---- */

static void touch(void *ptr, size_t bytes)
{
    volatile char *at = ptr;
    size_t i;

    for (i = 0; i < bytes; i += PAGE_BYTES) {
        at[i] = 1;
    }
}

/* Number of refused blocks; `slots` are all NULL before and after. */
static size_t replay(const trace_t *trace, void **slots, int touches)
{
    size_t n_refused = 0;
    size_t i;

    for (i = 0; i < trace->n_ops; i++) {
        const trace_op_t *op = &trace->ops[i];

        if (op->kind == TRACE_BOUNDARY) {
            if (mem != NULL) {
                sl_mem_boundary(mem, NULL);
            }
        } else if (op->kind == TRACE_RELEASE) {
            if (mem != NULL) {
                sl_mem_release(slots[op->slot]);
            } else {
                free(slots[op->slot]);
            }
            slots[op->slot] = NULL;
        } else if (mem != NULL) {
            sl_mem_block_t *block = NULL;

            n_refused += sl_mem_alloc(mem, (sl_mem_class_t)op->mem_class,
                                      op->bytes, &block) != SL_OK;
            slots[op->slot] = block;
            if (touches && block != NULL) {
                touch(block->ptr, op->bytes);
            }
        } else {
            slots[op->slot] = malloc(op->bytes);
            if (touches && slots[op->slot] != NULL) {
                touch(slots[op->slot], op->bytes);
            }
        }
    }
    return n_refused;
}

static void release_all(const trace_t *trace, void **slots)
{
    size_t i;

    for (i = 0; i < trace->n_slots; i++) {
        if (mem != NULL) {
            sl_mem_release(slots[i]);
        } else {
            free(slots[i]);
        }
        slots[i] = NULL;
    }
}

/* A field of /proc/self/status, in bytes. */
static size_t status_bytes(const char *field)
{
    FILE *stream = fopen("/proc/self/status", "r");
    char line[256];
    size_t kib = 0;

    while (stream != NULL && fgets(line, sizeof(line), stream) != NULL) {
        if (strncmp(line, field, strlen(field)) == 0) {
            (void)sscanf(line + strlen(field), ": %zu", &kib);
        }
    }
    if (stream != NULL) {
        (void)fclose(stream);
    }
    return kib * 1024;
}

static double replay_ns(const trace_t *trace, void **slots, int touches)
{
    const uint64_t start_ns = sl_clock_ns();

    (void)replay(trace, slots, touches);
    return (double)(sl_clock_ns() - start_ns) / (double)trace->n_ops;
}

static int replay_all(const char *path, const trace_t *trace, void **slots)
{
    const size_t before = status_bytes("VmRSS");
    double first_ns, touched_ns, best_ns = 0.0;
    size_t resident;
    int r;

    if (open_mem(SIZE_MAX) != 0) {
        return 1;
    }
    first_ns = replay_ns(trace, slots, 1);
    resident = status_bytes("VmHWM");
    resident = resident > before ? resident - before : 0;
    release_all(trace, slots);
    touched_ns = replay_ns(trace, slots, 1);
    for (r = 0; r < N_REPEATS; r++) {
        double ns;

        release_all(trace, slots);
        ns = replay_ns(trace, slots, 0);
        best_ns = r == 0 || ns < best_ns ? ns : best_ns;
    }
    (void)printf("{\"allocator\": \"%s\", \"trace\": \"%s\", \"ops\": %zu, "
                 "\"ns_per_op\": %.1f, \"ns_per_op_touched\": %.1f, "
                 "\"ns_per_op_first\": %.1f, "
                 "\"peak_live\": %zu, \"peak_resident\": %zu",
                 allocator, path, trace->n_ops, best_ns, touched_ns, first_ns,
                 trace->peak_live_bytes, resident);
    if (mem != NULL) {
        sl_mem_stats_t stats;

        sl_mem_stats(mem, &stats);
        (void)printf(", \"held\": %zu, \"regions_asked\": %" PRIu64,
                     stats.peak_held_bytes, stats.n_region_allocs);
    }
    (void)printf("}\n");
    release_all(trace, slots);
    close_mem();
    return 0;
}

static int fits(const trace_t *trace, void **slots, size_t limit_bytes)
{
    size_t n_refused;

    if (open_mem(limit_bytes) != 0) {
        return 0;
    }
    n_refused = replay(trace, slots, 0);
    release_all(trace, slots);
    close_mem();
    return n_refused == 0;
}

/* The smallest limit under which no block of the trace is refused. */
static int smallest_limit(const char *path, const trace_t *trace, void **slots)
{
    size_t low = trace->peak_live_bytes - 1, high = 2 * low;

    while (high - low > trace->peak_live_bytes / 1000 + 1) {
        const size_t mid = low + (high - low) / 2;

        if (fits(trace, slots, mid)) {
            high = mid;
        } else {
            low = mid;
        }
    }
    (void)printf("{\"trace\": \"%s\", \"peak_live\": %zu, "
                 "\"smallest_limit\": %zu, \"over_live\": %.4f}\n",
                 path, trace->peak_live_bytes, high,
                 (double)high / (double)trace->peak_live_bytes);
    return 0;
}

int main(int argc, char **argv)
{
    const char *mode = argc > 2 ? argv[2] : "";
    trace_t trace;
    void **slots;
    int rc = 2;

    allocator = argc > 1 ? argv[1] : "";
    if (argc == 3 && strcmp(mode, "pairs") == 0) {
        return pairs();
    }
    if (argc != 4) {
        (void)fprintf(stderr, "usage: bench_alloc sluice|malloc pairs\n"
                              "       bench_alloc sluice|malloc replay TRACE\n"
                              "       bench_alloc sluice limit TRACE\n");
        return 2;
    }
    if (trace_read(argv[3], &trace) != 0) {
        return 2;
    }
    slots = calloc(trace.n_slots + 1, sizeof(*slots));
    if (slots != NULL) {
        rc = strcmp(mode, "limit") == 0 ? smallest_limit(argv[3], &trace, slots)
                                        : replay_all(argv[3], &trace, slots);
    }
    free(slots);
    trace_cleanup(&trace);
    return rc;
}
