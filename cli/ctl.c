/* SPDX-License-Identifier: Apache-2.0 */
/* `sluice ctl`: jobs, and their gates by hand. */
#include <argp.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/parse.h"
#include "cli/commands.h"
#include "cli/gpu_use.h"
#include "scheduler/coordinator/pins.h"
#include "scheduler/coordinator/priority.h"

enum {
    KEY_RUN_DIR = 1000,
    MAX_WORDS = 4,
    MAX_JOBS = 256,
    MAX_TRIES = 5,
    ANSWER_MS = 2000,
    LOOK_MS = 20,
    MS_NS = 1000000,
    EXIT_NO_ANSWER = 3
};

static char command[] = "sluice ctl"; /* argp wants it writable */

typedef struct sl_ctl sl_ctl_t;

/* A verb: what follows it, and what it does to a job's order. */
typedef struct sl_ctl_verb {
    const char *name;
    int n_words; /* with the verb */
    const char *usage;
    void (*change)(const sl_ctl_t *ctl, sl_control_order_t *order,
                   sl_pins_t *pins);
} sl_ctl_verb_t;

struct sl_ctl {
    const char *run_dir; /* NULL = default */
    int n_words;
    const char *words[MAX_WORDS];
    const sl_ctl_verb_t *verb;
    sl_run_dir_t *dir;
    sl_run_id_t id;
    sl_control_job_t job;
    sl_control_status_t status;
    int has_coordinator;
    int first, last;      /* devices the verb is about */
    double percent;       /* negative = automatic */
    uint64_t limit_bytes; /* 0 = automatic */
};

/* ---- the verbs ---- */

/* The order's gate for the job's d-th device, made when absent. */
static sl_control_gate_t *gate_of(const sl_ctl_t *ctl,
                                  sl_control_order_t *order, int d)
{
    const char *name = ctl->job.devices[d].name;
    sl_control_gate_t *gate;
    int g;

    for (g = 0; g < order->n_gates; g++) {
        if (strcmp(order->gates[g].name, name) == 0) {
            return &order->gates[g];
        }
    }
    gate = &order->gates[order->n_gates++];
    memset(gate, 0, sizeof(*gate));
    (void)snprintf(gate->name, sizeof(gate->name), "%s", name);
    gate->share = -1.0;
    return gate;
}

static void change_share(const sl_ctl_t *ctl, sl_control_order_t *order,
                         sl_pins_t *pins)
{
    int d;

    for (d = ctl->first; d <= ctl->last; d++) {
        sl_control_gate_t *gate = gate_of(ctl, order, d);

        if (ctl->percent >= 0.0) {
            pins->shares |= UINT64_C(1) << d;
            gate->share = ctl->percent;
        } else {
            pins->shares &= ~(UINT64_C(1) << d);
            gate->share = ctl->has_coordinator ? gate->share : 100.0;
        }
    }
}

static void change_limit(const sl_ctl_t *ctl, sl_control_order_t *order,
                         sl_pins_t *pins)
{
    int d;

    for (d = ctl->first; d <= ctl->last; d++) {
        sl_control_gate_t *gate = gate_of(ctl, order, d);

        if (ctl->limit_bytes > 0) {
            pins->limits |= UINT64_C(1) << d;
            gate->limit_bytes = ctl->limit_bytes;
        } else {
            pins->limits &= ~(UINT64_C(1) << d);
            gate->limit_bytes = ctl->has_coordinator
                                    ? gate->limit_bytes
                                    : ctl->job.devices[d].capacity_bytes;
        }
    }
}

static void change_suspend(const sl_ctl_t *ctl, sl_control_order_t *order,
                           sl_pins_t *pins)
{
    (void)ctl;
    pins->is_held = 1;
    order->action = SL_CONTROL_ACTION_WAIT;
}

/* A share of 0 that was set by hand suspends too. */
static void change_resume(const sl_ctl_t *ctl, sl_control_order_t *order,
                          sl_pins_t *pins)
{
    int d;

    if (pins->is_held && order->action == SL_CONTROL_ACTION_WAIT) {
        order->action = SL_CONTROL_ACTION_NONE;
    }
    pins->is_held = 0;
    for (d = 0; d < ctl->job.n_devices; d++) {
        sl_control_gate_t *gate = gate_of(ctl, order, d);

        if (gate->share == 0.0) {
            pins->shares &= ~(UINT64_C(1) << d);
            gate->share = ctl->has_coordinator ? order->floor_share : 100.0;
        }
    }
}

static void change_promote(const sl_ctl_t *ctl, sl_control_order_t *order,
                           sl_pins_t *pins)
{
    int d;

    (void)pins;
    order->job_class = SL_JOB_CLASS_GUARANTEE;
    for (d = 0; d < ctl->job.n_devices && !ctl->has_coordinator; d++) {
        gate_of(ctl, order, d)->share = 100.0;
    }
}

static void change_demote(const sl_ctl_t *ctl, sl_control_order_t *order,
                          sl_pins_t *pins)
{
    (void)ctl;
    (void)pins;
    order->job_class = SL_JOB_CLASS_OPPORTUNISTIC;
}

static const sl_ctl_verb_t verbs[] = {
    {"list", 1, "list", NULL},
    {"limit", 4, "limit JOB DEVICE SIZE|auto", change_limit},
    {"share", 4, "share JOB DEVICE PERCENT|auto", change_share},
    {"suspend", 2, "suspend JOB", change_suspend},
    {"resume", 2, "resume JOB", change_resume},
    {"promote", 2, "promote JOB", change_promote},
    {"demote", 2, "demote JOB", change_demote},
};

enum {
    N_VERBS = sizeof(verbs) / sizeof(*verbs)
};

/* ---- list ---- */

/* "  cuda:0 (GPU-1a2b3c4d) 40.0% 2.00 GiB" */
static void print_device(const sl_control_job_t *job,
                         const sl_control_device_status_t *device)
{
    char gpu[SL_GPU_ID_BYTES], size[32];

    sl_gpu_short_id(sl_gpu_id(job, device->name), gpu);
    sl_format_bytes(device->limit_bytes, size, sizeof(size));
    (void)printf("  %s%s%s%s %.1f%% %s", device->name,
                 gpu[0] == '\0' ? "" : " (", gpu, gpu[0] == '\0' ? "" : ")",
                 device->share_asked, size);
}

static void print_job(sl_run_dir_t *dir, const sl_run_id_t *id, int width)
{
    sl_control_status_t *status = malloc(sizeof(*status));
    sl_control_job_t job;
    int d;

    if (sl_run_job_read(dir, id, &job) < 0) {
        memset(&job, 0, sizeof(job)); /* its GPUs are not told then */
    }
    if (status != NULL && sl_run_status_read(dir, id, status) >= 0) {
        (void)printf("%-*s  %-13s  %-9s  step %" PRIu64, width, id->text,
                     sl_job_class_name(status->job_class),
                     sl_job_state_name(status->state), status->step);
        for (d = 0; d < status->n_devices; d++) {
            print_device(&job, &status->devices[d]);
        }
        (void)printf("%s%s\n", status->reason[0] == '\0' ? "" : "  ",
                     status->reason);
    }
    free(status);
}

static int list(const sl_ctl_t *ctl)
{
    static sl_run_id_t ids[MAX_JOBS];
    size_t i, n = sl_run_dir_list(ctl->dir, ids, MAX_JOBS);
    int width = 0;

    if (n == 0) {
        (void)printf("no jobs in %s\n", sl_run_dir_path(ctl->dir));
    }
    n = n < MAX_JOBS ? n : MAX_JOBS;
    for (i = 0; i < n; i++) {
        const int bytes = (int)strlen(ids[i].text);

        width = bytes > width ? bytes : width;
    }
    for (i = 0; i < n; i++) {
        print_job(ctl->dir, &ids[i], width);
    }
    return 0;
}

/* ---- which job, which device, what value ---- */

/* The id itself, or the start of exactly one. */
static int find_job(sl_ctl_t *ctl)
{
    static sl_run_id_t ids[MAX_JOBS];
    const char *word = ctl->words[1];
    size_t i, n = sl_run_dir_list(ctl->dir, ids, MAX_JOBS);
    int n_found = 0;

    n = n < MAX_JOBS ? n : MAX_JOBS;
    for (i = 0; i < n; i++) {
        if (strncmp(ids[i].text, word, strlen(word)) == 0) {
            ctl->id = ids[i];
            n_found++;
            if (strcmp(ids[i].text, word) == 0) {
                return 0;
            }
        }
    }
    if (n_found == 1) {
        return 0;
    }
    (void)fprintf(stderr,
                  n_found == 0 ? "sluice ctl: there is no job '%s' in %s%s\n"
                               : "sluice ctl: '%s' is the start of more than "
                                 "one job in %s%s\n",
                  word, sl_run_dir_path(ctl->dir),
                  n == 0 ? "" : "; there are:");
    for (i = 0; i < n; i++) {
        (void)fprintf(stderr, "  %s\n", ids[i].text);
    }
    return 1;
}

static int find_device(sl_ctl_t *ctl)
{
    int d;

    ctl->first = 0;
    ctl->last = ctl->job.n_devices - 1;
    if (strcmp(ctl->words[2], "all") == 0) {
        return 0;
    }
    for (d = 0; d < ctl->job.n_devices; d++) {
        if (strcmp(ctl->job.devices[d].name, ctl->words[2]) == 0) {
            ctl->first = ctl->last = d;
            return 0;
        }
    }
    (void)fprintf(stderr, "sluice ctl: %s has no device '%s'; it has",
                  ctl->id.text, ctl->words[2]);
    for (d = 0; d < ctl->job.n_devices; d++) {
        (void)fprintf(stderr, "%s %s", d == 0 ? "" : ",",
                      ctl->job.devices[d].name);
    }
    (void)fprintf(stderr, " (or all)\n");
    return SL_EXIT_USAGE;
}

static int check_capacity(const sl_ctl_t *ctl)
{
    char asked[32], had[32];
    int d;

    for (d = ctl->first; d <= ctl->last; d++) {
        if (ctl->limit_bytes > ctl->job.devices[d].capacity_bytes) {
            sl_format_bytes(ctl->limit_bytes, asked, sizeof(asked));
            sl_format_bytes(ctl->job.devices[d].capacity_bytes, had,
                            sizeof(had));
            (void)fprintf(stderr,
                          "sluice ctl: a limit of %s, but %s of this job has "
                          "at most %s\n",
                          asked, ctl->job.devices[d].name, had);
            return SL_EXIT_USAGE;
        }
    }
    return 0;
}

/* The readers of numbers say what is wrong. */
static int read_value(sl_ctl_t *ctl)
{
    const char *word = ctl->words[3];

    if (strcmp(word, "auto") == 0) {
        ctl->percent = -1.0;
        ctl->limit_bytes = 0;
        return 0;
    }
    if (strcmp(ctl->verb->name, "share") == 0) {
        return sl_parse_float("PERCENT", word, 0.0, 100.0, &ctl->percent) < 0
                   ? SL_EXIT_USAGE
                   : 0;
    }
    if (sl_parse_bytes("SIZE", word, &ctl->limit_bytes) < 0) {
        return SL_EXIT_USAGE;
    }
    if (ctl->limit_bytes == 0) {
        (void)fprintf(stderr, "sluice ctl: a limit of 0: at least 1 byte; "
                              "`sluice ctl suspend` stops a job\n");
        return SL_EXIT_USAGE;
    }
    return check_capacity(ctl);
}

/* ---- writing ---- */

/* A name that the job does not have would have it refuse the whole order. */
static void drop_unknown(const sl_control_job_t *job, sl_control_order_t *order)
{
    int g, d, n = 0;

    for (g = 0; g < order->n_gates; g++) {
        for (d = 0; d < job->n_devices; d++) {
            if (strcmp(job->devices[d].name, order->gates[g].name) == 0) {
                order->gates[n++] = order->gates[g];
                break;
            }
        }
    }
    if (n < order->n_gates) { /* yields go by the gate's number: they stay */
        order->n_yields = 0;
        for (g = 0; g < n; g++) {
            order->gates[g].has_yields = 0;
        }
    }
    order->n_gates = n;
}

static void read_order(const sl_ctl_t *ctl, sl_control_order_t *order,
                       sl_pins_t *pins)
{
    sl_control_order_default(order);
    memset(pins, 0, sizeof(*pins));
    if (sl_run_order_read(ctl->dir, &ctl->id, order) >= 0) {
        sl_pins_read(order, &ctl->job, pins);
        drop_unknown(&ctl->job, order);
    }
}

/* Whether the order in the file says what this command wanted. A coordinator
 * may have written between our look and our order. */
static int is_in_file(const sl_ctl_t *ctl, const sl_control_order_t *wanted,
                      const sl_pins_t *pins)
{
    sl_control_order_t order;
    sl_pins_t now;
    int d;

    read_order(ctl, &order, &now);
    if (now.shares != pins->shares || now.limits != pins->limits ||
        now.is_held != pins->is_held || order.job_class != wanted->job_class) {
        return 0;
    }
    for (d = 0; d < ctl->job.n_devices; d++) {
        const char *name = ctl->job.devices[d].name;
        const sl_control_gate_t *a = sl_pins_gate(&order, name);
        const sl_control_gate_t *b = sl_pins_gate(wanted, name);

        if (((pins->shares >> d & 1) != 0 && a->share != b->share) ||
            ((pins->limits >> d & 1) != 0 &&
             a->limit_bytes != b->limit_bytes)) {
            return 0;
        }
    }
    return 1;
}

static void pause_ms(int ms)
{
    const struct timespec time = {0, (long)ms * MS_NS};

    (void)nanosleep(&time, NULL);
}

/* Until the job has accepted this order or a later one. */
static int wait_for_answer(sl_ctl_t *ctl, uint64_t sequence)
{
    const uint64_t end_ns = sl_clock_ns() + (uint64_t)ANSWER_MS * MS_NS;

    do {
        if (sl_run_status_read(ctl->dir, &ctl->id, &ctl->status) ==
            SL_ERR_NOT_FOUND) {
            return 0;
        }
        if (ctl->status.accepted_sequence >= sequence) {
            return 1;
        }
        pause_ms(LOOK_MS);
    } while (sl_clock_ns() < end_ns);
    return 0;
}

static sl_status_t write_once(sl_ctl_t *ctl, sl_control_order_t *order,
                              sl_pins_t *pins)
{
    read_order(ctl, order, pins);
    ctl->verb->change(ctl, order, pins);
    if (order->sequence < ctl->status.accepted_sequence) {
        order->sequence = ctl->status.accepted_sequence;
    }
    order->sequence++;
    if (!ctl->has_coordinator) {
        order->ttl_ms = 0; /* nobody would write it again */
    }
    (void)snprintf(order->reason, sizeof(order->reason), "%s by hand",
                   ctl->verb->name);
    sl_pins_token(pins, SL_PINS_CTL, order->writer_token);
    sl_pins_keep(pins, &ctl->job, order);
    return sl_run_order_write(ctl->dir, &ctl->id, order);
}

/* A guarantee job that was a guest is not for idle cores only. A coordinator
 * sees to that where there is one. */
static void leave_background(const sl_ctl_t *ctl)
{
    if (ctl->verb->change == change_promote && !ctl->has_coordinator &&
        sl_priority_set(&ctl->job, 0) < 0) {
        (void)fprintf(stderr, "sluice ctl: %s: %s\n", ctl->id.text,
                      sl_last_error());
    }
}

static int change_job(sl_ctl_t *ctl)
{
    sl_control_order_t order;
    sl_pins_t pins;
    int attempt, has_answered;

    for (attempt = 0; attempt < MAX_TRIES; attempt++) {
        if (write_once(ctl, &order, &pins) < 0) {
            return sl_exit_status(SL_ERR_IO);
        }
        has_answered = wait_for_answer(ctl, order.sequence);
        if (is_in_file(ctl, &order, &pins)) {
            leave_background(ctl);
            if (!has_answered) {
                (void)fprintf(stderr,
                              "sluice ctl: written, but %s has not answered "
                              "within %d ms\n",
                              ctl->id.text, (int)ANSWER_MS);
                return EXIT_NO_ANSWER;
            }
            return 0;
        }
    }
    (void)fprintf(stderr,
                  "sluice ctl: %s was written by others each time; try again\n",
                  ctl->id.text);
    return 1;
}

static int open_job(sl_ctl_t *ctl)
{
    if (sl_run_job_read(ctl->dir, &ctl->id, &ctl->job) < 0 ||
        sl_run_status_read(ctl->dir, &ctl->id, &ctl->status) < 0) {
        return sl_exit_status(SL_ERR_IO);
    }
    ctl->has_coordinator = sl_run_dir_has_coordinator(ctl->dir);
    return 0;
}

static int run(sl_ctl_t *ctl)
{
    int result;

    if (sl_run_dir_open(ctl->run_dir, &ctl->dir) < 0) {
        return sl_exit_status(SL_ERR_IO);
    }
    if (ctl->verb->change == NULL) {
        return list(ctl);
    }
    result = find_job(ctl);
    if (result == 0) {
        result = open_job(ctl);
    }
    if (result == 0 && ctl->n_words == MAX_WORDS) {
        result = find_device(ctl);
        if (result == 0) {
            result = read_value(ctl);
        }
    }
    return result != 0 ? result : change_job(ctl);
}

/* ---- options ---- */

static const struct argp_option option_table[] = {
    {"run-dir", KEY_RUN_DIR, "DIR", 0, "Run directory ($SLUICE_RUN_DIR)", 0},
    {0}};

static void find_verb(struct argp_state *state, sl_ctl_t *ctl)
{
    int v;

    for (v = 0; v < N_VERBS && ctl->n_words > 0; v++) {
        if (strcmp(verbs[v].name, ctl->words[0]) == 0) {
            ctl->verb = &verbs[v];
        }
    }
    if (ctl->n_words == 0) {
        argp_error(state, "say list, limit, share, suspend, resume, promote "
                          "or demote");
    } else if (ctl->verb == NULL) {
        argp_error(state,
                   "there is no '%s'; there are list, limit, share, suspend, "
                   "resume, promote and demote",
                   ctl->words[0]);
    } else if (ctl->n_words != ctl->verb->n_words) {
        argp_error(state, "it is `sluice ctl %s`", ctl->verb->usage);
    }
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    sl_ctl_t *ctl = state->input;

    switch (key) {
    case KEY_RUN_DIR:
        ctl->run_dir = arg;
        return 0;
    case ARGP_KEY_ARG:
        if (ctl->n_words == MAX_WORDS) {
            argp_error(state, "too many words from '%s' on", arg);
            return EINVAL;
        }
        ctl->words[ctl->n_words++] = arg;
        return 0;
    case ARGP_KEY_END:
        find_verb(state, ctl);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* A value that begins with a minus is no option, but one to refuse with the
 * range: it and what follows go behind a "--". */
static char **mark_values(int *argc_p, char **argv)
{
    static char end_of_options[] = "--";
    const int n = *argc_p;
    char **marked = calloc((size_t)n + 2, sizeof(*marked));
    int i, at;

    for (at = 1; at < n && strcmp(argv[at], end_of_options) != 0; at++) {
        if (argv[at][0] == '-' && argv[at][1] != '\0' &&
            strchr("0123456789.", argv[at][1]) != NULL) {
            break;
        }
    }
    if (marked == NULL || at == n || argv[at] == NULL ||
        strcmp(argv[at], end_of_options) == 0) {
        free(marked);
        return NULL;
    }
    for (i = 0; i < n; i++) {
        marked[i + (i >= at)] = argv[i];
    }
    marked[at] = end_of_options;
    *argc_p = n + 1;
    return marked;
}

int sl_command_ctl(int argc, char **argv)
{
    const struct argp argp = {
        .options = option_table,
        .parser = parse_option,
        .args_doc = "list\nlimit JOB DEVICE SIZE|auto\n"
                    "share JOB DEVICE PERCENT|auto\nsuspend JOB\nresume JOB\n"
                    "promote JOB\ndemote JOB",
        .doc = "Show jobs, or set a job's memory limit or compute share by "
               "hand, suspend it, or change its class. A coordinator leaves "
               "what was set by hand until it is set to auto.\v"
               "JOB is a job's id as `list` shows it, or a start of it that "
               "is no other's. DEVICE may be all.\n"
               "Exit status: 0 done and answered by the job, 1 failed, 2 "
               "wrong usage, 3 written but not answered within 2 s."};
    sl_ctl_t *ctl = calloc(1, sizeof(*ctl));
    char **marked;
    int result = 1;

    argv[0] = command;
    argp_err_exit_status = SL_EXIT_USAGE;
    marked = mark_values(&argc, argv);
    argv = marked == NULL ? argv : marked;
    if (ctl != NULL && argp_parse(&argp, argc, argv, 0, NULL, ctl) == 0) {
        result = run(ctl);
        sl_run_dir_close(ctl->dir);
    }
    free(marked);
    free(ctl);
    return result;
}
