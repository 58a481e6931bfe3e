/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler/coordinator/exchange.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "scheduler/control/run_dir.h"
#include "scheduler/coordinator/pins.h"
#include "scheduler/coordinator/priority.h"

/* Smaller changes are not worth a new order. */
static const double SHARE_STEP = 0.25; /* points */
enum {
    LIMIT_PART = 50,    /* of the limit */
    REFRESHES = 4,      /* orders within a TTL */
    PRIORITY_MS = 1000, /* between two looks for new threads */
    MS_NS = 1000000
};

/* What is known of one job. */
typedef struct sl_exchange_job {
    sl_run_id_t id;
    sl_control_job_t job;
    sl_control_status_t status;
    sl_control_order_t order; /* in the file; sequence 0 = none */
    sl_pins_t pins;
    uint64_t file_sequence; /* of the order in the file */
    uint64_t written_ns;    /* 0 = not by us */
    uint64_t priority_ns;   /* when its threads were last looked at */
    int background; /* what its threads were told: 0, 1; -1 = not known */
    int is_present;
    int has_warned;
} sl_exchange_job_t;

struct sl_exchange {
    sl_exchange_params_t params;
    int n_jobs;
    int has_warned_many;
    sl_exchange_job_t *jobs[SL_COORD_MAX_JOBS]; /* as in the snapshot */
    /* the latest list of all that live */
    sl_run_id_t *ids;             /* owned */
    sl_exchange_job_t **arrivals; /* owned, of `room` too: for add_new() */
    size_t room;
};

static sl_status_t make_room(sl_exchange_t *exchange, size_t room)
{
    sl_run_id_t *ids = realloc(exchange->ids, room * sizeof(*ids));
    sl_exchange_job_t **arrivals;
    sl_status_t status = SL_OK;

    exchange->ids = ids != NULL ? ids : exchange->ids;
    arrivals = realloc(exchange->arrivals, room * sizeof(*arrivals));
    exchange->arrivals = arrivals != NULL ? arrivals : exchange->arrivals;
    if (ids == NULL || arrivals == NULL) {
        SL_REFUSE(status, SL_ERR_NO_MEMORY, out,
                  "no host memory for a list of %zu jobs", room);
    }
    exchange->room = room;
out:
    return status;
}

sl_status_t sl_exchange_create(const sl_exchange_params_t *params,
                               sl_exchange_t **exchange_p)
{
    sl_exchange_t *exchange = calloc(1, sizeof(*exchange));
    sl_status_t status = SL_OK;

    if (exchange == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "no host memory for the coordinator's files");
    }
    exchange->params = *params;
    status = make_room(exchange, SL_COORD_MAX_JOBS);
    if (status < 0) {
        sl_exchange_destroy(exchange);
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "no host memory for the coordinator's list of jobs");
    }
    *exchange_p = exchange;
out:
    return status;
}

void sl_exchange_destroy(sl_exchange_t *exchange)
{
    int i;

    if (exchange == NULL) {
        return;
    }
    for (i = 0; i < exchange->n_jobs; i++) {
        free(exchange->jobs[i]);
    }
    free(exchange->ids);
    free(exchange->arrivals);
    free(exchange);
}

/* ---- reading ---- */

static sl_exchange_job_t *find_job(const sl_exchange_t *exchange,
                                   const sl_run_id_t *id)
{
    int i;

    for (i = 0; i < exchange->n_jobs; i++) {
        if (strcmp(exchange->jobs[i]->id.text, id->text) == 0) {
            return exchange->jobs[i];
        }
    }
    return NULL;
}

static void warn_once(sl_exchange_job_t *job, const char *what)
{
    if (!job->has_warned) {
        sl_warn("job %s: cannot read its %s: %s; what it said last holds",
                job->id.text, what, sl_last_error());
        job->has_warned = 1;
    }
}

/* @return SL_OK, SL_ERR_NOT_FOUND when it has gone or is not complete */
static sl_status_t read_job(sl_exchange_t *exchange, sl_exchange_job_t *job)
{
    sl_run_dir_t *dir = exchange->params.dir;
    sl_control_order_t order;
    sl_status_t status;

    status = sl_run_status_read(dir, &job->id, &job->status);
    if (status == SL_ERR_NOT_FOUND) {
        return status;
    }
    if (status < 0) {
        warn_once(job, "status");
        return job->status.sequence > 0 ? SL_OK : status;
    }
    status = sl_run_order_read(dir, &job->id, &order);
    if (status == SL_ERR_NOT_FOUND) {
        return SL_OK; /* nobody has said anything yet, or in a dry run */
    }
    if (status < 0) {
        warn_once(job, "control file");
        return SL_OK;
    }
    job->has_warned = 0;
    if (exchange->params.is_dry_run && job->written_ns != 0 &&
        order.sequence == job->file_sequence) {
        return SL_OK; /* what would have been written counts */
    }
    sl_pins_read(&order, &job->job, &job->pins);
    job->file_sequence = order.sequence;
    job->order = order;
    return SL_OK;
}

/* NULL: gone, or not to be trusted; it is looked at again. */
static sl_exchange_job_t *make_job(const sl_exchange_t *exchange,
                                   const sl_run_id_t *id)
{
    sl_exchange_job_t *job = calloc(1, sizeof(*job));

    if (job == NULL ||
        sl_run_job_read(exchange->params.dir, id, &job->job) < 0) {
        free(job);
        return NULL;
    }
    job->id = *id;
    /* A coordinator of the past may have moved its threads; not those of a
     * job that policies leave alone. */
    job->background = job->job.job_class == SL_JOB_CLASS_NONE ? 0 : -1;
    return job;
}

static void add_job(sl_exchange_t *exchange, sl_exchange_job_t *take_job)
{
    take_job->is_present = read_job(exchange, take_job) >= 0;
    if (take_job->is_present) {
        exchange->jobs[exchange->n_jobs++] = take_job;
    } else {
        free(take_job);
    }
}

static int compare_arrivals(const void *a, const void *b)
{
    const sl_exchange_job_t *first = *(sl_exchange_job_t *const *)a;
    const sl_exchange_job_t *second = *(sl_exchange_job_t *const *)b;

    if (first->job.created_ns != second->job.created_ns) {
        return first->job.created_ns < second->job.created_ns ? -1 : 1;
    }
    return strcmp(first->id.text, second->id.text);
}

static void warn_many(sl_exchange_t *exchange, size_t n_left)
{
    if (n_left > 0 && !exchange->has_warned_many) {
        sl_warn("more than %d jobs: the %zu that came last are left alone "
                "until others end",
                (int)SL_COORD_MAX_JOBS, n_left);
    }
    exchange->has_warned_many = n_left > 0;
}

/* In the order of their arrival, whatever that of the directory is, and as
 * many as there is room for. */
static void add_new(sl_exchange_t *exchange, size_t n_listed)
{
    sl_exchange_job_t *job;
    size_t i, n = 0, n_unknown = 0;

    for (i = 0; i < n_listed; i++) {
        const sl_run_id_t *id = &exchange->ids[i];

        if (find_job(exchange, id) != NULL) {
            continue;
        }
        n_unknown++;
        job = exchange->n_jobs < SL_COORD_MAX_JOBS ? make_job(exchange, id)
                                                   : NULL;
        if (job != NULL) {
            exchange->arrivals[n++] = job;
        }
    }
    if (exchange->n_jobs == SL_COORD_MAX_JOBS) {
        warn_many(exchange, n_unknown);
        return;
    }
    qsort(exchange->arrivals, n, sizeof(*exchange->arrivals), compare_arrivals);
    for (i = 0; i < n && exchange->n_jobs < SL_COORD_MAX_JOBS; i++) {
        add_job(exchange, exchange->arrivals[i]);
    }
    warn_many(exchange, n - i);
    for (; i < n; i++) {
        free(exchange->arrivals[i]);
    }
}

static void drop_absent(sl_exchange_t *exchange)
{
    int i, n = 0;

    for (i = 0; i < exchange->n_jobs; i++) {
        if (exchange->jobs[i]->is_present) {
            exchange->jobs[n++] = exchange->jobs[i];
        } else {
            free(exchange->jobs[i]);
        }
    }
    exchange->n_jobs = n;
}

static void view_device(const sl_exchange_job_t *job, int d,
                        sl_coord_device_t *view)
{
    const sl_control_device_t *device = &job->job.devices[d];
    const sl_control_gate_t *gate = sl_pins_gate(&job->order, device->name);
    int s;

    memset(view, 0, sizeof(*view));
    memcpy(view->name, device->name, sizeof(view->name));
    view->capacity_bytes = device->capacity_bytes;
    view->wanted_bytes = device->wanted_bytes;
    memcpy(view->core_list, device->core_list, sizeof(view->core_list));
    memcpy(view->gpu_id, device->gpu_id, sizeof(view->gpu_id));
    view->gpu_bytes = device->gpu_bytes;
    view->limit_bytes = device->capacity_bytes;
    view->share_percent = 100.0;
    view->achieved_percent = -1.0;
    view->manual_percent = -1.0;
    for (s = 0; s < job->status.n_devices; s++) {
        const sl_control_device_status_t *said = &job->status.devices[s];

        if (strcmp(said->name, device->name) == 0) {
            view->limit_bytes = said->limit_bytes;
            view->held_bytes = said->held_bytes;
            view->spilled_bytes = said->host_used_bytes;
            view->share_percent = said->share_asked;
            view->achieved_percent = said->share_achieved;
        }
    }
    if (gate != NULL && (job->pins.shares >> d & 1) != 0) {
        view->manual_percent = gate->share;
    }
    if (gate != NULL && (job->pins.limits >> d & 1) != 0) {
        view->manual_bytes = gate->limit_bytes;
    }
}

/* A job that is just being opened says that it runs, until it asks. It has
 * neither memory nor an order then. */
static sl_job_state_t state_of(const sl_control_status_t *status)
{
    uint64_t held_bytes = 0;
    int d;

    for (d = 0; d < status->n_devices; d++) {
        held_bytes += status->devices[d].held_bytes;
    }
    return status->state == SL_JOB_STATE_RUNNING && status->step == 0 &&
                   status->accepted_sequence == 0 && held_bytes == 0
               ? SL_JOB_STATE_WAITING
               : status->state;
}

static void view_job(const sl_exchange_job_t *job, sl_coord_job_t *view)
{
    int d;

    memset(view, 0, sizeof(*view));
    view->id = job->id;
    view->job_class = job->status.job_class;
    view->state = state_of(&job->status);
    view->is_held = job->pins.is_held;
    view->created_ns = job->job.created_ns;
    view->step = job->status.step;
    view->boundary_ns = job->status.boundary_ns;
    view->n_recent = job->status.n_recent;
    memcpy(view->recent_us, job->status.recent_us, sizeof(view->recent_us));
    view->n_devices = job->job.n_devices;
    for (d = 0; d < job->job.n_devices; d++) {
        view_device(job, d, &view->devices[d]);
    }
}

/* @return how many there are in `ids` */
static size_t list_jobs(sl_exchange_t *exchange)
{
    sl_run_dir_t *dir = exchange->params.dir;
    size_t n = sl_run_dir_list(dir, exchange->ids, exchange->room);

    while (n > exchange->room && make_room(exchange, 2 * n) >= 0) {
        n = sl_run_dir_list(dir, exchange->ids, exchange->room);
    }
    return n < exchange->room ? n : exchange->room;
}

void sl_exchange_read(sl_exchange_t *exchange, uint64_t now_ns,
                      sl_coord_snapshot_t *seen)
{
    const size_t n = list_jobs(exchange);
    sl_exchange_job_t *job;
    size_t i;

    for (i = 0; i < (size_t)exchange->n_jobs; i++) {
        exchange->jobs[i]->is_present = 0;
    }
    for (i = 0; i < n; i++) {
        job = find_job(exchange, &exchange->ids[i]);
        if (job != NULL) {
            job->is_present = read_job(exchange, job) >= 0;
        }
    }
    drop_absent(exchange);
    add_new(exchange, n);
    seen->now_ns = now_ns;
    seen->n_jobs = exchange->n_jobs;
    for (i = 0; i < (size_t)exchange->n_jobs; i++) {
        view_job(exchange->jobs[i], &seen->jobs[i]);
        seen->jobs[i].has_pulse =
            sl_run_job_has_pulse(exchange->params.dir, &seen->jobs[i].id);
    }
}

/* ---- writing ---- */

static uint64_t next_sequence(const sl_exchange_job_t *job)
{
    uint64_t last = job->order.sequence;

    if (job->status.accepted_sequence > last) {
        last = job->status.accepted_sequence;
    }
    return last + 1;
}

/* To the order's gate `g`: whom device `d` yields to. */
static void compose_yields(const sl_coord_snapshot_t *seen,
                           const sl_coord_decision_t *decision, int d, int g,
                           sl_control_order_t *order)
{
    int i;

    order->gates[g].has_yields = 1;
    for (i = 0; i < decision->n_yields; i++) {
        const sl_coord_yield_to_t *from = &decision->yields[i];

        if (from->device == d) {
            sl_control_yield_t *to = &order->yields[order->n_yields++];

            to->gate = g;
            to->host = seen->jobs[from->host].id;
            to->device = from->host_device;
        }
    }
}

static void compose(const sl_exchange_t *exchange, const sl_exchange_job_t *job,
                    const sl_coord_snapshot_t *seen, int i,
                    const sl_coord_decision_t *decision,
                    sl_control_order_t *order)
{
    const sl_coord_job_t *view = &seen->jobs[i];
    const int is_free = view->job_class == SL_JOB_CLASS_NONE;
    int d;

    sl_control_order_default(order);
    order->sequence = next_sequence(job);
    order->floor_share = exchange->params.floor_percent;
    order->job_class = job->order.sequence > 0 ? job->order.job_class : -1;
    if (job->order.sequence > 0 &&
        job->order.action == SL_CONTROL_ACTION_STOP) {
        order->action = SL_CONTROL_ACTION_STOP;
    } else if (view->is_held || !decision->is_admitted) {
        order->action = SL_CONTROL_ACTION_WAIT;
    }
    /* What a person wants holds without the coordinator too. */
    if (!view->is_held && (!decision->is_admitted ||
                           view->job_class == SL_JOB_CLASS_OPPORTUNISTIC)) {
        order->ttl_ms = exchange->params.ttl_ms;
    }
    sl_pins_token(&job->pins, SL_PINS_COORDINATOR, order->writer_token);
    (void)strncpy(order->reason,
                  view->is_held ? "suspended by hand" : decision->reason,
                  sizeof(order->reason) - 1);
    for (d = 0; d < view->n_devices; d++) {
        sl_control_gate_t *gate = &order->gates[order->n_gates];

        memcpy(gate->name, view->devices[d].name, sizeof(gate->name));
        gate->share = decision->gates[d].share_percent;
        gate->limit_bytes = decision->gates[d].limit_bytes;
        if (is_free && (job->pins.shares >> d & 1) == 0) {
            gate->share = -1.0;
        }
        if (is_free && (job->pins.limits >> d & 1) == 0) {
            gate->limit_bytes = 0;
        }
        if (gate->share >= 0.0 || gate->limit_bytes > 0) {
            compose_yields(seen, decision, d, order->n_gates, order);
            order->n_gates++;
        }
    }
    sl_pins_keep(&job->pins, &job->job, order);
}

static int is_share_new(double a, double b)
{
    /* Ends of the range are reached exactly. */
    return fabs(a - b) >= SHARE_STEP ||
           (a != b && (a <= 0.0 || a >= 100.0 || b <= 0.0));
}

static int is_limit_new(uint64_t a, uint64_t b)
{
    const uint64_t difference = a > b ? a - b : b - a;

    return (a == 0) != (b == 0) || difference > b / LIMIT_PART;
}

/* Both in the order of the devices, as composed or read back. */
static int are_yields_new(const sl_control_order_t *a, int g,
                          const sl_control_order_t *b, int h)
{
    int i, j = 0;

    if (!b->gates[h].has_yields) {
        return 1;
    }
    for (i = 0; i < a->n_yields; i++) {
        if (a->yields[i].gate != g) {
            continue;
        }
        while (j < b->n_yields && b->yields[j].gate != h) {
            j++;
        }
        if (j == b->n_yields || a->yields[i].device != b->yields[j].device ||
            strcmp(a->yields[i].host.text, b->yields[j].host.text) != 0) {
            return 1;
        }
        j++;
    }
    for (; j < b->n_yields; j++) {
        if (b->yields[j].gate == h) {
            return 1;
        }
    }
    return 0;
}

static int is_new(const sl_control_order_t *a, const sl_control_order_t *b)
{
    int g;

    if (a->action != b->action || a->ttl_ms != b->ttl_ms ||
        a->floor_share != b->floor_share || a->job_class != b->job_class ||
        a->n_gates != b->n_gates || strcmp(a->reason, b->reason) != 0 ||
        strcmp(a->writer_token, b->writer_token) != 0) {
        return 1;
    }
    for (g = 0; g < a->n_gates; g++) {
        const sl_control_gate_t *gate = sl_pins_gate(b, a->gates[g].name);

        if (gate == NULL || is_share_new(a->gates[g].share, gate->share) ||
            a->gates[g].is_kept != gate->is_kept ||
            is_limit_new(a->gates[g].limit_bytes, gate->limit_bytes) ||
            are_yields_new(a, g, b, (int)(gate - b->gates))) {
            return 1;
        }
    }
    return 0;
}

static void write_one(sl_exchange_t *exchange, sl_exchange_job_t *job,
                      const sl_control_order_t *order, uint64_t now_ns,
                      int is_news)
{
    const sl_control_order_t *before =
        job->order.sequence > 0 ? &job->order : NULL;
    sl_status_t status = SL_OK;

    if (!exchange->params.is_dry_run) {
        status = sl_run_order_write(exchange->params.dir, &job->id, order);
    }
    if (status == SL_ERR_NOT_FOUND) {
        return; /* it has just ended */
    }
    if (status < 0) {
        if (!job->has_warned) {
            sl_warn("job %s: cannot write its control file: %s", job->id.text,
                    sl_last_error());
        }
        job->has_warned = 1;
        return;
    }
    if (is_news && exchange->params.on_order != NULL) {
        exchange->params.on_order(exchange->params.ctx, &job->id, order,
                                  before);
    }
    job->order = *order;
    job->written_ns = now_ns;
}

/* To raise a job may need a privilege. A guest alone that stays in the
 * background has the cores all the same; a promoted one should know. */
static void set_priority(const sl_exchange_t *exchange, sl_exchange_job_t *job,
                         const sl_coord_job_t *view, int is_background,
                         uint64_t now_ns)
{
    const int is_changed = job->background != is_background;

    if (exchange->params.is_dry_run ||
        (!is_changed &&
         (!is_background || now_ns - job->priority_ns < PRIORITY_MS * MS_NS))) {
        return;
    }
    if (sl_priority_set(&job->job, is_background) < 0 && is_changed &&
        (is_background || view->job_class == SL_JOB_CLASS_GUARANTEE)) {
        sl_warn("job %s: %s", job->id.text, sl_last_error());
    }
    job->background = is_background;
    job->priority_ns = now_ns;
}

void sl_exchange_write(sl_exchange_t *exchange, const sl_coord_snapshot_t *seen,
                       const sl_coord_decisions_t *decisions)
{
    sl_control_order_t order;
    int i, is_news, is_due;

    for (i = 0; i < exchange->n_jobs && i < seen->n_jobs; i++) {
        sl_exchange_job_t *job = exchange->jobs[i];

        if (job->status.state == SL_JOB_STATE_DONE) {
            continue;
        }
        set_priority(exchange, job, &seen->jobs[i],
                     decisions->jobs[i].is_background, seen->now_ns);
        compose(exchange, job, seen, i, &decisions->jobs[i], &order);
        is_news = job->order.sequence == 0 || is_new(&order, &job->order);
        is_due = order.ttl_ms > 0 && seen->now_ns - job->written_ns >=
                                         order.ttl_ms * MS_NS / REFRESHES;
        if (is_news || (is_due && !exchange->params.is_dry_run)) {
            write_one(exchange, job, &order, seen->now_ns, is_news);
        }
    }
}
