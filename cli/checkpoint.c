/* SPDX-License-Identifier: Apache-2.0 */
/* `sluice checkpoint`: what there is, whether it is good, other forms. */
#include <argp.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <jansson.h>

#include "base/parse.h"
#include "cli/commands.h"
#include "cli/table.h"
#include "engine/checkpoint/checkpoint.h"

enum {
    KEY_JSON = 1000,
    KEY_OUTPUT,
    KEY_MOMENTS,
    KEY_SHARDS,
    KEY_FORCE,
    PATH_BYTES = 2048
};

static char command[] = "sluice checkpoint"; /* argp wants it writable */

typedef struct sl_checkpoint_command {
    const char *verb, *path;
    const char *output;
    int64_t n_shards;
    int is_json, with_moments, is_forced;
    char dir[PATH_BYTES];                /* of path */
    char name[SL_CHECKPOINT_NAME_BYTES]; /* of path; empty = all, the newest */
} sl_checkpoint_command_t;

/* ---- what is printed ---- */

static json_t *number_or_null(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *info_json(const sl_checkpoint_info_t *info)
{
    const int is_ok = info->status >= 0;

    return json_pack(
        "{s:s, s:I, s:b, s:o, s:o, s:o, s:o, s:I, s:I, s:I, s:b, s:b}", "name",
        info->name, "step", (json_int_t)info->step, "ok", is_ok, "reason",
        is_ok ? json_null() : json_string(info->reason), "date",
        is_ok ? json_string(info->date) : json_null(), "loss",
        number_or_null(info->loss), "validation_loss",
        number_or_null(info->validation_loss), "bytes",
        (json_int_t)info->n_bytes, "shards", (json_int_t)info->n_shards,
        "tensors", (json_int_t)info->n_tensors, "latest", info->is_latest,
        "best", info->is_best);
}

static void print_json(const sl_checkpoint_info_t *infos, size_t n)
{
    json_t *list = json_array();
    char *text;
    size_t i;

    for (i = 0; i < n; i++) {
        (void)json_array_append_new(list, info_json(&infos[i]));
    }
    text = json_dumps(list, JSON_INDENT(2));
    (void)printf("%s\n", text == NULL ? "[]" : text);
    free(text);
    json_decref(list);
}

static void format_loss(double loss, char *text, size_t text_bytes)
{
    if (isfinite(loss)) {
        (void)snprintf(text, text_bytes, "%.4f", loss);
    } else {
        (void)snprintf(text, text_bytes, "-");
    }
}

static void fill_row(const sl_checkpoint_info_t *info, sl_table_t *table)
{
    char loss[32], validation[32];

    sl_table_row(table);
    if (info->status < 0) {
        sl_table_note(table, "%-15s  %s", info->name, info->reason);
        return;
    }
    format_loss(info->loss, loss, sizeof(loss));
    format_loss(info->validation_loss, validation, sizeof(validation));
    sl_table_cell(table, "%s", info->name);
    sl_table_cell(table, "%s", info->date);
    sl_table_cell(table, "%s", loss);
    sl_table_cell(table, "%s", validation);
    sl_table_bytes(table, info->n_bytes);
    sl_table_cell(table, "%zu", info->n_shards);
    sl_table_cell(table, "ok%s%s", info->is_latest ? ", latest" : "",
                  info->is_best ? ", best" : "");
}

static sl_status_t print_table(const sl_checkpoint_info_t *infos, size_t n)
{
    static const sl_table_column_t columns[] = {
        {"CHECKPOINT", -15, 0, 0}, {"WRITTEN", -20, 2, 0}, {"LOSS", 8, 2, 0},
        {"VALIDATION", 10, 2, 0},  {"SIZE", 10, 2, 0},     {"SHARDS", 6, 2, 1},
        {"STATE", -1, 2, 0}};
    sl_table_t *table =
        sl_table_create(columns, (int)(sizeof(columns) / sizeof(*columns)));
    size_t i;

    for (i = 0; i < n; i++) {
        fill_row(&infos[i], table);
    }
    return sl_table_print(table);
}

/* @return the process's exit status */
static int print_infos(const sl_checkpoint_command_t *own,
                       const sl_checkpoint_info_t *infos, size_t n)
{
    int result = 0;
    size_t i;

    if (own->is_json) {
        print_json(infos, n);
    } else if (print_table(infos, n) < 0) {
        result = 1;
    }
    for (i = 0; i < n; i++) {
        result |= infos[i].status < 0;
    }
    return result;
}

/* ---- the verbs ---- */

/* Those that the path names. */
static sl_status_t find(const sl_checkpoint_command_t *own,
                        sl_checkpoint_info_t **infos_p, size_t *n_p)
{
    sl_checkpoint_info_t *infos = NULL;
    sl_status_t status;
    size_t n = 0, i;

    SL_TRY(status, sl_checkpoint_list(own->dir, &infos, &n), out);
    for (i = 0; own->name[0] != '\0' && i < n; i++) {
        if (strcmp(infos[i].name, own->name) == 0) {
            infos[0] = infos[i];
            n = 1;
            break;
        }
    }
    if (n == 0 ||
        (own->name[0] != '\0' && strcmp(infos[0].name, own->name) != 0)) {
        free(infos);
        SL_FAIL(status, SL_ERR_NOT_FOUND, out, "%s: there is no checkpoint%s%s",
                own->dir, own->name[0] == '\0' ? "" : " ", own->name);
    }
    *infos_p = infos;
    *n_p = n;
out:
    return status;
}

static int run_list(const sl_checkpoint_command_t *own)
{
    sl_checkpoint_info_t *infos = NULL;
    size_t n = 0;
    const sl_status_t status = find(own, &infos, &n);

    if (status < 0) {
        return sl_exit_status(status);
    }
    (void)print_infos(own, infos, n);
    free(infos);
    return 0;
}

static int run_verify(const sl_checkpoint_command_t *own)
{
    sl_checkpoint_info_t *infos = NULL;
    size_t n = 0, i;
    const sl_status_t status = find(own, &infos, &n);
    int result;

    if (status < 0) {
        return sl_exit_status(status);
    }
    for (i = 0; i < n; i++) {
        const int is_latest = infos[i].is_latest, is_best = infos[i].is_best;

        (void)!sl_checkpoint_verify(own->dir, infos[i].name, &infos[i]);
        infos[i].is_latest = is_latest;
        infos[i].is_best = is_best;
    }
    result = print_infos(own, infos, n);
    free(infos);
    return result;
}

static sl_status_t need_output(const sl_checkpoint_command_t *own)
{
    sl_status_t status;

    if (own->output == NULL) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out,
                "checkpoint %s: --output is missing", own->verb);
    }
    return SL_OK;
out:
    return status;
}

/* A file of somebody is not gone by a slip of the finger. */
static sl_status_t check_free(const sl_checkpoint_command_t *own)
{
    struct stat there;
    sl_status_t status = SL_OK;

    if (!own->is_forced && lstat(own->output, &there) == 0) {
        SL_FAIL(status, SL_ERR_IO, out,
                "checkpoint merge: %s is there already: name another file, or "
                "replace it with --force",
                own->output);
    }
out:
    return status;
}

static int run_merge(const sl_checkpoint_command_t *own)
{
    sl_checkpoint_info_t *infos = NULL;
    size_t n = 0;
    sl_status_t status;

    SL_TRY(status, need_output(own), out);
    SL_TRY(status, check_free(own), out);
    SL_TRY(status, find(own, &infos, &n), out);
    SL_TRY(status,
           sl_checkpoint_merge(own->dir, infos[0].name, own->output,
                               own->with_moments),
           out);
    (void)printf("%s/%s: %s written to %s\n", own->dir, infos[0].name,
                 own->with_moments ? "the whole state" : "weights",
                 own->output);
out:
    free(infos);
    return sl_exit_status(status);
}

static int run_split(const sl_checkpoint_command_t *own)
{
    char name[SL_CHECKPOINT_NAME_BYTES];
    sl_status_t status;

    SL_TRY(status, need_output(own), out);
    SL_TRY(
        status,
        sl_checkpoint_split(own->path, own->output, (int)own->n_shards, name),
        out);
    (void)printf("%s: written to %s/%s\n", own->path, own->output, name);
out:
    return sl_exit_status(status);
}

static const struct {
    const char *name;
    int (*run)(const sl_checkpoint_command_t *own);
} verbs[] = {{"list", run_list},
             {"verify", run_verify},
             {"merge", run_merge},
             {"split", run_split}};

/* ---- the command line ---- */

static const struct argp_option option_table[] = {
    {"json", KEY_JSON, NULL, 0, "list, verify: print JSON", 0},
    {"output", KEY_OUTPUT, "PATH", 0,
     "merge: the file to write; split: the directory", 0},
    {"moments", KEY_MOMENTS, NULL, 0,
     "merge: the whole state, not the weights only", 0},
    {"force", KEY_FORCE, NULL, 0, "merge: replace the file if it exists", 0},
    {"shards", KEY_SHARDS, "N", 0, "split: how many (default 1)", 0},
    {0}};

static int find_verb(const char *name)
{
    int v;

    for (v = 0; v < (int)(sizeof(verbs) / sizeof(*verbs)); v++) {
        if (strcmp(verbs[v].name, name) == 0) {
            return v;
        }
    }
    return -1;
}

static error_t parse_word(struct argp_state *state,
                          sl_checkpoint_command_t *own, char *arg)
{
    if (own->verb == NULL && find_verb(arg) < 0) {
        argp_error(state, "say list, verify, merge or split, not '%s'", arg);
    } else if (own->verb == NULL) {
        own->verb = arg;
    } else if (own->path == NULL) {
        own->path = arg;
    } else {
        argp_error(state, "one path, not '%s' and '%s'", own->path, arg);
    }
    return 0;
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    sl_checkpoint_command_t *own = state->input;

    switch (key) {
    case KEY_JSON:
        own->is_json = 1;
        return 0;
    case KEY_OUTPUT:
        own->output = arg;
        return 0;
    case KEY_MOMENTS:
        own->with_moments = 1;
        return 0;
    case KEY_FORCE:
        own->is_forced = 1;
        return 0;
    case KEY_SHARDS:
        if (sl_parse_int("--shards", arg, 1, 10000, &own->n_shards) < 0) {
            exit(SL_EXIT_USAGE);
        }
        return 0;
    case ARGP_KEY_ARG:
        return parse_word(state, own, arg);
    case ARGP_KEY_END:
        if (own->path == NULL) {
            argp_error(state, "say what to do, and with which checkpoint");
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

int sl_command_checkpoint(int argc, char **argv)
{
    const struct argp argp = {
        .options = option_table,
        .parser = parse_option,
        .args_doc = "list DIR\nverify DIR|DIR/step-N\n"
                    "merge DIR|DIR/step-N --output FILE [--moments] [--force]\n"
                    "split FILE|DIR/step-N --output DIR [--shards N]",
        .doc = "Look at the checkpoints of a training run, compare their "
               "checksums, make one file of one, or shards again.\v"
               "A DIR without a step means all checkpoints (list, verify) or "
               "the newest one (merge). A file that was merged with --moments "
               "can be split again; one without is a weights file, for "
               "`sluice train --weights`.\n"
               "Exit status: 0 done, 1 failed or not all are good, 2 wrong "
               "usage."};
    sl_checkpoint_command_t own = {.n_shards = 1};
    sl_status_t status;

    argv[0] = command;
    argp_err_exit_status = SL_EXIT_USAGE;
    if (argp_parse(&argp, argc, argv, 0, NULL, &own) != 0) {
        return SL_EXIT_USAGE;
    }
    status =
        sl_checkpoint_path_split(own.path, own.dir, sizeof(own.dir), own.name);
    return status < 0 ? sl_exit_status(status)
                      : verbs[find_verb(own.verb)].run(&own);
}
