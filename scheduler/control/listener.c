/* SPDX-License-Identifier: Apache-2.0 */
/* Our own thread: reads what steers the job, and writes what it tells. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "scheduler/control/control_internal.h"

enum {
    FILE_CONTROL = 1 << SL_WATCHED_CONTROL,
    FILE_ANTMAN = 1 << SL_WATCHED_ANTMAN,
    HELD_WAIT_MS = 50 /* a held job notices an interrupt this soon */
};

const char *sl_control_cause(void)
{
    const char *text = sl_last_error();
    const char *place_end = strstr(text, ": ");

    return place_end != NULL ? place_end + 2 : text;
}

/* One warning for a state of a file, however often it is looked at. */
static void refuse(sl_control_t *control, const char *what,
                   sl_steering_file_t *file)
{
    if (sl_file_state_is_equal(&file->refused, &file->seen)) {
        return;
    }
    file->refused = file->seen;
    sl_warn("job %s: %s is refused, what held before stays: %s",
            control->job.name, what, sl_control_cause());
    (void)pthread_mutex_lock(&control->lock);
    control->n_refused++;
    control->is_news = 1;
    (void)pthread_mutex_unlock(&control->lock);
}

static sl_status_t accept_control(sl_control_t *control, const char *text,
                                  size_t n)
{
    sl_control_order_t order;
    sl_status_t status;

    SL_TRY(status, sl_control_order_parse(text, n, &order), out);
    (void)pthread_mutex_lock(&control->lock);
    status = sl_control_accept(control, &order);
    (void)pthread_mutex_unlock(&control->lock);
out:
    return status;
}

static sl_status_t accept_antman(sl_control_t *control, const char *text,
                                 size_t n)
{
    sl_antman_config_t config;
    sl_status_t status;

    SL_TRY(status,
           sl_antman_config_parse(text, n, control->n_devices,
                                  control->antman_keys, &config),
           out);
    (void)pthread_mutex_lock(&control->lock);
    sl_control_accept_antman(control, &config);
    (void)pthread_mutex_unlock(&control->lock);
out:
    return status;
}

typedef sl_status_t (*accept_fn)(sl_control_t *control, const char *text,
                                 size_t n);

/* Keep what was read. @return whether it is what was read before */
static int remember(sl_steering_file_t *file, char *take_text, size_t n)
{
    const int is_same = file->text != NULL && file->n_bytes == n &&
                        memcmp(file->text, take_text, n) == 0;

    free(file->text);
    file->text = take_text;
    file->n_bytes = n;
    return is_same;
}

/* `is_told`: the system says that it was written. Then its state may still
 * look the same: two writes within one tick of the file system's clock. */
static void look_at(sl_control_t *control, int dir_fd, const char *name,
                    int is_told, accept_fn accept, sl_steering_file_t *file)
{
    sl_file_state_t before = file->seen;
    sl_file_state_t state;
    char *text = NULL;
    size_t n = 0;
    sl_status_t status;

    sl_file_state_get(dir_fd, name, &state);
    if (!state.exists ||
        (!is_told && sl_file_state_is_equal(&state, &before))) {
        return;
    }
    status = sl_secure_read(dir_fd, name, SL_CONTROL_FILE_BYTES, &text, &n,
                            &file->seen);
    if (status >= 0) {
        const int is_same = remember(file, text, n);

        /* AntMan's file has no sequence: a touch says that it still holds */
        if (is_same && (accept == accept_control ||
                        sl_file_state_is_equal(&before, &file->seen))) {
            return;
        }
        status = accept(control, text, n);
    }
    if (status < 0 && status != SL_ERR_NOT_FOUND) {
        refuse(control, name, file);
    }
}

static void look_at_files(sl_control_t *control, unsigned changed)
{
    if (control->dir != NULL) {
        look_at(control, control->job_dir.fd, SL_FILE_CONTROL,
                (changed & FILE_CONTROL) != 0, accept_control,
                &control->control_file);
    }
    if (control->antman_config != NULL) {
        look_at(control, AT_FDCWD, control->antman_config,
                (changed & FILE_ANTMAN) != 0, accept_antman,
                &control->antman_file);
    }
}

/* How long nothing has to be done unless a file changes. */
static uint64_t wait_ms(sl_control_t *control)
{
    uint64_t ms = control->params.status_ms;

    if (ms > control->params.poll_ms) {
        ms = control->params.poll_ms;
    }
    if (ms > SL_PULSE_BEAT_MS) {
        ms = SL_PULSE_BEAT_MS;
    }
    if (ms > HELD_WAIT_MS && sl_control_is_held(control)) {
        ms = HELD_WAIT_MS;
    }
    return ms > 0 ? ms : 1;
}

void *sl_control_listen(void *arg)
{
    sl_control_t *control = arg;
    const uint64_t poll_ns = control->params.poll_ms * UINT64_C(1000000);
    uint64_t looked_ns = 0;
    unsigned changed = 0;
    int is_closing = 0;

    while (!is_closing) {
        const uint64_t now = sl_clock_ns();
        uint64_t ms;

        if (changed != 0 || looked_ns == 0 || now - looked_ns >= poll_ns) {
            looked_ns = now;
            look_at_files(control, changed);
        }
        (void)pthread_mutex_lock(&control->lock);
        sl_control_refresh(control);
        is_closing = control->is_closing;
        ms = wait_ms(control);
        (void)pthread_mutex_unlock(&control->lock);
        sl_control_pulse_tend(control);
        sl_control_report(control, is_closing);
        if (!is_closing) {
            changed = sl_watcher_wait(&control->watcher, ms);
        }
    }
    return NULL;
}
