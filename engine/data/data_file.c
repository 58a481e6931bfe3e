/* SPDX-License-Identifier: Apache-2.0 */
/* Opening and reading the files of a data set. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/data/data_internal.h"

sl_status_t sl_data_path_check(const sl_data_params_t *params, const char *key,
                               const char *path)
{
    sl_status_t status = SL_OK;

    if (path == NULL || path[0] == '\0') {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "data format %s needs '%s', the name of a file", params->format,
                key);
    }
out:
    return status;
}

sl_status_t sl_data_file_open(const char *path, int *fd_p, int64_t *n_bytes_p)
{
    struct stat info;
    sl_status_t status;
    int fd;

    /* O_NONBLOCK: opening a pipe must not wait for its writer */
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        SL_FAIL(status, SL_ERR_IO, out, "data file %s: %s", path,
                strerror(errno));
    }
    if (fstat(fd, &info) != 0) {
        SL_FAIL(status, SL_ERR_IO, err_close, "data file %s: %s", path,
                strerror(errno));
    }
    if (!S_ISREG(info.st_mode)) {
        SL_FAIL(status, SL_ERR_IO, err_close,
                "data file %s: is %s, a regular file was expected", path,
                S_ISDIR(info.st_mode) ? "a directory" : "a special file");
    }
    if (info.st_size == 0) {
        SL_FAIL(status, SL_ERR_CORRUPT, err_close, "data file %s: is empty",
                path);
    }
    *fd_p = fd;
    *n_bytes_p = (int64_t)info.st_size;
    return SL_OK;

err_close:
    (void)close(fd);
out:
    return status;
}

sl_status_t sl_data_file_read(int fd, const char *path, void *bytes,
                              size_t n_bytes, int64_t offset)
{
    sl_status_t status = SL_OK;
    size_t done = 0;

    while (done < n_bytes) {
        const ssize_t got = pread(fd, (char *)bytes + done, n_bytes - done,
                                  (off_t)(offset + (int64_t)done));

        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            SL_FAIL(status, SL_ERR_IO, out, "data file %s: offset %lld: %s",
                    path, (long long)(offset + (int64_t)done), strerror(errno));
        }
        if (got == 0) {
            SL_FAIL(status, SL_ERR_CORRUPT, out,
                    "data file %s: ends at offset %lld, %zu bytes from "
                    "offset %lld were expected",
                    path, (long long)(offset + (int64_t)done), n_bytes,
                    (long long)offset);
        }
        done += (size_t)got;
    }
out:
    return status;
}
