/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file base_internal.h
 * Small helpers shared by the files of base/ only.
 */
#ifndef SL_BASE_BASE_INTERNAL_H
#define SL_BASE_BASE_INTERNAL_H

#include <stddef.h>

enum {
    SL_SHOW_BYTES = 72
};

/** A copy fit for a one-line message: control characters become '?', long
 *  text is cut and ends in "...". NULL reads as "". Returns `out`. */
const char *sl_show(const char *text, char out[SL_SHOW_BYTES]);

#endif /* SL_BASE_BASE_INTERNAL_H */
