/* SPDX-License-Identifier: Apache-2.0 */
/* Trying a command line before the ranks meet; telling the launcher. */
#include "cli/launched.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/commands.h"
#include "engine/world.h"

enum {
    TEXT_BYTES = 4096,
    EXIT_GOOD = 77 /* of the process that tries: nothing to say */
};

/* The process that tries: what it prints on stderr is read by its parent. */
static SL_NORETURN void try_it(int (*parse)(void *ctx), void *ctx, int fd,
                               int is_first)
{
    const int null = open("/dev/null", O_WRONLY);

    if (dup2(fd, STDERR_FILENO) < 0 ||
        (!is_first && (null < 0 || dup2(null, STDOUT_FILENO) < 0))) {
        _exit(EXIT_GOOD);
    }
    if (parse(ctx) != 0) {
        _exit(SL_EXIT_USAGE);
    }
    _exit(EXIT_GOOD);
}

static void read_all(int fd, char text[TEXT_BYTES])
{
    size_t n = 0;
    ssize_t got = 1;

    while (got != 0 && n < TEXT_BYTES - 1) {
        got = read(fd, text + n, TEXT_BYTES - 1 - n);
        if (got < 0 && errno != EINTR) {
            break;
        }
        n += got > 0 ? (size_t)got : 0;
    }
    text[n] = '\0';
}

/* All end with it; who is not the first is heard by the first. */
static SL_NORETURN void end_all(const char *text, int is_first)
{
    sl_world_params_t params;
    sl_world_t *world = NULL;
    char line[TEXT_BYTES];

    if (is_first) {
        (void)fputs(text, stderr);
    }
    (void)snprintf(line, sizeof(line), "%.*s", (int)strcspn(text, "\n"), text);
    sl_world_params_default(&params);
    sl_fail_quiet_set(1);
    if (sl_world_join(&params, &world) >= 0) {
        sl_world_abort(world, SL_ERR_INVALID_ARG, line);
        sl_world_leave(world);
    } else if (!is_first) {
        (void)fputs(text, stderr);
    }
    exit(SL_EXIT_USAGE);
}

void sl_launched_try(int (*parse)(void *ctx), void *ctx)
{
    int rank = 0, wait_status = 0, fds[2];
    char text[TEXT_BYTES];
    pid_t pid;

    if (!sl_world_is_launched(&rank) || pipe(fds) != 0) {
        return;
    }
    (void)fflush(NULL);
    pid = fork();
    if (pid == 0) {
        (void)close(fds[0]);
        try_it(parse, ctx, fds[1], rank == 0);
    }
    (void)close(fds[1]);
    read_all(fds[0], text);
    (void)close(fds[0]);
    while (pid > 0 && waitpid(pid, &wait_status, 0) < 0 && errno == EINTR) {
    }
    if (pid < 0 || !WIFEXITED(wait_status)) {
        return; /* what is wrong will be told by the parser itself */
    }
    if (WEXITSTATUS(wait_status) == SL_EXIT_USAGE) {
        end_all(text, rank == 0);
    }
    if (WEXITSTATUS(wait_status) == 0) {
        exit(0); /* it has printed its help */
    }
}

void sl_launched_tell(const char *kind, const char *detail)
{
    if (getenv(SL_LAUNCH_VARIABLE) != NULL) {
        (void)fflush(stdout); /* what was printed before goes before */
        (void)dprintf(STDERR_FILENO, "%s%s%s\n", SL_LAUNCH_REPORT, kind,
                      detail);
    }
}
