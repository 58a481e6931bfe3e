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

SL_END_DECLS
#endif /* SL_BASE_HASH_H */
