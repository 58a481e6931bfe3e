/* SPDX-License-Identifier: Apache-2.0 */
/* The error pattern: detail, log level, threads, clean-up. */
#include "base/status.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "tests/support/sl_test.h"

static sl_status_t fails(int n)
{
    sl_status_t status = SL_OK;

    SL_FAIL(status, SL_ERR_IO, out, "disk %d is gone", n);
out:
    return status;
}

static sl_status_t refuses(void)
{
    sl_status_t status = SL_OK;

    SL_REFUSE(status, SL_ERR_QUOTA, out, "pool is full");
out:
    return status;
}

static sl_status_t forwards(int *n_undone)
{
    sl_status_t status;

    SL_TRY(status, SL_OK, out);
    SL_TRY(status, SL_INPROGRESS, out);
    SL_TRY(status, fails(2), err_undo);
    return SL_OK;

err_undo:
    (*n_undone)++;
out:
    return status;
}

static int n_lines(const char *text)
{
    int n = 0;

    for (; *text != '\0'; text++) {
        n += *text == '\n';
    }
    return n;
}

static void every_code_has_its_own_text(void **state)
{
    static const sl_status_t codes[] = {
#define X(id, value, text) id,
        SL_STATUS_MAP(X)
#undef X
    };
    size_t i, j;

    (void)state;
    for (i = 0; i < sizeof(codes) / sizeof(*codes); i++) {
        assert_true(strlen(sl_status_text(codes[i])) > 0);
        for (j = 0; j < i; j++) {
            assert_true(codes[i] != codes[j]);
            assert_string_not_equal(sl_status_text(codes[i]),
                                    sl_status_text(codes[j]));
        }
    }
    assert_string_equal(sl_status_text(SL_ERR_CONFIG),
                        "configuration is not valid");
    assert_string_equal(sl_status_text((sl_status_t)-999), "unknown status");
}

static void failure_is_recorded_and_logged_once(void **state)
{
    const char *log;

    (void)state;
    assert_int_equal(fails(1), SL_ERR_IO);
    sl_assert_contains(sl_last_error(), "test_status.c:");
    sl_assert_contains(sl_last_error(), ": disk 1 is gone");
    assert_null(strchr(sl_last_error(), '/'));
    log = sl_test_log_take();
    assert_int_equal(n_lines(log), 1);
    sl_assert_contains(log, "disk 1 is gone");
}

static void forwarding_is_silent_and_undoes(void **state)
{
    int n_undone = 0;

    (void)state;
    assert_int_equal(forwards(&n_undone), SL_ERR_IO);
    assert_int_equal(n_undone, 1);
    assert_int_equal(n_lines(sl_test_log_take()), 1);
}

/* The fixture fails this test if the refusal is logged as an error. */
static void expected_refusal_is_not_an_error(void **state)
{
    (void)state;
    assert_int_equal(refuses(), SL_ERR_QUOTA);
    sl_assert_contains(sl_last_error(), ": pool is full");
    assert_string_equal(sl_test_log_take(), "");
}

static sl_log_level_t seen_level;
static int n_seen;

static void see(void *ctx, sl_log_level_t level, const char *text)
{
    (void)ctx;
    (void)text;
    seen_level = level;
    n_seen++;
}

static void refusal_is_logged_at_debug(void **state)
{
    const sl_log_level_t level = sl_log_level();

    (void)state;
    n_seen = 0;
    sl_log_sink_set(see, NULL);
    sl_log_level_set(SL_LOG_INFO);
    (void)refuses();
    assert_int_equal(n_seen, 0);
    sl_log_level_set(SL_LOG_DEBUG);
    (void)refuses();
    sl_log_level_set(level);
    assert_int_equal(n_seen, 1);
    assert_int_equal(seen_level, SL_LOG_DEBUG);
}

static void keep_keeps_the_first_failure(void **state)
{
    sl_status_t status = SL_OK;

    (void)state;
    SL_KEEP(status, SL_INPROGRESS);
    assert_int_equal(status, SL_OK);
    SL_KEEP(status, SL_ERR_COMM);
    SL_KEEP(status, SL_ERR_IO);
    SL_KEEP(status, SL_OK);
    assert_int_equal(status, SL_ERR_COMM);
}

static void *other_thread(void *arg)
{
    int *is_ok = arg;

    *is_ok = strcmp(sl_last_error(), "") == 0;
    sl_last_error_set("of the other thread");
    *is_ok = *is_ok && strcmp(sl_last_error(), "of the other thread") == 0;
    return NULL;
}

static void detail_is_of_the_thread(void **state)
{
    pthread_t thread;
    int is_ok = 0;

    (void)state;
    sl_last_error_set("of this thread");
    assert_int_equal(pthread_create(&thread, NULL, other_thread, &is_ok), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(is_ok);
    assert_string_equal(sl_last_error(), "of this thread");
}

static void detail_may_quote_itself(void **state)
{
    (void)state;
    sl_last_error_set("inner");
    sl_fail_record(1, "a/b.c", 7, "outer: %s", sl_last_error());
    assert_string_equal(sl_last_error(), "b.c:7: outer: inner");
    sl_last_error_set(sl_last_error() + 7);
    assert_string_equal(sl_last_error(), "outer: inner");
    sl_last_error_set(sl_last_error());
    assert_string_equal(sl_last_error(), "outer: inner");
    sl_last_error_set(NULL);
    assert_string_equal(sl_last_error(), "");
}

static void long_detail_is_cut(void **state)
{
    char text[5000];

    (void)state;
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    sl_fail_record(1, "b.c", 7, "%s", text);
    assert_in_range(strlen(sl_last_error()), 900, 1023);
    sl_last_error_set(text);
    assert_int_equal(strlen(sl_last_error()), 1023);
    sl_last_error_set(NULL);
}

static void failed_assertion_aborts(void **state)
{
    int wait_status = 0;
    pid_t child;

    (void)state;
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const struct rlimit no_core = {0, 0};

        (void)setrlimit(RLIMIT_CORE, &no_core);
        (void)close(STDERR_FILENO);
        (void)signal(SIGABRT, SIG_DFL);
        sl_assert_failed("1 == 2", "b.c", 7);
    }
    assert_int_equal(waitpid(child, &wait_status, 0), child);
    assert_true(WIFSIGNALED(wait_status));
    assert_int_equal(WTERMSIG(wait_status), SIGABRT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(every_code_has_its_own_text),
        sl_unit_test(failure_is_recorded_and_logged_once),
        sl_unit_test(forwarding_is_silent_and_undoes),
        sl_unit_test(expected_refusal_is_not_an_error),
        sl_unit_test(refusal_is_logged_at_debug),
        sl_unit_test(keep_keeps_the_first_failure),
        sl_unit_test(detail_is_of_the_thread),
        sl_unit_test(detail_may_quote_itself),
        sl_unit_test(long_detail_is_cut),
        sl_unit_test(failed_assertion_aborts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
