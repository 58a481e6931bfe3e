#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Steps as `sluice simulate` predicts them beside steps as `sluice train` runs
them, on this machine: R replicas of K stages on one core each, micro-batches
M = 1, 2, 4, 8 of a replica. The costs come from `sluice profile`, measured anew in every round, so
that each prediction and each measurement see the machine as it is then.
Medians over the rounds, and the ratio predicted / measured.

    bench/simulate/check.py [--sluice build/sluice] [--rounds 5] [--steps 8]
                            [--grids 1x1,1x2,2x1] [--micro-batches 1,2,4,8]
                            [CASE...]
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
CLUSTER = os.path.join(ROOT, "examples", "cluster_two_cores.yaml")

CASES = {
    "gpt-small": """
data: {format: synthetic_tokens, context: 128, classes: 256, n_samples: 512}
model: {type: gpt, layers: 4, width: 192, heads: 6, vocab: 256}
train: {batch: 48}
optimizer: {type: adamw, lr: 1.0e-4, clip_norm: 1.0}
""",
    "gpt2": """
data: {format: synthetic_tokens, context: 256, classes: 512, n_samples: 256}
model: {type: gpt, layers: 12, width: 768, heads: 12, vocab: 512}
train: {batch: 8}
optimizer: {type: adamw, lr: 1.0e-4}
""",
    "resnet18": """
data:
  format: synthetic_images
  image: {channels: 3, height: 64, width: 64}
  classes: 100
  n_samples: 256
model: {type: resnet, depth: 18, stem: imagenet, classes: 100}
train: {batch: 32}
optimizer: {type: sgd, lr: 1.0e-3, momentum: 0.9}
""",
}


def run(command, environment):
    done = subprocess.run(command, env=environment, text=True,
                          stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{command}: exit status {done.returncode}")
    return done.stdout


class Bench:
    def __init__(self, arguments, folder):
        self.sluice = arguments.sluice
        self.steps = arguments.steps
        self.schedule = arguments.schedule
        self.folder = folder
        # profiles of this run only
        self.environment = dict(os.environ, XDG_CACHE_HOME=folder)

    def options(self, grid, n_micro):
        n_replicas, n_stages = grid
        options = ["--devices", f"cpu:{n_replicas * n_stages}", "--threads",
                   "1", "--stages", str(n_stages), "--micro-batches",
                   str(n_micro), "--schedule", self.schedule]
        if n_replicas > 1:
            options += ["--replicas", str(n_replicas)]
        return options

    def profile(self, config, n_micro):
        run([self.sluice, "profile", config, "--repeats", "5"] +
            self.options((1, 1), n_micro), self.environment)

    def predict(self, config, grid, n_micro):
        return json.loads(
            run([self.sluice, "simulate", config, "--cluster", CLUSTER,
                 "--json", "--costs", "profile"] +
                self.options(grid, n_micro), self.environment))

    def measure(self, config, grid, n_micro):
        """Median of the steps; the first two are the warm-up."""
        metrics = os.path.join(self.folder, "metrics.jsonl")
        if os.path.exists(metrics):
            os.unlink(metrics)
        # the same costs, and so the same cuts
        run([self.sluice, "train", config, "--quiet", "--metrics", metrics,
             "--costs", "profile", "--steps", str(self.steps + 2)] +
            self.options(grid, n_micro), self.environment)
        with open(metrics, encoding="utf-8") as file:
            steps = [json.loads(line) for line in file]
        return statistics.median(s["step_ms"] for s in steps[2:])


def numbers(text):
    return [int(word) for word in text.split(",")]


def compare(bench, name, arguments):
    config = os.path.join(bench.folder, f"{name}.yaml")
    with open(config, "w", encoding="utf-8") as file:
        file.write(CASES[name])
    grids = [tuple(numbers(g.replace("x", ",")))
             for g in arguments.grids.split(",")]
    points = [(g, m) for m in numbers(arguments.micro_batches) for g in grids]
    predicted = {point: [] for point in points}
    measured = {point: [] for point in points}
    for _ in range(arguments.rounds):
        profiled = set()
        for grid, m in points:
            # the size of micro-batches decides what is profiled
            if grid[0] * m not in profiled:
                bench.profile(config, grid[0] * m)
                profiled.add(grid[0] * m)
            predicted[grid, m].append(bench.predict(config, grid, m))
            measured[grid, m].append(bench.measure(config, grid, m))
    worst = 1.0
    for grid, m in points:
        ours = statistics.median(p["step_ms"] for p in predicted[grid, m])
        real = statistics.median(measured[grid, m])
        rows = predicted[grid, m][0]["micro_rows"]
        worst = max(worst, ours / real, real / ours)
        print(f"{name:<10} {grid[0]:>2} {grid[1]:>2} {m:>3} {rows:>5} "
              f"{ours:>12.2f} {real:>12.2f} {ours / real:>7.3f}", flush=True)
    return worst


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sluice",
                        default=os.path.join(ROOT, "build", "sluice"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--grids", default="1x1,1x2,2x1",
                        help="replicas x stages")
    parser.add_argument("--micro-batches", default="1,2,4,8")
    parser.add_argument("--schedule", default="1f1b")
    parser.add_argument("cases", nargs="*")
    arguments = parser.parse_args()
    print(f"{'case':<10} {'R':>2} {'K':>2} {'M':>3} {'rows':>5} {'predicted ms':>12} "
          f"{'measured ms':>12} {'ratio':>7}")
    worst = 1.0
    for name in arguments.cases or CASES:
        with tempfile.TemporaryDirectory() as folder:
            worst = max(worst, compare(Bench(arguments, folder), name,
                                       arguments))
    print(f"farthest from 1: a factor of {worst:.3f}")


if __name__ == "__main__":
    main()
