#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The unit for systemd and the manifests for Kubernetes, as far as a machine
# without either can check them; and that the checks find what is wrong.
#   tests/cli/test_examples.sh build/sluice EXAMPLES
examples=$(cd "$2" && pwd)
check_manifest=$(cd "$(dirname "$0")" && pwd)/check_manifest.py
. "$(dirname "$0")/bed.sh"
n_skipped=0

# ---- systemd ----

verify() { # UNIT: nothing is said about it
    XDG_RUNTIME_DIR=$folder systemd-analyze --user --man=no verify "$1" \
        >out 2>err && [ ! -s out ] && [ ! -s err ]
}
# Where the program is, is the reader's business.
sed "s#/usr/local/bin/sluice#$sluice#" "$examples/sluice-coordinator.service" \
    >sluice-coordinator.service
if command -v systemd-analyze >/dev/null 2>&1; then
    if verify ./sluice-coordinator.service; then ok; else
        bad "systemd finds fault with the unit"
    fi
    for change in 's/^RestartSec=/RestartSecs=/' 's/^Type=exec/Type=exce/' \
        's#^ExecStart=/#ExecStart=#'; do
        sed "$change" sluice-coordinator.service >bad.service
        if verify ./bad.service; then bad "$change is not found"; else ok; fi
    done
else
    n_skipped=$((n_skipped + 1))
fi
# What it starts is a coordinator, with options that there are.
command=$(sed -n "s#^ExecStart=$sluice ##p" sluice-coordinator.service)
# shellcheck disable=SC2086
passes 'coordinator of' $command --once

# ---- Kubernetes ----

changed() { # FILE CHANGE: the check finds it
    sed "$2" "$examples/kubernetes/$1" >changed.yaml
    if cmp -s changed.yaml "$examples/kubernetes/$1"; then
        bad "$2 changes nothing in $1"
    elif python3 "$check_manifest" "$sluice" changed.yaml >out 2>err; then
        bad "$2 is not found in $1"
    else ok; fi
}
if python3 -c 'import yaml' 2>/dev/null; then
    if python3 "$check_manifest" "$sluice" "$examples"/kubernetes/*.yaml \
        >out 2>err; then ok; else bad "a manifest is wrong"; fi
    changed coordinator.yaml 's/"--run-dir"/"--rundir"/'
    changed coordinator.yaml 's/"coordinator", /"coordinate", /'
    changed coordinator.yaml 's/matchLabels: {app: .*}/matchLabels: {app: x}/'
    changed coordinator.yaml 's/{name: run, mountPath/{name: rum, mountPath/'
    changed coordinator.yaml 's/hostPID: true/hostPid: true/'
    changed coordinator.yaml 's/restartPolicy: OnFailure/restartPolicy: Always/'
    changed coordinator.yaml 's/DirectoryOrCreate/DirectoryAndCreate/'
    changed mpijob.yaml 's/"--restarts"/"--restart-count"/'
    changed mpijob.yaml 's/"--resume"/"--resumes"/'
    changed mpijob.yaml 's/claimName/claim/'
    changed mpijob.yaml 's/cleanPodPolicy: Running, /cleanPodPolicy: [/'
else
    n_skipped=$((n_skipped + 1))
fi

echo "examples: $n_passed passed, $n_failed failed, $n_skipped skipped"
[ $n_failed -eq 0 ]
