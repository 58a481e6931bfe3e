/* SPDX-License-Identifier: Apache-2.0 */
/* `sluice top`: all jobs of a run directory, live. */
#include <argp.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "base/parse.h"
#include "cli/commands.h"
#include "cli/gpu_use.h"
#include "cli/table.h"
#include "scheduler/coordinator/exchange.h"

enum {
    KEY_RUN_DIR = 1000,
    KEY_JSON,
    KEY_EVERY,
    KEY_ONCE,
    LINE_BYTES = 512,
    ID_COLUMNS = 28
};

static char command[] = "sluice top"; /* argp wants it writable */
static volatile sig_atomic_t is_ended;

typedef struct sl_top {
    const char *run_dir; /* NULL = default */
    int is_json, is_once;
    double every_s;
    sl_run_dir_t *dir;
    sl_nvml_t *nvml; /* NULL: no GPUs to show */
    /* the latest look */
    int n_jobs;
    size_t n_all; /* may be more than the table has room for */
    sl_run_id_t ids[SL_COORD_MAX_JOBS];
    sl_control_job_t jobs[SL_COORD_MAX_JOBS];
    sl_control_status_t status[SL_COORD_MAX_JOBS];
    int has_gpus; /* some job's device is a GPU, or a part of one */
    int has_coordinator;
    sl_coord_report_t report;
} sl_top_t;

static void on_signal(int signal_number)
{
    (void)signal_number;
    is_ended = 1;
}

/* ---- what there is ---- */

static void look_at_gpus(sl_top_t *top, int i)
{
    int d;

    if (sl_run_job_read(top->dir, &top->ids[i], &top->jobs[i]) < 0) {
        memset(&top->jobs[i], 0, sizeof(top->jobs[i]));
    }
    for (d = 0; d < top->jobs[i].n_devices; d++) {
        top->has_gpus |= top->jobs[i].devices[d].gpu_id[0] != '\0';
    }
}

static void look(sl_top_t *top)
{
    size_t i, n;

    top->n_all = sl_run_dir_list(top->dir, top->ids, SL_COORD_MAX_JOBS);
    n = top->n_all < SL_COORD_MAX_JOBS ? top->n_all : SL_COORD_MAX_JOBS;
    top->n_jobs = 0;
    top->has_gpus = 0;
    for (i = 0; i < n; i++) {
        if (sl_run_status_read(top->dir, &top->ids[i],
                               &top->status[top->n_jobs]) >= 0) {
            top->ids[top->n_jobs] = top->ids[i];
            look_at_gpus(top, top->n_jobs++);
        }
    }
    top->has_coordinator = sl_run_dir_has_coordinator(top->dir);
    if (sl_coord_report_read(top->dir, &top->report) < 0) {
        memset(&top->report, 0, sizeof(top->report));
    }
}

static const sl_coord_report_job_t *find_report(const sl_top_t *top, int i)
{
    int j;

    for (j = 0; j < top->report.n_jobs; j++) {
        if (strcmp(top->report.jobs[j].id.text, top->ids[i].text) == 0) {
            return &top->report.jobs[j];
        }
    }
    return NULL;
}

/* ---- as a table ---- */

/* "12.3 ms" */
static void format_time(double us, char *text, size_t bytes)
{
    if (us <= 0.0) {
        (void)snprintf(text, bytes, "-");
    } else if (us < 1e3) {
        (void)snprintf(text, bytes, "%.0f us", us);
    } else if (us < 1e6) {
        (void)snprintf(text, bytes, "%.1f ms", us * 1e-3);
    } else {
        (void)snprintf(text, bytes, "%.2f s", us * 1e-6);
    }
}

static void format_slowdown(const sl_top_t *top, int i, char *text,
                            size_t bytes)
{
    const sl_coord_report_job_t *report = find_report(top, i);

    if (report == NULL || report->slowdown <= 0.0) {
        (void)snprintf(text, bytes, "-");
    } else {
        (void)snprintf(text, bytes, "%+.1f%%",
                       100.0 * (report->slowdown - 1.0));
    }
}

static void head(const sl_top_t *top, char line[LINE_BYTES])
{
    (void)snprintf(line, LINE_BYTES, "sluice top  %.120s  %zu job%s  %s%s",
                   sl_run_dir_path(top->dir), top->n_all,
                   top->n_all == 1 ? "" : "s",
                   top->has_coordinator ? "coordinator " : "no coordinator",
                   top->report.policy);
}

/* What says most comes last to go. */
static const sl_table_column_t columns[] = {
    {"JOB", -28, 0, 0},  {"CLASS", -13, 1, 5},  {"STATE", -9, 1, 0},
    {"STEP", 9, 1, 0},   {"DEVICE", -6, 2, 0},  {"GPU", -12, 1, 6},
    {"ASKED", 6, 1, 0},  {"GOT", 6, 1, 0},      {"USED", 10, 2, 0},
    {"LIMIT", 10, 1, 0}, {"ON HOST", 10, 1, 4}, {"MEDIAN", 9, 2, 1},
    {"P99", 9, 1, 2},    {"SLOWER", 7, 1, 3}};

enum {
    N_COLUMNS = sizeof(columns) / sizeof(*columns),
    GPU_COLUMN = 5
};

static void fill_row(const sl_top_t *top, int i, int d, sl_table_t *table)
{
    const sl_control_status_t *status = &top->status[i];
    const sl_control_device_status_t *device = &status->devices[d];
    char median[32], p99[32], slower[32], step[32];

    format_time(status->median_us, median, sizeof(median));
    format_time(status->p99_us, p99, sizeof(p99));
    format_slowdown(top, i, slower, sizeof(slower));
    (void)snprintf(step, sizeof(step), "%" PRIu64, status->step);
    sl_table_row(table);
    sl_table_cell(table, "%.*s", ID_COLUMNS, d == 0 ? top->ids[i].text : "");
    sl_table_cell(table, "%s",
                  d == 0 ? sl_job_class_name(status->job_class) : "");
    sl_table_cell(table, "%s", d == 0 ? sl_job_state_name(status->state) : "");
    sl_table_cell(table, "%s", d == 0 ? step : "");
    sl_table_cell(table, "%s", device->name);
    if (top->has_gpus) {
        char gpu[SL_GPU_ID_BYTES];

        sl_gpu_short_id(sl_gpu_id(&top->jobs[i], device->name), gpu);
        sl_table_cell(table, "%s", gpu);
    }
    sl_table_cell(table, "%.1f%%", device->share_asked);
    sl_table_cell(table, "%.1f%%", device->share_achieved);
    sl_table_bytes(table, device->used_bytes);
    sl_table_bytes(table, device->limit_bytes);
    sl_table_bytes(table, device->host_used_bytes);
    sl_table_cell(table, "%s", d == 0 ? median : "");
    sl_table_cell(table, "%s", d == 0 ? p99 : "");
    sl_table_cell(table, "%s", d == 0 ? slower : "");
}

/* All jobs, as text. NULL without memory. */
static char *make_table(const sl_top_t *top, int width)
{
    sl_table_column_t shown[N_COLUMNS];
    sl_table_t *table;
    char *text;
    int i, d, n = 0;

    for (i = 0; i < N_COLUMNS; i++) {
        if (i != GPU_COLUMN || top->has_gpus) {
            shown[n++] = columns[i];
        }
    }
    table = sl_table_create(shown, n);
    for (i = 0; i < top->n_jobs; i++) {
        for (d = 0; d < top->status[i].n_devices; d++) {
            fill_row(top, i, d, table);
        }
        if (top->status[i].reason[0] != '\0') {
            sl_table_row(table);
            sl_table_note(table, "  %s", top->status[i].reason);
        }
    }
    text = sl_table_format(table, width);
    sl_table_destroy(table);
    return text;
}

/* Print a line, cut to the terminal's width where it is live. */
static void put(const char *line, int n_bytes, int width, int is_live)
{
    if (is_live) {
        (void)printf("%.*s\x1b[K\r\n", n_bytes < width ? n_bytes : width, line);
    } else {
        (void)printf("%.*s\n", n_bytes, line);
    }
}

/* GPUs with everybody's use of them, at most `n_max` of them. */
static void put_gpus(const sl_top_t *top, int width, int n_max, int is_live)
{
    const int n = top->nvml == NULL ? 0 : sl_nvml_count(top->nvml);
    char line[LINE_BYTES], use[256];
    int i;

    for (i = 0; i < n && i < n_max; i++) {
        json_t *facts = sl_gpu_use_of(top->nvml, i);

        sl_gpu_use_text(facts, use, sizeof(use));
        json_decref(facts);
        (void)snprintf(line, sizeof(line), "gpu %d  %s", i, use);
        put(line, (int)strlen(line), width, is_live);
    }
}

/* `height` lines at most; 0 = all, and not live. */
static void print_table(const sl_top_t *top, int width, int height)
{
    char line[LINE_BYTES];
    char *text = make_table(top, width);
    const char *at = text;
    int n = 2;

    head(top, line);
    put(line, (int)strlen(line), width, height > 0);
    while (at != NULL && *at != '\0' && (height == 0 || n++ < height)) {
        const int n_bytes = (int)strcspn(at, "\n");

        put(at, n_bytes, width, height > 0);
        at += n_bytes + (at[n_bytes] == '\n');
    }
    put_gpus(top, width, height > 0 ? height - n : INT_MAX, height > 0);
    free(text);
}

/* ---- as JSON ---- */

static json_t *device_to_json(const sl_control_job_t *job,
                              const sl_control_device_status_t *device)
{
    return json_pack("{s:s, s:s, s:f, s:f, s:I, s:I, s:I, s:I, s:I}", "name",
                     device->name, "gpu", sl_gpu_id(job, device->name),
                     "share_asked", device->share_asked, "share_achieved",
                     device->share_achieved, "limit_bytes",
                     (json_int_t)device->limit_bytes, "held_bytes",
                     (json_int_t)device->held_bytes, "used_bytes",
                     (json_int_t)device->used_bytes, "host_used_bytes",
                     (json_int_t)device->host_used_bytes, "n_ops",
                     (json_int_t)device->n_ops);
}

static json_t *job_to_json(const sl_top_t *top, int i)
{
    const sl_control_status_t *status = &top->status[i];
    const sl_coord_report_job_t *report = find_report(top, i);
    json_t *devices = json_array();
    json_t *job;
    int d;

    for (d = 0; d < status->n_devices; d++) {
        (void)json_array_append_new(
            devices, device_to_json(&top->jobs[i], &status->devices[d]));
    }
    job = json_pack(
        "{s:s, s:s, s:s, s:s, s:I, s:f, s:f, s:f, s:s, s:o}", "id",
        top->ids[i].text, "class", sl_job_class_name(status->job_class),
        "state", sl_job_state_name(status->state), "reason", status->reason,
        "step", (json_int_t)status->step, "median_us", status->median_us,
        "p99_us", status->p99_us, "units_per_s", status->units_per_s, "unit",
        status->unit, "devices", devices);
    if (job != NULL && report != NULL) {
        (void)json_object_set_new(job, "baseline_us",
                                  json_real(report->baseline_us));
        (void)json_object_set_new(job, "slowdown", json_real(report->slowdown));
    }
    return job;
}

static sl_status_t print_json(const sl_top_t *top)
{
    json_t *jobs = json_array();
    json_t *root;
    sl_status_t status = SL_OK;
    int i;

    for (i = 0; i < top->n_jobs; i++) {
        (void)json_array_append_new(jobs, job_to_json(top, i));
    }
    root =
        json_pack("{s:s, s:b, s:s, s:o}", "run_dir", sl_run_dir_path(top->dir),
                  "coordinator", top->has_coordinator, "policy",
                  top->report.policy, "jobs", jobs);
    if (root == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "no host memory for JSON");
    }
    if (top->nvml != NULL) {
        (void)json_object_set_new(root, "gpus", sl_gpu_use_json(top->nvml));
    }
    (void)json_dumpf(root, stdout,
                     (top->is_once ? JSON_INDENT(1) : JSON_COMPACT) |
                         JSON_REAL_PRECISION(9));
    (void)printf("\n");
    json_decref(root);
out:
    return status;
}

/* ---- live ---- */

static struct termios saved;
static int is_saved;

static void enter_terminal(void)
{
    struct termios raw;

    if (tcgetattr(STDIN_FILENO, &saved) == 0) {
        is_saved = 1;
        raw = saved;
        raw.c_lflag &= (tcflag_t) ~(ICANON | ECHO);
        (void)tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    }
    (void)printf("\x1b[?1049h\x1b[?25l"); /* other screen, no cursor */
}

static void leave_terminal(void)
{
    (void)printf("\x1b[?25h\x1b[?1049l");
    (void)fflush(stdout);
    if (is_saved) {
        (void)tcsetattr(STDIN_FILENO, TCSANOW, &saved);
    }
}

static void terminal_size(int *width_p, int *height_p)
{
    struct winsize size;

    *width_p = 80;
    *height_p = 24;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 &&
        size.ws_row > 0) {
        *width_p = size.ws_col;
        *height_p = size.ws_row;
    }
}

/* Sleep; a 'q' or the end of the input ends the display. */
static void wait_for_key(double seconds)
{
    struct pollfd fd = {STDIN_FILENO, POLLIN, 0};
    char key;

    if (poll(&fd, 1, (int)(seconds * 1e3)) > 0 &&
        (read(STDIN_FILENO, &key, 1) != 1 || key == 'q' || key == 'Q')) {
        is_ended = 1;
    }
}

static void show_live(sl_top_t *top)
{
    int width, height;

    enter_terminal();
    while (!is_ended) {
        look(top);
        terminal_size(&width, &height);
        (void)printf("\x1b[H");
        /* the last column is left free: it is where lines are wrapped */
        print_table(top, width - 1, height);
        (void)printf("\x1b[J");
        (void)fflush(stdout);
        wait_for_key(top->every_s);
    }
    leave_terminal();
}

static void catch_signals(void)
{
    struct sigaction action;

    memset(&action, 0, sizeof(action));
    action.sa_handler = on_signal;
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
}

static sl_status_t run(sl_top_t *top)
{
    sl_status_t status;

    SL_TRY(status, sl_run_dir_open(top->run_dir, &top->dir), out);
    if (sl_nvml_open(&top->nvml) < 0) {
        top->nvml = NULL; /* most machines have none */
    }
    if (!top->is_json && !top->is_once && isatty(STDOUT_FILENO)) {
        catch_signals();
        show_live(top);
        return SL_OK;
    }
    top->is_once = 1;
    look(top);
    if (top->is_json) {
        status = print_json(top);
    } else {
        print_table(top, sl_terminal_width(), 0);
    }
out:
    return status;
}

/* ---- options ---- */

static const struct argp_option option_table[] = {
    {"run-dir", KEY_RUN_DIR, "DIR", 0, "Run directory ($SLUICE_RUN_DIR)", 0},
    {"json", KEY_JSON, NULL, 0, "Print one JSON object", 0},
    {"once", KEY_ONCE, NULL, 0, "Print one table, on a terminal too", 0},
    {"every", KEY_EVERY, "SECONDS", 0, "Time between two looks (default 1)", 0},
    {0}};

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    sl_top_t *top = state->input;

    switch (key) {
    case KEY_RUN_DIR:
        top->run_dir = arg;
        return 0;
    case KEY_JSON:
        top->is_json = 1;
        return 0;
    case KEY_ONCE:
        top->is_once = 1;
        return 0;
    case KEY_EVERY:
        if (sl_parse_float("--every", arg, 0.1, 3600.0, &top->every_s) < 0) {
            exit(SL_EXIT_USAGE);
        }
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "there is nothing to do with '%s'", arg);
        return EINVAL;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

int sl_command_top(int argc, char **argv)
{
    const struct argp argp = {
        .options = option_table,
        .parser = parse_option,
        .doc = "Show all jobs of the run directory: the share of each device "
               "that a job was given (ASKED) and takes (GOT), its memory, "
               "mini-batch times, and how much slower a guarantee job is than "
               "without its guests; below, the machine's GPUs with what all "
               "processes take of them. On a terminal it is live: q or Ctrl-C "
               "ends it. Elsewhere it is one table."};
    sl_top_t *top = calloc(1, sizeof(*top));
    sl_status_t status = SL_ERR_NO_MEMORY;

    argv[0] = command;
    argp_err_exit_status = SL_EXIT_USAGE;
    if (top != NULL) {
        top->every_s = 1.0;
        status = SL_ERR_INVALID_ARG;
        if (argp_parse(&argp, argc, argv, 0, NULL, top) == 0) {
            status = run(top);
        }
        sl_run_dir_close(top->dir);
        sl_nvml_close(top->nvml);
    }
    free(top);
    return sl_exit_status(status);
}
