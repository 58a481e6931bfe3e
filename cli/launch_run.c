/* SPDX-License-Identifier: Apache-2.0 */
/* One run of `sluice launch`: a child whose messages are passed on and read,
 * and to which signals are handed on. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/launch.h"
#include "cli/launched.h"
#include "engine/world.h"

enum {
    LINE_BYTES = 1024,
    READ_BYTES = 4096,
    EXIT_NOT_FOUND = 127
};

static const uint64_t SECOND_NS = UINT64_C(1000000000);
/* From SIGTERM to SIGKILL for a run that does not end. */
static const uint64_t KILL_NS = UINT64_C(10) * UINT64_C(1000000000);

static volatile sig_atomic_t n_signals;
static sigset_t free_mask; /* while waiting: what the caller's mask was */

static void on_signal(int number)
{
    if (number != SIGCHLD) {
        n_signals = n_signals + 1;
    }
}

void sl_launch_catch_signals(void)
{
    static const int numbers[] = {SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGUSR1};
    struct sigaction action;
    sigset_t blocked;
    size_t i;

    memset(&action, 0, sizeof(action));
    action.sa_handler = on_signal;
    (void)sigemptyset(&blocked);
    for (i = 0; i < sizeof(numbers) / sizeof(*numbers); i++) {
        (void)sigaction(numbers[i], &action, NULL);
        (void)sigaddset(&blocked, numbers[i]);
    }
    /* they arrive in pselect only, so that none is missed before it */
    (void)sigprocmask(SIG_BLOCK, &blocked, &free_mask);
    for (i = 0; i < sizeof(numbers) / sizeof(*numbers); i++) {
        (void)sigdelset(&free_mask, numbers[i]);
    }
}

int sl_launch_n_signals(void)
{
    return (int)n_signals;
}

/* Wait for a signal, input on `fd` (-1 = none), or `ns`. */
static int wait_for(int fd, uint64_t ns)
{
    const struct timespec timeout = {(time_t)(ns / SECOND_NS),
                                     (long)(ns % SECOND_NS)};
    fd_set set;

    FD_ZERO(&set);
    if (fd >= 0) {
        FD_SET(fd, &set);
    }
    return pselect(fd + 1, &set, NULL, NULL, &timeout, &free_mask) > 0;
}

void sl_launch_pause(uint64_t ns)
{
    const uint64_t end_ns = sl_clock_ns() + ns;
    const int n_before = sl_launch_n_signals();

    while (sl_launch_n_signals() == n_before && sl_clock_ns() < end_ns) {
        (void)wait_for(-1, end_ns - sl_clock_ns());
    }
}

/* ---- lines ---- */

/* The word after `mark`, up to one of `stops`. */
static int word_after(const char *line, const char *mark, const char *stops,
                      char name[SL_LAUNCH_NAME_BYTES])
{
    const char *at = strstr(line, mark);
    size_t n;

    if (at == NULL) {
        return 0;
    }
    at += strlen(mark);
    n = strcspn(at, stops);
    if (n == 0 || n >= SL_LAUNCH_NAME_BYTES) {
        return 0;
    }
    memcpy(name, at, n);
    name[n] = '\0';
    return 1;
}

int sl_launch_find_lost(const char *line, char name[SL_LAUNCH_NAME_BYTES])
{
    /* mpirun: "... rank 1 with PID 0 on node b exited on signal 9 (Killed)." */
    if (strstr(line, " exited on signal ") != NULL) {
        return word_after(line, " on node ", " ", name);
    }
    /* "  Remote daemon: [[27042,0],1] on node b", whose link was cut */
    if (strstr(line, " Remote daemon: ") != NULL) {
        return word_after(line, " on node ", " ", name);
    }
    /* a rank: "sluice: error: rank 1 on host b has not answered for 30 s", or
     * that its GPU is gone */
    if (strstr(line, "sluice: error: ") != NULL &&
        (strstr(line, " is gone") != NULL ||
         strstr(line, " has not answered") != NULL ||
         strstr(line, " " SL_WORLD_DEVICE_FAILURE) != NULL)) {
        return word_after(line, " on host ", " ", name);
    }
    return 0;
}

/* What is known of the run that is under way. */
typedef struct sl_watch {
    const sl_launch_run_t *run;
    sl_launch_end_t end;
    pid_t pid;
    int fd; /**< its stderr; -1 = closed */
    size_t n_line;
    size_t n_passed; /**< of the line, passed on */
    char line[LINE_BYTES];
    size_t n_out; /**< to write */
    char out[READ_BYTES + LINE_BYTES];
    int is_ready; /**< all ranks catch signals */
    int n_forwarded;
    int first;        /**< the first signal handed on; 0 = none */
    uint64_t term_ns; /**< when it gets SIGTERM; 0 = not */
    uint64_t kill_ns; /**< when it gets SIGKILL; 0 = not */
} sl_watch_t;

/* Whether the line is, or may become, a report, which is for us alone. */
static int may_be_report(const sl_watch_t *watch)
{
    const size_t n = strlen(SL_LAUNCH_REPORT);

    return memcmp(watch->line, SL_LAUNCH_REPORT,
                  watch->n_line < n ? watch->n_line : n) == 0;
}

static int is_report(const sl_watch_t *watch)
{
    return watch->n_line > strlen(SL_LAUNCH_REPORT) && may_be_report(watch);
}

/* There is room for what was read at once, and a line that was held back. */
static void show(sl_watch_t *watch, const char *bytes, size_t n)
{
    memcpy(watch->out + watch->n_out, bytes, n);
    watch->n_out += n;
}

static void show_line(sl_watch_t *watch)
{
    show(watch, watch->line + watch->n_passed, watch->n_line - watch->n_passed);
    watch->n_passed = watch->n_line;
}

static void flush(sl_watch_t *watch)
{
    (void)fwrite(watch->out, 1, watch->n_out, stderr);
    (void)fflush(stderr);
    watch->n_out = 0;
}

/* The rest of `line` after `mark`, or NULL. */
static const char *rest_of(const char *line, const char *mark)
{
    return strncmp(line, mark, strlen(mark)) == 0 ? line + strlen(mark) : NULL;
}

static void read_report(sl_watch_t *watch, const char *report)
{
    sl_launch_end_t *end = &watch->end;
    const char *name = rest_of(report, SL_LAUNCH_REPORT_CHECKPOINT);
    const char *told = rest_of(report, SL_LAUNCH_REPORT_END);

    watch->is_ready = 1; /* or later */
    if (name != NULL) {
        (void)snprintf(end->written, sizeof(end->written), "%.*s",
                       (int)sizeof(end->written) - 1, name);
    } else if (told != NULL) {
        end->told = (int)strtol(told, NULL, 10);
    }
}

static void read_line(sl_watch_t *watch)
{
    char name[SL_LAUNCH_NAME_BYTES];

    watch->line[watch->n_line] = '\0';
    if (is_report(watch)) {
        read_report(watch, watch->line + strlen(SL_LAUNCH_REPORT));
    }
    watch->n_line = watch->n_passed = 0;
    if (watch->end.reason[0] != '\0' ||
        !sl_launch_find_lost(watch->line, name)) {
        return;
    }
    watch->end.host = sl_launch_hosts_find(watch->run->hosts, name);
    (void)snprintf(watch->end.reason, sizeof(watch->end.reason), "%.*s",
                   (int)sizeof(watch->end.reason) - 1, watch->line);
    if (watch->term_ns == 0) {
        watch->term_ns = sl_clock_ns() + watch->run->grace_ns;
    }
}

/* Ours, or the user's. */
static void take_byte(sl_watch_t *watch, char byte)
{
    if (byte == '\n' || byte == '\r') {
        if (!is_report(watch)) {
            show_line(watch);
            show(watch, &byte, 1);
        }
        read_line(watch);
    } else if (watch->n_line < LINE_BYTES - 1) {
        watch->line[watch->n_line++] = byte;
        if (!may_be_report(watch)) {
            show_line(watch);
        }
    } else {
        show_line(watch);
        show(watch, &byte, 1);
    }
}

/* Pass on what has come; 0 when there is nothing (now, or for ever). */
static int pass_on(sl_watch_t *watch)
{
    char bytes[READ_BYTES];
    ssize_t n;
    ssize_t i;

    n = watch->fd < 0 ? 0 : read(watch->fd, bytes, sizeof(bytes));
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        return 0;
    }
    if (n <= 0) {
        if (watch->fd >= 0) {
            (void)close(watch->fd);
        }
        watch->fd = -1;
        return 0;
    }
    for (i = 0; i < n; i++) {
        take_byte(watch, bytes[i]);
    }
    flush(watch);
    return 1;
}

/* ---- the child ---- */

static void become(const sl_launch_run_t *run, pid_t parent, int fd)
{
    static const int numbers[] = {SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGUSR1};
    const int null = open("/dev/null", O_RDONLY);
    size_t i;

    for (i = 0; i < sizeof(numbers) / sizeof(*numbers); i++) {
        (void)signal(numbers[i], SIG_DFL);
    }
    (void)sigprocmask(SIG_SETMASK, &free_mask, NULL);
    /* a group of its own: Ctrl-C reaches it through us; without us it ends */
    (void)setpgid(0, 0);
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent || null < 0 || dup2(null, STDIN_FILENO) < 0 ||
        (fd >= 0 && dup2(fd, STDERR_FILENO) < 0)) {
        _exit(EXIT_NOT_FOUND);
    }
    (void)execvp(run->argv[0], run->argv);
    (void)dprintf(STDERR_FILENO,
                  "sluice: error: cannot run %s: %s; install Open MPI, or name "
                  "its mpirun with --mpirun\n",
                  run->argv[0], strerror(errno));
    _exit(EXIT_NOT_FOUND);
}

/* A process without mpirun keeps our stderr: there is nothing to read in it. */
static sl_status_t begin(sl_watch_t *watch)
{
    const pid_t self = getpid();
    int fds[2] = {-1, -1};
    sl_status_t status = SL_OK;

    if (watch->run->is_mpirun) {
        if (pipe(fds) != 0) {
            SL_FAIL(status, SL_ERR_IO, out, "launch: no pipe: %s",
                    strerror(errno));
        }
        (void)fcntl(fds[0], F_SETFD, FD_CLOEXEC);
        (void)fcntl(fds[1], F_SETFD, FD_CLOEXEC);
        (void)fcntl(fds[0], F_SETFL, O_NONBLOCK);
    }
    (void)fflush(NULL);
    watch->pid = fork();
    if (watch->pid == 0) {
        become(watch->run, self, fds[1]);
    }
    if (fds[1] >= 0) {
        (void)close(fds[1]);
    }
    watch->fd = fds[0];
    if (watch->pid < 0) {
        SL_FAIL(status, SL_ERR_IO, out, "launch: cannot start a process: %s",
                strerror(errno));
    }
    (void)setpgid(watch->pid, watch->pid);
out:
    return status;
}

/* With nothing to write yet. */
static int is_ended_at_start(const sl_watch_t *watch)
{
    return watch->run->is_mpirun && watch->first == SIGTERM;
}

/* mpirun hands SIGUSR1 on to all ranks, which then write a checkpoint. At
 * SIGTERM it gives them one second only, enough while there is nothing to
 * write; and while ranks start, SIGUSR1 may be lost, or kill one in a moment
 * after which mpirun waits for ever. The second signal ends at once. */
static void hand_on(sl_watch_t *watch)
{
    const int n = sl_launch_n_signals();

    if (n == watch->n_forwarded) {
        return;
    }
    watch->n_forwarded = n;
    if (n == 1) {
        watch->first =
            watch->run->is_mpirun && watch->is_ready ? SIGUSR1 : SIGTERM;
    }
    (void)kill(watch->pid, n == 1 ? watch->first : SIGTERM);
    if (watch->kill_ns == 0 && (n > 1 || is_ended_at_start(watch))) {
        watch->kill_ns = sl_clock_ns() + KILL_NS;
    }
}

/* A run that lost a rank has to end by itself; here is what else happens. */
static void enforce_end(sl_watch_t *watch)
{
    const uint64_t now_ns = sl_clock_ns();

    if (watch->kill_ns != 0 && now_ns >= watch->kill_ns) {
        (void)kill(-watch->pid, SIGKILL);
    } else if (watch->kill_ns == 0 && watch->term_ns != 0 &&
               now_ns >= watch->term_ns) {
        (void)fprintf(stderr, "sluice launch: the job does not end by itself; "
                              "it is stopped\n");
        (void)kill(watch->pid, SIGTERM);
        watch->kill_ns = now_ns + KILL_NS;
    }
}

static int exit_status_of(int wait_status)
{
    return WIFEXITED(wait_status) ? WEXITSTATUS(wait_status)
                                  : 128 + WTERMSIG(wait_status);
}

/* A run that was to end has ended as it told, or early, whatever mpirun makes
 * of it: it ends by the signal while it cleans up after its ranks. */
static int status_of(const sl_watch_t *watch, int wait_status)
{
    const int status = exit_status_of(wait_status);

    if (watch->n_forwarded != 1 || status == 0 || status == SL_EXIT_USAGE) {
        return status;
    }
    if (status == 128 + watch->first) {
        return watch->end.told >= 0 ? watch->end.told : SL_EXIT_INTERRUPTED;
    }
    return is_ended_at_start(watch) ? SL_EXIT_INTERRUPTED : status;
}

sl_status_t sl_launch_run(const sl_launch_run_t *run, sl_launch_end_t *end_p)
{
    sl_watch_t watch;
    int wait_status = 0;
    sl_status_t status;

    memset(&watch, 0, sizeof(watch));
    watch.run = run;
    watch.end.host = watch.end.told = -1;
    watch.fd = -1;
    SL_TRY(status, begin(&watch), out);
    while (waitpid(watch.pid, &wait_status, WNOHANG) == 0) {
        (void)pass_on(&watch); /* that the ranks are ready, before a signal */
        hand_on(&watch);
        enforce_end(&watch);
        (void)wait_for(watch.fd, SECOND_NS / 5);
    }
    while (pass_on(&watch)) {
    }
    if (watch.n_line > 0) {
        if (!is_report(&watch)) {
            show_line(&watch);
            flush(&watch);
        }
        read_line(&watch);
    }
    watch.end.status = status_of(&watch, wait_status);
    *end_p = watch.end;
out:
    if (watch.fd >= 0) {
        (void)close(watch.fd);
    }
    return status;
}

int sl_launch_probe(char *const *argv, uint64_t ns)
{
    const uint64_t end_ns = sl_clock_ns() + ns;
    const int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    const sl_launch_run_t run = {.argv = argv};
    int wait_status = 0;
    const pid_t self = getpid();
    pid_t pid;

    (void)fflush(NULL);
    pid = fork();
    if (pid == 0) {
        (void)dup2(null, STDOUT_FILENO);
        become(&run, self, null);
    }
    if (null >= 0) {
        (void)close(null);
    }
    if (pid < 0) {
        return -1;
    }
    (void)setpgid(pid, pid);
    while (waitpid(pid, &wait_status, WNOHANG) == 0) {
        if (sl_clock_ns() >= end_ns || sl_launch_n_signals() > 0) {
            (void)kill(-pid, SIGKILL);
            (void)waitpid(pid, &wait_status, 0);
            return -1;
        }
        (void)wait_for(-1, SECOND_NS / 20);
    }
    return exit_status_of(wait_status);
}
