/* SPDX-License-Identifier: Apache-2.0 */
/* When a guest's op may start: arithmetic on what it read and on its own
 * clock. What it read may be anything: it only chooses between now and a
 * bounded later. */
#include <string.h>

#include "scheduler/pulse.h"

/* An idle time that lasts this much longer than it was expected to tells
 * nothing any more about its end. */
#define LATE_NS UINT64_C(500000)

static uint64_t minus(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

int sl_pulse_fits(const sl_pulse_reading_t *reading, uint64_t cost_ns,
                  uint64_t now_ns)
{
    const uint64_t length_ns = minus(reading->until_ns, reading->since_ns);
    const uint64_t age_ns = minus(now_ns, reading->since_ns);

    if (reading->until_ns == 0) {
        return 0; /* busy */
    }
    if (reading->until_ns == SL_PULSE_UNKNOWN ||
        cost_ns <= minus(reading->until_ns, now_ns) ||
        (cost_ns <= SL_PULSE_SHORT_NS && length_ns >= SL_PULSE_SHORT_NS)) {
        return 1;
    }
    if (now_ns >= reading->until_ns) {
        return age_ns / 2 >= length_ns + LATE_NS / 2;
    }
    return cost_ns > reading->longest_ns && cost_ns > length_ns &&
           age_ns <= length_ns / 8 + SL_PULSE_SHORT_NS;
}

void sl_yield_init(sl_yield_law_t *law, double floor)
{
    memset(law, 0, sizeof(*law));
    law->floor = floor > 0.0 && floor <= 1.0 ? floor : 1.0;
}

void sl_yield_enter(sl_yield_law_t *law, uint64_t now_ns)
{
    law->enter_ns = now_ns;
    law->by_floor = 0;
}

static uint64_t over_floor(const sl_yield_law_t *law, uint64_t ns,
                           uint64_t most_ns)
{
    const double wait_ns = (double)ns / law->floor;

    return wait_ns < (double)most_ns ? (uint64_t)wait_ns : most_ns;
}

uint64_t sl_yield_wait_ns(sl_yield_law_t *law,
                          const sl_pulse_reading_t *readings, int n,
                          uint64_t cost_ns, uint64_t now_ns)
{
    const uint64_t from_ns =
        law->paid_ns > law->enter_ns ? law->paid_ns : law->enter_ns;
    /* the shortest ones not one by one: each start takes the core */
    const uint64_t least_ns =
        cost_ns > SL_PULSE_SHORT_NS ? cost_ns : SL_PULSE_SHORT_NS;
    const uint64_t owed_ns =
        from_ns + over_floor(law, least_ns, SL_PULSE_FLOOR_WAIT_NS);
    int i;

    for (i = 0; i < n && sl_pulse_fits(&readings[i], cost_ns, now_ns); i++) {
    }
    if (i == n) {
        law->by_floor = 0;
        return 0;
    }
    if (now_ns >= owed_ns) {
        law->by_floor = 1;
        return 0;
    }
    if (readings[i].until_ns != 0) {
        /* idle for long, but not for long enough: its count stays */
        return least(owed_ns - now_ns, LATE_NS);
    }
    return least(owed_ns - now_ns, SL_PULSE_LOOK_NS);
}

void sl_yield_leave(sl_yield_law_t *law, uint64_t used_ns, uint64_t now_ns)
{
    const uint64_t from_ns = law->paid_ns > now_ns ? law->paid_ns : now_ns;

    if (!law->by_floor) { /* else its wait has paid for it */
        law->paid_ns =
            least(from_ns + over_floor(law, used_ns, SL_PULSE_AHEAD_NS),
                  now_ns + SL_PULSE_AHEAD_NS);
    }
}
