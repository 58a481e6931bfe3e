/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file log.h
 * One log sink. Levels: error (the job cannot go on), warn (a person should
 * look), info (a few lines a run), debug (a line a decision), trace (a line
 * an op). The level comes from SLUICE_LOG (default warn). Thread safe.
 */
#ifndef SL_BASE_LOG_H
#define SL_BASE_LOG_H

#include <stdint.h>

#include "base/status.h"

SL_BEGIN_DECLS

typedef enum sl_log_level {
    SL_LOG_ERROR,
    SL_LOG_WARN,
    SL_LOG_INFO,
    SL_LOG_DEBUG,
    SL_LOG_TRACE
} sl_log_level_t;

/** Receives each message (no newline). Called under the log's lock. */
typedef void (*sl_log_fn)(void *ctx, sl_log_level_t level, const char *text);

/** Most verbose level that is printed; the first call reads SLUICE_LOG. */
SL_API sl_log_level_t sl_log_level(void);
SL_API void sl_log_level_set(sl_log_level_t level);

/** Send messages to `fn` instead of stderr; NULL restores stderr. */
SL_API void sl_log_sink_set(sl_log_fn fn, void *ctx);

SL_API void sl_log_write(sl_log_level_t level, const char *fmt, ...)
    SL_PRINTF(2, 3);

/** Errors logged since the process started. A program that fails without
 *  one met an expected refusal, and should print sl_last_error(). */
SL_API uint64_t sl_log_n_errors(void);

#define SL_LOG(level, ...)                                                     \
    ((level) <= sl_log_level() ? sl_log_write((level), __VA_ARGS__) : (void)0)
#define sl_error(...) SL_LOG(SL_LOG_ERROR, __VA_ARGS__)
#define sl_warn(...) SL_LOG(SL_LOG_WARN, __VA_ARGS__)
#define sl_info(...) SL_LOG(SL_LOG_INFO, __VA_ARGS__)
#define sl_debug(...) SL_LOG(SL_LOG_DEBUG, __VA_ARGS__)
#define sl_trace(...) SL_LOG(SL_LOG_TRACE, __VA_ARGS__)

SL_END_DECLS
#endif /* SL_BASE_LOG_H */
