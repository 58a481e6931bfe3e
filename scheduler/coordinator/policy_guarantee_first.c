/* SPDX-License-Identifier: Apache-2.0 */
/* guarantee-first: guarantee jobs have all of their devices; their guests'
 * shares rise step by step and are cut at once when a guarantee job's
 * mini-batches get slower than its baseline by more than the threshold. */
#include <stdio.h>

#include "scheduler/coordinator/coordinator_internal.h"

enum {
    CLEAN_TO_DOUBLE = 4, /* clean raises until the step doubles ... */
    MAX_STEP = 8         /* ... up to this many points */
};

static const double CUT = 0.5, DEEP_CUT = 0.1;
/* Guests that follow a pulse are out of the way already: the share is there
 * for what that does not see, such as caches, and may move in larger steps. */
static const double PULSE_START = 50.0, PULSE_CUT = 0.7, PULSE_DEEP_CUT = 0.5;
static const double PULSE_STEP = 8.0;
/* A cut goes far below the share that was too much, so that the guarantee
 * job recovers at once; then up to this part of it the way back is halved
 * each time, and only from there it is felt for. */
static const double NEAR_CEILING = 0.85;
static const double SAME_GAIN = 0.2; /* a difference that counts as none */

typedef struct sl_round {
    sl_coord_t *coord;
    const sl_coord_snapshot_t *seen;
    sl_coord_decisions_t *decisions;
    sl_coord_verdict_t verdict[SL_COORD_MAX_JOBS]; /* of guarantee jobs */
} sl_round_t;

static int is_class(const sl_round_t *round, int i, sl_job_class_t job_class)
{
    return round->seen->jobs[i].job_class == job_class &&
           sl_coord_is_active(round->seen, round->decisions, i);
}

static int is_host_of(const sl_round_t *round, int host, int guest)
{
    return is_class(round, host, SL_JOB_CLASS_GUARANTEE) &&
           is_class(round, guest, SL_JOB_CLASS_OPPORTUNISTIC) &&
           sl_coord_is_neighbour(&round->seen->jobs[host],
                                 &round->seen->jobs[guest]);
}

/* The share a guest really has: as set by hand, or as decided. */
static double share_in_force(const sl_round_t *round, int guest)
{
    const sl_coord_job_t *job = &round->seen->jobs[guest];

    if (job->n_devices > 0 && job->devices[0].manual_percent >= 0.0) {
        return job->devices[0].manual_percent;
    }
    return sl_coord_memory(round->coord, guest)->share_percent;
}

static int is_at_floor(const sl_round_t *round, int host)
{
    int i;

    for (i = 0; i < round->seen->n_jobs; i++) {
        if (is_host_of(round, host, i) &&
            share_in_force(round, i) > round->coord->params.floor_percent) {
            return 0;
        }
    }
    return 1;
}

static void judge_all(sl_round_t *round)
{
    int i;

    for (i = 0; i < round->seen->n_jobs; i++) {
        if (is_class(round, i, SL_JOB_CLASS_GUARANTEE)) {
            round->verdict[i] =
                sl_coord_judge(&round->coord->params,
                               &sl_coord_memory(round->coord, i)->signal,
                               &round->seen->jobs[i], round->seen->now_ns,
                               is_at_floor(round, i));
        } else {
            sl_coord_memory(round->coord, i)->signal.idle_ns =
                round->seen->now_ns;
        }
    }
}

/* The most urgent verdict of a guest's hosts, and whose it is; -1: none. */
static int find_host(const sl_round_t *round, int guest)
{
    int i, host = -1;

    for (i = 0; i < round->seen->n_jobs; i++) {
        if (is_host_of(round, i, guest) &&
            (host < 0 || round->verdict[i] > round->verdict[host])) {
            host = i;
        }
    }
    return host;
}

/* Whether all of a guest's hosts have one. */
static int follows_pulse(const sl_round_t *round, int guest)
{
    int i, n = 0;

    for (i = 0; i < round->seen->n_jobs; i++) {
        if (is_host_of(round, i, guest)) {
            if (!round->seen->jobs[i].has_pulse) {
                return 0;
            }
            n++;
        }
    }
    return n > 0;
}

static void move_hosts(sl_round_t *round, int guest, int is_cut)
{
    int i;

    for (i = 0; i < round->seen->n_jobs; i++) {
        if (is_host_of(round, i, guest)) {
            sl_coord_signal_moved(&sl_coord_memory(round->coord, i)->signal,
                                  round->seen->now_ns, is_cut);
        }
    }
}

static double clamp(const sl_round_t *round, double percent)
{
    const double floor = round->coord->params.floor_percent;

    if (!(percent > floor)) {
        return floor;
    }
    return percent > 100.0 ? 100.0 : percent;
}

static void cut(sl_round_t *round, int guest, double factor)
{
    sl_coord_memory_t *memory = sl_coord_memory(round->coord, guest);

    /* Deep: its load changed, and what was possible then says little. */
    memory->ceiling_percent =
        round->verdict[find_host(round, guest)] == SL_COORD_CUT_DEEP
            ? memory->share_percent * NEAR_CEILING
            : memory->share_percent;
    memory->share_percent = clamp(round, memory->share_percent * factor);
    memory->n_clean = 0;
    move_hosts(round, guest, 1);
}

/* A probe of a job that has just come ended: its guests begin at the floor,
 * unless both were there before this coordinator and have found theirs. */
static void restore(sl_round_t *round, int guest, int host)
{
    sl_coord_memory_t *memory = sl_coord_memory(round->coord, guest);

    if (!sl_coord_memory(round->coord, host)->is_taken_over &&
        sl_coord_memory(round->coord, host)->signal.n_baselines <= 1) {
        memory->share_percent = follows_pulse(round, guest)
                                    ? clamp(round, PULSE_START)
                                    : round->coord->params.floor_percent;
        memory->n_clean = 0;
    }
    move_hosts(round, guest, 0);
}

static void say(sl_round_t *round, int guest, const char *text, int host)
{
    char *reason = round->decisions->jobs[guest].reason;

    (void)snprintf(reason, SL_CONTROL_REASON_BYTES, "%s %.100s", text,
                   round->seen->jobs[host].id.text);
}

/* Everything but raises: those go to one guest of a host at a time. */
static void obey(sl_round_t *round, int guest, int host)
{
    sl_coord_memory_t *memory = sl_coord_memory(round->coord, guest);
    double percent;

    switch (round->verdict[host]) {
    case SL_COORD_CUT:
        cut(round, guest, follows_pulse(round, guest) ? PULSE_CUT : CUT);
        break;
    case SL_COORD_CUT_DEEP:
        cut(round, guest,
            follows_pulse(round, guest) ? PULSE_DEEP_CUT : DEEP_CUT);
        break;
    case SL_COORD_RESTORE:
        restore(round, guest, host);
        break;
    case SL_COORD_RAISE:
    case SL_COORD_STAY:
    case SL_COORD_FLOOR:
        break;
    }
    percent = memory->share_percent;
    if (round->verdict[host] == SL_COORD_FLOOR) {
        percent = round->coord->params.floor_percent;
        say(round, guest, "at the floor to measure", host);
    } else {
        say(round, guest, "in what is left by", host);
    }
    round->decisions->jobs[guest].is_background = 1;
    sl_coord_set_share(round->decisions, round->seen, guest, percent);
}

/* Guests without a guarantee job divide their devices equally. */
static void set_alone(sl_round_t *round, int guest)
{
    int i, n = 0;

    for (i = 0; i < round->seen->n_jobs; i++) {
        if (is_class(round, i, SL_JOB_CLASS_OPPORTUNISTIC) &&
            sl_coord_is_neighbour(&round->seen->jobs[guest],
                                  &round->seen->jobs[i])) {
            n++;
        }
    }
    /* What it had beside a guarantee job is kept for when that comes back. */
    sl_coord_set_share(round->decisions, round->seen, guest,
                       clamp(round, 100.0 / n));
}

static int may_rise(const sl_round_t *round, int guest)
{
    int host;

    if (!is_class(round, guest, SL_JOB_CLASS_OPPORTUNISTIC) ||
        sl_coord_memory(round->coord, guest)->share_percent >= 100.0 ||
        (round->seen->jobs[guest].n_devices > 0 &&
         round->seen->jobs[guest].devices[0].manual_percent >= 0.0)) {
        return 0;
    }
    host = find_host(round, guest);
    return host >= 0 && round->verdict[host] == SL_COORD_RAISE;
}

/* The guest that gains most; of those that gain the same, the one with the
 * smallest share. */
static int find_raise(const sl_round_t *round)
{
    double best_gain = 0.0, best_share = 0.0;
    int i, best = -1;

    for (i = 0; i < round->seen->n_jobs; i++) {
        const sl_coord_memory_t *memory = sl_coord_memory(round->coord, i);
        double gain;

        if (!may_rise(round, i)) {
            continue;
        }
        gain = sl_coord_gain(&memory->yield, &round->seen->jobs[i]);
        if (best < 0 || gain > best_gain + SAME_GAIN ||
            (gain > best_gain - SAME_GAIN &&
             memory->share_percent < best_share)) {
            best = i;
            best_gain = gain;
            best_share = memory->share_percent;
        }
    }
    return best;
}

static double next_step(sl_coord_memory_t *memory, int has_pulse)
{
    const double gap =
        NEAR_CEILING * memory->ceiling_percent - memory->share_percent;
    double step = has_pulse ? PULSE_STEP : 1.0;
    int i;

    if (gap > 1.0) {
        return gap / 2.0 > 1.0 ? gap / 2.0 : 1.0;
    }
    if (memory->ceiling_percent > 0.0 && memory->n_clean < CLEAN_TO_DOUBLE) {
        step = 1.0; /* near what was too much */
    }
    for (i = CLEAN_TO_DOUBLE; i <= memory->n_clean && step < MAX_STEP;
         i += CLEAN_TO_DOUBLE) {
        step *= 2.0;
    }
    memory->n_clean++;
    return step;
}

static void raise_one(sl_round_t *round, int guest)
{
    sl_coord_memory_t *memory = sl_coord_memory(round->coord, guest);
    int i;

    memory->share_percent =
        clamp(round, memory->share_percent +
                         next_step(memory, follows_pulse(round, guest)));
    sl_coord_set_share(round->decisions, round->seen, guest,
                       memory->share_percent);
    move_hosts(round, guest, 0);
    for (i = 0; i < round->seen->n_jobs; i++) {
        if (is_host_of(round, i, guest)) {
            round->verdict[i] = SL_COORD_STAY;
        }
    }
}

static void set_shares(sl_coord_t *coord, const sl_coord_snapshot_t *seen,
                       sl_coord_decisions_t *decisions)
{
    sl_round_t round;
    int i, host;

    round.coord = coord;
    round.seen = seen;
    round.decisions = decisions;
    for (i = 0; i < seen->n_jobs; i++) {
        round.verdict[i] = SL_COORD_STAY;
        if (is_class(&round, i, SL_JOB_CLASS_OPPORTUNISTIC) &&
            !(sl_coord_memory(coord, i)->share_percent > 0.0)) {
            sl_coord_memory(coord, i)->share_percent =
                coord->params.floor_percent;
        }
    }
    judge_all(&round);
    for (i = 0; i < seen->n_jobs; i++) {
        if (!is_class(&round, i, SL_JOB_CLASS_OPPORTUNISTIC)) {
            continue;
        }
        host = find_host(&round, i);
        if (host < 0) {
            set_alone(&round, i);
        } else {
            obey(&round, i, host);
        }
    }
    while ((i = find_raise(&round)) >= 0) {
        raise_one(&round, i);
    }
}

const sl_coord_policy_t sl_coord_policy_guarantee_first = {
    .size = sizeof(sl_coord_policy_t),
    .name = "guarantee-first",
    .brief = "guarantee jobs as if alone, guests in what they leave",
    .set_shares = set_shares,
};
