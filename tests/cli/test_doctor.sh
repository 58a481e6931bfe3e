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
case $cuda in
no)
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
passes '^gpu 1  busy 0 %, 1.00 GiB of 80.00 GiB in use, 0 processes' top --once
FAKE_NVML=lost passes 'GPU 1 cannot be asked' top --once
FAKE_NVML=broken passes 'does not start: Driver/library version' doctor
FAKE_NVML=mute passes 'use of memory not told' top --once
[ "$cuda" != standin ] || passes 'bus 0000:0A:00.0, busy 40 %' doctor

echo "$n_passed passed, $n_failed failed"
[ $n_failed -eq 0 ]
