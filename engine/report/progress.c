/* SPDX-License-Identifier: Apache-2.0 */
/* The progress line: what fits the width, most important parts first. */
#include "engine/report/progress.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/parse.h"

enum {
    LINE_BYTES = 1024,
    PART_BYTES = 512,
    DEFAULT_WIDTH = 80,
    PLAIN_WIDTH = LINE_BYTES - 1
};

#define SMOOTHING 0.95 /* of the past, a step */

/* In the order of the line. */
typedef enum part_kind {
    PART_STEP,
    PART_LOSS,
    PART_RATE,
    PART_BUBBLE,
    PART_SKIPPED, /* loss scale and skipped steps */
    PART_DEVICES, /* memory of each device */
    PART_MEMORY,  /* of the fullest one, in its place */
    PART_TIME,
    N_PARTS
} part_kind_t;

typedef char part_text_t[PART_BYTES];

/* A mean that weighs a step the less, the longer it is ago. */
typedef struct mean {
    double sum, weight;
} mean_t;

struct sl_progress {
    sl_progress_params_t params;
    int is_rewritten;
    int is_shown; /* a line is on the screen, its end not yet printed */
    mean_t loss, rate_units, rate_us;
    uint64_t start_ns;      /* 0 = no update yet; start of the first step */
    uint64_t shown_ns;      /* when the latest line was printed */
    uint32_t n_since_shown; /* steps */
};

static void mean_add(mean_t *mean, double value)
{
    mean->sum = SMOOTHING * mean->sum + value;
    mean->weight = SMOOTHING * mean->weight + 1.0;
}

static double mean_value(const mean_t *mean)
{
    return mean->weight > 0.0 ? mean->sum / mean->weight : 0.0;
}

void sl_progress_params_default(sl_progress_params_t *params)
{
    memset(params, 0, sizeof(*params));
    params->stream = stderr;
    params->style = SL_PROGRESS_AUTO;
    params->unit = "samples";
    params->period_s = 5.0;
}

static int can_rewrite(FILE *stream)
{
    const char *term = getenv("TERM");

    return isatty(fileno(stream)) == 1 &&
           (term == NULL || strcmp(term, "dumb") != 0);
}

sl_status_t sl_progress_create(const sl_progress_params_t *params,
                               sl_progress_t **progress_p)
{
    sl_progress_t *progress = calloc(1, sizeof(*progress));
    sl_status_t status;

    if (progress == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "progress: no host memory");
    }
    progress->params = *params;
    progress->is_rewritten =
        params->style == SL_PROGRESS_REWRITTEN ||
        (params->style == SL_PROGRESS_AUTO && can_rewrite(params->stream));
    *progress_p = progress;
    return SL_OK;

out:
    return status;
}

void sl_progress_destroy(sl_progress_t *progress)
{
    if (progress != NULL && progress->is_shown) {
        (void)fputc('\n', progress->params.stream);
        (void)fflush(progress->params.stream);
    }
    free(progress);
}

void sl_progress_clear(sl_progress_t *progress)
{
    if (progress != NULL && progress->is_shown) {
        (void)fputs("\r\033[K", progress->params.stream);
        (void)fflush(progress->params.stream);
        progress->is_shown = 0;
        progress->shown_ns = 0;
    }
}

void sl_progress_format_time(double seconds, char *text, size_t text_bytes)
{
    long long s;

    if (!(seconds >= 0.0 && seconds < 1e12)) {
        (void)snprintf(text, text_bytes, "?");
        return;
    }
    s = llround(seconds);
    if (s >= 3600) {
        (void)snprintf(text, text_bytes, "%lld:%02lld:%02lld", s / 3600,
                       s / 60 % 60, s % 60);
    } else {
        (void)snprintf(text, text_bytes, "%lld:%02lld", s / 60, s % 60);
    }
}

/* ---- the parts ---- */

/* At least three digits: "1.23", "12.3", "1234". */
static void format_rate(double rate, char *text, size_t text_bytes)
{
    /* the limits are those of rounding, so that 99.99 becomes 100 */
    const int decimals = rate < 9.995 ? 2 : rate < 99.95 ? 1 : 0;

    (void)snprintf(text, text_bytes, "%.*f", decimals, rate);
}

static double used_share(const sl_progress_device_t *device)
{
    return device->limit_bytes == SIZE_MAX || device->limit_bytes == 0
               ? 0.0
               : (double)device->used_bytes / (double)device->limit_bytes;
}

static void format_device(const sl_progress_device_t *device, char *text,
                          size_t text_bytes)
{
    char used[32], limit[32];

    sl_format_bytes(device->used_bytes, used, sizeof(used));
    sl_format_bytes(device->limit_bytes, limit, sizeof(limit));
    if (device->limit_bytes == SIZE_MAX) {
        (void)snprintf(text, text_bytes, "%s", used);
    } else {
        (void)snprintf(text, text_bytes, "%s of %s", used, limit);
    }
}

static void format_devices(const sl_progress_update_t *update, char *text,
                           size_t text_bytes)
{
    size_t used = 0, i;

    text[0] = '\0';
    for (i = 0; i < update->n_devices; i++) {
        char memory[80], item[160];
        int length;

        format_device(&update->devices[i], memory, sizeof(memory));
        length =
            snprintf(item, sizeof(item), "%s%.40s %s", i == 0 ? "mem " : ", ",
                     update->devices[i].name, memory);
        if (used + (size_t)length >= text_bytes) {
            text[0] = '\0'; /* all of them or none */
            return;
        }
        memcpy(text + used, item, (size_t)length + 1);
        used += (size_t)length;
    }
}

static void format_memory(const sl_progress_update_t *update, char *text,
                          size_t text_bytes)
{
    const sl_progress_device_t *fullest = NULL;
    char memory[80];
    size_t i;

    for (i = 0; i < update->n_devices; i++) {
        const sl_progress_device_t *device = &update->devices[i];

        if (fullest == NULL || used_share(device) > used_share(fullest) ||
            (used_share(device) == used_share(fullest) &&
             device->used_bytes > fullest->used_bytes)) {
            fullest = device;
        }
    }
    if (fullest != NULL) {
        format_device(fullest, memory, sizeof(memory));
        (void)snprintf(text, text_bytes, "mem %s", memory);
    }
}

/* While it runs, the time that is left; at the end, the time it took. */
static void format_left(const sl_progress_t *progress,
                        const sl_progress_update_t *update, char *text,
                        size_t text_bytes)
{
    const double elapsed_s =
        (double)(update->now_ns - progress->start_ns) * 1e-9;
    const double n_done =
        (double)update->step + 1.0 - (double)progress->params.first_step;
    const double n_left =
        (double)progress->params.n_steps - (double)update->step - 1.0;
    char left[40];

    if (n_left <= 0.0) {
        sl_progress_format_time(elapsed_s, left, sizeof(left));
        (void)snprintf(text, text_bytes, "took %s", left);
    } else {
        sl_progress_format_time(elapsed_s / n_done * n_left, left,
                                sizeof(left));
        (void)snprintf(text, text_bytes, "eta %s", left);
    }
}

static void format_skipped(const sl_progress_update_t *update, char *text,
                           size_t text_bytes)
{
    char scale[64] = "", skipped[64] = "";

    if (update->loss_scale > 0.0) {
        (void)snprintf(scale, sizeof(scale), "scale %.0f", update->loss_scale);
    }
    if (update->n_skipped > 0) {
        (void)snprintf(skipped, sizeof(skipped), "skipped %llu",
                       (unsigned long long)update->n_skipped);
    }
    (void)snprintf(text, text_bytes, "%s%s%s", scale,
                   scale[0] != '\0' && skipped[0] != '\0' ? "  " : "", skipped);
}

static void format_parts(const sl_progress_t *progress,
                         const sl_progress_update_t *update,
                         part_text_t parts[N_PARTS])
{
    const double us = mean_value(&progress->rate_us);
    char rate[64];
    int i;

    for (i = 0; i < N_PARTS; i++) {
        parts[i][0] = '\0';
    }
    (void)snprintf(parts[PART_STEP], PART_BYTES, "step %llu/%llu",
                   (unsigned long long)update->step + 1,
                   (unsigned long long)progress->params.n_steps);
    /* NaN has a sign that nobody wants to see */
    if (isnan(mean_value(&progress->loss))) {
        (void)snprintf(parts[PART_LOSS], PART_BYTES, "loss nan");
    } else {
        (void)snprintf(parts[PART_LOSS], PART_BYTES, "loss %.4f",
                       mean_value(&progress->loss));
    }
    if (us > 0.0) {
        format_rate(mean_value(&progress->rate_units) / us * 1e6, rate,
                    sizeof(rate));
        (void)snprintf(parts[PART_RATE], PART_BYTES, "%s %.40s/s", rate,
                       progress->params.unit);
    }
    if (isfinite(update->bubble)) {
        (void)snprintf(parts[PART_BUBBLE], PART_BYTES, "bubble %.1f %%",
                       100.0 * update->bubble);
    }
    format_skipped(update, parts[PART_SKIPPED], PART_BYTES);
    format_devices(update, parts[PART_DEVICES], PART_BYTES);
    format_memory(update, parts[PART_MEMORY], PART_BYTES);
    format_left(progress, update, parts[PART_TIME], PART_BYTES);
}

/* ---- the line ---- */

static size_t line_width(const part_text_t parts[N_PARTS])
{
    size_t width = 0;
    int i;

    for (i = 0; i < N_PARTS; i++) {
        if (parts[i][0] != '\0') {
            width += (width > 0 ? 2 : 0) + strlen(parts[i]);
        }
    }
    return width;
}

/* Leave parts out, the least important first, until the line fits. */
static void fit(part_text_t parts[N_PARTS], size_t width)
{
    static const part_kind_t first_out[] = {PART_MEMORY,  PART_BUBBLE,
                                            PART_SKIPPED, PART_RATE,
                                            PART_TIME,    PART_LOSS};
    part_text_t memory;
    size_t i;

    memcpy(memory, parts[PART_MEMORY], sizeof(memory));
    if (parts[PART_DEVICES][0] != '\0') {
        parts[PART_MEMORY][0] = '\0';
    }
    if (line_width((const char(*)[PART_BYTES])parts) > width) {
        parts[PART_DEVICES][0] = '\0';
        memcpy(parts[PART_MEMORY], memory, sizeof(memory));
    }
    for (i = 0; i < sizeof(first_out) / sizeof(*first_out) &&
                line_width((const char(*)[PART_BYTES])parts) > width;
         i++) {
        parts[first_out[i]][0] = '\0';
    }
}

static size_t terminal_width(const sl_progress_t *progress)
{
    struct winsize size;

    if (!progress->is_rewritten) {
        return PLAIN_WIDTH;
    }
    if (progress->params.width > 0) {
        return (size_t)progress->params.width;
    }
    if (ioctl(fileno(progress->params.stream), TIOCGWINSZ, &size) == 0 &&
        size.ws_col > 0) {
        return size.ws_col;
    }
    return DEFAULT_WIDTH;
}

static void show(sl_progress_t *progress, const sl_progress_update_t *update)
{
    FILE *stream = progress->params.stream;
    /* the last column stays free: some terminals wrap when it is written */
    size_t width = terminal_width(progress) - 1, used = 0;
    part_text_t parts[N_PARTS];
    char line[LINE_BYTES];
    int i;

    width = width < LINE_BYTES - 1 ? width : LINE_BYTES - 1;
    format_parts(progress, update, parts);
    fit(parts, width);
    line[0] = '\0';
    for (i = 0; i < N_PARTS; i++) {
        if (parts[i][0] != '\0' && used < sizeof(line)) {
            used += (size_t)snprintf(line + used, sizeof(line) - used, "%s%s",
                                     used > 0 ? "  " : "", parts[i]);
        }
    }
    line[width] = '\0';
    if (progress->is_rewritten) {
        (void)fprintf(stream, "\r%s\033[K", line);
    } else {
        (void)fprintf(stream, "%s\n", line);
    }
    (void)fflush(stream);
    progress->is_shown = progress->is_rewritten;
    progress->shown_ns = update->now_ns;
    progress->n_since_shown = 0;
}

static int is_time(const sl_progress_t *progress,
                   const sl_progress_update_t *update)
{
    const double period_s =
        progress->params.period_s * (progress->is_rewritten ? 0.05 : 1.0);
    const uint32_t every = progress->params.every;

    return progress->shown_ns == 0 ||
           (uint64_t)update->step + 1 == progress->params.n_steps ||
           (!progress->is_rewritten && every > 0 &&
            progress->n_since_shown >= every) ||
           (double)(update->now_ns - progress->shown_ns) * 1e-9 >= period_s;
}

void sl_progress_update(sl_progress_t *progress,
                        const sl_progress_update_t *update)
{
    mean_add(&progress->loss, update->loss);
    mean_add(&progress->rate_units, update->n_units);
    mean_add(&progress->rate_us, update->step_us);
    if (progress->start_ns == 0) {
        const uint64_t step_ns = (uint64_t)(update->step_us * 1e3);

        progress->start_ns =
            update->now_ns > step_ns ? update->now_ns - step_ns : 1;
    }
    progress->n_since_shown++;
    if (is_time(progress, update)) {
        show(progress, update);
    }
}
