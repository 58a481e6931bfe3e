/* SPDX-License-Identifier: Apache-2.0 */
/* Transfers beside compute. A transfer is known to its sender: from when the
 * tensor was ready until it had left. The receiver looks at it with its own
 * clock, whose difference is measured where the two are on different hosts. */
#include "engine/parallel/overlap.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/parallel/together.h"
#include "engine/world.h"

enum {
    N_SPANS = 1 << 14, /* that are kept */
    N_PINGS = 16
};

/* What the two ends of an edge tell each other. */
typedef struct sl_overlap_message {
    uint64_t n; /* of the intervals */
    sl_interval_t intervals[SL_TRANSFER_LOG];
} sl_overlap_message_t;

typedef struct sl_overlap_answer {
    uint64_t n, transfer_ns, sender_ns, receiver_ns;
} sl_overlap_answer_t;

/* When the devices of this rank computed. */
typedef struct sl_busy {
    sl_interval_t *spans; /* owned: one device's after the other's */
    size_t *first;        /* owned: n_devices + 1 entries */
    uint64_t since_ns;    /* what was before is not known */
} sl_busy_t;

/* ---- intervals ---- */

static int by_start(const void *a, const void *b)
{
    const sl_interval_t *x = a, *y = b;

    return (x->start_ns > y->start_ns) - (x->start_ns < y->start_ns);
}

size_t sl_overlap_join(sl_interval_t *spans, size_t n)
{
    size_t i, n_left = 0;

    qsort(spans, n, sizeof(*spans), by_start);
    for (i = 0; i < n; i++) {
        sl_interval_t *last = n_left > 0 ? &spans[n_left - 1] : NULL;

        if (last == NULL || spans[i].start_ns > last->end_ns) {
            spans[n_left++] = spans[i];
        } else if (spans[i].end_ns > last->end_ns) {
            last->end_ns = spans[i].end_ns;
        }
    }
    return n_left;
}

uint64_t sl_overlap_under(const sl_interval_t *spans, size_t n,
                          const sl_interval_t *interval)
{
    size_t low = 0, high = n;
    uint64_t sum = 0;

    /* the first that ends after the interval begins */
    while (low < high) {
        const size_t middle = (low + high) / 2;

        if (spans[middle].end_ns > interval->start_ns) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    for (; low < n && spans[low].start_ns < interval->end_ns; low++) {
        const uint64_t start = spans[low].start_ns > interval->start_ns
                                   ? spans[low].start_ns
                                   : interval->start_ns;
        const uint64_t end = spans[low].end_ns < interval->end_ns
                                 ? spans[low].end_ns
                                 : interval->end_ns;

        sum += end > start ? end - start : 0;
    }
    return sum;
}

/* ---- what is kept ---- */

sl_status_t sl_overlap_reserve(sl_engine_t *engine)
{
    sl_status_t status = SL_OK;

    if (engine->params.world == NULL || !engine->params.trace ||
        engine->compute_log != NULL) {
        return SL_OK;
    }
    engine->compute_log = calloc(N_SPANS, sizeof(*engine->compute_log));
    if (engine->compute_log == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "engine: no host memory for the times of %d passes",
                (int)N_SPANS);
    }
out:
    return status;
}

static int is_compute(sl_instruction_kind_t kind)
{
    return kind == SL_INSTRUCTION_FORWARD || kind == SL_INSTRUCTION_RECOMPUTE ||
           kind == SL_INSTRUCTION_BACKWARD || kind == SL_INSTRUCTION_UPDATE;
}

void sl_overlap_note_step(sl_engine_t *engine)
{
    size_t i;
    int k;

    for (k = 0; engine->compute_log != NULL && k < engine->n_cells; k++) {
        const sl_stage_t *stage = &engine->stages[k];

        for (i = 0; i < stage->train_list.n; i++) {
            const sl_op_span_t *span = &stage->spans[i];
            sl_compute_span_t *kept =
                &engine->compute_log[engine->n_compute % N_SPANS];

            if (span->start_ns != 0 &&
                is_compute(stage->train_list.items[i].kind)) {
                kept->when.start_ns = span->start_ns;
                kept->when.end_ns = span->end_ns;
                kept->device =
                    (int)(stage->device - engine->params.devices->devices);
                engine->n_compute++;
            }
        }
    }
}

/* Device by device, joined. Kept spans end in the order of steps, not within
 * one: what is not surely known begins a step after the oldest. */
static sl_status_t busy_init(const sl_engine_t *engine, sl_busy_t *busy)
{
    const size_t n_devices = (size_t)engine->params.devices->n_devices;
    const size_t n = engine->compute_log == NULL   ? 0
                     : engine->n_compute < N_SPANS ? (size_t)engine->n_compute
                                                   : (size_t)N_SPANS;
    sl_status_t status = SL_OK;
    size_t d, i, at = 0;

    busy->spans = calloc(n + 1, sizeof(*busy->spans));
    busy->first = calloc(n_devices + 1, sizeof(*busy->first));
    if (busy->spans == NULL || busy->first == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "engine: no host memory for the times of %zu passes", n);
    }
    busy->since_ns = n == 0 ? UINT64_MAX : 0;
    for (i = 0; i < n && engine->n_compute > N_SPANS; i++) {
        /* a quarter of what is kept is more than a step, or too little */
        const uint64_t end_ns = engine->compute_log[i].when.end_ns;
        const size_t age = (size_t)((engine->n_compute - 1 - i) % N_SPANS);

        if (age > (size_t)N_SPANS / 4 * 3 && end_ns > busy->since_ns) {
            busy->since_ns = end_ns;
        }
    }
    for (d = 0; d < n_devices; d++) {
        const size_t first = at;

        busy->first[d] = first;
        for (i = 0; i < n; i++) {
            if (engine->compute_log[i].device == (int)d) {
                busy->spans[at++] = engine->compute_log[i].when;
            }
        }
        at = first + sl_overlap_join(busy->spans + first, at - first);
    }
    busy->first[n_devices] = at;
    return SL_OK;
out:
    return status;
}

static void busy_cleanup(sl_busy_t *busy)
{
    free(busy->spans);
    free(busy->first);
}

/* The transfers' time, and how much of it this rank's device computed. */
static uint64_t sum_under(const sl_busy_t *busy, int device,
                          const sl_interval_t *interval)
{
    const size_t first = busy->first[device];

    return sl_overlap_under(busy->spans + first,
                            busy->first[device + 1] - first, interval);
}

/* ---- clocks ---- */

/* Add it to the peer's times to have ours. Both ranks call it; of all answers
 * the quickest is believed. */
static sl_status_t find_offset(const sl_engine_t *engine, int peer,
                               int64_t *offset_p)
{
    sl_world_t *world = engine->params.world;
    const int own = engine->grid->rank;
    uint64_t best = UINT64_MAX, theirs = 0;
    int64_t offset = 0;
    sl_status_t status = SL_OK;
    int i;

    *offset_p = 0;
    if (strcmp(sl_world_host(world, own), sl_world_host(world, peer)) == 0) {
        return SL_OK; /* one clock */
    }
    for (i = 0; i < N_PINGS; i++) {
        const uint64_t start = sl_clock_ns();
        uint64_t end;

        if (own > peer) {
            SL_TRY(status, sl_world_get(world, peer, &theirs, sizeof(theirs)),
                   out);
            theirs = sl_clock_ns();
            SL_TRY(status, sl_world_put(world, peer, &theirs, sizeof(theirs)),
                   out);
            continue;
        }
        SL_TRY(status, sl_world_put(world, peer, &start, sizeof(start)), out);
        SL_TRY(status, sl_world_get(world, peer, &theirs, sizeof(theirs)), out);
        end = sl_clock_ns();
        if (end - start < best) {
            best = end - start;
            offset = (int64_t)(start / 2 + end / 2) - (int64_t)theirs;
        }
    }
    if (own < peer) {
        SL_TRY(status, sl_world_put(world, peer, &offset, sizeof(offset)), out);
        *offset_p = offset;
    } else {
        SL_TRY(status, sl_world_get(world, peer, &offset, sizeof(offset)), out);
        *offset_p = -offset;
    }
out:
    return status;
}

/* ---- edges ---- */

static int device_of(const sl_engine_t *engine, const sl_channel_t *channel)
{
    const int cell = channel->is_sender ? channel->from_cell : channel->to_cell;
    const sl_stage_t *stage = sl_engine_find_stage(
        engine, cell / engine->n_stages, cell % engine->n_stages);

    return (int)(stage->device - engine->params.devices->devices);
}

static void keep_answer(sl_channel_t *channel,
                        const sl_overlap_answer_t *answer)
{
    channel->overlap.n = answer->n;
    channel->overlap.transfer_ns = answer->transfer_ns;
    channel->overlap.sender_ns = answer->sender_ns;
    channel->overlap.receiver_ns = answer->receiver_ns;
}

/* The sender says when its latest transfers were, and hears what became of
 * them there. Those of which it does not know its own compute are left out. */
static sl_status_t tell_edge(const sl_engine_t *engine, const sl_busy_t *busy,
                             sl_channel_t *channel,
                             sl_overlap_message_t *message)
{
    sl_world_t *world = engine->params.world;
    sl_overlap_answer_t answer = {0};
    sl_interval_t interval;
    sl_status_t status;
    uint64_t i;

    memset(message, 0, sizeof(*message));
    for (i = 0; sl_channel_transfer(channel, i, &interval); i++) {
        if (interval.start_ns >= busy->since_ns) {
            message->intervals[message->n++] = interval;
        }
    }
    SL_TRY(status,
           sl_world_put(world, channel->peer, message, sizeof(*message)), out);
    SL_TRY(status,
           sl_world_get(world, channel->peer, message, sizeof(*message)), out);
    SL_TRY(status, sl_world_get(world, channel->peer, &answer, sizeof(answer)),
           out);
    /* the intervals that came back are those that both know about */
    for (i = 0; i < message->n && i < SL_TRANSFER_LOG; i++) {
        answer.sender_ns +=
            sum_under(busy, device_of(engine, channel), &message->intervals[i]);
    }
    keep_answer(channel, &answer);
    status = sl_world_put(world, channel->peer, &answer, sizeof(answer));
out:
    return status;
}

static sl_status_t hear_edge(const sl_engine_t *engine, const sl_busy_t *busy,
                             sl_channel_t *channel, int64_t offset,
                             sl_overlap_message_t *message)
{
    sl_world_t *world = engine->params.world;
    sl_overlap_answer_t answer = {0};
    sl_status_t status;
    uint64_t i, n;

    SL_TRY(status,
           sl_world_get(world, channel->peer, message, sizeof(*message)), out);
    n = message->n < SL_TRANSFER_LOG ? message->n : SL_TRANSFER_LOG;
    message->n = 0;
    for (i = 0; i < n; i++) {
        const sl_interval_t theirs = message->intervals[i];
        const sl_interval_t ours = {
            (uint64_t)((int64_t)theirs.start_ns + offset),
            (uint64_t)((int64_t)theirs.end_ns + offset)};

        if (ours.start_ns >= busy->since_ns) {
            message->intervals[message->n++] = theirs;
            answer.transfer_ns += ours.end_ns - ours.start_ns;
            answer.receiver_ns +=
                sum_under(busy, device_of(engine, channel), &ours);
        }
    }
    answer.n = message->n;
    SL_TRY(status,
           sl_world_put(world, channel->peer, message, sizeof(*message)), out);
    SL_TRY(status, sl_world_put(world, channel->peer, &answer, sizeof(answer)),
           out);
    SL_TRY(status, sl_world_get(world, channel->peer, &answer, sizeof(answer)),
           out);
    keep_answer(channel, &answer);
out:
    return status;
}

/* Edges of a pair of ranks have the same order on both: that of their tags. */
static sl_status_t measure_pair(sl_engine_t *engine, const sl_busy_t *busy,
                                int peer, sl_overlap_message_t *message)
{
    int64_t offset = 0;
    sl_status_t status = SL_OK;
    int c, i, n = 0;

    for (c = 0; c < engine->n_channels; c++) {
        n += engine->channels[c].peer == peer &&
             engine->channels[c].remote != NULL;
    }
    if (n == 0) {
        return SL_OK;
    }
    SL_TRY(status, find_offset(engine, peer, &offset), out);
    for (i = 0; i < 2; i++) {
        /* first what the lower rank sends */
        const int sends = (engine->grid->rank < peer) == (i == 0);

        for (c = 0; c < engine->n_channels; c++) {
            sl_channel_t *channel = &engine->channels[c];

            if (channel->peer == peer && channel->remote != NULL &&
                channel->is_sender == sends) {
                SL_TRY(status,
                       sends
                           ? tell_edge(engine, busy, channel, message)
                           : hear_edge(engine, busy, channel, offset, message),
                       out);
            }
        }
    }
out:
    return status;
}

sl_status_t sl_engine_measure_overlap(sl_engine_t *engine)
{
    sl_overlap_message_t *message = NULL;
    sl_busy_t busy = {0};
    sl_status_t status = SL_OK;
    int a, b;

    if (engine->params.world == NULL) {
        return SL_OK;
    }
    message = malloc(sizeof(*message));
    if (message == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "engine: no host memory for the times of transfers");
    }
    SL_TRY(status, busy_init(engine, &busy), out);
    /* all go through the pairs in one order, so nobody waits in a circle */
    for (a = 0; a < engine->grid->n_ranks; a++) {
        for (b = a + 1; b < engine->grid->n_ranks; b++) {
            if (a == engine->grid->rank || b == engine->grid->rank) {
                SL_TRY(status,
                       measure_pair(engine, &busy,
                                    a == engine->grid->rank ? b : a, message),
                       out);
            }
        }
    }
out:
    busy_cleanup(&busy);
    free(message);
    return sl_engine_together(engine, status);
}
