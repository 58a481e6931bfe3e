/* SPDX-License-Identifier: Apache-2.0 */
/* Errors, devices, injected failures, counters and reports. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "standin_internal.h"

enum {
    MAX_REPORTS = 32,
    REPORT_BYTES = 384,
    EXIT_STATUS = 99
};

pthread_mutex_t standin_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t standin_changed = PTHREAD_COND_INITIALIZER;
vclock_t standin_host;

/* guarded by the lock */
static struct {
    uint64_t n_calls[STANDIN_N_ENTRIES];
    int fails; /* 1: to come, 2: happened */
    standin_entry_t fail_entry;
    uint64_t fail_call;
    cudaError_t fail_error;
    standin_failure_t failure;
    int fails_then; /* another one is to come after it */
    standin_entry_t then_entry;
    uint64_t then_call; /* counted from there */
    cudaError_t then_error;
    int n_devices;
    int numbers[MAX_DEVICES]; /* of the host, as other processes see them */
    int has_no_uuids;
    size_t memory_bytes;
    size_t granularity;
    int has_no_peers;
    int is_reverse;
    unsigned delay_us;
    unsigned slow_us[STANDIN_N_ENTRIES];
    standin_nccl_job_t stalled;
    cudaError_t sticky[MAX_DEVICES];
    int peers[MAX_DEVICES]; /* bit p: may use the memory of p */
    int n_reports;
    char reports[MAX_REPORTS][REPORT_BYTES];
    int is_ready;
} g;

static _Thread_local int device;
static _Thread_local cudaError_t last_error;

void lock(void)
{
    (void)pthread_mutex_lock(&standin_lock);
}

void unlock(void)
{
    (void)pthread_mutex_unlock(&standin_lock);
}

void vclock_join(vclock_t *clock, const vclock_t *other)
{
    int i;

    for (i = 0; i < N_SLOTS; i++) {
        if (other->at[i] > clock->at[i]) {
            clock->at[i] = other->at[i];
        }
    }
}

/* ---- reports ---- */

void standin_complain(const char *fmt, ...)
{
    va_list args;

    if (g.n_reports < MAX_REPORTS) {
        va_start(args, fmt);
        (void)vsnprintf(g.reports[g.n_reports], REPORT_BYTES, fmt, args);
        va_end(args);
        if (getenv("SL_STANDIN_ABORT") != NULL) {
            (void)fprintf(stderr, "stand-in: %s\n", g.reports[g.n_reports]);
            abort();
        }
    }
    g.n_reports++;
}

static void check_at_exit(void)
{
    int i;

    if (g.n_reports == 0) {
        return;
    }
    (void)fprintf(stderr, "stand-in: %d reports\n", g.n_reports);
    for (i = 0; i < g.n_reports && i < MAX_REPORTS; i++) {
        (void)fprintf(stderr, "  %s\n", g.reports[i]);
    }
    (void)fflush(NULL);
    _exit(EXIT_STATUS);
}

int standin_n_reports(void)
{
    int n;

    lock();
    n = g.n_reports;
    unlock();
    return n;
}

const char *standin_report(int i)
{
    return i < 0 || i >= MAX_REPORTS ? "" : g.reports[i];
}

void standin_clear_reports(void)
{
    lock();
    g.n_reports = 0;
    memset(g.reports, 0, sizeof(g.reports));
    unlock();
}

/* ---- settings ---- */

const char *standin_entry_name(standin_entry_t entry)
{
    static const char *const names[] = {
#define X(name) #name,
        SL_STANDIN_ENTRY_MAP(X)
#undef X
    };

    return entry < STANDIN_N_ENTRIES ? names[entry] : "none";
}

/* entry:n:error[:run] */
static void read_environment(void)
{
    const char *text = getenv("SL_STANDIN_FAIL");
    char name[64], mode[8] = "";
    unsigned long long n;
    int error, i;

    if (text == NULL ||
        sscanf(text, "%63[^:]:%llu:%d:%7s", name, &n, &error, mode) < 3) {
        return;
    }
    for (i = 0; i < STANDIN_N_ENTRIES; i++) {
        if (strcmp(name, standin_entry_name((standin_entry_t)i)) == 0) {
            g.fails = 1;
            g.fail_entry = (standin_entry_t)i;
            g.fail_call = n;
            g.fail_error = (cudaError_t)error;
            g.failure =
                strcmp(mode, "run") == 0 ? STANDIN_FAIL_RUN : STANDIN_FAIL_CALL;
        }
    }
}

static int default_devices(void)
{
    const char *text = getenv("SL_STANDIN_DEVICES");
    const int n = text == NULL ? 2 : atoi(text);

    return n < 0 ? 0 : n > MAX_DEVICES ? MAX_DEVICES : n;
}

/* All that there are, or those of CUDA_VISIBLE_DEVICES: numbers, up to the
 * first one that is none. */
static void show_devices(int n_there, const char *visible)
{
    int i;

    g.n_devices = 0;
    for (i = 0; i < n_there && visible == NULL; i++) {
        g.numbers[g.n_devices++] = i;
    }
    while (visible != NULL && g.n_devices < MAX_DEVICES) {
        char *end;
        const long number = strtol(visible, &end, 10);

        if (end == visible || number < 0 || number >= n_there) {
            break;
        }
        g.numbers[g.n_devices++] = (int)number;
        visible = *end == ',' ? end + 1 : NULL;
    }
}

static void set_defaults(void)
{
    const char *delay = getenv("SL_STANDIN_DELAY_US");
    const char *page = getenv("SL_STANDIN_PAGE_BYTES");

    memset(g.n_calls, 0, sizeof(g.n_calls));
    memset(g.slow_us, 0, sizeof(g.slow_us));
    memset(g.sticky, 0, sizeof(g.sticky));
    memset(g.peers, 0, sizeof(g.peers));
    memset(g.reports, 0, sizeof(g.reports));
    g.n_reports = 0;
    g.stalled = STANDIN_NCCL_NONE;
    g.fails = g.fails_then = 0;
    show_devices(default_devices(), getenv("CUDA_VISIBLE_DEVICES"));
    g.has_no_uuids = 0;
    g.memory_bytes = (size_t)3 << 30;
    g.granularity =
        page == NULL ? (size_t)2 << 20 : (size_t)strtoull(page, NULL, 10);
    g.has_no_peers = 0;
    driver_reset();
    g.is_reverse = getenv("SL_STANDIN_REVERSE") != NULL;
    g.delay_us = delay == NULL ? 0 : (unsigned)strtoul(delay, NULL, 10);
    read_environment();
}

static void make_ready(void)
{
    if (!g.is_ready) {
        g.is_ready = 1;
        (void)atexit(check_at_exit);
        set_defaults();
    }
}

void standin_reset(void)
{
    lock();
    make_ready();
    streams_wait(-1);
    set_defaults();
    unlock();
    device = 0;
    last_error = cudaSuccess;
}

void standin_fail(standin_entry_t entry, uint64_t n, cudaError_t error,
                  standin_failure_t failure)
{
    lock();
    make_ready();
    g.fails = 1;
    g.fail_entry = entry;
    g.fail_call = g.n_calls[entry] + n;
    g.fail_error = error;
    g.failure = failure;
    g.fails_then = 0;
    unlock();
}

void standin_fail_then(standin_entry_t entry, uint64_t n, cudaError_t error)
{
    lock();
    g.fails_then = 1;
    g.then_entry = entry;
    g.then_call = n;
    g.then_error = error;
    unlock();
}

int standin_has_failed(void)
{
    int has_failed;

    lock();
    has_failed = g.fails == 2;
    unlock();
    return has_failed;
}

uint64_t standin_n_calls(standin_entry_t entry)
{
    uint64_t n;

    lock();
    n = g.n_calls[entry];
    unlock();
    return n;
}

void standin_set_devices(int n_devices)
{
    lock();
    make_ready();
    show_devices(n_devices > MAX_DEVICES ? MAX_DEVICES : n_devices, NULL);
    unlock();
}

void standin_set_uuids(int has_uuids)
{
    lock();
    make_ready();
    g.has_no_uuids = !has_uuids;
    unlock();
}

void standin_set_memory(size_t bytes)
{
    lock();
    make_ready();
    g.memory_bytes = bytes;
    unlock();
}

void standin_set_granularity(size_t bytes)
{
    lock();
    make_ready();
    g.granularity = bytes;
    unlock();
}

void standin_set_peers(int can_access)
{
    lock();
    make_ready();
    g.has_no_peers = !can_access;
    unlock();
}

void standin_set_reverse(int is_reverse)
{
    lock();
    make_ready();
    g.is_reverse = is_reverse;
    unlock();
}

void standin_set_delay_us(unsigned microseconds)
{
    lock();
    make_ready();
    g.delay_us = microseconds;
    unlock();
}

void standin_set_slow(standin_entry_t entry, unsigned microseconds)
{
    lock();
    make_ready();
    g.slow_us[entry] = microseconds;
    unlock();
}

void standin_stall_nccl(standin_nccl_job_t job)
{
    lock();
    make_ready();
    g.stalled = job;
    unlock();
}

standin_nccl_job_t standin_stalled(void)
{
    standin_nccl_job_t job;

    lock();
    job = g.stalled;
    unlock();
    return job;
}

int standin_n_live(void)
{
    int n;

    lock();
    n = memory_n_live() + driver_n_live() + streams_n_live() + graphs_n_live() +
        dnn_n_live();
    unlock();
    return n;
}

int standin_is_reverse(void)
{
    return g.is_reverse;
}

unsigned standin_delay_us(void)
{
    return g.delay_us;
}

int standin_n_devices(void)
{
    return g.n_devices;
}

int standin_host_number(int of)
{
    return g.numbers[of];
}

size_t standin_memory(void)
{
    return g.memory_bytes;
}

size_t standin_granularity(void)
{
    return g.granularity;
}

int standin_device(void)
{
    return device;
}

int standin_is_peer(int of, int peer)
{
    return of == peer || (g.peers[of] >> peer & 1) != 0;
}

/* ---- errors ---- */

cudaError_t standin_sticky(int of)
{
    return g.sticky[of];
}

void standin_raise(int of, cudaError_t error)
{
    if (g.sticky[of] == cudaSuccess) {
        g.sticky[of] = error;
    }
}

cudaError_t standin_late_error(void)
{
    return g.fail_error;
}

/* The failure that was injected happens. Lock held. */
static void has_failed_now(void)
{
    g.fails = 2;
    if (g.fails_then) {
        g.fails_then = 0;
        g.fails = 1;
        g.fail_entry = g.then_entry;
        g.fail_call = g.n_calls[g.then_entry] + g.then_call;
        g.fail_error = g.then_error;
        g.failure = STANDIN_FAIL_CALL;
    }
}

static void sleep_us(unsigned microseconds)
{
    const struct timespec pause = {.tv_sec = microseconds / 1000000,
                                   .tv_nsec =
                                       (long)(microseconds % 1000000) * 1000};

    if (microseconds > 0) {
        (void)nanosleep(&pause, NULL);
    }
}

cudaError_t standin_enter(standin_entry_t entry, int *is_late_p)
{
    cudaError_t error;
    unsigned slow_us;
    int is_now;

    lock();
    make_ready();
    g.n_calls[entry]++;
    is_now = g.fails == 1 && g.fail_entry == entry &&
             g.n_calls[entry] == g.fail_call;
    error = g.sticky[device];
    if (error == cudaSuccess && graph_refuses_entry(entry)) {
        error = cudaErrorStreamCaptureUnsupported;
    }
    if (is_late_p != NULL) {
        *is_late_p = is_now && g.failure == STANDIN_FAIL_RUN;
    }
    if (is_now && (g.failure == STANDIN_FAIL_CALL || is_late_p != NULL)) {
        if (g.failure == STANDIN_FAIL_CALL && error == cudaSuccess) {
            error = g.fail_error;
        }
        has_failed_now();
    }
    slow_us = g.slow_us[entry];
    unlock();
    sleep_us(slow_us);
    return error;
}

cudaError_t standin_give(cudaError_t error)
{
    if (error != cudaSuccess) {
        last_error = error;
    }
    return error;
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t error = cudaPeekAtLastError();

    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void)
{
    cudaError_t sticky;

    lock();
    sticky = g.sticky[device];
    unlock();
    return sticky != cudaSuccess ? sticky : last_error;
}

const char *cudaGetErrorName(cudaError_t error)
{
    switch (error) {
#define X(id, value, text)                                                     \
    case id:                                                                   \
        return #id;
        SL_STANDIN_ERROR_MAP(X)
#undef X
    }
    return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error)
{
    switch (error) {
#define X(id, value, text)                                                     \
    case id:                                                                   \
        return text;
        SL_STANDIN_ERROR_MAP(X)
#undef X
    }
    return "unrecognized error code";
}

/* ---- devices ---- */

cudaError_t cudaRuntimeGetVersion(int *version)
{
    STANDIN_ENTER(cudaRuntimeGetVersion);
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    STANDIN_ENTER(cudaDriverGetVersion);
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    STANDIN_ENTER(cudaGetDeviceCount);
    *count = g.n_devices;
    return standin_give(g.n_devices == 0 ? cudaErrorNoDevice : cudaSuccess);
}

static int is_device(int number)
{
    return number >= 0 && number < g.n_devices;
}

cudaError_t cudaSetDevice(int number)
{
    STANDIN_ENTER(cudaSetDevice);
    if (!is_device(number)) {
        return standin_give(cudaErrorInvalidDevice);
    }
    device = number;
    return cudaSuccess;
}

cudaError_t cudaSetDeviceFlags(unsigned int flags)
{
    STANDIN_ENTER(cudaSetDeviceFlags);
    return standin_give(flags == cudaDeviceScheduleBlockingSync
                            ? cudaSuccess
                            : cudaErrorInvalidValue);
}

cudaError_t cudaGetDevice(int *number)
{
    STANDIN_ENTER(cudaGetDevice);
    *number = device;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int number)
{
    STANDIN_ENTER(cudaGetDeviceProperties);
    if (!is_device(number)) {
        return standin_give(cudaErrorInvalidDevice);
    }
    memset(prop, 0, sizeof(*prop));
    (void)snprintf(prop->name, sizeof(prop->name), "stand-in %d",
                   g.numbers[number]);
    if (!g.has_no_uuids) {
        prop->uuid.bytes[3] = (char)g.numbers[number];
        memcpy(prop->uuid.bytes + 8, "stand-in", 8);
    }
    prop->totalGlobalMem = g.memory_bytes;
    prop->sharedMemPerBlock = (size_t)48 << 10;
    prop->maxThreadsPerBlock = 1024;
    prop->multiProcessorCount = 4;
    prop->major = 9;
    prop->warpSize = 32;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr,
                                   int number)
{
    STANDIN_ENTER(cudaDeviceGetAttribute);
    if (!is_device(number)) {
        return standin_give(cudaErrorInvalidDevice);
    }
    switch (attr) {
    case cudaDevAttrMultiProcessorCount:
        *value = 4;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
        *value = 9;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
        *value = 0;
        return cudaSuccess;
    }
    return standin_give(cudaErrorInvalidValue);
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int bytes, int number)
{
    STANDIN_ENTER(cudaDeviceGetPCIBusId);
    if (!is_device(number) || bytes < 13) {
        return standin_give(cudaErrorInvalidValue);
    }
    (void)snprintf(id, (size_t)bytes, "0000:%02X:00.0", 10 + g.numbers[number]);
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    cudaError_t error;

    STANDIN_ENTER(cudaDeviceSynchronize);
    lock();
    streams_wait(device);
    error = g.sticky[device];
    unlock();
    return standin_give(error);
}

cudaError_t cudaDeviceCanAccessPeer(int *can_access, int number, int peer)
{
    STANDIN_ENTER(cudaDeviceCanAccessPeer);
    if (!is_device(number) || !is_device(peer)) {
        return standin_give(cudaErrorInvalidDevice);
    }
    *can_access = number != peer && !g.has_no_peers;
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags)
{
    cudaError_t error = cudaSuccess;

    STANDIN_ENTER(cudaDeviceEnablePeerAccess);
    if (!is_device(peer) || peer == device || flags != 0) {
        return standin_give(cudaErrorInvalidDevice);
    }
    if (g.has_no_peers) {
        return standin_give(cudaErrorPeerAccessUnsupported);
    }
    lock();
    if ((g.peers[device] >> peer & 1) != 0) {
        error = cudaErrorPeerAccessAlreadyEnabled;
    }
    g.peers[device] |= 1 << peer;
    unlock();
    return standin_give(error);
}
