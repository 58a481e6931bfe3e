/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file progress.h
 * The progress of a run: one line that is rewritten on a terminal and never
 * wraps, plain lines elsewhere, e.g.
 *
 *   step 9/90  loss 2.3041  123 samples/s  bubble 27.3 %  eta 1:12
 *
 * Memory is shown per device while there is room, then of the fullest one.
 *
 * Thread safety: one thread.
 */
#ifndef SL_ENGINE_REPORT_PROGRESS_H
#define SL_ENGINE_REPORT_PROGRESS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"

SL_BEGIN_DECLS

typedef struct sl_progress sl_progress_t; /* opaque */

typedef enum sl_progress_style {
    SL_PROGRESS_AUTO, /**< rewritten on a terminal that can, else plain */
    SL_PROGRESS_REWRITTEN,
    SL_PROGRESS_PLAIN
} sl_progress_style_t;

/** Start from sl_progress_params_default(). */
typedef struct sl_progress_params {
    FILE *stream;              /**< borrowed; default stderr */
    sl_progress_style_t style; /**< default auto */
    int width;                 /**< columns; 0 = ask the terminal (default) */
    uint32_t first_step;       /**< steps done before this run (default 0) */
    uint32_t n_steps;          /**< of the whole run, first_step included */
    const char *unit;          /**< borrowed; "samples" (default) or "tokens" */
    double period_s;           /**< least time between two plain lines (default
                                    5), a twentieth of it between rewrites */
    uint32_t every;            /**< also a plain line after this many steps; 0 =
                                    by time only (default) */
} sl_progress_params_t;

SL_API void sl_progress_params_default(sl_progress_params_t *params);

typedef struct sl_progress_device {
    const char *name; /**< borrowed */
    size_t used_bytes;
    size_t limit_bytes; /**< SIZE_MAX = none */
} sl_progress_device_t;

/** What is known after a step. */
typedef struct sl_progress_update {
    uint32_t step;  /**< index of the step, from 0 */
    double loss;    /**< shown smoothed */
    double n_units; /**< samples or tokens of this step */
    double step_us;
    double bubble;      /**< NaN = unknown, not shown */
    double loss_scale;  /**< 0 = none, not shown */
    uint64_t n_skipped; /**< steps so far that were skipped; 0: not shown */
    const sl_progress_device_t *devices; /**< borrowed for the call */
    size_t n_devices;
    uint64_t now_ns; /**< sl_clock_ns() */
} sl_progress_update_t;

/** @return SL_OK, SL_ERR_NO_MEMORY */
SL_API SL_NODISCARD sl_status_t sl_progress_create(
    const sl_progress_params_t *params, sl_progress_t **progress_p);
/** Ends the line. NULL is allowed. */
SL_API void sl_progress_destroy(sl_progress_t *progress);

/** Tell of a step; prints when it is time to, and always for the last. */
SL_API void sl_progress_update(sl_progress_t *progress,
                               const sl_progress_update_t *update);
/** Take the rewritten line off the screen, so that another may be printed;
 *  the next update shows it again, at once. NULL is allowed. */
SL_API void sl_progress_clear(sl_progress_t *progress);

/** "1:02:03", "12:34" or "0:05" into text. */
SL_API void sl_progress_format_time(double seconds, char *text,
                                    size_t text_bytes);

SL_END_DECLS
#endif /* SL_ENGINE_REPORT_PROGRESS_H */
