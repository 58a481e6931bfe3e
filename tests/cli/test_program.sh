#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The program as a person uses it: hashes, outputs, wrong input.
#   tests/cli/test_program.sh build/sluice
. "$(dirname "$0")/bed.sh"

cat >gpt.yaml <<'YAML'
data: {format: synthetic_tokens, context: 12, classes: 17, n_samples: 64, n_valid: 16}
model: {type: gpt, layers: 2, width: 16, heads: 2, vocab: 17, dropout: 0.1}
train: {batch: 7, micro_batches: 3, steps: 3, seed: 5}
optimizer: {type: adamw, lr: 0.01, clip_norm: 1.0, weight_decay: 0.1}
YAML
cat >resnet.yaml <<'YAML'
data:
  format: synthetic_images
  image: {channels: 3, height: 16, width: 16}
  classes: 4
  n_samples: 32
model: {type: resnet, depth: 18, stem: cifar, classes: 4}
train: {batch: 6, micro_batches: 3, steps: 2}
optimizer: {type: sgd, lr: 0.01, momentum: 0.9}
YAML

# ---- one hash for every layout ----
for config in gpt.yaml resnet.yaml; do
    want=$(hash_of $config --devices cpu:1)
    [ ${#want} -eq 16 ] || bad "$config: no state hash"
    for devices in 2 3 4; do
        for schedule in gpipe 1f1b; do
            for recompute in none full except-last auto; do
                got=$(hash_of $config --devices cpu:$devices \
                    --schedule $schedule --recompute $recompute)
                if [ -n "$got" ] && [ "$got" = "$want" ]; then ok; else
                    bad "$config $devices $schedule $recompute: $got not $want"
                fi
            done
        done
    done
done

# ---- outputs ----
passes 'final loss .*  step 3  state-hash ' train gpt.yaml --metrics m.jsonl \
    --timeline t.svg --curve c.svg --save w.safetensors --devices cpu:2
[ "$(wc -l <m.jsonl)" -eq 3 ] && ok || bad 'metrics: three lines'
grep -q '</svg>' t.svg && grep -q '</svg>' c.svg && ok || bad 'SVG files'
passes '^loss ' eval gpt.yaml --weights w.safetensors
for output in --save --timeline --curve; do
    refuses 1 'cannot write nowhere/x' train gpt.yaml $output nowhere/x
    if grep -q state-hash out || grep -q 'step 1/' err; then
        bad "$output: known after the steps only"
    else ok; fi
done
passes '"accuracy"' eval gpt.yaml --weights w.safetensors --json
passes 'bubble' plan gpt.yaml --stages 3
passes '"stages"' plan gpt.yaml --stages 3 --json
passes '^fits$' plan gpt.yaml
for width in 80 100; do
    COLUMNS=$width "$sluice" plan gpt.yaml --stages 3 >out 2>err
    # sentences are wrapped by the terminal
    if grep -v '[a-z],\? [a-z]* [a-z]' out | awk -v width=$width \
        'length($0) > width && !/samples|costs/ {exit 1}' &&
        grep -q '^stage ' out; then ok; else bad "a plan in $width columns"; fi
done
passes 'does not fit: it would fit with ' plan gpt.yaml --device-memory 300KiB
passes '"peak_bytes"' plan gpt.yaml --recompute auto --json
refuses 1 'it would fit with ' train gpt.yaml --device-memory 300KiB
passes 'kept in' profile gpt.yaml --repeats 2
passes 'costs: measured' plan gpt.yaml
passes 'speed-up' speedup gpt.yaml --devices cpu:2 --threads 1 --repeats 2
passes 'sluice 0' --version
passes 'cores' doctor
passes 'label_smoothing' layers
passes 'heads' layers attention
passes 'CONFIG' train --help
passes 'final loss' train gpt.yaml --steps 1 --set optimizer.type=sgd
passes 'final loss' train gpt.yaml --steps 1 --batch 2 --micro-batches 4
passes 'step 0 ' train gpt.yaml --steps 0

# ---- wrong input ----
refuses 2 'CONFIG is missing' train
refuses 2 "no command 'trian'" trian
refuses 2 'no layer or model' layers convolution
refuses 2 'unrecognized option' train gpt.yaml --no-such-option
refuses 2 'nothing.yaml' train nothing.yaml
refuses 2 "stepz" train gpt.yaml --set train.stepz=4
refuses 2 'micro_batches' train gpt.yaml --micro-batches 0
refuses 2 'steps' train gpt.yaml --steps -1
refuses 2 'steps' train gpt.yaml --steps 1e9x
refuses 2 'schedule' train gpt.yaml --schedule pipedream
refuses 2 'lifo' train gpt.yaml --schedule 1f1b --backward-order lifo
refuses 2 'stages' train gpt.yaml --stages 100
thread_limit=${OMP_THREAD_LIMIT:-}
OMP_THREAD_LIMIT=1
export OMP_THREAD_LIMIT
refuses 2 'OMP_THREAD_LIMIT' train gpt.yaml --threads 2
passes 'final loss' train gpt.yaml --steps 1
unset OMP_THREAD_LIMIT
[ -z "$thread_limit" ] || export OMP_THREAD_LIMIT="$thread_limit"
refuses 2 'tpu' train gpt.yaml --devices tpu:1
refuses 2 'number of devices' train gpt.yaml --devices cpu:0
# a kind that is not built is a wrong word, a GPU that is not there bad luck
want=2
! "$sluice" doctor | grep -q '^device kinds.*cuda' || want=1
refuses $want "device 'cuda:1'" train gpt.yaml --devices cuda:1
for size in ' 1GiB' '1GiB ' '' '[1]' '1 GiB'; do
    refuses 2 'device-memory' train gpt.yaml --device-memory "$size"
done
for size in -1 010m 4g 99999999999GiB 1e3 0x10 1KiBs; do
    refuses 2 'memory' train gpt.yaml --device-memory "$size"
done
passes 'final loss' train gpt.yaml --steps 1 --device-memory 4GB
refuses 1 'limit' train gpt.yaml --device-memory 100KiB
refuses 2 'no tensor' train resnet.yaml --weights w.safetensors
refuses 1 'nowhere' train gpt.yaml --weights nowhere.safetensors
refuses 1 'm.jsonl' train gpt.yaml --metrics /nonexistent/m.jsonl
head -c 100 w.safetensors >cut.safetensors
refuses 1 'cut.safetensors' train gpt.yaml --weights cut.safetensors
printf 'data: {format: text, path: gone.txt}\nmodel: {type: mlp}\n' >gone.yaml
refuses 1 'gone.txt' train gone.yaml
printf 'train: {steps: 1\n' >broken.yaml
refuses 2 'broken.yaml:' train broken.yaml
printf 'train:\n\tsteps: 1\n' >tab.yaml
refuses 2 'tab.yaml:2' train tab.yaml
: >empty.yaml
refuses 2 'model' train empty.yaml
mkdir folder.yaml
refuses 2 'folder.yaml' train folder.yaml
if [ -w /dev/full ]; then
    refuses 1 'No space' train gpt.yaml --metrics /dev/full
fi

# ---- Ctrl-C ends after the step, cleanly ----
"$sluice" train gpt.yaml --steps 1000000 --quiet --save int.safetensors \
    --metrics int.jsonl >out 2>err &
job=$!
until_true test -s int.jsonl
kill -INT $job
await_job
if [ $status -eq 130 ] && grep -q 'state-hash' out &&
    [ -s int.safetensors ]; then ok; else bad "Ctrl-C: exit status $status"; fi

finish
