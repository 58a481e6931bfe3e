/* SPDX-License-Identifier: Apache-2.0 */
/* Devices: a spec such as "cpu:4" becomes memory and op managers. */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/parse.h"
#include "scheduler/machine.h"
#include "scheduler/pulse.h"
#include "scheduler/scheduler.h"

enum {
    MAX_DEVICES = 256,
    MAX_CORES = 1 << 14
};

/* How the devices of one set divide the machine. */
typedef struct device_plan {
    int n_devices;
    int n_threads;
    int stride; /* cores between the first ones of two devices; 0 = unbound */
    size_t memory_bytes;
    size_t host_bytes;
    const int *cores;
} device_plan_t;

typedef sl_status_t (*device_open_fn)(const device_plan_t *plan, int index,
                                      sl_device_t *device);

static sl_status_t cpu_open(const device_plan_t *plan, int index,
                            sl_device_t *device);

/* Every kind there is; one that is not built has no open function. */
static const struct {
    const char *name;
    sl_device_kind_t kind;
    device_open_fn open;
    const char *missing; /* what the build lacks */
} kinds[] = {
    {"cpu", SL_DEVICE_KIND_CPU, cpu_open, NULL},
    {"cuda", SL_DEVICE_KIND_CUDA, NULL, "CUDA"},
};

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
}

/* ---- cpu ---- */

static void quiesce(void *ctx)
{
    /* a failure is for the submitter; here only the end of the ops counts */
    const sl_status_t status = sl_op_manager_drain(ctx);

    (void)status;
}

static sl_status_t cpu_open(const device_plan_t *plan, int index,
                            sl_device_t *device)
{
    sl_op_manager_params_t ops_params;
    sl_mem_params_t mem_params;
    sl_status_t status;

    (void)snprintf(device->name, sizeof(device->name), "cpu:%d", index);
    device->kind = SL_DEVICE_KIND_CPU;
    device->index = index;
    device->n_threads = plan->n_threads;
    device->n_cores = plan->stride > 0 ? plan->n_threads : 0;

    sl_op_manager_params_default(&ops_params);
    ops_params.name = device->name;
    ops_params.n_threads = plan->n_threads;
    if (plan->stride > 0) {
        ops_params.cores = plan->cores + (size_t)index * (size_t)plan->stride;
        ops_params.n_cores = device->n_cores;
    }
    SL_TRY(status, sl_op_manager_create(&ops_params, &device->ops), out);

    sl_mem_params_default(&mem_params);
    mem_params.name = device->name;
    mem_params.limit_bytes = plan->memory_bytes;
    mem_params.host_limit_bytes = plan->host_bytes;
    mem_params.quiesce = quiesce;
    mem_params.quiesce_ctx = device->ops;
    SL_TRY(status, sl_mem_create(&mem_params, &device->mem), out);
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
                "device '%.64s': unknown kind; this build has: cpu (write "
                "\"cpu\" or \"cpu:N\")",
                spec);
    }
    if (kinds[i].open == NULL) {
        SL_REFUSE(status, SL_ERR_UNSUPPORTED, out,
                  "device '%.64s': this build has no %s; it has: cpu", spec,
                  kinds[i].missing);
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
        SL_TRY(status,
               sl_parse_int("number of devices", colon + 1, 1, MAX_DEVICES, &n),
               out);
    }
    *n_p = (int)n;
out:
    return status;
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
                       int n_cores, device_plan_t *plan)
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

static sl_status_t plan_make(const sl_device_params_t *params, int n_devices,
                             int *cores, device_plan_t *plan)
{
    const int n_mask = sl_device_cores(cores, MAX_CORES);
    int n_cores = n_mask < MAX_CORES ? n_mask : MAX_CORES;
    sl_status_t status = SL_OK;

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
    plan_cores(params, n_devices, n_cores, plan);
    plan->n_devices = n_devices;
    plan->cores = cores + (size_t)n_cores * (size_t)params->local_rank;
    plan->host_bytes = params->host_bytes;
    plan->memory_bytes = params->memory_bytes > 0
                             ? params->memory_bytes
                             : sl_machine_memory_bytes() / (size_t)n_devices /
                                   (size_t)params->n_on_host;
out:
    return status;
}

sl_status_t sl_device_set_create(const sl_device_params_t *params,
                                 sl_device_set_t **set_p)
{
    sl_device_set_t *set = NULL;
    int *cores = NULL;
    device_plan_t plan;
    sl_status_t status;
    int n_devices = 0;
    int kind = 0;
    int i;

    if (params == NULL || params->spec == NULL || set_p == NULL) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "devices: parameters, spec or output missing");
    }
    SL_TRY(status, parse_spec(params->spec, &kind, &n_devices), out);
    cores = malloc(MAX_CORES * sizeof(*cores));
    set = calloc(1, sizeof(*set));
    if (set != NULL) {
        set->devices = calloc((size_t)n_devices, sizeof(*set->devices));
    }
    if (cores == NULL || set == NULL || set->devices == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "no memory for %d devices",
                n_devices);
    }
    SL_TRY(status, plan_make(params, n_devices, cores, &plan), out);
    set->n_devices = n_devices;
    for (i = 0; i < n_devices; i++) {
        SL_TRY(status, kinds[kind].open(&plan, i, &set->devices[i]), out);
    }
    *set_p = set;
    set = NULL;
out:
    sl_device_set_destroy(set);
    free(cores);
    return status;
}

void sl_device_set_destroy(sl_device_set_t *set)
{
    int i;

    if (set == NULL) {
        return;
    }
    /* execution first: its last ops still use the memory */
    for (i = 0; i < set->n_devices; i++) {
        sl_op_manager_destroy(set->devices[i].ops);
        sl_mem_destroy(set->devices[i].mem);
    }
    free(set->devices);
    free(set);
}
