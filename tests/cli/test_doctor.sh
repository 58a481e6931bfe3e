#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What doctor and top say of GPUs. $1 the program, $2 the folder of a fake
# management library, $3 what the build has of CUDA: no, standin or toolkit.
fake=$(cd "$2" && pwd) || exit 1
cuda=$3
SL_STANDIN_DEVICES=2
export SL_STANDIN_DEVICES
. "$(dirname "$0")/bed.sh"

if [ ! -e /dev/nvidiactl ]; then
    passes 'nvidia driver *libnvidia-ml.so.1 is not here' doctor
    "$sluice" top --json >out 2>err
    if grep -q '"gpus"' out; then bad 'top shows GPUs that are not there'; else
        ok; fi
fi

# as JSON: the same facts, by names that stay
for name in sluice cpu model cores vectors channel_block memory_bytes \
    device_kinds libraries onednn jansson hwloc programs name is_found purpose \
    install nvidia_driver cuda is_built gpus; do
    passes "\"$name\": " doctor --json
done
"$sluice" doctor >table 2>err
"$sluice" doctor --json >out 2>err
# fact TABLE-LINE JSON-NAME: the value of one is that of the other
fact() {
    value=$(sed -n "s/^$1  *\([^ ,]*\).*/\1/p" table)
    if [ -n "$value" ] && grep -q "\"$2\": \"\{0,1\}${value}[\",]*$" out; then
        ok
    else
        bad "$1 is '$value' in the table, and '$2' another as JSON"
    fi
}
fact cores cores
fact oneDNN onednn
fact jansson jansson
fact hwloc hwloc
fact sluice sluice
[ ! -e /dev/nvidiactl ] &&
    passes '"error": "libnvidia-ml.so.1 is not here' doctor --json
passes 'Usage: sluice doctor \[--json\]' doctor --help
"$sluice" doctor --jsom >out 2>err
[ $? -eq 2 ] && ok || bad "doctor takes an option that it does not have"
if command -v python3 >/dev/null; then
    "$sluice" doctor --json | python3 -m json.tool >out 2>err && ok ||
        bad 'doctor --json is no JSON'
fi

case $cuda in
no)
    passes '"is_built": false' doctor --json
    passes 'CUDA *not in this build' doctor
    passes 'cmake -DSL_CUDA=ON' doctor
    ;;
standin)
    passes 'device kinds *cpu, cuda' doctor
    passes 'CUDA *runtime 13.0 (built against 13.0), driver for up to 13.0' \
        doctor
    passes 'cuBLASLt *13.1.0 (built against 13.1.0)$' doctor
    passes 'cuDNN *9.19.0 (built against 9.19.0)$' doctor
    passes 'NCCL *2.28.9 (built against 2.28.9)$' doctor
    passes 'gpu 0 *stand-in 0, compute capability 9.0' doctor
    passes '3.00 GiB of memory, 3.00 GiB free' doctor
    passes 'bus 0000:0B:00.0' doctor
    passes 'gpu reaches *0 *1' doctor
    for fact in '"is_built": true' '"runtime": "13.0"' '"driver": "13.0"' \
        '"built_for": "the stand-in"' '"version": "9.19.0"' \
        '"built_against": "2.28.9"' '"is_usable": true' '"name": "stand-in 1"' \
        '"compute_capability": "9.0"' '"is_covered": null' \
        '"total_bytes": 3221225472' '"free_bytes": 3221225472' \
        '"bus": "0000:0B:00.0"' '"gpu_ways": ' '^      "direct"'; do
        passes "$fact" doctor --json
    done
    SL_STANDIN_FAIL=cudaGetDeviceCount:1:100 passes '"error": "no device' \
        doctor --json
    SL_STANDIN_FAIL=cudaMemGetInfo:1:46 passes '"error": "all devices' \
        doctor --json
    # a call that fails is told, and does not end it
    SL_STANDIN_FAIL=cudaGetDeviceCount:1:100 passes 'gpus *none: no device' \
        doctor
    SL_STANDIN_FAIL=cudaMemGetInfo:1:46 passes 'cannot be used: all devices' \
        doctor
    ;;
esac

LD_LIBRARY_PATH=$fake
export LD_LIBRARY_PATH
passes 'nvidia driver *580.65.06, 2 gpus' doctor
passes 'busy 40 %, 6.00 GiB of 80.00 GiB in use, 3 processes' doctor
passes '"pid": 200' top --json
passes '"n_processes": 3' top --json
passes '"version": "580.65.06"' doctor --json
passes '"n_gpus": 2' doctor --json
FAKE_NVML=broken passes '"error": ".*does not start: Driver/library' \
    doctor --json
passes '^gpu 1  busy 0 %, 1.00 GiB of 80.00 GiB in use, 0 processes' top --once
FAKE_NVML=lost passes 'GPU 1 cannot be asked' top --once
FAKE_NVML=broken passes 'does not start: Driver/library version' doctor
FAKE_NVML=mute passes 'use of memory not told' top --once
[ "$cuda" != standin ] || passes 'bus 0000:0A:00.0, busy 40 %' doctor
# without CUDA the driver's GPUs are told all the same
if [ "$cuda" != toolkit ]; then
    passes '"busy_percent": 40' doctor --json
    passes '"uuid": "GPU-' doctor --json
fi
if [ "$cuda" = no ]; then
    passes '^gpu 0 .*, busy 40 %' doctor
    FAKE_NVML=lost passes '^gpu 1 *cannot be asked: ' doctor
fi

finish
