#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What happens to all processes of a job when one of them dies, hangs, fails,
# is held up, or is asked to end.
#   tests/cli/test_faults.sh build/sluice
set -u
sluice=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
folder=$(mktemp -d)
job=
end_all() {
    for pid in $job $(cat "$folder"/*.pid 2>/dev/null); do
        kill -KILL "$pid" 2>/dev/null
    done
    rm -rf "$folder"
}
trap end_all EXIT
trap 'exit 1' INT TERM
cd "$folder" || exit 1
SLUICE_RUN_DIR=$folder/run
XDG_CACHE_HOME=$folder/cache
export SLUICE_RUN_DIR XDG_CACHE_HOME
mkdir -m 700 run
n_passed=0
n_failed=0

ok() { n_passed=$((n_passed + 1)); }
bad() {
    n_failed=$((n_failed + 1))
    echo "FAILED: $1"
    for log in *.log; do
        echo "  == $log"
        tail -n 15 "$log" | sed 's/^/    /'
    done
}
# until_true COMMAND...: within a minute, else the test ends here
until_true() {
    n=0
    until "$@" >/dev/null 2>&1; do
        n=$((n + 1))
        if [ $n -ge 600 ]; then
            bad "never: $*"
            exit 1
        fi
        sleep 0.1
    done
}
hash_in() { sed -n 's/.*state-hash //p' "$1" | tail -n 1; }
step_in() { sed -n 's/.* step \([0-9]*\)  state-hash.*/\1/p' "$1"; }
steps_done() { [ -e m.jsonl ] && [ "$(wc -l <m.jsonl)" -ge "$1" ]; }
says() { if grep -qe "$2" "$1"; then ok; else bad "$3: no '$2'"; fi; }
# waits LIMIT STATUS|fails WHAT: the job ends within LIMIT seconds
waits() {
    begin=$(date +%s)
    n=0
    while kill -0 "$job" 2>/dev/null && [ $n -lt $(($1 * 10)) ]; do
        n=$((n + 1))
        sleep 0.1
    done
    if [ $n -ge $(($1 * 10)) ]; then
        bad "$3: not ended after $1 s"
        kill -KILL "$job"
    fi
    wait "$job"
    status=$?
    job=
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
[ -n "$alone" ] || {
    bad 'one process has no hash'
    exit 1
}

# ---- signals to one process ----
begin_one() {
    rm -rf m.jsonl checkpoints
    "$sluice" train gpt.yaml --quiet --metrics m.jsonl --steps 1000000 \
        --checkpoint checkpoints "$@" >one.log 2>&1 &
    job=$!
    until_true steps_done 5
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
# the second one does not wait for the step, which takes many seconds
rm -rf m.jsonl checkpoints
"$sluice" train gpt.yaml --quiet --metrics m.jsonl --batch 256 \
    --micro-batches 1 --set data.n_samples=256 --set data.context=512 \
    --set model.width=256 >one.log 2>&1 &
job=$!
until_true test -e m.jsonl
kill -TERM $job
sleep 0.5
kill -TERM $job
waits 10 143 'a second signal'

echo "$n_passed passed, $n_failed failed"
[ $n_failed -eq 0 ]
