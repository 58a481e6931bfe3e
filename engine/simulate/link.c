/* SPDX-License-Identifier: Apache-2.0 */
/* Links. A transfer takes the sender's link for its bytes, its first byte is
 * at the receiver after the latency, and takes the receiver's link from then
 * on. Each link serves one transfer after the other, in the order they come. */
#include "engine/simulate/simulate_internal.h"

/* Links out of and into a device: its own within the host, the host's to
 * others. */
static const sl_cluster_link_t *link_of(const sl_sim_device_t *device,
                                        int is_far)
{
    return is_far ? &device->group->network : &device->group->link;
}

static double wire_us(const sl_cluster_link_t *link, double bytes, int n)
{
    const double us = link->message_us * n;

    return link->bytes_per_us > 0.0 ? us + bytes / link->bytes_per_us : us;
}

double sl_sim_latency(const sl_sim_t *sim, int from, int to)
{
    const sl_sim_device_t *a = &sim->devices[from], *b = &sim->devices[to];
    const int is_far = a->host != b->host;
    const double x = link_of(a, is_far)->latency_us;
    const double y = link_of(b, is_far)->latency_us;

    if (from == to || sim->params->has_free_links) {
        return 0.0;
    }
    return x > y ? x : y;
}

void sl_sim_send(sl_sim_t *sim, int from, int to, double bytes, int n,
                 const sl_sim_path_t *path, sl_sim_flight_t *flight)
{
    sl_sim_device_t *device = &sim->devices[from];
    const int is_far = sl_sim_is_far(sim, from, to);
    sl_sim_path_t *out = is_far ? &sim->hosts[device->host].out : &device->out;
    const double latency_us = sl_sim_latency(sim, from, to);

    flight->head = *path;
    flight->tail = *path;
    if (from == to) {
        return;
    }
    sim->n_messages += (uint64_t)n;
    *(is_far ? &sim->far_bytes : &sim->near_bytes) += bytes;
    if (sim->params->has_free_links) {
        return;
    }
    flight->head = *sl_sim_later(path, out);
    flight->head.n_hops++;
    flight->tail = flight->head;
    sl_sim_spend(&flight->tail, SL_SIM_WIRE,
                 wire_us(link_of(device, is_far), bytes, n));
    *out = flight->tail;
    sl_sim_spend(&flight->head, SL_SIM_LATENCY, latency_us);
    sl_sim_spend(&flight->tail, SL_SIM_LATENCY, latency_us);
}

void sl_sim_arrive(sl_sim_t *sim, int to, int is_far, double bytes, int n,
                   sl_sim_flight_t *flight)
{
    sl_sim_device_t *device = &sim->devices[to];
    sl_sim_path_t *in = is_far ? &sim->hosts[device->host].in : &device->in;
    sl_sim_path_t done;

    if (sim->params->has_free_links) {
        return;
    }
    done = *sl_sim_later(&flight->head, in);
    sl_sim_spend(&done, SL_SIM_WIRE,
                 wire_us(link_of(device, is_far), bytes, n));
    *in = done;
    flight->tail = *sl_sim_later(&flight->tail, &done);
}
