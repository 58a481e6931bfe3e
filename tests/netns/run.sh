#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Training over two hosts that are made of network and name spaces: the state
# of one process, also over a slow and lossy link; a link that is cut in the
# middle. Exit status 77: skipped, with the reason.
#   tests/netns/run.sh build/sluice build/tests/netns_relay
here=$(cd "$(dirname "$0")" && pwd)
relay=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
. "$here/../cli/bed.sh"
logs='*.log'
[ "$(id -u)" -eq 0 ] || skip 'not root'
for tool in ip tc nsenter unshare mpirun; do
    command -v $tool >/dev/null || skip "no $tool"
done

. "$here/hosts.sh"
on_end() { hosts_end; }
hosts_begin a b 2>hosts.log || {
    cat hosts.log
    skip 'no network name spaces'
}

cat >gpt.yaml <<'YAML'
data: {format: synthetic_tokens, context: 32, classes: 64, n_samples: 64}
model: {type: gpt, layers: 2, width: 64, heads: 2, vocab: 64}
train: {batch: 8, micro_batches: 4, steps: 60}
optimizer: {type: adamw, lr: 0.01}
devices: {threads: 1}
YAML
"$sluice" train gpt.yaml --quiet >alone.log 2>&1
alone=$(hash_in alone.log)
[ -n "$alone" ] || fail 'one process has no hash'

# ---- two hosts ----
on a sh -c "cd '$folder' && exec '$sluice' launch --hosts a,b -- \
    train gpt.yaml" >two.log 2>&1 || fail "two hosts: exit status $?"
[ "$(hash_in two.log)" = "$alone" ] || fail 'two hosts: another state'
{ grep -q '  0      0  .*   0  a / cpu:0' two.log &&
    grep -q '  0      1  .*   1  b / cpu:0' two.log; } ||
    fail 'two hosts: not a stage on each'
echo 'two hosts: ok'

# ---- a slow link that loses packets ----
slow b 2 1 2>hosts.log || fail 'no link can be made slow'
on a sh -c "cd '$folder' && exec '$sluice' launch --hosts a,b -- \
    train gpt.yaml --quiet" >slow.log 2>&1 || fail "slow: exit status $?"
[ "$(hash_in slow.log)" = "$alone" ] || fail 'a slow link: another state'
fast
echo 'a slow link that loses packets: ok'

# ---- a link that is cut ----
no_job() { ! writers_of metrics.jsonl >pids; }
# cut LOG ARGUMENT...: begin a long job, cut b off after 20 steps, wait
cut() {
    log=$1
    shift
    rm -f metrics.jsonl
    on a sh -c "cd '$folder' && exec '$sluice' launch --hosts a,b \
        --back-off 0.1 $*" >"$log" 2>&1 &
    job=$!
    until_true steps_done metrics.jsonl 20
    case "$*" in
    *--checkpoint*) until_true test -s checkpoints/latest ;;
    esac
    ! no_job || fail 'a job that is not to be found'
    link b down
    begin=$(date +%s)
    await_job
    took=$(($(date +%s) - begin))
}
cut cut.log --grace 5 -- train gpt.yaml --quiet --steps 1000000 \
    --dead-after 5 --metrics "$folder/metrics.jsonl"
[ $status -ne 0 ] || fail 'a cut link is no failure'
[ $took -le 60 ] || fail "a cut link: $took s until the end"
grep -q 'rank 1 on host b has not answered' cut.log ||
    fail 'a cut link: no message names the host'
# the ranks that nobody can reach end as well
until_true no_job
link b up
echo "a cut link: ends after $took s"

# ---- without mpirun, over TCP: two replicas, one on each host ----
# pair OPTION...: rank 0 on a, rank 1 on b; their logs are tcp0.log, tcp1.log
port=7800
pair() {
    port=$((port + 1))
    rm -f metrics.jsonl
    for host in a b; do
        rank=$([ $host = a ] && echo 0 || echo 1)
        on $host sh -c "cd '$folder' && exec '$sluice' train gpt.yaml --quiet \
            --replicas 2 --rank $rank --world 2 --master a:$port \
            $*" >tcp$rank.log 2>&1 &
        eval "tcp$rank=$!"
    done
}
pair_ends() {
    wait "$tcp0"
    status0=$?
    wait "$tcp1"
    status1=$?
}
"$sluice" train gpt.yaml --quiet --replicas 2 --devices cpu:2 >twins.log 2>&1
pair
pair_ends
[ $status0,$status1 = 0,0 ] || fail "over TCP: exit status $status0, $status1"
[ "$(hash_in tcp0.log)" = "$(hash_in twins.log)" ] ||
    fail 'over TCP: another state'
pair --steps 1000000 --dead-after 5 --metrics metrics.jsonl
until_true steps_done metrics.jsonl 20
link b down
begin=$(date +%s)
pair_ends
took=$(($(date +%s) - begin))
link b up
[ $status0,$status1 = 1,1 ] ||
    fail "a cut link, TCP: exit status $status0, $status1"
[ $took -le 60 ] || fail "a cut link, TCP: $took s until the end"
[ "$(grep -c 'error: rank 1 on host b has not answered' tcp0.log)" -eq 1 ] ||
    fail 'a cut link, TCP: no message names the host'
echo "a cut link between replicas, over TCP: both end after $took s"

# ---- and goes on with the host that remains ----
cut on.log --restarts 3 --grace 5 -- train gpt.yaml --quiet --steps 3000 \
    --checkpoint checkpoints --checkpoint-every 10 \
    --metrics "$folder/metrics.jsonl"
[ $status -eq 0 ] || fail "restart: exit status $status"
grep -q 'host b does not answer: it is dropped' on.log ||
    fail 'restart: b is not dropped'
grep -q 'restart in .* 1 process on a:1, from step-' on.log ||
    fail 'restart: not on a alone, from a checkpoint'
"$sluice" train gpt.yaml --quiet --steps 3000 >long.log 2>&1
[ "$(hash_in on.log)" = "$(hash_in long.log)" ] ||
    fail 'restart: another state'
echo "restart with one host less: ok after $took s"
