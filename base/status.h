/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file status.h
 * Status codes and the one error pattern of the project.
 *
 * Every fallible function returns sl_status_t: 0 is success, 1 is progress,
 * negative is failure. Who detects a failure raises it with SL_FAIL (logged
 * as an error) or SL_REFUSE (an expected refusal: logged at debug only); who
 * forwards it uses SL_TRY and stays silent. Outputs are written on success.
 */
#ifndef SL_BASE_STATUS_H
#define SL_BASE_STATUS_H

#ifdef __cplusplus
#define SL_BEGIN_DECLS extern "C" {
#define SL_END_DECLS }
#else
#define SL_BEGIN_DECLS
#define SL_END_DECLS
#endif

#define SL_API __attribute__((visibility("default")))
#define SL_NODISCARD __attribute__((warn_unused_result))
#define SL_NORETURN __attribute__((noreturn))
#define SL_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

SL_BEGIN_DECLS

#define SL_STATUS_MAP(X)                                                       \
    X(SL_OK, 0, "success")                                                     \
    X(SL_INPROGRESS, 1, "operation still in progress")                         \
    X(SL_ERR_NO_MEMORY, -1, "out of host memory")                              \
    X(SL_ERR_INVALID_ARG, -2, "invalid argument")                              \
    X(SL_ERR_UNSUPPORTED, -3, "not supported")                                 \
    X(SL_ERR_QUOTA, -4, "device memory limit exceeded")                        \
    X(SL_ERR_DEVICE, -5, "device failure")                                     \
    X(SL_ERR_COMM, -6, "communication failure")                                \
    X(SL_ERR_IO, -7, "input/output failure")                                   \
    X(SL_ERR_CORRUPT, -8, "data is corrupt")                                   \
    X(SL_ERR_CANCELED, -9, "canceled")                                         \
    X(SL_ERR_TIMEOUT, -10, "timed out")                                        \
    X(SL_ERR_CONFIG, -11, "configuration is not valid")                        \
    X(SL_ERR_NOT_FOUND, -12, "not found")                                      \
    X(SL_ERR_NUMERIC, -13, "result is not finite")

typedef enum sl_status {
#define X(id, value, text) id = (value),
    SL_STATUS_MAP(X)
#undef X
} sl_status_t;

/** Fixed text of a code; never NULL. */
SL_API const char *sl_status_text(sl_status_t status);

/**
 * Detail of the calling thread's latest failure, such as
 * "pool.c:84: pool cpu:0: 1 KiB asked, 1000 of 1000 bytes in use".
 * Empty string when none. Valid until the thread's next failure.
 */
SL_API const char *sl_last_error(void);

/** Replace the calling thread's detail, e.g. with one copied from a worker. */
SL_API void sl_last_error_set(const char *text);

/** In a process for which another one speaks, such as a rank of a job but the
 *  first: whether failures of SL_FAIL are logged at debug, too. */
SL_API void sl_fail_quiet_set(int is_quiet);
SL_API int sl_fail_is_quiet(void);

/** Record a failure's detail and log it; use through SL_FAIL or SL_REFUSE. */
SL_API void sl_fail_record(int is_expected, const char *file, int line,
                           const char *fmt, ...) SL_PRINTF(4, 5);

/** Set `status`, record and log the detail as an error, go to `label`. */
#define SL_FAIL(status, code, label, ...)                                      \
    do {                                                                       \
        (status) = (code);                                                     \
        sl_fail_record(0, __FILE__, __LINE__, __VA_ARGS__);                    \
        goto label;                                                            \
    } while (0)

/** As SL_FAIL for an expected refusal (quota, timeout): logged at debug. */
#define SL_REFUSE(status, code, label, ...)                                    \
    do {                                                                       \
        (status) = (code);                                                     \
        sl_fail_record(1, __FILE__, __LINE__, __VA_ARGS__);                    \
        goto label;                                                            \
    } while (0)

/** Evaluate `call` into `status`; on failure go to `label`, silently. */
#define SL_TRY(status, call, label)                                            \
    do {                                                                       \
        (status) = (call);                                                     \
        if ((status) < 0) {                                                    \
            goto label;                                                        \
        }                                                                      \
    } while (0)

/** Clean-up that must go on: keep the first failure in `status`. */
#define SL_KEEP(status, call)                                                  \
    do {                                                                       \
        const sl_status_t sl_keep_status = (call);                             \
        if ((status) >= 0 && sl_keep_status < 0) {                             \
            (status) = sl_keep_status;                                         \
        }                                                                      \
    } while (0)

/** An invariant of our own code; never for input, files or devices. */
#ifdef NDEBUG
#define SL_ASSERT(cond) ((void)sizeof(cond))
#else
#define SL_ASSERT(cond)                                                        \
    ((cond) ? (void)0 : sl_assert_failed(#cond, __FILE__, __LINE__))
#endif

SL_API SL_NORETURN void sl_assert_failed(const char *cond, const char *file,
                                         int line);

SL_END_DECLS
#endif /* SL_BASE_STATUS_H */
