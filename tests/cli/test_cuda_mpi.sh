#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `mpirun sluice train` on CUDA devices, those of the stand-in, one a rank: by
# each transport the state of one process; an MPI that knows device memory and
# one that does not; NCCL's errors.
#   tests/cli/test_cuda_mpi.sh build/sluice build/tests/libsl_aware_mpi.so
aware=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
. "$(dirname "$0")/bed.sh"
begin_mpi || skip 'no mpirun'
export SL_STANDIN_DEVICES=4

# the same, by an MPI that knows device memory
aware_ranks() {
    n_ranks=$1
    shift
    ranks "$n_ranks" -x LD_PRELOAD="$aware" "$@"
}

cat >gpt.yaml <<'YAML'
data: {format: synthetic_tokens, context: 12, classes: 17, n_samples: 64}
model: {type: gpt, layers: 2, width: 16, heads: 2, vocab: 17, dropout: 0.1}
train: {batch: 11, micro_batches: 2, steps: 3, seed: 5}
devices: {threads: 1}
parallel: {check_replicas: 1}
optimizer: {type: adamw, lr: 0.01, clip_norm: 1.0, weight_decay: 0.1}
YAML
cat >resnet.yaml <<'YAML'
data:
  format: synthetic_images
  image: {channels: 3, height: 8, width: 8}
  classes: 4
  n_samples: 64
model: {type: resnet, depth: 18, stem: cifar, classes: 4}
train: {batch: 8, micro_batches: 2, steps: 2}
devices: {threads: 1}
optimizer: {type: sgd, lr: 0.05, momentum: 0.9}
YAML

# of CONFIG OPTIONS...: sets want, what one process on one device gives
of() {
    config=$1
    shift
    "$sluice" train "$config" --quiet --devices cuda:1 --stages 1 "$@" \
        >out 2>err
    want=$(hash_line)
    check "$config in one process" test -n "$want"
}
# alike BY RANKS TRANSPORT OPTIONS...: the same by that transport
alike() {
    by=$1
    n=$2
    way=$3
    shift 3
    "$by" "$n" "$sluice" train "$config" --devices cuda:1 \
        --transport "$way" "$@" >out 2>err
    check "$config on $n ranks, $way $*: $want" \
        test "$want" = "$(hash_line)"
    check "it is $way" grep -q "tensors between ranks: $way" out
}

of gpt.yaml
for way in nccl staged; do
    alike ranks 2 $way
    alike ranks 4 $way --schedule 1f1b
done
alike aware_ranks 2 cuda-aware
alike aware_ranks 4 cuda-aware --schedule 1f1b
of gpt.yaml --replicas 2
for way in nccl staged; do
    alike ranks 2 $way --replicas 2 --stages 1 --zero1 true
done
alike aware_ranks 4 cuda-aware --replicas 2
of resnet.yaml
alike ranks 2 nccl
alike aware_ranks 2 cuda-aware

# the choice: NCCL where each rank has a GPU, an MPI that says it can where it
# is asked for
ranks 2 "$sluice" train gpt.yaml --devices cuda:1 >out 2>err
check "a GPU for each" grep -q "tensors between ranks: nccl" out
ranks 2 -x SL_STANDIN_DEVICES=1 "$sluice" train gpt.yaml --devices cuda:1 \
    >out 2>err
check "one GPU for both" grep -q "tensors between ranks: staged" out
ranks 2 -x SL_STANDIN_DEVICES=1 "$sluice" train gpt.yaml --devices cuda:1 \
    --transport nccl >out 2>err
check "not by NCCL" grep -q "share a GPU" err
ranks 2 "$sluice" train gpt.yaml --devices cuda:1 --transport cuda-aware \
    >out 2>err
check "not by this MPI" grep -q "does not know memory" err

# an error of NCCL on one rank: all end, and one says why
timeout 120 mpirun --oversubscribe --bind-to none \
    -n 1 "$sluice" train gpt.yaml --quiet --devices cuda:1 --transport nccl : \
    -n 1 -x SL_STANDIN_FAIL=ncclRecv:3:3 \
    "$sluice" train gpt.yaml --quiet --devices cuda:1 --transport nccl \
    >out 2>err
status=$?
check "exit status $status with an error of NCCL" \
    test $status -ne 0 -a $status -ne 124
check "the reason" grep -q 'ncclRecv' err
check "in one message" test "$(grep -c 'sluice: error' err)" -eq 1

finish
