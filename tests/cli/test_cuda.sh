#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The program on CUDA devices, those of the stand-in:
#   tests/cli/test_cuda.sh build/sluice
. "$(dirname "$0")/bed.sh"

# loss_of ARGUMENT...: the last loss
loss_of() {
    "$sluice" train "$@" --quiet --threads 1 2>err | tee out | tail -1 |
        sed -n 's/final loss \([0-9.]*\) .*/\1/p'
}

# near WANT GOT MOST WHAT
near() {
    if awk -v a="$1" -v b="$2" -v most="$3" \
        'BEGIN { d = a - b; exit !(a != "" && b != "" && d * d <= most * most) }'
    then ok; else
        bad "$4: loss $2, not $1 within $3"
    fi
}

cat >gpt.yaml <<'YAML'
data: {format: synthetic_tokens, context: 12, classes: 17, n_samples: 64, n_valid: 16}
model: {type: gpt, layers: 2, width: 16, heads: 2, vocab: 17, dropout: 0.1}
train: {batch: 7, micro_batches: 3, steps: 6, seed: 5}
optimizer: {type: adamw, lr: 0.01, clip_norm: 1.0, weight_decay: 0.1}
YAML
cat >resnet.yaml <<'YAML'
data: {format: synthetic_images, image: {channels: 3, height: 16, width: 16}, classes: 4, n_samples: 32, n_valid: 8}
model: {type: resnet, depth: 18, stem: cifar, classes: 4}
train: {batch: 8, micro_batches: 2, steps: 2}
optimizer: {type: sgd, lr: 0.01, momentum: 0.9}
YAML

# ---- one hash for every layout, a CPU's loss nearly ----
for config in gpt.yaml resnet.yaml; do
    want=$(hash_of $config --devices cuda:1)
    near "$(loss_of $config --devices cpu:1)" \
        "$(loss_of $config --devices cuda:1)" 0.01 "$config beside a CPU"
    same "$want" "$(hash_of $config --devices cuda:2)" "$config, two devices"
    same "$want" "$(hash_of $config --devices cuda:4 --schedule 1f1b \
        --recompute full)" "$config, four stages"
    same "$want" "$(hash_of $config --devices cuda:2 --recompute auto \
        --stages 3)" "$config, three stages on two"
done

# ---- batch norm and pools by cuDNN ----
sed 's/stem: cifar/stem: imagenet/; s/steps: 2/steps: 2, cudnn_images: true/' \
    resnet.yaml >images.yaml
want=$(hash_of images.yaml --devices cuda:1)
near "$(loss_of images.yaml --devices cuda:1 --set train.cudnn_images=false)" \
    "$(loss_of images.yaml --devices cuda:1)" 0.01 'images by cuDNN'
same "$want" "$(hash_of images.yaml --devices cuda:4 --schedule 1f1b \
    --recompute full)" 'images by cuDNN, four stages'
hash_of images.yaml --devices cuda:1 --steps 1 --checkpoint i >/dev/null
same "$want" "$(hash_of images.yaml --devices cuda:2 --resume i)" \
    'images by cuDNN, resumed'
passes 'final loss' train images.yaml --devices cuda:1 --resume i \
    --set train.cudnn_images=false --set train.cudnn_workspace=1MiB
told='train.cudnn_images is true there and false here; '
told="${told}train.cudnn_workspace is 0 there and 1048576 here"
grep -q "not with the same bits: $told" err && ok ||
    bad 'another use of cuDNN should be told'
rm -rf i
# the most that a convolution may take: the stand-in's fastest has a GiB
plan_bytes() {
    "$sluice" plan resnet.yaml --devices cuda:1 --json "$@" 2>err
}
if [ "$(plan_bytes)" != "$(plan_bytes --set train.cudnn_workspace=1GiB)" ]
then ok; else
    bad 'a plan should count a larger workspace'
fi

# ---- the default is what is there ----
want=$(hash_of gpt.yaml --devices cuda:2)
same "$want" "$(hash_of gpt.yaml)" 'two GPUs are taken'
want=$(hash_of gpt.yaml --devices cpu:1)
same "$want" "$(SL_STANDIN_DEVICES=0 hash_of gpt.yaml)" 'no GPU'

# ---- precisions ----
for precision in tf32 bf16 f16; do
    want=$(hash_of gpt.yaml --devices cuda:1 --precision $precision)
    same "$want" "$(hash_of gpt.yaml --devices cuda:2 --precision $precision)" \
        "$precision"
    near "$(loss_of gpt.yaml --devices cuda:1)" \
        "$(loss_of gpt.yaml --devices cuda:1 --precision $precision)" 0.1 \
        $precision
done
passes 'final loss' train gpt.yaml --devices cuda:2 --precision f16 --metrics m
if grep -q '"loss_scale":65536.0,"skipped_steps":0' m; then ok; else
    bad "the metrics of f16 should have the loss scale"
fi
grep -q 'scale 65536' err && ok || bad "the progress of f16: no loss scale"
refuses 2 'need CUDA devices' train gpt.yaml --devices cpu:1 --precision bf16
refuses 2 'TF32' train gpt.yaml --devices cpu:1 --precision tf32
refuses 2 'precision' train gpt.yaml --devices cuda:1 --precision f8

# ---- the other commands ----
passes 'bubble' plan gpt.yaml --devices cuda:2
passes 'sum' profile gpt.yaml --devices cuda:1 --repeats 3
passes 'sum' profile resnet.yaml --devices cuda:1 --repeats 2 --precision bf16
passes 'bubble' plan gpt.yaml --devices cuda:2 --costs profile
passes 'speed-up' speedup gpt.yaml --devices cuda:2 --repeats 2
passes 'final loss' train gpt.yaml --devices cuda:2 --save w --memory-trace t
[ -s t.cuda0 ] && [ -s t.cuda1 ] && ok || bad "no memory traces"
passes 'loss .*accuracy' eval gpt.yaml --devices cuda:2 --weights w
loss=$("$sluice" eval gpt.yaml --devices cuda:1 --weights w 2>err |
    sed -n 's/^loss \([0-9.]*\) .*/\1/p')
near "$loss" "$("$sluice" eval gpt.yaml --devices cpu:1 --weights w 2>err |
    sed -n 's/^loss \([0-9.]*\) .*/\1/p')" 0.001 'weights on the other kind'

# ---- checkpoints ----
want=$(hash_of gpt.yaml --devices cuda:2)
hash_of gpt.yaml --devices cuda:1 --steps 3 --checkpoint c >/dev/null
same "$want" "$(hash_of gpt.yaml --devices cuda:3 --resume c)" 'cuda to cuda'
want=$(hash_of gpt.yaml --devices cuda:2 --precision f16)
hash_of gpt.yaml --devices cuda:1 --steps 3 --checkpoint f --precision f16 \
    >/dev/null
same "$want" "$(hash_of gpt.yaml --devices cuda:2 --resume f --precision f16)" \
    'f16 to f16'
grep -q '"loss_scale"' f/step-*/manifest.json && ok ||
    bad 'the checkpoint of f16 should have its loss scale'
# from one kind to the other and back: the same state, other bits
near "$(loss_of gpt.yaml --devices cpu:1)" \
    "$(loss_of gpt.yaml --devices cpu:2 --resume c)" 0.001 'cuda to cpu'
grep -q 'devices.kind is cuda there and cpu here' err && ok ||
    bad 'another kind of device should be told'
rm -rf c
hash_of gpt.yaml --devices cpu:1 --steps 3 --checkpoint c >/dev/null
near "$(loss_of gpt.yaml --devices cpu:1)" \
    "$(loss_of gpt.yaml --devices cuda:2 --resume c)" 0.001 'cpu to cuda'

# ---- AntMan's files: a GPU goes by its place on the bus ----
printf '{"gpuConfigInfo": {"0000:0A:00.0": {"maxDeviceMem": 268435456}}}\n' \
    >sche2pai.json
chmod 600 sche2pai.json
if GPU_CONFIG_FILE=$folder/sche2pai.json GPU_STATUS_FILE=$folder/pai2sche.json \
    "$sluice" train gpt.yaml --quiet --devices cuda:4 --prometheus gpu.prom \
    >out 2>err &&
    grep -q '{"0a:00.0":{.*},"0b:00.0":{.*}}' pai2sche.json &&
    grep -q 'limit_asked_bytes{.*device="cuda:0"} 134217728$' gpu.prom &&
    grep -q 'limit_asked_bytes{.*device="cuda:1"} 134217728$' gpu.prom &&
    ! grep -q 'limit_asked_bytes{.*device="cuda:2"} 134217728$' gpu.prom
then ok; else
    bad "AntMan's keys: $(cat pai2sche.json)"
fi

# ---- a device that fails ----
SL_STANDIN_FAIL=cudaLaunchKernelEx:200:700:run
export SL_STANDIN_FAIL
timeout 120 "$sluice" train gpt.yaml --devices cuda:2 >out 2>err
status=$?
unset SL_STANDIN_FAIL
if [ $status -ne 0 ] && [ $status -lt 124 ] &&
    grep -q 'illegal memory access' err; then ok; else
    bad "a failed kernel: exit status $status"
fi

# ---- a GPU that one rank has lost: a failure that another start may not meet,
# ---- and one message that names its host
# lost TEXT OPTION...: rank 1 ends the job so, $gpus of them on rank 1
port=$((22000 + $$ % 10000))
lost() {
    text=$1
    shift
    port=$((port + 1))
    SLUICE_WORLD=2 SLUICE_MASTER=127.0.0.1:$port
    export SLUICE_WORLD SLUICE_MASTER
    SL_STANDIN_DEVICES=$gpus SLUICE_RANK=1 timeout 120 "$sluice" train \
        gpt.yaml --quiet "$@" >out2 2>err2 &
    SL_STANDIN_DEVICES=$((2 - gpus)) SLUICE_RANK=0 timeout 120 "$sluice" train \
        gpt.yaml --quiet "$@" >out 2>err
    status=$?
    wait $!
    status=$status,$?
    unset SLUICE_WORLD SLUICE_MASTER
    if [ $status = 1,1 ] && [ "$(grep -c 'on host' err)" -eq 1 ] &&
        grep -qe "$text" err && [ ! -s err2 ]; then ok; else
        cat err2 >>err
        bad "a GPU that is gone: exit status $status, and not '$text'"
    fi
}
gpus=0
lost 'error: rank 1 on host .* has a device failure: no GPU is found, and 1 of 2'
lost 'error: rank 1 on host .* has a device failure: .*no GPU to use' \
    --devices cuda:1
gpus=2
lost 'error: rank 0 on host .* has a device failure: no GPU is found, and 1 of 2'
lost 'error: rank 0 on host .* has a device failure: see above' \
    --devices cuda:1

finish
