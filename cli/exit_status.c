/* SPDX-License-Identifier: Apache-2.0 */
/* The exit status of a command. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "cli/commands.h"

int sl_exit_code(sl_status_t status)
{
    if (status >= 0) {
        return 0;
    }
    return status == SL_ERR_CONFIG || status == SL_ERR_INVALID_ARG ||
                   status == SL_ERR_UNSUPPORTED
               ? 2
               : 1;
}

void sl_strip_places(char *text)
{
    char *at = text;

    while ((at = strstr(at, ".c:")) != NULL) {
        char *begin = at;
        size_t n = strspn(at + 3, "0123456789");

        while (begin > text &&
               (isalnum((unsigned char)begin[-1]) || begin[-1] == '_')) {
            begin--;
        }
        if (n == 0 || strncmp(at + 3 + n, ": ", 2) != 0) {
            at += 3;
            continue;
        }
        at += 3 + n + 2;
        memmove(begin, at, strlen(at) + 1);
        at = begin;
    }
}

int sl_exit_status(sl_status_t status)
{
    if (status < 0 && sl_log_n_errors() == 0) {
        char detail[1024];

        (void)snprintf(detail, sizeof(detail), "%s", sl_last_error());
        sl_strip_places(detail);
        sl_error("%s", detail[0] == '\0' ? sl_status_text(status) : detail);
    }
    return sl_exit_code(status);
}
