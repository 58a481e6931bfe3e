/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file launched.h
 * A process that a launcher has started: its command line, wrong for all, and
 * what it tells `sluice launch`.
 */
#ifndef SL_CLI_LAUNCHED_H
#define SL_CLI_LAUNCHED_H

/**
 * When there are others: parse the command line in a process of its own first,
 * which may print and exit as such parsers do. If it is wrong, the ranks meet
 * and all end with status 2; rank 0 alone prints, for all.
 *
 * @param parse 0 = the command line can be used
 */
void sl_launched_try(int (*parse)(void *ctx), void *ctx);

/* `sluice launch` sets this variable for a job. Then rank 0 tells, by a line on
 * stderr which begins so, that all ranks catch signals, of each checkpoint
 * (with its name), and of its end (with its exit status). The launcher keeps
 * the line. */
#define SL_LAUNCH_VARIABLE "SLUICE_LAUNCHED"
#define SL_LAUNCH_REPORT "sluice launch report: "
#define SL_LAUNCH_REPORT_READY "ready"
#define SL_LAUNCH_REPORT_CHECKPOINT "checkpoint "
#define SL_LAUNCH_REPORT_END "end "

/** Tell `kind`, one of the above, with its detail. For rank 0; nothing is told
 *  when nobody listens. */
void sl_launched_tell(const char *kind, const char *detail);

#endif /* SL_CLI_LAUNCHED_H */
