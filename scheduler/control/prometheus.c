/* SPDX-License-Identifier: Apache-2.0 */
/* A job's state as Prometheus text. Base units: seconds, bytes, ratios. */
#include "scheduler/control/prometheus.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* Names are [A-Za-z0-9._:-], so labels need no escapes. */
typedef struct page {
    FILE *out;
    const sl_control_job_t *job;
    const sl_control_status_t *status;
} page_t;

static void head(const page_t *page, const char *name, const char *type,
                 const char *help)
{
    (void)fprintf(page->out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name,
                  type);
}

static void job_value(const page_t *page, const char *name, const char *type,
                      const char *help, double value)
{
    head(page, name, type, help);
    (void)fprintf(page->out, "%s{job_name=\"%s\",pid=\"%" PRId64 "\"} %.15g\n",
                  name, page->job->name, page->job->pid, value);
}

static void job_values(const page_t *page)
{
    const sl_control_status_t *status = page->status;
    int i;

    head(page, "sluice_job_state", "gauge", "1 for the state the job is in.");
    for (i = 0; i < SL_JOB_N_STATES; i++) {
        (void)fprintf(page->out,
                      "sluice_job_state{job_name=\"%s\",pid=\"%" PRId64
                      "\",class=\"%s\",state=\"%s\"} %d\n",
                      page->job->name, page->job->pid,
                      sl_job_class_name(status->job_class),
                      sl_job_state_name((sl_job_state_t)i),
                      (int)status->state == i);
    }
    job_value(page, "sluice_job_minibatches_total", "counter",
              "Mini-batches done.", (double)status->step);
    job_value(page, "sluice_job_minibatch_median_seconds", "gauge",
              "Median mini-batch time of the last 256.",
              status->median_us * 1e-6);
    job_value(page, "sluice_job_minibatch_p99_seconds", "gauge",
              "99th percentile of the last 256 mini-batch times.",
              status->p99_us * 1e-6);
    head(page, "sluice_job_units_per_second", "gauge",
         "Samples or tokens per second over the last 64 mini-batches.");
    (void)fprintf(page->out,
                  "sluice_job_units_per_second{job_name=\"%s\",pid=\"%" PRId64
                  "\",unit=\"%s\"} %.15g\n",
                  page->job->name, page->job->pid, status->unit,
                  status->units_per_s);
    job_value(page, "sluice_job_control_sequence", "gauge",
              "Sequence of the newest order in force.",
              (double)status->applied_sequence);
    job_value(page, "sluice_job_control_expired", "gauge",
              "1 when the order in force is older than its TTL.",
              (double)status->is_expired);
    job_value(page, "sluice_job_control_refused_total", "counter",
              "Control files refused.", (double)status->n_refused);
}

typedef double (*device_value_fn)(const sl_control_device_status_t *device);

#define VALUE(name, expression)                                                \
    static double name(const sl_control_device_status_t *device)               \
    {                                                                          \
        return (double)(expression);                                           \
    }
VALUE(limit, device->limit_bytes)
VALUE(limit_asked, device->limit_asked_bytes)
VALUE(held, device->held_bytes)
VALUE(peak, device->peak_bytes)
VALUE(share_asked, device->share_asked * 1e-2)
VALUE(share_achieved, device->share_achieved * 1e-2)
VALUE(busy, (double)device->busy_us * 1e-6)
VALUE(waiting, (double)device->waiting_us * 1e-6)
VALUE(throttled, (double)device->throttled_us * 1e-6)
VALUE(ops, device->n_ops)
#undef VALUE

static const struct {
    const char *name, *type, *help;
    device_value_fn value;
} device_metrics[] = {
    {"sluice_device_memory_limit_bytes", "gauge", "Memory limit in force.",
     limit},
    {"sluice_device_memory_limit_asked_bytes", "gauge",
     "Memory limit last asked.", limit_asked},
    {"sluice_device_memory_held_bytes", "gauge",
     "Device memory held: what the limit counts.", held},
    {"sluice_device_memory_peak_bytes", "gauge",
     "Most device memory in blocks at once in the last mini-batch.", peak},
    {"sluice_device_share_asked_ratio", "gauge",
     "Share of device time asked, 0 to 1.", share_asked},
    {"sluice_device_share_achieved_ratio", "gauge",
     "Share of device time got, 0 to 1.", share_achieved},
    {"sluice_device_busy_seconds_total", "counter", "Time in ops.", busy},
    {"sluice_device_waiting_seconds_total", "counter",
     "Time without an op to run.", waiting},
    {"sluice_device_throttled_seconds_total", "counter",
     "Time an op was held back by the share.", throttled},
    {"sluice_device_ops_total", "counter", "Ops run.", ops},
};

static void device_values(const page_t *page)
{
    size_t m;
    int d;

    for (m = 0; m < sizeof(device_metrics) / sizeof(*device_metrics); m++) {
        head(page, device_metrics[m].name, device_metrics[m].type,
             device_metrics[m].help);
        for (d = 0; d < page->status->n_devices; d++) {
            const sl_control_device_status_t *device =
                &page->status->devices[d];

            (void)fprintf(
                page->out,
                "%s{job_name=\"%s\",pid=\"%" PRId64 "\",device=\"%s\"} %.15g\n",
                device_metrics[m].name, page->job->name, page->job->pid,
                device->name, device_metrics[m].value(device));
        }
    }
}

static void class_values(const page_t *page)
{
    int d, c;

    head(page, "sluice_device_memory_used_bytes", "gauge",
         "Bytes in blocks, by class and place.");
    for (d = 0; d < page->status->n_devices; d++) {
        const sl_control_device_status_t *device = &page->status->devices[d];

        for (c = 0; c < SL_MEM_N_CLASSES; c++) {
            const sl_control_class_use_t *use = &device->classes[c];
            const char *name = sl_mem_class_name((sl_mem_class_t)c);
            const uint64_t on_device = use->used_bytes - use->host_bytes;
            int on_host;

            for (on_host = 0; on_host < 2; on_host++) {
                (void)fprintf(page->out,
                              "sluice_device_memory_used_bytes{job_name=\"%s\","
                              "pid=\"%" PRId64 "\",device=\"%s\",class=\"%s\","
                              "place=\"%s\"} %" PRIu64 "\n",
                              page->job->name, page->job->pid, device->name,
                              name, on_host ? "host" : "device",
                              on_host ? use->host_bytes : on_device);
            }
        }
    }
}

sl_status_t sl_prometheus_format(const sl_control_job_t *job,
                                 const sl_control_status_t *status,
                                 char **text_p)
{
    page_t page = {NULL, job, status};
    char *text = NULL;
    size_t n = 0;
    sl_status_t result = SL_OK;

    page.out = open_memstream(&text, &n);
    if (page.out == NULL) {
        SL_REFUSE(result, SL_ERR_NO_MEMORY, out,
                  "no host memory for Prometheus text");
    }
    job_values(&page);
    device_values(&page);
    class_values(&page);
    if (fclose(page.out) != 0) {
        free(text);
        SL_REFUSE(result, SL_ERR_NO_MEMORY, out,
                  "no host memory for Prometheus text");
    }
    *text_p = text;
out:
    return result;
}
