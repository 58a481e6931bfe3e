#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every public header (one that declares an SL_API) compiles alone, twice, as
# C11 and as C++.
set -eu
cd "$(dirname "$0")/.."
status=0
for header in $(grep -rlw --include='*.h' SL_API base memory scheduler \
    layers partition engine | sort); do
    source="#include \"$header\"
#include \"$header\""
    echo "$source" | ${CC:-cc} -std=c11 -D_POSIX_C_SOURCE=200809L -Wall \
        -Wextra -Wpedantic -Werror -I. -fsyntax-only -x c - || status=1
    if command -v c++ >/dev/null; then
        echo "$source" | c++ -std=c++11 -Wall -Wextra -Werror -I. \
            -fsyntax-only -x c++ - || status=1
    fi
done
exit $status
