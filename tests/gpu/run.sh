#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# All that has to be seen on a GPU, in at most six minutes with the build:
#
#   tests/gpu/run.sh                  builds build-gpu with the toolkit
#   tests/gpu/run.sh --standin        the same parts, tiny, on the stand-in
#
#   --build DIR     build there; one that holds a program is not built again
#   --json FILE     results (DIR/gpu-results.json)
#   --only A,B      these parts alone
#   --kind KIND     devices (cuda); cpu shows that the script itself works
#   --keep          keep the folder with configs and logs, and say where
#
# One part that fails does not stop the others, and one for which no time is
# left has failed. Status 0: all that ran passed. Figures of the benchmark that
# were had before it failed are kept.
# Python (python3, or $PYTHON) with a CUDA build of PyTorch is compared with
# when it is there. Exactness is between runs of one machine and build.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
parts='build doctor ops hash stages precision cpu memory share together
sanitizer bench'

# ---- settings; parts run as children and find them in the environment ----

: "${SL_GPU_MODE:=toolkit}" "${SL_GPU_KIND:=cuda}" "${SL_GPU_BUILD:=}"
python=${PYTHON:-python3}
json= only= keep= part=
while [ $# -gt 0 ]; do
    case $1 in
    --standin) SL_GPU_MODE=standin ;;
    --build) SL_GPU_BUILD=$2 && shift ;;
    --json) json=$2 && shift ;;
    --only) only=$2 && shift ;;
    --kind) SL_GPU_KIND=$2 && shift ;;
    --keep) keep=1 ;;
    --part) part=$2 && shift ;;
    *)
        sed -n '3,18s/^# \{0,1\}//p' "$0"
        [ "$1" = --help ]
        exit $(($? * 2))
        ;;
    esac
    shift
done
if [ -z "$SL_GPU_BUILD" ]; then
    SL_GPU_BUILD=$root/build-gpu
    [ $SL_GPU_MODE = toolkit ] || SL_GPU_BUILD=$root/build-gpu-standin
fi
case $SL_GPU_BUILD in /*) ;; *) SL_GPU_BUILD=$PWD/$SL_GPU_BUILD ;; esac
export SL_GPU_MODE SL_GPU_KIND SL_GPU_BUILD
sluice=$SL_GPU_BUILD/sluice
SL_STANDIN_DEVICES=2
export SL_STANDIN_DEVICES # of the stand-in only
is_standin() { [ "$SL_GPU_MODE" = standin ]; }

# ---- what parts use ----

skip() { # a part that cannot run here
    echo "$*" >detail
    exit 77
}

fail() {
    echo "$*" >detail
    exit 1
}

say() { echo "$*" >detail; }

# sizes NAME: the config NAME.yaml, small on a GPU, tiny on the stand-in
config() {
    case $1 in
    gpt)
        set -- gpt 4 128 64 256 16 4 8
        ! is_standin || set -- gpt 2 32 16 32 8 4 3
        cat >gpt.yaml <<END
data: {format: synthetic_tokens, context: $4, classes: $5, n_samples: 256}
model: {type: gpt, layers: $2, width: $3, heads: 4, vocab: $5, dropout: 0.1}
train: {batch: $6, micro_batches: $7, steps: $8}
optimizer: {type: adamw, lr: 1.0e-3}
END
        ;;
    net)
        set -- net 32 16 4 5
        ! is_standin || set -- net 8 4 4 2
        cat >net.yaml <<END
data:
  format: synthetic_images
  image: {channels: 3, height: $2, width: $2}
  classes: 10
  n_samples: 64
model: {type: resnet, depth: 18, stem: cifar, classes: 10}
train: {batch: $3, micro_batches: $4, steps: $5}
optimizer: {type: sgd, lr: 0.05, momentum: 0.9}
END
        ;;
    long) # until it is stopped
        set -- long 4 256 128 16 4
        ! is_standin || set -- long 2 32 16 8 4
        cat >long.yaml <<END
data: {format: synthetic_tokens, context: $4, classes: 64, n_samples: 256}
model: {type: gpt, layers: $2, width: $3, heads: 4, vocab: 64}
train: {batch: $5, micro_batches: $6, steps: 1000000}
optimizer: {type: adamw, lr: 1.0e-3}
END
        ;;
    esac
}

# train CONFIG ARGUMENT...: its log in out; the hash of the state in $hash, the
# last loss in $loss
train() {
    "$sluice" train "$@" --quiet >out 2>err ||
        fail "train $*: $(tail -1 err | cut -c1-160)"
    hash=$(sed -n 's/.*state-hash //p' out)
    loss=$(sed -n 's/.*final loss \([0-9.einfa+-]*\).*/\1/p' out)
    [ -n "$hash" ] && [ -n "$loss" ] ||
        fail "train $*: no loss and hash: $(tail -1 out | cut -c1-160)"
}

# near A B RELATIVE
near() {
    awk -v a="$1" -v b="$2" -v r="$3" 'BEGIN {
        d = a - b; if (d < 0) d = -d; m = b < 0 ? -b : b
        exit !(d <= r * m)}'
}

# start NAME ARGUMENT...: a job in the background; its id in $job, its number
# in $pid
start() {
    name=$1
    shift
    "$sluice" train "$@" --quiet --job-name "$name" >"$name.out" \
        2>"$name.err" &
    pid=$!
    for _ in $(seq 300); do
        job=$(basename "$(echo run/jobs/"$name"-$pid-*)")
        [ ! -s "run/jobs/$job/status.json" ] || return 0
        kill -0 $pid 2>kill.err ||
            fail "train $*: $(tail -1 "$name.err" | cut -c1-160)"
        sleep 0.1
    done
    fail "train $*: no status within 30 s"
}

# field EXPRESSION: of the first device `d` of $job as `sluice top` has it; `j`
# is the job
field() {
    "$sluice" top --json | "$python" -c "
import json, sys
for j in json.load(sys.stdin)['jobs']:
    if j['id'] == '$job':
        d = j['devices'][0]
        print($1)"
}

# ctl ARGUMENT...: a job on a busy CPU may be late with its answer
ctl() {
    "$sluice" ctl "$@" || "$sluice" ctl "$@" || "$sluice" ctl "$@"
}

# until_true SECONDS EXPRESSION: as field, prints True
until_true() {
    local until=$((SECONDS + $1))
    ! is_standin || until=$((SECONDS + 4 * $1)) # a busy CPU
    while [ $SECONDS -le $until ]; do
        [ "$(field "$2")" != True ] || return 0
        sleep 0.2
    done
    return 1
}

stop() { # the job; its hash in $hash
    kill -INT $pid 2>kill.err
    wait $pid
    hash=$(sed -n 's/.*state-hash //p' "$name.out")
}

# ---- the parts ----

part_build() {
    if [ -x "$sluice" ]; then
        say 'there already'
        return
    fi
    local flags='-DSL_CUDA=ON -DSL_CUDA_ARCHITECTURES=native'
    ! is_standin || flags=-DSL_CUDA=STANDIN
    # shellcheck disable=SC2086
    cmake -S "$root" -B "$SL_GPU_BUILD" -DCMAKE_BUILD_TYPE=Release $flags ||
        fail 'cmake fails'
    cmake --build "$SL_GPU_BUILD" -j "$(nproc)" || fail 'the build fails'
    say "$flags"
}

part_doctor() {
    "$sluice" doctor >out 2>err || fail 'sluice doctor fails'
    cat out
    grep -q '^device kinds.*cuda' out || fail 'a build without CUDA'
    grep -q '^gpu 0' out || fail "no GPU: $(grep '^gpus' out)"
    ! grep -q 'NOT covered' out || fail 'the build does not cover the GPU'
    say "$(sed -n 's/^gpu 0 *\([^:]*\):.*/\1/p' out)"
}

# Kernels against plain formulas and the CPU's, gradients against differences.
part_ops() {
    local label=gpu
    ! is_standin || label=cuda
    set -- -L $label
    ! is_standin || set -- -L cuda -R '^cuda\.(elementwise|layer_norm)$'
    ctest --test-dir "$SL_GPU_BUILD" "$@" -j "$(nproc)" --timeout 60 >out 2>err
    local status=$?
    cat out
    ! grep -q 'No tests were found' out || fail "no tests with label $label"
    ! grep -q 'Skipped' out || fail 'tests were skipped: no GPU?'
    [ $status -eq 0 ] || fail "$(grep 'tests passed' out)"
    say "$(sed -n 's/.*tests passed.*out of \([0-9]*\)/\1 programs of tests/p' \
        out)"
}

part_hash() { # the same bits at every run
    local first
    for name in gpt net; do
        config $name
        train $name.yaml --devices "$SL_GPU_KIND:1"
        first=$hash
        train $name.yaml --devices "$SL_GPU_KIND:1"
        [ "$hash" = "$first" ] || fail "$name: two runs, two hashes"
    done
    train net.yaml --devices "$SL_GPU_KIND:1" --set train.cudnn_images=true
    first=$hash
    train net.yaml --devices "$SL_GPU_KIND:1" --set train.cudnn_images=true
    [ "$hash" = "$first" ] || fail "net by cuDNN: two runs, two hashes"
    say 'two models, two runs each: equal'
}

part_stages() { # several stages on one GPU give what one gives
    local first
    for name in gpt net; do
        config $name
        train $name.yaml --devices "$SL_GPU_KIND:1" --threads 1
        first=$hash
        for k in 2 4; do
            train $name.yaml --devices "$SL_GPU_KIND:$k" --stages $k \
                --threads 1
            [ "$hash" = "$first" ] || fail "$name: $k stages, another hash"
        done
    done
    say 'two models, 1, 2 and 4 stages: equal'
}

part_precision() { # shorter types come near, and repeat their bits
    local first f32 names='gpt net' precisions='tf32 bf16 f16'
    [ "$SL_GPU_KIND" = cuda ] || skip 'CPU devices compute in f32 only'
    ! is_standin || names=gpt
    for name in $names; do
        config $name
        train $name.yaml --devices "$SL_GPU_KIND:1"
        f32=$loss
        for precision in $precisions; do
            train $name.yaml --devices "$SL_GPU_KIND:1" --precision $precision
            first=$hash
            near "$loss" "$f32" 0.05 ||
                fail "$name: $precision ends at $loss, f32 at $f32"
            train $name.yaml --devices "$SL_GPU_KIND:1" --precision $precision
            [ "$hash" = "$first" ] || fail "$name: $precision, two hashes"
        done
    done
    say 'tf32, bf16, f16: within 5 % of f32, equal at two runs'
}

part_cpu() { # the CPU's training, in single precision
    local reference detail=
    for name in gpt net; do
        config $name
        train $name.yaml --devices cpu:1 --threads 1
        reference=$loss
        train $name.yaml --devices "$SL_GPU_KIND:1"
        near "$loss" "$reference" 1e-3 ||
            fail "$name: $loss here, $reference on the CPU"
        detail="$detail $name $loss ($reference on the CPU)"
    done
    say "$detail"
}

part_memory() { # the limit falls under a running job, and rises
    local need half
    config long
    config gpt
    start limited long.yaml --devices "$SL_GPU_KIND:1" --host-memory 2GiB
    until_true 20 'd["used_bytes"] > 0 and j["step"] > 3' ||
        fail 'no steps within 20 s'
    # at a boundary: parameters and moments
    need=$(field 'd["used_bytes"]')
    half=$((need / 2))
    ctl limit "$job" all $half || fail 'the limit was not taken'
    until_true 20 "d['limit_bytes'] <= $half and
        d['held_bytes'] <= $half and d['host_used_bytes'] > 0" ||
        fail "asked for $half: $(field 'd')"
    ctl limit "$job" all auto || fail 'auto was not taken'
    until_true 20 'd["host_used_bytes"] == 0' ||
        fail "blocks do not come back: $(field 'd')"
    stop
    # limits change no bit
    train gpt.yaml --devices "$SL_GPU_KIND:1"
    reference=$hash
    train gpt.yaml --devices "$SL_GPU_KIND:1" --device-memory 4MiB \
        --host-memory 2GiB
    [ "$hash" = "$reference" ] || fail 'a lower limit, another hash'
    say "$need bytes of state, limit lowered to half under way, and back"
}

part_share() { # half of the device's time is half
    local sum=0 n=0 bound=2 got
    ! is_standin || bound=45 # of a busy CPU it may get less
    config long
    start shared long.yaml --devices "$SL_GPU_KIND:1" --threads 1
    until_true 20 'j["step"] > 3' || fail 'no steps within 20 s'
    ctl share "$job" all 50 || fail 'the share was not taken'
    sleep 2
    for _ in 1 2 3 4 5 6; do
        sleep 0.5
        got=$(field 'd["share_achieved"]')
        sum=$(awk -v a="$sum" -v b="$got" 'BEGIN {print a + b}')
        n=$((n + 1))
    done
    stop
    got=$(awk -v a="$sum" -v n=$n 'BEGIN {printf "%.1f", a / n}')
    awk -v g="$got" -v b=$bound 'BEGIN {exit !(g >= 50 - b && g <= 50 + b)}' ||
        fail "asked for 50 %, got $got %"
    say "asked for 50 %, got $got %"
}

part_together() { # two processes on one GPU, each with its own bits
    local alone
    config gpt
    config long
    train gpt.yaml --devices "$SL_GPU_KIND:1" --threads 1
    alone=$hash
    start guest long.yaml --devices "$SL_GPU_KIND:1" --threads 1 \
        --class opportunistic --device-memory 1GiB
    train gpt.yaml --devices "$SL_GPU_KIND:1" --threads 1 --class guarantee \
        --device-memory 1GiB
    kill -0 $pid || fail 'the guest ended'
    [ "$hash" = "$alone" ] || fail 'another hash beside a guest'
    stop
    [ -n "$hash" ] || fail "the guest: $(tail -1 guest.err)"
    say 'the same hash as alone; the guest went on'
}

part_sanitizer() {
    local tool
    command -v compute-sanitizer >out ||
        PATH=$PATH:/usr/local/cuda/bin:${CUDA_HOME:-/usr/local/cuda}/bin
    ! is_standin || skip 'no GPU code here; the stand-in checks order itself'
    command -v compute-sanitizer >out || skip 'no compute-sanitizer on PATH'
    cat >tiny.yaml <<END
data: {format: synthetic_tokens, context: 16, classes: 32, n_samples: 64}
model: {type: gpt, layers: 2, width: 32, heads: 2, vocab: 32, dropout: 0.1}
train: {batch: 4, micro_batches: 2, steps: 1}
END
    for tool in memcheck racecheck; do
        timeout 40 compute-sanitizer --tool $tool --error-exitcode 9 \
            "$sluice" train tiny.yaml --quiet --devices "$SL_GPU_KIND:1" \
            >out 2>err
        status=$?
        tail -5 out
        [ $status -eq 0 ] || fail "$tool: status $status: $(grep -m1 \
            '=========' out | cut -c1-120)"
    done
    say 'memcheck and racecheck find nothing'
}

part_bench() {
    local cases peer=none
    set -- --device "$SL_GPU_KIND" --program "$sluice" --json bench.json
    if is_standin; then
        cases='tiny:f32 tiny:f32:cudnn'
        set -- "$@" --rounds 1 --steps 4
    else
        cases='resnet101-128:bf16 resnet101-128:bf16:cudnn resnet101-128:tf32 resnet101-128:f32
            gpt2-1024:bf16 gpt2-1024:tf32'
        set -- "$@" --rounds 1 --steps 12
        if "$python" -c 'import torch; assert torch.cuda.is_available()' \
            2>err; then
            peer=torch
        fi
    fi
    # shellcheck disable=SC2086
    "$python" "$root/bench/peers/compare.py" "$@" --peer $peer $cases >out \
        2>err
    status=$?
    cat out
    [ $status -eq 0 ] || fail "$(tail -1 err | cut -c1-160)"
    [ $peer = torch ] || say "alone: no CUDA build of PyTorch in $python"
}

if [ -n "$part" ]; then
    SLUICE_RUN_DIR=$PWD/run
    XDG_CACHE_HOME=$PWD/cache
    export SLUICE_RUN_DIR XDG_CACHE_HOME
    pid=
    trap '[ -z "$pid" ] || kill -KILL $pid 2>kill.err' EXIT
    [ "$part" = build ] || [ -x "$sluice" ] || fail "$sluice is not built"
    "part_$part"
    exit
fi

# ---- all of it ----

# Seconds of a part, of the 355 that all have: what it leaves over, those after
# it may take too. A part that does not run leaves all.
bound() {
    case $1 in
    build) echo 140 ;;
    doctor) echo 5 ;;
    ops) echo 30 ;;
    hash | cpu | share) echo 11 ;;
    stages | precision | memory | together) echo 15 ;;
    sanitizer) echo 20 ;;
    bench) echo 67 ;;
    esac
}

# When the part has to be done, and those before it, at the latest.
until_of() {
    local name sum=0 times=1
    ! is_standin || times=5 # of a busy CPU
    for name in $parts; do
        sum=$((sum + $(bound "$name")))
        [ "$name" != "$1" ] || break
    done
    echo $((begun + times * sum))
}
begun=$SECONDS

folder=$(mktemp -d) || exit 1
[ -n "$keep" ] || trap 'rm -rf "$folder"' EXIT
: "${json:=$SL_GPU_BUILD/gpu-results.json}"
n_failed=0
: >"$folder/table"
: >"$folder/parts.json"

run() {
    local name=$1 limit status result detail begin seconds
    limit=$(($(until_of "$name") - SECONDS))
    [ $limit -ge 0 ] || limit=0
    mkdir -p "$folder/$name"
    begin=$(date +%s.%N)
    if [ $limit -eq 0 ]; then
        status=124
    else
        (cd "$folder/$name" &&
            timeout -k 2 $limit "$root/tests/gpu/run.sh" --part "$name") \
            >"$folder/$name/log" 2>&1
        status=$?
    fi
    seconds=$(awk -v a="$begin" -v b="$(date +%s.%N)" \
        'BEGIN {printf "%.1f", b - a}')
    detail=$(cat "$folder/$name/detail" 2>"$folder/none")
    case $status in
    0) result=pass ;;
    77) result=skip ;;
    124 | 137) result=fail && detail="not done within the $limit s left" ;;
    *) result=fail ;;
    esac
    if [ $result = fail ]; then
        n_failed=$((n_failed + 1))
        : "${detail:=status $status: $(tail -1 "$folder/$name/log")}"
        [ ! -s "$folder/$name/log" ] ||
            tail -15 "$folder/$name/log" | sed "s/^/    $name: /"
    fi
    detail=$(echo "$detail" | tr '\n"\\\t' "  '/ " | sed 's/ *$//; s/^ *//' |
        cut -c1-200)
    printf '%-10s %-4s %6s s  %s\n' "$name" $result "$seconds" "$detail" |
        tee -a "$folder/table"
    printf '%s{"part": "%s", "result": "%s", "seconds": %s, "detail": "%s"}\n' \
        "$([ -s "$folder/parts.json" ] && echo ,)" "$name" $result "$seconds" \
        "$detail" >>"$folder/parts.json"
    [ $result != fail ] || [ "$name" != build ]
}

for name in $parts; do
    case ,${only:-$name}, in *,$name,*) ;; *) continue ;; esac
    run "$name" || break # nothing else has a program
done

device=$(sed -n 's/^doctor *pass *[0-9.]* s *//p' "$folder/table")
mkdir -p "$(dirname "$json")"
{
    printf '{"date": "%s", "device": "%s", "mode": "%s", "parts": [\n' \
        "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$device" "$SL_GPU_MODE"
    cat "$folder/parts.json"
    printf '], "bench": '
    if [ -s "$folder/bench/bench.json" ]; then cat "$folder/bench/bench.json"
    else
        echo '[]'; fi
    printf '}\n'
} >"$json"

echo
echo "$SL_GPU_KIND: ${device:-no device seen}"
cat "$folder/table"
if [ -s "$folder/bench/out" ]; then
    echo
    cat "$folder/bench/out"
fi
echo "$n_failed failed; results in $json"
[ -z "$keep" ] || echo "configs and logs are in $folder"
[ $n_failed -eq 0 ]
