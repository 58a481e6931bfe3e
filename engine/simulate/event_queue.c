/* SPDX-License-Identifier: Apache-2.0 */
/* Events in order of time, the older first when times are equal. */
#include <stdlib.h>

#include "engine/simulate/simulate_internal.h"

static int is_before(const sl_sim_event_t *a, const sl_sim_event_t *b)
{
    return a->at_us < b->at_us || (!(b->at_us < a->at_us) && a->age < b->age);
}

sl_status_t sl_sim_queue_push(sl_sim_queue_t *queue,
                              const sl_sim_event_t *event)
{
    sl_sim_event_t item = *event;
    sl_status_t status = SL_OK;
    size_t i = queue->n;

    if (queue->n == queue->room) {
        const size_t room = queue->room < 64 ? 64 : queue->room * 2;
        sl_sim_event_t *heap = realloc(queue->heap, room * sizeof(*heap));

        if (heap == NULL) {
            SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                    "simulate: no host memory for %zu events", room);
        }
        queue->heap = heap;
        queue->room = room;
    }
    queue->n++;
    item.age = queue->n_pushed++;
    for (; i > 0 && is_before(&item, &queue->heap[(i - 1) / 2]);
         i = (i - 1) / 2) {
        queue->heap[i] = queue->heap[(i - 1) / 2];
    }
    queue->heap[i] = item;
out:
    return status;
}

sl_sim_event_t sl_sim_queue_pop(sl_sim_queue_t *queue)
{
    const sl_sim_event_t first = queue->heap[0];
    const sl_sim_event_t last = queue->heap[--queue->n];
    size_t i = 0, child;

    while ((child = 2 * i + 1) < queue->n) {
        if (child + 1 < queue->n &&
            is_before(&queue->heap[child + 1], &queue->heap[child])) {
            child++;
        }
        if (!is_before(&queue->heap[child], &last)) {
            break;
        }
        queue->heap[i] = queue->heap[child];
        i = child;
    }
    queue->heap[i] = last;
    return first;
}
