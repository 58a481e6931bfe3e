/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file launched.h
 * A wrong command line of a process that a launcher has started with others.
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

#endif /* SL_CLI_LAUNCHED_H */
