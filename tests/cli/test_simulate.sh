#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `sluice simulate` as a person uses it.
#   tests/cli/test_simulate.sh build/sluice
# SLUICE_NO_MPI: when set, nothing is run under mpirun.
examples=$(cd "$(dirname "$0")/../../examples" && pwd)
. "$(dirname "$0")/bed.sh"

cat >gpt.yaml <<'YAML'
data: {format: synthetic_tokens, context: 12, classes: 17, n_samples: 64}
model: {type: gpt, layers: 2, width: 16, heads: 2, vocab: 17}
train: {batch: 16, micro_batches: 4}
YAML
cat >cluster.yaml <<'YAML'
name: small
hosts:
  - {count: 2, devices: 4, memory: 1MiB, link: {latency_us: 1},
     network: {latency_us: 5, bandwidth: 1GB}}
YAML

# ---- one grid ----
for schedule in gpipe 1f1b; do
    for recompute in none full except-last auto; do
        passes 'critical path: ' simulate gpt.yaml --stages 2 \
            --cluster cluster.yaml --replicas 2 --micro-batches 2 \
            --schedule $schedule --recompute $recompute
    done
done
passes '2 replicas x 3 stages on 6 of 8 devices' simulate gpt.yaml --stages 3 \
    --replicas 2 --cluster cluster.yaml --zero1 true
passes '"critical_path_ms"' simulate gpt.yaml --cluster cluster.yaml --json
passes 'does not fit' simulate gpt.yaml --cluster cluster.yaml --batch 1024
passes 'critical path' simulate gpt.yaml --cluster cluster.yaml --stages 3 \
    --set 'partition.cuts=[4,9]' --timeline t.svg
grep -q '</svg>' t.svg && ok || bad 'no timeline'
"$sluice" simulate gpt.yaml --cluster cluster.yaml --json >a.json 2>err
"$sluice" simulate gpt.yaml --cluster cluster.yaml --json >b.json 2>err
cmp -s a.json b.json && ok || bad 'two simulations differ'

# ---- measured costs ----
"$sluice" profile gpt.yaml --threads 1 --repeats 2 >out 2>err || bad profile
passes 'costs of layers: measured' simulate gpt.yaml --threads 1 \
    --cluster cluster.yaml
refuses 1 'run `sluice profile`' simulate gpt.yaml --threads 1 --replicas 4 \
    --costs profile --cluster cluster.yaml

# ---- scaling ----
passes 'rows of a micro-batch that may be chosen: 4$' simulate gpt.yaml \
    --threads 1 --cluster cluster.yaml --scale 1,2 --costs profile
passes '^weak scaling' simulate gpt.yaml --cluster cluster.yaml --scale 1,2,3,8
[ "$(grep -c ' %' out)" -eq 8 ] && ok || bad 'two tables of four rows'
passes '"strong"' simulate gpt.yaml --cluster cluster.yaml --scale 1,8 --json
passes '^   1024 ' simulate gpt.yaml --cluster "$examples/cluster_1024.yaml" \
    --batch 4096 --set train.micro_batches=1024 --scale 1,1024
# nothing is rehearsed on this machine, which could take minutes or not fit
passes '512 replicas x 2 stages on 1024' simulate \
    "$examples/gpt2_synthetic.yaml" --cluster "$examples/cluster_1024.yaml" \
    --batch 8192 --replicas 512 --stages 2 --micro-batches 16 \
    --costs analytic --device-memory 1MiB
passes 'micro-batches of' simulate "$examples/gpt2_synthetic.yaml" --stages 2 \
    --cluster "$examples/cluster_two_cores.yaml" --costs analytic

# ---- the bytes between two real ranks are those of the simulation ----
# parameters of whole cache lines, which buckets need not pad
cat >even.yaml <<'YAML'
data: {format: synthetic_tokens, context: 16, classes: 64, n_samples: 64}
model: {type: gpt, layers: 2, width: 64, heads: 2, vocab: 64}
train: {batch: 16, micro_batches: 4}
YAML
# bytes STAGES REPLICAS: of a step, sent by both ranks
bytes() {
    ranks 2 "$sluice" train even.yaml --quiet --stages "$1" --replicas "$2" \
        --micro-batches 2 --steps 1 --devices cpu:1 --threads 1 \
        --edges edges.jsonl >out.ranks 2>err.ranks
    cat edges.jsonl.0 edges.jsonl.1 |
        sed -n 's/.*"is_sender": true.*"bytes": \([0-9]*\),.*/\1/p' |
        awk '{ sum += $1 } END { printf "%d\n", sum }'
}
for grid in '2 1' '1 2'; do
    begin_mpi || {
        echo "no mpirun: bytes are not compared"
        break
    }
    set -- $grid
    want=$(bytes "$1" "$2")
    "$sluice" simulate even.yaml --stages "$1" --replicas "$2" \
        --micro-batches 2 --cluster cluster.yaml --json >out 2>err
    got=$(sed -n 's/.*"near_bytes": \([0-9]*\).*/\1/p' out)
    if [ "$want" -gt 0 ] && [ "$want" = "$got" ]; then ok; else
        cat out.ranks err.ranks >>err
        bad "$1 stages, $2 replicas: $got bytes simulated, $want sent"
    fi
done

# ---- wrong input ----
"$sluice" train gpt.yaml --quiet --steps 1 --edges /nonexistent/e >out 2>err
if [ $? -eq 1 ] && grep -q '/nonexistent/e' err; then ok; else
    bad 'train --edges into a folder that is not there'
fi
refuses 2 'cluster FILE is missing' simulate gpt.yaml
refuses 1 'nothing.yaml' simulate gpt.yaml --cluster nothing.yaml
refuses 2 'raise train.batch' simulate gpt.yaml --cluster cluster.yaml \
    --replicas 5
refuses 2 'replicas' simulate gpt.yaml --cluster cluster.yaml --replicas 0
refuses 2 'an integer from 1 to 8' simulate gpt.yaml \
    --cluster cluster.yaml --scale 1,9
refuses 2 'scale' simulate gpt.yaml --cluster cluster.yaml --scale 1,,2
refuses 2 'lifo' simulate gpt.yaml --cluster cluster.yaml --schedule 1f1b \
    --backward-order lifo
printf 'hosts:\n  - speeed: 2\n' >wrong.yaml
refuses 2 'wrong.yaml:2:' simulate gpt.yaml --cluster wrong.yaml

finish
