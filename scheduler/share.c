/* SPDX-License-Identifier: Apache-2.0 */
/* Token bucket with debt, and AntMan's law. */
#include "scheduler/share.h"

#include <string.h>

/* Waits are cut to this and asked for again: no conversion overflows. */
#define WAIT_MAX_NS 3600e9

static uint64_t since(uint64_t now_ns, uint64_t before_ns)
{
    return now_ns > before_ns ? now_ns - before_ns : 0;
}

static double least(double a, double b)
{
    return a < b ? a : b;
}

/* Let time flow into the bucket. A suspended device is idle all the time,
 * which pays a debt but saves nothing up. */
static void advance(sl_share_t *share, uint64_t now_ns)
{
    const double elapsed_ns = (double)since(now_ns, share->at_ns);

    if (share->percent > 0.0) {
        share->tokens_ns =
            least(share->tokens_ns + elapsed_ns * share->percent / 100.0,
                  SL_SHARE_DEPTH_NS);
    } else {
        share->suspended_ns += elapsed_ns;
        if (share->tokens_ns < 0.0) {
            share->tokens_ns = least(share->tokens_ns + elapsed_ns, 0.0);
        }
    }
    share->at_ns = now_ns > share->at_ns ? now_ns : share->at_ns;
}

void sl_share_init(sl_share_t *share)
{
    memset(share, 0, sizeof(*share));
    share->percent = 100.0;
    share->law = SL_SHARE_TOKEN_BUCKET;
}

void sl_share_set(sl_share_t *share, double percent, sl_share_law_t law,
                  uint64_t now_ns)
{
    if (share->percent >= 100.0 || law != share->law) {
        sl_share_init(share);
        share->at_ns = now_ns;
    } else {
        advance(share, now_ns);
        /* what is left of AntMan's lump was computed for another share */
        share->lump_ns -=
            least((double)since(share->not_before_ns, now_ns), share->lump_ns);
        share->not_before_ns = now_ns;
    }
    share->percent = percent;
    share->law = law;
}

static uint64_t bucket_wait_ns(sl_share_t *share, double expected_ns)
{
    const double enough_ns = least(expected_ns, SL_SHARE_START_NS);
    double wanted_ns = enough_ns;

    if (share->tokens_ns >= enough_ns) {
        return 0;
    }
    if (wanted_ns < SL_SHARE_BUNCH_NS) {
        wanted_ns = SL_SHARE_BUNCH_NS;
    }
    return 1 + (uint64_t)least((wanted_ns - share->tokens_ns) * 100.0 /
                                   share->percent,
                               WAIT_MAX_NS);
}

uint64_t sl_share_wait_ns(sl_share_t *share, double expected_ns,
                          uint64_t now_ns)
{
    advance(share, now_ns);
    if (share->percent >= 100.0) {
        return 0;
    }
    if (share->percent <= 0.0) {
        return SL_SHARE_SUSPENDED;
    }
    if (share->law == SL_SHARE_ANTMAN) {
        return since(share->not_before_ns, now_ns);
    }
    return bucket_wait_ns(share, expected_ns);
}

void sl_share_start(sl_share_t *share, double expected_ns, uint64_t now_ns)
{
    advance(share, now_ns);
    share->flight_ns += expected_ns;
    share->tokens_ns -= expected_ns;
}

/* The slot after an op is a part of what is left, as published: the slots
 * shrink, and together they are 63 % of the plan for many ops. */
static void antman_finish(sl_share_t *share, uint64_t now_ns)
{
    double slot_ns = 0.0;

    share->n_step_ops++;
    if (share->n_step_ops_max > 0) {
        slot_ns = share->left_ns / (double)share->n_step_ops_max;
    }
    share->left_ns -= slot_ns;
    share->not_before_ns = now_ns + (uint64_t)slot_ns;
}

void sl_share_settle(sl_share_t *share, double expected_ns, double used_ns,
                     uint64_t now_ns)
{
    /* when all began anew meanwhile, nothing of it was taken out */
    const double taken_ns = least(expected_ns, share->flight_ns);

    /* settled before time flows in: what came meanwhile must not spill */
    share->tokens_ns += taken_ns - used_ns;
    share->flight_ns -= taken_ns;
    advance(share, now_ns);
    if (share->tokens_ns < -SL_SHARE_DEBT_NS) {
        share->tokens_ns = -SL_SHARE_DEBT_NS;
    }
    if (share->law == SL_SHARE_ANTMAN) {
        antman_finish(share, now_ns);
    }
}

void sl_share_finish(sl_share_t *share, double used_ns, uint64_t now_ns)
{
    sl_share_settle(share, share->flight_ns, used_ns, now_ns);
}

/* The published law: idle so long that the run time of the mini-batch that
 * ended is `percent` of the whole. */
static double antman_idle_ns(const sl_share_t *share, double step_ns)
{
    const double inserted_ns = share->planned_ns - share->left_ns;
    double run_ns = step_ns;

    if (inserted_ns > 0.0) {
        run_ns -= inserted_ns;
    }
    if (run_ns < 1000.0) {
        run_ns = 1000.0;
    }
    return run_ns * 100.0 / share->percent - step_ns - SL_SHARE_ANTMAN_FIXED_NS;
}

void sl_share_boundary(sl_share_t *share, double step_ns, uint64_t now_ns)
{
    double idle_ns = 0.0;

    advance(share, now_ns);
    if (share->n_step_ops > share->n_step_ops_max) {
        share->n_step_ops_max = share->n_step_ops;
    }
    if (share->law == SL_SHARE_ANTMAN && share->percent > 0.0 &&
        share->percent < 100.0) {
        /* the law's step begins after the lump, and is not suspended */
        idle_ns = antman_idle_ns(share, step_ns - share->lump_ns -
                                            share->suspended_ns);
    }
    /* not a number, and nothing to insert, is no idle time */
    idle_ns = idle_ns > 0.0 ? least(idle_ns, WAIT_MAX_NS) : 0.0;
    share->planned_ns = idle_ns;
    share->left_ns = idle_ns;
    share->lump_ns = idle_ns;
    share->suspended_ns = 0.0;
    share->n_step_ops = 0;
    share->not_before_ns = now_ns + (uint64_t)idle_ns;
}
