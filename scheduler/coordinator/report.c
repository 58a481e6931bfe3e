/* SPDX-License-Identifier: Apache-2.0 */
/* coordinator.json: what only the coordinator knows, for `sluice top`. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "scheduler/control/run_dir.h"
#include "scheduler/control/secure_file.h"
#include "scheduler/coordinator/exchange.h"

static json_t *job_to_json(const sl_coord_decision_t *decision)
{
    return json_pack("{s:f, s:f}", "baseline_us", decision->baseline_us,
                     "slowdown", decision->slowdown);
}

sl_status_t sl_coord_report_write(sl_run_dir_t *dir, const char *policy,
                                  const sl_coord_snapshot_t *seen,
                                  const sl_coord_decisions_t *decisions)
{
    json_t *jobs = json_object();
    json_t *root;
    char *text = NULL;
    sl_status_t status = SL_OK;
    int i;

    for (i = 0; i < seen->n_jobs; i++) {
        if (decisions->jobs[i].baseline_us > 0.0) {
            (void)json_object_set_new(jobs, seen->jobs[i].id.text,
                                      job_to_json(&decisions->jobs[i]));
        }
    }
    root = json_pack("{s:i, s:I, s:s, s:o}", "schema", SL_CONTROL_SCHEMA,
                     "time_ns", (json_int_t)seen->now_ns, "policy", policy,
                     "jobs", jobs);
    text = root == NULL ? NULL : json_dumps(root, JSON_INDENT(1));
    json_decref(root);
    if (text == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out,
                "no host memory for the coordinator's report");
    }
    status = sl_atomic_write_unflushed(dir->fd, SL_FILE_REPORT, 0600, text,
                                       strlen(text));
    free(text);
out:
    return status;
}

static sl_status_t parse(json_t *root, sl_coord_report_t *report)
{
    json_t *jobs = json_object_get(root, "jobs");
    const char *policy = json_string_value(json_object_get(root, "policy"));
    json_t *job;
    const char *id;
    sl_status_t status = SL_OK;

    if (json_integer_value(json_object_get(root, "schema")) !=
            SL_CONTROL_SCHEMA ||
        policy == NULL || !json_is_object(jobs)) {
        SL_REFUSE(status, SL_ERR_CORRUPT, out,
                  "coordinator.json: no schema %d, policy or jobs",
                  (int)SL_CONTROL_SCHEMA);
    }
    memset(report, 0, sizeof(*report));
    (void)strncpy(report->policy, policy, sizeof(report->policy) - 1);
    json_object_foreach(jobs, id, job)
    {
        sl_coord_report_job_t *entry = &report->jobs[report->n_jobs];

        if (report->n_jobs == SL_COORD_MAX_JOBS ||
            strlen(id) >= sizeof(entry->id.text)) {
            continue;
        }
        memcpy(entry->id.text, id, strlen(id) + 1);
        entry->baseline_us =
            json_number_value(json_object_get(job, "baseline_us"));
        entry->slowdown = json_number_value(json_object_get(job, "slowdown"));
        report->n_jobs++;
    }
out:
    return status;
}

sl_status_t sl_coord_report_read(sl_run_dir_t *dir, sl_coord_report_t *report_p)
{
    sl_file_state_t state;
    json_t *root;
    char *text = NULL;
    size_t n = 0;
    sl_status_t status;

    if (!sl_run_dir_has_coordinator(dir)) {
        SL_REFUSE(status, SL_ERR_NOT_FOUND, out, "there is no coordinator");
    }
    SL_TRY(status,
           sl_secure_read(dir->fd, SL_FILE_REPORT, SL_CONTROL_FILE_BYTES, &text,
                          &n, &state),
           out);
    root = json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL);
    free(text);
    if (root == NULL) {
        SL_REFUSE(status, SL_ERR_CORRUPT, out, "coordinator.json is no JSON");
    }
    status = parse(root, report_p);
    json_decref(root);
out:
    return status;
}
