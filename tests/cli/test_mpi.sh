#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `mpirun sluice train`: the state of one process, told once; an end that is
# asked of one rank; an error on one rank.
#   tests/cli/test_mpi.sh build/sluice
. "$(dirname "$0")/bed.sh"
begin_mpi || skip 'no mpirun'
coordinator=
on_end() { kill -KILL $job $coordinator 2>/dev/null; }


cat >gpt.yaml <<'YAML'
data: {format: synthetic_tokens, context: 12, classes: 17, n_samples: 64, n_valid: 16}
model: {type: gpt, layers: 2, width: 16, heads: 2, vocab: 17, dropout: 0.1}
train: {batch: 11, micro_batches: 2, steps: 3, seed: 5, eval_every: 2}
devices: {threads: 1}
parallel: {check_replicas: 1}
optimizer: {type: adamw, lr: 0.01, clip_norm: 1.0, weight_decay: 0.1}
YAML
cat >resnet.yaml <<'YAML'
data:
  format: synthetic_images
  image: {channels: 3, height: 16, width: 16}
  classes: 4
  n_samples: 64
model: {type: resnet, depth: 18, stem: cifar, classes: 4}
train: {batch: 10, micro_batches: 2, steps: 2}
devices: {threads: 1}
optimizer: {type: sgd, lr: 0.05, momentum: 0.9}
YAML

cat >many.yaml <<'YAML'
data:
  format: synthetic_images
  image: {channels: 1, height: 2, width: 2}
  classes: 3
  n_samples: 10000
model: {type: mlp, hidden: 5, classes: 3}
train: {batch: 10000, micro_batches: 10000, steps: 1, schedule: 1f1b}
devices: {threads: 1}
YAML

# alike CONFIG RANKS OPTIONS...: as one process with one device a cell
alike() {
    config=$1
    n=$2
    shift 2
    "$sluice" train "$config" --quiet --devices cpu:1 --stages 1 "$@" \
        >out 2>err
    want=$(hash_line)
    ranks "$n" "$sluice" train "$config" --quiet "$@" $extra >out 2>err
    check "$config on $n ranks, $*: $want" test "$want" = "$(hash_line)"
    check "one line with the hash" test "$(grep -c state-hash out)" -eq 1
}
extra="" alike gpt.yaml 2
extra="--schedule 1f1b" alike gpt.yaml 4
extra="--stages 2 --recompute full" alike gpt.yaml 4 --replicas 2
extra="--stages 1 --zero1 true" alike gpt.yaml 2 --replicas 2
extra="--stages 3 --devices cpu:2" alike gpt.yaml 3 --replicas 2
extra="--zero1 true --bucket-bytes 10KiB" alike resnet.yaml 4 --replicas 2
extra="" alike resnet.yaml 2
extra="" alike many.yaml 2 # ten thousand messages there, and as many back
check "one line an evaluation" test "$(grep -c validation out)" -le 1

# the weights that ranks write are those of one process
"$sluice" train gpt.yaml --quiet --save one.st >out 2>err
ranks 3 "$sluice" train gpt.yaml --quiet --save three.st >out 2>err
check "equal files of weights" cmp -s one.st three.st

# the plan names the devices of all ranks
ranks 2 "$sluice" plan gpt.yaml --replicas 2 --stages 1 >out 2>err
check "a plan of two ranks" grep -q '^1/cpu:0' out
check "their places" grep -q '^replica 1: stage 0 .*/1/cpu:0' out

# one rank is asked to end: all end after the same step
ranks 3 sh -c 'echo $$ >pid.$OMPI_COMM_WORLD_RANK; exec "$@"' sh \
    "$sluice" train gpt.yaml --quiet --steps 1000000 --set train.eval_every=0 \
    --metrics m.jsonl >out 2>err &
job=$!
until_true test -s m.jsonl
kill -TERM "$(cat pid.1)"
await_job
check "exit status $status of an interrupted job" test $status -eq 130
check "its hash" test "$(grep -c state-hash out)" -eq 1

# one rank is asked to end before the job is let in: all end
"$sluice" coordinator >coordinator.log 2>&1 &
coordinator=$!
until_true grep -q 'coordinator of' coordinator.log # it has the lease
kill -STOP $coordinator
ranks 2 sh -c 'echo $$ >let.$OMPI_COMM_WORLD_RANK; exec "$@"' sh \
    "$sluice" train gpt.yaml --quiet --steps 1000000 --job-name let \
    --set train.eval_every=0 >out 2>err &
job=$!
is_there() { [ -n "$(find run -path '*let.1*' 2>/dev/null)" ]; }
until_true is_there
sleep 0.2
begin=$(date +%s)
kill -TERM "$(cat let.1)"
await_job
check "exit status $status of a job that is ended before it is let in" \
    test $status -eq 130
check "it ends at once" test $(($(date +%s) - begin)) -lt 30
kill -KILL $coordinator
coordinator=

# one rank has too little memory: all end, one message
timeout 120 mpirun --oversubscribe --bind-to none \
    -n 1 "$sluice" train gpt.yaml --quiet --stages 3 : \
    -n 1 "$sluice" train gpt.yaml --quiet --stages 3 --device-memory 4KiB : \
    -n 1 "$sluice" train gpt.yaml --quiet --stages 3 >out 2>err
status=$?
check "exit status $status without memory" test $status -ne 0 -a $status -ne 124
check "the reason" grep -q "limit" err
check "in one message" test "$(grep -c 'sluice: error' err)" -eq 1

# what fails on all ranks alike is told once
ranks 2 "$sluice" train gpt.yaml --quiet --stages 99 >out 2>err
check "too many stages" test "$(grep -c 'sluice: error' err)" -eq 1
ranks 2 "$sluice" train gpt.yaml --quiet --weights none.st >out 2>err
check "no weights" test "$(grep -c 'sluice: error: none.st' err)" -eq 1
ranks 2 "$sluice" train gpt.yaml --quiet --steps 1 --checkpoint runs >out 2>err
ranks 2 "$sluice" train gpt.yaml --quiet --steps 1 --checkpoint runs >out 2>err
status=$?
check "exit status $status in a directory in use" test $status -eq 2
check "it is in use" test "$(grep -c 'of an earlier run' err)" -eq 1
ranks 2 "$sluice" train gpt.yaml --quiet --checkpoint runs --resume auto \
    --micro-batches 3 >out 2>err
check "other bits" test "$(grep -c 'not with the same bits' err)" -eq 1
printf x | dd of="$(find runs/step-* -name "*.safetensors" | sort | tail -1)" bs=1 seek=9000 \
    conv=notrunc 2>err
ranks 2 "$sluice" train gpt.yaml --quiet --steps 9 --checkpoint runs \
    --resume auto --micro-batches 3 >out 2>err
check "a damaged one" test "$(grep -c 'is skipped' err)" -eq 1
ranks 2 "$sluice" eval gpt.yaml >out 2>err
check "one evaluation" test "$(grep -c perplexity out)" -eq 1
# what one rank alone meets, too
mkdir -p elsewhere
cp gpt.yaml elsewhere
timeout 120 mpirun --oversubscribe --bind-to none \
    -n 1 "$sluice" train gpt.yaml --quiet --weights one.st : \
    -n 1 -wdir "$PWD/elsewhere" "$sluice" train gpt.yaml --quiet \
    --weights one.st >out 2>err
check "weights on one rank only" test "$(grep -c 'sluice: error' err)" -eq 1
check "whose" grep -q 'error: rank 1 (.*): one.st' err

# another config on one rank
timeout 120 mpirun --oversubscribe --bind-to none \
    -n 1 "$sluice" train gpt.yaml --quiet : \
    -n 1 "$sluice" train gpt.yaml --quiet --seed 6 >out 2>err
status=$?
check "exit status $status with two configs" \
    test $status -ne 0 -a $status -ne 124
check "who differs" grep -q 'rank 1' err

# fewer cells than ranks
ranks 4 "$sluice" train gpt.yaml --quiet --stages 2 >out 2>err
check "a rank without work" grep -q 'without work' err

finish
