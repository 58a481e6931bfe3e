/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file prometheus.h
 * A job's state as Prometheus text, for node_exporter's textfile collector.
 */
#ifndef SL_SCHEDULER_CONTROL_PROMETHEUS_H
#define SL_SCHEDULER_CONTROL_PROMETHEUS_H

#include "scheduler/control.h"

/** *text_p is owned (free). @return SL_OK, SL_ERR_NO_MEMORY */
SL_NODISCARD sl_status_t sl_prometheus_format(const sl_control_job_t *job,
                                              const sl_control_status_t *status,
                                              char **text_p);

#endif /* SL_SCHEDULER_CONTROL_PROMETHEUS_H */
