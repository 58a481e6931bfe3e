/* SPDX-License-Identifier: Apache-2.0 */
/* The log sink: stderr or a function, one lock. */
#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MESSAGE_BYTES = 2048,
    LEVEL_UNSET = -1
};

static const char *const level_names[] = {"error", "warn", "info", "debug",
                                          "trace"};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static sl_log_fn sink_fn;                      /* guarded by lock */
static void *sink_ctx;                         /* guarded by lock */
static _Atomic uint64_t n_errors;              /* atomic */
static atomic_int current_level = LEVEL_UNSET; /* atomic */

/* The level that SLUICE_LOG names, or LEVEL_UNSET. */
static int level_from_text(const char *text)
{
    size_t i;

    for (i = 0; i < sizeof(level_names) / sizeof(*level_names); i++) {
        if (strcmp(text, level_names[i]) == 0) {
            return (int)i;
        }
    }
    return LEVEL_UNSET;
}

static sl_log_level_t level_init(void)
{
    const char *text = getenv("SLUICE_LOG");
    const int named = text == NULL ? SL_LOG_WARN : level_from_text(text);
    const int level = named == LEVEL_UNSET ? SL_LOG_WARN : named;
    int unset = LEVEL_UNSET;

    /* a level set meanwhile by another thread stays */
    if (!atomic_compare_exchange_strong(&current_level, &unset, level)) {
        return (sl_log_level_t)unset;
    }
    if (named == LEVEL_UNSET && text[0] != '\0') {
        sl_warn("SLUICE_LOG is '%.40s'; allowed: error, warn, info, debug or "
                "trace; warn is used",
                text);
    }
    return (sl_log_level_t)level;
}

sl_log_level_t sl_log_level(void)
{
    const int level =
        atomic_load_explicit(&current_level, memory_order_relaxed);

    return level == LEVEL_UNSET ? level_init() : (sl_log_level_t)level;
}

void sl_log_level_set(sl_log_level_t level)
{
    atomic_store_explicit(&current_level, (int)level, memory_order_relaxed);
}

void sl_log_sink_set(sl_log_fn fn, void *ctx)
{
    (void)pthread_mutex_lock(&lock);
    sink_fn = fn;
    sink_ctx = ctx;
    (void)pthread_mutex_unlock(&lock);
}

uint64_t sl_log_n_errors(void)
{
    return atomic_load_explicit(&n_errors, memory_order_relaxed);
}

void sl_log_write(sl_log_level_t level, const char *fmt, ...)
{
    char text[MESSAGE_BYTES];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);

    if (level == SL_LOG_ERROR) {
        (void)atomic_fetch_add_explicit(&n_errors, 1, memory_order_relaxed);
    }
    (void)pthread_mutex_lock(&lock);
    if (sink_fn != NULL) {
        sink_fn(sink_ctx, level, text);
    } else {
        (void)fprintf(stderr, "sluice: %s: %s\n", level_names[level], text);
    }
    (void)pthread_mutex_unlock(&lock);
}
