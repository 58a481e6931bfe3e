# SPDX-License-Identifier: Apache-2.0
# For the scripts beside it, with the program as $1: a folder of its own, which
# goes at the end, with its own run directory and cache; and the count of
# checks. Each writes what a command says to the files out and err.
set -u
sluice=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
SLUICE_RUN_DIR=$folder/run
XDG_CACHE_HOME=$folder/cache
export SLUICE_RUN_DIR XDG_CACHE_HOME
n_passed=0
n_failed=0

ok() { n_passed=$((n_passed + 1)); }
bad() {
    n_failed=$((n_failed + 1))
    echo "FAILED: $1"
    sed 's/^/    /' out err
}

# passes TEXT ARGUMENT...: exit status 0 and TEXT in the output
passes() {
    text=$1
    shift
    if "$sluice" "$@" >out 2>err && grep -qe "$text" out; then ok; else
        bad "sluice $* should print '$text'"
    fi
}

# until_true COMMAND...: within two minutes, else the test ends here
until_true() {
    n_tries=0
    until "$@" >/dev/null 2>&1; do
        n_tries=$((n_tries + 1))
        if [ $n_tries -ge 1200 ]; then
            bad "never: $*"
            exit 1
        fi
        sleep 0.1
    done
}
