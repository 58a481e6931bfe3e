#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# train_cli.sh SLUICE ROOT: memory options of `sluice train`, from outside.
set -eu
sluice=$1
root=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

train() {
    "$sluice" train "$root/examples/unet_layers.yaml" --devices cpu:2 \
        --threads 1 --steps 2 --batch 8 --quiet "$@"
}

fail() {
    echo "FAILED: $*" >&2
    exit 1
}

# a trace for each device, with both boundaries and known ids only
train --memory-trace "$dir/trace" >"$dir/free"
for d in 0 1; do
    file=$dir/trace.cpu$d
    [ "$(head -n 1 "$file")" = "sluice-memory-trace 1 cpu:$d" ] ||
        fail "head of $file"
    [ "$(grep -c '^b ' "$file")" = 2 ] || fail "boundaries in $file"
    awk '$1 == "a" { if ($2 in live) exit 1; live[$2] = 1; n++ }
         $1 == "r" { if (!($2 in live)) exit 1; delete live[$2] }
         END { if (n < 50) exit 1 }' "$file" || fail "ids in $file"
done

# little device memory: refused alone, the same bits with the host behind it
if train --device-memory 4MiB >"$dir/short" 2>&1; then
    fail "4 MiB are not enough"
fi
grep -q 'refused' "$dir/short" || fail "the refusal has no reason"
train --device-memory 4MiB --host-memory 1GiB >"$dir/host"
[ "$(tail -n 1 "$dir/free")" = "$(tail -n 1 "$dir/host")" ] ||
    fail "another result with host memory"
[ -n "$(tail -n 1 "$dir/free" | grep state-hash)" ] || fail "no hash"

# a place that cannot be written
if train --memory-trace "$dir/none/trace" >"$dir/bad" 2>&1; then
    fail "a trace into nowhere"
fi
grep -q 'memory trace' "$dir/bad" || fail "no message for a bad path"
