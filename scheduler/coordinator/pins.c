/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler/coordinator/pins.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(SL_CONTROL_MAX_DEVICES <= 64, "a bit per device");

int sl_pins_is_written_by(const sl_control_order_t *order, const char *writer)
{
    const size_t n = strlen(writer);

    return strncmp(order->writer_token, writer, n) == 0 &&
           (order->writer_token[n] == '\0' || order->writer_token[n] == '.');
}

const sl_control_gate_t *sl_pins_gate(const sl_control_order_t *order,
                                      const char *name)
{
    int g;

    for (g = 0; g < order->n_gates; g++) {
        if (strcmp(order->gates[g].name, name) == 0) {
            return &order->gates[g];
        }
    }
    return NULL;
}

/* Bits for which the order has no value are dropped. */
static void keep_said(const sl_control_order_t *order,
                      const sl_control_job_t *job, sl_pins_t *pins)
{
    int d;

    for (d = 0; d < SL_CONTROL_MAX_DEVICES; d++) {
        const sl_control_gate_t *gate =
            d < job->n_devices ? sl_pins_gate(order, job->devices[d].name)
                               : NULL;

        if (gate == NULL || gate->share < 0.0) {
            pins->shares &= ~(UINT64_C(1) << d);
        }
        if (gate == NULL || gate->limit_bytes == 0) {
            pins->limits &= ~(UINT64_C(1) << d);
        }
    }
}

void sl_pins_read(const sl_control_order_t *order, const sl_control_job_t *job,
                  sl_pins_t *pins)
{
    const char *part;

    memset(pins, 0, sizeof(*pins));
    if (!sl_pins_is_written_by(order, SL_PINS_COORDINATOR) &&
        !sl_pins_is_written_by(order, SL_PINS_CTL)) {
        pins->shares = pins->limits = UINT64_MAX;
        pins->is_held = order->action == SL_CONTROL_ACTION_WAIT;
        keep_said(order, job, pins);
        return;
    }
    for (part = strchr(order->writer_token, '.'); part != NULL;
         part = strchr(part + 1, '.')) {
        if (part[1] == 's') {
            pins->shares = strtoull(part + 2, NULL, 16);
        } else if (part[1] == 'l') {
            pins->limits = strtoull(part + 2, NULL, 16);
        } else if (part[1] == 'h') {
            pins->is_held = 1;
        }
    }
    keep_said(order, job, pins);
}

void sl_pins_token(const sl_pins_t *pins, const char *writer, char token[64])
{
    char shares[24] = "", limits[24] = "";

    if (pins->shares != 0) {
        (void)snprintf(shares, sizeof(shares), ".s%" PRIx64, pins->shares);
    }
    if (pins->limits != 0) {
        (void)snprintf(limits, sizeof(limits), ".l%" PRIx64, pins->limits);
    }
    (void)snprintf(token, 64, "%s%s%s%s", writer, shares, limits,
                   pins->is_held ? ".h" : "");
}

void sl_pins_keep(const sl_pins_t *pins, const sl_control_job_t *job,
                  sl_control_order_t *order)
{
    int d, g;

    for (g = 0; g < order->n_gates; g++) {
        sl_control_gate_t *gate = &order->gates[g];

        gate->is_kept = 0;
        for (d = 0; d < job->n_devices && gate->share >= 0.0; d++) {
            if (strcmp(job->devices[d].name, gate->name) == 0) {
                gate->is_kept = (int)(pins->shares >> d & 1);
            }
        }
    }
}
