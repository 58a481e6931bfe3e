/* SPDX-License-Identifier: Apache-2.0 */
/* `sluice coordinator`: the daemon that moves the gates of all jobs. */
#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/parse.h"
#include "cli/commands.h"
#include "scheduler/coordinator/exchange.h"
#include "scheduler/coordinator/pins.h"

enum {
    KEY_POLICY = 1000,
    KEY_FLOOR,
    KEY_THRESHOLD,
    KEY_STATIC,
    KEY_PROBE,
    KEY_MEMORY,
    KEY_PERIOD,
    KEY_TTL,
    KEY_RUN_DIR,
    KEY_DRY_RUN,
    KEY_ONCE,
    KEY_QUIET,
    MS_NS = 1000000
};

typedef struct sl_coordinator {
    sl_coord_params_t params;
    sl_exchange_params_t exchange_params;
    const char *run_dir; /* NULL = default */
    int is_once, is_quiet;
    /* opened */
    sl_run_dir_t *dir;
    sl_coord_t *coord;
    sl_exchange_t *exchange;
    sl_coord_snapshot_t *seen;
    sl_coord_decisions_t *decisions;
    uint64_t report_ns;
    struct stat identity; /* of the run directory */
} sl_coordinator_t;

static char command[] = "sluice coordinator"; /* argp wants it writable */
static volatile sig_atomic_t is_ended;

static void on_signal(int signal_number)
{
    (void)signal_number;
    is_ended = 1;
}

static const struct argp_option option_table[] = {
    {"policy", KEY_POLICY, "NAME", 0,
     "guarantee-first (default), fair or static", 0},
    {"floor", KEY_FLOOR, "PERCENT", 0,
     "Least share of a guest, 1 to 50 (default 1)", 0},
    {"threshold", KEY_THRESHOLD, "PERCENT", 0,
     "Slowdown of a guarantee job that is allowed (default 3)", 0},
    {"static-share", KEY_STATIC, "PERCENT", 0,
     "Guests' share under --policy static (default 50)", 0},
    {"probe", KEY_PROBE, "SECONDS", 0,
     "Time between measurements of a guarantee job without its guests "
     "(default 60)",
     0},
    {"period", KEY_PERIOD, "SECONDS", 0,
     "Time between two looks at the jobs (default 0.2)", 0},
    {"device-memory", KEY_MEMORY, "SIZE", 0,
     "Memory of each GPU and each CPU device that jobs divide (what jobs "
     "report)",
     0},
    {"ttl", KEY_TTL, "SECONDS", 0,
     "Guests fall to the floor when the coordinator is gone for so long "
     "(default 10)",
     0},
    {"run-dir", KEY_RUN_DIR, "DIR", 0, "Run directory ($SLUICE_RUN_DIR)", 0},
    {"dry-run", KEY_DRY_RUN, NULL, 0, "Print decisions, write nothing", 0},
    {"once", KEY_ONCE, NULL, 0, "One look, then end", 0},
    {"quiet", KEY_QUIET, NULL, 0, "Print no decisions", 0},
    {0}};

/* The reader has said what is wrong. */
static double number(const char *name, const char *arg, double min, double max)
{
    double value = 0.0;

    if (sl_parse_float(name, arg, min, max, &value) < 0) {
        exit(SL_EXIT_USAGE);
    }
    return value;
}

static void check_policy(struct argp_state *state, const char *name)
{
    const sl_coord_policy_t *policy;
    size_t i;

    for (i = 0; (policy = sl_coord_policy_at(i)) != NULL; i++) {
        if (strcmp(policy->name, name) == 0) {
            return;
        }
    }
    argp_failure(state, SL_EXIT_USAGE, 0,
                 "--policy %s: there are guarantee-first, fair and static",
                 name);
}

static error_t parse_number(int key, const char *arg, sl_coordinator_t *self)
{
    switch (key) {
    case KEY_FLOOR:
        self->params.floor_percent = number("--floor", arg, 1.0, 50.0);
        break;
    case KEY_THRESHOLD:
        self->params.threshold = number("--threshold", arg, 0.5, 100.0) / 100.0;
        break;
    case KEY_STATIC:
        self->params.static_percent = number("--static-share", arg, 1.0, 99.0);
        break;
    case KEY_PROBE:
        self->params.probe_ns =
            (uint64_t)(number("--probe", arg, 1.0, 86400.0) * 1e9);
        break;
    case KEY_PERIOD:
        self->params.period_ns =
            (uint64_t)(number("--period", arg, 0.02, 60.0) * 1e9);
        break;
    case KEY_TTL:
        self->exchange_params.ttl_ms =
            (uint64_t)(number("--ttl", arg, 1.0, 86400.0) * 1e3);
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    sl_coordinator_t *self = state->input;

    switch (key) {
    case KEY_POLICY:
        self->params.policy = arg;
        check_policy(state, arg);
        return 0;
    case KEY_MEMORY:
        if (sl_parse_bytes("--device-memory", arg,
                           &self->params.capacity_bytes) < 0) {
            exit(SL_EXIT_USAGE);
        }
        return 0;
    case KEY_RUN_DIR:
        self->run_dir = arg;
        return 0;
    case KEY_DRY_RUN:
        self->exchange_params.is_dry_run = 1;
        return 0;
    case KEY_ONCE:
        self->is_once = 1;
        return 0;
    case KEY_QUIET:
        self->is_quiet = 1;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "there is nothing to do with '%s'", arg);
        return EINVAL;
    default:
        return parse_number(key, arg, self);
    }
}

/* ---- what it prints ---- */

static int is_share_told(const sl_control_gate_t *gate,
                         const sl_control_gate_t *old)
{
    return gate->share >= 0.0 && (old == NULL || gate->share != old->share);
}

static int is_limit_told(const sl_control_gate_t *gate,
                         const sl_control_gate_t *old)
{
    return gate->limit_bytes > 0 &&
           (old == NULL || gate->limit_bytes != old->limit_bytes);
}

static void print_gate(const sl_control_gate_t *gate,
                       const sl_control_gate_t *old)
{
    char size[32];

    if (is_share_told(gate, old)) {
        (void)printf("  %s share %.1f", gate->name, gate->share);
    }
    if (is_limit_told(gate, old)) {
        sl_format_bytes(gate->limit_bytes, size, sizeof(size));
        (void)printf("  %s limit %s", gate->name, size);
    }
}

/* Whether a person would see a difference; a new mark is none. */
static int is_visible(const sl_control_order_t *order,
                      const sl_control_order_t *before)
{
    int g;

    if (before == NULL || order->action != before->action ||
        strcmp(order->reason, before->reason) != 0) {
        return 1;
    }
    for (g = 0; g < order->n_gates; g++) {
        const sl_control_gate_t *old =
            sl_pins_gate(before, order->gates[g].name);

        if (is_share_told(&order->gates[g], old) ||
            is_limit_told(&order->gates[g], old)) {
            return 1;
        }
    }
    return 0;
}

static void print_order(void *ctx, const sl_run_id_t *id,
                        const sl_control_order_t *order,
                        const sl_control_order_t *before)
{
    int g;

    (void)ctx;
    if (!is_visible(order, before)) {
        return;
    }
    (void)printf("%s", id->text);
    if (order->action != SL_CONTROL_ACTION_NONE) {
        (void)printf("  %s", sl_control_action_name(order->action));
    } else if (before != NULL && before->action != SL_CONTROL_ACTION_NONE) {
        (void)printf("  goes on");
    }
    for (g = 0; g < order->n_gates; g++) {
        print_gate(&order->gates[g],
                   before == NULL ? NULL
                                  : sl_pins_gate(before, order->gates[g].name));
    }
    if (order->reason[0] != '\0') {
        (void)printf("  (%s)", order->reason);
    }
    (void)printf("\n");
    (void)fflush(stdout);
}

/* ---- the loop ---- */

static sl_status_t open_all(sl_coordinator_t *self)
{
    sl_status_t status;

    SL_TRY(status, sl_coord_create(&self->params, &self->coord), out);
    SL_TRY(status, sl_run_dir_open(self->run_dir, &self->dir), out);
    self->exchange_params.dir = self->dir;
    self->exchange_params.floor_percent = self->params.floor_percent;
    self->exchange_params.on_order = self->is_quiet ? NULL : print_order;
    self->seen = calloc(1, sizeof(*self->seen));
    self->decisions = calloc(1, sizeof(*self->decisions));
    if (self->seen == NULL || self->decisions == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "no host memory for a coordinator");
    }
    SL_TRY(status, sl_exchange_create(&self->exchange_params, &self->exchange),
           out);
    if (stat(sl_run_dir_path(self->dir), &self->identity) != 0) {
        SL_FAIL(status, SL_ERR_IO, out, "cannot look at %s: %s",
                sl_run_dir_path(self->dir), strerror(errno));
    }
    if (!self->exchange_params.is_dry_run) {
        status = sl_run_dir_coordinate(self->dir);
        if (status == SL_ERR_CANCELED) {
            SL_FAIL(status, SL_ERR_CANCELED, out,
                    "there is a coordinator for %s already",
                    sl_run_dir_path(self->dir));
        }
    }
out:
    return status;
}

static void close_all(sl_coordinator_t *self)
{
    sl_exchange_destroy(self->exchange);
    free(self->decisions);
    free(self->seen);
    sl_run_dir_close(self->dir);
    sl_coord_destroy(self->coord);
}

/* Someone may remove the directory, or put another one in its place: then
 * jobs are not where this coordinator looks. */
static sl_status_t check_directory(const sl_coordinator_t *self)
{
    struct stat now;
    sl_status_t status = SL_OK;

    if (stat(sl_run_dir_path(self->dir), &now) != 0 ||
        now.st_ino != self->identity.st_ino ||
        now.st_dev != self->identity.st_dev) {
        SL_FAIL(status, SL_ERR_IO, out,
                "the run directory %s was removed; start the coordinator "
                "again",
                sl_run_dir_path(self->dir));
    }
out:
    return status;
}

static sl_status_t look(sl_coordinator_t *self)
{
    const uint64_t now_ns = sl_clock_ns();
    const uint64_t second_ns = UINT64_C(1000000000);
    sl_status_t status = SL_OK;

    sl_exchange_read(self->exchange, now_ns, self->seen);
    sl_coord_step(self->coord, self->seen, self->decisions);
    sl_exchange_write(self->exchange, self->seen, self->decisions);
    if (now_ns - self->report_ns < second_ns) {
        return SL_OK;
    }
    self->report_ns = now_ns;
    SL_TRY(status, check_directory(self), out);
    if (!self->exchange_params.is_dry_run &&
        sl_coord_report_write(self->dir, self->params.policy, self->seen,
                              self->decisions) < 0) {
        sl_debug("cannot write the report: %s", sl_last_error());
    }
out:
    return status;
}

/* Until the next look: a new job is answered at once. */
static void wait_for_news(const sl_coordinator_t *self)
{
    struct pollfd fd;
    char events[4096];

    fd.fd = sl_run_dir_watch_fd(self->dir);
    fd.events = POLLIN;
    if (poll(&fd, fd.fd >= 0 ? 1 : 0, (int)(self->params.period_ns / MS_NS)) >
        0) {
        while (read(fd.fd, events, sizeof(events)) > 0) {
        }
    }
}

static void catch_signals(void)
{
    struct sigaction action;

    memset(&action, 0, sizeof(action));
    action.sa_handler = on_signal;
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
    action.sa_handler = SIG_IGN; /* a closed pipe is no reason to end */
    (void)sigaction(SIGPIPE, &action, NULL);
}

static sl_status_t run(sl_coordinator_t *self)
{
    sl_status_t status;

    SL_TRY(status, open_all(self), out);
    catch_signals();
    if (!self->is_quiet) {
        (void)printf("coordinator of %s, policy %s%s\n",
                     sl_run_dir_path(self->dir), self->params.policy,
                     self->exchange_params.is_dry_run ? ", dry run" : "");
        (void)fflush(stdout);
    }
    do {
        SL_TRY(status, look(self), out);
        if (!self->is_once && !is_ended) {
            wait_for_news(self);
        }
    } while (!self->is_once && !is_ended);
out:
    return status;
}

int sl_command_coordinator(int argc, char **argv)
{
    const struct argp argp = {
        .options = option_table,
        .parser = parse_option,
        .doc = "Move the memory limits and compute shares of all jobs of a "
               "run directory, in the foreground until SIGTERM or Ctrl-C. "
               "Jobs outlive it: guarantee jobs keep what they have, guests "
               "fall to the floor after a while, and a new coordinator takes "
               "over.\vWhat `sluice ctl` or anybody else wrote into a job's "
               "control.json stays as it is."};
    sl_coordinator_t self;
    sl_status_t status = SL_ERR_INVALID_ARG;

    memset(&self, 0, sizeof(self));
    sl_coord_params_default(&self.params);
    self.exchange_params.ttl_ms = 10000;
    argv[0] = command;
    argp_err_exit_status = SL_EXIT_USAGE;
    if (argp_parse(&argp, argc, argv, 0, NULL, &self) == 0) {
        status = run(&self);
    }
    close_all(&self);
    return sl_exit_status(status);
}
