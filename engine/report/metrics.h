/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file metrics.h
 * Metrics as JSON lines: one object a step. Numbers that are not finite, and
 * limits that are not there, are null.
 *
 * A line is written at once and whole. A failure (a full disk) does not stop
 * training: the rest is dropped and sl_metrics_close reports it.
 *
 * Thread safety: one thread.
 */
#ifndef SL_ENGINE_REPORT_METRICS_H
#define SL_ENGINE_REPORT_METRICS_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

SL_BEGIN_DECLS

typedef struct sl_metrics sl_metrics_t; /* opaque */

typedef struct sl_metrics_device {
    const char *name; /**< borrowed */
    size_t used_bytes;
    size_t peak_bytes;
    size_t limit_bytes; /**< SIZE_MAX = none: null */
    double busy;        /**< share of the step's time in kernels */
} sl_metrics_device_t;

typedef struct sl_metrics_step {
    uint32_t step;
    double loss, accuracy;
    double learning_rate;
    double gradient_norm;
    double loss_scale;  /**< 0: none, left out */
    uint64_t n_skipped; /**< so far; left out when 0 and there is no scale */
    double step_ms;
    double compare_ms; /**< of comparing the replicas; left out when 0 */
    double units_per_s;
    const char *unit; /**< borrowed; "samples" makes "samples_per_s" */
    double bubble;
    const sl_metrics_device_t *devices; /**< borrowed for the call */
    size_t n_devices;
    /* when layers have moved before this step */
    const int *cuts; /**< first layer of each stage; NULL = as before */
    size_t n_stages;
    int moved_layers;
    size_t moved_bytes;
    double move_ms;
    double predicted_speedup; /**< of the step, by the move */
} sl_metrics_step_t;

/**
 * Open the file.
 *
 * @param[in] append keep what is there; a last line that a crash cut off is
 *            dropped. Otherwise the file starts empty.
 * @return SL_OK, SL_ERR_IO, SL_ERR_NO_MEMORY
 */
SL_API SL_NODISCARD sl_status_t sl_metrics_open(const char *path, int append,
                                                sl_metrics_t **metrics_p);
SL_API void sl_metrics_write(sl_metrics_t *metrics,
                             const sl_metrics_step_t *step);
/** Frees it either way. NULL is allowed.
 *  @return SL_OK; the first failure, with the path and the step */
SL_API SL_NODISCARD sl_status_t sl_metrics_close(sl_metrics_t *metrics);

SL_END_DECLS
#endif /* SL_ENGINE_REPORT_METRICS_H */
