/* SPDX-License-Identifier: Apache-2.0 */
/* The exit status of a command. */
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

int sl_exit_status(sl_status_t status)
{
    if (status < 0 && sl_log_n_errors() == 0) {
        const char *detail = sl_last_error();

        sl_error("%s", detail[0] == '\0' ? sl_status_text(status) : detail);
    }
    return sl_exit_code(status);
}
