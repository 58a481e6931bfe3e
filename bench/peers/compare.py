#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sluice beside PyTorch: the same models, weights, batches and micro-batches,
in turn (A B A B ...), medians and ratios. Checks that the losses agree.

    bench/peers/compare.py [--rounds 3] [--steps 6] [--threads 1,2] [CASE...]
    bench/peers/compare.py --device cuda [CASE[:f32|tf32|bf16[:cudnn]]...]

Needs PyTorch in the Python that runs it, unless --peer none. On a GPU steps
repeat two batches, and memory is the device's; with :cudnn batch norm and
pools are cuDNN's (train.cudnn_images). OPENBLAS_* variables are taken
out of PyTorch's environment, since they slow it down on some machines.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))

IMAGES = """
data:
  format: synthetic_images
  image: {channels: 3, height: 224, width: 224}
  classes: 1000
  n_samples: 64
model: {type: resnet, depth: 101, stem: imagenet, classes: 1000}
"""

TOKENS = """
data: {format: synthetic_tokens, context: 256, classes: 512, n_samples: 256}
model: {type: gpt, layers: 12, width: 768, heads: 12, vocab: 512}
"""

LARGE_IMAGES = IMAGES.replace("n_samples: 64", "n_samples: 256")

LONG_TOKENS = """
data:
  format: synthetic_tokens
  context: 1024
  classes: 50257
  n_samples: 16
model: {type: gpt, layers: 12, width: 768, heads: 12, vocab: 50257}
"""

TINY = """
data: {format: synthetic_tokens, context: 16, classes: 32, n_samples: 16}
model: {type: gpt, layers: 2, width: 32, heads: 2, vocab: 32}
"""

TEXT = """
data: {format: text, path: %s, context: 128}
model: {type: gpt, layers: 4, width: 192, heads: 6, vocab: 256}
""" % os.path.join(ROOT, "examples", "data", "tinyshakespeare.txt")

# name: config, batch, micro-batches, peer's model, classes, context, lr
CASES = {
    "resnet101": (IMAGES, 8, 1, "resnet101", 1000, 0, 1e-3),
    "gpt2": (TOKENS, 8, 1, "gpt12-768-12", 512, 256, 1e-2),
    "gpt-small": (TEXT, 48, 1, "gpt4-192-6", 256, 128, 1e-2),
}
GPU_CASES = {
    "resnet101-128": (LARGE_IMAGES, 128, 1, "resnet101", 1000, 0, 1e-3),
    "gpt2-1024": (LONG_TOKENS, 8, 1, "gpt12-768-12", 50257, 1024, 1e-2),
    "tiny": (TINY, 8, 1, "gpt2-32-2", 32, 16, 1e-2),
}
# Losses of the first step may differ by this much.
NEAR = {"f32": 1e-5, "tf32": 1e-3, "bf16": 2e-2}


def write_config(folder, case, steps):
    config, batch, micro, _, _, _, lr = {**CASES, **GPU_CASES}[case]
    path = os.path.join(folder, "config.yaml")
    with open(path, "w", encoding="utf-8") as file:
        file.write(config)
        file.write(f"train: {{batch: {batch}, micro_batches: {micro}, "
                   f"steps: {steps}}}\n"
                   f"optimizer: {{type: sgd, lr: {lr}, momentum: 0.9}}\n")
    return path


def run_child(arguments, environment=None):
    """Output and peak memory of a child."""
    process = subprocess.Popen(arguments, env=environment, text=True,
                               stdout=subprocess.PIPE)
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{arguments}: exit status {process.returncode}")
    return output, usage.ru_maxrss * 1024


def run_sluice(program, config, weights, folder, options):
    metrics = os.path.join(folder, "metrics.jsonl")
    if os.path.exists(metrics):
        os.unlink(metrics)
    _, peak = run_child([program, "train", config, "--quiet", "--weights",
                         weights, *options, "--metrics", metrics])
    with open(metrics, encoding="utf-8") as file:
        steps = [json.loads(line) for line in file]
    return {"losses": [s["loss"] for s in steps],
            "step_ms": [s["step_ms"] for s in steps], "peak_bytes": peak}


def run_torch(case, weights, batches, options):
    _, _, micro, model, classes, context, lr = {**CASES, **GPU_CASES}[case]
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith("OPENBLAS_")}
    output, _ = run_child(
        [sys.executable, os.path.join(HERE, "torch_peer.py"), model, weights,
         batches, "--micro-batches", str(micro), "--classes", str(classes),
         "--context", str(context), "--lr", str(lr), *options], environment)
    return json.loads(output)


def median_step(runs):
    """The first two steps of a run are its warm-up."""
    return statistics.median(ms for run in runs for ms in run["step_ms"][2:])


def compare(program, case, threads, rounds, steps):
    with tempfile.TemporaryDirectory() as folder:
        config = write_config(folder, case, steps)
        weights = os.path.join(folder, "weights.safetensors")
        batches = os.path.join(folder, "batches.safetensors")
        run_child([program, "train", config, "--quiet", "--steps", "0",
                   "--save", weights])
        run_child([program, "batches", config, "--save", batches])
        ours, theirs = [], []
        for _ in range(rounds):
            ours.append(run_sluice(
                program, config, weights, folder,
                ["--devices", "cpu:1", "--threads", str(threads)]))
            theirs.append(run_torch(case, weights, batches,
                                    ["--threads", str(threads)]))
    first = abs(ours[0]["losses"][0] / theirs[0]["losses"][0] - 1)
    worst = max(abs(a / b - 1) for a, b in zip(ours[0]["losses"],
                                               theirs[0]["losses"]))
    return {"case": case, "threads": threads, "sluice_ms": median_step(ours),
            "torch_ms": median_step(theirs),
            "ratio": median_step(theirs) / median_step(ours),
            "sluice_peak": min(r["peak_bytes"] for r in ours),
            "torch_peak": min(r["peak_bytes"] for r in theirs),
            "loss_first": first, "loss_worst": worst}


def compare_gpu(arguments, case, precision, images):
    """One case on one GPU; figures of the peer are None without one."""
    program = arguments.program
    with tempfile.TemporaryDirectory() as folder:
        config = write_config(folder, case, 2)
        weights = os.path.join(folder, "weights.safetensors")
        batches = os.path.join(folder, "batches.safetensors")
        run_child([program, "train", config, "--quiet", "--steps", "0",
                   "--devices", "cpu:1", "--save", weights])
        if arguments.peer == "torch":
            run_child([program, "batches", config, "--save", batches])
        config = write_config(folder, case, arguments.steps)
        options = ["--devices", f"{arguments.device}:1"]
        if precision != "f32":
            options += ["--precision", precision]
        if images == "cudnn":
            options += ["--set", "train.cudnn_images=true"]
        peer = ["--device", arguments.device, "--precision", precision,
                "--steps", str(arguments.steps)]
        if "resnet" in case:
            peer.append("--channels-last")
        ours, theirs = [], []
        for _ in range(arguments.rounds):
            ours.append(run_sluice(program, config, weights, folder, options))
            if arguments.peer == "torch":
                theirs.append(run_torch(case, weights, batches, peer))
    batch = GPU_CASES[case][1]
    result = {"case": case, "precision": precision, "images": images,
              "batch": batch,
              "sluice_ms": median_step(ours), "torch_ms": None, "ratio": None,
              "torch_peak": None, "loss_first": None,
              "loss": ours[0]["losses"][0]}
    if theirs:
        result["torch_ms"] = median_step(theirs)
        result["ratio"] = result["torch_ms"] / result["sluice_ms"]
        result["torch_peak"] = max(r["peak_bytes"] for r in theirs)
        result["loss_first"] = abs(ours[0]["losses"][0] /
                                   theirs[0]["losses"][0] - 1)
    return result


def write_json(path, results):
    """At once: who reads it finds whole figures, whenever this was ended."""
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(results, file)
    os.replace(path + ".new", path)


def text(value, form):
    return "-" if value is None else format(value, form)


def main_gpu(arguments):
    results, is_near, n_failed = [], True, 0
    print(f"{'case':<14} {'type':<5} {'images':<6} {'batch':>5} "
          f"{'sluice ms':>10} "
          f"{'torch ms':>10} {'ratio':>6} {'loss diff':>9}")
    for name in arguments.cases or ["resnet101-128:bf16", "gpt2-1024:bf16"]:
        case, precision, images = (name.split(":") + ["", ""])[:3]
        try:
            r = compare_gpu(arguments, case, precision or "f32",
                            images or "own")
        except SystemExit as failure:  # the others' figures count all the same
            print(f"{name}: {failure}", file=sys.stderr, flush=True)
            n_failed += 1
            continue
        results.append(r)
        if r["loss_first"] is not None:
            is_near &= r["loss_first"] < NEAR[r["precision"]]
        print(f"{case:<14} {r['precision']:<5} {r['images']:<6} "
              f"{r['batch']:>5} "
              f"{r['sluice_ms']:>10.2f} {text(r['torch_ms'], '.2f'):>10} "
              f"{text(r['ratio'], '.2f'):>6} "
              f"{text(r['loss_first'], '.1e'):>9}", flush=True)
        if arguments.json:
            write_json(arguments.json, results)
    if n_failed > 0:
        raise SystemExit(f"{n_failed} of {n_failed + len(results)} cases "
                         "failed")
    if not is_near:
        raise SystemExit("losses of the first step differ")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program",
                        default=os.path.join(ROOT, "build", "sluice"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--device", default="cpu",
                        help="cpu, or cuda: one GPU")
    parser.add_argument("--peer", choices=["torch", "none"], default="torch",
                        help="none: Sluice alone, on a GPU")
    parser.add_argument("--json", help="write the results of a GPU here")
    parser.add_argument("cases", nargs="*", default=[])
    arguments = parser.parse_args()
    if arguments.device != "cpu" or arguments.peer == "none":
        main_gpu(arguments)
        return
    print(f"{'case':<10} {'threads':>7} {'sluice ms':>10} {'torch ms':>10} "
          f"{'ratio':>6} {'sluice MiB':>10} {'torch MiB':>10} "
          f"{'loss diff first / worst':>24}")
    is_equal = True
    for case in arguments.cases or CASES:
        for threads in arguments.threads.split(","):
            r = compare(arguments.program, case, int(threads),
                        arguments.rounds, arguments.steps)
            is_equal &= r["loss_first"] < 1e-5
            print(f"{r['case']:<10} {r['threads']:>7} {r['sluice_ms']:>10.1f} "
                  f"{r['torch_ms']:>10.1f} {r['ratio']:>6.2f} "
                  f"{r['sluice_peak'] / 2**20:>10.0f} "
                  f"{r['torch_peak'] / 2**20:>10.0f} "
                  f"{r['loss_first']:>12.1e} {r['loss_worst']:>11.1e}",
                  flush=True)
    if not is_equal:
        raise SystemExit("losses of the first step differ")


if __name__ == "__main__":
    main()
