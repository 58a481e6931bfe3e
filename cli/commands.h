/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file commands.h
 * The subcommands. Each takes its own argc and argv (argv[0] is its name)
 * and returns the process's exit status: 0 done, 1 failed, 2 wrong usage or
 * config, 130 ended early by a signal or an order to stop.
 */
#ifndef SL_CLI_COMMANDS_H
#define SL_CLI_COMMANDS_H

#include "base/status.h"

/** Exit statuses other than done and failed. */
enum {
    SL_EXIT_USAGE = 2,        /**< a wrong command line or config */
    SL_EXIT_INTERRUPTED = 130 /**< ended early, by a signal or an order */
};

typedef struct sl_command {
    const char *name;
    const char *brief;
    int (*run)(int argc, char **argv);
} sl_command_t;

/** Adding one = one file and one line. */
#define SL_COMMAND_MAP(X)                                                      \
    X(train, "train a model")                                                  \
    X(launch, "run `train` on several hosts, restart it when it fails")        \
    X(eval, "loss and accuracy on the held-out data")                          \
    X(plan, "show how a model is cut into stages, without running it")         \
    X(profile, "measure the layers and keep the result for later plans")       \
    X(layers, "layer and model types that a config may name")                  \
    X(checkpoint, "list, verify, merge and split checkpoints")                 \
    X(batches, "write the batches that training would see")                    \
    X(speedup, "time the pipeline beside one device")                          \
    X(simulate, "a training step on a described cluster, in simulated time")   \
    X(coordinator, "share devices between jobs (a daemon)")                    \
    X(ctl, "list jobs, set limits and shares by hand")                         \
    X(top, "show all jobs and their devices, live")                            \
    X(doctor, "what this machine offers and what is missing")

#define X(name, brief) int sl_command_##name(int argc, char **argv);
SL_COMMAND_MAP(X)
#undef X

/** 0, 1 for a failure, or 2 for one that every other try would meet again: a
 *  wrong config. Prints the detail of a refusal that no log has. */
int sl_exit_status(sl_status_t status);
/** The same without a word. */
int sl_exit_code(sl_status_t status);

/** Take "file.c:12: " out of a detail: the places in the source that it begins
 *  with, and each rank's detail in it; they are in the log at debug. */
void sl_strip_places(char *text);

#endif /* SL_CLI_COMMANDS_H */
