/* SPDX-License-Identifier: Apache-2.0 */
/* The op manager: a bounded ring, and the thread that runs it in order.
 *
 * Submitters copy ops in under the lock; progress is published in counters
 * that only grow, so the device's thread takes the lock only to sleep, to
 * wake a waiter that is due, and to record a failure. */
#include <errno.h>
#include <inttypes.h>
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "scheduler/machine.h"
#include "scheduler/op_manager_internal.h"

enum {
    RING_OPS_DEFAULT = 256,
    RING_OPS_MAX = 1 << 20,
    THREADS_MAX = 4096,
    IN_FLIGHT_DEFAULT = 32,
    IN_FLIGHT_MAX = 1024,
    PAUSES = 16 /* between two looks at the clock */
};

/* How long an idle thread looks for work before it sleeps: about what a
 * sleep and a wake-up cost. Less when managers compete for cores. */
#define SPIN_NS UINT64_C(20000)
#define SPIN_CROWDED_NS UINT64_C(1000)

static _Thread_local int is_in_op;
static atomic_int n_managers; /* alive in this process */

int sl_op_is_running(void)
{
    return is_in_op;
}

void sl_op_set_running(int is_running)
{
    is_in_op = is_running;
}

/* ---- waiting ---- */

static void cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

void sl_op_manager_relax(void)
{
    cpu_relax();
}

static uint64_t spin_limit_ns(const sl_op_manager_t *manager)
{
    /* a submitter and a device's thread each want a core */
    const int wanted =
        2 * atomic_load_explicit(&n_managers, memory_order_relaxed);

    return wanted <= manager->n_procs ? SPIN_NS : SPIN_CROWDED_NS;
}

uint64_t sl_op_manager_spin_ns(const sl_op_manager_t *manager)
{
    return spin_limit_ns(manager);
}

/* Look at a counter for a short while. After the first moments the core is
 * offered at each look: whoever is to change the counter may share it. */
static int spin_until(const sl_op_manager_t *manager,
                      const _Atomic uint64_t *counter, uint64_t value)
{
    const uint64_t limit_ns = spin_limit_ns(manager);
    const uint64_t start_ns = sl_clock_ns();
    uint64_t spent_ns = 0;
    int i;

    do {
        if (spent_ns > SPIN_CROWDED_NS) {
            (void)sched_yield();
        }
        for (i = 0; i < PAUSES; i++) {
            if (atomic_load_explicit(counter, memory_order_acquire) >= value) {
                return 1;
            }
            cpu_relax();
        }
        spent_ns = sl_clock_ns() - start_ns;
    } while (spent_ns < limit_ns);
    return 0;
}

/* Sleep until n_done >= ticket; lock held. `deadline` NULL = none.
 *
 * Nobody is missed: the sleeper writes wake_at and then reads n_done, the
 * device's thread writes n_done and then reads wake_at, all in one total
 * order, so at least one of them sees the other. */
static sl_status_t sleep_until(sl_op_manager_t *manager, uint64_t ticket,
                               const struct timespec *deadline)
{
    while (atomic_load(&manager->n_done) < ticket) {
        int error;

        if (ticket < atomic_load(&manager->wake_at)) {
            atomic_store(&manager->wake_at, ticket);
            if (manager->is_asleep == SL_OP_FULL) {
                (void)pthread_cond_signal(&manager->work);
            }
        }
        if (atomic_load(&manager->n_done) >= ticket) {
            break;
        }
        error = deadline == NULL
                    ? pthread_cond_wait(&manager->progress, manager->lock)
                    : pthread_cond_timedwait(&manager->progress, manager->lock,
                                             deadline);
        if (error == ETIMEDOUT && atomic_load(&manager->n_done) < ticket) {
            return SL_ERR_TIMEOUT;
        }
    }
    return SL_OK;
}

/* The manager's failure, its detail as this thread's last error; lock held. */
static sl_status_t failure_of(const sl_op_manager_t *manager)
{
    const int failure =
        atomic_load_explicit(&manager->failure, memory_order_acquire);

    if (failure != SL_OK) {
        sl_last_error_set(manager->detail);
    }
    return (sl_status_t)failure;
}

/* ---- the device's thread ---- */

void sl_op_manager_fail_locked(sl_op_manager_t *manager, sl_status_t status)
{
    sl_op_watch_t *watch;

    atomic_store_explicit(&manager->failure, (int)status, memory_order_release);
    sl_last_error_set(manager->detail);
    /* under the lock: unwatch must wait for a call that has begun */
    for (watch = manager->watches; watch != NULL; watch = watch->next) {
        watch->on_failure(watch->ctx, status);
    }
}

static void record_failure(sl_op_manager_t *manager, const sl_op_slot_t *slot,
                           sl_status_t status)
{
    const char *detail = sl_last_error();

    if (detail[0] == '\0') {
        detail = sl_status_text(status);
    }
    (void)pthread_mutex_lock(manager->lock);
    if (atomic_load_explicit(&manager->failure, memory_order_relaxed) ==
        SL_OK) {
        (void)snprintf(manager->detail, sizeof(manager->detail),
                       "%s: op %s: %s", manager->name,
                       sl_op_names_text(manager->names, slot->name_id), detail);
        sl_op_manager_fail_locked(manager, status);
    }
    (void)pthread_mutex_unlock(manager->lock);
    sl_last_error_set(""); /* the next failure brings its own */
}

void sl_op_manager_fail(sl_op_manager_t *manager, const sl_op_slot_t *slot,
                        sl_status_t status)
{
    record_failure(manager, slot, status);
}

/* Whether the op may run, now that the share lets it. */
static int is_let_in(sl_op_manager_t *manager, const sl_op_slot_t *slot,
                     int is_gated)
{
    if (atomic_load_explicit(&manager->failure, memory_order_relaxed) !=
        SL_OK) {
        return 0;
    }
    if (!is_gated) {
        manager->cpu_ns = 0;
        return 1;
    }
    return sl_op_gate_enter(manager, slot);
}

/* The same for jobs that go first; last, as their idle time may be short. */
static int is_its_turn(sl_op_manager_t *manager, const sl_op_slot_t *slot,
                       int is_gated)
{
    const double cost_ns = sl_op_gate_expected_ns(manager, slot);

    if (sl_op_yield_enter(manager, (uint64_t)cost_ns)) {
        return 1;
    }
    if (is_gated) {
        (void)sl_op_gate_leave(manager, 0, sl_clock_ns());
    }
    return 0;
}

static void run_op(sl_op_manager_t *manager, const sl_op_slot_t *slot)
{
    const int is_gated =
        atomic_load_explicit(&manager->is_gated, memory_order_relaxed);
    const int is_yielding =
        atomic_load_explicit(&manager->is_yielding, memory_order_relaxed);
    sl_op_span_t *span = slot->span;
    sl_status_t status;
    uint64_t start_ns;
    uint64_t end_ns;

    if (!is_let_in(manager, slot, is_gated) ||
        (is_yielding && !is_its_turn(manager, slot, is_gated))) {
        sl_counter_add(&manager->n_skipped, 1);
        return;
    }
    is_in_op = 1;
    start_ns = sl_clock_ns();
    sl_meter_start(&manager->busy, start_ns);
    status = slot->fn(slot->args, NULL);
    end_ns = sl_clock_ns();
    sl_meter_stop(&manager->busy, end_ns);
    is_in_op = 0;

    sl_counter_add(&manager->n_run, 1);
    sl_counter_add(&manager->charged_ns,
                   is_gated
                       ? sl_op_gate_leave(manager, end_ns - start_ns, end_ns)
                       : end_ns - start_ns);
    sl_op_names_add(manager->names, slot->name_id, end_ns - start_ns);
    if (is_yielding) {
        sl_op_yield_leave(manager, end_ns - start_ns, end_ns);
    }
    if (span != NULL) {
        span->start_ns = span->start_ns == 0 ? start_ns : span->start_ns;
        span->end_ns = end_ns;
        span->busy_ns += end_ns - start_ns;
    }
    if (status < 0) {
        record_failure(manager, slot, status);
    }
}

/* Publish that `n_done` ops are done, and wake whoever waits for that. */
static void publish(sl_op_manager_t *manager, uint64_t n_done)
{
    atomic_store(&manager->n_done, n_done);
    if (atomic_load(&manager->wake_at) <= n_done) {
        (void)pthread_mutex_lock(manager->lock);
        atomic_store(&manager->wake_at, UINT64_MAX);
        (void)pthread_cond_broadcast(&manager->progress);
        (void)pthread_mutex_unlock(manager->lock);
    }
}

void sl_op_manager_publish(sl_op_manager_t *manager, uint64_t n_done)
{
    publish(manager, n_done);
}

/* Lock held. What was to be a short pause and is none after `late_ns` is told
 * to the guests; 0 = they know all there is. */
static void sleep_for_work(sl_op_manager_t *manager, uint64_t late_ns)
{
    const struct timespec deadline = sl_clock_deadline(late_ns);

    if (late_ns == 0) {
        (void)pthread_cond_wait(&manager->work, manager->lock);
    } else if (pthread_cond_timedwait(&manager->work, manager->lock,
                                      &deadline) == ETIMEDOUT) {
        sl_pulse_late(&manager->pulse);
    }
}

/* Wait for op number `n_done` (from 0); 0 when the manager is to end. */
static int await_op(sl_op_manager_t *manager, uint64_t n_done)
{
    uint64_t late_ns = 0;
    int has_op;

    if (atomic_load_explicit(&manager->n_submitted, memory_order_acquire) >
        n_done) {
        return 1;
    }
    manager->cpu_ns = 0; /* time spent on looking for work is nobody's */
    if (spin_until(manager, &manager->n_submitted, n_done + 1)) {
        return 1;
    }
    (void)pthread_mutex_lock(manager->lock);
    if (atomic_load(&manager->n_submitted) <= n_done) {
        late_ns = sl_op_pulse_idle(manager);
    }
    while (!(has_op = atomic_load(&manager->n_submitted) > n_done) &&
           !manager->is_stopping) {
        manager->is_asleep = SL_OP_IDLE;
        sleep_for_work(manager, late_ns);
        manager->is_asleep = SL_OP_AWAKE;
        late_ns = 0;
    }
    if (has_op) {
        sl_op_pulse_busy(manager);
    }
    (void)pthread_mutex_unlock(manager->lock);
    return has_op;
}

int sl_op_manager_await(sl_op_manager_t *manager, uint64_t n_done)
{
    return await_op(manager, n_done);
}

/* Affinity first: the kernel threads inherit it when they are made. */
static int start_thread(sl_op_manager_t *manager)
{
    sl_status_t status = SL_OK;
    int error = 0;

    sl_machine_name_self(manager->name);
    if (manager->cores != NULL) {
        error = sl_machine_bind_self(manager->cores, manager->n_cores);
    }
    omp_set_dynamic(0);
    omp_set_num_threads(manager->n_threads);
    if (error == 0 && manager->backend != NULL) {
        status = sl_op_stream_open(manager);
    }
    (void)pthread_mutex_lock(manager->lock);
    manager->start_error = error;
    manager->open_status = status;
    if (status < 0) {
        (void)snprintf(manager->detail, sizeof(manager->detail), "%s",
                       sl_last_error());
    }
    manager->is_started = 1;
    (void)pthread_cond_broadcast(&manager->progress);
    (void)pthread_mutex_unlock(manager->lock);
    return error == 0 && status == SL_OK;
}

static void *device_main(void *arg)
{
    sl_op_manager_t *manager = arg;
    uint64_t n_done = 0;

    if (!start_thread(manager)) {
        return NULL;
    }
    if (manager->backend != NULL) {
        sl_op_stream_run(manager);
        sl_op_stream_close(manager->stream);
        return NULL;
    }
    while (await_op(manager, n_done)) {
        run_op(manager, &manager->ring[n_done & (manager->n_slots - 1)]);
        publish(manager, ++n_done);
    }
    return NULL;
}

/* ---- life ---- */

void sl_op_manager_params_default(sl_op_manager_params_t *params)
{
    memset(params, 0, sizeof(*params));
    params->name = "device";
    params->n_threads = 1;
    params->ring_ops = RING_OPS_DEFAULT;
    params->in_flight = IN_FLIGHT_DEFAULT;
}

static sl_status_t check_params(const sl_op_manager_params_t *params)
{
    const int ring = params == NULL ? 0 : params->ring_ops;
    sl_status_t status = SL_OK;

    if (params == NULL || params->name == NULL) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "op manager: parameters or name missing");
    }
    if (ring < 1 || ring > RING_OPS_MAX || (ring & (ring - 1)) != 0) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "%s: ring of %d ops; a power of two up to %d is needed",
                params->name, ring, RING_OPS_MAX);
    }
    if (params->n_threads < 1 || params->n_threads > THREADS_MAX) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "%s: %d kernel threads; 1 to %d are allowed", params->name,
                params->n_threads, THREADS_MAX);
    }
    if (params->cores != NULL && params->n_cores < 1) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out, "%s: to be bound to %d cores",
                params->name, params->n_cores);
    }
    if (params->in_flight < 2 || params->in_flight > IN_FLIGHT_MAX) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "%s: %d ops in flight; 2 to %d are allowed", params->name,
                params->in_flight, IN_FLIGHT_MAX);
    }
out:
    return status;
}

static void sync_init(sl_op_manager_t *manager)
{
    pthread_condattr_t attr;

    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&manager->lock_storage, NULL);
    (void)pthread_cond_init(&manager->work, &attr);
    (void)pthread_cond_init(&manager->progress, &attr);
    (void)pthread_cond_init(&manager->gate, &attr);
    (void)pthread_condattr_destroy(&attr);
    manager->lock = &manager->lock_storage;
}

static void manager_free(sl_op_manager_t *manager)
{
    (void)pthread_cond_destroy(&manager->gate);
    (void)pthread_cond_destroy(&manager->progress);
    (void)pthread_cond_destroy(&manager->work);
    (void)pthread_mutex_destroy(manager->lock);
    sl_yield_set_release(manager->yield);
    sl_yield_set_release(manager->own_yield);
    sl_op_stream_free(manager->stream);
    sl_op_names_destroy(manager->names);
    free(manager->cores);
    free(manager->ring);
    free(manager);
}

static sl_op_manager_t *manager_new(const sl_op_manager_params_t *params)
{
    sl_op_manager_t *manager = aligned_alloc(SL_LINE_BYTES, sizeof(*manager));
    const size_t n_cores = params->cores == NULL ? 0 : (size_t)params->n_cores;
    const size_t ring_ops = (size_t)params->ring_ops;

    if (manager == NULL) {
        return NULL;
    }
    memset(manager, 0, sizeof(*manager));
    sync_init(manager);
    sl_share_init(&manager->share);
    manager->created_ns = sl_clock_ns();
    atomic_store(&manager->wake_at, UINT64_MAX);
    (void)snprintf(manager->name, sizeof(manager->name), "%s", params->name);
    manager->n_threads = params->n_threads;
    manager->backend = params->backend;
    manager->device = params->device;
    manager->max_in_flight = params->in_flight;
    manager->n_procs = omp_get_num_procs();
    manager->n_cores = (int)n_cores;
    manager->n_slots = ring_ops;
    manager->names = sl_op_names_create();
    manager->ring =
        aligned_alloc(SL_LINE_BYTES, ring_ops * sizeof(sl_op_slot_t));
    if (n_cores > 0) {
        manager->cores = malloc(n_cores * sizeof(int));
        if (manager->cores != NULL) {
            memcpy(manager->cores, params->cores, n_cores * sizeof(int));
        }
    }
    if (manager->names == NULL || manager->ring == NULL ||
        (n_cores > 0 && manager->cores == NULL)) {
        manager_free(manager);
        return NULL;
    }
    return manager;
}

/* Start the thread and hear whether it could be set up: an errno, or the
 * status of the backend. Signals are for the program's own threads. */
static int thread_open(sl_op_manager_t *manager, sl_status_t *status_p)
{
    sigset_t all;
    sigset_t before;
    int error;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    *status_p = SL_OK;
    error = pthread_create(&manager->thread, NULL, device_main, manager);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) {
        return error;
    }
    (void)pthread_mutex_lock(manager->lock);
    while (!manager->is_started) {
        (void)pthread_cond_wait(&manager->progress, manager->lock);
    }
    error = manager->start_error;
    *status_p = manager->open_status;
    (void)pthread_mutex_unlock(manager->lock);
    if (error != 0 || *status_p < 0) {
        (void)pthread_join(manager->thread, NULL);
    }
    return error;
}

sl_status_t sl_op_manager_create(const sl_op_manager_params_t *params,
                                 sl_op_manager_t **manager_p)
{
    sl_op_manager_t *manager = NULL;
    char text[128];
    sl_status_t status;
    int error;

    SL_TRY(status, check_params(params), out);
    if (manager_p == NULL) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out, "%s: no output given",
                params->name);
    }
    manager = manager_new(params);
    if (manager == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "%s: no memory for a ring of %d",
                params->name, params->ring_ops);
    }
    error = thread_open(manager, &status);
    if (status < 0) {
        sl_last_error_set(manager->detail);
        goto err_free;
    }
    if (error != 0) {
        if (strerror_r(error, text, sizeof(text)) != 0) {
            text[0] = '\0';
        }
        SL_FAIL(status, SL_ERR_DEVICE, err_free,
                "%s: thread not started (%d cores to bind to): %s",
                params->name, manager->n_cores, text);
    }
    (void)atomic_fetch_add(&n_managers, 1);
    *manager_p = manager;
    return SL_OK;

err_free:
    manager_free(manager);
out:
    return status;
}

void sl_op_manager_destroy(sl_op_manager_t *manager)
{
    if (manager == NULL) {
        return;
    }
    (void)pthread_mutex_lock(manager->lock);
    sl_op_section_cut(manager);
    manager->is_stopping = 1;
    atomic_store_explicit(&manager->is_yielding, 0, memory_order_release);
    (void)pthread_cond_signal(&manager->work);
    (void)pthread_cond_broadcast(&manager->gate);
    (void)pthread_mutex_unlock(manager->lock);
    (void)pthread_join(manager->thread, NULL);
    (void)atomic_fetch_sub(&n_managers, 1);
    manager_free(manager);
}

const int *sl_op_manager_cores(const sl_op_manager_t *manager, int *n_p)
{
    *n_p = manager->n_cores;
    return manager->cores;
}

/* ---- ops ---- */

uint32_t sl_op_manager_name(sl_op_manager_t *manager, const char *name)
{
    uint32_t id = 0;

    if (manager != NULL && name != NULL) {
        (void)pthread_mutex_lock(manager->lock);
        id = sl_op_names_id(manager->names, name);
        (void)pthread_mutex_unlock(manager->lock);
    }
    return id;
}

static sl_status_t check_op(const sl_op_manager_t *manager, const sl_op_t *op)
{
    sl_status_t status = SL_OK;

    if (manager == NULL || op == NULL || op->fn == NULL ||
        op->name_id >= SL_OP_MAX_NAMES || op->args_bytes > SL_OP_ARGS_BYTES ||
        (op->args == NULL && op->args_bytes > 0)) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "%s: op has no function, no arguments or more than %d bytes "
                "of them",
                manager == NULL ? "no op manager" : manager->name,
                SL_OP_ARGS_BYTES);
    }
    if (is_in_op) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "%s: an op may not submit or wait: it would wait for itself",
                manager->name);
    }
out:
    return status;
}

/* Room for one more op, unless the manager fails; lock held. When the ring
 * is full a quarter is freed at once: one wake-up for many ops. */
static sl_status_t await_room(sl_op_manager_t *manager)
{
    const uint64_t batch = manager->n_slots < 4 ? 1 : manager->n_slots / 4;
    sl_status_t status = failure_of(manager);

    while (status == SL_OK) {
        const uint64_t submitted =
            atomic_load_explicit(&manager->n_submitted, memory_order_relaxed) +
            manager->n_held;

        if (submitted -
                atomic_load_explicit(&manager->n_done, memory_order_acquire) <
            manager->n_slots) {
            return SL_OK;
        }
        (void)sleep_until(manager, submitted - manager->n_slots + batch, NULL);
        status = failure_of(manager);
    }
    return status;
}

sl_status_t sl_op_manager_submit(sl_op_manager_t *manager, const sl_op_t *op,
                                 uint64_t *ticket_p)
{
    sl_op_slot_t *slot;
    uint64_t submitted;
    sl_status_t status;

    SL_TRY(status, check_op(manager, op), out);
    (void)pthread_mutex_lock(manager->lock);
    SL_TRY(status, await_room(manager), out_unlock);
    submitted =
        atomic_load_explicit(&manager->n_submitted, memory_order_relaxed) +
        manager->n_held;
    if (op->is_load && op->after != SL_OP_AFTER_NOTHING &&
        op->after > submitted) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out_unlock,
                "%s: a load after op %" PRIu64 ", but %" PRIu64
                " are submitted",
                manager->name, op->after, submitted);
    }
    slot = &manager->ring[submitted & (manager->n_slots - 1)];
    slot->fn = op->fn;
    slot->span = op->span;
    slot->name_id = op->name_id;
    slot->cost_us = op->cost_us;
    slot->after = op->after;
    slot->is_host = (int8_t)(op->is_host != 0);
    slot->is_load = (int8_t)(op->is_load != 0);
    slot->is_send = (int8_t)(op->is_send != 0);
    if (op->args_bytes > 0) {
        memcpy(slot->args, op->args, op->args_bytes);
    }
    slot->section = 0;
    slot->is_last = 0;
    if (manager->section == 0 || !sl_op_section_hold(manager, slot)) {
        sl_op_manager_announce(manager, submitted + 1);
    }
    if (ticket_p != NULL) {
        *ticket_p = submitted + 1;
    }
out_unlock:
    (void)pthread_mutex_unlock(manager->lock);
out:
    return status;
}

uint64_t sl_op_manager_after(const sl_op_manager_t *manager)
{
    uint64_t submitted;

    (void)pthread_mutex_lock(manager->lock);
    submitted =
        atomic_load_explicit(&manager->n_submitted, memory_order_relaxed) +
        manager->n_held;
    (void)pthread_mutex_unlock(manager->lock);
    return submitted == 0 ? SL_OP_AFTER_NOTHING : submitted;
}

sl_status_t sl_op_manager_wait(sl_op_manager_t *manager, uint64_t ticket,
                               uint64_t timeout_ns)
{
    const int is_bounded = timeout_ns <= INT64_MAX;
    struct timespec deadline;
    sl_status_t status;
    int is_late;

    if (manager != NULL && !is_in_op &&
        ticket >
            atomic_load_explicit(&manager->n_submitted, memory_order_relaxed)) {
        sl_op_section_flush(manager);
    }
    if (manager == NULL || is_in_op ||
        ticket >
            atomic_load_explicit(&manager->n_submitted, memory_order_relaxed)) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "%s: wait for op %" PRIu64 ", inside an op or not submitted",
                manager == NULL ? "no op manager" : manager->name, ticket);
    }
    deadline = sl_clock_deadline(is_bounded ? timeout_ns : 0);
    if (timeout_ns > 0) {
        (void)spin_until(manager, &manager->n_done, ticket);
    }
    (void)pthread_mutex_lock(manager->lock);
    is_late =
        sleep_until(manager, ticket, is_bounded ? &deadline : NULL) != SL_OK;
    status = is_late ? SL_ERR_TIMEOUT : failure_of(manager);
    (void)pthread_mutex_unlock(manager->lock);
    if (is_late) {
        SL_REFUSE(status, SL_ERR_TIMEOUT, out,
                  "%s: op %" PRIu64 " has not run after %" PRIu64
                  " ns; %" PRIu64 " ops done",
                  manager->name, ticket, timeout_ns,
                  atomic_load(&manager->n_done));
    }
out:
    return status;
}

sl_status_t sl_op_manager_drain(sl_op_manager_t *manager)
{
    sl_status_t status;

    if (manager == NULL) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out, "no op manager to drain");
    }
    sl_op_section_flush(manager);
    return sl_op_manager_wait(
        manager,
        atomic_load_explicit(&manager->n_submitted, memory_order_relaxed),
        UINT64_MAX);
out:
    return status;
}

void sl_op_manager_watch(sl_op_manager_t *manager, sl_op_watch_t *watch)
{
    (void)pthread_mutex_lock(manager->lock);
    watch->next = manager->watches;
    manager->watches = watch;
    (void)pthread_mutex_unlock(manager->lock);
}

void sl_op_manager_unwatch(sl_op_manager_t *manager, sl_op_watch_t *watch)
{
    sl_op_watch_t **link;

    (void)pthread_mutex_lock(manager->lock);
    for (link = &manager->watches; *link != NULL; link = &(*link)->next) {
        if (*link == watch) {
            *link = watch->next;
            break;
        }
    }
    (void)pthread_mutex_unlock(manager->lock);
}

void sl_op_manager_recover(sl_op_manager_t *manager)
{
    (void)pthread_mutex_lock(manager->lock);
    manager->detail[0] = '\0';
    atomic_store_explicit(&manager->failure, SL_OK, memory_order_release);
    (void)pthread_mutex_unlock(manager->lock);
}
