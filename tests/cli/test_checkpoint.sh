#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Checkpoints as a person uses them: saved, gone on from in another shape,
# listed, merged, damaged, and where there is no room or no permission.
#   tests/cli/test_checkpoint.sh build/sluice
# SLUICE_NO_MPI: when set, nothing is run under mpirun.
. "$(dirname "$0")/bed.sh"
on_end() {
    kill_job
    umount -l full worn 2>/dev/null
}

# refuses STATUS TEXT ARGUMENT...: that exit status and TEXT in the messages
refuses() {
    want=$1
    text=$2
    shift 2
    timeout 120 "$sluice" "$@" >out 2>err
    status=$?
    if [ $status -eq "$want" ] && cat out err | grep -qe "$text"; then ok; else
        bad "sluice $*: exit status $status, not $want with '$text'"
    fi
}

cat >gpt.yaml <<'YAML'
data: {format: synthetic_tokens, context: 12, classes: 17, n_samples: 64, n_valid: 16}
model: {type: gpt, layers: 2, width: 16, heads: 2, vocab: 17, dropout: 0.1}
train: {batch: 7, micro_batches: 3, steps: 24, seed: 5}
optimizer: {type: adamw, lr: 0.01, clip_norm: 1.0, weight_decay: 0.1, lr_schedule: cosine, warmup_steps: 8, total_steps: 24}
YAML
cat >resnet.yaml <<'YAML'
data: {format: synthetic_images, image: {channels: 3, height: 8, width: 8}, classes: 4, n_samples: 32, flip: true, crop_pad: 1}
model: {type: resnet, depth: 18, stem: cifar, classes: 4}
train: {batch: 6, micro_batches: 3, steps: 6}
optimizer: {type: sgd, lr: 0.01, momentum: 0.9, lr_schedule: step, lr_step_every: 4}
YAML

# ---- every shape to every shape ----
for config in gpt.yaml:11:24 resnet.yaml:4:6; do
    name=${config%%:*}
    steps=${config#*:}
    all=${steps#*:}
    half=${steps%:*}
    want=$(hash_of "$name")
    for from in 1:gpipe 2:1f1b 3:gpipe; do
        rm -rf c
        hash_of "$name" --devices cpu:${from%:*} --schedule ${from#*:} \
            --steps "$half" --checkpoint c >/dev/null
        for to in 1:1f1b 2:gpipe 3:1f1b; do
            got=$(hash_of "$name" --devices cpu:${to%:*} \
                --schedule ${to#*:} --resume c --steps "$all")
            same "$want" "$got" "$name from $from to $to"
        done
    done
done

# ---- saving, listing, keeping ----
rm -rf c
passes 'final loss' train gpt.yaml --quiet --checkpoint c --checkpoint-every 4 \
    --checkpoint-keep 2 --checkpoint-best --set train.eval_every=6
passes '^step-00000024 .*ok, latest' checkpoint list c
passes '"best": true' checkpoint list c --json
passes '^step-00000024 .*ok' checkpoint verify c
passes '"reason": null' checkpoint verify c/step-00000024 --json
n=$(find c -name 'step-*' | wc -l)
if [ "$n" -ge 2 ] && [ "$n" -le 3 ]; then ok; else bad "$n are kept"; fi
grep -q '^step-00000024$' c/latest && ok || bad 'the pointer'
passes 'step 24 ' train gpt.yaml --quiet --checkpoint c --resume auto
passes 'step 24 ' train gpt.yaml --quiet --checkpoint c --resume latest
refuses 2 'go on from them with --resume auto' train gpt.yaml --checkpoint c
refuses 2 'train.steps is 20' train gpt.yaml --resume c --steps 20
refuses 2 'train.batch is 7 there and 8 here' train gpt.yaml --resume c \
    --batch 8
refuses 2 'optimizer.lr is 0.01 there and 0.02 here' train gpt.yaml \
    --resume c --set optimizer.lr=0.02
refuses 2 'layer 0 is wte' train gpt.yaml --resume c --set model.width=32
refuses 2 'in which directory' train gpt.yaml --resume auto
refuses 2 'no directory to write to' train gpt.yaml --checkpoint-every 5
refuses 1 'nowhere' train gpt.yaml --resume nowhere
passes 'weights only' train gpt.yaml --quiet --resume c --resume-as weights \
    --steps 1 --set optimizer.type=sgd
passes 'step 26 ' train gpt.yaml --quiet --resume c --resume-as changed \
    --steps 26 --set optimizer.lr=0.02
passes 'step 0 ' train gpt.yaml --quiet --checkpoint new --resume auto --steps 0

# ---- other forms ----
want=$(hash_of gpt.yaml --resume c)
passes 'weights written' checkpoint merge c --output w.safetensors
passes 'whole state' checkpoint merge c --output a.safetensors --moments
passes 'written to s/step-00000024' checkpoint split a.safetensors --output s \
    --shards 3
same "$want" "$(hash_of gpt.yaml --resume s)" 'merged and split'
refuses 1 'a.safetensors is there already' checkpoint merge c \
    --output a.safetensors
cp a.safetensors before.safetensors
refuses 1 'with --force' checkpoint merge c --output a.safetensors --moments
cmp -s a.safetensors before.safetensors && ok || bad 'a file that was there'
passes 'whole state' checkpoint merge c --output a.safetensors --moments --force
COLUMNS=80 "$sluice" checkpoint list c >out 2>err
if [ "$(wc -L <out)" -le 80 ] && grep -q 'ok, latest' out; then ok; else
    bad 'a list for 80 columns'
fi
passes '^loss ' eval gpt.yaml --weights w.safetensors
refuses 2 'no manifest' checkpoint split w.safetensors --output t
refuses 2 'list, verify, merge or split' checkpoint mend c
refuses 2 'output is missing' checkpoint merge c
refuses 1 'nowhere' checkpoint list nowhere

# ---- damage: told, skipped, found by verify ----
rm -rf c
passes 'final loss' train gpt.yaml --quiet --checkpoint c --checkpoint-every 8
printf x | dd of=c/step-00000024/state-0000-0000.safetensors bs=1 seek=3000 \
    conv=notrunc 2>/dev/null
refuses 1 'its checksum is' checkpoint verify c
refuses 1 'it is damaged' train gpt.yaml --resume c/step-00000024
passes 'resumed from c/step-00000016' train gpt.yaml --quiet --checkpoint c \
    --resume auto
# all is done already, and on disk: nothing is written
passes 'resumed from c/step-00000024' train gpt.yaml --quiet --checkpoint c \
    --resume auto
rm -rf c/step-0000001* c/step-00000024/manifest.json c/step-00000008/m*
refuses 1 'can be used' train gpt.yaml --checkpoint c --resume auto

interrupt() { # WHAT: a job that has trained through it ends when told
    kill -INT $job
    await_job
    if [ $status -eq 130 ]; then ok; else bad "$1: exit status $status"; fi
}

# ---- a disk that is full ----
rm -rf c
(
    ulimit -f 40
    "$sluice" train gpt.yaml --quiet --checkpoint c --checkpoint-every 8
) >out 2>err
status=$?
if [ $status -eq 1 ] && grep -q 'was not written, training goes on' err &&
    grep -q 'state-hash' out &&
    grep -q 'all steps are done, but c/step-00000024 could.*: none' err &&
    [ -z "$(find c -name '*step-*')" ]; then ok; else
    bad "no room: exit status $status"
fi
(
    ulimit -f 40
    "$sluice" train gpt.yaml --quiet --checkpoint c --checkpoint-every 8 \
        --set checkpoint.on_error=stop
) >out 2>err
status=$?
if [ $status -eq 1 ] && ! grep -q 'state-hash' out; then ok; else
    bad "no room, on_error stop: exit status $status"
fi
mkdir full
if mount -t tmpfs -o size=300k tmpfs full 2>/dev/null; then
    "$sluice" train gpt.yaml --quiet --checkpoint full --checkpoint-every 4 \
        --checkpoint-keep 0 >out 2>err
    status=$?
    if [ $status -eq 1 ] && grep -q 'No space left' err &&
        grep -q 'all steps are done, but full/step-00000024 could.*: step-' err
    then ok; else
        bad "full disk: exit status $status"
    fi
    "$sluice" checkpoint verify full >out 2>err && ok || bad 'full disk: damage'
    rm -rf full/*
    mount -o remount,ro full
    refuses 1 'Read-only file system' train gpt.yaml --checkpoint full
    umount full
fi

# ---- a disk that the system makes read-only while a job trains ----
mkdir worn
truncate -s 32M image
if mkfs.ext4 -q image 2>/dev/null && mount -o loop image worn 2>/dev/null; then
    "$sluice" train gpt.yaml --quiet --steps 10000000 --checkpoint worn \
        --checkpoint-every 200 >out 2>err &
    job=$!
    until_true test -s worn/latest
    mount -o remount,abort worn
    until_true grep -q 'was not written, training goes on: .*Read-only' err
    interrupt 'read-only while training'
    umount worn && mount -o loop image worn
    passes '^step-.*ok, latest' checkpoint verify worn
    umount worn
fi

# ---- a directory that may not be written to, before and while training ----
# root may write everywhere, unless it gives that up
plain=
[ "$(id -u)" -ne 0 ] || plain='setpriv --bounding-set=-dac_override
    --inh-caps=-dac_override'
rm -rf c m.jsonl
mkdir c
chmod 555 c
if $plain true 2>/dev/null && ! $plain touch c/may 2>/dev/null; then
    $plain "$sluice" train gpt.yaml --checkpoint c >out 2>err
    status=$?
    if [ $status -eq 1 ] && grep -q 'c: .*Permission denied' err; then ok; else
        bad "no permission: exit status $status"
    fi
    chmod 755 c
    $plain "$sluice" train gpt.yaml --quiet --steps 10000000 --checkpoint c \
        --checkpoint-every 1 >out 2>err &
    job=$!
    until_true test -s c/latest
    chmod 555 c
    until_true grep -q 'was not written, training goes on: .*denied' err
    chmod 755 c
    before=$(cat c/latest)
    is_later() { [ "$(cat c/latest)" != "$before" ]; }
    until_true is_later
    interrupt 'permission lost'
    passes '^step-.*ok, latest' checkpoint verify c
fi
chmod 755 c

# ---- a signal: the state is saved before the end ----
for signal in INT TERM; do
    rm -rf c m.jsonl
    "$sluice" train gpt.yaml --quiet --checkpoint c --steps 10000000 \
        --metrics m.jsonl >out 2>err &
    job=$!
    until_true test -s m.jsonl
    kill -$signal $job
    await_job
    step=$(step_in out)
    name=step-$(printf '%08d' "${step:-0}")
    if [ $status -eq 130 ] && [ "$(cat c/latest)" = "$name" ]; then ok; else
        bad "$signal: exit status $status, $name"
    fi
done

# ---- many processes write their parts; another number of them goes on ----
# hash_of_ranks N ARGUMENT...: the hash that N processes end with
hash_of_ranks() {
    n=$1
    shift
    ranks "$n" "$sluice" train gpt.yaml --quiet --threads 1 "$@" 2>err |
        tee out | sed -n 's/.*state-hash //p'
}
if begin_mpi; then
    rm -rf c d
    want=$(hash_of gpt.yaml)
    hash_of_ranks 2 --steps 11 --checkpoint c --checkpoint-every 5 >/dev/null
    [ "$(find c/step-00000011 -name 'state-*' | wc -l)" -eq 2 ] && ok ||
        bad 'two ranks, two shards'
    passes '^step-00000011 .*ok' checkpoint verify c
    same "$want" "$(hash_of_ranks 3 --resume c --schedule 1f1b)" \
        'two ranks to three'
    same "$want" "$(hash_of gpt.yaml --resume c)" 'two ranks to one process'
    want=$(hash_of gpt.yaml --replicas 2 --devices cpu:2)
    hash_of_ranks 2 --replicas 2 --stages 1 --set parallel.zero1=true \
        --steps 13 --checkpoint d >/dev/null
    same "$want" "$(hash_of_ranks 4 --replicas 2 --stages 2 --resume d)" \
        'two replicas, sharded moments'
    refuses 2 'is of another run' train gpt.yaml --resume d --batch 8
fi

finish
