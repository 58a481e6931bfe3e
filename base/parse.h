/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file parse.h
 * Strict readers of numbers and sizes: the whole text or an error.
 */
#ifndef SL_BASE_PARSE_H
#define SL_BASE_PARSE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

SL_BEGIN_DECLS

/** A decimal integer: optional '-', digits, no leading zero, no spaces; in
 *  [min, max]. `what` names it in the message.
 *  @return SL_OK, SL_ERR_INVALID_ARG */
SL_API SL_NODISCARD sl_status_t sl_parse_int(const char *what, const char *text,
                                             int64_t min, int64_t max,
                                             int64_t *value_p);

/** A finite decimal number ("0.1", "1e-3") in [min, max], which may be
 *  infinite; locale independent. Digits on both sides of a '.'; no hex, no
 *  '+', no leading zeros. One that rounds to 0 or overflows is an error.
 *  @return SL_OK, SL_ERR_INVALID_ARG, SL_ERR_NO_MEMORY */
SL_API SL_NODISCARD sl_status_t sl_parse_float(const char *what,
                                               const char *text, double min,
                                               double max, double *value_p);

/** A size in bytes: digits, optional fraction, optional unit: B, kB, MB, GB,
 *  TB are powers of 1000; KiB, MiB, GiB, TiB of 1024. "1.5GiB" is allowed,
 *  rounded down to a byte; a fraction of bytes is not. Without unit: bytes.
 *  Signs, leading zeros, spaces, other letters and overflow are errors. */
SL_API SL_NODISCARD sl_status_t sl_parse_bytes(const char *what,
                                               const char *text,
                                               uint64_t *bytes_p);

/** "1.50 GiB" into text. */
SL_API void sl_format_bytes(uint64_t bytes, char *text, size_t text_bytes);

SL_END_DECLS
#endif /* SL_BASE_PARSE_H */
