/* SPDX-License-Identifier: Apache-2.0 */
/* Control messages: out, in, and what came from a later job than ours. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/world/world_internal.h"

static size_t bytes_of(const sl_notice_t *control)
{
    size_t bytes = offsetof(sl_notice_t, detail) + 1;

    if (control->kind == SL_NOTICE_ABORT) {
        bytes += strnlen(control->detail, sizeof(control->detail) - 1);
    }
    return bytes;
}

static void handle(sl_world_t *world, int from, const sl_notice_t *control);

/* A rank that was given up may only have slept: it must hear of that. */
static int is_reachable(const sl_world_t *world, int peer,
                        const sl_notice_t *control)
{
    const sl_peer_t *to = &world->peers[peer];

    return !to->is_broken &&
           (!to->is_gone || control->kind == SL_NOTICE_ABORT ||
            control->kind == SL_NOTICE_LEAVE);
}

void sl_notice_send(sl_world_t *world, int peer, const sl_notice_t *control)
{
    sl_notice_t message = *control;

    message.epoch = world->epoch;
    if (peer == world->rank) {
        handle(world, peer, &message);
    } else if (is_reachable(world, peer, &message)) {
        const sl_status_t status = world->link->ops->control(
            world->link, peer, &message, bytes_of(&message));

        if (status < 0) {
            sl_world_on_lost(world, peer, sl_last_error());
        }
    }
}

static void on_goodbye(sl_world_t *world)
{
    if (world->leave != NULL) {
        world->is_over = 1;
    }
}

/* On rank 0: when all have asked to leave, all may. */
static void on_leave(sl_world_t *world, int from, const sl_notice_t *control)
{
    const sl_notice_t goodbye = {.kind = SL_NOTICE_GOODBYE};
    int i;

    if (control->is_gone) {
        sl_failure_left(world, from);
        return;
    }
    world->peers[from].is_leaving = 1;
    for (i = 0; i < world->size; i++) {
        if (!world->peers[i].is_leaving) {
            return;
        }
    }
    for (i = world->size - 1; i >= 0; i--) {
        sl_notice_send(world, i, &goodbye);
    }
}

static void handle(sl_world_t *world, int from, const sl_notice_t *control)
{
    switch ((sl_notice_kind_t)control->kind) {
    case SL_NOTICE_BEAT:
        break;
    case SL_NOTICE_CREDIT:
        sl_port_on_credit(world, from, control);
        break;
    case SL_NOTICE_CLOSE:
        sl_port_on_peer_close(world, from, control);
        break;
    case SL_NOTICE_CLOSE_ACK:
        sl_port_on_close_ack(world, from, control);
        break;
    case SL_NOTICE_ABORT:
        sl_failure_on_abort(world, from, control);
        break;
    case SL_NOTICE_READY:
        sl_failure_on_ready(world, from, control);
        break;
    case SL_NOTICE_RESUME:
        sl_failure_on_resume(world, control);
        break;
    case SL_NOTICE_LEAVE:
        on_leave(world, from, control);
        break;
    case SL_NOTICE_GOODBYE:
        on_goodbye(world);
        break;
    case SL_NOTICE_WISH:
        sl_wish_heard(world);
        break;
    case SL_NOTICE_SETTLED:
    case SL_NOTICE_ALL_SETTLED:
        sl_settle_heard(world, from, control);
        break;
    default:
        sl_warn("rank %d: message of unknown kind %u from rank %d: are all "
                "ranks the same program?",
                world->rank, control->kind, from);
    }
}

static void defer(sl_world_t *world, int from, const sl_notice_t *control)
{
    sl_deferred_t *deferred = malloc(sizeof(*deferred));

    if (deferred == NULL) {
        sl_failure_enter(world, SL_ERR_NO_MEMORY, world->rank, 0,
                         "no host memory for a message");
        return;
    }
    deferred->next = NULL;
    deferred->from = from;
    deferred->control = *control;
    *world->deferred_end = deferred;
    world->deferred_end = &deferred->next;
}

static int is_of_any_epoch(const sl_notice_t *control)
{
    return control->kind == SL_NOTICE_BEAT ||
           control->kind == SL_NOTICE_LEAVE ||
           control->kind == SL_NOTICE_GOODBYE ||
           control->kind == SL_NOTICE_WISH ||
           (control->kind == SL_NOTICE_ABORT && control->is_gone);
}

void sl_world_on_control(sl_world_t *world, int from, const void *data,
                         size_t bytes)
{
    sl_notice_t control = {0};

    if (bytes <= offsetof(sl_notice_t, detail) || bytes > sizeof(control)) {
        sl_warn("rank %d: a message of %zu bytes from rank %d is none of "
                "ours: are all ranks the same program?",
                world->rank, bytes, from);
        return;
    }
    memcpy(&control, data, bytes);
    control.detail[sizeof(control.detail) - 1] = '\0';
    if (world->peers[from].is_gone) {
        return;
    }
    world->peers[from].seen_ns = sl_clock_ns();
    if (is_of_any_epoch(&control) || control.epoch == world->epoch) {
        handle(world, from, &control);
    } else if (control.epoch > world->epoch) {
        defer(world, from, &control);
    }
}

void sl_notice_replay(sl_world_t *world)
{
    sl_deferred_t *list = world->deferred;

    world->deferred = NULL;
    world->deferred_end = &world->deferred;
    while (list != NULL) {
        sl_deferred_t *next = list->next;

        if (list->control.epoch == world->epoch &&
            !world->peers[list->from].is_gone) {
            handle(world, list->from, &list->control);
        }
        free(list);
        list = next;
    }
}
