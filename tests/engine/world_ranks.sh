#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Ranks that are processes, under mpirun or connected by sockets: all that a
# link must do, engines that train over it, then a rank that is killed, hangs or
# has an error, which must end all others, with one message that names it.
# world_ranks.sh <program> mpi|tcp <ranks> <mode> [rank]
set -u
program=$1
link=$2
ranks=$3
mode=$4
victim=${5:-0}
out=$(mktemp)
trap 'rm -f "$out" "$out".*' EXIT
run=$mode
# two processes with a message of 2.3 GB each, and what a link copies
if [ "$mode" = huge ] &&
    [ "$(awk '/MemAvailable/ {print $2}' /proc/meminfo)" -lt 8000000 ]; then
    echo "too little memory for a message of more than 2 GiB"
    exit 77
fi
[ "$mode" != orphan ] || run=kill

host_of() { [ $(($1 % 2)) -eq 0 ] && echo a || echo b; }
# exit status: of the first rank that fails
run_tcp() {
    port=$((20000 + ($$ * 7 + $(date +%s)) % 12000))
    address=${SLUICE_TEST_ADDRESS:-127.0.0.1}
    pids=
    rank=$((ranks - 1))
    while [ $rank -ge 0 ]; do
        # ranks go round the hosts: a, b, a, b
        [ "$mode" != hosts ] || export SLUICE_HOST="$(host_of $rank)"
        SLUICE_RANK=$rank SLUICE_WORLD=$ranks SLUICE_MASTER="$address:$port" \
            timeout 100 "$program" "$run" "$victim" &
        pids="$pids $rank:$!"
        rank=$((rank - 1))
    done
    code=0
    for pair in $pids; do
        # a stopped rank stays, which its timeout would end late
        if [ "$run" = stop ] && [ "${pair%%:*}" -eq "$victim" ]; then
            stopped=${pair#*:}
            continue
        fi
        wait "${pair#*:}"
        this=$?
        [ $code -ne 0 ] || code=$this
    done
    [ -z "${stopped:-}" ] || kill -9 "$stopped" $(ps -o pid= --ppid "$stopped")
    return $code
}

run_mpi() {
    command -v mpirun >/dev/null || exit 77
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    export OMPI_MCA_btl=self,vader,tcp
    export OMPI_MCA_btl_vader_single_copy_mechanism=none
    options=
    # killed, and the launcher does nothing about it
    [ "$mode" != orphan ] || options=--enable-recovery
    [ "$mode" != all ] || export SLUICE_TEST_MPI_LOG="$out.mpi"
    timeout 120 mpirun $options --oversubscribe --bind-to none -n "$ranks" \
        "$program" "$run" "$victim"
}

start=$(date +%s)
"run_$link" >"$out" 2>&1
code=$?
took=$(($(date +%s) - start))
cat "$out"
echo "exit status $code after $took s"
[ $code -ne 77 ] || exit 77

fail() {
    echo "failed: $1"
    exit 1
}
count() {
    grep -c "$1" "$out"
}

# Of every message between two ranks, the receive was posted before the send:
# one clock, and the n-th of both with the same ends and tag belong together.
check_order() {
    early=0
    cat "$out".mpi.* | awk '
        $1 == "r" { k = $2 " " $3 " " $4; posted[k, ++n_r[k]] = $5 }
        $1 == "s" { k = $2 " " $3 " " $4; sent[k, ++n_s[k]] = $5 }
        END {
            for (k in n_s) {
                for (i = 1; i <= n_s[k]; i++) {
                    n++
                    if (!((k, i) in posted) || posted[k, i] > sent[k, i]) {
                        early++
                        print "sent early: from, to, tag " k ", message " i
                    }
                }
            }
            print n + 0 " messages by MPI, " early + 0 " of them sent early"
            exit n < 1000 || early > 0
        }' >"$out.order" || early=1
    tail -n 4 "$out.order"
    [ $early -eq 0 ] || fail "a message before its receive"
}

[ $code -ne 124 ] || fail "it hung"
[ $took -le 90 ] || fail "it took too long"
case $mode in
all | huge | processes)
    [ $code -eq 0 ] || fail "exit status"
    [ "$link $mode" != "mpi all" ] || check_order
    ;;
hosts)
    [ $code -eq 0 ] || fail "exit status"
    # stages go host by host, not rank by rank
    want="replica 0: stage 0 a/0/cpu:0, stage 1 a/2/cpu:0"
    want="$want, stage 2 b/1/cpu:0, stage 3 b/3/cpu:0"
    [ "$(count "^$want\$")" -eq 1 ] || fail "not $want"
    for rank in 0 1 2 3; do
        place="rank $rank of 4 on $(host_of $rank), $((rank / 2)) of 2 there"
        [ "$(count "^$place\$")" -eq 1 ] || fail "not $place"
    done
    ;;
kill)
    [ $code -ne 0 ] || fail "exit status 0"
    [ "$(count "rank $victim ")" -ge 1 ] || fail "no message names the rank"
    ;;
stop | orphan)
    # an mpirun that recovers has no failure to report
    [ $code -ne 0 ] || [ "$mode" = orphan ] || fail "exit status 0"
    [ "$(count "rank $victim on host .*\(has not answered\|is gone\)")" -eq 1 ] ||
        fail "one message that names rank $victim"
    ;;
fail)
    [ $code -ne 0 ] || fail "exit status 0"
    [ "$(count "the disk is full")" -eq 1 ] || fail "one message"
    [ "$(count "MPI_ABORT")" -eq 0 ] || fail "MPI_Abort was called"
    ;;
away)
    [ $code -ne 0 ] || fail "exit status 0"
    [ "$(count "rank $victim (.*the disk is full; rank 0 has not ended")" -eq 1 ] ||
        fail "one message that names rank $victim"
    ;;
esac
exit 0
