#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What happens to all processes of a job when one of them dies, hangs, fails,
# is held up, or is asked to end.
#   tests/cli/test_faults.sh build/sluice
. "$(dirname "$0")/bed.sh"
logs='*.log'
on_end() { kill -KILL $job $(writers_of m.jsonl) 2>/dev/null; }

says() { if grep -qe "$2" "$1"; then ok; else bad "$3: no '$2'"; fi; }
once() { # TEXT WHAT: in one message of the ranks
    n=$(grep -ce "$1" both.log)
    if [ "$n" -eq 1 ]; then ok; else bad "$2: $n times '$1'"; fi
}
only() { # TEXT WHAT: that, and no other error
    once "^sluice: error: $1" "$2"
    once '^sluice: error' "$2"
}
# waits LIMIT STATUS|fails WHAT: the job ends within LIMIT seconds
waits() {
    n=0
    until is_over || [ $n -ge $(($1 * 10)) ]; do
        n=$((n + 1))
        sleep 0.1
    done
    if [ $n -ge $(($1 * 10)) ]; then
        bad "$3: not ended after $1 s"
        kill -KILL "$job"
    fi
    await_job
    if [ "$2" = fails ]; then
        if [ $status -ne 0 ]; then ok; else bad "$3: exit status 0"; fi
    elif [ $status -eq "$2" ]; then ok; else
        bad "$3: exit status $status, not $2"
    fi
}

cat >gpt.yaml <<'YAML'
data: {format: synthetic_tokens, context: 32, classes: 64, n_samples: 64}
model: {type: gpt, layers: 2, width: 64, heads: 2, vocab: 64}
train: {batch: 8, micro_batches: 4, steps: 200}
optimizer: {type: adamw, lr: 0.01}
devices: {threads: 1}
YAML
"$sluice" train gpt.yaml --quiet >alone.log 2>&1
alone=$(hash_in alone.log)
[ -n "$alone" ] || fail 'one process has no hash'

# ---- signals to one process ----
begin_one() {
    rm -rf m.jsonl checkpoints
    "$sluice" train gpt.yaml --quiet --metrics m.jsonl --steps 1000000 \
        --checkpoint checkpoints >one.log 2>&1 &
    job=$!
    until_true steps_done m.jsonl 5
}
for number in TERM INT USR1; do
    begin_one
    kill -$number $job
    waits 30 130 "$number"
    says one.log "step $(wc -l <m.jsonl) " "$number"
    if [ -s checkpoints/latest ]; then ok; else bad "$number: no checkpoint"; fi
done
"$sluice" train gpt.yaml --quiet --checkpoint checkpoints --resume auto \
    --steps "$(($(step_in one.log) + 10))" >resumed.log 2>&1
"$sluice" train gpt.yaml --quiet --steps "$(($(step_in one.log) + 10))" \
    >through.log 2>&1
if [ "$(hash_in resumed.log)" = "$(hash_in through.log)" ]; then ok; else
    bad 'a run that goes on after a signal: another state'
fi
# ---- a signal during an evaluation, which would take many hours ----
# The run that goes on evaluates anew, here a part only, and says what a run
# says that was not ended.
losses_in() { grep 'validation loss' "$1"; }
held_out='--set data.n_valid=100000000 --set train.eval_every=3'
part='--steps 9 --set train.eval_batches=2'
"$sluice" train gpt.yaml --quiet $held_out $part --checkpoint best \
    --checkpoint-best >evaluated.log 2>&1
kept_in() { # DIRECTORY: the checkpoints, with what an evaluation has said
    "$sluice" checkpoint list "$1" --json |
        grep -e '"step"' -e validation_loss -e '"best"'
}
kept_in best >kept.log
says kept.log '"best": true' 'the best is kept'
if [ "$(losses_in evaluated.log | wc -l)" -eq 3 ]; then ok; else
    bad 'three evaluations'
fi
# goes_on WHAT: what is left of both.log's or one.log's run is right
goes_on() {
    if [ "$(hash_in resumed.log)" = "$(hash_in evaluated.log)" ] &&
        [ "$(losses_in resumed.log)" = "$(losses_in evaluated.log)" ]; then
        ok
    else
        bad "$1: on after a signal in an evaluation: another state or loss"
    fi
}
for best in '' --checkpoint-best; do
    rm -rf m.jsonl checkpoints
    "$sluice" train gpt.yaml --quiet --metrics m.jsonl --checkpoint checkpoints \
        $held_out $best >one.log 2>&1 &
    job=$!
    until_true steps_done m.jsonl 3
    kill -TERM $job
    waits 60 130 'a signal in an evaluation'
    says one.log '^sluice: interrupted after step 3; checkpoint written' \
        'a signal in an evaluation'
    "$sluice" train gpt.yaml --quiet --checkpoint checkpoints --resume auto \
        $held_out $part $best >resumed.log 2>&1
    goes_on "one process $best"
    if [ -z "$best" ] || kept_in checkpoints | cmp -s - kept.log; then ok; else
        bad 'on after a signal in an evaluation: other checkpoints'
    fi
done
"$sluice" eval gpt.yaml $held_out >one.log 2>&1 &
job=$!
until_true grep -q 'no --weights' one.log
sleep 0.2
kill -INT $job
waits 60 130 'eval'
says one.log '^sluice: interrupted; no result' 'eval'

# the second one does not wait for the step, which takes many seconds
rm -rf m.jsonl checkpoints
"$sluice" train gpt.yaml --quiet --metrics m.jsonl --batch 256 \
    --micro-batches 1 --set data.n_samples=256 --set data.context=512 \
    --set model.width=256 >one.log 2>&1 &
job=$!
has_taken() { # the first one, so that the second is not taken for it
    grep -q '^ShdPnd:[[:space:]]*0*$' "/proc/$job/status"
}
until_true test -e m.jsonl
kill -TERM $job
until_true has_taken
sleep 0.5 # one that comes at once is no second one
kill -TERM $job
waits 30 143 'a second signal'

# ---- two ranks ----
# start LAUNCHER ARGUMENT...: begin the job of two ranks; `mpi` by mpirun,
# which ends all ranks when one ends, `tcp` by environment and, rank 1, by
# options, where the ranks have only each other. Logs are in both.log.
port=$((20000 + $$ % 12000))
as_root=
[ "$(id -u)" -ne 0 ] || as_root=--allow-run-as-root
start() {
    launcher=$1
    shift
    rm -rf m.jsonl ./*.pid
    if [ "$launcher" = mpi ]; then
        mpirun $as_root --host localhost:2 -np 2 --bind-to none \
            "$sluice" train gpt.yaml $quiet --metrics "$folder/m.jsonl" "$@" \
            >both.log 2>&1 &
        job=$!
        return
    fi
    port=$((port + 1))
    (
        SLUICE_RANK=0 SLUICE_WORLD=2 SLUICE_MASTER=127.0.0.1:$port \
            "$sluice" train gpt.yaml $quiet --metrics "$folder/m.jsonl" "$@" &
        echo $! >0.pid
        "$sluice" train gpt.yaml $quiet --metrics "$folder/m.jsonl" "$@" --rank 1 \
            --world=2 --master 127.0.0.1:$port &
        echo $! >1.pid
        wait "$(cat 0.pid)"
        status=$?
        wait "$(cat 1.pid)"
        other=$?
        [ $status -ne 0 ] || status=$other
        exit $status
    ) >both.log 2>&1 &
    job=$!
}
# pid_of RANK: of the job just started
pid_of() {
    if [ "$launcher" = tcp ]; then
        cat "$1.pid"
        return
    fi
    for pid in $(writers_of m.jsonl); do
        if tr '\0' '\n' <"/proc/$pid/environ" 2>/dev/null |
            grep -qx "OMPI_COMM_WORLD_RANK=$1"; then
            echo "$pid"
        fi
    done
}
# begin_held LAUNCHER ARGUMENT...: a job of some steps, with a name
begin_held() {
    start "$@" --steps 400 --dead-after 4 --job-name held
    until_true or_over steps_done m.jsonl 5
}
quiet=--quiet
launchers='mpi tcp'
command -v mpirun >/dev/null || launchers=tcp

for by in $launchers; do
    quiet=
    start $by
    quiet=--quiet
    waits 120 0 "$by: two ranks"
    if [ "$(hash_in both.log)" = "$alone" ]; then ok; else
        bad "$by: two ranks: another state"
    fi
    says both.log '  0      1  .*   1  .* / cpu:0' "$by: mapping"

    # a step is one wait for all ranks, whatever they tell each other
    SLUICE_LOG=debug
    export SLUICE_LOG
    n_waits='0'
    for steps in 10 30; do
        start $by --steps $steps
        waits 120 0 "$by: $steps steps"
        n_waits="$n_waits $(sed -n \
            's/.*rank 0: \([0-9]*\) times it waited for all.*/\1/p' both.log)"
    done
    unset SLUICE_LOG
    set -- $n_waits
    if [ $# -eq 3 ] && [ $(($3 - $2)) -eq 20 ]; then ok; else
        bad "$by: in 10 and in 30 steps it waited for all: $n_waits"
    fi

    # a rank that dies
    start $by --steps 1000000
    until_true steps_done m.jsonl 5
    kill -KILL "$(pid_of 1)"
    waits 20 fails "$by: a killed rank"
    if [ $by = tcp ]; then
        only 'rank 1 on host .* is gone' "$by: a killed rank"
    else # which sees it first, and ends the others
        once 'mpirun noticed that process rank 1 ' "$by: a killed rank"
        if grep -q '^sluice: error' both.log; then
            only 'rank 1 on host .* is gone' "$by: a killed rank"
        fi
    fi

    # one that hangs
    start $by --steps 1000000 --dead-after 5
    until_true steps_done m.jsonl 5
    stopped=$(pid_of 1)
    kill -STOP "$stopped"
    if [ $by = tcp ]; then
        (sleep 25; kill -KILL "$stopped") & # nobody else ends it
    fi
    waits 60 fails "$by: a rank that hangs"
    only 'rank 1 on host .* has not answered' "$by: a rank that hangs"

    # signals to one rank: both end after the same step, with a checkpoint
    for number in TERM INT USR1; do
        rm -rf checkpoints
        start $by --steps 1000000 --checkpoint checkpoints
        until_true steps_done m.jsonl 5
        kill -$number "$(pid_of 1)"
        waits 60 130 "$by: $number to rank 1"
        says both.log "step $(wc -l <m.jsonl)  state-hash" "$by: $number"
        says both.log "^sluice: interrupted after step $(wc -l <m.jsonl); checkpoint written: checkpoints/step-" "$by: $number"
        if [ -s checkpoints/latest ]; then ok; else
            bad "$by: $number: no checkpoint"
        fi
    done
    end=$(($(step_in both.log) + 10))
    "$sluice" train gpt.yaml --quiet --steps $end >through.log 2>&1
    start $by --steps $end --checkpoint checkpoints --resume auto
    waits 120 0 "$by: on after a signal"
    if [ "$(hash_in both.log)" = "$(hash_in through.log)" ]; then ok; else
        bad "$by: on after a signal: another state"
    fi

    # in an evaluation: all leave it before the same batch
    rm -rf checkpoints
    start $by --checkpoint checkpoints --checkpoint-best $held_out
    until_true steps_done m.jsonl 3
    kill -USR1 "$(pid_of 1)"
    waits 60 130 "$by: a signal in an evaluation"
    says both.log '^sluice: interrupted after step 3; checkpoint written' \
        "$by: a signal in an evaluation"
    start $by --checkpoint checkpoints --checkpoint-best --resume auto \
        $held_out $part
    waits 120 0 "$by: on after a signal in an evaluation"
    cp both.log resumed.log
    goes_on "$by"
    if kept_in checkpoints | cmp -s - kept.log; then ok; else
        bad "$by: on after a signal in an evaluation: other checkpoints"
    fi

    # a signal to one rank while the other one may not go on: it may, to end
    for held in 'suspend held.1' 'share held.1 cpu:0 0'; do
        rm -rf checkpoints
        start $by --steps 1000000 --checkpoint checkpoints --job-name held
        until_true steps_done m.jsonl 5
        "$sluice" ctl $held >/dev/null || bad "$by: $held"
        sleep 1
        kill -TERM "$(pid_of 0)"
        waits 30 130 "$by: SIGTERM to rank 0 during $held"
        says both.log 'checkpoint written: checkpoints/step-' "$by: $held"
    done
    end=$(step_in both.log)
    "$sluice" train gpt.yaml --quiet --steps "$end" >through.log 2>&1
    if [ "$(hash_in both.log)" = "$(hash_in through.log)" ]; then ok; else
        bad "$by: a signal while a rank is suspended: another state"
    fi
    # ... or waits for memory: the step that has not been is not taken
    rm -rf checkpoints
    start $by --steps 1000000 --checkpoint checkpoints --job-name held \
        --rebalance off
    until_true steps_done m.jsonl 5
    "$sluice" ctl limit held.1 all 500KiB >/dev/null
    until_true grep -q 'waiting for a higher limit' both.log
    kill -USR1 "$(pid_of 0)"
    waits 30 130 "$by: SIGUSR1 to rank 0 while rank 1 waits for memory"
    says both.log 'checkpoint written: checkpoints/step-' "$by: no memory"
    "$sluice" train gpt.yaml --quiet --steps "$(step_in both.log)" \
        >through.log 2>&1
    if [ "$(hash_in both.log)" = "$(hash_in through.log)" ]; then ok; else
        bad "$by: a signal while a rank waits for memory: another state"
    fi

    # a share of 0 on one rank, for longer than a rank may be silent
    begin_held $by
    is_suspended() { "$sluice" ctl list | grep -q 'held.1-.*suspended'; }
    while :; do
        "$sluice" ctl suspend held.1 >/dev/null 2>&1
        until_true or_over is_suspended
        once_more || break
        begin_held $by
    done
    sleep 1
    n_before=$(wc -l <m.jsonl) # and one that may be about to be written
    sleep 6
    if [ "$(wc -l <m.jsonl)" -le $((n_before + 1)) ]; then ok; else
        bad "$by: a suspended rank does steps"
    fi
    "$sluice" ctl resume held.1 >/dev/null || bad "$by: resume"
    waits 120 0 "$by: a share of 0"
    "$sluice" train gpt.yaml --quiet --steps 400 >long.log 2>&1
    if [ "$(hash_in both.log)" = "$(hash_in long.log)" ]; then ok; else
        bad "$by: a share of 0: another state"
    fi
done

for wrong in '--rank 2 --world 2 --master 127.0.0.1:9' '--rank 1 --world 2' \
    '--world x'; do
    # shellcheck disable=SC2086
    "$sluice" train gpt.yaml $wrong >both.log 2>&1
    status=$?
    if [ $status -eq 2 ]; then ok; else bad "$wrong: exit status $status"; fi
    once '^sluice: error: .*SLUICE_' "$wrong"
done

# ---- what one rank alone meets ----
# each START ...: rank 0 with one command line, rank 1 with another
uneven() { # "ARGUMENT of rank 0..." "ARGUMENT of rank 1..."
    launcher=mpi
    rm -f m.jsonl
    mpirun $as_root --host localhost:2 --bind-to none \
        -np 1 "$sluice" train $1 --quiet --metrics "$folder/m.jsonl" : \
        -np 1 "$sluice" train $2 --quiet --metrics "$folder/m.jsonl" \
        >both.log 2>&1 &
    job=$!
}
if command -v mpirun >/dev/null; then
    uneven gpt.yaml 'gpt.yaml --batch 16'
    waits 60 2 'another config'
    once "rank 1 on host .* has another config than rank 0: 'train.batch=16'" \
        'another config'

    uneven gpt.yaml 'gpt.yaml --batch x'
    waits 60 2 'a wrong config on one rank'
    once 'sluice: error' 'a wrong config on one rank'
    once 'error: rank 1 (.*batch' 'a wrong config on one rank'

    uneven gpt.yaml 'gpt.yaml --batches 7'
    waits 60 2 'a wrong option on one rank'
    once "unrecognized option '--batches'" 'a wrong option on one rank'

    # what is wrong on all is told once
    for wrong in '--batch x' '--set optimizer.lr=fast' '--batches 7' \
        '--set no.such=1'; do
        start mpi $wrong
        waits 60 2 "$wrong on all ranks"
        once '^sluice' "$wrong on all ranks"
    done
    sed 's/^train:/trian:/' gpt.yaml >wrong.yaml
    uneven wrong.yaml wrong.yaml
    waits 60 2 'a wrong config on all ranks'
    once trian 'a wrong config on all ranks'
    uneven none.yaml none.yaml
    waits 60 2 'no config'
    once none.yaml 'no config'

    uneven gpt.yaml 'gpt.yaml --device-memory 100KiB'
    waits 60 fails 'no memory on one rank'
    only 'rank 1 (.*limit' 'no memory on one rank'

    # other data under the same name
    mkdir here there
    for at in here there; do
        sed 's/^data:.*/data: {format: text, path: text.txt, context: 32}/
            s/vocab: 64/vocab: 256/' gpt.yaml >$at/text.yaml
        i=0
        while [ $i -lt 400 ]; do
            echo "$i: the quick brown fox jumps over the lazy dog"
            i=$((i + 1))
        done >$at/text.txt
    done
    sed -i 's/quick/quiet/' there/text.txt
    uneven here/text.yaml there/text.yaml
    waits 60 2 'other data'
    once 'rank 1 on host .* has other data than rank 0' 'other data'

    # data that can no longer be read on one rank
    cp here/text.txt there/text.txt
    uneven 'here/text.yaml --steps 1000000' 'there/text.yaml --steps 1000000'
    until_true steps_done m.jsonl 5
    : >there/text.txt
    waits 60 fails 'a bad batch'
    only 'rank 1 (.*there/text.txt' 'a bad batch'

    # a memory limit below the need on one rank: all wait, then go on
    begin_held mpi --rebalance off
    while :; do
        "$sluice" ctl limit held.1 all 500KiB >/dev/null 2>&1
        until_true or_over grep 'waiting for a higher limit' both.log
        once_more || break
        begin_held mpi --rebalance off
    done
    sleep 6
    "$sluice" ctl limit held.1 all 1GiB >/dev/null
    waits 120 0 'a memory limit'
    if [ "$(hash_in both.log)" = "$(hash_in long.log)" ]; then ok; else
        bad 'a memory limit: another state'
    fi

    # a run that is not finite: all ranks decide alike
    start mpi --set optimizer.type=sgd \
        --set optimizer.lr=1e6
    waits 60 1 'not finite'
    once 'not finite' 'not finite'
    start mpi --set optimizer.type=sgd \
        --set optimizer.lr=1e6 --not-finite skip --steps 10
    waits 60 0 'not finite, skipped'

    # too many ranks for the stages
    start mpi --stages 1
    waits 60 2 'a rank without work'
    once 'leave rank 1 of 2 without work' 'a rank without work'

    # restarted by the launcher, from the last checkpoint
    rm -rf checkpoints m.jsonl
    "$sluice" launch --ranks 2 --restarts 3 --back-off 0.1 -- train gpt.yaml \
        --quiet --metrics "$folder/m.jsonl" --steps 1000 \
        --checkpoint checkpoints --checkpoint-every 20 >both.log 2>&1 &
    job=$!
    launcher=mpi
    until_true test -s checkpoints/latest
    kill -KILL "$(pid_of 1)"
    waits 120 0 'a restart'
    says both.log 'exited on signal 9' 'a restart'
    says both.log '2 processes on localhost:2, from step-' 'a restart'
    if grep -q 'launch report' both.log; then bad 'a report is shown'; else
        ok
    fi
    "$sluice" train gpt.yaml --quiet --steps 1000 >through.log 2>&1
    if [ "$(hash_in both.log)" = "$(hash_in through.log)" ]; then ok; else
        bad 'a restart: another state'
    fi
fi

finish
