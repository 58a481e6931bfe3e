/* SPDX-License-Identifier: Apache-2.0 */
/* Devices: a spec such as "cpu:4" becomes memory and op managers. */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/parse.h"
#include "scheduler/device_internal.h"
#include "scheduler/machine.h"
#include "scheduler/pulse.h"
#include "scheduler/scheduler.h"

enum {
    MAX_CORES = 1 << 14
};

static sl_status_t cpu_plan(const sl_device_params_t *params,
                            sl_device_plan_t *plan);
static sl_status_t cpu_open(const sl_device_plan_t *plan, sl_device_t *device);

/* Every kind there is. */
static const sl_device_kind_ops_t kinds[] = {
    {.name = "cpu",
     .kind = SL_DEVICE_KIND_CPU,
     .plan = cpu_plan,
     .open = cpu_open},
#if SL_HAVE_CUDA
    {.name = "cuda",
     .kind = SL_DEVICE_KIND_CUDA,
     .plan = sl_device_cuda_plan,
     .open = sl_device_cuda_open,
     .close = sl_device_cuda_close},
#else
    {.name = "cuda", .kind = SL_DEVICE_KIND_CUDA, .missing = "CUDA"},
#endif
};

#define BUILT_KINDS (SL_HAVE_CUDA ? "cpu and cuda" : "cpu")

enum {
    N_KINDS = sizeof(kinds) / sizeof(*kinds)
};

void sl_device_params_default(sl_device_params_t *params)
{
    memset(params, 0, sizeof(*params));
    params->spec = "cpu:1";
    params->bind = 1;
    params->n_local = 1;
    params->n_on_host = 1;
    params->n_gpu_ranks = 1;
}

uint64_t sl_device_gpu_reserve(uint64_t bytes)
{
    const uint64_t most = UINT64_C(512) << 20;

    return bytes / 8 < most ? bytes / 8 : most; /* an eighth of a small one */
}

static void quiesce(void *ctx)
{
    /* a failure is for the submitter; here only the end of the ops counts */
    const sl_status_t status = sl_op_manager_drain(ctx);

    (void)status;
}

sl_status_t sl_device_fill(sl_device_t *device, sl_op_manager_params_t *ops,
                           sl_mem_params_t *mem)
{
    sl_status_t status;

    ops->name = mem->name = device->name;
    SL_TRY(status, sl_op_manager_create(ops, &device->ops), out);
    mem->quiesce = quiesce;
    mem->quiesce_ctx = device->ops;
    status = sl_mem_create(mem, &device->mem);
out:
    return status;
}

/* ---- cpu ---- */

static sl_status_t cpu_open(const sl_device_plan_t *plan, sl_device_t *device)
{
    sl_op_manager_params_t ops;
    sl_mem_params_t mem;

    (void)snprintf(device->name, sizeof(device->name), "cpu:%d", device->index);
    device->gpu = -1;
    device->n_threads = plan->n_threads;
    device->n_cores = plan->stride > 0 ? plan->n_threads : 0;

    sl_op_manager_params_default(&ops);
    ops.n_threads = plan->n_threads;
    if (plan->stride > 0) {
        ops.cores =
            plan->first_cores + (size_t)device->index * (size_t)plan->stride;
        ops.n_cores = device->n_cores;
    }
    sl_mem_params_default(&mem);
    mem.limit_bytes = plan->memory_bytes;
    mem.host_limit_bytes = plan->host_bytes;
    return sl_device_fill(device, &ops, &mem);
}

/* The group's time is for all its processes; 0 = not limited. */
static int quota_of_process(const sl_device_params_t *params)
{
    const int quota = sl_machine_cpu_quota();

    if (quota == 0 || quota / params->n_on_host > 0) {
        return quota / params->n_on_host;
    }
    return 1;
}

/* Share the cores out in contiguous runs, one a device. */
static void plan_cores(const sl_device_params_t *params, int n_devices,
                       int n_cores, sl_device_plan_t *plan)
{
    const int quota = quota_of_process(params);
    const int usable = quota > 0 && quota < n_cores ? quota : n_cores;
    const int share = usable / n_devices > 0 ? usable / n_devices : 1;

    const int allowed = omp_get_thread_limit();

    plan->n_threads = params->n_threads > 0 ? params->n_threads
                      : share < allowed     ? share
                                            : allowed;
    plan->stride = 0;
    if (!params->bind) {
        return;
    }
    if (usable < n_cores) {
        sl_info("devices not bound to cores: a control group grants the time "
                "of %d out of %d",
                usable, n_cores);
    } else if (n_devices > n_cores / plan->n_threads) {
        sl_info("devices not bound to cores: %d with %d threads each, on %d "
                "cores",
                n_devices, plan->n_threads, n_cores);
    } else {
        plan->stride = n_cores / n_devices;
    }
}

static sl_status_t cpu_plan(const sl_device_params_t *params,
                            sl_device_plan_t *plan)
{
    int n_cores;
    sl_status_t status = SL_OK;

    plan->cores = malloc(MAX_CORES * sizeof(*plan->cores));
    if (plan->cores == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "no memory for %d devices",
                plan->n_devices);
    }
    n_cores = sl_device_cores(plan->cores, MAX_CORES);
    n_cores = n_cores < MAX_CORES ? n_cores : MAX_CORES;
    if (params->n_local < 1 || params->local_rank < 0 ||
        params->local_rank >= params->n_local || params->n_on_host < 1) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "device '%.64s': process %d of %d that share cores, %d on the "
                "host",
                params->spec, params->local_rank, params->n_local,
                params->n_on_host);
    }
    /* equal parts, also when some cores are left over: what a kernel computes
     * depends on its threads */
    n_cores /= params->n_local;

    if (params->n_threads < 0 || params->n_threads > MAX_CORES) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "device '%.64s': %d kernel threads; 0 (all cores) to %d are "
                "allowed",
                params->spec, params->n_threads, MAX_CORES);
    }
    /* kernels split their work over exactly as many threads as are asked */
    if (params->n_threads > omp_get_thread_limit()) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "device '%.64s': %d kernel threads asked, but OpenMP allows "
                "%d; raise OMP_THREAD_LIMIT or ask for fewer",
                params->spec, params->n_threads, omp_get_thread_limit());
    }
    plan_cores(params, plan->n_devices, n_cores, plan);
    plan->first_cores =
        plan->cores + (size_t)n_cores * (size_t)params->local_rank;
    plan->memory_bytes = params->memory_bytes > 0
                             ? params->memory_bytes
                             : sl_machine_memory_bytes() /
                                   (size_t)plan->n_devices /
                                   (size_t)params->n_on_host;
out:
    return status;
}

/* Two threads of one core that wake each other for each op: without a slice
 * of its own the one that submits is pushed aside after every op, and is
 * better off on any core. In the background nobody pushes anybody aside. */
static void bind_self(const int *cores, int n_cores)
{
    const uint64_t slice_ns = 100000;
    sl_machine_sched_t sched;

    if (sl_machine_sched_get(0, &sched) != 0) {
        return;
    }
    sched.slice_ns = slice_ns;
    if (sl_machine_sched_set(0, &sched) != 0 ||
        sl_machine_sched_get(0, &sched) != 0) {
        return;
    }
    if (n_cores > 0 && (sched.slice_ns == slice_ns ||
                        sl_machine_sched_is_background(&sched))) {
        (void)sl_machine_bind_self(cores, n_cores);
    }
}

void sl_device_bind_self(const sl_device_t *device)
{
    int n_cores = 0;
    const int *cores = sl_op_manager_cores(device->ops, &n_cores);

    bind_self(cores, n_cores);
}

void sl_device_set_bind_self(const sl_device_set_t *set)
{
    int *all = malloc(MAX_CORES * sizeof(*all));
    int n_all = 0, i;

    for (i = 0; all != NULL && i < set->n_devices; i++) {
        int n_cores = 0;
        const int *cores = sl_op_manager_cores(set->devices[i].ops, &n_cores);

        if (n_cores == 0 || n_cores > MAX_CORES - n_all) {
            n_all = 0; /* one may use any core, so may its server */
            break;
        }
        memcpy(all + n_all, cores, (size_t)n_cores * sizeof(*all));
        n_all += n_cores;
    }
    bind_self(all, n_all);
    free(all);
}

/* ---- sets ---- */

static sl_status_t find_kind(const char *spec, int *kind_p)
{
    const size_t n = strcspn(spec, ":");
    sl_status_t status;
    int i;

    for (i = 0; i < N_KINDS; i++) {
        if (strlen(kinds[i].name) == n && memcmp(kinds[i].name, spec, n) == 0) {
            break;
        }
    }
    if (i == N_KINDS) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "device '%.64s': unknown kind; this build has: %s (write "
                "\"cpu\" or \"cpu:N\")",
                spec, BUILT_KINDS);
    }
    if (kinds[i].missing != NULL) {
        SL_REFUSE(status, SL_ERR_UNSUPPORTED, out,
                  "device '%.64s': this build has no %s; it has: %s", spec,
                  kinds[i].missing, BUILT_KINDS);
    }
    *kind_p = i;
    return SL_OK;
out:
    return status;
}

static sl_status_t parse_spec(const char *spec, int *kind_p, int *n_p)
{
    const char *colon;
    int64_t n = 1;
    sl_status_t status;

    SL_TRY(status, find_kind(spec, kind_p), out);
    colon = strchr(spec, ':');
    if (colon != NULL) {
        SL_TRY(
            status,
            sl_parse_int("number of devices", colon + 1, 1, SL_MAX_DEVICES, &n),
            out);
    }
    *n_p = (int)n;
out:
    return status;
}

sl_status_t sl_device_set_create(const sl_device_params_t *params,
                                 sl_device_set_t **set_p)
{
    sl_device_set_t *set = NULL;
    sl_device_plan_t *plan = NULL;
    sl_status_t status;
    int n_devices = 0;
    int kind = 0;
    int i;

    if (params == NULL || params->spec == NULL || set_p == NULL) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "devices: parameters, spec or output missing");
    }
    SL_TRY(status, parse_spec(params->spec, &kind, &n_devices), out);
    plan = calloc(1, sizeof(*plan));
    set = calloc(1, sizeof(*set));
    if (set != NULL) {
        set->devices = calloc((size_t)n_devices, sizeof(*set->devices));
    }
    if (plan == NULL || set == NULL || set->devices == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "no memory for %d devices",
                n_devices);
    }
    plan->n_devices = n_devices;
    plan->host_bytes = params->host_bytes;
    SL_TRY(status, kinds[kind].plan(params, plan), out);
    for (i = 0; i < n_devices; i++) {
        sl_device_t *device = &set->devices[i];

        device->kind = kinds[kind].kind;
        device->index = i;
        set->n_devices = i + 1;
        SL_TRY(status, kinds[kind].open(plan, device), out);
    }
    *set_p = set;
    set = NULL;
out:
    sl_device_set_destroy(set);
    if (plan != NULL) {
        free(plan->cores);
    }
    free(plan);
    return status;
}

static void device_close(sl_device_t *device)
{
    int i;

    sl_mem_destroy(device->mem);
    for (i = 0; i < N_KINDS; i++) {
        if (kinds[i].kind == device->kind && kinds[i].close != NULL) {
            kinds[i].close(device);
        }
    }
}

void sl_device_set_destroy(sl_device_set_t *set)
{
    int i;

    if (set == NULL) {
        return;
    }
    /* execution first: its last ops still use the memory, some of them that
     * of other devices */
    for (i = 0; i < set->n_devices; i++) {
        sl_op_manager_destroy(set->devices[i].ops);
    }
    for (i = 0; i < set->n_devices; i++) {
        device_close(&set->devices[i]);
    }
    free(set->devices);
    free(set);
}

const char *sl_device_default_spec(void)
{
#if SL_HAVE_CUDA
    static _Thread_local char spec[32];
    const int n = sl_device_cuda_count();

    if (n > 0) {
        (void)snprintf(spec, sizeof(spec), "cuda:%d", n);
        return spec;
    }
#endif
    return "cpu:1";
}

uint64_t sl_device_gpus_hash(void)
{
#if SL_HAVE_CUDA
    return sl_device_cuda_hash();
#else
    return 0;
#endif
}
