/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file file.h
 * Whole files: read with a cap, written atomically.
 */
#ifndef SL_BASE_FILE_H
#define SL_BASE_FILE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"

SL_BEGIN_DECLS

/** Read a regular file of at most `max_bytes`; *data_p is owned (free) and
 *  has a NUL after the last byte, which is not counted.
 *  @return SL_OK, SL_ERR_IO, SL_ERR_NO_MEMORY */
SL_API SL_NODISCARD sl_status_t sl_file_read(const char *path, size_t max_bytes,
                                             char **data_p, size_t *n_bytes_p);

/** A file being written: complete under its name, or absent. */
typedef struct sl_file_writer sl_file_writer_t;

/** Start writing `path`: a temporary file in the same directory, 0644 less
 *  the umask. A path that exists and is no regular file (a directory, link
 *  or device) is refused.
 *  @return SL_OK, SL_ERR_IO, SL_ERR_NO_MEMORY */
SL_API SL_NODISCARD sl_status_t sl_file_begin(const char *path,
                                              sl_file_writer_t **writer_p);
/** The stream to write to; borrowed until end or abort. */
SL_API FILE *sl_file_stream(sl_file_writer_t *writer);
/** Flush, fsync, rename, fsync the directory; frees the writer either way.
 *  Any earlier write error of the stream is reported here. */
SL_API SL_NODISCARD sl_status_t sl_file_end(sl_file_writer_t *writer);
/** Drop the temporary file; NULL is allowed. */
SL_API void sl_file_abort(sl_file_writer_t *writer);

/** begin, write, end. */
SL_API SL_NODISCARD sl_status_t sl_file_write(const char *path,
                                              const void *data, size_t n_bytes);

/** Make a directory and its parents (0755); an existing one is fine. */
SL_API SL_NODISCARD sl_status_t sl_file_make_dirs(const char *path);

SL_END_DECLS
#endif /* SL_BASE_FILE_H */
