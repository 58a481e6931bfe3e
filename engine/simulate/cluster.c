/* SPDX-License-Identifier: Apache-2.0 */
/* Reading the description of a cluster. */
#include "engine/simulate/cluster.h"

#include <stdio.h>
#include <string.h>

static const double MAX_LATENCY_US = 1e9;

/* Bytes a second, as text such as 25GB, into bytes a microsecond. */
static sl_status_t read_rate(const sl_yaml_node_t *node, const char *key,
                             double *rate_p)
{
    uint64_t bytes = 0;
    sl_status_t status;

    SL_TRY(status, sl_yaml_bytes(node, key, &bytes), out);
    if (sl_yaml_get(node, key) != NULL && bytes < 1000) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "%s: %s is bytes a second, such as 25GB, at least 1kB; left "
                "out: no limit",
                sl_yaml_place(sl_yaml_get(node, key)), key);
    }
    *rate_p = (double)bytes * 1e-6;
out:
    return status;
}

static sl_status_t read_link(const sl_yaml_node_t *host, const char *key,
                             sl_cluster_link_t *link)
{
    const sl_yaml_node_t *node;
    sl_status_t status;

    SL_TRY(status, sl_yaml_mapping(host, key, &node), out);
    SL_TRY(status,
           sl_yaml_float(node, "latency_us", 0.0, MAX_LATENCY_US,
                         &link->latency_us),
           out);
    SL_TRY(status,
           sl_yaml_float(node, "message_us", 0.0, MAX_LATENCY_US,
                         &link->message_us),
           out);
    status = read_rate(node, "bandwidth", &link->bytes_per_us);
out:
    return status;
}

static sl_status_t read_group(const sl_yaml_node_t *node,
                              sl_cluster_group_t *group)
{
    int64_t n_hosts = 1, n_devices = 1;
    sl_status_t status;

    if (sl_yaml_kind(node) != SL_YAML_MAPPING) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "%s: an entry of hosts is a mapping, such as {count: 2, "
                "devices: 8}",
                sl_yaml_place(node));
    }
    group->speed = 1.0;
    SL_TRY(status,
           sl_yaml_int(node, "count", 1, SL_CLUSTER_MAX_DEVICES, &n_hosts),
           out);
    SL_TRY(status,
           sl_yaml_int(node, "devices", 1, SL_CLUSTER_MAX_DEVICES, &n_devices),
           out);
    SL_TRY(status, sl_yaml_float(node, "speed", 1e-6, 1e6, &group->speed), out);
    SL_TRY(status, sl_yaml_bytes(node, "memory", &group->memory_bytes), out);
    SL_TRY(status,
           read_rate(node, "memory_bandwidth", &group->memory_bytes_per_us),
           out);
    SL_TRY(status, read_link(node, "link", &group->link), out);
    SL_TRY(status, read_link(node, "network", &group->network), out);
    group->n_hosts = (int)n_hosts;
    group->n_devices = (int)n_devices;
out:
    return status;
}

static sl_status_t add_group(const sl_yaml_node_t *node, sl_cluster_t *cluster)
{
    sl_cluster_group_t *group = &cluster->groups[cluster->n_groups];
    int64_t n;
    sl_status_t status;

    SL_TRY(status, read_group(node, group), out);
    n = (int64_t)group->n_hosts * group->n_devices + cluster->n_devices;
    if (n > SL_CLUSTER_MAX_DEVICES) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "%s: with these hosts there are %lld devices; at most %d are "
                "simulated",
                sl_yaml_place(node), (long long)n, SL_CLUSTER_MAX_DEVICES);
    }
    cluster->n_devices = (int)n;
    cluster->n_hosts += group->n_hosts;
    cluster->n_groups++;
out:
    return status;
}

sl_status_t sl_cluster_read(const sl_yaml_t *yaml, sl_cluster_t *cluster_p)
{
    const sl_yaml_node_t *root = sl_yaml_root(yaml);
    const sl_yaml_node_t *hosts = sl_yaml_get(root, "hosts");
    const size_t n = hosts == NULL ? 0 : sl_yaml_count(hosts);
    sl_cluster_t cluster = {.n_groups = 0};
    const char *name = "cluster";
    sl_status_t status;
    size_t i;

    SL_TRY(status, sl_yaml_string(root, "name", &name), out);
    if (hosts == NULL || sl_yaml_kind(hosts) != SL_YAML_SEQUENCE || n == 0 ||
        n > SL_CLUSTER_MAX_GROUPS) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "%s: a cluster has `hosts:`, a list of 1 to %d entries, such "
                "as [{count: 2, devices: 8}]",
                sl_yaml_place(hosts == NULL ? root : hosts),
                SL_CLUSTER_MAX_GROUPS);
    }
    (void)snprintf(cluster.name, sizeof(cluster.name), "%s", name);
    for (i = 0; i < n; i++) {
        SL_TRY(status, add_group(sl_yaml_entry(hosts, i, NULL), &cluster), out);
    }
    SL_TRY(status, sl_yaml_check_used(root), out);
    *cluster_p = cluster;
out:
    return status;
}

sl_status_t sl_cluster_open(const char *path, sl_cluster_t *cluster_p)
{
    sl_yaml_t *yaml;
    sl_status_t status;

    SL_TRY(status, sl_yaml_open(path, &yaml), out);
    status = sl_cluster_read(yaml, cluster_p);
    sl_yaml_close(yaml);
out:
    return status;
}

const sl_cluster_group_t *sl_cluster_device(const sl_cluster_t *cluster,
                                            int device, int *host_p)
{
    int g, host = 0;

    for (g = 0; g < cluster->n_groups - 1; g++) {
        const int n = cluster->groups[g].n_hosts * cluster->groups[g].n_devices;

        if (device < n) {
            break;
        }
        device -= n;
        host += cluster->groups[g].n_hosts;
    }
    *host_p = host + device / cluster->groups[g].n_devices;
    return &cluster->groups[g];
}
