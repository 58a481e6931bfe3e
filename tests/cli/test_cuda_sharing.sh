#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Jobs that see different GPUs, those of the stand-in, under one coordinator:
#   tests/cli/test_cuda_sharing.sh build/sluice
. "$(dirname "$0")/bed.sh"
pids=
on_end() { kill -9 $pids 2>/dev/null; }
logs='*.log out err'
gpu_mib=3072
room_mib=2688 # what jobs divide of it

# begin NAME CLASS GPUS DEVICES STEPS: a job in the background; its process is
# in the variable NAME
begin() {
    CUDA_VISIBLE_DEVICES=$3 "$sluice" train gpt.yaml --quiet --threads 1 \
        --job-name "$1" --class "$2" --devices "$4" --steps "$5" \
        >"$1.log" 2>&1 &
    eval "$1=\$!"
    pids="$pids $!"
}

# end PROCESS
end() {
    kill -TERM "$1"
    wait "$1" 2>/dev/null
}

begin_coordinator() {
    rm -f coordinator.log
    "$sluice" coordinator --period 0.05 "$@" >coordinator.log 2>&1 &
    coordinator=$!
    pids="$pids $!"
    until_shows 'coordinator of' cat coordinator.log # it has the lease
}

# sum_of GPU: MiB that the jobs that have begun to train may hold of it
sum_of() {
    "$sluice" top --json 2>err | tee out | awk -F'"' -v gpu="$1" '
        { value = $0; sub(/^[^:]*: /, "", value); gsub(/[",]/, "", value) }
        $2 == "step" { step = value }
        $2 == "gpu" { here = index(value, gpu) == 1 }
        $2 == "limit_bytes" && step > 0 && here { sum += value }
        END { printf "%d\n", sum / 1048576 }'
}

cat >gpt.yaml <<'YAML'
data: {format: synthetic_tokens, context: 12, classes: 17, n_samples: 64}
model: {type: gpt, layers: 2, width: 16, heads: 2, vocab: 17}
train: {batch: 8, micro_batches: 2, seed: 5}
optimizer: {type: adamw, lr: 0.01}
YAML

# ---- alone: the whole GPU, in the parts of its two devices ----
begin_coordinator --policy static
begin host guarantee 1 cuda:2 1000000
until_shows 'host-.*running.*cuda:0 (GPU-00000001) 100.0% 1.31 GiB' \
    "$sluice" ctl list
until_shows 'cuda:1 (GPU-00000001) 100.0% 1.31 GiB' "$sluice" ctl list
until_shows 'GPU-00000001' "$sluice" top --once
until_shows '"gpu": "GPU-00000001-0000-0000-7374-616e642d696e"' \
    "$sluice" top --json

# ---- one GPU under other names: cuda:2 and cuda:3 of the guest ----
begin guest opportunistic 0,1 cuda:4 1000000
until_shows 'guest-.*running.*cuda:3 (GPU-00000001) 50.0%' "$sluice" ctl list
until_shows 'host-.*cuda:1 (GPU-00000001) 50.0%' "$sluice" ctl list
until_shows 'guest-.*cuda:0 (GPU-00000000) 50.0% 1.31 GiB' "$sluice" ctl list
n=0
most=0
sum=0
# at every look, and in the end all that jobs divide
while [ $n -lt 40 ] || { [ $n -lt 1200 ] && [ "$sum" -gt $room_mib ]; } ||
    { [ $n -lt 1200 ] && [ "$sum" -lt $((room_mib - 16)) ]; }; do
    n=$((n + 1))
    sum=$(sum_of GPU-00000001)
    [ "$sum" -gt $most ] && most=$sum
    sleep 0.05
done
if [ $n -lt 1200 ] && [ $most -le $gpu_mib ]; then ok; else
    bad "limits of $sum MiB, and of $most MiB at most, on a GPU of $gpu_mib MiB"
fi
# both have about a half, whatever the number of their devices
until_shows 'host-.*cuda:0 (GPU-00000001) 50.0% 6[5-9][0-9]\.[0-9]* MiB' \
    "$sluice" ctl list
until_shows 'guest-.*cuda:2 (GPU-00000001) 50.0% 6[5-9][0-9]\.[0-9]* MiB' \
    "$sluice" ctl list
end "$guest"

# ---- one name on two GPUs: neither knows of the other ----
begin guest opportunistic 0 cuda:1 1000000
until_shows 'guest-.*running.*cuda:0 (GPU-00000000) 100.0% 2.6[23] GiB' \
    "$sluice" ctl list
until_shows 'host-.*cuda:0 (GPU-00000001) 100.0% 1.31 GiB' "$sluice" ctl list
n=0
while [ $n -lt 20 ]; do
    n=$((n + 1))
    "$sluice" ctl list >out 2>err
    [ "$(grep -c 'cuda:0 (GPU-0000000[01]) 100.0%' out)" -eq 2 ] ||
        bad "jobs on two GPUs hold each other back"
    sleep 0.05
done
end "$guest"
end "$host"
end "$coordinator"
if grep -q 'guest-.* share 50.0' coordinator.log; then ok; else
    bad "the coordinator does not say what it did"
fi

# ---- what they compute does not depend on it ----
begin alone none 0 cuda:1 60
wait "$alone" || bad "a job alone failed"
begin_coordinator
begin host guarantee 0 cuda:2 60
begin guest opportunistic 1,0 cuda:4 60
wait "$host" || bad "the guarantee job failed"
wait "$guest" || bad "the guest failed"
for name in host guest; do
    if [ -n "$(hash_in alone.log)" ] &&
        [ "$(hash_in $name.log)" = "$(hash_in alone.log)" ]; then ok; else
        bad "$name differs from a job alone"
    fi
done
end "$coordinator"

# ---- the devices of a job that waits count together ----
begin_coordinator --device-memory 1MiB
begin late opportunistic 0 cuda:2 3
until_shows 'late-.*waiting.*needs .* on the GPU of cuda:0, which has 1.00 MiB' \
    "$sluice" ctl list
end "$coordinator"
begin_coordinator
wait "$late" || bad "the job that waited failed"
if grep -q 'state-hash' late.log; then ok; else
    bad "the job that waited did not train"
fi
end "$coordinator"

finish
