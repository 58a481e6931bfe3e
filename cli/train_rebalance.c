/* SPDX-License-Identifier: Apache-2.0 */
/* Measure the devices, ask the policy, cut anew, move. With several ranks the
 * policy is rank 0's, and all do what it says. */
#include "cli/train_rebalance.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/rebalance.h"

struct sl_train_rebalance {
    sl_job_t *job;          /* borrowed */
    int n_slots;            /* of the grid */
    sl_rebalance_t *policy; /* owned */
    int asks; /* rank 0: new cuts are to be made; told with the next step */
    uint64_t *busy_before_ns; /* owned, of this rank's devices */
    double *own;     /* owned: what the latest boundary has found here, see
                         n_sums(); the ranks add it up with the next step */
    double own_us;   /* of the step before it; 0: none with these cuts */
    double given_us; /* of the one that the next sums will be of; likewise */
    double *speed;   /* owned, as the arrays below: [n_slots] */
    double *work_ratio;
    double *stage_speed;  /* [n_stages] for `speed` */
    int *cuts;            /* [n_stages + 1] */
    size_t *forced_limit; /* [n_devices] of memory, that forced a move */
    int is_forced;        /* by memory, and not reconsidered since */
    int n_raised;         /* boundaries in a row with a higher limit */
};

enum {
    /* boundaries that a limit stays raised before layers come back */
    RAISED_BOUNDARIES = 20
};

/* ---- life ---- */

static int is_wanted(const sl_job_t *job)
{
    return job->config.rebalance == SL_REBALANCE_AUTO && job->n_stages > 1 &&
           job->grid->n_slots > 1 && sl_job_has_free_cuts(job);
}

/* Whether rank 0 asks for other cuts, how many ranks say that layers may come
 * back, then the share of each slot, then how long it was busy. */
static size_t n_sums(const sl_train_rebalance_t *rebalance)
{
    return 2 + 2 * (size_t)rebalance->n_slots;
}

static sl_status_t make_room(sl_train_rebalance_t *rebalance)
{
    const size_t n = (size_t)rebalance->n_slots;
    const size_t n_own = (size_t)rebalance->job->devices->n_devices;
    const size_t k = (size_t)rebalance->job->n_stages;
    sl_status_t status = SL_OK;

    rebalance->busy_before_ns = calloc(n_own, sizeof(uint64_t));
    rebalance->own = calloc(n_sums(rebalance), sizeof(double));
    rebalance->speed = calloc(n, sizeof(double));
    rebalance->work_ratio = calloc(n, sizeof(double));
    rebalance->stage_speed = calloc(k, sizeof(double));
    rebalance->cuts = calloc(k + 1, sizeof(int));
    rebalance->forced_limit = calloc(n_own, sizeof(size_t));
    if (rebalance->busy_before_ns == NULL || rebalance->own == NULL ||
        rebalance->speed == NULL || rebalance->work_ratio == NULL ||
        rebalance->stage_speed == NULL || rebalance->cuts == NULL ||
        rebalance->forced_limit == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "rebalance: no host memory for %zu devices", n);
    }
out:
    return status;
}

static uint64_t busy_ns(const sl_train_rebalance_t *rebalance, int d)
{
    sl_op_stats_t stats;

    sl_op_manager_stats(rebalance->job->devices->devices[d].ops, &stats);
    return stats.busy_ns;
}

/* Kernels from here on belong to the next step. */
static void start_measuring(sl_train_rebalance_t *rebalance)
{
    int d;

    for (d = 0; d < rebalance->job->devices->n_devices; d++) {
        rebalance->busy_before_ns[d] = busy_ns(rebalance, d);
    }
}

sl_status_t sl_train_rebalance_open(sl_job_t *job,
                                    sl_train_rebalance_t **rebalance_p)
{
    sl_train_rebalance_t *rebalance = NULL;
    sl_rebalance_params_t params;
    sl_status_t status = SL_OK;

    *rebalance_p = NULL;
    if (!is_wanted(job)) {
        return SL_OK;
    }
    rebalance = calloc(1, sizeof(*rebalance));
    if (rebalance == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "rebalance: no host memory");
    }
    rebalance->job = job;
    rebalance->n_slots = job->grid->n_slots;
    SL_TRY(status, make_room(rebalance), err_close);
    sl_rebalance_params_default(&params);
    params.n_devices = rebalance->n_slots;
    params.plan_speed = job->slot_speed;
    SL_TRY(status, sl_rebalance_create(&params, &rebalance->policy), err_close);
    start_measuring(rebalance);
    *rebalance_p = rebalance;
    return SL_OK;

err_close:
    sl_train_rebalance_close(rebalance);
out:
    return status;
}

void sl_train_rebalance_close(sl_train_rebalance_t *rebalance)
{
    if (rebalance == NULL) {
        return;
    }
    sl_rebalance_destroy(rebalance->policy);
    free(rebalance->busy_before_ns);
    free(rebalance->own);
    free(rebalance->speed);
    free(rebalance->work_ratio);
    free(rebalance->stage_speed);
    free(rebalance->cuts);
    free(rebalance->forced_limit);
    free(rebalance);
}

/* ---- other cuts ---- */

/* The fastest cuts for the speeds of this moment that fit the limits. */
static sl_status_t find_cuts(sl_train_rebalance_t *rebalance, int *fits_p)
{
    const sl_job_t *job = rebalance->job;
    sl_part_problem_t problem = sl_job_problem(job);
    sl_engine_params_t params;
    sl_status_t status;
    sl_fit_t fit;

    sl_job_stage_speeds(job, rebalance->speed, rebalance->stage_speed);
    problem.stage_speed = rebalance->stage_speed;
    sl_job_engine_params(job, &params);
    SL_TRY(status, sl_engine_fit(&params, &problem, rebalance->cuts, &fit),
           out);
    *fits_p = fit.fits;
out:
    return status;
}

static double predicted_us(const sl_train_rebalance_t *rebalance,
                           const int *cuts)
{
    const sl_job_t *job = rebalance->job;
    sl_part_problem_t problem = sl_job_problem(job);
    sl_part_prediction_t prediction;
    int n_micro;

    problem.stage_speed = rebalance->stage_speed;
    /* of a replica that has its full number */
    (void)sl_split_rows(job->config.batch,
                        (int)(job->config.micro_batches * job->config.replicas),
                        0, &n_micro);
    if (n_micro > job->config.micro_batches) {
        n_micro = (int)job->config.micro_batches;
    }
    sl_part_predict(&problem, cuts, n_micro, &prediction);
    return prediction.step_us;
}

/* Stage of a layer. */
static int stage_of(const int *cuts, int layer)
{
    int k = 0;

    while (layer >= cuts[k + 1]) {
        k++;
    }
    return k;
}

/* State that crosses, each layer once; replicas have links of their own. */
static double moved_bytes(const sl_train_rebalance_t *rebalance)
{
    const sl_job_t *job = rebalance->job;
    const double n_state = 1.0 + sl_optimizer_n_moments(&job->config.optimizer);
    double bytes = 0.0;
    int l;

    for (l = 0; l < job->model->n_layers; l++) {
        if (stage_of(job->cuts, l) != stage_of(rebalance->cuts, l)) {
            bytes += (double)job->costs.layers[l].param_bytes +
                     n_state * (double)job->costs.layers[l].trained_bytes;
        }
    }
    return bytes;
}

static double cell_us(const sl_part_problem_t *problem, const int *cuts, int k)
{
    return sl_part_stage_us(problem, cuts[k], cuts[k + 1], k);
}

/* What the work of each device is, of what it was. */
static void find_work_ratios(sl_train_rebalance_t *rebalance)
{
    const sl_job_t *job = rebalance->job;
    sl_part_problem_t problem = sl_job_problem(job);
    int d, k, r;

    problem.stage_speed = NULL;
    for (d = 0; d < rebalance->n_slots; d++) {
        double before = 0.0, after = 0.0;

        for (k = 0; k < job->n_stages * (int)job->config.replicas; k++) {
            r = k / job->n_stages;
            if (sl_job_slot_of(job, r, k % job->n_stages) == d) {
                before += cell_us(&problem, job->cuts, k % job->n_stages);
                after += cell_us(&problem, rebalance->cuts, k % job->n_stages);
            }
        }
        rebalance->work_ratio[d] = before > 0.0 ? after / before : 1.0;
    }
}

/* ---- news ---- */

static void add_text(sl_rebalance_news_t *news, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void add_text(sl_rebalance_news_t *news, const char *format, ...)
{
    const size_t used = strlen(news->text);
    va_list args;

    va_start(args, format);
    (void)vsnprintf(news->text + used, sizeof(news->text) - used, format, args);
    va_end(args);
}

/* Runs of layers with the same way: "layers 7-9 move from stage 1 to stage 0,
 * layers 20-22 from stage 2 to stage 1". */
static void tell_layers(const sl_train_rebalance_t *rebalance,
                        sl_rebalance_news_t *news)
{
    const sl_job_t *job = rebalance->job;
    const int n = job->model->n_layers;
    int l, first = 0, is_first = 1;

    for (l = 1; l <= n; l++) {
        const int from = stage_of(job->cuts, first);
        const int to = stage_of(rebalance->cuts, first);
        char range[32];

        if (l < n && stage_of(job->cuts, l) == from &&
            stage_of(rebalance->cuts, l) == to) {
            continue;
        }
        if (from != to) {
            (void)snprintf(range, sizeof(range),
                           l - 1 > first ? "s %d-%d" : " %d", first, l - 1);
            add_text(news, "%slayer%s%s from stage %d to stage %d",
                     is_first ? "" : ", ", range,
                     !is_first       ? ""
                     : l - 1 > first ? " move"
                                     : " moves",
                     from, to);
            is_first = 0;
        }
        first = l;
    }
}

/* The device whose speed is furthest from what the cuts were made for. */
static void tell_device(const sl_train_rebalance_t *rebalance,
                        sl_rebalance_news_t *news)
{
    const sl_job_t *job = rebalance->job;
    const sl_grid_slot_t *slot;
    char rank[32] = "";
    double most = -1.0;
    int d, device = 0;

    for (d = 0; d < rebalance->n_slots; d++) {
        const double change =
            fabs(log(rebalance->speed[d] / job->slot_speed[d]));

        if (change > most) {
            most = change;
            device = d;
        }
    }
    slot = &job->grid->slots[device];
    if (job->world != NULL) {
        (void)snprintf(rank, sizeof(rank), "rank %d ", slot->rank);
    }
    add_text(news, " (%s%s has %.0f %% of its time)", rank, slot->name,
             100.0 * rebalance->speed[device]);
}

/* ---- the move ---- */

/* The job and its engine go on with the new cuts. A move that is refused
 * changes nothing. */
static sl_status_t move(sl_train_rebalance_t *rebalance, int *moved_p,
                        sl_rebalance_news_t *news)
{
    sl_job_t *job = rebalance->job;
    const size_t n = (size_t)job->n_stages;
    sl_status_t status;

    *moved_p = 0;
    status = sl_engine_repartition(job->engine, rebalance->cuts, &news->report);
    if (status == SL_ERR_QUOTA || status == SL_ERR_NO_MEMORY) {
        sl_warn("layers stay where they are: %s", sl_last_error());
        /* they may have had to stay on part of the way */
        memcpy(job->cuts, sl_engine_cuts(job->engine), (n + 1) * sizeof(int));
        news->text[0] = '\0';
        return SL_OK;
    }
    SL_TRY(status, status, out);
    find_work_ratios(rebalance);
    memcpy(job->cuts, rebalance->cuts, (n + 1) * sizeof(int));
    memcpy(job->stage_speed, rebalance->stage_speed, n * sizeof(double));
    memcpy(job->slot_speed, rebalance->speed,
           (size_t)rebalance->n_slots * sizeof(double));
    sl_rebalance_moved(rebalance->policy, sl_clock_ns(), rebalance->speed,
                       rebalance->work_ratio);
    *moved_p = 1;
out:
    return status;
}

static int are_same_cuts(const sl_train_rebalance_t *rebalance)
{
    return memcmp(rebalance->cuts, rebalance->job->cuts,
                  ((size_t)rebalance->job->n_stages + 1) * sizeof(int)) == 0;
}

/* Rank 0: are the new cuts worth a move? The time that it took to find them
 * stands for that of making their plans. */
static int is_worth(const sl_train_rebalance_t *rebalance, uint64_t start_ns,
                    double *speedup_p)
{
    const sl_job_t *job = rebalance->job;
    const double before_us = predicted_us(rebalance, job->cuts);
    const double after_us = predicted_us(rebalance, rebalance->cuts);
    const double move_us =
        (double)(sl_clock_ns() - start_ns) * 1e-3 +
        moved_bytes(rebalance) / job->speed.link_bytes_per_us;

    *speedup_p = before_us / after_us;
    return sl_rebalance_is_worth(rebalance->policy, before_us, after_us,
                                 move_us);
}

/* What rank 0 has found, to all. */
static sl_status_t share_out(const sl_train_rebalance_t *rebalance,
                             double *values, size_t n)
{
    return sl_world_broadcast(rebalance->job->world, 0, values,
                              n * sizeof(*values));
}

static void tell(const sl_train_rebalance_t *rebalance, int comes_back,
                 sl_rebalance_news_t *news)
{
    tell_layers(rebalance, news);
    if (comes_back) {
        add_text(news, " (memory limits are higher again)");
    } else {
        tell_device(rebalance, news);
    }
    add_text(news, ", predicted %.2fx", news->speedup);
}

/* The policy asks for new cuts: are there better ones? */
static sl_status_t cut_again(sl_train_rebalance_t *rebalance, int comes_back,
                             sl_rebalance_news_t *news)
{
    const uint64_t start_ns = sl_clock_ns();
    double answer[2] = {0.0, 1.0}; /* whether to move, speedup */
    sl_status_t status;
    int fits = 0, moved = 0;

    sl_rebalance_speeds(rebalance->policy, rebalance->speed);
    SL_TRY(status,
           share_out(rebalance, rebalance->speed, (size_t)rebalance->n_slots),
           out);
    SL_TRY(status, find_cuts(rebalance, &fits), out);
    if (fits && !are_same_cuts(rebalance)) {
        answer[0] = is_worth(rebalance, start_ns, &answer[1]);
        SL_TRY(status, share_out(rebalance, answer, 2), out);
        news->speedup = answer[1];
    }
    if (answer[0] > 0.0) {
        tell(rebalance, comes_back, news);
        SL_TRY(status, move(rebalance, &moved, news), out);
    }
    if (!moved) {
        sl_rebalance_stayed(rebalance->policy, sl_clock_ns());
    }
out:
    return status;
}

static size_t asked_limit(const sl_train_rebalance_t *rebalance, int d)
{
    sl_mem_stats_t stats;

    sl_mem_stats(rebalance->job->devices->devices[d].mem, &stats);
    return stats.asked_limit_bytes;
}

/* Whether layers that had to go for memory may come back, as this rank sees
 * it: a limit is higher than it was then, and stays so. */
static int may_come_back(sl_train_rebalance_t *rebalance)
{
    int d, is_raised = 0;

    for (d = 0; rebalance->is_forced && d < rebalance->job->devices->n_devices;
         d++) {
        is_raised |= asked_limit(rebalance, d) > rebalance->forced_limit[d];
    }
    rebalance->n_raised = is_raised ? rebalance->n_raised + 1 : 0;
    return rebalance->n_raised >= RAISED_BOUNDARIES;
}

/* Shares and busy times of this rank's devices, and what it asks for. */
static void measure(sl_train_rebalance_t *rebalance, double step_us)
{
    const sl_job_t *job = rebalance->job;
    double *share = rebalance->own + 2;
    double *busy_us = share + rebalance->n_slots;
    int s;

    rebalance->own[0] = sl_job_is_first(job) ? rebalance->asks : 0;
    rebalance->own[1] = may_come_back(rebalance);
    for (s = 0; s < rebalance->n_slots; s++) {
        const sl_grid_slot_t *slot = &job->grid->slots[s];
        const int d = slot->device;

        if (slot->rank == job->grid->rank) {
            busy_us[s] =
                (double)(busy_ns(rebalance, d) - rebalance->busy_before_ns[d]) *
                1e-3;
            share[s] =
                sl_op_manager_share_get(job->devices->devices[d].ops, NULL) /
                100.0;
        }
    }
    rebalance->own_us = step_us;
}

/* The cuts are looked at: what was measured and asked before that is over. */
static void forget(sl_train_rebalance_t *rebalance)
{
    rebalance->asks = 0;
    memset(rebalance->own, 0, n_sums(rebalance) * sizeof(double));
    rebalance->own_us = rebalance->given_us = 0.0;
}

/* The step before the one that has ended, as all ranks know it now. */
static void observe(sl_train_rebalance_t *rebalance, const double *sums)
{
    const sl_rebalance_sample_t sample = {.now_ns = sl_clock_ns(),
                                          .step_us = rebalance->given_us,
                                          .share = sums + 2,
                                          .busy_us =
                                              sums + 2 + rebalance->n_slots};

    if (sample.step_us > 0.0) {
        rebalance->asks = sl_rebalance_observe(rebalance->policy, &sample);
    }
}

sl_status_t sl_train_rebalance_begin(sl_train_rebalance_t *rebalance)
{
    if (rebalance == NULL) {
        return SL_OK;
    }
    rebalance->given_us = rebalance->own_us;
    start_measuring(rebalance);
    return sl_engine_sum_with_step(rebalance->job->engine, rebalance->own,
                                   n_sums(rebalance));
}

sl_status_t sl_train_rebalance_step(sl_train_rebalance_t *rebalance,
                                    const sl_step_report_t *report,
                                    sl_rebalance_news_t *news)
{
    sl_status_t status = SL_OK;
    int asked, comes_back;

    memset(news, 0, sizeof(*news));
    if (rebalance == NULL) {
        return SL_OK;
    }
    asked = report->sums[0] > 0.0;
    comes_back = !asked && report->sums[1] > 0.0;
    observe(rebalance, report->sums);
    if (comes_back) {
        rebalance->is_forced = rebalance->n_raised = 0;
    }
    if (asked || comes_back) {
        forget(rebalance);
        SL_TRY(status, cut_again(rebalance, comes_back, news), out);
    } else {
        measure(rebalance, report->step_us);
    }
out:
    return status;
}

sl_status_t sl_train_rebalance_fit(sl_train_rebalance_t *rebalance,
                                   int *moved_p, sl_rebalance_news_t *news)
{
    sl_status_t status = SL_OK;
    int fits = 0, d;

    *moved_p = 0;
    memset(news, 0, sizeof(*news));
    if (rebalance == NULL) {
        return SL_OK;
    }
    sl_rebalance_speeds(rebalance->policy, rebalance->speed);
    SL_TRY(status,
           share_out(rebalance, rebalance->speed, (size_t)rebalance->n_slots),
           out);
    SL_TRY(status, find_cuts(rebalance, &fits), out);
    if (fits && !are_same_cuts(rebalance)) {
        tell_layers(rebalance, news);
        add_text(news, ": a step does not fit the memory limits otherwise");
        news->speedup = predicted_us(rebalance, rebalance->job->cuts) /
                        predicted_us(rebalance, rebalance->cuts);
        SL_TRY(status, move(rebalance, moved_p, news), out);
    }
    for (d = 0; *moved_p && d < rebalance->job->devices->n_devices; d++) {
        rebalance->forced_limit[d] = asked_limit(rebalance, d);
        rebalance->is_forced = 1;
    }
    forget(rebalance);
    start_measuring(rebalance);
out:
    return status;
}
