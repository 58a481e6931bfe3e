/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file hash.h
 * XXH3 hashes (xxHash), for state and cache keys. Not for security.
 */
#ifndef SL_BASE_HASH_H
#define SL_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

SL_BEGIN_DECLS

/** Hash of a run of bytes, with `seed` (0, or an earlier hash to chain). */
SL_API uint64_t sl_hash(const void *data, size_t n_bytes, uint64_t seed);
SL_API uint64_t sl_hash_text(const char *text, uint64_t seed);

/** The hash (seed 0) of bytes that come in parts. */
typedef struct sl_hash_stream sl_hash_stream_t; /* opaque */

/** @return SL_OK, SL_ERR_NO_MEMORY */
SL_API SL_NODISCARD sl_status_t
sl_hash_stream_create(sl_hash_stream_t **stream_p);
/** NULL is allowed. */
SL_API void sl_hash_stream_destroy(sl_hash_stream_t *stream);
SL_API void sl_hash_stream_add(sl_hash_stream_t *stream, const void *data,
                               size_t n_bytes);
/** Of everything so far; equal to sl_hash() of it in one piece. */
SL_API uint64_t sl_hash_stream_value(const sl_hash_stream_t *stream);

SL_END_DECLS
#endif /* SL_BASE_HASH_H */
