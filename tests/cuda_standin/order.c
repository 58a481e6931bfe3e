/* SPDX-License-Identifier: Apache-2.0 */
/* Which uses of the same bytes are ordered: those whose stamp the later one's
 * clock has reached. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "standin_internal.h"

static int is_known(const vclock_t *clock, const access_t *access)
{
    return clock->at[access->slot] >= access->stamp;
}

/* What the host has seen end comes before all that it queues from now on. */
static void forget_ended(allocation_t *allocation)
{
    access_t **at = &allocation->accesses;

    while (*at != NULL) {
        access_t *access = *at;

        if (is_known(&standin_host, access)) {
            *at = access->next;
            free(access);
        } else {
            at = &access->next;
        }
    }
}

/* Earlier uses that the new one stands for: they lie inside, come before it,
 * and the new one is a write or neither is. */
static void forget_covered(allocation_t *allocation, const vclock_t *clock,
                           uintptr_t begin, uintptr_t end, int is_write)
{
    access_t **at = &allocation->accesses;

    while (*at != NULL) {
        access_t *access = *at;

        if (access->begin >= begin && access->end <= end &&
            (is_write || !access->is_write) && is_known(clock, access)) {
            *at = access->next;
            free(access);
        } else {
            at = &access->next;
        }
    }
}

static void check(cudaStream_t stream, const allocation_t *allocation,
                  uintptr_t begin, uintptr_t end, int is_write,
                  const char *name)
{
    const access_t *access;

    for (access = allocation->accesses; access != NULL; access = access->next) {
        if (access->begin < end && begin < access->end &&
            (is_write || access->is_write) &&
            !is_known(&stream->clock, access)) {
            standin_complain(
                "%s on stream %d %s bytes %zu..%zu of an allocation of %zu; "
                "%s on stream %d, which %s bytes %zu..%zu, is not ordered "
                "before it",
                name, stream->slot, is_write ? "writes" : "reads",
                (size_t)(begin - allocation->base),
                (size_t)(end - allocation->base), allocation->bytes,
                access->name, access->slot,
                access->is_write ? "writes" : "reads",
                (size_t)(access->begin - allocation->base),
                (size_t)(access->end - allocation->base));
            return;
        }
    }
}

static void record(cudaStream_t stream, allocation_t *allocation,
                   uintptr_t begin, uintptr_t end, int is_write,
                   const char *name)
{
    access_t *access = calloc(1, sizeof(*access));

    if (access == NULL) {
        abort();
    }
    access->begin = begin;
    access->end = end;
    access->is_write = is_write;
    access->slot = stream->slot;
    access->stamp = stream->clock.at[stream->slot];
    (void)snprintf(access->name, sizeof(access->name), "%s", name);
    access->next = allocation->accesses;
    allocation->accesses = access;
}

int order_use(cudaStream_t stream, const void *ptr, size_t bytes, int is_write,
              const char *name)
{
    const uintptr_t begin = (uintptr_t)ptr, end = begin + bytes;
    allocation_t *allocation;

    if (bytes == 0) {
        return 1;
    }
    if (stream->capture != NULL) {
        return graph_use(stream->capture, ptr, bytes, is_write, name);
    }
    allocation = memory_find(ptr);
    if (allocation == NULL || allocation->is_freed ||
        end > allocation->base + allocation->bytes) {
        standin_complain("%s on stream %d %s %zu bytes that are not "
                         "(or no longer) allocated%s",
                         name, stream->slot, is_write ? "writes" : "reads",
                         bytes,
                         allocation == NULL     ? ""
                         : allocation->is_freed ? ": freed"
                                                : ": past the end");
        return 0;
    }
    if (!memory_is_mapped(allocation, begin, end)) {
        standin_complain("%s on stream %d %s %zu bytes of addresses that have "
                         "no (or no longer any) memory",
                         name, stream->slot, is_write ? "writes" : "reads",
                         bytes);
        return 0;
    }
    forget_ended(allocation);
    check(stream, allocation, begin, end, is_write, name);
    forget_covered(allocation, &stream->clock, begin, end, is_write);
    record(stream, allocation, begin, end, is_write, name);
    return 1;
}

void order_free(cudaStream_t stream, allocation_t *allocation, const char *name)
{
    forget_ended(allocation);
    check(stream, allocation, allocation->base,
          allocation->base + allocation->bytes, 1, name);
}

int order_unmap(allocation_t *allocation, uintptr_t begin, uintptr_t end)
{
    const access_t *access;

    forget_ended(allocation);
    for (access = allocation->accesses; access != NULL; access = access->next) {
        if (access->begin < end && begin < access->end) {
            standin_complain(
                "cuMemUnmap of bytes %zu..%zu of a range of %zu; %s on stream "
                "%d, which %s bytes %zu..%zu, has not been waited for",
                (size_t)(begin - allocation->base),
                (size_t)(end - allocation->base), allocation->bytes,
                access->name, access->slot,
                access->is_write ? "writes" : "reads",
                (size_t)(access->begin - allocation->base),
                (size_t)(access->end - allocation->base));
            return 0;
        }
    }
    return 1;
}
