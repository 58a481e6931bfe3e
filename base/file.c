/* SPDX-License-Identifier: Apache-2.0 */
/* Whole files: read with a cap, replaced atomically. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"

enum {
    FILE_MODE = 0644,
    DIR_MODE = 0755,
    N_NAME_TRIES = 100
};
enum {
    FIRST_READ_BYTES = 4096
};

struct sl_file_writer {
    FILE *stream; /* owned; writes to the temporary file */
    char *path;   /* owned; the name it gets in the end */
    char *dir;    /* owned; the directory of both */
    char *temp;   /* owned; the name it has now */
};

/* ---- reading ---- */

static sl_status_t open_regular(const char *path, int *fd_p, off_t *size_p)
{
    struct stat info;
    sl_status_t status;
    int fd;

    if (path == NULL || path[0] == '\0') {
        SL_FAIL(status, SL_ERR_IO, out, "cannot read: the path is empty");
    }
    /* O_NONBLOCK: a FIFO must be refused, not waited for */
    fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    if (fd < 0) {
        SL_FAIL(status, SL_ERR_IO, out, "cannot read %s: %s", path,
                strerror(errno));
    }
    if (fstat(fd, &info) != 0) {
        SL_FAIL(status, SL_ERR_IO, err_close, "cannot read %s: %s", path,
                strerror(errno));
    }
    if (!S_ISREG(info.st_mode)) {
        SL_FAIL(status, SL_ERR_IO, err_close,
                "cannot read %s: it is %s, not a regular file", path,
                S_ISDIR(info.st_mode) ? "a directory" : "a device or pipe");
    }
    *fd_p = fd;
    *size_p = info.st_size;
    return SL_OK;

err_close:
    (void)close(fd);
out:
    return status;
}

/* read(2) until `want` bytes, the end, or an error. */
static ssize_t read_full(int fd, char *data, size_t want)
{
    size_t n = 0;

    while (n < want) {
        const ssize_t got = read(fd, data + n, want - n);

        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return -1;
        }
        if (got == 0) {
            break;
        }
        n += (size_t)got;
    }
    return (ssize_t)n;
}

/* The size known beforehand is only a hint: files grow, and those of /proc
 * say 0. One byte more than allowed is read to notice the excess. */
static sl_status_t read_all(const char *path, int fd, size_t hint,
                            size_t max_bytes, char **data_p, size_t *n_p)
{
    size_t capacity = hint < FIRST_READ_BYTES ? FIRST_READ_BYTES : hint;
    size_t n = 0;
    char *data = NULL;
    sl_status_t status;

    for (;;) {
        char *grown = realloc(data, capacity + 2);
        ssize_t got;

        if (grown == NULL) {
            SL_FAIL(status, SL_ERR_NO_MEMORY, err_free,
                    "cannot read %s: no memory for %zu bytes", path, capacity);
        }
        data = grown;
        got = read_full(fd, data + n, capacity + 1 - n);
        if (got < 0) {
            SL_FAIL(status, SL_ERR_IO, err_free, "cannot read %s: %s", path,
                    strerror(errno));
        }
        n += (size_t)got;
        if (n > max_bytes) {
            SL_FAIL(status, SL_ERR_IO, err_free,
                    "cannot read %s: it has more than the %zu bytes allowed",
                    path, max_bytes);
        }
        if (n <= capacity) {
            break;
        }
        capacity = capacity > (SIZE_MAX - 2) / 2 ? SIZE_MAX - 2 : capacity * 2;
    }
    data[n] = '\0';
    *data_p = data;
    *n_p = n;
    return SL_OK;

err_free:
    free(data);
    return status;
}

sl_status_t sl_file_read(const char *path, size_t max_bytes, char **data_p,
                         size_t *n_bytes_p)
{
    off_t size = 0;
    int fd = -1;
    sl_status_t status;

    SL_TRY(status, open_regular(path, &fd, &size), out);
    if (size < 0 || (uintmax_t)size > max_bytes) {
        SL_FAIL(status, SL_ERR_IO, out_close,
                "cannot read %s: it has %jd bytes, more than the %zu allowed",
                path, (intmax_t)size, max_bytes);
    }
    if ((uintmax_t)size > SIZE_MAX - 2) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out_close,
                "cannot read %s: %jd bytes do not fit in memory", path,
                (intmax_t)size);
    }
    status = read_all(path, fd, (size_t)size, max_bytes, data_p, n_bytes_p);

out_close:
    (void)close(fd);
out:
    return status;
}

/* ---- writing ---- */

static void writer_free(sl_file_writer_t *writer)
{
    free(writer->path);
    free(writer->dir);
    free(writer->temp);
    free(writer);
}

/* "a/b" -> "a", "b" -> ".", "/b" -> "/"; NULL without memory. */
static char *directory_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    size_t n = slash == NULL ? 0 : (size_t)(slash - path);
    char *dir;

    if (slash == NULL || slash == path) {
        path = slash == NULL ? "." : "/";
        n = 1;
    }
    dir = malloc(n + 1);
    if (dir != NULL) {
        memcpy(dir, path, n);
        dir[n] = '\0';
    }
    return dir;
}

static sl_status_t check_target(const char *path)
{
    struct stat info;
    sl_status_t status = SL_OK;
    const size_t n = path == NULL ? 0 : strlen(path);

    if (n == 0) {
        SL_FAIL(status, SL_ERR_IO, out, "cannot write: the path is empty");
    }
    /* a rename would replace /dev/null or a link instead of writing to it */
    if (path[n - 1] == '/' ||
        (lstat(path, &info) == 0 && !S_ISREG(info.st_mode))) {
        SL_FAIL(status, SL_ERR_IO, out,
                "cannot write %s: it is a directory, link or device; name a "
                "regular file or one that does not exist",
                path);
    }
out:
    return status;
}

/* Not mkstemp: that makes the file 0600, and the only way to learn the umask
 * is to change it, for all threads. The name depends on the directory alone,
 * so a target name of any legal length works. */
static sl_status_t open_temp(sl_file_writer_t *writer, int *fd_p)
{
    static atomic_uint counter; /* makes names of this process differ */
    const size_t bytes = strlen(writer->dir) + 64;
    sl_status_t status;
    int fd = -1, i;

    writer->temp = malloc(bytes);
    if (writer->temp == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "cannot write %s: no memory",
                writer->path);
    }
    for (i = 0; i < N_NAME_TRIES; i++) {
        (void)snprintf(writer->temp, bytes, "%s/.sluice-%ld-%u-%08" PRIx32,
                       writer->dir, (long)getpid(),
                       atomic_fetch_add(&counter, 1), (uint32_t)sl_clock_ns());
        fd = open(writer->temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
                  FILE_MODE);
        if (fd >= 0 || errno != EEXIST) {
            break;
        }
    }
    if (fd < 0) {
        SL_FAIL(status, SL_ERR_IO, out,
                "cannot write %s: no file can be made in %s: %s", writer->path,
                writer->dir, strerror(errno));
    }
    *fd_p = fd;
    status = SL_OK;
out:
    return status;
}

sl_status_t sl_file_begin(const char *path, sl_file_writer_t **writer_p)
{
    sl_file_writer_t *writer = NULL;
    sl_status_t status;
    int fd = -1;

    SL_TRY(status, check_target(path), out);
    writer = calloc(1, sizeof(*writer));
    if (writer == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "cannot write %s: no memory",
                path);
    }
    writer->path = malloc(strlen(path) + 1);
    writer->dir = directory_of(path);
    if (writer->path == NULL || writer->dir == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, err_free,
                "cannot write %s: no memory", path);
    }
    memcpy(writer->path, path, strlen(path) + 1);
    SL_TRY(status, open_temp(writer, &fd), err_free);

    writer->stream = fdopen(fd, "wb");
    if (writer->stream == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, err_unlink,
                "cannot write %s: no stream: %s", path, strerror(errno));
    }
    *writer_p = writer;
    return SL_OK;

err_unlink:
    (void)close(fd);
    (void)unlink(writer->temp);
err_free:
    writer_free(writer);
out:
    return status;
}

FILE *sl_file_stream(sl_file_writer_t *writer)
{
    return writer->stream;
}

/* The stream's bytes on the disk, the stream closed; errors of earlier
 * writes count too. */
static sl_status_t finish_stream(sl_file_writer_t *writer)
{
    FILE *stream = writer->stream;
    sl_status_t status = SL_OK;
    int error = 0;

    errno = 0;
    if (ferror(stream)) {
        error = EIO; /* the write's own errno is gone */
    }
    if (fflush(stream) != 0 || (error == 0 && fsync(fileno(stream)) != 0)) {
        error = errno != 0 ? errno : EIO;
    }
    writer->stream = NULL;
    if (fclose(stream) != 0 && error == 0) {
        error = errno;
    }
    if (error != 0) {
        SL_FAIL(status, SL_ERR_IO, out,
                "cannot write %s: %s; the file is left as it was", writer->path,
                strerror(error));
    }
out:
    return status;
}

/* Makes a rename in the directory last; file systems that cannot (EINVAL)
 * need nothing. */
static sl_status_t sync_directory(const char *dir)
{
    const int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    sl_status_t status = SL_OK;

    if (fd < 0) {
        /* a directory one may write but not list cannot be synced */
        if (errno == EACCES) {
            return SL_OK;
        }
        SL_FAIL(status, SL_ERR_IO, out, "cannot open %s: %s", dir,
                strerror(errno));
    }
    if (fsync(fd) != 0 && errno != EINVAL) {
        SL_FAIL(status, SL_ERR_IO, out_close, "cannot sync %s: %s", dir,
                strerror(errno));
    }
out_close:
    (void)close(fd);
out:
    return status;
}

sl_status_t sl_file_end(sl_file_writer_t *writer)
{
    sl_status_t status;

    SL_TRY(status, finish_stream(writer), err_unlink);
    if (rename(writer->temp, writer->path) != 0) {
        SL_FAIL(status, SL_ERR_IO, err_unlink, "cannot write %s: %s",
                writer->path, strerror(errno));
    }
    status = sync_directory(writer->dir);
    writer_free(writer);
    return status;

err_unlink:
    (void)unlink(writer->temp);
    writer_free(writer);
    return status;
}

void sl_file_abort(sl_file_writer_t *writer)
{
    if (writer == NULL) {
        return;
    }
    (void)fclose(writer->stream);
    (void)unlink(writer->temp);
    writer_free(writer);
}

sl_status_t sl_file_write(const char *path, const void *data, size_t n_bytes)
{
    sl_file_writer_t *writer = NULL;
    sl_status_t status;

    SL_TRY(status, sl_file_begin(path, &writer), out);
    if (n_bytes > 0) {
        /* a short write marks the stream, and sl_file_end reports it */
        (void)fwrite(data, 1, n_bytes, writer->stream);
    }
    status = sl_file_end(writer);
out:
    return status;
}

/* ---- directories ---- */

static sl_status_t make_dir(const char *path)
{
    struct stat info;
    sl_status_t status = SL_OK;

    if (mkdir(path, DIR_MODE) != 0) {
        const int error = errno;

        if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
            return SL_OK;
        }
        SL_FAIL(status, SL_ERR_IO, out, "cannot make directory %s: %s", path,
                error == EEXIST ? "a file of this name exists"
                                : strerror(error));
    }
out:
    return status;
}

sl_status_t sl_file_make_dirs(const char *path)
{
    char *copy = NULL;
    char *p;
    sl_status_t status;

    if (path == NULL || path[0] == '\0') {
        SL_FAIL(status, SL_ERR_IO, out,
                "cannot make a directory: the path is empty");
    }
    copy = malloc(strlen(path) + 1);
    if (copy == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "cannot make directory %s: no memory", path);
    }
    memcpy(copy, path, strlen(path) + 1);
    for (p = copy + 1; *p != '\0'; p++) {
        if (*p == '/') {
            *p = '\0';
            SL_TRY(status, make_dir(copy), out);
            *p = '/';
        }
    }
    status = make_dir(copy);
out:
    free(copy);
    return status;
}
