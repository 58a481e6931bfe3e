#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A coordinator and jobs as real processes: each party is killed in turn, and
# all jobs end with the state that they have alone.
#   tests/cli/test_sharing.sh build/sluice
. "$(dirname "$0")/bed.sh"
coordinator='' host='' guest='' held=''
on_end() { kill -9 $coordinator $host $guest $held 2>/dev/null; }
SLUICE_LOG=error
export SLUICE_LOG
logs='*.log out err'
show() { "$sluice" ctl list; }

# does COMMAND...: it succeeds, if not at once: a job without a core may be
# late with its answer
does() {
    n=0
    until "$@" >out 2>err; do
        n=$((n + 1))
        [ $n -lt 20 ] || fail "$*: exit status not 0"
    done
}

cat >gpt.yaml <<'YAML'
data: {format: synthetic_tokens, context: 32, classes: 64, n_samples: 64}
model: {type: gpt, layers: 2, width: 64, heads: 2, vocab: 64}
train: {batch: 8, micro_batches: 2}
optimizer: {type: adamw, lr: 0.01}
devices: {use: "cpu:1", threads: 1}
YAML
train() { # NAME CLASS STEPS
    exec "$sluice" train gpt.yaml --quiet --job-name "$1" --class "$2" \
        --steps "$3" >"$1.log" 2>&1
}
begin_coordinator() {
    rm -f coordinator.log
    "$sluice" coordinator --ttl 10 "$@" >coordinator.log 2>&1 &
    coordinator=$!
    until_shows 'coordinator of' cat coordinator.log # it has the lease
}
# hold NAME CLASS: begin a job, its number in $held, and suspend it; once more
# when it was over before
hold() {
    n=0
    held=
    until "$sluice" ctl list 2>&1 |
        grep -qe "$1-.*suspended.*suspended by hand"; do
        n=$((n + 1))
        [ $n -lt 600 ] || fail "job $1 is never suspended"
        if [ -z "$held" ] || ! kill -0 "$held" 2>/dev/null; then
            [ -z "$held" ] || wait "$held" || fail "job $1 failed"
            (train "$1" "$2" 300) &
            held=$!
        fi
        if "$sluice" ctl list 2>&1 | grep -qe "$1-.*running"; then
            "$sluice" ctl suspend "$1" >out 2>err
        fi
        sleep 0.1
    done
}
resume() { # NAME PID: it may end before its answer is seen
    n=0
    until "$sluice" ctl resume "$1" >out 2>err || ! kill -0 "$2"; do
        n=$((n + 1))
        [ $n -lt 20 ] || fail "job $1 is not resumed"
    done
}

(train alone none 300)
alone=$(hash_in alone.log)
[ -n "$alone" ] || fail "a job alone has no hash"

passes 'no jobs' ctl list
refuses 1 "there is no job 'x'" ctl suspend x
refuses 2 'share JOB DEVICE' ctl share x
refuses 2 "there is no 'frob'" ctl frob
refuses 2 'say list' ctl
refuses 2 'guarantee-first, fair and static' coordinator --policy best
refuses 2 'out of range' coordinator --floor 0
passes 'no coordinator' top
passes '"jobs": \[\]' top --json

# A job that is held does not end, whatever the machine's speed.
begin_coordinator
refuses 1 'already' coordinator
passes 'dry run' coordinator --dry-run --once
hold host guarantee
host=$held
hold guest opportunistic
guest=$held

# By hand: answered, shown, and left by the coordinator that comes next.
does "$sluice" ctl share guest cpu:0 30
does "$sluice" ctl limit host cpu:0 100MiB
refuses 2 "has no device 'cpu:7'; it has cpu:0" ctl share host cpu:7 9
refuses 2 'out of range' ctl share host cpu:0 101
refuses 2 'has at most' ctl limit host all 1000TB
refuses 2 'at least 1 byte' ctl limit host all 0
until_shows 'guest-.*30.0%' "$sluice" top
until_shows 'host-.*100.00 MiB' "$sluice" top
kill -9 "$coordinator"
wait "$coordinator" 2>/dev/null
until_shows 'no coordinator' "$sluice" top
begin_coordinator
sleep 1 # for orders of its own
until_shows 'guest-.*30.0%' "$sluice" top
until_shows 'host-.*suspended.*100.00 MiB' "$sluice" ctl list
does "$sluice" ctl share guest all auto
does "$sluice" ctl limit host all auto
does "$sluice" ctl promote guest
until_shows 'guest-.*guarantee' "$sluice" ctl list
does "$sluice" ctl demote guest
until_shows 'guest-.*opportunistic' "$sluice" ctl list

# The coordinator dies while both run; the guest is killed and comes again.
resume guest "$guest"
resume host "$host"
kill -9 "$coordinator"
wait "$coordinator" 2>/dev/null
begin_coordinator
wait "$host" || fail "the guarantee job failed"
[ "$(hash_in host.log)" = "$alone" ] || fail "the host differs from alone"
kill -9 "$guest" 2>/dev/null
wait "$guest" 2>/dev/null
until_shows 'no jobs' "$sluice" ctl list
(train guest opportunistic 300) &
guest=$!
wait "$guest" || fail "the guest failed"
[ "$(hash_in guest.log)" = "$alone" ] || fail "the guest differs from alone"

# One that does not fit says why, and starts when there is room.
kill -TERM "$coordinator"
wait "$coordinator" || fail "SIGTERM is not a clean end"
begin_coordinator --device-memory 1MiB
# (a coordinator without a core may be late with its first order: once more)
n=0
guest=
until "$sluice" ctl list 2>&1 |
    grep -qe 'late-.*waiting.*needs .* on cpu:0, which has'; do
    if [ -z "$guest" ] || ! kill -0 "$guest" 2>/dev/null; then
        n=$((n + 1))
        [ $n -lt 20 ] || fail 'a job that does not fit never waits'
        [ -z "$guest" ] || wait "$guest" || fail "job late failed"
        (train late opportunistic 3) &
        guest=$!
    fi
    sleep 0.1
done
kill -TERM "$coordinator"
wait "$coordinator"
begin_coordinator
wait "$guest" || fail "the job that waited failed"
grep -q 'state-hash' late.log || fail "the job that waited did not train"

# A run directory that goes is told, not waited for.
until rm -rf run 2>/dev/null; do :; done # a file may come meanwhile
n=0
while kill -0 "$coordinator" 2>/dev/null && [ $n -lt 600 ]; do
    n=$((n + 1))
    sleep 0.1
done
wait "$coordinator" && fail "the directory went and the coordinator did not"
grep -q 'was removed' coordinator.log || fail "it does not say why it ended"
coordinator=
finish
