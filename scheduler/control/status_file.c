/* SPDX-License-Identifier: Apache-2.0 */
/* status.json: what a job does. */
#include <string.h>

#include "scheduler/control/files.h"

static const double MAX_REAL = 1e18;

/* Integers of an object that are all required and of full range. */
typedef struct number_field {
    const char *key;
    uint64_t *value_p;
} number_field_t;

static sl_status_t read_numbers(sl_fields_t fields,
                                const number_field_t *numbers, size_t n)
{
    sl_status_t status = SL_OK;
    size_t i;

    for (i = 0; i < n; i++) {
        SL_TRY(status,
               sl_fields_u64(fields, numbers[i].key, SL_FIELD_REQUIRED, 0,
                             SL_CONTROL_MAX_SEQUENCE, numbers[i].value_p),
               out);
    }
out:
    return status;
}

static int set_numbers(json_t *object, const number_field_t *numbers, size_t n)
{
    int bad = 0;
    size_t i;

    for (i = 0; i < n; i++) {
        bad |= json_object_set_new(object, numbers[i].key,
                                   sl_json_u64(*numbers[i].value_p));
    }
    return bad;
}

enum {
    N_MEMORY_FIELDS = 6,
    N_DEVICE_FIELDS = 4,
    N_CLASS_FIELDS = 3,
    N_STATUS_FIELDS = 6
};

static void list_memory(sl_control_device_status_t *device,
                        number_field_t fields[N_MEMORY_FIELDS])
{
    const number_field_t list[N_MEMORY_FIELDS] = {
        {"limit_bytes", &device->limit_bytes},
        {"limit_asked_bytes", &device->limit_asked_bytes},
        {"held_bytes", &device->held_bytes},
        {"used_bytes", &device->used_bytes},
        {"peak_bytes", &device->peak_bytes},
        {"host_used_bytes", &device->host_used_bytes},
    };

    memcpy(fields, list, sizeof(list));
}

static void list_device(sl_control_device_status_t *device,
                        number_field_t fields[N_DEVICE_FIELDS])
{
    const number_field_t list[N_DEVICE_FIELDS] = {
        {"busy_us", &device->busy_us},
        {"waiting_us", &device->waiting_us},
        {"throttled_us", &device->throttled_us},
        {"n_ops", &device->n_ops},
    };

    memcpy(fields, list, sizeof(list));
}

static void list_class(sl_control_class_use_t *use,
                       number_field_t fields[N_CLASS_FIELDS])
{
    const number_field_t list[N_CLASS_FIELDS] = {
        {"used_bytes", &use->used_bytes},
        {"host_bytes", &use->host_bytes},
        {"n_spills", &use->n_spills},
    };

    memcpy(fields, list, sizeof(list));
}

static void list_status(sl_control_status_t *job,
                        number_field_t fields[N_STATUS_FIELDS])
{
    const number_field_t list[N_STATUS_FIELDS] = {
        {"sequence", &job->sequence},       {"time_ns", &job->time_ns},
        {"boundary_ns", &job->boundary_ns}, {"step", &job->step},
        {"n_steps", &job->n_steps},         {"refused", &job->n_refused},
    };

    memcpy(fields, list, sizeof(list));
}

/* ---- reading ---- */

static sl_status_t read_classes(sl_fields_t memory,
                                sl_control_device_status_t *device)
{
    static const char *const keys[] = {"used_bytes", "host_bytes", "n_spills",
                                       NULL};
    number_field_t numbers[N_CLASS_FIELDS];
    const char *names[SL_MEM_N_CLASSES + 1] = {NULL};
    sl_fields_t classes = {"status.json: memory classes", NULL};
    sl_fields_t one = {"status.json: a memory class", NULL};
    sl_status_t status;
    int c;

    for (c = 0; c < SL_MEM_N_CLASSES; c++) {
        names[c] = sl_mem_class_name((sl_mem_class_t)c);
    }
    SL_TRY(
        status,
        sl_fields_object(memory, "classes", SL_FIELD_REQUIRED, &classes.object),
        out);
    SL_TRY(status, sl_fields_check(classes, names), out);
    for (c = 0; c < SL_MEM_N_CLASSES; c++) {
        SL_TRY(
            status,
            sl_fields_object(classes, names[c], SL_FIELD_OPTIONAL, &one.object),
            out);
        if (one.object == NULL) {
            continue;
        }
        list_class(&device->classes[c], numbers);
        SL_TRY(status, sl_fields_check(one, keys), out);
        SL_TRY(status, read_numbers(one, numbers, N_CLASS_FIELDS), out);
    }
out:
    return status;
}

static sl_status_t read_memory(sl_fields_t fields,
                               sl_control_device_status_t *device)
{
    static const char *const keys[] = {
        "limit_bytes", "limit_asked_bytes", "held_bytes", "used_bytes",
        "peak_bytes",  "host_used_bytes",   "classes",    NULL};
    number_field_t numbers[N_MEMORY_FIELDS];
    sl_fields_t memory = {"status.json: memory", NULL};
    sl_status_t status;

    SL_TRY(
        status,
        sl_fields_object(fields, "memory", SL_FIELD_REQUIRED, &memory.object),
        out);
    SL_TRY(status, sl_fields_check(memory, keys), out);
    list_memory(device, numbers);
    SL_TRY(status, read_numbers(memory, numbers, N_MEMORY_FIELDS), out);
    status = read_classes(memory, device);
out:
    return status;
}

static sl_status_t read_device(json_t *object,
                               sl_control_device_status_t *device)
{
    static const char *const keys[] = {
        "name",           "memory",  "share_asked",
        "share_achieved", "busy_us", "waiting_us",
        "throttled_us",   "n_ops",   NULL};
    const sl_fields_t fields = {"status.json: a device", object};
    number_field_t numbers[N_DEVICE_FIELDS];
    sl_status_t status;

    if (!json_is_object(object)) {
        SL_REFUSE(status, SL_ERR_CORRUPT, out, "%s: it is not an object",
                  fields.what);
    }
    SL_TRY(status, sl_fields_check(fields, keys), out);
    SL_TRY(status,
           sl_fields_text(fields, "name", SL_FIELD_REQUIRED,
                          SL_CONTROL_DEVICE_EXTRA, device->name,
                          sizeof(device->name)),
           out);
    SL_TRY(status,
           sl_fields_number(fields, "share_asked", SL_FIELD_REQUIRED, 0.0,
                            100.0, &device->share_asked),
           out);
    SL_TRY(status,
           sl_fields_number(fields, "share_achieved", SL_FIELD_REQUIRED, 0.0,
                            MAX_REAL, &device->share_achieved),
           out);
    list_device(device, numbers);
    SL_TRY(status, read_numbers(fields, numbers, N_DEVICE_FIELDS), out);
    status = read_memory(fields, device);
out:
    return status;
}

static sl_status_t read_devices(sl_fields_t fields, sl_control_status_t *job)
{
    json_t *array = NULL;
    sl_status_t status;
    size_t i;

    SL_TRY(status,
           sl_fields_array(fields, "devices", SL_CONTROL_MAX_DEVICES, &array),
           out);
    for (i = 0; i < json_array_size(array); i++) {
        SL_TRY(status, read_device(json_array_get(array, i), &job->devices[i]),
               out);
        job->n_devices++;
    }
out:
    return status;
}

static sl_status_t read_minibatch(sl_fields_t fields, sl_control_status_t *job)
{
    static const char *const keys[] = {"last_us", "median_us", "p99_us",
                                       "recent_us", NULL};
    sl_fields_t part = {"status.json: minibatch", NULL};
    json_t *array = NULL;
    sl_status_t status;
    size_t i;

    SL_TRY(
        status,
        sl_fields_object(fields, "minibatch", SL_FIELD_REQUIRED, &part.object),
        out);
    SL_TRY(status, sl_fields_check(part, keys), out);
    SL_TRY(status,
           sl_fields_number(part, "last_us", SL_FIELD_REQUIRED, 0.0, MAX_REAL,
                            &job->last_us),
           out);
    SL_TRY(status,
           sl_fields_number(part, "median_us", SL_FIELD_REQUIRED, 0.0, MAX_REAL,
                            &job->median_us),
           out);
    SL_TRY(status,
           sl_fields_number(part, "p99_us", SL_FIELD_REQUIRED, 0.0, MAX_REAL,
                            &job->p99_us),
           out);
    SL_TRY(status,
           sl_fields_array(part, "recent_us", SL_CONTROL_RECENT, &array), out);
    for (i = 0; i < json_array_size(array); i++) {
        const json_t *entry = json_array_get(array, i);
        const double us = json_number_value(entry);

        if (!json_is_number(entry) || !(us >= 0.0 && us <= MAX_REAL)) {
            SL_REFUSE(status, SL_ERR_CORRUPT, out,
                      "%s: recent_us has a bad entry", part.what);
        }
        job->recent_us[job->n_recent++] = us;
    }
out:
    return status;
}

static sl_status_t read_orders(sl_fields_t fields, sl_control_status_t *job)
{
    static const char *const accepted_keys[] = {"sequence", "writer_token",
                                                "expired", NULL};
    static const char *const applied_keys[] = {"sequence", "time_ns", "step",
                                               NULL};
    const number_field_t numbers[] = {{"sequence", &job->applied_sequence},
                                      {"time_ns", &job->applied_ns},
                                      {"step", &job->applied_step}};
    sl_fields_t accepted = {"status.json: accepted", NULL};
    sl_fields_t applied = {"status.json: applied", NULL};
    sl_status_t status;

    SL_TRY(status,
           sl_fields_object(fields, "accepted", SL_FIELD_REQUIRED,
                            &accepted.object),
           out);
    SL_TRY(status, sl_fields_check(accepted, accepted_keys), out);
    SL_TRY(status,
           sl_fields_u64(accepted, "sequence", SL_FIELD_REQUIRED, 0,
                         SL_CONTROL_MAX_SEQUENCE, &job->accepted_sequence),
           out);
    SL_TRY(status,
           sl_fields_text(accepted, "writer_token", SL_FIELD_REQUIRED,
                          SL_CONTROL_TOKEN_EXTRA, job->writer_token,
                          sizeof(job->writer_token)),
           out);
    SL_TRY(status,
           sl_fields_bool(accepted, "expired", SL_FIELD_REQUIRED,
                          &job->is_expired),
           out);
    SL_TRY(
        status,
        sl_fields_object(fields, "applied", SL_FIELD_REQUIRED, &applied.object),
        out);
    SL_TRY(status, sl_fields_check(applied, applied_keys), out);
    status = read_numbers(applied, numbers, 3);
out:
    return status;
}

static sl_status_t read_status(sl_fields_t fields, sl_control_status_t *job)
{
    static const char *const keys[] = {
        "schema",   "sequence", "time_ns", "boundary_ns", "state", "class",
        "reason",   "step",     "n_steps", "units_per_s", "unit",  "minibatch",
        "accepted", "applied",  "refused", "devices",     NULL};
    number_field_t numbers[N_STATUS_FIELDS];
    int state = 0, job_class = 0;
    sl_status_t status;

    SL_TRY(status, sl_fields_schema(fields), out);
    SL_TRY(status, sl_fields_check(fields, keys), out);
    list_status(job, numbers);
    SL_TRY(status, read_numbers(fields, numbers, N_STATUS_FIELDS), out);
    SL_TRY(status,
           sl_fields_choice(fields, "state", SL_FIELD_REQUIRED,
                            sl_job_state_choice, SL_JOB_N_STATES, &state),
           out);
    SL_TRY(status,
           sl_fields_choice(fields, "class", SL_FIELD_REQUIRED,
                            sl_job_class_choice, SL_JOB_N_CLASSES, &job_class),
           out);
    job->state = (sl_job_state_t)state;
    job->job_class = (sl_job_class_t)job_class;
    SL_TRY(status,
           sl_fields_text(fields, "reason", SL_FIELD_REQUIRED, NULL,
                          job->reason, sizeof(job->reason)),
           out);
    SL_TRY(status,
           sl_fields_text(fields, "unit", SL_FIELD_REQUIRED, "", job->unit,
                          sizeof(job->unit)),
           out);
    SL_TRY(status,
           sl_fields_number(fields, "units_per_s", SL_FIELD_REQUIRED, 0.0,
                            MAX_REAL, &job->units_per_s),
           out);
    SL_TRY(status, read_minibatch(fields, job), out);
    SL_TRY(status, read_orders(fields, job), out);
    status = read_devices(fields, job);
out:
    return status;
}

sl_status_t sl_control_status_parse(const char *text, size_t n_bytes,
                                    sl_control_status_t *status_p)
{
    sl_control_status_t job;
    sl_fields_t fields = {"status.json", NULL};
    json_t *root = NULL;
    sl_status_t status;

    memset(&job, 0, sizeof(job));
    SL_TRY(status, sl_fields_load(fields.what, text, n_bytes, &root), out);
    fields.object = root;
    SL_TRY(status, read_status(fields, &job), out);
    *status_p = job;
out:
    json_decref(root);
    return status;
}

/* ---- writing ---- */

static json_t *classes_to_json(sl_control_device_status_t *device)
{
    number_field_t numbers[N_CLASS_FIELDS];
    json_t *classes = json_object();
    int bad = 0;
    int c;

    for (c = 0; c < SL_MEM_N_CLASSES; c++) {
        json_t *one = json_object();

        list_class(&device->classes[c], numbers);
        bad |= set_numbers(one, numbers, N_CLASS_FIELDS);
        bad |= json_object_set_new(classes,
                                   sl_mem_class_name((sl_mem_class_t)c), one);
    }
    if (bad != 0) {
        json_decref(classes);
        classes = NULL;
    }
    return classes;
}

static json_t *device_to_json(sl_control_device_status_t *device)
{
    number_field_t of_memory[N_MEMORY_FIELDS], of_device[N_DEVICE_FIELDS];
    json_t *object = json_object();
    json_t *memory = json_object();
    int bad;

    list_memory(device, of_memory);
    list_device(device, of_device);
    bad = set_numbers(memory, of_memory, N_MEMORY_FIELDS);
    bad |= json_object_set_new(memory, "classes", classes_to_json(device));
    bad |= json_object_set_new(object, "name", json_string(device->name));
    bad |= json_object_set_new(object, "memory", memory);
    bad |= json_object_set_new(object, "share_asked",
                               json_real(device->share_asked));
    bad |= json_object_set_new(object, "share_achieved",
                               json_real(device->share_achieved));
    bad |= set_numbers(object, of_device, N_DEVICE_FIELDS);
    if (bad != 0) {
        json_decref(object);
        object = NULL;
    }
    return object;
}

static json_t *minibatch_to_json(const sl_control_status_t *job)
{
    json_t *object = json_object();
    json_t *recent = json_array();
    int bad, i;

    bad = json_object_set_new(object, "last_us", json_real(job->last_us));
    bad |= json_object_set_new(object, "median_us", json_real(job->median_us));
    bad |= json_object_set_new(object, "p99_us", json_real(job->p99_us));
    for (i = 0; i < job->n_recent; i++) {
        bad |= json_array_append_new(recent, json_real(job->recent_us[i]));
    }
    bad |= json_object_set_new(object, "recent_us", recent);
    if (bad != 0) {
        json_decref(object);
        object = NULL;
    }
    return object;
}

static int set_orders(json_t *root, sl_control_status_t *job)
{
    const number_field_t numbers[] = {{"sequence", &job->applied_sequence},
                                      {"time_ns", &job->applied_ns},
                                      {"step", &job->applied_step}};
    json_t *accepted = json_object();
    json_t *applied = json_object();
    int bad;

    bad = json_object_set_new(accepted, "sequence",
                              sl_json_u64(job->accepted_sequence));
    bad |= json_object_set_new(accepted, "writer_token",
                               json_string(job->writer_token));
    bad |=
        json_object_set_new(accepted, "expired", json_boolean(job->is_expired));
    bad |= set_numbers(applied, numbers, 3);
    bad |= json_object_set_new(root, "accepted", accepted);
    bad |= json_object_set_new(root, "applied", applied);
    return bad;
}

static int set_devices(json_t *root, sl_control_status_t *job)
{
    json_t *devices = json_array();
    int bad = 0;
    int d;

    for (d = 0; d < job->n_devices; d++) {
        bad |= json_array_append_new(devices, device_to_json(&job->devices[d]));
    }
    return bad | json_object_set_new(root, "devices", devices);
}

sl_status_t sl_control_status_format(const sl_control_status_t *status,
                                     char **text_p)
{
    sl_control_status_t job = *status; /* the lists of fields are not const */
    number_field_t numbers[N_STATUS_FIELDS];
    json_t *root = json_object();
    int bad;

    list_status(&job, numbers);
    bad = json_object_set_new(root, "schema", json_integer(SL_CONTROL_SCHEMA));
    bad |= set_numbers(root, numbers, N_STATUS_FIELDS);
    bad |= json_object_set_new(root, "state",
                               json_string(sl_job_state_name(job.state)));
    bad |= json_object_set_new(root, "class",
                               json_string(sl_job_class_name(job.job_class)));
    bad |= json_object_set_new(root, "reason", json_string(job.reason));
    bad |= json_object_set_new(root, "units_per_s", json_real(job.units_per_s));
    bad |= json_object_set_new(root, "unit", json_string(job.unit));
    bad |= json_object_set_new(root, "minibatch", minibatch_to_json(&job));
    bad |= set_orders(root, &job);
    bad |= set_devices(root, &job);
    if (bad != 0) {
        json_decref(root);
        root = NULL;
    }
    return sl_fields_dump("status.json", root, text_p);
}
