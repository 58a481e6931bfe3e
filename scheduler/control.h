/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file control.h
 * The control plane: files in a private run directory, by which a job tells
 * what it does and is told its memory limits and compute shares. The formats
 * and the protocol are in docs/control-plane.md.
 *
 * Two sides. A job opens a sl_control_t and calls sl_control_boundary after
 * every mini-batch. A coordinator (or `sluice ctl`, `sluice top`) opens the
 * run directory, lists the jobs and reads and writes their files.
 *
 * All times are CLOCK_MONOTONIC. Nothing read from a file is trusted: see
 * docs/threat-model.md. A failure of the control plane never stops a job.
 */
#ifndef SL_SCHEDULER_CONTROL_H
#define SL_SCHEDULER_CONTROL_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "memory/memory.h"
#include "scheduler/scheduler.h"

SL_BEGIN_DECLS

enum {
    SL_CONTROL_SCHEMA = 1,
    SL_CONTROL_MAX_DEVICES = 64,
    SL_CONTROL_NAME_BYTES = 64,       /**< of a job's name, with NUL */
    SL_CONTROL_ID_BYTES = 128,        /**< of a job directory's name */
    SL_CONTROL_REASON_BYTES = 200,    /**< with NUL */
    SL_CONTROL_RECENT = 64,           /**< mini-batch times in a status */
    SL_CONTROL_CORE_LIST_BYTES = 64,  /**< with NUL */
    SL_CONTROL_DEVICE_YIELDS = 8,     /**< that a device yields to */
    SL_CONTROL_MAX_YIELDS = 256,      /**< all devices of an order */
    SL_CONTROL_FILE_BYTES = 64 * 1024 /**< largest file that is read */
};
#define SL_CONTROL_MAX_SEQUENCE ((UINT64_C(1) << 53) - 1)
#define SL_CONTROL_FLOOR_SHARE 5.0 /* percent, when an order says none */

/** What a policy owes a job. */
#define SL_JOB_CLASS_MAP(X)                                                    \
    X(NONE, "none")           /* listed and steerable; policies leave it */    \
    X(GUARANTEE, "guarantee") /* its speed is protected */                     \
    X(OPPORTUNISTIC, "opportunistic") /* gets what is left */

typedef enum sl_job_class {
#define X(id, text) SL_JOB_CLASS_##id,
    SL_JOB_CLASS_MAP(X)
#undef X
    SL_JOB_N_CLASSES
} sl_job_class_t;
#define SL_JOB_CLASS_CHOICES "none|guarantee|opportunistic"

typedef enum sl_job_state {
    SL_JOB_STATE_WAITING, /**< not started: the order's action is wait */
    SL_JOB_STATE_RUNNING,
    SL_JOB_STATE_SUSPENDED, /**< a share is 0, or action wait */
    SL_JOB_STATE_DONE,
    SL_JOB_N_STATES
} sl_job_state_t;

typedef enum sl_control_action {
    SL_CONTROL_ACTION_NONE, /**< "" */
    SL_CONTROL_ACTION_WAIT, /**< do not start; running: hold at a boundary */
    SL_CONTROL_ACTION_STOP, /**< end after this mini-batch, as by SIGTERM */
    SL_CONTROL_N_ACTIONS
} sl_control_action_t;

/** Fixed texts; never NULL. */
SL_API const char *sl_job_class_name(sl_job_class_t job_class);
SL_API const char *sl_job_state_name(sl_job_state_t state);
SL_API const char *sl_control_action_name(sl_control_action_t action);

/* ---- what the files say ---- */

/** A job as its directory is called: "<name>-<pid>-<token>". */
typedef struct sl_run_id {
    char text[SL_CONTROL_ID_BYTES];
} sl_run_id_t;

/** A device in control.json. */
typedef struct sl_control_gate {
    char name[32];
    uint64_t limit_bytes; /**< 0 = not said: stays */
    double share;         /**< percent, 0 to 100; negative = not said: stays */
    int is_kept;          /**< the share holds when the order has expired */
    int has_yields;       /**< whom it yields to is said, perhaps nobody */
} sl_control_gate_t;

/** A device of another job whose idle times a device waits for. */
typedef struct sl_control_yield {
    int gate;         /**< index of the order's gate */
    sl_run_id_t host; /**< whose device */
    int device;       /**< which */
} sl_control_yield_t;

/** control.json: coordinator to job. */
typedef struct sl_control_order {
    uint64_t sequence;  /**< 1 to SL_CONTROL_MAX_SEQUENCE; must grow */
    uint64_t ttl_ms;    /**< 0 = for ever (default) */
    double floor_share; /**< percent, 1 to 100 (default 5) */
    sl_control_action_t action;
    int job_class;         /**< sl_job_class_t; -1 = not said: stays */
    char writer_token[64]; /**< [A-Za-z0-9._-]*; told back in the status */
    char reason[SL_CONTROL_REASON_BYTES]; /**< for people; told back */
    int n_gates;
    sl_control_gate_t gates[SL_CONTROL_MAX_DEVICES];
    int n_yields; /**< of all gates, in their order */
    sl_control_yield_t yields[SL_CONTROL_MAX_YIELDS];
} sl_control_order_t;

/** sequence 0, nothing said. */
SL_API void sl_control_order_default(sl_control_order_t *order);

/** A device in job.json. */
typedef struct sl_control_device {
    char name[32];
    sl_device_kind_t kind;
    uint64_t capacity_bytes; /**< largest limit it can be given */
    uint64_t wanted_bytes;   /**< what the job expects to need; 0 = unknown */
    int n_cores;             /**< cores it is bound to; 0 = not bound */
    int n_threads;           /**< kernel threads */
    char core_list[SL_CONTROL_CORE_LIST_BYTES]; /**< them, as "0-3,8"; "" =
                                                     not known */
    char gpu_id[SL_GPU_ID_BYTES]; /**< as sl_device_t's; "" = none, or not
                                       known */
    uint64_t gpu_bytes;           /**< likewise; 0 = none, or not known */
} sl_control_device_t;

/** job.json: written once. */
typedef struct sl_control_job {
    char name[SL_CONTROL_NAME_BYTES];
    int64_t pid;
    uint64_t start_ticks; /**< field 22 of /proc/<pid>/stat */
    sl_job_class_t job_class;
    uint64_t created_ns;
    int n_devices;
    sl_control_device_t devices[SL_CONTROL_MAX_DEVICES];
} sl_control_job_t;

typedef struct sl_control_class_use {
    uint64_t used_bytes; /**< in blocks, device and host */
    uint64_t host_bytes; /**< of it, on the host */
    uint64_t n_spills;   /**< blocks that went to the host, ever */
} sl_control_class_use_t;

/** A device in status.json. */
typedef struct sl_control_device_status {
    char name[32];
    /* memory: as the last boundary left it */
    uint64_t limit_bytes;       /**< in force */
    uint64_t limit_asked_bytes; /**< last asked; the capacity when never */
    uint64_t held_bytes;        /**< what the limit counts */
    uint64_t used_bytes;
    uint64_t peak_bytes; /**< of the last mini-batch, in blocks */
    uint64_t host_used_bytes;
    sl_control_class_use_t classes[SL_MEM_N_CLASSES];
    double share_asked;    /**< percent in force */
    double share_achieved; /**< percent of device time, since the status
                                before */
    uint64_t busy_us;      /**< in ops, since the job started */
    uint64_t waiting_us;   /**< without an op to run */
    uint64_t throttled_us; /**< held back by the share */
    uint64_t n_ops;
} sl_control_device_status_t;

/** status.json: job to coordinator. */
typedef struct sl_control_status {
    uint64_t sequence;    /**< grows with every status */
    uint64_t time_ns;     /**< when it was written */
    uint64_t boundary_ns; /**< end of the last mini-batch; 0 = none yet */
    sl_job_state_t state;
    sl_job_class_t job_class;
    char reason[SL_CONTROL_REASON_BYTES]; /**< why it waits; from the order */
    uint64_t step;                        /**< mini-batches done */
    uint64_t n_steps;                     /**< planned; 0 = unknown */
    double units_per_s;                   /**< over the last mini-batches */
    char unit[16];                        /**< "samples" or "tokens" */
    /* mini-batch times: wall time of the steps, evaluation not included */
    double last_us, median_us, p99_us; /**< of the last 256 */
    int n_recent;
    double recent_us[SL_CONTROL_RECENT]; /**< oldest first; the last one is
                                              mini-batch `step` - 1 */
    uint64_t accepted_sequence;          /**< newest good order; 0 = none */
    uint64_t applied_sequence; /**< newest order in force at a boundary */
    uint64_t applied_ns;
    uint64_t applied_step; /**< first mini-batch fully under that order */
    char writer_token[64]; /**< of the accepted order */
    int is_expired;        /**< the order is older than its TTL */
    uint64_t n_refused;    /**< bad control files so far */
    int n_devices;
    sl_control_device_status_t devices[SL_CONTROL_MAX_DEVICES];
} sl_control_status_t;

/** Whether two lists of cores, as "0-3,8", have one in common; so does what
 *  is no such list with any. */
SL_API int sl_control_cores_overlap(const char *a, const char *b);

/* Text to struct and back. Parsing is strict (no unknown or duplicate keys,
 * no wrong types or ranges) and silent: SL_ERR_CORRUPT with the reason as
 * sl_last_error(). `*_p` is written on success only. Formatting gives a NUL
 * terminated text, owned by the caller (free). */

SL_API SL_NODISCARD sl_status_t sl_control_order_parse(
    const char *text, size_t n_bytes, sl_control_order_t *order_p);
SL_API SL_NODISCARD sl_status_t
sl_control_order_format(const sl_control_order_t *order, char **text_p);
SL_API SL_NODISCARD sl_status_t sl_control_job_parse(const char *text,
                                                     size_t n_bytes,
                                                     sl_control_job_t *job_p);
SL_API SL_NODISCARD sl_status_t
sl_control_job_format(const sl_control_job_t *job, char **text_p);
SL_API SL_NODISCARD sl_status_t sl_control_status_parse(
    const char *text, size_t n_bytes, sl_control_status_t *status_p);
SL_API SL_NODISCARD sl_status_t
sl_control_status_format(const sl_control_status_t *status, char **text_p);

/* ---- the coordinator's side ---- */

typedef struct sl_run_dir sl_run_dir_t; /* opaque */

/**
 * Open the run directory and make it when absent (0700): `path`, or when that
 * is NULL $SLUICE_RUN_DIR, else $XDG_RUNTIME_DIR/sluice, else
 * <temporary directory>/sluice-<uid>. Refused when it is a link, somebody
 * else's or writable by others.
 *
 * @return SL_OK, SL_ERR_IO (what to fix as sl_last_error(); not logged),
 *         SL_ERR_NO_MEMORY
 */
SL_API SL_NODISCARD sl_status_t sl_run_dir_open(const char *path,
                                                sl_run_dir_t **dir_p);
SL_API void sl_run_dir_close(sl_run_dir_t *dir);
SL_API const char *sl_run_dir_path(const sl_run_dir_t *dir);

/** The jobs that are alive, sorted; directories of dead ones are removed on
 *  the way. `ids` has room for `n_max`; of more it is any.
 *  @return how many are alive (may exceed n_max); 0 on failure */
SL_API size_t sl_run_dir_list(sl_run_dir_t *dir, sl_run_id_t *ids,
                              size_t n_max);

/* Read a job's file. SL_ERR_NOT_FOUND (job gone, or no such file yet),
 * SL_ERR_IO (not a file to be trusted), SL_ERR_CORRUPT; not logged. */
SL_API SL_NODISCARD sl_status_t sl_run_job_read(sl_run_dir_t *dir,
                                                const sl_run_id_t *id,
                                                sl_control_job_t *job_p);
SL_API SL_NODISCARD sl_status_t sl_run_status_read(
    sl_run_dir_t *dir, const sl_run_id_t *id, sl_control_status_t *status_p);
SL_API SL_NODISCARD sl_status_t sl_run_order_read(sl_run_dir_t *dir,
                                                  const sl_run_id_t *id,
                                                  sl_control_order_t *order_p);

/** Replace a job's control.json atomically. The job takes it only if its
 *  sequence is above the status's accepted_sequence; the file as it is now
 *  (sl_run_order_read) may be one that the job has not read yet.
 *  @return SL_OK, SL_ERR_INVALID_ARG, SL_ERR_NOT_FOUND, SL_ERR_IO; not
 *          logged */
SL_API SL_NODISCARD sl_status_t sl_run_order_write(
    sl_run_dir_t *dir, const sl_run_id_t *id, const sl_control_order_t *order);

/** Become the one coordinator of this directory, until close or death.
 *  @return SL_OK; SL_ERR_CANCELED when there is one; SL_ERR_IO */
SL_API SL_NODISCARD sl_status_t sl_run_dir_coordinate(sl_run_dir_t *dir);
/** Whether a coordinator holds this directory. */
SL_API int sl_run_dir_has_coordinator(sl_run_dir_t *dir);
/** A descriptor to poll(2) for jobs that come and go; read it empty. -1 when
 *  there is none: then look every second. Borrowed. */
SL_API int sl_run_dir_watch_fd(sl_run_dir_t *dir);

/* ---- the job's side ---- */

typedef struct sl_control sl_control_t; /* opaque */

/** Start from sl_control_params_default(). Borrowed for the call unless it
 *  says otherwise. */
typedef struct sl_control_params {
    const char *run_dir;      /**< NULL = see sl_run_dir_open (default) */
    const char *name;         /**< [A-Za-z0-9][A-Za-z0-9._-]*, at most 63 bytes
                                   (default "job") */
    sl_job_class_t job_class; /**< default none */
    sl_device_set_t *devices; /**< borrowed until close; required */
    const uint64_t *wanted_bytes; /**< one a device, or NULL (default) */
    uint64_t n_steps;             /**< planned; 0 = unknown */
    const char *unit;             /**< of units_per_s (default "samples") */
    const char *prometheus;       /**< text file to keep; NULL = none */
    const char *antman_config;    /**< default $GPU_CONFIG_FILE or NULL */
    const char *antman_status;    /**< default $GPU_STATUS_FILE or NULL */
    uint64_t status_ms;           /**< at most one status in this time, and
                                       one a second at least (default 200) */
    uint64_t poll_ms;             /**< look at files without being told
                                       (default 1000) */
    uint64_t antman_ttl_ms; /**< as an order's ttl_ms, for a suspension by the
                                 config file of AntMan, which has none (default
                                 60000) */
    /** Nonzero ends every wait, and gives the devices back their full share
     *  so that the job can end. From any thread. NULL = never (default). */
    int (*is_interrupted)(void *ctx);
    void *interrupt_ctx; /**< borrowed until close */
    /** An order says stop: told when it is accepted, on another thread, with
     *  interrupt_ctx; must be short. NULL = nobody (default). */
    void (*on_stop)(void *ctx);
    sl_share_law_t share_law;        /**< default token bucket */
    uint64_t (*clock_ns)(void *ctx); /**< default CLOCK_MONOTONIC */
    void *clock_ctx;                 /**< borrowed until close */
} sl_control_params_t;

SL_API void sl_control_params_default(sl_control_params_t *params);

/** What the train loop tells at a boundary. */
typedef struct sl_control_step {
    uint64_t step;              /**< mini-batches done, this one included */
    double step_us;             /**< wall time of this one */
    double n_units;             /**< samples or tokens in it */
    const uint64_t *peak_bytes; /**< one a device, or NULL */
} sl_control_step_t;

/**
 * Publish the job and start to listen. Without a usable run directory it
 * warns once and goes on unlisted.
 *
 * @return SL_OK, SL_ERR_INVALID_ARG (name, devices), SL_ERR_NO_MEMORY,
 *         SL_ERR_DEVICE (no thread)
 */
SL_API SL_NODISCARD sl_status_t
sl_control_open(const sl_control_params_t *params, sl_control_t **control_p);

/**
 * Before the first mini-batch, and best before memory is taken: when there
 * is a coordinator, wait up to two seconds for its first order, then as long
 * as its action is wait (a dead coordinator's order ends with its TTL).
 * @return nonzero when the job should end instead: stop, or interrupted
 */
SL_API int sl_control_admit(sl_control_t *control);

/**
 * After a mini-batch: take new limits, acknowledge, keep statistics, and hold
 * while a share is 0. NULL control: does nothing.
 * @return nonzero when an order says stop
 */
SL_API int sl_control_boundary(sl_control_t *control,
                               const sl_control_step_t *step);

/**
 * Between two batches that are no mini-batches, such as those of an evaluation:
 * take new limits, acknowledge, and hold while a share is 0; nothing is
 * counted. NULL control: does nothing.
 * @return nonzero when an order says stop
 */
SL_API int sl_control_pause(sl_control_t *control);

/**
 * After a mini-batch that did not fit the memory limit: wait for an order and
 * take it, so that the mini-batch can be run again. NULL control: no order
 * can come.
 * @return nonzero when the job should end instead: stop, or interrupted
 */
SL_API int sl_control_await_order(sl_control_t *control);

/** The directory's name, or NULL when the job is not listed. */
SL_API const char *sl_control_id(const sl_control_t *control);

/** Last status, all shares back to 100, the directory removed. NULL is
 *  allowed. Call it before the devices go, and before a failed engine is
 *  destroyed: a suspended device would not drain. */
SL_API void sl_control_close(sl_control_t *control);

SL_END_DECLS
#endif /* SL_SCHEDULER_CONTROL_H */
