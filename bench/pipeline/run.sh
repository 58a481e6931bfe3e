#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Two stages on two cores beside one stage on one core: measured speed-up over
# the ideal M * sum(t) / (sum(t) + (M - 1) * max(t)).
#   bench/pipeline/run.sh [REPEATS]
set -eu
cd "$(dirname "$0")/../.."
repeats=${1:-15}
run() {
    echo "== $*"
    build/sluice speedup "$@" --devices cpu:2 --threads 1 --repeats "$repeats"
}
for config in gpt_shakespeare gpt2_synthetic resnet101_synthetic; do
    for schedule in gpipe 1f1b; do
        run examples/$config.yaml --schedule $schedule
    done
done
run examples/gpt_shakespeare.yaml --schedule 1f1b --recompute full
