#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs that are killed at any instant, also in the middle of a save: each goes
# on, in another shape, and ends with the hash of one that was never
# interrupted. Half of the kills are of one process, the others of a random
# rank, under mpirun and under `sluice launch --restarts`. Then signals to the
# launcher, at any instant too.
#   tests/cli/test_kills.sh build/sluice
# SLUICE_KILLS: how many in all (100). SLUICE_NO_MPI: when set, only those of
# one process.
. "$(dirname "$0")/bed.sh"
on_end() { [ -e status ] || kill -KILL "$(cat job.pid)" 2>/dev/null; }
n_kills=${SLUICE_KILLS:-100}

# random N: a number from 0 to N - 1
random() { echo $(($(od -An -N4 -tu4 /dev/urandom) % $1)); }

cat >gpt.yaml <<'YAML'
data: {format: synthetic_tokens, context: 12, classes: 17, n_samples: 64}
model: {type: gpt, layers: 2, width: 16, heads: 2, vocab: 17, dropout: 0.1}
train: {batch: 7, micro_batches: 3, steps: 40, seed: 5}
optimizer: {type: adamw, lr: 0.01, clip_norm: 1.0, weight_decay: 0.1, lr_schedule: cosine, warmup_steps: 8}
devices: {threads: 1}
YAML
saving='--checkpoint k --checkpoint-every 1 --resume auto --metrics m --quiet'

# what a rank runs as: the script has to know its process
cat >rank.sh <<'SH'
#!/bin/sh
echo $$ >"${OMPI_COMM_WORLD_RANK:-0}.pid"
exec "$@"
SH
# mpirun, for the launcher, with such ranks
cat >mpirun.sh <<SH
#!/bin/sh
: >begun
for word; do
    shift
    [ "\$word" != "$(readlink -f "$sluice")" ] || set -- "\$@" ./rank.sh
    set -- "\$@" "\$word"
done
exec mpirun "\$@"
SH
chmod +x rank.sh mpirun.sh

# begin COMMAND...: in the background; its exit status goes to `status`
begin() {
    rm -f m status ./*.pid
    {
        "$@" >out 2>err &
        echo $! >job.pid
        wait $!
        echo $? >status.new
        mv status.new status
    } 2>/dev/null & # the shell's word of who was killed
}
# begin_ranks N OPTION...: N processes that go on from what is there
begin_ranks() {
    n_ranks=$1
    shift
    set -- ./rank.sh "$sluice" train gpt.yaml $saving "$@"
    [ "$n_ranks" -eq 1 ] || set -- mpirun --oversubscribe --bind-to none \
        -n "$n_ranks" "$@"
    begin "$@"
}
# begin_launch N OPTION...: the same, started again after each kill
begin_launch() {
    n_ranks=$1
    shift
    begin "$sluice" launch --ranks "$n_ranks" --restarts 1000 \
        --back-off 0.01 --mpirun ./mpirun.sh -- train gpt.yaml $saving "$@"
}

# soon CONDITION...: within two minutes, else the test ends here
soon() {
    n_tries=0
    until "$@"; do
        n_tries=$((n_tries + 1))
        [ $n_tries -lt 6000 ] || fail "never: $*"
        sleep 0.02
    done
}
is_over() { [ -e status ]; }
# a step is done, so that each start comes further than the one before
has_begun() { [ -s m ] || is_over; }
ends() {
    soon is_over
    read -r status <status
}
# there PATTERN: waits for such a file, without a sleep
there() {
    until is_over; do
        for found in $1; do
            [ ! -e "$found" ] || return
        done
    done
}
# a random instant, often one of a save
pass_time() {
    case $(random 5) in
    0 | 1) sleep "0.$(printf '%03d' "$(random 250)")" ;;
    2) there 'k/writing-*' ;;
    3) there 'k/writing-*/state-*' ;;
    4) there 'k/writing-*/manifest.json' ;;
    esac
}
# kill_one: a random rank of the job that has begun; fails when it is over
kill_one() {
    [ "$n_ranks" -eq 1 ] && [ "$(random 4)" -eq 0 ] || soon has_begun
    rank=$(random "$n_ranks")
    soon test -s "$rank.pid"
    read -r pid <"$rank.pid"
    pass_time
    ! is_over || return
    rm -f m # of the next start
    kill -KILL "$pid" 2>/dev/null
}

n_killed=0
n_writing=0
n_rounds=0
# look: after a kill, while nothing runs, each checkpoint is whole
look() {
    [ -z "$(find k -name 'writing-*' 2>/dev/null)" ] ||
        n_writing=$((n_writing + 1))
    "$sluice" checkpoint verify k >out2 2>&1 || [ ! -d k ] ||
        grep -q 'no checkpoint' out2 || { cat out2 && bad 'a kill left damage'; }
}
# through WANT WHAT: a run has come to its end
through() {
    same "$1" "$(hash_in out | tail -n 1)" "$2"
    [ -z "$(find k -name 'writing-*' -o -name '.sluice-*')" ] ||
        bad 'leftovers'
    n_rounds=$((n_rounds + 1))
    rm -rf k
}
# kills UNTIL WANT START: START begins a job, until so many have been killed
kills() {
    while [ $n_killed -lt "$1" ] && [ $n_failed -eq 0 ]; do
        $3
        if kill_one; then is_hit=1; else is_hit=0; fi
        ends
        if [ "$status" -eq 0 ]; then
            through "$2" 'after kills'
        elif [ $is_hit -eq 1 ]; then
            n_killed=$((n_killed + 1))
            look
        else
            bad "not killed, exit status $status"
        fi
    done
    $3
    ends
    through "$2" 'after the last kill'
}

# ---- one process ----
alone() {
    begin_ranks 1 --devices "cpu:$(($(random 3) + 1))" \
        --schedule "$([ "$(random 2)" -eq 0 ] && echo gpipe || echo 1f1b)"
}
"$sluice" train gpt.yaml --quiet >out 2>err
want=$(hash_in out)
n_alone=$((n_kills / 2))
kills $n_alone "$want" alone
echo "one process: $n_killed kills, $n_writing while a checkpoint was being" \
    "written, $n_rounds runs brought to their end"

# ---- ranks, two replicas, another number of ranks and stages each time ----
on_ranks() {
    n=$(($(random 2) + 2))
    begin_ranks $n --replicas 2 --stages $(($(random 2) + n - 1)) \
        --set parallel.zero1=true
}
# ---- the same job under the launcher, in another shape now and then ----
launches() {
    n=$(($(random 2) + 2))
    begin_launch $n --stages $(($(random 2) + n))
    n_here=0
    while [ $n_here -lt 5 ] && [ $((n_killed + n_here)) -lt "$n_kills" ] &&
        kill_one; do
        n_here=$((n_here + 1))
        soon has_begun
    done
    is_over || kill -USR1 "$(cat job.pid)" 2>/dev/null
    ends
    n_killed=$((n_killed + n_here))
    look
    if [ "$(grep -c '^sluice launch: restart in' err)" -eq $n_here ]; then
        ok
    else
        bad "not $n_here restarts"
    fi
    if [ "$status" -eq 0 ]; then
        through "$want" 'launched'
    elif [ "$status" -ne 130 ]; then
        bad "launched: exit status $status"
    fi
}
# ---- a signal at any instant, also while ranks start or end ----
signals() {
    n_early=0
    for _ in $(seq "$n_signals"); do
        rm -f begun
        begin_launch 2 --steps 5
        soon test -e begun
        sleep "0.$(printf '%03d' "$(random 500)")"
        is_over || kill -USR1 "$(cat job.pid)" 2>/dev/null
        ends
        if [ "$status" -eq 130 ]; then
            n_early=$((n_early + 1))
        elif [ "$status" -ne 0 ]; then
            bad "a signal: exit status $status"
            return
        fi
        rm -rf k
    done
    ok
    echo "launch: $n_signals signals, $n_early jobs ended early"
}
if begin_mpi; then
    # mpirun ends the other ranks at once, as it does after a second
    export OMPI_MCA_odls_base_sigkill_timeout=0
    n_rounds=0
    n_before=$n_killed
    n_before_writing=$n_writing
    "$sluice" train gpt.yaml --quiet --replicas 2 --devices cpu:2 >out 2>err
    kills $((n_killed + n_kills * 3 / 10)) \
        "$(hash_in out)" on_ranks
    echo "mpirun: $((n_killed - n_before)) kills," \
        "$((n_writing - n_before_writing)) while a checkpoint was being" \
        "written, $n_rounds runs brought to their end"

    n_rounds=0
    n_before=$n_killed
    while [ $n_killed -lt "$n_kills" ] && [ $n_failed -eq 0 ]; do
        launches
    done
    begin_launch 2
    ends
    through "$want" 'launched, after the last kill'
    echo "launch: $((n_killed - n_before)) kills," \
        "$n_rounds runs brought to their end"
    n_signals=$((n_kills / 8))
    signals
fi
if [ $n_writing -gt 0 ]; then ok; else bad 'no kill was in a save'; fi

finish
