/* SPDX-License-Identifier: Apache-2.0 */
/* control.json: what a coordinator asks of a job. */
#include <stdio.h>
#include <string.h>

#include "scheduler/control/files.h"

static const uint64_t MAX_TTL_MS = 86400000;
static const double MAX_SHARE = 100.0;

void sl_control_order_default(sl_control_order_t *order)
{
    memset(order, 0, sizeof(*order));
    order->floor_share = SL_CONTROL_FLOOR_SHARE;
    order->job_class = -1;
}

/* "<job id>:<device index>"; an id is a name, so it is no path. */
static sl_status_t read_yield(const char *what, const json_t *entry,
                              sl_control_yield_t *yield)
{
    const char *text = json_string_value(entry);
    const char *colon = text == NULL ? NULL : strrchr(text, ':');
    const size_t n = colon == NULL ? 0 : (size_t)(colon - text);
    sl_status_t status = SL_OK;
    int device = 0;
    size_t i;

    if (colon == NULL || n >= sizeof(yield->host.text) ||
        strlen(text) != json_string_length(entry)) {
        SL_REFUSE(status, SL_ERR_CORRUPT, out,
                  "%s: \"yield_to\" is a list of \"job id:device index\"",
                  what);
    }
    memcpy(yield->host.text, text, n);
    yield->host.text[n] = '\0';
    for (i = 1; i <= 2 && colon[i] >= '0' && colon[i] <= '9'; i++) {
        device = 10 * device + (colon[i] - '0');
    }
    if (i == 1 || colon[i] != '\0' || device >= SL_CONTROL_MAX_DEVICES) {
        SL_REFUSE(status, SL_ERR_CORRUPT, out,
                  "%s: \"yield_to\": a device index is 0 to %d", what,
                  SL_CONTROL_MAX_DEVICES - 1);
    }
    if (!sl_name_is_valid(yield->host.text, sizeof(yield->host.text))) {
        SL_REFUSE(status, SL_ERR_CORRUPT, out,
                  "%s: \"yield_to\": that is not a job's id", what);
    }
    yield->device = device;
out:
    return status;
}

static sl_status_t read_yields(sl_fields_t fields, int gate,
                               sl_control_order_t *order)
{
    json_t *array = json_object_get(fields.object, "yield_to");
    sl_status_t status = SL_OK;
    size_t i;

    if (array == NULL) {
        return SL_OK;
    }
    if (!json_is_array(array) ||
        json_array_size(array) > SL_CONTROL_DEVICE_YIELDS ||
        json_array_size(array) >
            (size_t)(SL_CONTROL_MAX_YIELDS - order->n_yields)) {
        SL_REFUSE(status, SL_ERR_CORRUPT, out,
                  "%s: \"yield_to\" is a list of at most %d, %d in all",
                  fields.what, SL_CONTROL_DEVICE_YIELDS, SL_CONTROL_MAX_YIELDS);
    }
    order->gates[gate].has_yields = 1;
    for (i = 0; i < json_array_size(array); i++) {
        sl_control_yield_t *yield = &order->yields[order->n_yields];

        SL_TRY(status, read_yield(fields.what, json_array_get(array, i), yield),
               out);
        yield->gate = gate;
        order->n_yields++;
    }
out:
    return status;
}

static sl_status_t read_gate(const char *name, json_t *object, int g,
                             sl_control_order_t *order)
{
    static const char *const keys[] = {"limit_bytes", "share", "keep_share",
                                       "yield_to", NULL};
    sl_control_gate_t *gate = &order->gates[g];
    char what[64];
    const sl_fields_t fields = {what, object};
    sl_status_t status;

    if (!sl_device_name_is_valid(name, sizeof(gate->name))) {
        SL_REFUSE(status, SL_ERR_CORRUPT, out,
                  "control.json: a key of devices is not a device's name");
    }
    (void)snprintf(what, sizeof(what), "control.json: %s", name);
    if (!json_is_object(object)) {
        SL_REFUSE(status, SL_ERR_CORRUPT, out, "%s: it is not an object", what);
    }
    (void)snprintf(gate->name, sizeof(gate->name), "%s", name);
    gate->limit_bytes = 0;
    gate->share = -1.0;
    gate->is_kept = 0;
    gate->has_yields = 0;
    SL_TRY(status, sl_fields_check(fields, keys), out);
    SL_TRY(status,
           sl_fields_u64(fields, "limit_bytes", SL_FIELD_OPTIONAL, 1,
                         SL_CONTROL_MAX_SEQUENCE, &gate->limit_bytes),
           out);
    SL_TRY(status,
           sl_fields_number(fields, "share", SL_FIELD_OPTIONAL, 0.0, MAX_SHARE,
                            &gate->share),
           out);
    SL_TRY(
        status,
        sl_fields_bool(fields, "keep_share", SL_FIELD_OPTIONAL, &gate->is_kept),
        out);
    if (gate->is_kept && gate->share < 0.0) {
        SL_REFUSE(status, SL_ERR_CORRUPT, out,
                  "%s: \"keep_share\" without a \"share\"", what);
    }
    status = read_yields(fields, g, order);
out:
    return status;
}

static sl_status_t read_gates(sl_fields_t fields, sl_control_order_t *order)
{
    json_t *devices = NULL;
    sl_status_t status;
    void *at;

    SL_TRY(status,
           sl_fields_object(fields, "devices", SL_FIELD_OPTIONAL, &devices),
           out);
    if (devices == NULL) {
        goto out;
    }
    if (json_object_size(devices) > SL_CONTROL_MAX_DEVICES) {
        SL_REFUSE(status, SL_ERR_CORRUPT, out,
                  "control.json: %zu devices; at most %d are allowed",
                  json_object_size(devices), SL_CONTROL_MAX_DEVICES);
    }
    for (at = json_object_iter(devices); at != NULL;
         at = json_object_iter_next(devices, at)) {
        SL_TRY(status,
               read_gate(json_object_iter_key(at), json_object_iter_value(at),
                         order->n_gates, order),
               out);
        order->n_gates++;
    }
out:
    return status;
}

static sl_status_t read_order(sl_fields_t fields, sl_control_order_t *order)
{
    static const char *const keys[] = {
        "schema", "sequence", "ttl_ms", "floor_share", "writer_token",
        "action", "class",    "reason", "devices",     NULL};
    int action = SL_CONTROL_ACTION_NONE;
    sl_status_t status;

    SL_TRY(status, sl_fields_schema(fields), out);
    SL_TRY(status, sl_fields_check(fields, keys), out);
    SL_TRY(status,
           sl_fields_u64(fields, "sequence", SL_FIELD_REQUIRED, 1,
                         SL_CONTROL_MAX_SEQUENCE, &order->sequence),
           out);
    SL_TRY(status,
           sl_fields_u64(fields, "ttl_ms", SL_FIELD_OPTIONAL, 0, MAX_TTL_MS,
                         &order->ttl_ms),
           out);
    SL_TRY(status,
           sl_fields_number(fields, "floor_share", SL_FIELD_OPTIONAL, 1.0,
                            MAX_SHARE, &order->floor_share),
           out);
    SL_TRY(status,
           sl_fields_text(fields, "writer_token", SL_FIELD_OPTIONAL,
                          SL_CONTROL_TOKEN_EXTRA, order->writer_token,
                          sizeof(order->writer_token)),
           out);
    SL_TRY(status,
           sl_fields_choice(fields, "action", SL_FIELD_OPTIONAL,
                            sl_control_action_choice, SL_CONTROL_N_ACTIONS,
                            &action),
           out);
    order->action = (sl_control_action_t)action;
    SL_TRY(status,
           sl_fields_choice(fields, "class", SL_FIELD_OPTIONAL,
                            sl_job_class_choice, SL_JOB_N_CLASSES,
                            &order->job_class),
           out);
    SL_TRY(status,
           sl_fields_text(fields, "reason", SL_FIELD_OPTIONAL, NULL,
                          order->reason, sizeof(order->reason)),
           out);
    status = read_gates(fields, order);
out:
    return status;
}

sl_status_t sl_control_order_parse(const char *text, size_t n_bytes,
                                   sl_control_order_t *order_p)
{
    sl_control_order_t order;
    sl_fields_t fields = {"control.json", NULL};
    json_t *root = NULL;
    sl_status_t status;

    sl_control_order_default(&order);
    SL_TRY(status, sl_fields_load(fields.what, text, n_bytes, &root), out);
    fields.object = root;
    SL_TRY(status, read_order(fields, &order), out);
    *order_p = order;
out:
    json_decref(root);
    return status;
}

static json_t *yields_to_json(const sl_control_order_t *order, int g)
{
    char text[SL_CONTROL_ID_BYTES + 16];
    json_t *array = json_array();
    int bad = 0;
    int i;

    for (i = 0; i < order->n_yields; i++) {
        const sl_control_yield_t *yield = &order->yields[i];

        if (yield->gate == g) {
            (void)snprintf(text, sizeof(text), "%s:%d", yield->host.text,
                           yield->device);
            bad |= json_array_append_new(array, json_string(text));
        }
    }
    if (bad != 0) {
        json_decref(array);
        array = NULL;
    }
    return array;
}

static json_t *gates_to_json(const sl_control_order_t *order)
{
    json_t *devices = json_object();
    int bad = 0;
    int g;

    for (g = 0; g < order->n_gates; g++) {
        const sl_control_gate_t *gate = &order->gates[g];
        json_t *object = json_object();

        if (gate->limit_bytes > 0) {
            bad |= json_object_set_new(object, "limit_bytes",
                                       sl_json_u64(gate->limit_bytes));
        }
        if (gate->share >= 0.0) {
            bad |= json_object_set_new(object, "share", json_real(gate->share));
        }
        if (gate->is_kept) {
            bad |= json_object_set_new(object, "keep_share", json_true());
        }
        if (gate->has_yields) {
            bad |= json_object_set_new(object, "yield_to",
                                       yields_to_json(order, g));
        }
        bad |= json_object_set_new(devices, gate->name, object);
    }
    if (bad != 0) {
        json_decref(devices);
        devices = NULL;
    }
    return devices;
}

sl_status_t sl_control_order_format(const sl_control_order_t *order,
                                    char **text_p)
{
    json_t *root = json_object();
    int bad;

    bad = json_object_set_new(root, "schema", json_integer(SL_CONTROL_SCHEMA));
    bad |= json_object_set_new(root, "sequence", sl_json_u64(order->sequence));
    bad |= json_object_set_new(root, "ttl_ms", sl_json_u64(order->ttl_ms));
    bad |=
        json_object_set_new(root, "floor_share", json_real(order->floor_share));
    bad |= json_object_set_new(root, "writer_token",
                               json_string(order->writer_token));
    bad |= json_object_set_new(
        root, "action", json_string(sl_control_action_name(order->action)));
    if (order->job_class >= 0) {
        bad |= json_object_set_new(
            root, "class",
            json_string(sl_job_class_name((sl_job_class_t)order->job_class)));
    }
    bad |= json_object_set_new(root, "reason", json_string(order->reason));
    bad |= json_object_set_new(root, "devices", gates_to_json(order));
    if (bad != 0) {
        json_decref(root);
        root = NULL;
    }
    return sl_fields_dump("control.json", root, text_p);
}
