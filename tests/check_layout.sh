#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The house rules that a compiler does not check: a folder includes only
# folders below it, internal headers stay in their folder, one SPDX line a
# file, formatted. Prints each fault; exit status 1 when there is one.
set -eu
cd "$(dirname "$0")/.."
status=0
below=
for folder in base memory scheduler layers partition engine cli; do
    below="$below $folder"
    pattern=$(echo $below | sed 's/ /|/g')
    faults=$(grep -rnE --include='*.[ch]' --include='*.cu*' '^#include "' \
        "$folder" |
        grep -vE "#include \"($pattern)/" || true)
    if [ -n "$faults" ]; then
        echo "$folder includes what is not below it:"
        echo "$faults"
        status=1
    fi
    faults=$(grep -rnE --include='*.[ch]' \
        "#include \"$folder/([a-z0-9_]+/)*[a-z0-9_]*internal\.h\"" . |
        grep -vE "^\./($folder|tests/$folder|tests/cuda|tests/data|build[^/]*)/" || true)
    if [ -n "$faults" ]; then
        echo "internal headers of $folder are used outside:"
        echo "$faults"
        status=1
    fi
done
for file in $(find base memory scheduler layers partition engine cli tests \
    bench -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o \
    -name '*.cpp'); do
    head -1 "$file" | grep -q 'SPDX-License-Identifier: Apache-2.0' || {
        echo "$file: the first line names no licence"
        status=1
    }
done
# the format is that of clang-format 14; others differ in small things
if clang-format --version 2>/dev/null | grep -q 'version 14\.'; then
    find base memory scheduler layers partition engine cli tests bench \
        \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' \) \
        -print0 |
        xargs -0 clang-format --dry-run -Werror || status=1
fi
exit $status
