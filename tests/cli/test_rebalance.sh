#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Layers move between the stages of a real job when a device gets less of its
# time or memory, and the job ends with the state of an undisturbed one.
#   tests/cli/test_rebalance.sh build/sluice
# SLUICE_NO_MPI: when set, nothing is run under mpirun.
. "$(dirname "$0")/bed.sh"
SLUICE_LOG=error
export SLUICE_LOG
logs='*.log'
show() { "$sluice" ctl list; }

# until_in FILE TEXT: TEXT is in FILE before the job ends
until_in() {
    until_true or_over grep -e "$2" "$1"
    grep -qe "$2" "$1" || fail "the job ended without '$2'"
}

cat >gpt.yaml <<'YAML'
data: {format: synthetic_tokens, context: 32, classes: 64, n_samples: 64}
model: {type: gpt, layers: 6, width: 64, heads: 2, vocab: 64}
train: {batch: 16, micro_batches: 8}
optimizer: {type: adamw, lr: 0.01}
devices: {use: "cpu:2", threads: 1}
YAML
train() { # NAME OPTION...
    name=$1
    shift
    exec "$sluice" train gpt.yaml --quiet --job-name "$name" --steps $steps \
        --metrics "$name.jsonl" "$@" >"$name.log" 2>&1
}
launch() { # RANKS NAME OPTION...
    n=$1
    name=$2
    shift 2
    ASAN_OPTIONS=detect_leaks=0 exec mpirun --oversubscribe --bind-to none \
        -n "$n" "$sluice" train gpt.yaml --quiet --job-name "$name" \
        --steps $steps --metrics "$name.jsonl" "$@" >"$name.log" 2>&1
}
ctl() { "$sluice" ctl "$@" >ctl.log 2>&1 || fail "ctl $*"; }
# end_job NAME: it ends well, with the state of an undisturbed run
end_job() {
    await_job
    [ $status -eq 0 ] || fail "job $1: exit status $status"
    [ "$(hash_in "$1.log")" = "$want" ] ||
        fail "job $1: hash $(hash_in "$1.log"), not $want"
}

steps=700
(train still --rebalance off)
want=$(hash_in still.log)
[ -n "$want" ] || fail "an undisturbed run has no hash"
grep -q 'move' still.log && fail "--rebalance off moves layers"

# a share that stays: once there, and back; the job is held for the changes
train share &
job=$!
# before anything else can move: a change must last two seconds
until_in share.jsonl '"step":5,'
ctl share share cpu:1 20
until_in share.log 'from stage 1 to stage 0 (cpu:1 has .* of its time), predicted'
until_in share.jsonl '"rebalance":{"cuts":\[0,'
end_job share

# memory below the need of a stage: layers go, instead of a wait
train memory &
job=$!
until_in memory.jsonl '"step":5,'
ctl limit memory cpu:0 6MiB
until_in memory.log 'from stage 0 to stage 1: a step does not fit'
ctl limit memory cpu:0 1GiB
end_job memory

# between two processes: rank 1's share falls, its layers go to rank 0; what
# is saved then goes on anywhere
if begin_mpi; then
    ASAN_OPTIONS=detect_leaks=0 \
        mpirun --oversubscribe --bind-to none -n 2 "$sluice" train gpt.yaml \
        --quiet --devices cpu:1 --job-name ranks --steps $steps \
        --metrics ranks.jsonl --checkpoint saved --checkpoint-every 100 \
        >ranks.log 2>&1 &
    job=$!
    until_in ranks.jsonl '"step":5,'
    ctl share ranks.1 cpu:0 20
    until_in ranks.log 'from stage 1 to stage 0 (rank 1 cpu:0 has .* of its'
    end_job ranks
    "$sluice" checkpoint verify saved >verify.log 2>&1 ||
        fail "checkpoints of ranks between which layers moved"
    train resumed --devices cpu:3 --checkpoint saved --resume auto &
    job=$!
    end_job resumed
    grep -q "resumed from saved/step-00000$steps" resumed.log ||
        fail "the last checkpoint is not taken"

    # memory of rank 1 below the need of its stage: layers go to rank 0
    launch 2 tight --devices cpu:1 &
    job=$!
    until_in tight.jsonl '"step":5,'
    ctl limit tight.1 cpu:0 6MiB
    until_in tight.log 'from stage 1 to stage 0: a step does not fit'
    ctl limit tight.1 cpu:0 1GiB
    end_job tight

    # layers of two replicas, the second one on rank 1
    (train pair --devices cpu:4 --replicas 2 --zero1 true --rebalance off)
    want=$(hash_in pair.log)
    launch 2 moving --devices cpu:2 --replicas 2 --stages 2 --zero1 true &
    job=$!
    until_in moving.jsonl '"step":5,'
    ctl share moving.1 cpu:1 20
    until_in moving.log 'from stage 1 to stage 0 (rank 1 cpu:1 has .* of its'
    end_job moving
fi

# what is not to change does not: cuts by hand, and another policy
steps=250
(train short --rebalance off)
want=$(hash_in short.log)
for option in "partition.cuts=[30]" partition.policy=uniform; do
    train fixed --set "$option" &
    job=$!
    until_in fixed.jsonl '"step":5,'
    ctl share fixed cpu:1 50
    end_job fixed
    grep -q 'move' fixed.log && fail "$option: layers move"
    rm -f fixed.jsonl fixed.log
done

"$sluice" train gpt.yaml --rebalance perhaps >bad.log 2>&1 &&
    fail "--rebalance perhaps is taken"
grep -q 'auto' bad.log || fail "--rebalance perhaps: no hint"
echo "rebalance: all as it should be"
