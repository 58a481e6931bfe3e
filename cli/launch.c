/* SPDX-License-Identifier: Apache-2.0 */
/* `sluice launch`: runs a training job on several hosts with mpirun, and
 * again from its last checkpoint, on the hosts that remain, when it fails. */
#include "cli/launch.h"

#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/parse.h"
#include "cli/commands.h"

enum {
    KEY_DRY_RUN = 900,
    KEY_HOSTS,
    KEY_HOSTFILE,
    KEY_RESTARTS,
    KEY_MIN_RANKS,
    KEY_MPIRUN,
    KEY_BACK_OFF,
    KEY_GRACE,
    BACK_OFF_MAX_S = 60
};

static const struct argp_option option_table[] = {
    {"ranks", 'n', "N", 0,
     "Processes (one a slot of the hosts; without hosts "
     "1, all on this machine)",
     0},
    {"hosts", KEY_HOSTS, "LIST", 0,
     "Hosts with their slots (1 each), such as a,b:2", 0},
    {"hostfile", KEY_HOSTFILE, "FILE", 0,
     "The same from a file: a line a host, such as `b slots=2`", 0},
    {"restarts", KEY_RESTARTS, "N", 0,
     "Restart a job that failed, at most N times in a row without a new "
     "checkpoint (0)",
     0},
    {"min-ranks", KEY_MIN_RANKS, "N", 0,
     "Give up when hosts for fewer processes remain (1)", 0},
    {"back-off", KEY_BACK_OFF, "SECONDS", 0,
     "Before the first restart; doubled each time in a row, to 60 (1)", 0},
    {"grace", KEY_GRACE, "SECONDS", 0,
     "How long a job that lost a process may take to end by itself (30)", 0},
    {"mpirun", KEY_MPIRUN, "PROGRAM", 0, "Open MPI's mpirun (mpirun)", 0},
    {"dry-run", KEY_DRY_RUN, NULL, 0, "Print the command and do nothing", 0},
    {NULL, 0, NULL, 0, NULL, 0}};

static int64_t whole(const char *name, const char *arg, int64_t min,
                     int64_t max)
{
    int64_t value = min;

    if (sl_parse_int(name, arg, min, max, &value) < 0) {
        exit(SL_EXIT_USAGE); /* it has been told */
    }
    return value;
}

static uint64_t seconds(const char *name, const char *arg)
{
    double value = 0;

    if (sl_parse_float(name, arg, 0.0, 86400.0, &value) < 0) {
        exit(SL_EXIT_USAGE); /* it has been told */
    }
    return (uint64_t)(value * 1e9);
}

/* The first word that is no option begins the command. */
static error_t take_command(struct argp_state *state, sl_launch_t *launch)
{
    launch->argc = state->argc - (state->next - 1);
    launch->argv = state->argv + state->next - 1;
    state->next = state->argc;
    return 0;
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    sl_launch_t *launch = state->input;

    switch (key) {
    case 'n':
        launch->n_ranks = (int)whole("--ranks", arg, 1, SL_LAUNCH_MAX_SLOTS);
        return 0;
    case KEY_HOSTS:
        launch->host_list = arg;
        return 0;
    case KEY_HOSTFILE:
        launch->host_file = arg;
        return 0;
    case KEY_RESTARTS:
        launch->n_restarts = (int)whole("--restarts", arg, 0, 1 << 20);
        return 0;
    case KEY_MIN_RANKS:
        launch->min_ranks =
            (int)whole("--min-ranks", arg, 1, SL_LAUNCH_MAX_SLOTS);
        return 0;
    case KEY_BACK_OFF:
        launch->back_off_ns = seconds("--back-off", arg);
        return 0;
    case KEY_GRACE:
        launch->grace_ns = seconds("--grace", arg);
        return 0;
    case KEY_MPIRUN:
        launch->mpirun = arg;
        return 0;
    case KEY_DRY_RUN:
        launch->is_dry_run = 1;
        return 0;
    case ARGP_KEY_ARG:
        return take_command(state, launch);
    case ARGP_KEY_END:
        if (launch->argv == NULL) {
            argp_error(state, "the command to run is missing, such as: "
                              "sluice launch --ranks 2 -- train CONFIG");
        } else if (strcmp(launch->argv[0], "train") != 0) {
            argp_error(state,
                       "'%s' is not launched, only train is, such as: "
                       "sluice launch --ranks 2 -- train CONFIG",
                       launch->argv[0]);
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void parse(int argc, char **argv, sl_launch_t *launch)
{
    static char command[] = "sluice launch";
    struct argp argp = {0};

    memset(launch, 0, sizeof(*launch));
    launch->min_ranks = 1;
    launch->mpirun = "mpirun";
    launch->back_off_ns = UINT64_C(1000000000);
    launch->grace_ns = UINT64_C(30000000000);
    argp.options = option_table;
    argp.parser = parse_option;
    argp.args_doc = "[--] train CONFIG [OPTION...]";
    argp.doc = "Run a training job on one or more hosts; restart it from its "
               "last checkpoint, on the hosts that remain, when it fails. "
               "SIGTERM, SIGINT and SIGUSR1 end it after a checkpoint.";
    argv[0] = command;
    argp_err_exit_status = SL_EXIT_USAGE;
    (void)argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, launch);
}

/* ---- hosts and ranks ---- */

static sl_status_t find_hosts(sl_launch_t *launch)
{
    char self[32];
    sl_status_t status;
    int n_slots;

    if (launch->host_list != NULL && launch->host_file != NULL) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "launch: --hosts or --hostfile, not both");
    }
    if (launch->host_list != NULL) {
        SL_TRY(status, sl_launch_hosts_parse(launch->host_list, &launch->hosts),
               out);
    } else if (launch->host_file != NULL) {
        SL_TRY(status, sl_launch_hosts_read(launch->host_file, &launch->hosts),
               out);
    } else {
        (void)snprintf(self, sizeof(self), "localhost:%d",
                       launch->n_ranks > 0 ? launch->n_ranks : 1);
        SL_TRY(status, sl_launch_hosts_parse(self, &launch->hosts), out);
    }
    n_slots = sl_launch_hosts_slots(&launch->hosts);
    if (launch->n_ranks == 0) {
        launch->n_ranks = n_slots;
    }
    if (launch->n_ranks > n_slots || launch->n_ranks > SL_LAUNCH_MAX_SLOTS) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "launch: --ranks %d, but the hosts have %d slots; name more "
                "hosts, or more slots as in a:2",
                launch->n_ranks, n_slots);
    }
    if (launch->min_ranks > launch->n_ranks) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "launch: --min-ranks %d, but there are %d", launch->min_ranks,
                launch->n_ranks);
    }
    return SL_OK;
out:
    return status;
}

/* A host that does not answer takes no part in the next run. */
static void drop_unreachable(sl_launch_t *launch)
{
    int i;

    for (i = 0; i < launch->hosts.n; i++) {
        sl_launch_host_t *host = &launch->hosts.hosts[i];

        if (!host->is_dropped && !sl_launch_host_is_local(host->name) &&
            !sl_launch_answers(launch, host)) {
            host->is_dropped = 1;
            sl_launch_say("host %s does not answer: it is dropped", host->name);
        }
    }
}

/* One loss can be chance; a host where processes or devices are lost twice is
 * dropped, while the others are enough. */
static void blame(sl_launch_t *launch, int i)
{
    sl_launch_host_t *host;

    if (i < 0 || launch->hosts.hosts[i].is_dropped) {
        return;
    }
    host = &launch->hosts.hosts[i];
    host->n_losses++;
    if (host->n_losses >= 2 &&
        sl_launch_hosts_slots(&launch->hosts) - host->n_slots >=
            launch->min_ranks) {
        host->is_dropped = 1;
        sl_launch_say("host %s lost a process or a device twice: it is dropped",
                      host->name);
    }
}

/* ---- runs ---- */

static int is_over(const sl_launch_end_t *end)
{
    return end->status == 0 || end->status == SL_EXIT_USAGE ||
           end->status == SL_EXIT_INTERRUPTED || sl_launch_n_signals() > 0;
}

/* After a failure: whether and how the job goes on. */
static int may_restart(sl_launch_t *launch, const sl_launch_end_t *end,
                       int has_progress)
{
    int n_slots;

    if (launch->n_restarts == 0) {
        return 0;
    }
    launch->n_in_row = has_progress ? 0 : launch->n_in_row + 1;
    if (launch->n_in_row > launch->n_restarts) {
        sl_launch_say("%d restart%s brought no new checkpoint: giving up",
                      launch->n_restarts, launch->n_restarts == 1 ? "" : "s");
        return 0;
    }
    blame(launch, end->host);
    drop_unreachable(launch);
    n_slots = sl_launch_hosts_slots(&launch->hosts);
    if (n_slots < launch->min_ranks) {
        sl_launch_say("hosts for %d process%s remain, fewer than %d: giving up",
                      n_slots, n_slots == 1 ? "" : "es", launch->min_ranks);
        return 0;
    }
    if (launch->n_ranks > n_slots) {
        launch->n_ranks = sl_launch_usable_ranks(launch, n_slots);
    }
    return sl_launch_n_signals() == 0;
}

static void back_off(const sl_launch_t *launch, const char *from)
{
    const double most_s = BACK_OFF_MAX_S;
    double wait_s = (double)launch->back_off_ns * 1e-9;
    char *hosts = sl_launch_hosts_text(&launch->hosts, launch->n_ranks);
    char count[64] = "";
    int i;

    for (i = 1; i < launch->n_in_row && wait_s < most_s; i++) {
        wait_s *= 2;
    }
    wait_s = wait_s < most_s ? wait_s : most_s;
    if (launch->n_in_row > 0) {
        (void)snprintf(count, sizeof(count),
                       " (%d of %d without a new checkpoint)", launch->n_in_row,
                       launch->n_restarts);
    }
    sl_launch_say("restart in %.3g s%s: %d process%s on %s, from %s", wait_s,
                  count, launch->n_ranks, launch->n_ranks == 1 ? "" : "es",
                  hosts == NULL ? "?" : hosts, from);
    free(hosts);
    sl_launch_pause((uint64_t)(wait_s * 1e9));
}

/* How a run ended, in one line. */
static void tell_end(const sl_launch_end_t *end, uint64_t run_ns)
{
    const char *reason = end->reason;

    sl_launch_say("the job failed after %.1f s with exit status %d%s%s",
                  (double)run_ns * 1e-9, end->status,
                  reason[0] == '\0' ? "" : ": ", reason);
}

static sl_status_t run_all(sl_launch_t *launch, int *exit_p)
{
    char first[SL_LAUNCH_MARK_BYTES];
    char before[SL_LAUNCH_MARK_BYTES];
    char after[SL_LAUNCH_MARK_BYTES];
    char written[SL_LAUNCH_MARK_BYTES] = "";
    sl_launch_end_t end = {0};
    sl_status_t status;
    int is_seen;

    sl_launch_mark(launch, first);
    memcpy(before, first, sizeof(before));
    for (;;) {
        const uint64_t begin_ns = sl_clock_ns();

        SL_TRY(status, sl_launch_once(launch, &end), out);
        if (is_over(&end)) {
            break;
        }
        tell_end(&end, sl_clock_ns() - begin_ns);
        sl_launch_mark(launch, after);
        if (end.written[0] != '\0') {
            memcpy(written, end.written, sizeof(written));
        }
        if (!may_restart(launch, &end,
                         strcmp(before, after) != 0 ||
                             end.written[0] != '\0')) {
            break;
        }
        /* only what this job wrote; it may have begun elsewhere by will */
        is_seen = strcmp(first, after) != 0;
        launch->is_resumed = is_seen || written[0] != '\0';
        memcpy(before, after, sizeof(before));
        back_off(launch, is_seen              ? after
                         : launch->is_resumed ? written
                                              : "where it began");
        if (sl_launch_n_signals() > 0) {
            end.status = SL_EXIT_INTERRUPTED;
            break;
        }
    }
    *exit_p = end.status;
out:
    return status;
}

int sl_command_launch(int argc, char **argv)
{
    sl_launch_t launch;
    sl_status_t status;
    int exit_status = 0;

    parse(argc, argv, &launch);
    SL_TRY(status, find_hosts(&launch), out);
    SL_TRY(status, sl_launch_read_config(&launch), out);
    if (launch.is_dry_run) {
        SL_TRY(status, sl_launch_print(&launch), out);
    } else {
        sl_launch_catch_signals();
        SL_TRY(status, run_all(&launch, &exit_status), out);
    }
out:
    sl_launch_hosts_cleanup(&launch.hosts);
    free(launch.checkpoints);
    return status < 0 ? sl_exit_status(status) : exit_status;
}
