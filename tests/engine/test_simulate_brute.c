/* SPDX-License-Identifier: Apache-2.0 */
/* The simulator beside a second, slow and plain one: at each moment at which
 * anything changes, everything is looked at until nothing moves. No heap, no
 * wake-ups, no chains; times are whole numbers, so that both must agree to
 * the last bit. Random schedules, grids, places and links. */
#include "tests/engine/sim_bed.h"

enum {
    MAX_CELLS = 24,
    MAX_DEVICES = 16,
    MAX_MESSAGES = 1024
};

typedef struct message {
    int from, to;
    double bytes;
    int has_arrived, is_taken;
    double head_at, tail_at, done_at, known_at; /* known: to the sender */
} message_t;

typedef struct walker {
    int stage, device, host;
    sl_instruction_list_t list;
    size_t pc;
    double free_at;
    int is_copying;
    double forward, backward, in_bytes;
} walker_t;

typedef struct world {
    const bed_t *bed;
    int n_walkers, n_messages;
    walker_t walkers[MAX_CELLS];
    message_t messages[MAX_MESSAGES];
    double device_free[MAX_DEVICES];
    double out_free[2][MAX_DEVICES], in_free[2][MAX_DEVICES];
    double now;
} world_t;

static world_t world;

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static int is_far(const walker_t *a, const walker_t *b)
{
    return a->host != b->host;
}

static const sl_cluster_link_t *link_between(const walker_t *a,
                                             const walker_t *b)
{
    const sl_cluster_group_t *group = &world.bed->cluster.groups[0];

    return is_far(a, b) ? &group->network : &group->link;
}

/* A device has a link of its own, a host has one to the others. */
static int port_of(const walker_t *walker, int far)
{
    return far ? walker->host : walker->device;
}

static double wire(const sl_cluster_link_t *link, double bytes)
{
    return link->message_us +
           (link->bytes_per_us > 0.0 ? bytes / link->bytes_per_us : 0.0);
}

/* The i-th message from one walker to another. */
static message_t *find(const walker_t *from, const walker_t *to, int i)
{
    int m;

    for (m = 0; m < world.n_messages; m++) {
        message_t *message = &world.messages[m];

        if (&world.walkers[message->from] == from &&
            &world.walkers[message->to] == to && i-- == 0) {
            return message;
        }
    }
    return NULL;
}

static int count_sent(const walker_t *from, const walker_t *to)
{
    int n = 0;

    while (find(from, to, n) != NULL) {
        n++;
    }
    return n;
}

static void work(walker_t *walker, double us)
{
    double *free_at = &world.device_free[walker->device];

    walker->free_at = larger(world.now, *free_at) + us;
    *free_at = walker->free_at;
}

static int try_send(walker_t *from, walker_t *to, double bytes)
{
    const int n_slots = world.bed->params.n_slots;
    const int n = count_sent(from, to), far = is_far(from, to);
    const sl_cluster_link_t *link = link_between(from, to);
    message_t *message = &world.messages[world.n_messages];

    if (n >= n_slots) {
        const message_t *old = find(from, to, n - n_slots);

        if (!old->is_taken || old->known_at > world.now) {
            return 0;
        }
    }
    assert_true(world.n_messages < MAX_MESSAGES);
    world.n_messages++;
    memset(message, 0, sizeof(*message));
    message->from = (int)(from - world.walkers);
    message->to = (int)(to - world.walkers);
    message->bytes = bytes;
    message->head_at = world.now;
    message->tail_at = world.now;
    if (from->device != to->device) {
        double *out = &world.out_free[far][port_of(from, far)];
        const double start = larger(world.now, *out);

        *out = start + wire(link, bytes);
        message->head_at = start + link->latency_us;
        message->tail_at = *out + link->latency_us;
    }
    from->pc++;
    return 1;
}

static int try_receive(walker_t *from, walker_t *to)
{
    message_t *message = NULL;
    int i = 0;

    while ((message = find(from, to, i)) != NULL && message->is_taken) {
        i++;
    }
    if (to->is_copying) {
        to->is_copying = 0;
        message->is_taken = 1;
        message->known_at =
            world.now + (from->device == to->device
                             ? 0.0
                             : link_between(from, to)->latency_us);
        to->pc++;
        return 1;
    }
    if (message == NULL || !message->has_arrived ||
        message->done_at > world.now) {
        return 0;
    }
    to->is_copying = 1;
    work(to, message->bytes); /* read and written, two bytes a microsecond */
    return 1;
}

static int try_walk(walker_t *walker)
{
    const sl_instruction_t *item = &walker->list.items[walker->pc];

    if (walker->free_at > world.now) {
        return 0;
    }
    switch (item->kind) {
    case SL_INSTRUCTION_FORWARD:
    case SL_INSTRUCTION_RECOMPUTE:
        work(walker, walker->forward);
        break;
    case SL_INSTRUCTION_BACKWARD:
        work(walker, walker->backward);
        break;
    case SL_INSTRUCTION_SEND_FORWARD:
        return try_send(walker, walker + 1, walker[1].in_bytes);
    case SL_INSTRUCTION_SEND_BACKWARD:
        return try_send(walker, walker - 1, walker->in_bytes);
    case SL_INSTRUCTION_RECV_FORWARD:
        return try_receive(walker - 1, walker);
    case SL_INSTRUCTION_RECV_BACKWARD:
        return try_receive(walker + 1, walker);
    case SL_INSTRUCTION_UPDATE:
        return 0;
    }
    walker->pc++;
    return 1;
}

static int try_arrive(message_t *message)
{
    walker_t *from = &world.walkers[message->from];
    walker_t *to = &world.walkers[message->to];
    const int far = is_far(from, to);
    double *in = &world.in_free[far][port_of(to, far)];

    if (message->has_arrived || message->head_at > world.now) {
        return 0;
    }
    message->has_arrived = 1;
    message->done_at = message->tail_at;
    if (from->device != to->device) {
        *in = larger(world.now, *in) +
              wire(link_between(from, to), message->bytes);
        message->done_at = larger(message->done_at, *in);
    }
    return 1;
}

/* The next moment at which anything may change; 0: none. */
static double next_moment(void)
{
    double next = HUGE_VAL;
    int i;

    for (i = 0; i < world.n_walkers; i++) {
        const double at = world.walkers[i].free_at;

        next = at > world.now && at < next ? at : next;
    }
    for (i = 0; i < world.n_messages; i++) {
        const message_t *m = &world.messages[i];
        const double at[] = {m->head_at, m->done_at, m->known_at};
        int j;

        for (j = 0; j < 3; j++) {
            next = at[j] > world.now && at[j] < next ? at[j] : next;
        }
    }
    return next < HUGE_VAL ? next : 0.0;
}

static double brute_force_us(void)
{
    double end = 0.0, next;
    int i, is_moving;

    do {
        do {
            is_moving = 0;
            for (i = 0; i < world.n_messages; i++) {
                is_moving |= try_arrive(&world.messages[i]);
            }
            for (i = 0; i < world.n_walkers; i++) {
                /* one goes on as far as it can before another does */
                while (try_walk(&world.walkers[i])) {
                    is_moving = 1;
                }
            }
        } while (is_moving);
        next = next_moment();
        world.now = next > 0.0 ? next : world.now;
    } while (next > 0.0);
    for (i = 0; i < world.n_walkers; i++) {
        const walker_t *walker = &world.walkers[i];

        assert_int_equal(walker->pc, walker->list.n - 1);
        end = larger(end, walker->free_at);
    }
    return end;
}

/* ---- random cases ---- */

static void init_case(bed_t *bed, uint64_t seed)
{
    uint64_t n = 0;
    const int k = 1 + bed_draw(seed, &n, 5);
    sl_cluster_group_t *group = &bed->cluster.groups[0];
    int l;

    bed_init(bed, k, 1 + bed_draw(seed, &n, 3), 1 + bed_draw(seed, &n, 4));
    for (l = 0; l < k; l++) {
        bed->layers[l].forward_us = 1 + bed_draw(seed, &n, 1 << 26);
        bed->layers[l].backward_us = 1 + bed_draw(seed, &n, 1 << 27);
        bed->layers[l].cut_bytes = (size_t)(1 + bed_draw(seed, &n, 1 << 26));
    }
    bed->layers[0].cut_bytes = 0;
    group->link =
        (sl_cluster_link_t){.latency_us = bed_draw(seed, &n, 1 << 22),
                            .bytes_per_us = bed_draw(seed, &n, 2),
                            .message_us = bed_draw(seed, &n, 1 << 20)};
    group->network = (sl_cluster_link_t){
        .latency_us = bed_draw(seed, &n, 1 << 25),
        .bytes_per_us = bed_draw(seed, &n, 4) == 0 ? 0.0 : 1.0,
        .message_us = bed_draw(seed, &n, 1 << 20)};
    group->memory_bytes_per_us = 2.0;
    bed->params.n_replicas = 1 + bed_draw(seed, &n, 4);
    bed->params.n_micro_batches = 1 + bed_draw(seed, &n, 6);
    bed->params.schedule = (sl_schedule_kind_t)bed_draw(seed, &n, 2);
    bed->params.backward_order =
        bed->params.schedule == SL_SCHEDULE_GPIPE
            ? (sl_backward_order_t)bed_draw(seed, &n, 2)
            : SL_BACKWARD_FIFO;
    bed->params.recompute = (sl_recompute_t)bed_draw(seed, &n, 4);
    bed->params.n_slots = 1 + bed_draw(seed, &n, 3);
}

static void init_world(const bed_t *bed)
{
    const sl_sim_params_t *params = &bed->params;
    const sl_schedule_params_t schedule = {.kind = params->schedule,
                                           .order = params->backward_order,
                                           .recompute = params->recompute,
                                           .n_stages = params->n_stages,
                                           .n_micro_batches =
                                               params->n_micro_batches};
    const int n_cells = params->n_replicas * params->n_stages;
    const int n_devices =
        n_cells < bed->cluster.n_devices ? n_cells : bed->cluster.n_devices;
    int c;

    memset(&world, 0, sizeof(world));
    world.bed = bed;
    world.n_walkers = n_cells;
    for (c = 0; c < n_cells; c++) {
        walker_t *walker = &world.walkers[c];
        const sl_part_layer_t *layer = &bed->layers[c % params->n_stages];

        walker->stage = c % params->n_stages;
        walker->device = c * n_devices / n_cells;
        walker->host = walker->device / bed->cluster.groups[0].n_devices;
        walker->forward = layer->forward_us;
        walker->backward = layer->backward_us;
        walker->in_bytes = (double)layer->cut_bytes;
        sl_assert_ok(
            sl_schedule_generate(&schedule, walker->stage, &walker->list));
    }
}

/* Two meetings, each up and down a tree of hosts and of their devices. */
static double meetings_us(const bed_t *bed)
{
    const sl_cluster_group_t *group = &bed->cluster.groups[0];
    const int n = world.walkers[world.n_walkers - 1].device + 1;
    const int n_hosts = world.walkers[world.n_walkers - 1].host + 1;
    const int n_local = n < group->n_devices ? n : group->n_devices;
    int near = 0, far = 0;

    while (1 << near < n_local) {
        near++;
    }
    while (1 << far < n_hosts) {
        far++;
    }
    return world.n_walkers == 1 ? 0.0
                                : 4.0 * (near * group->link.latency_us +
                                         far * group->network.latency_us);
}

/* Messages that left their device. */
static int count_real(void)
{
    int m, n = 0;

    for (m = 0; m < world.n_messages; m++) {
        n += world.walkers[world.messages[m].from].device !=
             world.walkers[world.messages[m].to].device;
    }
    return n;
}

static void random_cases_agree(void **state)
{
    static bed_t bed;
    uint64_t seed;
    int i;

    (void)state;
    for (seed = 0; seed < 1500; seed++) {
        double want, got;

        init_case(&bed, seed);
        init_world(&bed);
        want = brute_force_us() + meetings_us(&bed);
        got = bed_run(&bed);
        if (got < want || got > want) {
            fail_msg("case %d: %d x %d, %d micro-batches: %.0f us, not %.0f",
                     (int)seed, bed.params.n_replicas, bed.params.n_stages,
                     bed.params.n_micro_batches, got, want);
        }
        assert_int_equal(bed.result.n_messages, count_real());
        for (i = 0; i < world.n_walkers; i++) {
            sl_schedule_cleanup(&world.walkers[i].list);
        }
        bed_cleanup(&bed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(random_cases_agree),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
