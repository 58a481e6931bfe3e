/* SPDX-License-Identifier: Apache-2.0 */
/* Options of the subcommands, with glibc's argp. An option that describes
 * the job is a key of the config: see `job_options`. */
#include "cli/options.h"

#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/parse.h"
#include "cli/launched.h"

enum {
    KEY_JOB = 1000,
    KEY_SET = 900,
    KEY_OUTPUT = 910,
    KEY_LAST = 999
};

/* name, argument, key of the config, help */
static const struct {
    const char *name, *arg, *path, *doc;
} job_options[] = {
    {"devices", "KIND:N", "devices.use",
     "Devices: cpu:N is N CPU devices that share the cores out, cuda:N is N "
     "CUDA devices (all GPUs, or cpu:1 without any)"},
    {"threads", "T", "devices.threads",
     "Kernel threads per device (cores/N, at least 1)"},
    {"stages", "K", "devices.stages",
     "Pipeline stages (as many as there are devices for each replica)"},
    {"replicas", "R", "parallel.replicas",
     "Copies of the pipeline that share a step out (1)"},
    {"zero1", "true|false", "parallel.zero1",
     "Optimizer moments shared out over the replicas (false)"},
    {"bucket-bytes", "SIZE", "parallel.bucket_bytes",
     "Gradients that travel together between replicas (4MiB)"},
    {"batch-norm", "MODE", "parallel.batch_norm",
     "Running statistics over all replicas or of the first one: synchronised "
     "or replica (synchronised)"},
    {"not-finite", "MODE", "parallel.not_finite",
     "A step whose loss or gradient is not finite: stop, skip or "
     "go-on (stop)"},
    {"transport", "WAY", "parallel.transport",
     "CUDA tensors between processes: nccl, staged (through host memory), "
     "cuda-aware (by MPI) or auto (nccl where it can be)"},
    {"check-replicas", "N", "parallel.check_replicas",
     "Compare the replicas every N steps, 0 = never (100)"},
    {"dead-after", "SECONDS", "parallel.dead_after",
     "A process that does not answer for so long has hung (30)"},
    {"device-memory", "SIZE", "devices.memory",
     "Memory limit of each device, such as 2GiB (what the machine has)"},
    {"host-memory", "SIZE", "devices.host_memory",
     "Host memory behind each device for what its limit leaves no room (0)"},
    {"batch", "B", "train.batch", "Samples per step"},
    {"micro-batches", "M", "train.micro_batches",
     "Micro-batches per step, of each replica"},
    {"schedule", "NAME", "train.schedule", "gpipe or 1f1b"},
    {"backward-order", "NAME", "train.backward_order",
     "gpipe: fifo or lifo (last micro-batch first)"},
    {"recompute", "MODE", "train.recompute",
     "none, full, except-last, or auto: the layers that must be, to fit"},
    {"rebalance", "MODE", "train.rebalance",
     "auto: layers move between stages when a device stays slower than "
     "planned, or off"},
    {"precision", "NAME", "train.precision",
     "Activations on CUDA devices: f32, tf32 (f32, but products in TF32), bf16 "
     "or f16; parameters stay f32 (f32)"},
    {"steps", "N", "train.steps", "Training steps"},
    {"seed", "N", "train.seed", "Seed of weights, dropout and data order"},
    {"weights", "FILE", "train.weights", "Start from this safetensors file"},
    {"checkpoint", "DIR", "checkpoint.dir",
     "Write checkpoints to this directory"},
    {"checkpoint-every", "N", "checkpoint.every",
     "Steps from one checkpoint to the next (0: only at the end)"},
    {"checkpoint-keep", "N", "checkpoint.keep",
     "Newest checkpoints that are kept (3; 0: all)"},
    {"resume", "FROM", "checkpoint.resume",
     "Go on from a checkpoint: auto (the newest, when there is one), latest, "
     "or DIR/step-00000100"},
    {"resume-as", "KIND", "checkpoint.resume_as",
     "exact, changed (settings may differ), or weights (a new run)"},
    {"policy", "NAME", "partition.policy", "dp, gpipe or uniform"},
    {"class", "NAME", "job.class",
     "What coordinators owe the job: none, guarantee or opportunistic (none)"},
    {"job-name", "NAME", "job.name",
     "Name by which `sluice top` and `sluice ctl` know the job (the config's)"},
    {"prometheus", "FILE", "job.prometheus",
     "Keep the job's state in this file as Prometheus text"},
    {"costs", "SOURCE", "partition.costs", "auto, analytic or profile"},
};

enum {
    N_JOB_OPTIONS = sizeof(job_options) / sizeof(*job_options)
};

/* The rest: which set they belong to. */
static const struct {
    const char *name, *arg, *doc;
    unsigned set;
} other_options[] = {
    {"metrics", "FILE", "Append one JSON object per step", SL_OPTIONS_OUTPUT},
    {"checkpoint-best", NULL,
     "Also write and keep the one with the least validation loss",
     SL_OPTIONS_OUTPUT},
    {"timeline", "FILE", "Draw the last step as SVG",
     SL_OPTIONS_OUTPUT | SL_OPTIONS_SIMULATE},
    {"curve", "FILE", "Draw the loss curve as SVG", SL_OPTIONS_OUTPUT},
    {"save", "FILE", "Write the weights as safetensors at the end",
     SL_OPTIONS_OUTPUT},
    {"memory-trace", "FILE", "Record what each device allocates in FILE.cpuN",
     SL_OPTIONS_OUTPUT},
    {"quiet", NULL, "No progress line, table of ranks and chart",
     SL_OPTIONS_OUTPUT},
    {"repeats", "N", "Measurements; the first is a warm-up (default 10)",
     SL_OPTIONS_REPEATS},
    {"json", NULL, "Print JSON", SL_OPTIONS_JSON},
    {"cluster", "FILE", "The cluster, as docs/simulate.md says",
     SL_OPTIONS_SIMULATE},
    {"scale", "N,N,...",
     "For each of these numbers of devices the best grid: one batch for all, "
     "then equal samples a device",
     SL_OPTIONS_SIMULATE},
    {"rank", "N", "Number of this process, from 0, when there is no launcher",
     SL_OPTIONS_PLACE},
    {"world", "N", "How many processes there are then", SL_OPTIONS_PLACE},
    {"master", "HOST:PORT",
     "Where process 0 listens then, and the others look for it",
     SL_OPTIONS_PLACE},
    {"edges", "FILE",
     "At the end, what each edge to another rank has carried, a line of JSON "
     "each; rank r writes FILE.r",
     SL_OPTIONS_OUTPUT},
};

enum {
    N_OTHER = sizeof(other_options) / sizeof(*other_options)
};

/* Options that are another word for a variable of the environment. */
static const struct {
    const char *name, *variable;
} places[] = {{"rank", "SLUICE_RANK"},
              {"world", "SLUICE_WORLD"},
              {"master", "SLUICE_MASTER"}};

static const char *variable_of(const char *name, size_t n_name)
{
    size_t i;

    for (i = 0; i < sizeof(places) / sizeof(*places); i++) {
        if (strlen(places[i].name) == n_name &&
            memcmp(places[i].name, name, n_name) == 0) {
            return places[i].variable;
        }
    }
    return NULL;
}

/* Before anything is parsed: whether there are other processes decides who
 * tells what is wrong with the command line. */
static void take_place(int argc, char **argv)
{
    int i;

    for (i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        const size_t n = strcspn(argv[i], "=");
        const char *variable = NULL;

        if (strncmp(argv[i], "--", 2) == 0 && n > 2) {
            variable = variable_of(argv[i] + 2, n - 2);
        }
        if (variable != NULL && argv[i][n] == '=') {
            (void)setenv(variable, argv[i] + n + 1, 1);
        } else if (variable != NULL && i + 1 < argc) {
            (void)setenv(variable, argv[++i], 1);
        }
    }
}

static error_t add_override(struct argp_state *state, sl_options_t *options,
                            const char *path, const char *value)
{
    const size_t bytes = strlen(path) + strlen(value) + 2;
    char *text;

    if (options->n_overrides == SL_MAX_OVERRIDES) {
        argp_error(state, "more than %d settings", SL_MAX_OVERRIDES);
        return EINVAL;
    }
    text = malloc(bytes);
    if (text == NULL) {
        return ENOMEM;
    }
    (void)snprintf(text, bytes, "%s%s%s", path, path[0] == '\0' ? "" : "=",
                   value);
    options->overrides[options->n_overrides++] = text;
    return 0;
}

static error_t parse_other(struct argp_state *state, sl_options_t *options,
                           const char *name, const char *arg)
{
    if (strcmp(name, "metrics") == 0) {
        options->metrics = arg;
    } else if (strcmp(name, "timeline") == 0) {
        options->timeline = arg;
    } else if (strcmp(name, "curve") == 0) {
        options->curve = arg;
    } else if (strcmp(name, "save") == 0) {
        options->save = arg;
    } else if (strcmp(name, "memory-trace") == 0) {
        options->memory_trace = arg;
    } else if (strcmp(name, "checkpoint-best") == 0) {
        return add_override(state, options, "checkpoint.best", "true");
    } else if (strcmp(name, "quiet") == 0) {
        options->is_quiet = 1;
    } else if (strcmp(name, "json") == 0) {
        options->is_json = 1;
    } else if (strcmp(name, "cluster") == 0) {
        options->cluster = arg;
    } else if (strcmp(name, "scale") == 0) {
        options->scale = arg;
    } else if (strcmp(name, "edges") == 0) {
        options->edges = arg;
    } else if (variable_of(name, strlen(name)) != NULL) {
        /* abbreviated, it has not been taken before */
        (void)setenv(variable_of(name, strlen(name)), arg, 1);
    } else if (sl_parse_int("--repeats", arg, 2, 100000, &options->repeats) <
               0) {
        exit(2); /* it has been told */
    }
    return 0;
}

/* Whether an argument may be any text. */
static int is_path(const char *arg)
{
    return strcmp(arg, "FILE") == 0 || strcmp(arg, "DIR") == 0 ||
           strcmp(arg, "FROM") == 0;
}

/* The value is read as YAML: a path is quoted, everything else is one plain
 * word, so that nothing the shell hands over is taken for something else. */
static error_t add_job_option(struct argp_state *state, sl_options_t *options,
                              int i, const char *arg)
{
    const char *path = job_options[i].path;
    char quoted[4096];
    size_t n = 0;

    if (!is_path(job_options[i].arg)) {
        if (arg[0] == '\0' || strpbrk(arg, " \t\n#,[]{}\"'&*!|>%@`") != NULL) {
            argp_error(state, "--%s '%s' is not %s", job_options[i].name, arg,
                       job_options[i].arg);
            return EINVAL;
        }
        return add_override(state, options, path, arg);
    }
    quoted[n++] = '\'';
    for (; *arg != '\0' && n < sizeof(quoted) - 3; arg++) {
        if (*arg == '\'') {
            quoted[n++] = '\'';
        }
        quoted[n++] = *arg;
    }
    quoted[n++] = '\'';
    quoted[n] = '\0';
    return add_override(state, options, path, quoted);
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    sl_options_t *options = state->input;

    if (key >= KEY_JOB && key < KEY_JOB + N_JOB_OPTIONS) {
        return add_job_option(state, options, key - KEY_JOB, arg);
    }
    if (key >= KEY_OUTPUT && key < KEY_OUTPUT + N_OTHER) {
        return parse_other(state, options, other_options[key - KEY_OUTPUT].name,
                           arg);
    }
    switch (key) {
    case KEY_SET:
        return add_override(state, options, "", arg);
    case ARGP_KEY_ARG:
        if (options->config != NULL) {
            argp_error(state, "one CONFIG, not '%s' and '%s'", options->config,
                       arg);
        }
        options->config = arg;
        return 0;
    case ARGP_KEY_END:
        if (options->config == NULL) {
            argp_error(state, "CONFIG is missing: a YAML file, such as "
                              "examples/gpt_shakespeare.yaml");
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static size_t add_options(struct argp_option *table, unsigned sets)
{
    size_t n = 0;
    int i;

    for (i = 0; i < N_JOB_OPTIONS; i++) {
        table[n].name = job_options[i].name;
        table[n].key = KEY_JOB + i;
        table[n].arg = job_options[i].arg;
        table[n++].doc = job_options[i].doc;
    }
    for (i = 0; i < N_OTHER; i++) {
        if ((other_options[i].set & sets) != 0) {
            table[n].name = other_options[i].name;
            table[n].key = KEY_OUTPUT + i;
            table[n].arg = other_options[i].arg;
            table[n++].doc = other_options[i].doc;
        }
    }
    table[n].name = "set";
    table[n].key = KEY_SET;
    table[n].arg = "KEY=VALUE";
    table[n++].doc = "Set any key of the config, such as optimizer.lr=0.01";
    return n;
}

typedef struct sl_parse {
    const struct argp *argp;
    int argc;
    char **argv;
    sl_options_t *options;
} sl_parse_t;

static int parse(void *ctx)
{
    const sl_parse_t *own = ctx;

    return argp_parse(own->argp, own->argc, own->argv, 0, NULL, own->options);
}

sl_status_t sl_options_parse(const char *name, const char *brief, unsigned sets,
                             int argc, char **argv, sl_options_t *options)
{
    struct argp_option table[N_JOB_OPTIONS + N_OTHER + 2];
    struct argp argp = {0};
    char command[64];
    char *argv0 = argv[0];
    sl_parse_t own = {&argp, argc, argv, options};
    sl_status_t status = SL_OK;

    memset(options, 0, sizeof(*options));
    memset(table, 0, sizeof(table));
    options->repeats = 10;
    (void)add_options(table, sets);
    argp.options = table;
    argp.parser = parse_option;
    argp.args_doc = "CONFIG";
    argp.doc = brief;
    (void)snprintf(command, sizeof(command), "sluice %s", name);
    argv[0] = command;
    argp_err_exit_status = 2;
    if ((sets & SL_OPTIONS_PLACE) != 0) {
        take_place(argc, argv);
    }
    sl_launched_try(parse, &own);
    if (parse(&own) != 0) {
        status = SL_ERR_INVALID_ARG;
    }
    argv[0] = argv0;
    return status;
}

void sl_options_cleanup(sl_options_t *options)
{
    size_t i;

    for (i = 0; i < options->n_overrides; i++) {
        free(options->overrides[i]);
    }
}
