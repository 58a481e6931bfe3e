/* SPDX-License-Identifier: Apache-2.0 */
/* The commands of `sluice launch`: mpirun with the job, and what the job's
 * own command line says. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "cli/config.h"
#include "cli/launch.h"
#include "cli/launched.h"
#include "cli/options.h"

enum {
    SELF_BYTES = 4096,
    N_FIXED = 32 /* words of the command that are not the job's */
};

static const uint64_t PROBE_NS = UINT64_C(20) * UINT64_C(1000000000);

extern char **environ;

void sl_launch_say(const char *fmt, ...)
{
    char text[1024];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    (void)fprintf(stderr, "sluice launch: %s\n", text);
    (void)fflush(stderr);
}

/* ---- the job's command line ---- */

/* N of "cpu:N"; what is wrong with it the job will say. */
static int count_devices(const char *spec)
{
    const char *colon = spec == NULL ? NULL : strchr(spec, ':');
    const long n = colon == NULL ? 1 : strtol(colon + 1, NULL, 10);

    return n >= 1 && n <= SL_LAUNCH_MAX_SLOTS ? (int)n : 1;
}

/* Whether n ranks have a cell each, as sl_grid_check() wants. */
static int is_usable(const sl_launch_t *launch, int n)
{
    const int64_t n_slots = (int64_t)n * launch->n_devices;
    const int64_t n_fit = n_slots / launch->n_replicas;
    const int64_t n_stages = launch->n_stages > 0 ? launch->n_stages
                             : n_fit > 0          ? n_fit
                                                  : 1;
    const int64_t n_cells = n_stages * launch->n_replicas;
    int64_t c;
    int n_used = 0;

    for (c = 0; c < n_cells; c++) {
        n_used += c * n_slots / n_cells / launch->n_devices == n_used;
    }
    return n_used == n;
}

int sl_launch_usable_ranks(const sl_launch_t *launch, int n)
{
    while (n > 1 && !is_usable(launch, n)) {
        n--;
    }
    return n;
}

sl_status_t sl_launch_read_config(sl_launch_t *launch)
{
    char **argv = calloc((size_t)launch->argc + 1, sizeof(*argv));
    sl_config_t config = {0};
    sl_options_t options = {0};
    sl_status_t status;

    if (argv == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "no memory for a command line");
    }
    /* argp sorts what it reads */
    memcpy(argv, launch->argv, (size_t)launch->argc * sizeof(*argv));
    SL_TRY(status,
           sl_options_parse("train", "Train a model as CONFIG says.",
                            SL_OPTIONS_OUTPUT, launch->argc, argv, &options),
           out);
    SL_TRY(status,
           sl_config_open(options.config,
                          (const char *const *)options.overrides,
                          options.n_overrides, &config),
           out);
    launch->n_replicas = (int)config.replicas;
    launch->n_stages = (int)config.stages;
    launch->n_devices = count_devices(config.device_spec);
    if (config.checkpoint_dir != NULL) {
        launch->checkpoints = strdup(config.checkpoint_dir);
        if (launch->checkpoints == NULL) {
            SL_FAIL(status, SL_ERR_NO_MEMORY, out, "no memory for a path");
        }
    }
out:
    sl_config_close(&config);
    sl_options_cleanup(&options);
    free(argv);
    return status;
}

void sl_launch_mark(const sl_launch_t *launch, char mark[SL_LAUNCH_MARK_BYTES])
{
    char path[SELF_BYTES];
    FILE *file = NULL;

    mark[0] = '\0';
    if (launch->checkpoints == NULL ||
        snprintf(path, sizeof(path), "%s/latest", launch->checkpoints) >=
            (int)sizeof(path)) {
        return;
    }
    file = fopen(path, "re");
    if (file == NULL) {
        return;
    }
    if (fgets(mark, SL_LAUNCH_MARK_BYTES, file) == NULL) {
        mark[0] = '\0';
    }
    mark[strcspn(mark, "\n")] = '\0';
    (void)fclose(file);
}

/* ---- words ---- */

/* A command being made: words, some of them owned. */
typedef struct sl_words {
    char **words; /**< ends with NULL */
    size_t n, n_max;
    char *hosts; /**< owned */
    char n_text[16];
    char self[SELF_BYTES];
} sl_words_t;

static void put(sl_words_t *words, const char *word)
{
    if (words->n < words->n_max) {
        /* exec takes them as char *, and does not write */
        memcpy(&words->words[words->n++], &word, sizeof(word));
    }
}

/* What decides how the ranks behave must be the same on all hosts; "-x NAME"
 * of mpirun would name a variable that looks like NAME=VALUE wrongly. */
static int is_passed_on(const char *entry)
{
    return strncmp(entry, "SLUICE_", 7) == 0 || strncmp(entry, "OMP_", 4) == 0;
}

static size_t count_environment(void)
{
    size_t n = 0;
    char **entry;

    for (entry = environ; entry != NULL && *entry != NULL; entry++) {
        n++;
    }
    return n;
}

static void put_environment(sl_words_t *words)
{
    char **entry;

    for (entry = environ; entry != NULL && *entry != NULL; entry++) {
        if (is_passed_on(*entry)) {
            put(words, "-x");
            put(words, *entry);
        }
    }
}

/* The ranks share out the cores of their host themselves (bind-to none), and
 * a host that is cut off is found in seconds, not hours. Root is refused by
 * mpirun because of what it might start; here that is Sluice alone. */
static void put_mpirun(const sl_launch_t *launch, const char *hosts,
                       sl_words_t *words)
{
    static const char *const fixed[] = {
        "--map-by", "slot",  "--bind-to",
        "none",     "--mca", "oob_tcp_keepalive_time",
        "10",       "--mca", "oob_tcp_keepalive_intvl",
        "3",        "--mca", "oob_tcp_keepalive_probes",
        "3"};
    size_t i;

    put(words, launch->mpirun);
    put(words, "-np");
    put(words, words->n_text);
    put(words, "--host");
    put(words, hosts);
    for (i = 0; i < sizeof(fixed) / sizeof(*fixed); i++) {
        put(words, fixed[i]);
    }
    if (geteuid() == 0) {
        put(words, "--allow-run-as-root");
    }
}

static sl_status_t find_self(sl_words_t *words)
{
    const ssize_t n =
        readlink("/proc/self/exe", words->self, sizeof(words->self) - 1);
    sl_status_t status = SL_OK;

    if (n <= 0) {
        SL_FAIL(status, SL_ERR_IO, out, "launch: own path not found: %s",
                strerror(errno));
    }
    words->self[n] = '\0';
out:
    return status;
}

/* One process on this machine needs no mpirun. */
static int is_alone(const sl_launch_t *launch)
{
    int i;

    for (i = 0; i < launch->hosts.n; i++) {
        const sl_launch_host_t *host = &launch->hosts.hosts[i];

        if (!host->is_dropped) {
            return launch->n_ranks == 1 && sl_launch_host_is_local(host->name);
        }
    }
    return 0;
}

static sl_status_t words_make(const sl_launch_t *launch, sl_words_t *words)
{
    sl_status_t status;
    int i;

    memset(words, 0, sizeof(*words));
    words->n_max = N_FIXED + (size_t)launch->argc + 2 * count_environment();
    words->words = calloc(words->n_max + 1, sizeof(*words->words));
    words->hosts = sl_launch_hosts_text(&launch->hosts, launch->n_ranks);
    if (words->words == NULL || words->hosts == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "no memory for a command line");
    }
    SL_TRY(status, find_self(words), out);
    (void)snprintf(words->n_text, sizeof(words->n_text), "%d", launch->n_ranks);
    if (!is_alone(launch)) {
        put_mpirun(launch, words->hosts, words);
        put_environment(words);
        put(words, "-x");
        put(words, SL_LAUNCH_VARIABLE "=1");
    }
    put(words, words->self);
    for (i = 0; i < launch->argc; i++) {
        put(words, launch->argv[i]);
    }
    if (launch->is_resumed) {
        put(words, "--resume");
        put(words, "auto");
    }
out:
    return status;
}

static void words_cleanup(sl_words_t *words)
{
    free(words->words);
    free(words->hosts);
}

/* ---- their use ---- */

static void print_word(const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyz"
                                "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "_-./:,=@%+";

    if (word[0] != '\0' && word[strspn(word, plain)] == '\0') {
        (void)fputs(word, stdout);
        return;
    }
    (void)putchar('\'');
    for (; *word != '\0'; word++) {
        if (*word == '\'') {
            (void)fputs("'\\''", stdout);
        } else {
            (void)putchar(*word);
        }
    }
    (void)putchar('\'');
}

sl_status_t sl_launch_print(const sl_launch_t *launch)
{
    sl_words_t words;
    sl_status_t status;
    size_t i;

    SL_TRY(status, words_make(launch, &words), out);
    for (i = 0; i < words.n; i++) {
        if (i > 0) {
            (void)putchar(' ');
        }
        print_word(words.words[i]);
    }
    (void)putchar('\n');
out:
    words_cleanup(&words);
    return status;
}

sl_status_t sl_launch_once(const sl_launch_t *launch, sl_launch_end_t *end_p)
{
    sl_launch_run_t run = {.hosts = &launch->hosts,
                           .grace_ns = launch->grace_ns,
                           .is_mpirun = !is_alone(launch)};
    sl_words_t words;
    sl_status_t status;

    SL_TRY(status, words_make(launch, &words), out);
    run.argv = words.words;
    status = sl_launch_run(&run, end_p);
out:
    words_cleanup(&words);
    return status;
}

int sl_launch_answers(const sl_launch_t *launch, const sl_launch_host_t *host)
{
    sl_launch_t probe = *launch;
    sl_words_t words;
    sl_status_t status;
    int is_there = 0;
    char text[SL_LAUNCH_NAME_BYTES + 8];

    probe.n_ranks = 1;
    (void)snprintf(text, sizeof(text), "%s:1", host->name);
    SL_TRY(status, words_make(&probe, &words), out);
    words.n = 0;
    put_mpirun(&probe, text, &words);
    put(&words, "true");
    words.words[words.n] = NULL;
    is_there = sl_launch_probe(words.words, PROBE_NS) == 0;
out:
    words_cleanup(&words);
    return is_there;
}
