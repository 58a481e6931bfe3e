/* SPDX-License-Identifier: Apache-2.0 */
/* Metrics as JSON lines. */
#include "engine/report/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

enum {
    DIGITS = 9,
    TAIL_BYTES = 4096
};

struct sl_metrics {
    char *path;
    int fd;
    int failure; /* errno of the first failure; 0 = none */
    uint32_t failed_step;
};

/* Where the last whole line of the file ends. */
static int whole_lines_end(int fd, off_t size, off_t *end_p)
{
    char tail[TAIL_BYTES];

    while (size > 0) {
        const off_t start = size > TAIL_BYTES ? size - TAIL_BYTES : 0;
        const ssize_t n = pread(fd, tail, (size_t)(size - start), start);
        ssize_t i;

        if (n != size - start) {
            return 0;
        }
        for (i = n; i > 0; i--) {
            if (tail[i - 1] == '\n') {
                *end_p = start + i;
                return 1;
            }
        }
        size = start;
    }
    *end_p = 0;
    return 1;
}

/* Only of regular files: a pipe or /dev/stdout has nothing to drop. */
static int drop_partial_line(int fd)
{
    struct stat info;
    off_t end = 0;

    if (fstat(fd, &info) != 0) {
        return 0;
    }
    if (!S_ISREG(info.st_mode)) {
        return 1;
    }
    return whole_lines_end(fd, info.st_size, &end) &&
           (end == info.st_size || ftruncate(fd, end) == 0);
}

sl_status_t sl_metrics_open(const char *path, int append,
                            sl_metrics_t **metrics_p)
{
    sl_metrics_t *metrics = calloc(1, sizeof(*metrics));
    sl_status_t status;

    if (metrics == NULL || (metrics->path = strdup(path)) == NULL) {
        free(metrics);
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "%s: no host memory", path);
    }
    metrics->fd = open(path,
                       O_CREAT | O_CLOEXEC | O_APPEND |
                           (append ? O_RDWR : O_WRONLY | O_TRUNC),
                       0644);
    if (metrics->fd < 0 || (append && !drop_partial_line(metrics->fd))) {
        SL_FAIL(status, SL_ERR_IO, err_close,
                "metrics: cannot open %s for writing: %s", path,
                strerror(errno));
    }
    *metrics_p = metrics;
    return SL_OK;

err_close:
    if (metrics->fd >= 0) {
        (void)close(metrics->fd);
    }
    free(metrics->path);
    free(metrics);
out:
    return status;
}

static json_t *number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *bytes_or_null(size_t bytes)
{
    return bytes > (size_t)INT64_MAX ? json_null()
                                     : json_integer((json_int_t)bytes);
}

static json_t *device_object(const sl_metrics_device_t *device)
{
    return json_pack("{s:s, s:o, s:o, s:o, s:o}", "name", device->name,
                     "used_bytes", bytes_or_null(device->used_bytes),
                     "peak_bytes", bytes_or_null(device->peak_bytes),
                     "limit_bytes", bytes_or_null(device->limit_bytes), "busy",
                     number(device->busy));
}

static json_t *move_object(const sl_metrics_step_t *step)
{
    json_t *cuts = json_array();
    size_t k;

    for (k = 0; k < step->n_stages; k++) {
        (void)json_array_append_new(cuts, json_integer(step->cuts[k]));
    }
    return json_pack("{s:o, s:i, s:o, s:o, s:o}", "cuts", cuts, "moved_layers",
                     step->moved_layers, "moved_bytes",
                     bytes_or_null(step->moved_bytes), "move_ms",
                     number(step->move_ms), "predicted_speedup",
                     number(step->predicted_speedup));
}

static json_t *step_object(const sl_metrics_step_t *step)
{
    json_t *devices = json_array(), *object;
    char rate_name[64];
    size_t i;

    for (i = 0; i < step->n_devices; i++) {
        (void)json_array_append_new(devices, device_object(&step->devices[i]));
    }
    (void)snprintf(rate_name, sizeof(rate_name), "%.40s_per_s", step->unit);
    object = json_pack(
        "{s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "step",
        (json_int_t)step->step, "loss", number(step->loss), "accuracy",
        number(step->accuracy), "lr", number(step->learning_rate),
        "gradient_norm", number(step->gradient_norm), "step_ms",
        number(step->step_ms), rate_name, number(step->units_per_s), "bubble",
        number(step->bubble), "devices", devices);
    if (object != NULL && step->loss_scale > 0.0) {
        (void)json_object_set_new(object, "loss_scale",
                                  number(step->loss_scale));
    }
    if (object != NULL && (step->n_skipped > 0 || step->loss_scale > 0.0)) {
        (void)json_object_set_new(object, "skipped_steps",
                                  json_integer((json_int_t)step->n_skipped));
    }
    if (object != NULL && step->compare_ms > 0.0) {
        (void)json_object_set_new(object, "compare_ms",
                                  number(step->compare_ms));
    }
    if (object != NULL && step->cuts != NULL) {
        (void)json_object_set_new(object, "rebalance", move_object(step));
    }
    return object;
}

/* @return 0, or errno. A line that did not fit is taken off again. */
static int write_line(int fd, const char *line, size_t n_bytes)
{
    size_t n = 0;
    int failure = 0;

    while (n < n_bytes && failure == 0) {
        const ssize_t written = write(fd, line + n, n_bytes - n);

        if (written >= 0) {
            n += (size_t)written;
        } else if (errno != EINTR) {
            failure = errno;
        }
    }
    if (failure != 0 && n > 0) {
        const off_t end = lseek(fd, 0, SEEK_END);

        if (end >= (off_t)n && ftruncate(fd, end - (off_t)n) != 0) {
            return failure; /* what matters is the first failure */
        }
    }
    return failure;
}

void sl_metrics_write(sl_metrics_t *metrics, const sl_metrics_step_t *step)
{
    json_t *object;
    char *text;
    size_t n;

    if (metrics->failure != 0) {
        return;
    }
    object = step_object(step);
    text = object == NULL
               ? NULL
               : json_dumps(object, JSON_COMPACT | JSON_PRESERVE_ORDER |
                                        JSON_REAL_PRECISION(DIGITS));
    json_decref(object);
    if (text == NULL) {
        metrics->failure = ENOMEM;
    } else {
        n = strlen(text);
        text[n] = '\n'; /* in the place of the NUL */
        metrics->failure = write_line(metrics->fd, text, n + 1);
    }
    free(text);
    metrics->failed_step = step->step;
}

sl_status_t sl_metrics_close(sl_metrics_t *metrics)
{
    sl_status_t status = SL_OK;

    if (metrics == NULL) {
        return SL_OK;
    }
    if (close(metrics->fd) != 0 && metrics->failure == 0) {
        metrics->failure = errno;
    }
    if (metrics->failure != 0) {
        SL_FAIL(status, SL_ERR_IO, out,
                "metrics: writing %s failed at step %u: %s; later steps are "
                "missing",
                metrics->path, metrics->failed_step,
                strerror(metrics->failure));
    }
out:
    free(metrics->path);
    free(metrics);
    return status;
}
