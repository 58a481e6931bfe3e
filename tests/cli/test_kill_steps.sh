#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `sluice ctl`, the coordinator and a training job are killed at each call that
# makes up the protocol between them: the others go on, a new one takes over,
# and all jobs end with the state that they have alone.
#   tests/cli/test_kill_steps.sh build/sluice build/tests/libsl_kill_step.so
kill_step=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
. "$(dirname "$0")/bed.sh"
coordinator=
guests=
on_end() {
    # shellcheck disable=SC2046,SC2086
    kill -9 $coordinator $guests $(cat ./*.pid 2>/dev/null) 2>/dev/null
}
show() { "$sluice" ctl list; }
logs='*.log'
SLUICE_LOG=error
export SLUICE_LOG
n_kills=0

# until_true COMMAND...: as the bed's, but what fails in it is seen
until_true() {
    n_tries=0
    until "$@"; do
        n_tries=$((n_tries + 1))
        [ $n_tries -lt 1200 ] || fail "never: $*"
        sleep 0.1
    done
}
lists() { "$sluice" ctl list 2>&1 | grep -qe "$1"; }

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
is_whole() { # NAME PID: it ends with the state that it has alone
    wait "$2" || fail "job $1 failed"
    [ "$(hash_in "$1.log")" = "$alone" ] || fail "job $1 differs from alone"
    rm -f "$1.pid"
}

# keep NAME CLASS: the job runs, or ended well and begins anew
keep() {
    kept=$(cat "$1.pid" 2>/dev/null)
    if [ -n "$kept" ]; then
        ! kill -0 "$kept" 2>/dev/null || return 0
        is_whole "$1" "$kept"
    fi
    (train "$1" "$2" 400) &
    echo $! >"$1.pid"
}
step_of() { "$sluice" ctl list | sed -n "s/^$1-.*  step \([0-9]*\).*/\1/p"; }
has_gone_on() { # NAME CLASS
    keep "$1" "$2"
    [ "$(cat "$1.pid")" != "$was" ] || [ "$(step_of "$1")" -gt "$before" ]
}
goes_on() { # NAME CLASS
    keep "$1" "$2"
    was=$(cat "$1.pid")
    before=$(step_of "$1")
    before=${before:-0}
    until_true has_gone_on "$1" "$2" 2>/dev/null
}

begin_coordinator() {
    "$sluice" coordinator --ttl 10 >coord.log 2>&1 &
    coordinator=$!
    until_true grep -q 'coordinator of' coord.log
}
# The same one, which reports once a second.
coordinator_goes_on() {
    kill -0 "$coordinator" || fail "the coordinator ended"
    cp run/coordinator.json report.log
    until_true eval '! cmp -s run/coordinator.json report.log'
}

# killed_at N LOG COMMAND...: status 0 when it was killed at its n-th call, 1
# when it ended well before
killed_at() {
    at=$1
    log=$2
    shift 2
    n_again=0
    while :; do
        SL_KILL_UNDER=$SLUICE_RUN_DIR SL_KILL_AT=$at SL_KILL_LOG=$folder/$log \
            LD_PRELOAD=$kill_step "$@" >killed.log 2>&1
        case $? in
        137) n_kills=$((n_kills + 1)) && return 0 ;;
        0) return 1 ;;
        esac
        # its job may just have ended, or be late with its answer
        n_again=$((n_again + 1))
        [ $n_again -lt 20 ] || fail "neither killed nor well at $at: $*"
        keep host guarantee
        sleep 0.1
    done
}
# sweep NAME PATTERN...: NAME_sweep kills at one call after the other, and
# writes them to NAME.log; again, should jobs that come and go have moved the
# calls so that one of these was passed by
sweep() {
    log=$1.log
    n_sweeps=0
    while :; do
        "$1_sweep"
        missed=
        for pattern; do
            # the first is the name
            [ "$pattern" = "$1" ] || grep -qe "$pattern" "$log" ||
                missed=$pattern
        done
        [ -n "$missed" ] || return 0
        n_sweeps=$((n_sweeps + 1))
        if [ $n_sweeps -ge 8 ]; then
            cat "$log"
            fail "no kill at '$missed'"
        fi
    done
}

(train alone none 400)
alone=$(hash_in alone.log)
(train short none 3)
short=$(hash_in short.log)
[ -n "$alone" ] && [ -n "$short" ] || fail "a job alone has no hash"

# ---- ctl, beside a coordinator and a job ----

answers() { # PERCENT: the next ctl takes over
    keep host guarantee
    "$sluice" ctl share host cpu:0 "$1" >out.log 2>&1
}
ctl_sweep() {
    at=1
    while killed_at $at ctl.log \
        "$sluice" ctl share host cpu:0 $((50 + at % 40)); do
        kill -0 "$coordinator" || fail "the coordinator ended"
        until_true answers $((51 + at % 40))
        at=$((at + 1))
    done
}
begin_coordinator
keep host guarantee
until_true answers 90
sweep ctl 'mkdirat /jobs$' 'flock /jobs/host-' 'flock /coordinator' \
    'openat .*/\.control\.json' 'write .*/\.control\.json' \
    'renameat .*/control\.json'
goes_on host guarantee
coordinator_goes_on
kill -TERM "$coordinator"
wait "$coordinator" || fail "SIGTERM is not a clean end"
coordinator=

# ---- the coordinator, beside a host and a guest ----

once() { # PERCENT of the guest
    "$sluice" coordinator --once --policy static --static-share "$1"
}
obeys() { # PERCENT: the next coordinator takes over
    keep host guarantee
    keep guest opportunistic
    once "$1" >once.log 2>&1 || fail 'no new coordinator'
    lists "guest-.*$1.0%"
}
coordinator_sweep() {
    at=1
    while killed_at $at coordinator.log "$sluice" coordinator --once \
        --policy static --static-share $((31 + at % 30 * 2)); do
        until_true obeys $((32 + at % 30 * 2))
        at=$((at + 1))
    done
}
until_true obeys 30
sweep coordinator 'openat /coordinator\.lock' 'flock /coordinator\.lock' \
    'flock /jobs/guest-' 'openat .*/guest-.*/\.control\.json' \
    'write .*/guest-.*/\.control\.json' 'renameat .*/guest-.*/control\.json' \
    'renameat .*/host-.*/control\.json' 'openat /\.coordinator\.json' \
    'write /\.coordinator\.json' 'renameat /coordinator\.json'
goes_on host guarantee
goes_on guest opportunistic

# ---- a job, beside a coordinator and a guest ----

is_whole host "$(cat host.pid)"
is_admitted() { # the next job takes over, and the coordinator answers it
    keep guest opportunistic
    (train short guarantee 3)
    [ "$(hash_in short.log)" = "$short" ]
}
# dies N PATTERN: a job is killed at its n-th call like that
dies() {
    SL_KILL_OF=$2
    export SL_KILL_OF
    n_lives=0
    until killed_at "$1" job.log "$sluice" train gpt.yaml --quiet \
        --job-name victim --class guarantee --steps 10; do
        # a coordinator without a core may be late with its order
        n_lives=$((n_lives + 1))
        [ $n_lives -lt 20 ] || fail "no kill at '$2'"
    done
    unset SL_KILL_OF
    kill -0 "$coordinator" || fail "the coordinator ended"
    is_admitted || fail 'a new job differs from alone'
}
begin_coordinator
dies 1 'mkdirat ' # the run directory
dies 1 'mkdirat /jobs'
dies 1 'flock */guest-*/lock' # it looks who is there
at=1
while [ $at -le 14 ]; do # its start, call by call
    dies $at '* */*victim-*'
    at=$((at + 1))
done
for call in openat write renameat; do # what it answers to its first order
    dies 2 "$call */victim-*/*status.json*"
done
dies 2 'unlinkat */victim-*/pulse' # its end; it makes the first one anew
for file in job.json control.json status.json lock; do
    dies 1 "unlinkat */victim-*/$file"
done
dies 1 'unlinkat /jobs/victim-*[0-9a-f]'
for step in 'mkdirat .*/\.new-victim' 'openat .*/\.new-victim.*/lock' \
    'flock .*/\.new-victim' 'write .*/\.job\.json' 'renameat .*/job\.json' \
    'renameat /jobs/victim-' 'openat .*/pulse'; do
    grep -qe "$step" job.log || {
        cat job.log
        fail "the start has no '$step'"
    }
done
until_true eval '! lists victim-'
goes_on guest opportunistic
coordinator_goes_on
kill -TERM "$coordinator"
wait "$coordinator" || fail "SIGTERM is not a clean end"
coordinator=
is_whole guest "$(cat guest.pid)"

# ---- guests killed inside their kernels, 50 of them, beside a host ----

n_rounds=0
until [ $n_rounds -eq 10 ]; do
    guests=
    for i in 1 2 3 4 5; do
        (train victim$i opportunistic 1000000) &
        guests="$guests $!"
    done
    five_train() {
        keep host guarantee
        [ "$("$sluice" ctl list | grep -c '^victim.*  step [1-9]')" -eq 5 ]
    }
    until_true five_train
    # shellcheck disable=SC2086
    kill -9 $guests || fail 'a guest ended by itself'
    for pid in $guests; do
        wait "$pid" 2>/dev/null
    done
    n_kills=$((n_kills + 5))
    n_rounds=$((n_rounds + 1))
done
guests=
goes_on host guarantee
is_whole host "$(cat host.pid)"
until_true lists 'no jobs'
echo "kill steps: passed, $n_kills kills"
