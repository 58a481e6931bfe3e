/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file run_dir.h
 * The run directory and the job directories in it. Everything is reached
 * through open directories, never through a path that somebody could change.
 */
#ifndef SL_SCHEDULER_CONTROL_RUN_DIR_H
#define SL_SCHEDULER_CONTROL_RUN_DIR_H

#include "scheduler/control.h"

#define SL_FILE_LOCK "lock"
#define SL_FILE_JOB "job.json"
#define SL_FILE_STATUS "status.json"
#define SL_FILE_CONTROL "control.json"
#define SL_FILE_COORDINATOR "coordinator.lock"
#define SL_FILE_REPORT "coordinator.json"

struct sl_run_dir {
    char *path;     /* owned */
    int fd;         /* of the directory */
    int jobs_fd;    /* of jobs/ in it */
    int lock_fd;    /* the coordinator's lease; -1 = not ours */
    int inotify_fd; /* -1 = none */
};

/** A job's directory, made by that job. */
typedef struct sl_job_dir {
    int fd;
    int lock_fd; /**< held while the job lives */
    sl_run_id_t id;
} sl_job_dir_t;

/**
 * Make and lock "<name>-<pid>-<token>" with job.json in it; it appears under
 * its name complete.
 *
 * @return SL_OK, SL_ERR_IO, SL_ERR_NO_MEMORY; not logged
 */
SL_NODISCARD sl_status_t sl_job_dir_create(sl_run_dir_t *dir,
                                           const sl_control_job_t *job,
                                           sl_job_dir_t *job_dir);
/** Whether somebody removed it, or its lock, which is the same to others. */
int sl_job_dir_is_gone(const sl_job_dir_t *job_dir);
/** Make a directory that is gone again, under its name; the run directory too
 *  when that is gone. On failure all is as before.
 *  @return SL_OK, SL_ERR_IO, SL_ERR_NO_MEMORY; not logged */
SL_NODISCARD sl_status_t sl_job_dir_remake(sl_run_dir_t *dir,
                                           const sl_control_job_t *job,
                                           sl_job_dir_t *job_dir);
/** Remove what is in it, then itself. */
void sl_job_dir_remove(sl_run_dir_t *dir, sl_job_dir_t *job_dir);

/** Open the run directory again by its path, and make it when absent.
 *  @return SL_OK, SL_ERR_IO, SL_ERR_NO_MEMORY; then nothing has changed */
SL_NODISCARD sl_status_t sl_run_dir_reopen(sl_run_dir_t *dir);

/** Whether the job has a page for its pulse. */
int sl_run_job_has_pulse(sl_run_dir_t *dir, const sl_run_id_t *id);

/** Remove the files in a job's directory, the lock last. */
void sl_run_dir_empty(int job_fd);

/** Remove the directories whose job is dead. */
void sl_run_dir_clean(sl_run_dir_t *dir);

#endif /* SL_SCHEDULER_CONTROL_RUN_DIR_H */
