#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A training job driven by a shell script, as docs/control-plane.md shows.
#   tests/cli/test_control.sh build/sluice
. "$(dirname "$0")/bed.sh"
pid=
cleanup() {
    [ -n "$pid" ] && kill -KILL "$pid" 2>/dev/null
    rm -rf "$folder"
}
trap cleanup EXIT
umask 077

cat >net.yaml <<'END'
name: 'a net/with odd: name'
data: {format: synthetic_tokens, context: 16, classes: 32, n_samples: 64}
model: {type: gpt, layers: 2, width: 32, heads: 2, vocab: 32}
train: {batch: 8, micro_batches: 2, steps: 1500}
devices: {threads: 1}
END

# start ARGUMENT...: a job in the background; $pid and $job
start() {
    "$sluice" train net.yaml --quiet --devices cpu:2 "$@" >out 2>err &
    pid=$!
    wait_for 'the job directory' \
        'job=$(echo run/jobs/[a-z]*-$pid-*) && [ -s "$job/status.json" ] ||
            is_over'
}
is_over() { ! kill -0 $pid 2>/dev/null; }

# once_more: the job was over before this script had come so far, as it may be
# on a busy machine: it is to be started again
n_again=0
once_more() {
    is_over && [ $n_again -lt 20 ] && wait $pid || return 1
    n_again=$((n_again + 1))
}

# wait_for WHAT CONDITION: at most a minute, then it is over
wait_for() {
    n_tries=0
    until eval "$2"; do
        n_tries=$((n_tries + 1))
        if [ $n_tries -gt 600 ]; then
            bad "waited in vain for $1"
            exit 1
        fi
        sleep 0.1
    done
}

# put SEQUENCE REST: an order; order: until it was read
put() {
    printf '{"schema": 1, "sequence": %s%s}\n' "$1" "$2" >"$job/.order" &&
        mv "$job/.order" "$job/control.json"
}
order() {
    put "$1" "$2"
    wait_for "order $1" \
        "grep -qs '\"accepted\":{\"sequence\":$1,' $job/status.json || is_over"
}

hash_of() { sed -n 's/.*state-hash //p' "$1"; }

# ---- orders change the speed and no bit ----
"$sluice" train net.yaml --quiet --devices cpu:2 >out 2>err
alone=$(hash_of out)
while :; do
    start --class opportunistic --rebalance off # whose moves are told
    order 1 ', "devices": {"cpu:0": {"share": 20}, "cpu:1": {"share": 30}}'
    order 2 ', "devices": {"cpu:0": {"share": 0}}'
    wait_for 'suspension' \
        "grep -qs '\"state\":\"suspended\"' $job/status.json || is_over"
    once_more || break
done
order 3 ', "devices": {"cpu:0": {"share": 10}, "cpu:1": {"share": 0}}'
wait_for 'suspension' "grep -qs '\"state\":\"suspended\"' $job/status.json"
order 4 ', "devices": {"cpu:0": {"share": 100}, "cpu:1": {"share": 100}}'
wait $pid
status=$?
pid=
if [ $status -eq 0 ] && [ -n "$alone" ] && [ "$(hash_of out)" = "$alone" ] &&
    ! [ -s err ]; then ok; else
    bad "throttled: status $status, hash $(hash_of out), alone $alone"
fi
if [ "$(ls -A run/jobs)" = '' ]; then ok; else bad 'a directory was left'; fi

# ---- a suspended job ends by a signal, and by an order ----
start --steps 100000000
order 1 ', "devices": {"cpu:0": {"share": 0}, "cpu:1": {"share": 0}}'
wait_for 'suspension' "grep -qs '\"state\":\"suspended\"' $job/status.json"
kill -TERM $pid
wait $pid
status=$?
pid=
if [ $status -eq 130 ] && grep -q state-hash out; then ok; else
    bad "suspended, SIGTERM: status $status"
fi
start --steps 100000000 --job-name stopped
for value in -5 -.5 101; do
    "$sluice" ctl share stopped cpu:0 $value >ctl.out 2>ctl.err
    status=$?
    if [ $status -eq 2 ] && grep -q "PERCENT.*100" ctl.err; then ok; else
        bad "ctl share $value: exit status $status"
    fi
done
"$sluice" ctl limit stopped cpu:0 -5 >ctl.out 2>ctl.err
status=$?
if [ $status -eq 2 ] && grep -q 'SIZE' ctl.err; then ok; else
    bad "ctl limit -5: exit status $status"
fi
COLUMNS=80 "$sluice" top --once >ctl.out 2>ctl.err
if [ "$(wc -L <ctl.out)" -le 80 ] && grep -q '^stopped.*running' ctl.out; then ok; else
    bad 'top in 80 columns'
fi
put 1 ', "action": "stop"'
wait $pid
status=$?
pid=
if [ $status -eq 130 ] && grep -q state-hash out; then ok; else
    bad "stop: status $status"
fi

# ---- a suspended guest whose coordinator is gone comes back ----
start --steps 100000000 --class opportunistic
order 1 ', "ttl_ms": 1000, "devices": {"cpu:0": {"share": 0}}'
wait_for 'the floor' "grep -qs '\"expired\":true' $job/status.json &&
    grep -qs '\"share_asked\":5.0' $job/status.json &&
    grep -qs '\"state\":\"running\"' $job/status.json"
ok

# ---- kill -9 leaves a directory; the next job takes it away ----
kill -KILL $pid
wait $pid 2>/dev/null
left=$job
pid=
"$sluice" train net.yaml --quiet --steps 1 >out 2>err
if [ ! -e "$left" ] && ! [ -s err ]; then ok; else bad "$left is left"; fi

# ---- names and classes ----
for name in ../x a/b '' .a 'a b'; do
    "$sluice" train net.yaml --steps 1 --job-name "$name" >out 2>err
    status=$?
    if { [ $status -eq 1 ] || [ $status -eq 2 ]; } && grep -q name err; then
        ok
    else
        bad "--job-name '$name': status $status"
    fi
done
"$sluice" train net.yaml --steps 1 --class best >out 2>err
if [ $? -eq 2 ] && grep -q guarantee err; then ok; else bad "--class best"; fi

# ---- no run directory that can be trusted: one warning, and it trains ----
chmod 777 run
"$sluice" train net.yaml --quiet --steps 3 >out 2>err
status=$?
if [ $status -eq 0 ] && [ "$(wc -l <err)" -eq 1 ] && grep -qs 'go-w' err; then
    ok
else
    bad "writable run directory: status $status"
fi
chmod 700 run

# ---- a limit below the need: the job waits, and goes on when it rises ----
alone=$("$sluice" train net.yaml --quiet --devices cpu:2 --steps 600 2>/dev/null |
    tail -1)
while :; do
    start --steps 600 --job-name squeezed
    put 1 ', "devices": {"cpu:0": {"limit_bytes": 1},
        "cpu:1": {"limit_bytes": 1}}'
    wait_for 'a job that waits' \
        'grep -q "waiting for a higher limit" err || is_over'
    once_more || break
done
put 2 ', "devices": {"cpu:0": {"limit_bytes": 1073741824},
    "cpu:1": {"limit_bytes": 1073741824}}'
wait $pid
status=$?
pid=
if [ $status -eq 0 ] && grep -q 'waiting for a higher limit' err &&
    [ "$(tail -1 out)" = "$alone" ]; then ok; else
    bad "limit below the need: exit status $status"
fi

# ---- likewise when it is an evaluation that does not fit ----
evaluate="--set data.n_valid=64 --set train.eval_every=1"
alone=$("$sluice" train net.yaml --quiet --devices cpu:2 --steps 300 $evaluate \
    2>/dev/null | tail -1)
while :; do
    start --steps 300 --job-name evaluated $evaluate
    wait_for 'a first evaluation' 'grep -q validation out || is_over'
    put 1 ', "devices": {"cpu:0": {"limit_bytes": 1},
        "cpu:1": {"limit_bytes": 1}}'
    wait_for 'a job that waits' \
        'grep -q "waiting for a higher limit" err || is_over'
    once_more || break
done
put 2 ', "devices": {"cpu:0": {"limit_bytes": 1073741824},
    "cpu:1": {"limit_bytes": 1073741824}}'
wait $pid
status=$?
pid=
if [ $status -eq 0 ] && grep -q 'waiting for a higher limit' err &&
    [ "$(tail -1 out)" = "$alone" ]; then ok; else
    bad "limit below the need of an evaluation: exit status $status"
fi

# ---- and one that is ended while it waits loses nothing ----
for how in signal order; do
    start --steps 100000000 --job-name ended --checkpoint "kept-$how"
    put 1 ', "devices": {"cpu:0": {"limit_bytes": 1}}'
    wait_for 'a job that waits' \
        'grep -q "waiting for a higher limit" err || is_over'
    if [ $how = signal ]; then kill -TERM $pid; else
        put 2 ', "action": "stop"'
    fi
    wait $pid
    status=$?
    pid=
    if [ $status -eq 130 ] && grep -q state-hash out &&
        "$sluice" checkpoint verify "kept-$how" >out 2>err; then ok; else
        bad "ended by $how while it waits: exit status $status"
    fi
done

# ---- Prometheus ----
"$sluice" train net.yaml --quiet --steps 3 --prometheus net.prom >out 2>err
if grep -qs '^sluice_job_minibatches_total{.*} 3$' net.prom &&
    grep -qs 'state="done"} 1$' net.prom; then ok; else bad '--prometheus'; fi

echo "$n_passed passed, $n_failed failed"
[ $n_failed -eq 0 ]
