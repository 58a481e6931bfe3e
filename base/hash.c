/* SPDX-License-Identifier: Apache-2.0 */
/* XXH3, 64 bits. */
#include "base/hash.h"

#include <string.h>

#include <xxhash.h>

uint64_t sl_hash(const void *data, size_t n_bytes, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, n_bytes, seed);
}

uint64_t sl_hash_text(const char *text, uint64_t seed)
{
    return sl_hash(text, strlen(text), seed);
}
