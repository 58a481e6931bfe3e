/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file options.h
 * The command line of all subcommands that take a config.
 */
#ifndef SL_CLI_OPTIONS_H
#define SL_CLI_OPTIONS_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum {
    SL_MAX_OVERRIDES = 256
};

typedef struct sl_options {
    const char *config;       /**< the positional argument */
    const char *metrics;      /**< --metrics FILE */
    const char *timeline;     /**< --timeline FILE */
    const char *curve;        /**< --curve FILE */
    const char *save;         /**< --save FILE */
    const char *memory_trace; /**< --memory-trace FILE */
    const char *cluster;      /**< --cluster FILE */
    const char *scale;        /**< --scale N,N,... */
    const char *edges;        /**< --edges FILE */
    int64_t repeats;          /**< --repeats N */
    int is_json;              /**< --json */
    int is_quiet;             /**< --quiet */
    size_t n_overrides;
    char *overrides[SL_MAX_OVERRIDES]; /**< owned: "train.steps=10" */
} sl_options_t;

/** Which of the options a subcommand has. */
typedef enum sl_option_set {
    SL_OPTIONS_JOB = 0,    /**< what describes a job */
    SL_OPTIONS_OUTPUT = 1, /**< metrics, timeline, curve, save,
                                memory-trace, quiet */
    SL_OPTIONS_REPEATS = 2,
    SL_OPTIONS_JSON = 4,
    SL_OPTIONS_SIMULATE = 8, /**< cluster, scale, timeline */
    SL_OPTIONS_PLACE = 16 /**< rank, world, master: they go to the environment
                               for sl_world_join */
} sl_option_set_t;

/**
 * Parse argv[0..argc) of subcommand `name`. Prints help or usage and ends
 * the process for --help and for a wrong command line (status 2), as all
 * programs do.
 */
SL_NODISCARD sl_status_t sl_options_parse(const char *name, const char *brief,
                                          unsigned sets, int argc, char **argv,
                                          sl_options_t *options);
void sl_options_cleanup(sl_options_t *options);

#endif /* SL_CLI_OPTIONS_H */
