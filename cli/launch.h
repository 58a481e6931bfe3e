/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file launch.h
 * What `sluice launch` is made of: hosts, one run of the job, and the policy
 * between two runs.
 */
#ifndef SL_CLI_LAUNCH_H
#define SL_CLI_LAUNCH_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum {
    SL_LAUNCH_MARK_BYTES = 256,
    SL_LAUNCH_NAME_BYTES = 256,
    SL_LAUNCH_MAX_HOSTS = 4096,
    SL_LAUNCH_MAX_SLOTS = 4096 /**< of one host, and ranks of a job */
};

/* ---- hosts ---- */

typedef struct sl_launch_host {
    char name[SL_LAUNCH_NAME_BYTES];
    int n_slots;
    int n_losses;   /**< runs that ended because a process on it was killed,
                         or a device of it was gone */
    int is_dropped; /**< not used any more */
} sl_launch_host_t;

typedef struct sl_launch_hosts {
    int n;
    sl_launch_host_t *hosts; /**< owned */
} sl_launch_hosts_t;

/** "a,b:2": names with slots (1). @return SL_OK, SL_ERR_CONFIG */
SL_NODISCARD sl_status_t sl_launch_hosts_parse(const char *list,
                                               sl_launch_hosts_t *hosts);
/** A file with a host a line: "a", "a slots=2" or "a:2"; # begins a comment.
 *  @return SL_OK, SL_ERR_CONFIG (file and line), SL_ERR_IO */
SL_NODISCARD sl_status_t sl_launch_hosts_read(const char *path,
                                              sl_launch_hosts_t *hosts);
void sl_launch_hosts_cleanup(sl_launch_hosts_t *hosts);
/** Slots of the hosts that are not dropped. */
int sl_launch_hosts_slots(const sl_launch_hosts_t *hosts);
/** The host that a message calls `name`, which may be its short name; or -1. */
int sl_launch_hosts_find(const sl_launch_hosts_t *hosts, const char *name);
/** Whether it is this machine. */
int sl_launch_host_is_local(const char *name);
/** "a:1,b:1": the first n_ranks slots of the hosts that are not dropped, as
 *  mpirun takes them; owned text, NULL without memory. */
char *sl_launch_hosts_text(const sl_launch_hosts_t *hosts, int n_ranks);

/* ---- one run ---- */

typedef struct sl_launch_run {
    char *const *argv;
    int is_mpirun; /**< it hands SIGUSR1 on to the ranks */
    const sl_launch_hosts_t *hosts;
    uint64_t grace_ns; /**< to end after a rank was reported lost */
} sl_launch_run_t;

typedef struct sl_launch_end {
    int status;       /**< exit status; 128 + the signal that ended it. A
                           run that was to end: as it told, or interrupted */
    int host;         /**< a process or device of it was lost; -1 = unknown */
    char reason[256]; /**< the line that said so; or empty */
    char written[SL_LAUNCH_MARK_BYTES]; /**< last checkpoint that the run has
                                             told of; or empty */
    int told; /**< exit status that rank 0 has told of; -1 = none */
} sl_launch_end_t;

/** From now on signals are handed on to the run. */
void sl_launch_catch_signals(void);
/** How many signals that end the job have come. */
int sl_launch_n_signals(void);
/** Run to the end. @return SL_OK, SL_ERR_IO (cannot be started) */
SL_NODISCARD sl_status_t sl_launch_run(const sl_launch_run_t *run,
                                       sl_launch_end_t *end_p);
/** Wait, or until a signal. */
void sl_launch_pause(uint64_t ns);
/** Run quietly for at most `ns`. @return its exit status; -1 = too long */
int sl_launch_probe(char *const *argv, uint64_t ns);
/** The host of the rank that a line of stderr reports as lost, or as one whose
 *  device is; else 0. */
int sl_launch_find_lost(const char *line, char name[SL_LAUNCH_NAME_BYTES]);

/* ---- the job ---- */

typedef struct sl_launch {
    /* asked */
    const char *host_list, *host_file, *mpirun;
    int min_ranks, n_restarts, is_dry_run;
    uint64_t back_off_ns, grace_ns;
    int argc; /**< of the command: "train", its options */
    char **argv;
    /* now */
    sl_launch_hosts_t hosts;
    int n_ranks;
    int n_in_row;   /**< restarts without a new checkpoint between */
    int is_resumed; /**< the next run goes on from the last checkpoint */
    /* of the job */
    char *checkpoints; /**< their folder; owned; NULL = none are written */
    int n_replicas, n_stages; /**< stages: 0 = as many as devices allow */
    int n_devices;            /**< of a rank */
} sl_launch_t;

/** One line for the user, on stderr. */
void sl_launch_say(const char *fmt, ...) SL_PRINTF(1, 2);
/** Check the command and find where checkpoints go.
 *  @return SL_OK, SL_ERR_CONFIG, SL_ERR_IO */
SL_NODISCARD sl_status_t sl_launch_read_config(sl_launch_t *launch);
/** The most ranks, at most `n`, that all get work when the job is cut anew. */
int sl_launch_usable_ranks(const sl_launch_t *launch, int n);
/** What changes with each new checkpoint; "" without one. */
void sl_launch_mark(const sl_launch_t *launch, char mark[SL_LAUNCH_MARK_BYTES]);
/** Print the command of the next run as a shell would take it. */
SL_NODISCARD sl_status_t sl_launch_print(const sl_launch_t *launch);
/** One run with the hosts that are left. */
SL_NODISCARD sl_status_t sl_launch_once(const sl_launch_t *launch,
                                        sl_launch_end_t *end_p);
/** Whether mpirun can start a process on the host. */
int sl_launch_answers(const sl_launch_t *launch, const sl_launch_host_t *host);

#endif /* SL_CLI_LAUNCH_H */
