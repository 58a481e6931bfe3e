/* SPDX-License-Identifier: Apache-2.0 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* SCHED_IDLE */
#endif
#include "scheduler/coordinator/priority.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scheduler/machine.h"

/* Field 22 of /proc/<pid>/stat; 0 when there is none. The name in field 2
 * may hold spaces and brackets: counting starts behind the last one. */
static uint64_t read_start(int64_t pid)
{
    char path[64], text[1024];
    const char *field;
    size_t n = 0;
    FILE *file;
    int i;

    (void)snprintf(path, sizeof(path), "/proc/%" PRId64 "/stat", pid);
    file = fopen(path, "re");
    if (file != NULL) {
        n = fread(text, 1, sizeof(text) - 1, file);
        (void)fclose(file);
    }
    text[n] = '\0';
    field = strrchr(text, ')');
    for (i = 2; i < 22 && field != NULL; i++) {
        field = strchr(field + 1, ' ');
    }
    return field == NULL ? 0 : strtoull(field, NULL, 10);
}

/* Not by sched_setscheduler(), which resets a slice of the thread's own. A
 * thread that is not in the background may have any policy of its owner's. */
static int set_thread(pid_t thread, int is_background)
{
    sl_machine_sched_t sched;
    int error = sl_machine_sched_get((int)thread, &sched);

    if (error == 0 &&
        sl_machine_sched_is_background(&sched) != (is_background != 0)) {
        sched.policy = is_background ? SCHED_IDLE : SCHED_OTHER;
        error = sl_machine_sched_set((int)thread, &sched);
    }
    return error == ESRCH ? 0 : error;
}

sl_status_t sl_priority_set(const sl_control_job_t *job, int is_background)
{
    const struct dirent *entry;
    sl_status_t status = SL_OK;
    char path[64];
    int error = 0;
    DIR *threads;

    if (job->pid <= 0 || job->start_ticks == 0 ||
        read_start(job->pid) != job->start_ticks) {
        return SL_OK; /* ended, or of another namespace */
    }
    (void)snprintf(path, sizeof(path), "/proc/%" PRId64 "/task", job->pid);
    threads = opendir(path);
    if (threads == NULL) {
        return SL_OK;
    }
    for (entry = readdir(threads); entry != NULL; entry = readdir(threads)) {
        const long thread = strtol(entry->d_name, NULL, 10);

        if (thread > 0 && error == 0) {
            error = set_thread((pid_t)thread, is_background);
        }
    }
    (void)closedir(threads);
    if (error != 0) {
        SL_REFUSE(status, SL_ERR_UNSUPPORTED, out,
                  "cannot move the threads of process %" PRId64 " %s the "
                  "background: %s",
                  job->pid, is_background ? "into" : "out of", strerror(error));
    }
out:
    return status;
}
