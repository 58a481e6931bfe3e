/* SPDX-License-Identifier: Apache-2.0 */
/* A job's own directory. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "scheduler/control/lease.h"
#include "scheduler/control/run_dir.h"
#include "scheduler/control/secure_file.h"

enum {
    N_TRIES = 8
};

/* Only to keep names apart; nothing secret hangs on it. */
static uint32_t make_token(void)
{
    uint32_t token;

    if (getrandom(&token, sizeof(token), GRND_NONBLOCK) !=
        (ssize_t)sizeof(token)) {
        token = (uint32_t)(sl_clock_ns() >> 4);
    }
    return token;
}

/* Made under a hidden name, so that nobody sees it half done. */
static sl_status_t make_hidden(sl_run_dir_t *dir, const char *hidden,
                               const char *text, sl_job_dir_t *job_dir)
{
    sl_status_t status;

    job_dir->fd = job_dir->lock_fd = -1;
    if (mkdirat(dir->jobs_fd, hidden, 0700) != 0) {
        SL_REFUSE(status, SL_ERR_IO, out, "cannot make a directory in %s: %s",
                  dir->path, strerror(errno));
    }
    job_dir->fd = openat(dir->jobs_fd, hidden,
                         O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (job_dir->fd < 0) {
        SL_REFUSE(status, SL_ERR_CANCELED, err_rmdir, "%s was removed", hidden);
    }
    SL_TRY(status, sl_lease_take(job_dir->fd, SL_FILE_LOCK, &job_dir->lock_fd),
           err_close);
    SL_TRY(status,
           sl_atomic_write(job_dir->fd, SL_FILE_JOB, 0600, text, strlen(text)),
           err_release);
    if (renameat(dir->jobs_fd, hidden, dir->jobs_fd, job_dir->id.text) != 0) {
        SL_REFUSE(status, SL_ERR_CANCELED, err_unlink, "cannot name %s: %s",
                  job_dir->id.text, strerror(errno));
    }
    return SL_OK;

err_unlink:
    (void)unlinkat(job_dir->fd, SL_FILE_JOB, 0);
err_release:
    (void)unlinkat(job_dir->fd, SL_FILE_LOCK, 0);
    (void)close(job_dir->lock_fd);
err_close:
    (void)close(job_dir->fd);
err_rmdir:
    (void)unlinkat(dir->jobs_fd, hidden, AT_REMOVEDIR);
out:
    return status;
}

sl_status_t sl_job_dir_create(sl_run_dir_t *dir, const sl_control_job_t *job,
                              sl_job_dir_t *job_dir)
{
    sl_job_dir_t made;
    char hidden[SL_CONTROL_ID_BYTES + 8];
    char *text = NULL;
    sl_status_t status;
    int i;

    SL_TRY(status, sl_control_job_format(job, &text), out);
    /* whoever cleans up may take a directory for a dead one's: try again */
    status = SL_ERR_IO;
    for (i = 0; i < N_TRIES && status < 0; i++) {
        (void)snprintf(made.id.text, sizeof(made.id.text), "%s-%ld-%08x",
                       job->name, (long)getpid(), (unsigned)make_token());
        (void)snprintf(hidden, sizeof(hidden), ".new-%s", made.id.text);
        status = make_hidden(dir, hidden, text, &made);
    }
    if (status >= 0) {
        *job_dir = made;
    }
out:
    free(text);
    return status;
}

int sl_job_dir_is_gone(const sl_job_dir_t *job_dir)
{
    struct stat info;

    return fstat(job_dir->lock_fd, &info) == 0 && info.st_nlink == 0;
}

sl_status_t sl_job_dir_remake(sl_run_dir_t *dir, const sl_control_job_t *job,
                              sl_job_dir_t *job_dir)
{
    char hidden[SL_CONTROL_ID_BYTES + 8];
    sl_job_dir_t made = {.id = job_dir->id};
    struct stat info;
    char *text = NULL;
    sl_status_t status;

    SL_TRY(status, sl_control_job_format(job, &text), out);
    if (fstat(dir->jobs_fd, &info) != 0 || info.st_nlink == 0) {
        SL_TRY(status, sl_run_dir_reopen(dir), out);
    }
    /* what was left of it, such as a status that came between */
    sl_run_dir_empty(job_dir->fd);
    (void)unlinkat(dir->jobs_fd, job_dir->id.text, AT_REMOVEDIR);
    (void)snprintf(hidden, sizeof(hidden), ".new-%s", made.id.text);
    SL_TRY(status, make_hidden(dir, hidden, text, &made), out);
    (void)close(job_dir->lock_fd);
    (void)close(job_dir->fd);
    job_dir->lock_fd = made.lock_fd; /* others read the id meanwhile */
    job_dir->fd = made.fd;
out:
    free(text);
    return status;
}

void sl_job_dir_remove(sl_run_dir_t *dir, sl_job_dir_t *job_dir)
{
    /* let go of the lease: it is then a dead job's directory like any other */
    (void)close(job_dir->lock_fd);
    (void)close(job_dir->fd);
    job_dir->fd = job_dir->lock_fd = -1;
    sl_run_dir_clean(dir);
}
