#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Peak memory as `sluice plan` predicts it beside what two steps of `sluice
train` measure, for every example: bench/headline/check_plan.py [SLUICE].
Ends with status 1 when any device is off by more than 3 %."""
import json
import os
import struct
import subprocess
import sys
import tempfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
SLUICE = sys.argv[1] if len(sys.argv) > 1 else os.path.join(
    ROOT, "build", "sluice")
EXAMPLES = ["gpt_shakespeare", "gpt2_synthetic", "resnet18_mnist",
            "resnet101_synthetic", "unet_layers"]
MIB = 1 << 20


def made_digits(folder):
    """Blank images in the files that resnet18_mnist reads."""
    images = os.path.join(folder, "images")
    labels = os.path.join(folder, "labels")
    n = 1128
    with open(images, "wb") as file:
        file.write(struct.pack(">4i", 0x803, n, 28, 28) + bytes(n * 28 * 28))
    with open(labels, "wb") as file:
        file.write(struct.pack(">2i", 0x801, n) + bytes(i % 10
                                                       for i in range(n)))
    return ["--set", "data.path=" + images, "--set", "data.labels=" + labels]


def run(command, example, options):
    config = os.path.join(ROOT, "examples", example + ".yaml")
    done = subprocess.run([SLUICE, command, config] + options,
                          stdout=subprocess.PIPE, check=True)
    return done.stdout


def measured(example, options, folder):
    path = os.path.join(folder, "metrics.jsonl")
    if os.path.exists(path):
        os.remove(path)
    run("train", example, options + ["--steps", "2", "--quiet", "--metrics",
                                     path, "--set", "train.eval_every=0"])
    with open(path) as file:
        steps = [json.loads(line) for line in file if line.strip()]
    steps = [step for step in steps if "devices" in step]
    return [max(step["devices"][d]["peak_bytes"] for step in steps)
            for d in range(len(steps[0]["devices"]))]


def main():
    worst = 0.0
    print("| example | devices | recompute | predicted MiB | measured MiB | "
          "difference |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for example in EXAMPLES:
            more = made_digits(folder) if "mnist" in example else []
            for n in (1, 2, 4):
                for mode in ("none", "full"):
                    options = more + ["--devices", "cpu:%d" % n, "--threads",
                                      "1", "--recompute", mode]
                    plan = json.loads(run("plan", example,
                                          options + ["--json"]))
                    want = [device["peak_bytes"]
                            for device in plan["memory"]["devices"]]
                    got = measured(example, options, folder)
                    off = max(abs(a - b) / b for a, b in zip(want, got))
                    worst = max(worst, off)
                    print("| %s | %d | %s | %s | %s | %.2f %% |" % (
                        example, n, mode,
                        ", ".join("%.1f" % (b / MIB) for b in want),
                        ", ".join("%.1f" % (b / MIB) for b in got),
                        100 * off), flush=True)
    print("\nlargest difference %.2f %%" % (100 * worst))
    return 1 if worst > 0.03 else 0


sys.exit(main())
