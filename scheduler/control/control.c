/* SPDX-License-Identifier: Apache-2.0 */
/* A job's control plane: opened, closed. */
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "scheduler/control/control_internal.h"
#include "scheduler/control/json_fields.h"
#include "scheduler/control/secure_file.h"
#include "scheduler/pulse.h"

enum {
    STALE_S = 60 /* much longer than a write takes */
};

static uint64_t system_clock(void *ctx)
{
    (void)ctx;
    return sl_clock_ns();
}

/* An environment variable that is set to nothing counts as not set. */
static const char *env_path(const char *name)
{
    const char *value = getenv(name);

    return value != NULL && value[0] != '\0' ? value : NULL;
}

void sl_control_params_default(sl_control_params_t *params)
{
    memset(params, 0, sizeof(*params));
    params->name = "job";
    params->job_class = SL_JOB_CLASS_NONE;
    params->unit = "samples";
    params->antman_config = env_path("GPU_CONFIG_FILE");
    params->antman_status = env_path("GPU_STATUS_FILE");
    params->status_ms = 200;
    params->poll_ms = 1000;
    params->antman_ttl_ms = 60000;
    params->clock_ns = system_clock;
    params->share_law = SL_SHARE_TOKEN_BUCKET;
}

uint64_t sl_control_now(const sl_control_t *control)
{
    return control->params.clock_ns(control->params.clock_ctx);
}

int sl_control_is_interrupted(const sl_control_t *control)
{
    return control->params.is_interrupted != NULL &&
           control->params.is_interrupted(control->params.interrupt_ctx);
}

/* Field 22 of /proc/self/stat; the name in field 2 may hold anything, so the
 * count starts after its last ')'. 0 when it cannot be known. */
static uint64_t start_ticks(void)
{
    enum {
        START_FIELD = 22,
        NAME_FIELD = 2
    };
    char text[1024];
    uint64_t ticks = 0;
    FILE *file = fopen("/proc/self/stat", "re");
    char *at, *rest = NULL;
    size_t n;
    int field;

    if (file == NULL) {
        return 0;
    }
    n = fread(text, 1, sizeof(text) - 1, file);
    (void)fclose(file);
    text[n] = '\0';
    at = strrchr(text, ')');
    at = at != NULL ? strtok_r(at + 1, " ", &rest) : NULL;
    for (field = NAME_FIELD + 1; at != NULL && field < START_FIELD; field++) {
        at = strtok_r(NULL, " ", &rest);
    }
    if (at != NULL) {
        ticks = strtoull(at, NULL, 10);
    }
    return ticks;
}

/* Runs of cores; nothing when they do not fit: then they are not known. */
static void describe_cores(const sl_device_t *device, char *list, size_t room)
{
    int n_cores = 0;
    const int *cores = sl_op_manager_cores(device->ops, &n_cores);
    size_t n = 0;
    int i, end;

    list[0] = '\0';
    for (i = 0; i < n_cores; i = end) {
        int wrote;

        for (end = i + 1; end < n_cores && cores[end] == cores[end - 1] + 1;
             end++) {
        }
        wrote = end - i > 1
                    ? snprintf(list + n, room - n, "%s%d-%d", n > 0 ? "," : "",
                               cores[i], cores[end - 1])
                    : snprintf(list + n, room - n, "%s%d", n > 0 ? "," : "",
                               cores[i]);
        if (wrote < 0 || (size_t)wrote >= room - n) {
            list[0] = '\0';
            return;
        }
        n += (size_t)wrote;
    }
}

static void describe_device(const sl_control_params_t *params, int d,
                            sl_control_device_t *to)
{
    const sl_device_t *from = &params->devices->devices[d];
    sl_mem_stats_t mem;

    sl_mem_stats(from->mem, &mem);
    memcpy(to->name, from->name, sizeof(to->name));
    to->kind = from->kind;
    /* nothing was asked yet: the limit is the capacity */
    to->capacity_bytes = mem.limit_bytes < SL_CONTROL_MAX_SEQUENCE
                             ? mem.limit_bytes
                             : SL_CONTROL_MAX_SEQUENCE;
    to->wanted_bytes =
        params->wanted_bytes != NULL ? params->wanted_bytes[d] : 0;
    to->n_cores = from->n_cores;
    to->n_threads = from->n_threads;
    describe_cores(from, to->core_list, sizeof(to->core_list));
    memcpy(to->gpu_id, from->gpu_id, sizeof(to->gpu_id));
    to->gpu_bytes = from->gpu_bytes;
}

static sl_status_t check_params(const sl_control_params_t *params)
{
    sl_status_t status = SL_OK;

    if (params == NULL || params->devices == NULL || params->name == NULL ||
        params->unit == NULL || params->clock_ns == NULL) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "control: devices, name, unit or clock missing");
    }
    if (!sl_name_is_valid(params->name, SL_CONTROL_NAME_BYTES)) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "job name '%.80s': it must start with a letter or digit, go "
                "on with letters, digits and '.', '_', '-', and have at most "
                "%d characters",
                params->name, SL_CONTROL_NAME_BYTES - 1);
    }
    if ((unsigned)params->job_class >= SL_JOB_N_CLASSES) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out, "job %s: there is no class %d",
                params->name, (int)params->job_class);
    }
    if (params->devices->n_devices < 1 ||
        params->devices->n_devices > SL_CONTROL_MAX_DEVICES) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "job %s: %d devices; 1 to %d can be controlled", params->name,
                params->devices->n_devices, SL_CONTROL_MAX_DEVICES);
    }
out:
    return status;
}

static sl_status_t copy_path(const char *from, char **to)
{
    sl_status_t status = SL_OK;

    if (from != NULL) {
        *to = malloc(strlen(from) + 1);
        if (*to == NULL) {
            SL_FAIL(status, SL_ERR_NO_MEMORY, out, "no host memory for a path");
        }
        strcpy(*to, from);
    }
out:
    return status;
}

static void describe(sl_control_t *control, const sl_control_params_t *params)
{
    int d;

    control->params = *params;
    control->n_devices = params->devices->n_devices;
    (void)snprintf(control->job.name, sizeof(control->job.name), "%s",
                   params->name);
    (void)snprintf(control->unit, sizeof(control->unit), "%s", params->unit);
    control->job.pid = (int64_t)getpid();
    control->job.start_ticks = start_ticks();
    control->job.job_class = control->job_class = params->job_class;
    control->job.created_ns = sl_control_now(control);
    control->job.n_devices = control->n_devices;
    control->floor_share = SL_CONTROL_FLOOR_SHARE;
    for (d = 0; d < control->n_devices; d++) {
        const sl_device_t *device = &params->devices->devices[d];
        sl_gate_t *gate = &control->gates[d];

        describe_device(params, d, &control->job.devices[d]);
        sl_antman_key(device->name,
                      device->bus_id[0] != '\0' ? device->bus_id : NULL,
                      control->antman_keys[d]);
        gate->share = gate->share_now =
            sl_op_manager_share_get(device->ops, NULL);
        sl_mem_stats(device->mem, &gate->mem);
    }
}

/* Without a place to be listed the job is as good as before; say it once. */
static void publish(sl_control_t *control, const char *run_dir)
{
    sl_status_t status;

    SL_TRY(status, sl_run_dir_open(run_dir, &control->dir), out);
    sl_run_dir_clean(control->dir);
    SL_TRY(status,
           sl_job_dir_create(control->dir, &control->job, &control->job_dir),
           out);
    sl_control_pulse_open(control);
out:
    if (status < 0) {
        sl_warn("job %s goes on without a control plane: %s", control->job.name,
                sl_control_cause());
        sl_run_dir_close(control->dir);
        control->dir = NULL;
    }
}

/* Beside files that lie anywhere, jobs that were killed may have left some. */
static void clean_paths(const sl_control_t *control)
{
    if (control->prometheus != NULL) {
        sl_atomic_clean_path(control->prometheus, STALE_S);
    }
    if (control->antman_status != NULL) {
        sl_atomic_clean_path(control->antman_status, STALE_S);
    }
}

void sl_control_watch(sl_control_t *control)
{
    char path[PATH_MAX + SL_CONTROL_ID_BYTES + 8];

    if (control->dir != NULL) {
        (void)snprintf(path, sizeof(path), "%s/jobs/%s", control->dir->path,
                       control->job_dir.id.text);
        sl_watcher_add(&control->watcher, SL_WATCHED_CONTROL, path,
                       SL_FILE_CONTROL);
    }
    if (control->antman_config != NULL) {
        const char *slash = strrchr(control->antman_config, '/');
        const int n =
            slash != NULL ? (int)(slash - control->antman_config) + 1 : 0;

        (void)snprintf(path, sizeof(path), "%.*s", n, control->antman_config);
        sl_watcher_add(&control->watcher, SL_WATCHED_ANTMAN, n > 0 ? path : ".",
                       control->antman_config + n);
    }
}

/* Signals are for the thread that trains. */
static sl_status_t start_thread(sl_control_t *control)
{
    sigset_t all, before;
    sl_status_t status = SL_OK;
    int failed;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    failed = pthread_create(&control->thread, NULL, sl_control_listen, control);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed != 0) {
        SL_FAIL(status, SL_ERR_DEVICE, out, "job %s: no control thread: %s",
                control->job.name, strerror(failed));
    }
    control->has_thread = 1;
out:
    return status;
}

static void make_lock(sl_control_t *control)
{
    pthread_condattr_t attr;

    (void)pthread_mutex_init(&control->lock, NULL);
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&control->changed, &attr);
    (void)pthread_condattr_destroy(&attr);
}

sl_status_t sl_control_open(const sl_control_params_t *params,
                            sl_control_t **control_p)
{
    sl_control_t *control = NULL;
    sl_status_t status;

    SL_TRY(status, check_params(params), out);
    control = calloc(1, sizeof(*control));
    if (control == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "job %s: no host memory",
                params->name);
    }
    make_lock(control);
    control->watcher.inotify_fd = control->watcher.wake_fd = -1;
    describe(control, params);
    SL_TRY(status, copy_path(params->prometheus, &control->prometheus), out);
    SL_TRY(status, copy_path(params->antman_config, &control->antman_config),
           out);
    SL_TRY(status, copy_path(params->antman_status, &control->antman_status),
           out);
    if (sl_watcher_open(&control->watcher) < 0) {
        SL_FAIL(status, SL_ERR_DEVICE, out, "job %s: no event descriptor",
                params->name);
    }
    clean_paths(control);
    publish(control, params->run_dir);
    sl_control_watch(control);
    SL_TRY(status, start_thread(control), out);
    *control_p = control;
    control = NULL;
out:
    sl_control_close(control);
    return status;
}

const char *sl_control_id(const sl_control_t *control)
{
    return control != NULL && control->dir != NULL ? control->job_dir.id.text
                                                   : NULL;
}

void sl_control_close(sl_control_t *control)
{
    if (control == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&control->lock);
    control->is_closing = 1;
    sl_control_refresh(control);
    (void)pthread_mutex_unlock(&control->lock);
    if (control->has_thread) {
        sl_watcher_wake(&control->watcher);
        (void)pthread_join(control->thread, NULL);
    }
    sl_control_pulse_close(control);
    if (control->dir != NULL) {
        sl_job_dir_remove(control->dir, &control->job_dir);
    }
    sl_run_dir_close(control->dir);
    sl_watcher_close(&control->watcher);
    free(control->control_file.text);
    free(control->antman_file.text);
    free(control->prometheus);
    free(control->antman_config);
    free(control->antman_status);
    (void)pthread_cond_destroy(&control->changed);
    (void)pthread_mutex_destroy(&control->lock);
    free(control);
}
