#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What `sluice launch` decides, with a stand-in for mpirun that fails as told.
#   tests/cli/test_launch.sh build/sluice
. "$(dirname "$0")/bed.sh"
logs='out err runs'

# The stand-in: a run takes the first line of `script` and does what it says;
# a probe (of `true`) fails for the hosts named in `dead`.
mkdir bin
cat >bin/mpirun <<'SH'
#!/bin/sh
cd "$FAKE" || exit 1
for word; do last=$word; done
host=
previous=
for word; do
    [ "$previous" != --host ] || host=${word%:1}
    previous=$word
done
if [ "$last" = true ]; then
    echo "$host" >>probes
    if grep -qx "$host slow" dead 2>/dev/null; then exec sleep 600; fi
    ! grep -qx "$host" dead 2>/dev/null
    exit
fi
echo "$@" >>runs
date +%s.%N >>times
line=$(head -n 1 script)
sed -i 1d script
set -- $line
case $1 in
exit) exit "$2" ;;
killed) # HOST
    echo "mpirun noticed that process rank 1 with PID 0 on node $2 exited" \
        "on signal 9 (Killed)." >&2
    exit 137
    ;;
lost) # HOST STATUS
    echo "sluice: error: rank 1 on host $2 is gone: it left" >&2
    exit "$3"
    ;;
no-gpu) # HOST
    echo "sluice: error: rank 1 on host $2 has a device failure: no GPU is" \
        "found, and 3 of 4 ranks have one" >&2
    exit 1
    ;;
stuck) # HOST: reports a loss and does not end
    echo "sluice: error: rank 1 on host $2 has not answered for 30 s" >&2
    trap '' TERM
    while :; do sleep 1; done
    ;;
progress) # NAME STATUS: a checkpoint, then the end
    mkdir -p checkpoints
    echo "$2" >checkpoints/latest
    exit "$3"
    ;;
reported) # NAME STATUS: of a checkpoint in a folder that is not here
    echo "before it" >&2
    echo "sluice launch report: checkpoint $2" >&2
    exit "$3"
    ;;
done) # all is done and told; mpirun's clean-up meets the signal, and dies
    echo "sluice launch report: end $2" >&2
    echo ready >>signals
    exec sleep 60
    ;;
early) # not ready for a signal yet
    echo ready >>signals
    exec sleep 60
    ;;
wait) # until a signal says how to end
    echo 'sluice launch report: ready' >&2
    trap 'echo usr1 >>signals; exit 130' USR1
    trap 'echo term >>signals; exit 143' TERM
    echo ready >>signals
    while :; do sleep 0.1; done
    ;;
deaf) # takes signals, and goes on
    echo 'sluice launch report: ready' >&2
    trap 'echo usr1 >>signals' USR1
    trap 'echo term >>signals; exit 143' TERM
    echo ready >>signals
    while :; do sleep 0.1; done
    ;;
esac
SH
chmod +x bin/mpirun
FAKE=$folder
PATH=$folder/bin:$PATH
export FAKE PATH

cat >gpt.yaml <<'YAML'
data: {format: synthetic_tokens, context: 16, classes: 32, n_samples: 32}
model: {type: gpt, layers: 1, width: 32, heads: 2, vocab: 32}
train: {batch: 4, micro_batches: 2, steps: 3}
devices: {threads: 1}
YAML

n_signals_is() { [ "$(wc -l 2>/dev/null <signals)" = "$1" ]; }

# launches STATUS SCRIPT ARGUMENT...: with the stand-in doing SCRIPT's lines
launches() {
    want=$1
    printf '%s\n' "$2" | tr ';' '\n' | sed 's/^ *//' >script
    shift 2
    rm -rf runs times probes signals checkpoints
    : >runs
    : >probes
    timeout 100 "$sluice" launch --back-off 0.01 "$@" >out 2>err
    status=$?
    if [ $status -eq "$want" ]; then ok; else
        bad "launch $*: exit status $status, not $want"
    fi
}
says() { if grep -qe "$1" err; then ok; else bad "does not say '$1'"; fi; }
silent_on() { if grep -qe "$1" err; then bad "says '$1'"; else ok; fi; }
n_runs() {
    if [ "$(wc -l <runs)" -eq "$1" ]; then ok; else
        bad "$(wc -l <runs) runs, not $1"
    fi
}
# run_has N TEXT, run_lacks N TEXT: in the command line of run N
run_has() {
    if sed -n "$1p" runs | grep -qe "$2"; then ok; else
        bad "run $1 has no '$2'"
    fi
}
run_lacks() {
    if sed -n "$1p" runs | grep -qe "$2"; then bad "run $1 has '$2'"; else
        ok
    fi
}
# refused STATUS TEXT ARGUMENT...: and nothing was run
refused() {
    want=$1
    text=$2
    shift 2
    rm -f runs
    refuses "$want" "$text" launch "$@"
    [ ! -e runs ] || bad "launch $*: it runs"
}
keep='--set checkpoint.dir=checkpoints'

# ---- the command line ----
SLUICE_FLAVOUR='a b' "$sluice" launch --dry-run --hosts a,b:2 -- \
    train gpt.yaml --set "data.seed=1" --job-name it >out 2>err
for text in '^mpirun -np 3 --host a:1,b:2 ' ' --bind-to none ' \
    " -x 'SLUICE_FLAVOUR=a b' " \
    "$sluice train gpt.yaml --set data.seed=1 --job-name it\$"; do
    if grep -qe "$text" out; then ok; else bad "dry run: no '$text'"; fi
done
if [ ! -e runs ]; then ok; else bad 'a dry run runs'; fi
printf '# two hosts\na slots=2\n\nb:3 # big\na\n' >hosts
"$sluice" launch --dry-run --hostfile hosts --ranks 5 train gpt.yaml \
    >out 2>err
if grep -q 'np 5 --host a:3,b:2 ' out; then ok; else bad 'a host file'; fi
"$sluice" launch --dry-run train gpt.yaml >out 2>err
if grep -q "^$sluice train gpt.yaml\$" out; then ok; else
    bad 'one process needs no mpirun'
fi
"$sluice" launch --dry-run --ranks 2 train gpt.yaml >out 2>err
if grep -q '^mpirun -np 2 --host localhost:2 ' out; then ok; else
    bad 'two processes on this machine'
fi
"$sluice" launch --dry-run --hosts elsewhere.example train gpt.yaml >out 2>err
if grep -q '^mpirun -np 1 --host elsewhere.example:1 ' out; then ok; else
    bad 'one process elsewhere'
fi
"$sluice" launch --dry-run --ranks 2 --mpirun /opt/x/mpirun train gpt.yaml \
    >out 2>err
if grep -q '^/opt/x/mpirun -np 2 ' out; then ok; else bad '--mpirun'; fi

refused 2 'command to run is missing'
refused 2 'command to run is missing' --ranks 2
refused 2 "'eval' is not launched" --ranks 2 -- eval gpt.yaml
for wrong in '--ranks 0' '--restarts x' '--grace -4'; do
    refused 2 'error: --' $wrong -- train gpt.yaml
    if [ "$(wc -l <err)" -eq 1 ]; then ok; else bad "$wrong: one line"; fi
done
refused 2 'hosts have 1 slot' --hosts a --ranks 2 -- train gpt.yaml
refused 2 'no host name' --hosts 'a,,b' -- train gpt.yaml
refused 2 'no host name' --hosts=-np -- train gpt.yaml
refused 2 'no host name' --hosts 'a b' -- train gpt.yaml
refused 2 'no host name' --hosts '' -- train gpt.yaml
refused 2 'slots of host a' --hosts a:0 -- train gpt.yaml
refused 2 'slots of host a' --hosts a:b:c -- train gpt.yaml
refused 2 'slots of host a' --hosts a:5000 -- train gpt.yaml
refused 2 'not both' --hosts a --hostfile hosts -- train gpt.yaml
refused 2 'min-ranks 3' --hosts a,b --min-ranks 3 -- train gpt.yaml
refused 2 'ranks' --ranks 0 -- train gpt.yaml
refused 2 'unrecognized' --rank-s 2 -- train gpt.yaml
refused 2 'unrecognized' --ranks 2 -- train gpt.yaml --nonsense
refused 2 'nothing.yaml' --ranks 2 -- train nothing.yaml
refused 2 'stepz' --ranks 2 -- train gpt.yaml --set stepz.a=x \
    --set 'train.schedule=stepz'
printf 'a\nb slots=x\n' >hosts
refused 2 'hosts:2' --hostfile hosts -- train gpt.yaml
printf 'a\nb slots=1 more\n' >hosts
refused 2 'hosts:2' --hostfile hosts -- train gpt.yaml
printf '# nothing\n' >hosts
refused 2 'no host in it' --hostfile hosts -- train gpt.yaml
refused 1 'nowhere' --hostfile nowhere -- train gpt.yaml

# ---- how a run ends ----
launches 0 'exit 0' --ranks 2 -- train gpt.yaml
n_runs 1
silent_on launch
launches 3 'exit 3' --ranks 2 -- train gpt.yaml
n_runs 1
says 'failed after .* with exit status 3'
# what another try would meet again, and an end by order
launches 2 'exit 2' --ranks 2 --restarts 5 -- train gpt.yaml
n_runs 1
launches 130 'exit 130' --ranks 2 --restarts 5 -- train gpt.yaml
n_runs 1
launches 127 'exit 0' --ranks 2 --mpirun no-such-mpirun -- train gpt.yaml
says 'cannot run no-such-mpirun'

# ---- restarts ----
launches 0 'exit 1; exit 1; exit 0' --ranks 2 --restarts 2 -- train gpt.yaml
n_runs 3
says '(2 of 2 without a new checkpoint): 2 processes on localhost:2'
run_lacks 3 resume
launches 1 'exit 1; exit 1; exit 1; exit 0' --ranks 2 --restarts 2 -- \
    train gpt.yaml
n_runs 3
says '2 restarts brought no new checkpoint: giving up'
# progress is not counted, and only it is gone on from
launches 0 'exit 1; progress s1 1; progress s2 1; progress s3 1; exit 1; exit 0' \
    --ranks 2 --restarts 2 -- train gpt.yaml $keep
n_runs 6
run_lacks 2 resume
run_has 3 'train gpt.yaml .* --resume auto$'
run_has 6 '--resume auto$'
says 'from s3'
# likewise when the folder is not to be seen from here, and ranks tell of it
launches 0 'exit 1; reported s1 1; reported s2 1; reported s3 1; exit 1; exit 0' \
    --ranks 2 --restarts 2 -- train gpt.yaml --set checkpoint.dir=elsewhere
n_runs 6
run_has 1 ' -x SLUICE_LAUNCHED=1 '
run_lacks 2 resume
run_has 3 'train gpt.yaml .* --resume auto$'
run_has 6 '--resume auto$'
says 'from s3'
says '^before it$'
silent_on 'launch report'
launches 1 'reported s1 1; exit 1; exit 1; exit 0' --ranks 2 --restarts 1 -- \
    train gpt.yaml --set checkpoint.dir=elsewhere
n_runs 3
# checkpoints of an earlier job, which this one was not told to go on from
mkdir old
echo s9 >old/latest
launches 0 'exit 1; exit 0' --ranks 2 --restarts 1 -- train gpt.yaml \
    --set checkpoint.dir=old
run_lacks 2 resume
says 'from where it began'
# ever longer pauses
printf 'exit 1\nexit 1\nexit 1\nexit 0\n' >script
rm -f times
"$sluice" launch --back-off 0.2 --ranks 2 --restarts 3 -- train gpt.yaml \
    >out 2>err
if awk 'NR > 1 && $1 - last < 0.2 * 2 ^ (NR - 2) {exit 1} {last = $1}' times
then ok; else bad "pauses: $(tr '\n' ' ' <./times)"; fi
says 'restart in 0.8 s'

# ---- hosts ----
# one loss can be chance, at the second one the host goes
launches 0 'killed b; killed b; exit 0' --hosts a,b:2,c --restarts 3 -- \
    train gpt.yaml
run_has 2 'np 4 --host a:1,b:2,c:1 '
run_has 3 'np 2 --host a:1,c:1 '
says 'b lost a process or a device twice: it is dropped'
says 'rank 1 with PID 0 on node b exited on signal 9'
launches 0 'lost c.example.org 1; lost c 1; exit 0' --hosts a,b,c --restarts 3 \
    -- train gpt.yaml
run_has 3 'np 2 --host a:1,b:1 '
# so many ranks that each has work: a replica is never lost
launches 0 'killed b; killed b; exit 0' --hosts a,b,c,d --restarts 3 -- \
    train gpt.yaml --replicas 2
run_has 3 'np 2 --host a:1,c:1 '
launches 0 'killed b; killed b; exit 0' --hosts a,b,c,d --restarts 3 -- \
    train gpt.yaml --replicas 2 --stages 2
run_has 3 'np 3 --host a:1,c:1,d:1 '
launches 0 'killed b; killed b; exit 0' --hosts a,b,c --restarts 3 -- \
    train gpt.yaml --replicas 4
run_has 3 'np 2 --host a:1,c:1 '
launches 0 'killed b; killed b; exit 0' --hosts a,b,c,d --restarts 3 -- \
    train gpt.yaml --replicas 2 --devices cpu:2
run_has 3 'np 3 --host a:1,c:1,d:1 '
# a GPU that is gone is a loss of its host: fewer ranks, and so fewer stages
launches 0 'no-gpu b; no-gpu b; exit 0' --hosts a,b,c,d --restarts 3 -- \
    train gpt.yaml
run_has 2 'np 4 --host a:1,b:1,c:1,d:1 '
run_has 3 'np 3 --host a:1,c:1,d:1 '
says 'with exit status 1: sluice: error: rank 1 on host b has a device failure'
says 'b lost a process or a device twice: it is dropped'
launches 0 'killed b; no-gpu b; exit 0' --hosts a,b,c,d --restarts 3 -- \
    train gpt.yaml --replicas 2
run_has 3 'np 2 --host a:1,c:1 '
# different hosts, one each: none goes
launches 0 'killed a; killed b; exit 0' --hosts a,b --restarts 3 -- \
    train gpt.yaml
run_has 3 'np 2 --host a:1,b:1 '
# not below what is wanted
launches 0 'killed b; killed b; exit 0' --hosts a,b --restarts 3 \
    --min-ranks 2 -- train gpt.yaml
run_has 3 'np 2 --host a:1,b:1 '
# a failure without a loss is nobody's
launches 0 'exit 1; exit 1; exit 0' --hosts a,b --restarts 3 -- train gpt.yaml
run_has 3 'np 2 --host a:1,b:1 '
# unreachable: at once; all but this machine are asked
echo b >dead
launches 0 'exit 1; exit 0' --hosts a,b,localhost --restarts 3 -- train gpt.yaml
run_has 2 'np 2 --host a:1,localhost:1 '
says 'host b does not answer: it is dropped'
if [ "$(sort probes | tr '\n' ' ')" = 'a b ' ]; then ok; else
    bad "probed: $(cat probes)"
fi
# down to one process on this machine, which needs no mpirun
launches 0 'exit 1' --hosts localhost,b --restarts 1 -- train gpt.yaml --quiet
n_runs 1
says '1 process on localhost:1'
if grep -q 'state-hash' out; then ok; else bad 'no hash of the last process'; fi
launches 1 'exit 1; exit 0' --hosts localhost,b --restarts 3 --min-ranks 2 -- \
    train gpt.yaml
says 'hosts for 1 process remain, fewer than 2: giving up'
echo a >>dead
launches 1 'exit 1; exit 0' --hosts a,b --restarts 3 -- train gpt.yaml
says 'hosts for 0 processes remain'
rm dead
# a job that lost a process and does not end by itself
launches 0 'stuck b; exit 0' --hosts a,b --restarts 1 --grace 0.5 -- \
    train gpt.yaml
says 'does not end by itself; it is stopped'
n_runs 2

# ---- signals ----
# signalled SIGNAL... -- STATUS SCRIPT ARGUMENT...
signalled() {
    numbers=
    while [ "$1" != -- ]; do
        numbers="$numbers $1"
        shift
    done
    want=$2
    echo "$3" >script
    shift 3
    rm -f signals runs
    : >runs
    "$sluice" launch --back-off 0.01 "$@" >out 2>err &
    job=$!
    n_sent=0
    for number in $numbers; do
        n_sent=$((n_sent + 1))
        until_true n_signals_is $n_sent
        kill -s "$number" $job
    done
    await_job
    if [ $status -eq "$want" ]; then ok; else
        bad "$numbers: exit status $status, not $want"
    fi
}
for number in TERM USR1 HUP INT; do
    signalled $number -- 130 wait --ranks 2 --restarts 3 -- train gpt.yaml
    if [ "$(tail -n 1 signals)" = usr1 ]; then ok; else
        bad "$number was not handed on as SIGUSR1"
    fi
    n_runs 1
done
signalled TERM TERM -- 143 deaf --ranks 2 --restarts 3 -- train gpt.yaml
if [ "$(tr '\n' ' ' <signals)" = 'ready usr1 term ' ]; then ok; else
    bad "two signals: $(cat signals)"
fi
# mpirun dies of the signal, with its ranks ended or not begun yet
signalled TERM -- 0 'done 0' --ranks 2 --restarts 3 -- train gpt.yaml
signalled TERM -- 130 'done 130' --ranks 2 --restarts 3 -- train gpt.yaml
silent_on 'launch report'
for number in TERM USR1; do
    signalled $number -- 130 early --ranks 2 --restarts 3 -- train gpt.yaml
    n_runs 1
done
# during a pause
printf 'exit 1\nexit 0\n' >script
rm -f runs
"$sluice" launch --back-off 60 --restarts 1 --ranks 2 -- train gpt.yaml \
    >out 2>err &
job=$!
until_true grep -q 'restart in 60 s' err
kill -TERM $job
await_job
if [ $status -eq 130 ]; then ok; else bad "a pause: exit status $status"; fi
n_runs 1
# one process without mpirun: it ends after the step, as by itself
"$sluice" launch --restarts 3 -- train gpt.yaml --steps 1000000 --quiet \
    --metrics launched.jsonl >out 2>err &
job=$!
until_true test -s launched.jsonl
kill -TERM $job
await_job
if [ $status -eq 130 ] && grep -q 'state-hash' out; then ok; else
    bad "one process: exit status $status"
fi
# a launcher that is killed leaves no job behind
rm -f launched.jsonl
"$sluice" launch -- train gpt.yaml --steps 1000000 --quiet \
    --metrics "$folder/launched.jsonl" >out 2>err &
job=$!
until_true test -s launched.jsonl
is_gone() { ! writers_of launched.jsonl >pids; }
if is_gone; then bad 'a job that is not to be found'; else ok; fi
kill -KILL $job
await_job 2>/dev/null
until_true is_gone # the job does not outlive its launcher

finish
