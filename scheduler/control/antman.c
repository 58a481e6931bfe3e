/* SPDX-License-Identifier: Apache-2.0 */
/* AntMan's JSON files. */
#include "scheduler/control/antman.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "scheduler/control/files.h"

/* Lower case; "0000:3d:00.0" without its domain. */
static void normalize(const char *from, char key[SL_ANTMAN_KEY_BYTES])
{
    const char *first = strchr(from, ':');
    size_t i;

    if (first != NULL && strchr(first + 1, ':') != NULL) {
        from = first + 1;
    }
    for (i = 0; i + 1 < SL_ANTMAN_KEY_BYTES && from[i] != '\0'; i++) {
        key[i] = (char)tolower((unsigned char)from[i]);
    }
    key[i] = '\0';
}

void sl_antman_key(const char *name, const char *pci_id,
                   char key[SL_ANTMAN_KEY_BYTES])
{
    normalize(pci_id != NULL ? pci_id : name, key);
}

static sl_status_t read_share(json_t *root, int *share)
{
    const json_t *value = json_object_get(root, "perfControl");
    sl_status_t status = SL_OK;

    if (!json_is_integer(value)) {
        goto out;
    }
    if (json_integer_value(value) < 0 || json_integer_value(value) > 100) {
        SL_REFUSE(status, SL_ERR_CORRUPT, out,
                  "perfControl is %" JSON_INTEGER_FORMAT
                  "; 0 to 100 percent is allowed",
                  json_integer_value(value));
    }
    *share = (int)json_integer_value(value);
out:
    return status;
}

static sl_status_t read_limit(const char *name, json_t *entry, int n_devices,
                              char keys[][SL_ANTMAN_KEY_BYTES],
                              sl_antman_config_t *config)
{
    const json_t *value = json_object_get(entry, "maxDeviceMem");
    char key[SL_ANTMAN_KEY_BYTES];
    sl_status_t status = SL_OK;
    json_int_t bytes;
    int n_parts = 0;
    int d;

    if (!json_is_integer(value)) {
        goto out;
    }
    bytes = json_integer_value(value);
    normalize(name, key);
    for (d = 0; d < n_devices; d++) {
        n_parts += strcmp(keys[d], key) == 0;
    }
    if (n_parts > 0 && bytes < 0) {
        SL_REFUSE(status, SL_ERR_CORRUPT, out, "maxDeviceMem of %s is negative",
                  key);
    }
    /* 0 is "as little as possible" there; here 0 means not said */
    for (d = 0; d < n_devices; d++) {
        if (strcmp(keys[d], key) == 0) {
            config->limit_bytes[d] =
                bytes > n_parts ? (uint64_t)(bytes / n_parts) : 1;
        }
    }
out:
    return status;
}

sl_status_t sl_antman_config_parse(const char *text, size_t n_bytes,
                                   int n_devices,
                                   char keys[][SL_ANTMAN_KEY_BYTES],
                                   sl_antman_config_t *config_p)
{
    sl_antman_config_t config;
    json_t *root = NULL;
    json_t *devices;
    sl_status_t status;
    void *at;

    memset(&config, 0, sizeof(config));
    config.share = -1;
    SL_TRY(status, sl_fields_load("AntMan's config", text, n_bytes, &root),
           out);
    SL_TRY(status, read_share(root, &config.share), out);
    devices = json_object_get(root, "gpuConfigInfo");
    for (at = json_object_iter(devices); at != NULL;
         at = json_object_iter_next(devices, at)) {
        SL_TRY(status,
               read_limit(json_object_iter_key(at), json_object_iter_value(at),
                          n_devices, keys, &config),
               out);
    }
    *config_p = config;
out:
    json_decref(root);
    return status;
}

/* Why blocks went to the host. AntMan's released code has the two texts the
 * other way round; here FRAGMENT means that the sum would have fit. */
static const char *swap_reason(const sl_antman_use_t *use)
{
    if (use->host_peak_bytes == 0) {
        return "";
    }
    return use->peak_bytes + use->host_peak_bytes <= use->held_bytes
               ? "FRAGMENT"
               : "OOM";
}

static json_t *use_to_json(const sl_antman_use_t *use)
{
    const struct {
        const char *key;
        uint64_t value;
    } numbers[] = {
        {"deviceMemUsedMax", use->peak_bytes},
        {"deviceMemUsedMin", use->used_bytes},
        {"deviceMemPoolSize", use->held_bytes},
        {"deviceMemStable", use->stable_bytes},
        {"hostMemUsedMax", use->host_peak_bytes},
        {"hostMemUsedMin", use->host_used_bytes},
        {"hostMemPoolSize", use->host_pool_bytes},
    };
    json_t *object = json_object();
    int bad = 0;
    size_t i;

    for (i = 0; i < sizeof(numbers) / sizeof(*numbers); i++) {
        bad |= json_object_set_new(object, numbers[i].key,
                                   sl_json_u64(numbers[i].value));
    }
    bad |= json_object_set_new(object, "swapReason",
                               json_string(swap_reason(use)));
    bad |= json_object_set_new(object, "deviceMemUsedNvidia", json_integer(-1));
    if (bad != 0) {
        json_decref(object);
        object = NULL;
    }
    return object;
}

/* What the devices of one key have together. */
static sl_antman_use_t sum_uses(int n_devices, char keys[][SL_ANTMAN_KEY_BYTES],
                                const sl_antman_use_t *uses, const char *key)
{
    sl_antman_use_t sum;
    int d;

    memset(&sum, 0, sizeof(sum));
    for (d = 0; d < n_devices; d++) {
        if (strcmp(keys[d], key) == 0) {
            sum.peak_bytes += uses[d].peak_bytes;
            sum.used_bytes += uses[d].used_bytes;
            sum.held_bytes += uses[d].held_bytes;
            sum.stable_bytes += uses[d].stable_bytes;
            sum.host_peak_bytes += uses[d].host_peak_bytes;
            sum.host_used_bytes += uses[d].host_used_bytes;
            sum.host_pool_bytes += uses[d].host_pool_bytes;
        }
    }
    return sum;
}

sl_status_t sl_antman_status_format(int n_devices,
                                    char keys[][SL_ANTMAN_KEY_BYTES],
                                    const sl_antman_use_t *uses,
                                    double duration_us, char **text_p)
{
    json_t *root = json_object();
    json_t *devices = json_object();
    json_t *durations = json_object();
    int bad = 0;
    int d;

    for (d = 0; d < n_devices; d++) {
        const sl_antman_use_t use = sum_uses(n_devices, keys, uses, keys[d]);

        bad |= json_object_set_new(devices, keys[d], use_to_json(&use));
    }
    bad |= json_object_set_new(durations, "graph_0",
                               sl_json_u64((uint64_t)(duration_us + 0.5)));
    bad |= json_object_set_new(root, "gpuUsageInfo", devices);
    bad |= json_object_set_new(root, "miniBatchDuration",
                               sl_json_u64((uint64_t)(duration_us + 0.5)));
    bad |= json_object_set_new(root, "Durations", durations);
    if (bad != 0) {
        json_decref(root);
        root = NULL;
    }
    return sl_fields_dump("AntMan's status", root, text_p);
}
