/* SPDX-License-Identifier: Apache-2.0 */
/* The job's own pulse, and those of the jobs it yields to. */
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "scheduler/control/control_internal.h"
#include "scheduler/control/lease.h"

static const uint64_t LOOK_NS = UINT64_C(200000000); /* at the hosts */
/* A host whose control thread has been silent for so long is stopped. */
static const uint64_t STALE_NS = UINT64_C(700000000);
static const uint64_t RETRY_NS = UINT64_C(500000000);

/* ---- the job's own ---- */

void sl_control_pulse_open(sl_control_t *control)
{
    if (sl_pulse_create(control->job_dir.fd, control->n_devices,
                        &control->pulse) < 0) {
        control->pulse = NULL;
        sl_debug("job %s has no pulse: %s", control->job.name,
                 sl_control_cause());
    }
}

void sl_control_pulse_refresh(sl_control_t *control)
{
    const int is_pulsing = control->pulse != NULL && !control->is_closing &&
                           control->job_class == SL_JOB_CLASS_GUARANTEE;
    int d;

    if (is_pulsing == control->is_pulsing) {
        return;
    }
    control->is_pulsing = is_pulsing;
    for (d = 0; d < control->n_devices; d++) {
        sl_op_manager_pulse_set(control->params.devices->devices[d].ops,
                                is_pulsing ? &control->pulse->slots[d] : NULL);
    }
}

static void stop_pulsing(sl_control_t *control)
{
    int d;

    for (d = 0; d < control->n_devices && control->is_pulsing; d++) {
        sl_op_manager_pulse_set(control->params.devices->devices[d].ops, NULL);
    }
    control->is_pulsing = 0;
}

void sl_control_pulse_renew(sl_control_t *control)
{
    stop_pulsing(control);
    sl_pulse_unmap(control->pulse);
    sl_control_pulse_open(control);
    sl_control_pulse_refresh(control);
}

/* ---- whom to yield to ---- */

void sl_control_yields_accept(sl_control_t *control, int d,
                              const sl_control_order_t *order, int gate)
{
    sl_gate_t *own = &control->gates[d];
    int i;

    own->n_yields = 0;
    for (i = 0; i < order->n_yields; i++) {
        const sl_control_yield_t *from = &order->yields[i];

        if (from->gate == gate && own->n_yields < SL_CONTROL_DEVICE_YIELDS) {
            own->yields[own->n_yields].host = from->host;
            own->yields[own->n_yields].device = from->device;
            own->n_yields++;
        }
    }
    control->is_yield_new = 1;
}

static sl_pulse_host_t *find_host(sl_control_t *control, const sl_run_id_t *id)
{
    int i;

    for (i = 0; i < control->n_hosts; i++) {
        if (strcmp(control->hosts[i].id.text, id->text) == 0) {
            return &control->hosts[i];
        }
    }
    return NULL;
}

static void close_host(sl_pulse_host_t *host)
{
    if (host->view != NULL) {
        sl_pulse_view_release(host->view);
        (void)close(host->dir_fd);
        host->view = NULL;
    }
}

static void open_host(sl_control_t *control, sl_pulse_host_t *host,
                      uint64_t now_ns)
{
    const sl_pulse_map_t *map = NULL;
    struct stat info;
    sl_status_t status = SL_ERR_NOT_FOUND;
    const int fd = openat(control->dir->jobs_fd, host->id.text,
                          O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    host->tried_ns = now_ns;
    if (fd < 0) {
        return;
    }
    if (fstat(fd, &info) == 0 && info.st_uid == geteuid() &&
        sl_lease_look(fd, SL_FILE_LOCK) == SL_LEASE_HELD) {
        status = sl_pulse_open(fd, &map, &host->n_slots);
    }
    host->view = map == NULL ? NULL : sl_pulse_view_create(map);
    if (host->view != NULL) {
        host->dir_fd = fd;
        host->beat_ns = now_ns;
        host->beat = atomic_load_explicit(&host->view->map->head.beat,
                                          memory_order_relaxed);
        return;
    }
    (void)close(fd);
    if (status < 0 && status != SL_ERR_NOT_FOUND && !host->has_warned) {
        host->has_warned = 1;
        sl_warn("job %s does not yield to %s: %s", control->job.name,
                host->id.text, sl_control_cause());
    }
}

/* Its life is told by its lock; that it is not stopped, by its beat. What the
 * beat's value is does not matter, only that it changes. */
static int is_alive(sl_pulse_host_t *host, uint64_t now_ns)
{
    const uint64_t beat =
        atomic_load_explicit(&host->view->map->head.beat, memory_order_relaxed);

    if (beat != host->beat) {
        host->beat = beat;
        host->beat_ns = now_ns;
    }
    return now_ns - host->beat_ns < STALE_NS &&
           sl_lease_look(host->dir_fd, SL_FILE_LOCK) == SL_LEASE_HELD;
}

/* A stopped host is tried again: it may go on. @return whether it changed */
static int look_at_host(sl_control_t *control, sl_pulse_host_t *host,
                        uint64_t now_ns)
{
    if (host->view != NULL) {
        if (is_alive(host, now_ns)) {
            return 0;
        }
        sl_debug("job %s: %s does not live, or is stopped", control->job.name,
                 host->id.text);
        host->tried_ns = now_ns;
        close_host(host);
        return 1;
    }
    if (host->tried_ns != 0 && now_ns - host->tried_ns < RETRY_NS) {
        return 0;
    }
    open_host(control, host, now_ns);
    return host->view != NULL;
}

static int is_wanted(const sl_control_t *control, const sl_run_id_t *id)
{
    int d, i;

    for (d = 0; d < control->n_devices; d++) {
        for (i = 0; i < control->gates[d].n_yields; i++) {
            if (strcmp(control->gates[d].yields[i].host.text, id->text) == 0) {
                return 1;
            }
        }
    }
    return 0;
}

static void add_host(sl_control_t *control, const sl_run_id_t *id)
{
    if (find_host(control, id) == NULL && control->n_hosts < SL_PULSE_HOSTS) {
        sl_pulse_host_t *host = &control->hosts[control->n_hosts++];

        memset(host, 0, sizeof(*host));
        host->id = *id;
    }
}

/* Keep the hosts that are wanted, add those that are not there yet; lock
 * held. */
static void collect_hosts(sl_control_t *control)
{
    int d, i, n = 0;

    for (i = 0; i < control->n_hosts; i++) {
        if (is_wanted(control, &control->hosts[i].id)) {
            control->hosts[n++] = control->hosts[i];
        } else {
            close_host(&control->hosts[i]);
        }
    }
    control->n_hosts = n;
    for (d = 0; d < control->n_devices; d++) {
        for (i = 0; i < control->gates[d].n_yields; i++) {
            add_host(control, &control->gates[d].yields[i].host);
        }
    }
}

/* Lock held. @return NULL = to nobody */
static sl_yield_set_t *make_set(sl_control_t *control, const sl_gate_t *gate)
{
    sl_yield_set_t *set = NULL;
    int i;

    for (i = 0; i < gate->n_yields; i++) {
        const sl_pulse_host_t *host = find_host(control, &gate->yields[i].host);

        if (host == NULL || host->view == NULL ||
            gate->yields[i].device >= host->n_slots) {
            continue;
        }
        if (set == NULL) {
            set = sl_yield_set_create();
        }
        if (set != NULL) {
            sl_yield_set_add(set, host->view, gate->yields[i].device);
        }
    }
    return set;
}

static void tell_devices(sl_control_t *control, int is_yielding)
{
    int d;

    for (d = 0; d < control->n_devices; d++) {
        sl_op_manager_yield_set(
            control->params.devices->devices[d].ops,
            is_yielding ? make_set(control, &control->gates[d]) : NULL,
            control->floor_share / 100.0);
    }
}

void sl_control_pulse_tend(sl_control_t *control)
{
    const uint64_t now_ns = sl_clock_ns();
    int is_changed, is_yielding, i;

    if (control->dir == NULL) {
        return;
    }
    if (control->pulse != NULL) {
        (void)atomic_fetch_add_explicit(&control->pulse->head.beat, 1,
                                        memory_order_relaxed);
    }
    (void)pthread_mutex_lock(&control->lock);
    /* whoever shall end does not wait for others */
    is_yielding = !control->is_closing && !sl_control_is_interrupted(control) &&
                  control->action != SL_CONTROL_ACTION_STOP;
    is_changed = control->is_yield_new || is_yielding != control->is_yielding;
    if (control->is_yield_new) {
        collect_hosts(control);
        control->is_yield_new = 0;
    }
    if (is_changed || now_ns - control->hosts_ns >= LOOK_NS) {
        control->hosts_ns = now_ns;
        for (i = 0; i < control->n_hosts; i++) {
            is_changed |= look_at_host(control, &control->hosts[i], now_ns);
        }
    }
    control->is_yielding = is_yielding;
    if (is_changed) {
        tell_devices(control, is_yielding);
    }
    (void)pthread_mutex_unlock(&control->lock);
}

void sl_control_pulse_close(sl_control_t *control)
{
    int i;

    if (control->dir == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&control->lock);
    stop_pulsing(control);
    tell_devices(control, 0);
    (void)pthread_mutex_unlock(&control->lock);
    for (i = 0; i < control->n_hosts; i++) {
        close_host(&control->hosts[i]);
    }
    control->n_hosts = 0;
    sl_pulse_unmap(control->pulse);
    control->pulse = NULL;
}
