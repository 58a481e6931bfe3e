/* SPDX-License-Identifier: Apache-2.0 */
/* XXH3, 64 bits. */
#include "base/hash.h"

#include <stdlib.h>
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

struct sl_hash_stream {
    XXH3_state_t *state;
};

sl_status_t sl_hash_stream_create(sl_hash_stream_t **stream_p)
{
    sl_hash_stream_t *stream = calloc(1, sizeof(*stream));
    sl_status_t status;

    if (stream == NULL || (stream->state = XXH3_createState()) == NULL) {
        free(stream);
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "hash: no host memory");
    }
    (void)XXH3_64bits_reset(stream->state);
    *stream_p = stream;
    return SL_OK;
out:
    return status;
}

void sl_hash_stream_destroy(sl_hash_stream_t *stream)
{
    if (stream != NULL) {
        (void)XXH3_freeState(stream->state);
        free(stream);
    }
}

void sl_hash_stream_add(sl_hash_stream_t *stream, const void *data,
                        size_t n_bytes)
{
    if (n_bytes > 0) {
        (void)XXH3_64bits_update(stream->state, data, n_bytes);
    }
}

uint64_t sl_hash_stream_value(const sl_hash_stream_t *stream)
{
    return XXH3_64bits_digest(stream->state);
}
