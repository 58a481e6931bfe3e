#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Ranks that are processes under mpirun: all that a link must do, then a rank
# that is killed, hangs or has an error, which must end all others, with one
# message that names it.
# world_mpi.sh <program> <ranks> <mode> [rank]
set -u
program=$1
ranks=$2
mode=$3
victim=${4:-0}
command -v mpirun >/dev/null || {
    echo "no mpirun"
    exit 77
}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_btl=self,vader,tcp
export OMPI_MCA_btl_vader_single_copy_mechanism=none
# the launcher must not be the first to find a dead rank
case $mode in
kill) options=--enable-recovery ;;
*) options= ;;
esac
out=$(mktemp)
trap 'rm -f "$out"' EXIT
start=$(date +%s)
timeout 120 mpirun $options --oversubscribe --bind-to none -n "$ranks" \
    "$program" "$mode" "$victim" >"$out" 2>&1
code=$?
took=$(($(date +%s) - start))
cat "$out"
echo "exit status $code after $took s"

fail() {
    echo "failed: $1"
    exit 1
}
count() {
    grep -c "$1" "$out"
}

case $mode in
all | hosts)
    [ $code -eq 0 ] || fail "exit status"
    ;;
kill | stop)
    [ $code -ne 0 ] || fail "exit status 0"
    [ $code -ne 124 ] || fail "it hung"
    [ "$(count "rank $victim on host .*\(not answered\|is gone\)")" -eq 1 ] ||
        fail "one message that names rank $victim"
    [ $took -le 40 ] || fail "it took too long"
    ;;
fail)
    [ $code -ne 0 ] || fail "exit status 0"
    [ $code -ne 124 ] || fail "it hung"
    [ "$(count "the disk is full")" -eq 1 ] || fail "one message"
    [ "$(count "MPI_ABORT")" -eq 0 ] || fail "MPI_Abort was called"
    ;;
esac
exit 0
