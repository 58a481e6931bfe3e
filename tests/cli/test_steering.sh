#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Who steers and who looks: a coordinator that is killed, one that only says
# what it would do, one written for AntMan, and top.
#   tests/cli/test_steering.sh build/sluice
. "$(dirname "$0")/bed.sh"
umask 077
train= coordinator= holder= live=
on_end() {
    for left in $train $coordinator $holder $live; do
        kill -KILL "$left" 2>/dev/null
    done
}

cat >net.yaml <<'END'
name: net
data: {format: synthetic_tokens, context: 16, classes: 32, n_samples: 64}
model: {type: gpt, layers: 2, width: 32, heads: 2, vocab: 32}
train: {batch: 8, micro_batches: 2, steps: 100000000}
devices: {threads: 1}
END

# begin ARGUMENT...: a job in the background; its directory is $dir
is_listed() {
    dir=$(echo run/jobs/*-"$train"-*) && [ -s "$dir/status.json" ]
}
begin() {
    "$sluice" train net.yaml --quiet --devices cpu:2 "$@" >out 2>err &
    train=$!
    until_true is_listed
    is_listed # here, not in what waits
}
end() {
    kill -TERM "$train"
    wait "$train"
    train=
}
says() { grep -q "$1" "$dir/status.json"; }

# ---- a dry run says what it would do, and writes nothing ----
begin --class opportunistic --job-name guest
if "$sluice" coordinator --dry-run --once >out 2>err && [ ! -s err ] &&
    grep -q 'dry run' out && grep -q "^${dir#run/jobs/}  cpu:0 share 100.0" out &&
    [ ! -e "$dir/control.json" ] && [ ! -e run/coordinator.json ] &&
    says '"sequence":0,"writer_token":""'; then ok; else
    bad "dry run: $(ls -A run "$dir")"
fi

# ---- shares by hand outlive the coordinator, others fall to the floor ----
"$sluice" coordinator --quiet --ttl 1 --period 0.1 >out 2>err &
coordinator=$!
until_true says '"writer_token":"coordinator'
# beside the real one
if "$sluice" coordinator --dry-run --once >out 2>err && [ ! -s err ]; then
    ok
else
    bad 'a dry run beside a coordinator'
fi
"$sluice" ctl share guest cpu:0 40 >out 2>err # answered in time or not
until_true says '"share_asked":40.0'
kill -KILL "$coordinator"
wait "$coordinator" 2>/dev/null
coordinator=
until_true says '"expired":true'
until_true says '"share_asked":1.0'
if says '"share_asked":40.0'; then ok; else
    bad "a share by hand without its coordinator: $(cat "$dir/status.json")"
fi
end

# ---- a coordinator written for AntMan: its two files, and nothing else ----
printf '{"name": "pod", "perfControl": 60, "gpuConfigInfo": {"cpu:0":
    {"maxDeviceMem": 536870912}}}\n' >sche2pai.json
GPU_CONFIG_FILE=$folder/sche2pai.json
GPU_STATUS_FILE=$folder/pai2sche.json
export GPU_CONFIG_FILE GPU_STATUS_FILE
begin --job-name pod
unset GPU_CONFIG_FILE GPU_STATUS_FILE
until_true says '"limit_asked_bytes":536870912.*"share_asked":60.0'
until_true grep -q '"cpu:1":{"deviceMemUsedMax":[1-9].*"miniBatchDuration":[1-9]' \
    pai2sche.json
ok
end

# ---- top: what a coordinator found of a job ----
# Its lock is held here, and its report is written by hand.
if command -v flock >/dev/null; then
    flock --no-fork run/coordinator.lock sleep 3600 &
    holder=$!
    is_free() { flock --nonblock run/coordinator.lock true; }
    is_taken() { ! is_free; }
    until_true is_taken
fi
begin --class guarantee --job-name host
id=${dir#run/jobs/}
printf '{"schema": 1, "policy": "guarantee-first", "jobs": {"%s":
    {"baseline_us": 2000.0, "slowdown": 1.125}}}\n' "$id" >run/.report
mv run/.report run/coordinator.json
if [ -n "$holder" ]; then
    if COLUMNS=200 "$sluice" top --once >out 2>err &&
        grep -q '1 job  coordinator guarantee-first' out &&
        grep -q 'SLOWER' out &&
        grep -q "^${id%"${id#????????????}"}.*guarantee.*+12.5%" out; then
        ok
    else
        bad 'top: SLOWER'
    fi
    if "$sluice" top --json >out 2>err &&
        grep -q '"slowdown": 1.125' out &&
        grep -q '"baseline_us": 2000.0' out &&
        grep -q '"policy": "guarantee-first"' out; then ok; else
        bad 'top --json: slowdown'
    fi
fi
end
if [ -n "$holder" ]; then
    kill -KILL "$holder"
    wait "$holder" 2>/dev/null
    holder=
fi

# ---- and live, on a terminal ----
escape=$(printf '\033')
begin --job-name shown
if command -v script >/dev/null; then
    mkfifo keys
    script -qefc "stty cols 70 rows 12; exec '$sluice' top --every 0.1" \
        /dev/null <keys >out 2>err &
    live=$!
    exec 3>keys
    steps() { [ "$(grep -c '^shown.*running' out)" -ge 3 ]; }
    until_true steps # it is drawn again
    printf x >&3     # no key of ours
    printf q >&3
    wait "$live"
    status=$?
    live=
    exec 3>&-
    tr -d '\r' <out | sed "s/$escape\\[[0-9;?]*[a-zA-Z]//g" >plain
    if [ $status -eq 0 ] && grep -q "$escape\\[?1049h" out &&
        grep -q "$escape\\[?1049l" out && [ "$(wc -L <plain)" -lt 70 ]; then
        ok
    else
        bad "top on a terminal: exit status $status"
    fi
fi
end

finish
