/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that are threads of one process. A sender's thread copies into the
 * receive that is posted: there must be one, which the tests rely on, unless
 * the receiver has given the sender up. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rng.h"
#include "engine/world/world_internal.h"

typedef struct note {
    struct note *next;
    int from, to;
    size_t bytes;
    sl_notice_t control;
} note_t;

typedef struct list {
    sl_xfer_t *first;
    sl_xfer_t **end;
} list_t;

/* What others bring to a rank. */
typedef struct mailbox {
    sl_waker_t waker;
    pthread_mutex_t lock;
    note_t *notes, **notes_end; /* guarded by lock */
    list_t posted, arrived;     /* guarded by lock */
    int is_closed;              /* guarded by lock */
    unsigned char *is_deaf_to;  /* by rank; guarded by lock; the hub's */
} mailbox_t;

typedef struct hub {
    atomic_int n_users;
    int n;
    mailbox_t *boxes; /* owned, with what box 0 says of deafness */
} hub_t;

enum {
    N_BLOCKS = 64,
    LEFT_BLOCK = N_BLOCKS - 1
};

typedef struct local {
    sl_link_t base;
    hub_t *hub;
    list_t sends;               /* not yet copied */
    list_t sent;                /* copied, not yet reported */
    note_t *notes, **notes_end; /* not yet brought */
    uint64_t jitter, n_draws;   /* seed 0: none */
    void (*copy)(void *to, const void *from, size_t bytes); /* NULL: memcpy */
    unsigned char is_held[N_BLOCKS]; /* of this poll: what comes later waits */
} local_t;

static const uint64_t HELD_NS = 20000;
static uint64_t hook_jitter;
static void (*hook_copy)(void *to, const void *from, size_t bytes);

void sl_world_hook_copy(void (*copy)(void *to, const void *from, size_t bytes))
{
    hook_copy = copy;
}

void sl_world_hook_jitter(uint64_t seed)
{
    hook_jitter = seed;
}

static void list_init(list_t *list)
{
    list->first = NULL;
    list->end = &list->first;
}

static void list_add(list_t *list, sl_xfer_t *xfer)
{
    xfer->next = NULL;
    *list->end = xfer;
    list->end = &xfer->next;
}

static int list_remove(list_t *list, const sl_xfer_t *xfer)
{
    sl_xfer_t **at = &list->first;

    while (*at != NULL && *at != xfer) {
        at = &(*at)->next;
    }
    if (*at == NULL) {
        return 0;
    }
    *at = xfer->next;
    if (xfer->next == NULL) {
        list->end = at;
    }
    return 1;
}

static local_t *local_of(sl_link_t *link)
{
    return (local_t *)link;
}

static mailbox_t *own_box(sl_link_t *link)
{
    return &local_of(link)->hub->boxes[link->rank];
}

static sl_status_t local_start(sl_link_t *link)
{
    (void)link; /* all are there from the start */
    return SL_OK;
}

static sl_status_t local_control(sl_link_t *link, int peer, const void *data,
                                 size_t bytes)
{
    local_t *local = local_of(link);
    note_t *note = malloc(sizeof(*note));
    sl_status_t status;

    if (note == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "no host memory for a message");
    }
    note->next = NULL;
    note->from = link->rank;
    note->to = peer;
    note->bytes = bytes;
    memcpy(&note->control, data, bytes);
    *local->notes_end = note;
    local->notes_end = &note->next;
    return SL_OK;
out:
    return status;
}

static sl_status_t local_send(sl_link_t *link, sl_xfer_t *xfer)
{
    list_add(&local_of(link)->sends, xfer);
    return SL_OK;
}

static sl_status_t local_receive(sl_link_t *link, sl_xfer_t *xfer)
{
    mailbox_t *box = own_box(link);

    (void)pthread_mutex_lock(&box->lock);
    list_add(&box->posted, xfer);
    (void)pthread_mutex_unlock(&box->lock);
    return SL_OK;
}

static void local_drop(sl_link_t *link, sl_xfer_t *xfer)
{
    mailbox_t *box = own_box(link);

    if (!xfer->is_receive) {
        if (!list_remove(&local_of(link)->sends, xfer)) {
            (void)list_remove(&local_of(link)->sent, xfer);
        }
        return;
    }
    (void)pthread_mutex_lock(&box->lock);
    box->is_deaf_to[xfer->peer] = 1;
    if (!list_remove(&box->posted, xfer)) {
        (void)list_remove(&box->arrived, xfer);
    }
    (void)pthread_mutex_unlock(&box->lock);
}

/* Whether something bound for `block` waits for a later poll, by chance, and
 * with it all behind it. */
static int is_held(local_t *local, unsigned block)
{
    unsigned char *held = &local->is_held[block % N_BLOCKS];

    if (local->jitter != 0 && !*held) {
        const sl_rng_t rng = sl_rng_at(local->jitter, 0, 0, 0, 0);

        *held = sl_rng_below(&rng, local->n_draws++, 3) == 0;
    }
    return *held;
}

static int bring_notes(local_t *local)
{
    note_t *list = local->notes;
    int n = 0;

    local->notes = NULL;
    local->notes_end = &local->notes;
    while (list != NULL) {
        note_t *next = list->next;

        list->next = NULL;
        if (is_held(local, (unsigned)list->to)) {
            *local->notes_end = list;
            local->notes_end = &list->next;
        } else {
            mailbox_t *box = &local->hub->boxes[list->to];

            (void)pthread_mutex_lock(&box->lock);
            *box->notes_end = list;
            box->notes_end = &list->next;
            (void)pthread_mutex_unlock(&box->lock);
            sl_waker_wake(&box->waker);
            n++;
        }
        list = next;
    }
    return n;
}

/* Into the oldest receive that is posted for it. */
static void copy_over(local_t *local, const sl_xfer_t *xfer)
{
    mailbox_t *box = &local->hub->boxes[xfer->peer];
    sl_xfer_t *target;

    (void)pthread_mutex_lock(&box->lock);
    target = box->posted.first;
    while (target != NULL &&
           (target->peer != local->base.rank || target->tag != xfer->tag)) {
        target = target->next;
    }
    if (target != NULL) {
        (void)list_remove(&box->posted, target);
        SL_ASSERT(xfer->bytes <= target->bytes);
        if (xfer->bytes > 0 && local->copy != NULL) {
            local->copy(target->target, xfer->source, xfer->bytes);
        } else if (xfer->bytes > 0) {
            memcpy(target->target, xfer->source, xfer->bytes);
        }
        target->bytes = xfer->bytes;
        list_add(&box->arrived, target);
    } else if (!box->is_closed && !box->is_deaf_to[local->base.rank]) {
        sl_assert_failed("a receive is posted for every message", __FILE__,
                         __LINE__);
    }
    (void)pthread_mutex_unlock(&box->lock);
    sl_waker_wake(&box->waker);
}

static int do_sends(local_t *local)
{
    list_t list = local->sends;
    sl_xfer_t *xfer = list.first;
    int n = 0;

    list_init(&local->sends);
    while (xfer != NULL) {
        sl_xfer_t *next = xfer->next;

        if (is_held(local, (unsigned)xfer->peer * 7 + (unsigned)xfer->tag)) {
            list_add(&local->sends, xfer);
        } else {
            copy_over(local, xfer);
            list_add(&local->sent, xfer);
            n++;
        }
        xfer = next;
    }
    /* that it has left is known before it has arrived, or later */
    while (local->sent.first != NULL && !is_held(local, LEFT_BLOCK)) {
        xfer = local->sent.first;
        (void)list_remove(&local->sent, xfer);
        sl_world_on_xfer(local->base.world, xfer);
    }
    return n;
}

static note_t *take_note(mailbox_t *box)
{
    note_t *note;

    (void)pthread_mutex_lock(&box->lock);
    note = box->notes;
    if (note != NULL) {
        box->notes = note->next;
        if (note->next == NULL) {
            box->notes_end = &box->notes;
        }
    }
    (void)pthread_mutex_unlock(&box->lock);
    return note;
}

static sl_xfer_t *take_arrived(mailbox_t *box)
{
    sl_xfer_t *xfer;

    (void)pthread_mutex_lock(&box->lock);
    xfer = box->arrived.first;
    if (xfer != NULL) {
        (void)list_remove(&box->arrived, xfer);
    }
    (void)pthread_mutex_unlock(&box->lock);
    return xfer;
}

static int local_poll(sl_link_t *link)
{
    local_t *local = local_of(link);
    mailbox_t *box = own_box(link);
    note_t *note;
    sl_xfer_t *xfer;
    int n = 0;

    memset(local->is_held, 0, sizeof(local->is_held));
    n += do_sends(local);
    while ((note = take_note(box)) != NULL) {
        sl_world_on_control(link->world, note->from, &note->control,
                            note->bytes);
        free(note);
        n++;
    }
    while ((xfer = take_arrived(box)) != NULL) {
        sl_world_on_xfer(link->world, xfer);
        n++;
    }
    n += bring_notes(local);
    return n;
}

static void local_wait(sl_link_t *link, sl_pace_t pace, uint64_t timeout_ns)
{
    const local_t *local = local_of(link);

    (void)pace;
    if (local->sends.first != NULL || local->sent.first != NULL ||
        local->notes != NULL) {
        timeout_ns = HELD_NS;
    }
    sl_waker_wait(&own_box(link)->waker, timeout_ns);
}

static void local_wake(sl_link_t *link)
{
    sl_waker_wake(&own_box(link)->waker);
}

static void local_stop(sl_link_t *link, sl_stop_t how)
{
    local_t *local = local_of(link);
    mailbox_t *box = own_box(link);

    (void)how;
    local->jitter = 0;
    memset(local->is_held, 0, sizeof(local->is_held));
    (void)bring_notes(local);
    (void)pthread_mutex_lock(&box->lock);
    box->is_closed = 1;
    list_init(&box->posted);
    list_init(&box->arrived);
    (void)pthread_mutex_unlock(&box->lock);
}

static void hub_free(hub_t *hub)
{
    if (hub->boxes != NULL) {
        free(hub->boxes[0].is_deaf_to);
    }
    free(hub->boxes);
    free(hub);
}

static void hub_release(hub_t *hub)
{
    int i;

    if (atomic_fetch_sub(&hub->n_users, 1) > 1) {
        return;
    }
    for (i = 0; i < hub->n; i++) {
        mailbox_t *box = &hub->boxes[i];
        note_t *note;

        while ((note = take_note(box)) != NULL) {
            free(note);
        }
        sl_waker_cleanup(&box->waker);
        (void)pthread_mutex_destroy(&box->lock);
    }
    hub_free(hub);
}

static void local_destroy(sl_link_t *link)
{
    local_t *local = local_of(link);

    while (local->notes != NULL) {
        note_t *next = local->notes->next;

        free(local->notes);
        local->notes = next;
    }
    hub_release(local->hub);
    free(link->hosts);
    free(link);
}

static const sl_link_ops_t local_ops = {
    .name = "local",
    .start = local_start,
    .control = local_control,
    .send = local_send,
    .receive = local_receive,
    .drop = local_drop,
    .poll = local_poll,
    .wait = local_wait,
    .wake = local_wake,
    .stop = local_stop,
    .destroy = local_destroy,
};

static hub_t *hub_make(int n)
{
    hub_t *hub = calloc(1, sizeof(*hub));
    unsigned char *deaf;
    int i;

    if (hub == NULL) {
        return NULL;
    }
    hub->boxes = calloc((size_t)n, sizeof(*hub->boxes));
    deaf = calloc((size_t)n, (size_t)n);
    if (hub->boxes == NULL || deaf == NULL) {
        free(deaf);
        hub_free(hub);
        return NULL;
    }
    hub->n = n;
    for (i = 0; i < n; i++) {
        mailbox_t *box = &hub->boxes[i];

        sl_waker_init(&box->waker);
        (void)pthread_mutex_init(&box->lock, NULL);
        box->notes_end = &box->notes;
        box->is_deaf_to = deaf + (size_t)i * (size_t)n;
        list_init(&box->posted);
        list_init(&box->arrived);
    }
    return hub;
}

static local_t *local_make(hub_t *hub, int rank)
{
    local_t *local = calloc(1, sizeof(*local));
    int i;

    if (local == NULL) {
        return NULL;
    }
    local->base.hosts = calloc((size_t)hub->n, sizeof(*local->base.hosts));
    if (local->base.hosts == NULL) {
        free(local);
        return NULL;
    }
    for (i = 0; i < hub->n; i++) {
        sl_link_host_name(local->base.hosts[i]);
    }
    local->base.ops = &local_ops;
    local->base.rank = rank;
    local->base.size = hub->n;
    local->hub = hub;
    local->jitter = hook_jitter == 0 ? 0 : hook_jitter + (uint64_t)rank;
    local->copy = hook_copy;
    local->base.is_cuda_aware = hook_copy != NULL;
    list_init(&local->sends);
    list_init(&local->sent);
    local->notes_end = &local->notes;
    (void)atomic_fetch_add(&hub->n_users, 1);
    return local;
}

sl_status_t sl_link_local_create(int n, sl_link_t **links)
{
    hub_t *hub = hub_make(n);
    sl_status_t status;
    int i;

    if (hub == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "no host memory for %d ranks",
                n);
    }
    (void)atomic_fetch_add(&hub->n_users, 1);
    for (i = 0; i < n; i++) {
        local_t *local = local_make(hub, i);

        if (local == NULL) {
            SL_FAIL(status, SL_ERR_NO_MEMORY, err_destroy,
                    "no host memory for rank %d", i);
        }
        links[i] = &local->base;
    }
    hub_release(hub);
    return SL_OK;
err_destroy:
    while (i-- > 0) {
        links[i]->ops->destroy(links[i]);
    }
    hub_release(hub);
out:
    return status;
}
