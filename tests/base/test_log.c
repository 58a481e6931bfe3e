/* SPDX-License-Identifier: Apache-2.0 */
/* Levels, the sink, and lines of several threads. */
#include "base/log.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/sl_test.h"

enum {
    N_THREADS = 4,
    N_LINES = 200
};

static int n_seen, n_torn;
static char last[4096];

static void see(void *ctx, sl_log_level_t level, const char *text)
{
    (void)ctx;
    (void)level;
    n_seen++;
    n_torn += strspn(text, "a") != strlen(text);
    (void)snprintf(last, sizeof(last), "%s", text);
}

/* Runs first: main() put a word that is no level into SLUICE_LOG. */
static void unknown_level_warns_once_and_means_warn(void **state)
{
    (void)state;
    assert_int_equal(sl_log_level(), SL_LOG_WARN);
    sl_assert_contains(sl_test_log_take(), "SLUICE_LOG is 'loud'; allowed: ");
    assert_int_equal(sl_log_level(), SL_LOG_WARN);
}

static const char *program;

/* The level a fresh process starts with; 99 if it did not run. */
static int level_of_process(const char *text)
{
    int wait_status = 0;
    const pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0) {
        (void)(text == NULL ? unsetenv("SLUICE_LOG")
                            : setenv("SLUICE_LOG", text, 1));
        (void)execl(program, program, "level", (char *)NULL);
        _exit(99);
    }
    assert_int_equal(waitpid(child, &wait_status, 0), child);
    assert_true(WIFEXITED(wait_status));
    return WEXITSTATUS(wait_status);
}

static void environment_names_the_level(void **state)
{
    (void)state;
    assert_int_equal(level_of_process(NULL), SL_LOG_WARN);
    assert_int_equal(level_of_process(""), SL_LOG_WARN);
    assert_int_equal(level_of_process("error"), SL_LOG_ERROR);
    assert_int_equal(level_of_process("warn"), SL_LOG_WARN);
    assert_int_equal(level_of_process("info"), SL_LOG_INFO);
    assert_int_equal(level_of_process("debug"), SL_LOG_DEBUG);
    assert_int_equal(level_of_process("trace"), SL_LOG_TRACE);
}

static int n_evaluated;

static int evaluate(void)
{
    return ++n_evaluated;
}

static void quiet_levels_cost_nothing(void **state)
{
    (void)state;
    n_seen = 0;
    sl_log_sink_set(see, NULL);
    sl_log_level_set(SL_LOG_INFO);
    sl_debug("%d", evaluate());
    sl_trace("%d", evaluate());
    assert_int_equal(n_evaluated, 0);
    sl_info("%d", evaluate());
    sl_warn("%d", evaluate());
    sl_error("%d", evaluate());
    assert_int_equal(n_seen, 3);
    sl_log_level_set(SL_LOG_ERROR);
    sl_warn("%d", evaluate());
    assert_int_equal(n_seen, 3);
    sl_log_level_set(SL_LOG_WARN);
}

static void long_message_is_cut(void **state)
{
    char text[5000];

    (void)state;
    memset(text, 'a', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    sl_log_sink_set(see, NULL);
    sl_log_write(SL_LOG_ERROR, "%s", text);
    assert_int_equal(strlen(last), 2047);
}

static void *write_lines(void *arg)
{
    int i;

    (void)arg;
    for (i = 0; i < N_LINES; i++) {
        sl_warn("aaaaaaaaaaaaaaaaaaaaaaaa");
    }
    return NULL;
}

static void threads_do_not_mix_lines(void **state)
{
    pthread_t threads[N_THREADS];
    int i;

    (void)state;
    n_seen = n_torn = 0;
    sl_log_sink_set(see, NULL);
    for (i = 0; i < N_THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, write_lines, NULL),
                         0);
    }
    for (i = 0; i < N_THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    assert_int_equal(n_seen, N_THREADS * N_LINES);
    assert_int_equal(n_torn, 0);
}

static void default_sink_is_stderr(void **state)
{
    char path[600], text[200];
    const int saved = dup(STDERR_FILENO);
    FILE *file;
    size_t n;

    (void)state;
    (void)snprintf(path, sizeof(path), "%s/stderr", sl_test_directory());
    file = fopen(path, "w+");
    assert_non_null(file);
    assert_true(dup2(fileno(file), STDERR_FILENO) >= 0);
    sl_log_sink_set(NULL, NULL);
    sl_log_write(SL_LOG_WARN, "disk %s", "slow");
    assert_true(dup2(saved, STDERR_FILENO) >= 0);
    (void)close(saved);
    rewind(file);
    n = fread(text, 1, sizeof(text) - 1, file);
    text[n] = '\0';
    (void)fclose(file);
    assert_string_equal(text, "sluice: warn: disk slow\n");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(unknown_level_warns_once_and_means_warn),
        sl_unit_test(environment_names_the_level),
        sl_unit_test(quiet_levels_cost_nothing),
        sl_unit_test(long_message_is_cut),
        sl_unit_test(threads_do_not_mix_lines),
        sl_unit_test(default_sink_is_stderr),
    };

    if (argc > 1) { /* run by level_of_process */
        return (int)sl_log_level();
    }
    program = argv[0];
    (void)setenv("SLUICE_LOG", "loud", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
