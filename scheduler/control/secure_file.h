/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file secure_file.h
 * Files that steer a job, read with suspicion, and files of our own, written
 * whole. Failures are refusals (not logged), details as sl_last_error().
 */
#ifndef SL_SCHEDULER_CONTROL_SECURE_FILE_H
#define SL_SCHEDULER_CONTROL_SECURE_FILE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "base/status.h"

/** What tells one state of a file from another. */
typedef struct sl_file_state {
    int exists;
    dev_t device;
    ino_t inode;
    mode_t mode;
    uid_t owner;
    off_t n_bytes;
    struct timespec modified, changed;
} sl_file_state_t;

/** The state of what `name` (no link followed) is now. */
void sl_file_state_get(int dir_fd, const char *name, sl_file_state_t *state);
int sl_file_state_is_equal(const sl_file_state_t *a, const sl_file_state_t *b);

/**
 * Read a file only if it can be trusted: a regular file, no link, owned by
 * this user or root, not writable by group or others, of at most `max_bytes`.
 * Never blocks, whatever it is.
 *
 * @param[in]  dir_fd  directory of `name`, or AT_FDCWD
 * @param[out] text_p  owned (free), with a NUL after the last byte
 * @param[out] state_p of the file that was read or refused; written always
 * @return SL_OK; SL_ERR_NOT_FOUND; SL_ERR_IO (why); SL_ERR_NO_MEMORY
 */
SL_NODISCARD sl_status_t sl_secure_read(int dir_fd, const char *name,
                                        size_t max_bytes, char **text_p,
                                        size_t *n_p, sl_file_state_t *state_p);

/** Whether an open directory is this user's and no one else can write in it.
 *  @return SL_OK; SL_ERR_IO with what to fix */
SL_NODISCARD sl_status_t sl_secure_dir_check(int fd, const char *path);

/**
 * Replace a file by rename, so that no reader sees half of it. It is on the
 * disk before it has its name: a power cut leaves the old one or the new one.
 *
 * @return SL_OK, SL_ERR_NOT_FOUND (the directory is gone), SL_ERR_IO
 */
SL_NODISCARD sl_status_t sl_atomic_write(int dir_fd, const char *name,
                                         mode_t mode, const char *text,
                                         size_t n_bytes);

/** The same for what is written all the time and means nothing after a power
 *  cut: it is not flushed, so a busy disk does not hold up the writer. */
SL_NODISCARD sl_status_t sl_atomic_write_unflushed(int dir_fd, const char *name,
                                                   mode_t mode,
                                                   const char *text,
                                                   size_t n_bytes);

/** Likewise, not flushed, for a path. */
SL_NODISCARD sl_status_t sl_atomic_write_path(const char *path, mode_t mode,
                                              const char *text, size_t n_bytes);

/** Remove what writers of `name` who were killed left beside it, when it is
 *  `min_age_s` old: 0 for who is the only writer, else longer than a write
 *  takes. */
void sl_atomic_clean(int dir_fd, const char *name, int64_t min_age_s);
void sl_atomic_clean_path(const char *path, int64_t min_age_s);

#endif /* SL_SCHEDULER_CONTROL_SECURE_FILE_H */
