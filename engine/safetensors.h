/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file safetensors.h
 * Reading and writing safetensors files: an 8-byte little-endian header
 * length, a JSON header (name -> dtype, shape, data_offsets), the data.
 *
 * Reading is strict: the whole header is checked when the file is opened, so
 * that no later access can leave the file or the tensor. Any dtype of the
 * format may be in the file; F32, F16 and BF16 can be read, as float.
 * Writing is F32, streamed, and atomic.
 */
#ifndef SL_ENGINE_SAFETENSORS_H
#define SL_ENGINE_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

SL_BEGIN_DECLS

enum {
    SL_SAFETENSORS_MAX_DIMS = 8
};

/** A tensor to write, or one that a file has. */
typedef struct sl_safetensors_entry {
    const char *name; /**< borrowed */
    int n_dims;       /**< 0 = one number */
    int64_t dims[SL_SAFETENSORS_MAX_DIMS];
    const char *dtype; /**< of a file's tensor: "F32", "BF16", ... borrowed;
                            ignored in writing */
} sl_safetensors_entry_t;

/** Product of the dims. Those of an open file never overflow. */
SL_API int64_t sl_safetensors_elements(const sl_safetensors_entry_t *entry);

/* ---- reading ---- */

typedef struct sl_safetensors sl_safetensors_t; /* opaque */

/**
 * Open a file and check its header.
 *
 * @return SL_OK; SL_ERR_IO; SL_ERR_CORRUPT (header, with what is wrong);
 *         SL_ERR_UNSUPPORTED (more than 8 dims, a dtype that is not known);
 *         SL_ERR_NO_MEMORY
 */
SL_API SL_NODISCARD sl_status_t sl_safetensors_open(const char *path,
                                                    sl_safetensors_t **file_p);
/** The same for an open file; `path` is for messages. The descriptor is taken
 *  also on failure. */
SL_API SL_NODISCARD sl_status_t sl_safetensors_open_fd(
    int take_fd, const char *path, sl_safetensors_t **file_p);
/** NULL is allowed. */
SL_API void sl_safetensors_close(sl_safetensors_t *file);

SL_API size_t sl_safetensors_count(const sl_safetensors_t *file);
/** Tensor i in the order of names; borrowed from the file. */
SL_API const sl_safetensors_entry_t *
sl_safetensors_at(const sl_safetensors_t *file, size_t i);
/** The tensor with this name, borrowed from the file, or NULL. */
SL_API const sl_safetensors_entry_t *
sl_safetensors_find(const sl_safetensors_t *file, const char *name);

/** A text of the file's `__metadata__`, borrowed from the file, or NULL. */
SL_API const char *sl_safetensors_metadata(const sl_safetensors_t *file,
                                           const char *key);

/**
 * Read a tensor as float.
 *
 * @param[in]  entry  one of this file's, from at or find
 * @param[out] values room for sl_safetensors_elements(entry); its contents
 *             are undefined after a failure
 * @return SL_OK; SL_ERR_UNSUPPORTED (dtype); SL_ERR_IO
 */
SL_API SL_NODISCARD sl_status_t sl_safetensors_read(
    sl_safetensors_t *file, const sl_safetensors_entry_t *entry, float *values);

/* ---- writing ---- */

typedef struct sl_safetensors_writer sl_safetensors_writer_t; /* opaque */

/**
 * Start a file with these tensors, all F32. Nothing is seen under `path`
 * before sl_safetensors_end.
 *
 * @param[in] entries borrowed for the call
 * @return SL_OK; SL_ERR_INVALID_ARG (a name that is empty, reserved, there
 *         twice or not UTF-8; dims); SL_ERR_IO; SL_ERR_NO_MEMORY
 */
SL_API SL_NODISCARD sl_status_t
sl_safetensors_begin(const char *path, const sl_safetensors_entry_t *entries,
                     size_t n, sl_safetensors_writer_t **writer_p);
/** The same with one more text in the file's `__metadata__`. */
SL_API SL_NODISCARD sl_status_t sl_safetensors_begin_with(
    const char *path, const sl_safetensors_entry_t *entries, size_t n,
    const char *key, const char *value, sl_safetensors_writer_t **writer_p);
/** The data of the next tensor, in the order of `entries`. */
SL_API SL_NODISCARD sl_status_t
sl_safetensors_append(sl_safetensors_writer_t *writer, const float *values);
/** Put the file in place; frees the writer, also on failure. SL_ERR_INVALID_ARG
 *  when tensors are missing. */
SL_API SL_NODISCARD sl_status_t
sl_safetensors_end(sl_safetensors_writer_t *writer);
/** The same, and the file's size and XXH3 hash. */
SL_API SL_NODISCARD sl_status_t sl_safetensors_finish(
    sl_safetensors_writer_t *writer, uint64_t *n_bytes_p, uint64_t *hash_p);
/** Drop what was written. NULL is allowed. */
SL_API void sl_safetensors_abort(sl_safetensors_writer_t *writer);

SL_END_DECLS
#endif /* SL_ENGINE_SAFETENSORS_H */
