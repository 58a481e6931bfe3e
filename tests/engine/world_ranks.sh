#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Ranks that are processes, under mpirun or connected by sockets: all that a
# link must do, then a rank that is killed, hangs or has an error, which must
# end all others, with one message that names it.
# world_ranks.sh <program> mpi|tcp <ranks> <mode> [rank]
set -u
program=$1
link=$2
ranks=$3
mode=$4
victim=${5:-0}
out=$(mktemp)
trap 'rm -f "$out"' EXIT
run=$mode
# two processes with a message of 2.3 GB each, and what a link copies
if [ "$mode" = huge ] &&
    [ "$(awk '/MemAvailable/ {print $2}' /proc/meminfo)" -lt 8000000 ]; then
    echo "too little memory for a message of more than 2 GiB"
    exit 77
fi
[ "$mode" != orphan ] || run=kill

# exit status: of the first rank that fails
run_tcp() {
    port=$((20000 + ($$ * 7 + $(date +%s)) % 12000))
    address=${SLUICE_TEST_ADDRESS:-127.0.0.1}
    pids=
    rank=$((ranks - 1))
    while [ $rank -ge 0 ]; do
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

[ $code -ne 124 ] || fail "it hung"
[ $took -le 90 ] || fail "it took too long"
case $mode in
all | huge | hosts)
    [ $code -eq 0 ] || fail "exit status"
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
esac
exit 0
