#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` leaves is enough for a C program: the example builds
# against it alone, and gives the same state in one stage and in two.
# usage: test_install.sh <build folder> <source folder>
set -eu
build=$1
source=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cmake --install "$build" --prefix "$folder/usr" >"$folder/log"
"$folder/usr/bin/sluice" --help >/dev/null
pc=$(find "$folder/usr" -name sluice.pc)
sed "s|^prefix=.*|prefix=$folder/usr|" "$pc" >"$folder/sluice.pc"
export PKG_CONFIG_PATH="$folder"
# shellcheck disable=SC2046
cc -std=c11 -Wall -Wextra -Werror "$source/examples/two_stages.c" \
    -o "$folder/two_stages" $(pkg-config --cflags --libs sluice) \
    -Wl,-rpath,"$(pkg-config --variable=libdir sluice)"

one=$("$folder/two_stages" 1 | tail -n 1)
two=$("$folder/two_stages" 2 | tail -n 1)
echo "$one"
echo "$two"
[ "${one#*loss}" = "${two#*loss}" ] || {
    echo "the states differ" >&2
    exit 1
}
"$folder/two_stages" 0 2>/dev/null && exit 1
[ $? -eq 2 ]
