/* SPDX-License-Identifier: Apache-2.0 */
/* Status texts and the calling thread's error detail. */
#include "base/status.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

enum {
    DETAIL_BYTES = 1024
};

static _Thread_local char last_error[DETAIL_BYTES];
static atomic_int is_quiet_process; /* atomic */

const char *sl_status_text(sl_status_t status)
{
    switch (status) {
#define X(id, value, text)                                                     \
    case id:                                                                   \
        return text;
        SL_STATUS_MAP(X)
#undef X
    }
    return "unknown status";
}

const char *sl_last_error(void)
{
    return last_error;
}

void sl_last_error_set(const char *text)
{
    size_t n = text == NULL ? 0 : strlen(text);

    if (n >= sizeof(last_error)) {
        n = sizeof(last_error) - 1;
    }
    /* the text may be a part of the detail itself */
    if (n > 0) {
        memmove(last_error, text, n);
    }
    last_error[n] = '\0';
}

void sl_fail_quiet_set(int is_quiet)
{
    atomic_store_explicit(&is_quiet_process, is_quiet, memory_order_relaxed);
}

int sl_fail_is_quiet(void)
{
    return atomic_load_explicit(&is_quiet_process, memory_order_relaxed);
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash == NULL ? path : slash + 1;
}

void sl_fail_record(int is_expected, const char *file, int line,
                    const char *fmt, ...)
{
    char text[DETAIL_BYTES];
    va_list args;

    /* formatted apart: an argument may be sl_last_error() itself */
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    (void)snprintf(last_error, sizeof(last_error), "%s:%d: %.*s",
                   base_name(file), line, DETAIL_BYTES - 64, text);
    if (is_expected || sl_fail_is_quiet()) {
        sl_debug("%s", last_error);
    } else {
        sl_error("%s", text);
    }
}

void sl_assert_failed(const char *cond, const char *file, int line)
{
    (void)fprintf(stderr, "sluice: %s:%d: assertion failed: %s\n", file, line,
                  cond);
    abort();
}
