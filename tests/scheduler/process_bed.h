/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file process_bed.h
 * Processes that do nothing, for what is done to them.
 */
#ifndef SL_TESTS_SCHEDULER_PROCESS_BED_H
#define SL_TESTS_SCHEDULER_PROCESS_BED_H

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/sl_test.h"

static inline pid_t process_begin(void)
{
    const pid_t pid = fork();

    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* also of a failed test */
        for (;;) {
            (void)pause();
        }
    }
    assert_true(pid > 0);
    return pid;
}

static inline void process_end(pid_t pid)
{
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
}

/* When it began: field 22 of /proc/<pid>/stat. */
static inline uint64_t process_start(pid_t pid)
{
    char path[64], text[1024];
    const char *field;
    FILE *file;
    size_t n;
    int i;

    (void)snprintf(path, sizeof(path), "/proc/%ld/stat", (long)pid);
    file = fopen(path, "r");
    assert_non_null(file);
    n = fread(text, 1, sizeof(text) - 1, file);
    (void)fclose(file);
    text[n] = '\0';
    field = strrchr(text, ')');
    for (i = 2; i < 22; i++) {
        assert_non_null(field);
        field = strchr(field + 1, ' ');
    }
    return strtoull(field, NULL, 10);
}

#endif /* SL_TESTS_SCHEDULER_PROCESS_BED_H */
