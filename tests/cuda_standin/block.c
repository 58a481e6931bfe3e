/* SPDX-License-Identifier: Apache-2.0 */
/* The threads of a block are fibers of one system thread. A fiber runs one
 * thread of the kernel after another until one of them waits; then another
 * fiber goes on. So kernels without barriers never switch. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#if defined(__x86_64__) && !defined(SL_STANDIN_UCONTEXT)
#define HAS_SWITCH 1
#else
#define HAS_SWITCH 0 /* slower: two system calls a switch */
#include <ucontext.h>
#endif

#include "device.h"
#include "standin_internal.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

enum {
    MAX_THREADS = 1024,
    WARP = 32,
    MAX_WARPS = MAX_THREADS / WARP,
    STACK_BYTES = 128 << 10
};

typedef enum wait {
    WAIT_NONE, /* idle, or can run */
    WAIT_BLOCK,
    WAIT_WARP
} wait_t;

typedef struct fiber {
#if HAS_SWITCH
    void *sp;
#else
    ucontext_t context;
#endif
    void *stack;
    void *tsan;
    void *asan; /* its fake stack */
    wait_t wait;
    int is_ready; /* a thread waits to go on */
    unsigned mask;
    int line;
    unsigned number; /* of the thread that waits */
} fiber_t;

typedef struct block {
    fiber_t main;
    fiber_t *fibers[MAX_THREADS];
    unsigned n_fibers;
    fiber_t *current;
    fiber_t *idle[MAX_THREADS];
    unsigned n_idle;
    fiber_t *of_thread[MAX_THREADS]; /* waiting */
    unsigned char has_ended[MAX_THREADS];
    unsigned n_threads, n_ended;
    unsigned warp, n_started; /* of the warp that starts now */
    int is_reverse;
    thread_fn fn;
    void *data;
    const char *trap;
    uint64_t values[MAX_THREADS]; /* exchanged in warps */
    unsigned char votes[MAX_THREADS];
    const void *asan_stack; /* of the stream's thread */
    size_t asan_stack_bytes;
} block_t;

__thread uint3 threadIdx, blockIdx, blockDim, gridDim;
__thread unsigned standin_number;
static __thread block_t *here; /* of this stream's thread */

/* ---- switching ---- */

#if HAS_SWITCH
void standin_switch(void **from_sp, void *to_sp);
__asm__(".text\n"
        ".globl standin_switch\n"
        ".type standin_switch, @function\n"
        "standin_switch:\n"
        "pushq %rbp\n"
        "pushq %rbx\n"
        "pushq %r12\n"
        "pushq %r13\n"
        "pushq %r14\n"
        "pushq %r15\n"
        "movq %rsp, (%rdi)\n"
        "movq %rsi, %rsp\n"
        "popq %r15\n"
        "popq %r14\n"
        "popq %r13\n"
        "popq %r12\n"
        "popq %rbx\n"
        "popq %rbp\n"
        "ret\n"
        ".size standin_switch, .-standin_switch\n");
#endif

static void arrived(fiber_t *fiber, block_t *block)
{
#if defined(__SANITIZE_ADDRESS__)
    const void *bottom;
    size_t bytes;

    __sanitizer_finish_switch_fiber(fiber->asan, &bottom, &bytes);
    if (block->asan_stack == NULL) {
        block->asan_stack = bottom;
        block->asan_stack_bytes = bytes;
    }
#else
    (void)fiber;
    (void)block;
#endif
}

static void go(block_t *block, fiber_t *from, fiber_t *to)
{
#if defined(__SANITIZE_ADDRESS__)
    const int is_main = to == &block->main;

    __sanitizer_start_switch_fiber(
        &from->asan, is_main ? block->asan_stack : to->stack,
        is_main ? block->asan_stack_bytes : (size_t)STACK_BYTES);
#endif
#if defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(to->tsan, 0);
#endif
    block->current = to;
#if HAS_SWITCH
    standin_switch(&from->sp, to->sp);
#else
    (void)swapcontext(&from->context, &to->context);
#endif
    arrived(from, block);
}

static void run_threads(void);

static void fiber_main(void)
{
    block_t *block = here;

    arrived(block->current, block);
    for (;;) {
        fiber_t *fiber = block->current;

        run_threads();
        block->idle[block->n_idle++] = fiber;
        go(block, fiber, &block->main);
    }
}

static fiber_t *fiber_make(void)
{
    fiber_t *fiber = calloc(1, sizeof(*fiber));
    void *stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (fiber == NULL || stack == MAP_FAILED) {
        abort();
    }
    fiber->stack = stack;
#if defined(__SANITIZE_THREAD__)
    fiber->tsan = __tsan_create_fiber(0);
#endif
#if HAS_SWITCH
    {
        /* as after a call: the return address lies at 16 n + 8 */
        void **top = (void **)(void *)((char *)stack + STACK_BYTES) - 2;
        void (*entry)(void) = fiber_main;

        memcpy(top, &entry, sizeof(entry));
        fiber->sp = top - 6;
    }
#else
    (void)getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = stack;
    fiber->context.uc_stack.ss_size = STACK_BYTES;
    makecontext(&fiber->context, fiber_main, 0);
#endif
    return fiber;
}

static void fiber_free(fiber_t *fiber)
{
#if defined(__SANITIZE_ADDRESS__)
    ASAN_UNPOISON_MEMORY_REGION(fiber->stack, STACK_BYTES);
#endif
#if defined(__SANITIZE_THREAD__)
    __tsan_destroy_fiber(fiber->tsan);
#endif
    (void)munmap(fiber->stack, STACK_BYTES);
    free(fiber);
}

/* ---- threads ---- */

/* Threads of a warp: the last one may be smaller. */
static unsigned warp_threads(const block_t *block, unsigned warp)
{
    const unsigned rest = block->n_threads - warp * WARP;

    return rest < WARP ? rest : (unsigned)WARP;
}

/* The i-th thread of a warp, in the order of running. */
static unsigned thread_at(const block_t *block, unsigned warp, unsigned i)
{
    return warp * WARP +
           (block->is_reverse ? warp_threads(block, warp) - 1 - i : i);
}

static void self_set(unsigned number)
{
    standin_number = number;
    threadIdx.x = number % blockDim.x;
    threadIdx.y = number / blockDim.x % blockDim.y;
    threadIdx.z = number / blockDim.x / blockDim.y;
}

/* Threads of the warp that have not started, until there are none. */
static void run_threads(void)
{
    block_t *block = here;

    while (block->n_started < warp_threads(block, block->warp) &&
           block->trap == NULL) {
        self_set(thread_at(block, block->warp, block->n_started++));
        block->fn(block->data);
        block->has_ended[standin_number] = 1;
        block->n_ended++;
    }
}

/* The running thread waits. */
static void wait_for(wait_t wait, unsigned mask, int line)
{
    block_t *block = here;
    fiber_t *fiber = block->current;

    fiber->wait = wait;
    fiber->mask = mask;
    fiber->line = line;
    fiber->number = standin_number;
    block->of_thread[standin_number] = fiber;
    go(block, fiber, &block->main);
    self_set(fiber->number);
}

static void make_ready(block_t *block, unsigned number)
{
    block->of_thread[number]->wait = WAIT_NONE;
    block->of_thread[number]->is_ready = 1;
}

/* Whether all that have not ended wait for the block, at one line. */
static int block_is_met(const block_t *block, int *line_p)
{
    unsigned i;

    *line_p = 0;
    for (i = 0; i < block->n_threads; i++) {
        const fiber_t *fiber = block->of_thread[i];

        if (block->has_ended[i]) {
            continue;
        }
        if (fiber == NULL || fiber->wait != WAIT_BLOCK ||
            (*line_p != 0 && *line_p != fiber->line)) {
            return 0;
        }
        *line_p = fiber->line;
    }
    return *line_p != 0;
}

static int warp_is_met(const block_t *block, unsigned number)
{
    const unsigned first = number / WARP * WARP;
    const unsigned mask = block->of_thread[number]->mask;
    unsigned lane;

    for (lane = 0; lane < WARP; lane++) {
        const unsigned i = first + lane;
        const fiber_t *fiber =
            i < block->n_threads ? block->of_thread[i] : NULL;

        if ((mask >> lane & 1) != 0 &&
            (fiber == NULL || fiber->wait != WAIT_WARP || fiber->mask != mask ||
             fiber->line != block->of_thread[number]->line)) {
            return 0;
        }
    }
    return 1;
}

/* Let lanes of the warp go on that have met. @return whether some can */
static int release_warp(block_t *block, unsigned warp)
{
    int is_any = 0;
    unsigned i, lane;

    for (i = 0; i < warp_threads(block, warp); i++) {
        const fiber_t *fiber = block->of_thread[warp * WARP + i];

        if (fiber == NULL || fiber->wait != WAIT_WARP ||
            !warp_is_met(block, warp * WARP + i)) {
            continue;
        }
        is_any = 1;
        for (lane = 0; lane < WARP; lane++) {
            if ((fiber->mask >> lane & 1) != 0) {
                make_ready(block, warp * WARP + lane);
            }
        }
    }
    return is_any;
}

/* The same for the block's threads. */
static int release_block(block_t *block)
{
    unsigned i;
    int line;

    if (!block_is_met(block, &line)) {
        return 0;
    }
    for (i = 0; i < block->n_threads; i++) {
        if (!block->has_ended[i]) {
            make_ready(block, i);
        }
    }
    return 1;
}

/* One warp goes as far as it can while the others stand still: what a missing
 * barrier lets it overwrite then is overwritten. */
static void run_warp(block_t *block, unsigned warp)
{
    unsigned i;

    do {
        for (i = 0; i < warp_threads(block, warp) && block->trap == NULL; i++) {
            const unsigned number = thread_at(block, warp, i);
            fiber_t *fiber = block->of_thread[number];

            if (fiber != NULL && fiber->is_ready) {
                fiber->is_ready = 0;
                block->of_thread[number] = NULL;
                go(block, &block->main, fiber);
            }
        }
    } while (block->trap == NULL && release_warp(block, warp));
}

static void start_warp(block_t *block, unsigned warp)
{
    block->warp = warp;
    block->n_started = 0;
    while (block->n_started < warp_threads(block, warp) &&
           block->trap == NULL) {
        fiber_t *fiber;

        if (block->n_idle > 0) {
            fiber = block->idle[--block->n_idle];
        } else {
            fiber = fiber_make();
            block->fibers[block->n_fibers++] = fiber;
        }
        go(block, &block->main, fiber);
    }
}

/* All warps, one after another. */
static void run_warps(block_t *block, int is_start)
{
    const unsigned n_warps = (block->n_threads + WARP - 1) / WARP;
    unsigned i;

    for (i = 0; i < n_warps && block->trap == NULL; i++) {
        const unsigned warp = block->is_reverse ? n_warps - 1 - i : i;

        if (is_start) {
            start_warp(block, warp);
        }
        run_warp(block, warp);
    }
}

/* Fibers that wait for ever hold threads that never end. */
static void drop_fibers(block_t *block)
{
    unsigned i;

    for (i = 0; i < block->n_fibers; i++) {
        fiber_free(block->fibers[i]);
    }
    block->n_fibers = 0;
    block->n_idle = 0;
}

static pthread_key_t block_key;

static void block_free(void *data)
{
    drop_fibers(data);
    free(data);
}

static void make_key(void)
{
    (void)pthread_key_create(&block_key, block_free);
}

static block_t *block_get(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    if (here == NULL) {
        (void)pthread_once(&once, make_key);
        here = calloc(1, sizeof(*here));
        if (here == NULL) {
            abort();
        }
        (void)pthread_setspecific(block_key, here);
#if defined(__SANITIZE_THREAD__)
        here->main.tsan = __tsan_get_current_fiber();
#endif
    }
    return here;
}

cudaError_t block_run(unsigned n_threads, int is_reverse, const char *name,
                      thread_fn fn, void *data)
{
    block_t *block = block_get();

    memset(block->of_thread, 0, n_threads * sizeof(block->of_thread[0]));
    memset(block->has_ended, 0, n_threads);
    block->n_threads = n_threads;
    block->n_ended = 0;
    block->is_reverse = is_reverse;
    block->fn = fn;
    block->data = data;
    block->trap = NULL;
    run_warps(block, 1);
    while (block->n_ended < n_threads && block->trap == NULL) {
        if (!release_block(block)) {
            block->trap = "threads wait at barriers that others do not reach";
            break;
        }
        run_warps(block, 0);
    }
    if (block->trap != NULL) {
        lock();
        standin_complain("kernel %s, block %u: %s", name, blockIdx.x,
                         block->trap);
        unlock();
        drop_fibers(block);
        return cudaErrorLaunchFailure;
    }
    return cudaSuccess;
}

/* ---- what kernels call ---- */

void standin_trap(const char *text)
{
    here->trap = text;
    wait_for(WAIT_BLOCK, 0, -1);
}

void standin_sync_block(int line)
{
    wait_for(WAIT_BLOCK, 0, line);
}

/* The lanes that exist: a block may end inside a warp. */
static unsigned full_mask(unsigned mask)
{
    const unsigned first = standin_number / WARP * WARP;
    const unsigned n = here->n_threads - first;

    return n >= WARP ? mask : mask & ((1u << n) - 1u);
}

void standin_sync_warp(unsigned mask, int line)
{
    const unsigned lanes = full_mask(mask);

    if ((lanes >> standin_number % WARP & 1) == 0) {
        standin_trap("a lane is not in the mask of its warp's call");
    }
    wait_for(WAIT_WARP, lanes, line);
}

uint64_t standin_exchange(unsigned mask, uint64_t value, unsigned lane,
                          int line)
{
    block_t *block = here;
    const unsigned first = standin_number / WARP * WARP;
    uint64_t got;

    block->values[standin_number] = value;
    standin_sync_warp(mask, line);
    if (lane >= WARP || (full_mask(mask) >> lane & 1) == 0) {
        standin_trap("a shuffle reads a lane that is not in the mask");
    }
    got = block->values[first + lane];
    standin_sync_warp(mask, -line);
    return got;
}

unsigned standin_ballot(unsigned mask, int predicate, int line)
{
    block_t *block = here;
    const unsigned first = standin_number / WARP * WARP;
    const unsigned lanes = full_mask(mask);
    unsigned votes = 0;
    unsigned lane;

    block->votes[standin_number] = predicate != 0;
    standin_sync_warp(mask, line);
    for (lane = 0; lane < WARP; lane++) {
        if ((lanes >> lane & 1) != 0 && block->votes[first + lane]) {
            votes |= 1u << lane;
        }
    }
    standin_sync_warp(mask, -line);
    return votes;
}

int standin_sync_or(int predicate, int line)
{
    block_t *block = here;
    int is_any = 0;
    unsigned i;

    block->votes[standin_number] = predicate != 0;
    standin_sync_block(line);
    for (i = 0; i < block->n_threads; i++) {
        is_any |= !block->has_ended[i] && block->votes[i];
    }
    standin_sync_block(-line);
    return is_any;
}
