/* SPDX-License-Identifier: Apache-2.0 */
/* job.json: who a job is. */
#include <stdlib.h>
#include <string.h>

#include "scheduler/control/files.h"

/* The next run of cores, "3" or "0-3", and the comma behind it; NULL when
 * there is none or it is no run. */
static const char *next_cores(const char *at, unsigned long *first_p,
                              unsigned long *last_p)
{
    char *end = NULL;

    if (at == NULL || at[0] < '0' || at[0] > '9') {
        return NULL;
    }
    *first_p = *last_p = strtoul(at, &end, 10);
    if (end[0] == '-' && end[1] >= '0' && end[1] <= '9') {
        *last_p = strtoul(end + 1, &end, 10);
    }
    return *end == ',' ? end + 1 : *end == '\0' ? end : NULL;
}

static int is_core_list(const char *list)
{
    unsigned long first, last;

    if (list[0] == '\0') {
        return 0;
    }
    while (list != NULL && list[0] != '\0') {
        list = next_cores(list, &first, &last);
    }
    return list != NULL;
}

int sl_control_cores_overlap(const char *a, const char *b)
{
    unsigned long a_first, a_last, b_first, b_last;
    const char *at;

    if (!is_core_list(a) || !is_core_list(b)) {
        return 1;
    }
    while ((a = next_cores(a, &a_first, &a_last)) != NULL) {
        for (at = b; (at = next_cores(at, &b_first, &b_last)) != NULL;) {
            if (a_first <= b_last && b_first <= a_last) {
                return 1;
            }
        }
    }
    return 0;
}

static const char *kind_choice(int i)
{
    static const char *const names[SL_DEVICE_N_KINDS] = {"cpu", "cuda"};

    return names[i];
}

/* A CUDA device's GPU; both fields are younger than the others. */
static sl_status_t read_gpu(sl_fields_t fields, sl_control_device_t *device)
{
    sl_status_t status;

    SL_TRY(status,
           sl_fields_text(fields, "gpu", SL_FIELD_OPTIONAL, "-:.",
                          device->gpu_id, sizeof(device->gpu_id)),
           out);
    SL_TRY(status,
           sl_fields_u64(fields, "gpu_bytes", SL_FIELD_OPTIONAL, 1,
                         SL_CONTROL_MAX_SEQUENCE, &device->gpu_bytes),
           out);
    if (device->kind != SL_DEVICE_KIND_CUDA &&
        (device->gpu_id[0] != '\0' || device->gpu_bytes > 0)) {
        SL_REFUSE(status, SL_ERR_CORRUPT, out,
                  "%s: %s is no CUDA device and has a gpu", fields.what,
                  device->name);
    }
out:
    return status;
}

static sl_status_t read_device(json_t *object, sl_control_device_t *device)
{
    static const char *const keys[] = {
        "name",      "kind",    "capacity_bytes", "wanted_bytes",
        "cores",     "threads", "core_list",      "gpu",
        "gpu_bytes", NULL};
    const sl_fields_t fields = {"job.json: a device", object};
    uint64_t n_cores = 0, n_threads = 0;
    int kind = 0;
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
           sl_fields_choice(fields, "kind", SL_FIELD_REQUIRED, kind_choice,
                            SL_DEVICE_N_KINDS, &kind),
           out);
    SL_TRY(status,
           sl_fields_u64(fields, "capacity_bytes", SL_FIELD_REQUIRED, 0,
                         SL_CONTROL_MAX_SEQUENCE, &device->capacity_bytes),
           out);
    SL_TRY(status,
           sl_fields_u64(fields, "wanted_bytes", SL_FIELD_REQUIRED, 0,
                         SL_CONTROL_MAX_SEQUENCE, &device->wanted_bytes),
           out);
    SL_TRY(status,
           sl_fields_u64(fields, "cores", SL_FIELD_REQUIRED, 0, INT32_MAX,
                         &n_cores),
           out);
    SL_TRY(status,
           sl_fields_u64(fields, "threads", SL_FIELD_REQUIRED, 0, INT32_MAX,
                         &n_threads),
           out);
    SL_TRY(status,
           sl_fields_text(fields, "core_list", SL_FIELD_OPTIONAL, "-,",
                          device->core_list, sizeof(device->core_list)),
           out);
    device->kind = (sl_device_kind_t)kind;
    SL_TRY(status, read_gpu(fields, device), out);
    device->n_cores = (int)n_cores;
    device->n_threads = (int)n_threads;
out:
    return status;
}

static sl_status_t read_devices(sl_fields_t fields, sl_control_job_t *job)
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

static sl_status_t read_job(sl_fields_t fields, sl_control_job_t *job)
{
    static const char *const keys[] = {"schema",      "name",  "pid",
                                       "start_ticks", "class", "created_ns",
                                       "devices",     NULL};
    uint64_t pid = 0;
    int job_class = 0;
    sl_status_t status;

    SL_TRY(status, sl_fields_schema(fields), out);
    SL_TRY(status, sl_fields_check(fields, keys), out);
    SL_TRY(status,
           sl_fields_text(fields, "name", SL_FIELD_REQUIRED,
                          SL_CONTROL_TOKEN_EXTRA, job->name, sizeof(job->name)),
           out);
    SL_TRY(status,
           sl_fields_u64(fields, "pid", SL_FIELD_REQUIRED, 1, INT32_MAX, &pid),
           out);
    SL_TRY(status,
           sl_fields_u64(fields, "start_ticks", SL_FIELD_REQUIRED, 0,
                         SL_CONTROL_MAX_SEQUENCE, &job->start_ticks),
           out);
    SL_TRY(status,
           sl_fields_choice(fields, "class", SL_FIELD_REQUIRED,
                            sl_job_class_choice, SL_JOB_N_CLASSES, &job_class),
           out);
    SL_TRY(status,
           sl_fields_u64(fields, "created_ns", SL_FIELD_REQUIRED, 0,
                         SL_CONTROL_MAX_SEQUENCE, &job->created_ns),
           out);
    job->pid = (int64_t)pid;
    job->job_class = (sl_job_class_t)job_class;
    status = read_devices(fields, job);
out:
    return status;
}

sl_status_t sl_control_job_parse(const char *text, size_t n_bytes,
                                 sl_control_job_t *job_p)
{
    sl_control_job_t job;
    sl_fields_t fields = {"job.json", NULL};
    json_t *root = NULL;
    sl_status_t status;

    memset(&job, 0, sizeof(job));
    SL_TRY(status, sl_fields_load(fields.what, text, n_bytes, &root), out);
    fields.object = root;
    SL_TRY(status, read_job(fields, &job), out);
    *job_p = job;
out:
    json_decref(root);
    return status;
}

static json_t *device_to_json(const sl_control_device_t *device)
{
    json_t *object = json_object();
    int bad;

    bad = json_object_set_new(object, "name", json_string(device->name));
    bad |= json_object_set_new(object, "kind",
                               json_string(kind_choice((int)device->kind)));
    bad |= json_object_set_new(object, "capacity_bytes",
                               sl_json_u64(device->capacity_bytes));
    bad |= json_object_set_new(object, "wanted_bytes",
                               sl_json_u64(device->wanted_bytes));
    bad |= json_object_set_new(object, "cores", json_integer(device->n_cores));
    bad |=
        json_object_set_new(object, "threads", json_integer(device->n_threads));
    bad |= json_object_set_new(object, "core_list",
                               json_string(device->core_list));
    if (device->gpu_id[0] != '\0') {
        bad |= json_object_set_new(object, "gpu", json_string(device->gpu_id));
    }
    if (device->gpu_bytes > 0) {
        bad |= json_object_set_new(object, "gpu_bytes",
                                   sl_json_u64(device->gpu_bytes));
    }
    if (bad != 0) {
        json_decref(object);
        object = NULL;
    }
    return object;
}

sl_status_t sl_control_job_format(const sl_control_job_t *job, char **text_p)
{
    json_t *root = json_object();
    json_t *devices = json_array();
    int bad, d;

    bad = json_object_set_new(root, "schema", json_integer(SL_CONTROL_SCHEMA));
    bad |= json_object_set_new(root, "name", json_string(job->name));
    bad |= json_object_set_new(root, "pid", json_integer(job->pid));
    bad |=
        json_object_set_new(root, "start_ticks", sl_json_u64(job->start_ticks));
    bad |= json_object_set_new(root, "class",
                               json_string(sl_job_class_name(job->job_class)));
    bad |=
        json_object_set_new(root, "created_ns", sl_json_u64(job->created_ns));
    for (d = 0; d < job->n_devices; d++) {
        bad |= json_array_append_new(devices, device_to_json(&job->devices[d]));
    }
    bad |= json_object_set_new(root, "devices", devices);
    if (bad != 0) {
        json_decref(root);
        root = NULL;
    }
    return sl_fields_dump("job.json", root, text_p);
}
