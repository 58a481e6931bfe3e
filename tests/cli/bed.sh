# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# For the scripts of the tests, with the program as $1: a folder of its own,
# which goes at the end, with its own run directory and cache; and the count of
# checks. Each writes what a command says to the files out and err, or to $logs.
set -u
sluice=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
folder=$(cd "$(mktemp -d)" && pwd -P) || exit 1
job=           # a process in the background, if any
logs='out err' # what bad() shows, as far as it is there
n_passed=0
n_failed=0
n_again=0

# What ends with the script, and what bad() shows first; may be redefined.
kill_job() { [ -z "$job" ] || kill -KILL "$job" 2>/dev/null; }
on_end() { kill_job; }
show() { :; }
trap 'on_end; rm -rf "$folder"' EXIT
trap 'exit 1' INT TERM

cd "$folder" || exit 1
mkdir -m 700 run
SLUICE_RUN_DIR=$folder/run
XDG_CACHE_HOME=$folder/cache
export SLUICE_RUN_DIR XDG_CACHE_HOME

ok() { n_passed=$((n_passed + 1)); }
bad() {
    n_failed=$((n_failed + 1))
    echo "FAILED: $1"
    show
    for log in $logs; do
        [ -s "$log" ] || continue
        echo "  == $log"
        tail -n 20 "$log" | sed 's/^/    /'
    done
}
check() { # WHAT COMMAND...: it succeeds
    what=$1
    shift
    if "$@"; then ok; else bad "$what"; fi
}
fail() { # WHAT: the test ends here
    bad "$1"
    exit 1
}
skip() { # WHY
    echo "skipped: $1"
    exit 77
}
finish() { # the last command of a script
    echo "$n_passed passed, $n_failed failed"
    [ $n_failed -eq 0 ]
}

# passes TEXT ARGUMENT...: exit status 0 and TEXT in the output
passes() {
    text=$1
    shift
    if "$sluice" "$@" >out 2>err && grep -qe "$text" out; then ok; else
        bad "sluice $* should print '$text'"
    fi
}

# refuses STATUS TEXT ARGUMENT...: that exit status and TEXT in the messages
refuses() {
    want=$1
    text=$2
    shift 2
    timeout 120 "$sluice" "$@" >out 2>err
    status=$?
    if [ $status -eq "$want" ] && grep -qe "$text" err; then ok; else
        bad "sluice $*: exit status $status, not $want with '$text'"
    fi
}

# ---- what a run leaves ----

hash_line() { sed -n 's/.*\(step .*state-hash .*\)/\1/p' out; }
hash_in() { sed -n 's/.*state-hash //p' "$1"; }
step_in() { sed -n 's/.* step \([0-9]*\)  state-hash.*/\1/p' "$1"; }

# steps_done FILE N: the metrics in FILE are of N steps at least
steps_done() { [ -e "$1" ] && [ "$(wc -l <"$1")" -ge "$2" ]; }

# hash_of ARGUMENT...: the state hash that a run prints last
hash_of() {
    "$sluice" train "$@" --quiet --threads 1 2>err | tee out | tail -1 |
        sed -n 's/.*state-hash //p'
}

# same WANT GOT WHAT
same() {
    if [ ${#1} -eq 16 ] && [ "$1" = "$2" ]; then ok; else
        bad "$3: hash $2, not $1"
    fi
}

# ---- processes ----

# until_true COMMAND...: within two minutes, else the test ends here
until_true() {
    n_tries=0
    until "$@" >/dev/null 2>&1; do
        n_tries=$((n_tries + 1))
        [ $n_tries -lt 1200 ] || fail "never: $*"
        sleep 0.1
    done
}

# until_shows TEXT COMMAND...: likewise, exit status 0 and TEXT in its output
shows() { "$@" >out 2>err && grep -qe "$text" out; }
until_shows() {
    text=$1
    shift
    until_true shows "$@"
    ok
}

is_over() { ! kill -0 "$job" 2>/dev/null; }
or_over() { "$@" || is_over; }

# once_more: the job was over before the script had come so far, as it may be
# on a busy machine: it is to be started again
once_more() {
    is_over && [ $n_again -lt 20 ] && wait "$job" || return 1
    n_again=$((n_again + 1))
}

# await_job: until its end, whose exit status is in $status
await_job() {
    wait "$job"
    status=$?
    job=
}

# writers_of FILE: the processes whose --metrics is that file of the folder
writers_of() { pgrep -f "metrics $folder/$1"; }

# ---- ranks ----

# begin_mpi: for mpirun as any user, on this machine only; fails where there is
# none, or SLUICE_NO_MPI is set
begin_mpi() {
    [ -z "${SLUICE_NO_MPI:-}" ] && command -v mpirun >/dev/null || return 1
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    export OMPI_MCA_btl=self,vader,tcp
    export OMPI_MCA_btl_vader_single_copy_mechanism=none
}

# ranks N COMMAND...: also options of mpirun before it
ranks() {
    n_ranks=$1
    shift
    timeout 120 mpirun --oversubscribe --bind-to none -n "$n_ranks" "$@"
}
