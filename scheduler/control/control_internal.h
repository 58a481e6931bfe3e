/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file control_internal.h
 * The inside of a job's sl_control_t.
 *
 * Two threads: the train loop, which calls the boundary, and one of our own,
 * which reads and writes files. Our thread never touches the allocators: they
 * may be waiting for the ops of a device that only a new share can free.
 */
#ifndef SL_SCHEDULER_CONTROL_INTERNAL_H
#define SL_SCHEDULER_CONTROL_INTERNAL_H

#include <pthread.h>

#include "scheduler/control.h"
#include "scheduler/control/antman.h"
#include "scheduler/control/minibatch.h"
#include "scheduler/control/run_dir.h"
#include "scheduler/control/secure_file.h"
#include "scheduler/control/watcher.h"
#include "scheduler/pulse.h"

enum {
    SL_PULSE_HOSTS = 16, /* jobs that one job yields to */
    SL_PULSE_BEAT_MS = 200
};

/** A device of another job. */
typedef struct sl_gate_yield {
    sl_run_id_t host;
    int device;
} sl_gate_yield_t;

/** What one device is asked and has. */
typedef struct sl_gate {
    double share;         /**< asked by the order */
    int is_kept;          /**< that holds when the order has expired */
    double share_now;     /**< in force: also by expiry or interrupt */
    uint64_t limit_bytes; /**< asked; 0 = never */
    int is_limit_new;     /**< not yet given to the allocator */
    uint64_t peak_bytes;  /**< of the last mini-batch */
    sl_mem_stats_t mem;   /**< at the last boundary that took it */
    uint64_t max_peak_bytes, max_host_peak_bytes; /**< since the start */
    uint64_t busy_before_ns, elapsed_before_ns;   /**< our thread's */
    double share_achieved;                        /**< our thread's */
    int n_yields;                                 /**< asked */
    sl_gate_yield_t yields[SL_CONTROL_DEVICE_YIELDS];
} sl_gate_t;

/** A job whose pulse is followed. */
typedef struct sl_pulse_host {
    sl_run_id_t id;
    int has_warned;
    sl_pulse_view_t *view; /**< NULL = it does not live, or has no page */
    int n_slots;           /**< of the page */
    int dir_fd;            /**< its directory, with a view */
    uint64_t beat;         /**< seen last ... */
    uint64_t beat_ns;      /**< ... and first then */
    uint64_t tried_ns;     /**< to open it; 0 = not yet */
} sl_pulse_host_t;

/** A file that steers the job, as our thread last saw it. */
typedef struct sl_steering_file {
    sl_file_state_t seen;    /**< last state that was looked at */
    sl_file_state_t refused; /**< last state that was warned about */
    char *text;              /**< owned; what was read last, or NULL */
    size_t n_bytes;
} sl_steering_file_t;

struct sl_control {
    /* fixed once open */
    sl_control_params_t params; /* its texts are not used */
    sl_control_job_t job;
    char unit[16];
    int n_devices;
    char antman_keys[SL_CONTROL_MAX_DEVICES][SL_ANTMAN_KEY_BYTES];
    sl_run_dir_t *dir;    /* NULL = not listed */
    sl_job_dir_t job_dir; /* valid with dir */
    char *prometheus;     /* owned, or NULL */
    char *antman_config;  /* owned, or NULL */
    char *antman_status;  /* owned, or NULL */
    pthread_t thread;
    int has_thread;
    uint64_t told_ns; /* the train loop's: the last boundary that AntMan's law
                         was told of, 0 = none */

    sl_watcher_t watcher;

    pthread_mutex_t lock;
    pthread_cond_t changed; /* an order came, or expired */
    /* guarded by lock */
    int is_closing;
    int is_admitting; /* before the first mini-batch */
    int is_holding;   /* the train loop is here, between two mini-batches */
    int is_short;     /* it waits for a higher memory limit */
    int is_urgent;    /* write a status at once */
    int is_due;       /* the next boundary shall take allocator statistics */
    int is_news;      /* something to tell since the last status */
    sl_job_class_t job_class;
    sl_control_action_t action;
    double floor_share;
    uint64_t order_ns, ttl_ns; /* when it was read; 0 = for ever */
    int is_expired;
    int is_antman; /* it is of AntMan's file */
    uint64_t accepted_sequence, applied_sequence;
    uint64_t n_orders, n_taken; /* accepted; in force at a boundary */
    uint64_t applied_ns, applied_step;
    char writer_token[64];
    char reason[SL_CONTROL_REASON_BYTES];
    uint64_t n_refused;
    uint64_t step, boundary_ns;
    sl_minibatch_t minibatch;
    sl_gate_t gates[SL_CONTROL_MAX_DEVICES];

    sl_pulse_map_t *pulse; /* our own page; NULL = none */
    int is_pulsing;        /* our devices write it */
    int is_yield_new;      /* whom to yield to was said, or for how much */

    /* our thread's */
    int is_yielding; /* whether anybody may be yielded to now */
    uint64_t hosts_ns;
    int n_hosts;
    sl_pulse_host_t hosts[SL_PULSE_HOSTS];
    sl_steering_file_t control_file, antman_file;
    sl_control_status_t status; /* the last one written */
    uint64_t status_ns, prometheus_ns, antman_ns;
    double antman_duration_us;
    uint64_t antman_used_bytes;
    int has_warned_status, has_warned_prometheus, has_warned_antman;
};

uint64_t sl_control_now(const sl_control_t *control);
int sl_control_is_interrupted(const sl_control_t *control);

/* ---- orders.c; all with the lock held ---- */

/** Make an order the one in force. @return SL_OK; SL_ERR_CORRUPT (sequence,
 *  unknown device), then nothing has changed */
SL_NODISCARD sl_status_t sl_control_accept(sl_control_t *control,
                                           const sl_control_order_t *order);
/** The same for AntMan's config. */
void sl_control_accept_antman(sl_control_t *control,
                              const sl_antman_config_t *config);
/** Notice expiry and interrupts; set the shares that follow. */
void sl_control_refresh(sl_control_t *control);
/** Whether the job may not go on: suspended, or told to wait. */
int sl_control_is_held(const sl_control_t *control);
sl_job_state_t sl_control_state(const sl_control_t *control);

/* ---- pulses.c ---- */

/** Make the job's page in its directory; without one it has no pulse. */
void sl_control_pulse_open(sl_control_t *control);
/** A new page in a new directory; lock held. */
void sl_control_pulse_renew(sl_control_t *control);
/** Our thread is not there any more: follow nobody, publish nothing. */
void sl_control_pulse_close(sl_control_t *control);
/** Publish or not, as the class says; lock held. */
void sl_control_pulse_refresh(sl_control_t *control);
/** Remember whom an order says to yield to; lock held. */
void sl_control_yields_accept(sl_control_t *control, int d,
                              const sl_control_order_t *order, int gate);
/** Our thread, without the lock: beat, look who lives, tell the devices. */
void sl_control_pulse_tend(sl_control_t *control);

/* ---- reporter.c; our thread ---- */

/** Write the files that are due. */
void sl_control_report(sl_control_t *control, int is_last);

/* ---- control.c ---- */

/** Our thread: listen for the job's files where they are now. */
void sl_control_watch(sl_control_t *control);

/* ---- listener.c; our thread ---- */

void *sl_control_listen(void *control);
/** sl_last_error() without its place in our source. */
const char *sl_control_cause(void);

#endif /* SL_SCHEDULER_CONTROL_INTERNAL_H */
