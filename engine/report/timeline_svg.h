/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file timeline_svg.h
 * One training step as a picture: a row a stage, a box a computation.
 */
#ifndef SL_ENGINE_REPORT_TIMELINE_SVG_H
#define SL_ENGINE_REPORT_TIMELINE_SVG_H

#include <stddef.h>

#include "base/status.h"
#include "engine/engine.h"

SL_BEGIN_DECLS

typedef struct sl_timeline {
    const sl_trace_event_t *events; /**< borrowed; from sl_engine_trace */
    size_t n_events;
    int n_stages;
    int n_micro_batches;
    const char *schedule;         /**< borrowed; name for the title */
    const char *const *row_names; /**< borrowed; n_stages names of devices,
                                       NULL = none */
    double bubble; /**< as measured; NaN = from the events: 1 minus the share
                        of the rows that computes */
} sl_timeline_t;

/** Share of stages x time in which no kernel of an F, R, B or U runs; 0 when
 *  there are no events. */
SL_API double sl_timeline_bubble(const sl_timeline_t *timeline);

/** Write the picture, atomically.
 *  @return SL_OK, SL_ERR_INVALID_ARG (no events; a stage that is not there),
 *          SL_ERR_IO, SL_ERR_NO_MEMORY */
SL_API SL_NODISCARD sl_status_t
sl_timeline_svg_write(const char *path, const sl_timeline_t *timeline);

SL_END_DECLS
#endif /* SL_ENGINE_REPORT_TIMELINE_SVG_H */
