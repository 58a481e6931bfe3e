#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A training job driven by a shell script, as docs/control-plane.md shows.
#   tests/cli/test_control.sh build/sluice
. "$(dirname "$0")/bed.sh"
rmdir run # the program makes it
umask 077

cat >net.yaml <<'END'
name: 'a net/with odd: name'
data: {format: synthetic_tokens, context: 16, classes: 32, n_samples: 64}
model: {type: gpt, layers: 2, width: 32, heads: 2, vocab: 32}
train: {batch: 8, micro_batches: 2, steps: 1500}
devices: {threads: 1}
END

# start ARGUMENT...: a job in the background, with the directory $at
is_there() {
    at=$(echo run/jobs/[a-z]*-$job-*)
    [ -s "$at/status.json" ]
}
start() {
    "$sluice" train net.yaml --quiet --devices cpu:2 "$@" >out 2>err &
    job=$!
    until_true or_over is_there
}
tells() { grep -qe "$1" "$at/status.json"; } # TEXT: the job's status has it

# put SEQUENCE REST: an order; order: until it was read
put() {
    printf '{"schema": 1, "sequence": %s%s}\n' "$1" "$2" >"$at/.order" &&
        mv "$at/.order" "$at/control.json"
}
order() {
    put "$1" "$2"
    until_true or_over tells "\"accepted\":{\"sequence\":$1,"
}

# ---- orders change the speed and no bit ----
"$sluice" train net.yaml --quiet --devices cpu:2 >out 2>err
alone=$(hash_in out)
while :; do
    start --class opportunistic --rebalance off # whose moves are told
    order 1 ', "devices": {"cpu:0": {"share": 20}, "cpu:1": {"share": 30}}'
    order 2 ', "devices": {"cpu:0": {"share": 0}}'
    until_true or_over tells '"state":"suspended"'
    once_more || break
done
order 3 ', "devices": {"cpu:0": {"share": 10}, "cpu:1": {"share": 0}}'
until_true tells '"state":"suspended"'
order 4 ', "devices": {"cpu:0": {"share": 100}, "cpu:1": {"share": 100}}'
await_job
if [ $status -eq 0 ] && [ -n "$alone" ] && [ "$(hash_in out)" = "$alone" ] &&
    ! [ -s err ]; then ok; else
    bad "throttled: status $status, hash $(hash_in out), alone $alone"
fi
if [ "$(ls -A run/jobs)" = '' ]; then ok; else bad 'a directory was left'; fi

# ---- a suspended job ends by a signal, and by an order ----
start --steps 100000000
order 1 ', "devices": {"cpu:0": {"share": 0}, "cpu:1": {"share": 0}}'
until_true tells '"state":"suspended"'
kill -TERM $job
await_job
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
await_job
if [ $status -eq 130 ] && grep -q state-hash out; then ok; else
    bad "stop: status $status"
fi

# ---- a suspended guest whose coordinator is gone comes back ----
start --steps 100000000 --class opportunistic
order 1 ', "ttl_ms": 1000, "devices": {"cpu:0": {"share": 0}}'
is_at_floor() {
    tells '"expired":true' && tells '"share_asked":5.0' &&
        tells '"state":"running"'
}
until_true is_at_floor
ok

# ---- kill -9 leaves a directory; the next job takes it away ----
kill -KILL $job
await_job 2>/dev/null
left=$at
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
    until_true or_over grep 'waiting for a higher limit' err
    once_more || break
done
put 2 ', "devices": {"cpu:0": {"limit_bytes": 1073741824},
    "cpu:1": {"limit_bytes": 1073741824}}'
await_job
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
    until_true or_over grep validation out
    put 1 ', "devices": {"cpu:0": {"limit_bytes": 1},
        "cpu:1": {"limit_bytes": 1}}'
    until_true or_over grep 'waiting for a higher limit' err
    once_more || break
done
put 2 ', "devices": {"cpu:0": {"limit_bytes": 1073741824},
    "cpu:1": {"limit_bytes": 1073741824}}'
await_job
if [ $status -eq 0 ] && grep -q 'waiting for a higher limit' err &&
    [ "$(tail -1 out)" = "$alone" ]; then ok; else
    bad "limit below the need of an evaluation: exit status $status"
fi

# ---- and one that is ended while it waits loses nothing ----
for how in signal order; do
    start --steps 100000000 --job-name ended --checkpoint "kept-$how"
    put 1 ', "devices": {"cpu:0": {"limit_bytes": 1}}'
    until_true or_over grep 'waiting for a higher limit' err
    if [ $how = signal ]; then kill -TERM $job; else
        put 2 ', "action": "stop"'
    fi
    await_job
    if [ $status -eq 130 ] && grep -q state-hash out &&
        "$sluice" checkpoint verify "kept-$how" >out 2>err; then ok; else
        bad "ended by $how while it waits: exit status $status"
    fi
done

# ---- Prometheus ----
"$sluice" train net.yaml --quiet --steps 3 --prometheus net.prom >out 2>err
if grep -qs '^sluice_job_minibatches_total{.*} 3$' net.prom &&
    grep -qs 'state="done"} 1$' net.prom; then ok; else bad '--prometheus'; fi

finish
