#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Step-for-step agreement with PyTorch from the same initial weights.

Trains a ResNet and a transformer for 20 SGD steps in both and compares the
loss of every step: the relative difference must stay below 1e-5. Exit status
77 (skipped) when PyTorch is not installed.

A ResNet amplifies rounding: a ReLU or a batch statistic of few values turns a
difference of 1e-8 into 1e-6 within a step when the learning rate is large, for
PyTorch against its own float64 as much as for us. So its learning rate is
small here; the difference of PyTorch's float32 from its float64 is printed
beside ours.

    tests/parity/parity.py build/sluice
"""

import json
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench", "peers"))

try:
    import torch
    import torch_models
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

STEPS = 20
TOLERANCE = 1e-5

GPT = """
data: {format: text, path: %s, context: 64}
model: {type: gpt, layers: 3, width: 96, heads: 4, vocab: 256}
train: {batch: 8, micro_batches: 3, steps: 20, schedule: 1f1b, recompute: full}
optimizer: {type: sgd, lr: 0.1, momentum: 0.9, weight_decay: 0.01}
"""

RESNET = """
data:
  format: synthetic_images
  image: {channels: 3, height: 32, width: 32}
  classes: 10
  n_samples: 512
model: {type: resnet, depth: 18, stem: cifar, classes: 10}
train: {batch: 48, micro_batches: 3, steps: 20, schedule: 1f1b, recompute: full}
optimizer: {type: sgd, lr: 0.0003, weight_decay: 0.0005}
"""


def run(program, *arguments):
    return subprocess.run([program, *arguments], check=True, text=True,
                          stdout=subprocess.PIPE).stdout


def sluice_losses(program, config, folder):
    """Initial weights, batches and 20 losses, over two stages."""
    weights = os.path.join(folder, "weights.safetensors")
    batches = os.path.join(folder, "batches.safetensors")
    metrics = os.path.join(folder, "metrics.jsonl")
    common = ["--devices", "cpu:2", "--threads", "1", "--quiet"]
    run(program, "train", config, *common, "--steps", "0", "--save", weights)
    run(program, "batches", config, "--save", batches)
    run(program, "train", config, *common, "--metrics", metrics)
    with open(metrics, encoding="utf-8") as file:
        losses = [json.loads(line)["loss"] for line in file]
    return weights, batches, losses


def decay_groups(model, decay):
    """Weight decay on matrices and kernels only, as Sluice's default."""
    parameters = dict(model.named_parameters())
    matrices = [p for name, p in parameters.items() if p.dim() > 1]
    vectors = [p for name, p in parameters.items() if p.dim() <= 1]
    return [{"params": matrices, "weight_decay": decay},
            {"params": vectors, "weight_decay": 0.0}]


def torch_losses(model, weights, batches, optimizer, micro_batches):
    torch_models.load(model, weights)
    optimizer = torch.optim.SGD(decay_groups(model, optimizer["decay"]),
                                lr=optimizer["lr"],
                                momentum=optimizer["momentum"])
    model.train()
    return [torch_models.train_step(model, optimizer, data, target,
                                    micro_batches)
            for data, target in batches]


def worst(ours, theirs):
    return max(abs(a - b) / abs(b) for a, b in zip(ours, theirs))


def to_double(batches):
    return [(d.double() if d.is_floating_point() else d, t)
            for d, t in batches]


def check(program, name, config, make_model, is_text, optimizer):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "config.yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(config)
        weights, batches, losses = sluice_losses(program, path, folder)
        weights = torch_models.read_safetensors(weights)
        batches = torch_models.batches(batches, is_text)
    theirs = torch_losses(make_model(), weights, batches, optimizer, 3)
    exact = torch_losses(make_model().double(), weights, to_double(batches),
                         optimizer, 3)
    print(f"{name}: {len(losses)} steps, loss {losses[0]:.6f} -> "
          f"{losses[-1]:.6f}, largest relative difference from PyTorch "
          f"{worst(losses, theirs):.1e} (from its float64 "
          f"{worst(losses, exact):.1e}; PyTorch itself from its float64 "
          f"{worst(theirs, exact):.1e})", flush=True)
    return len(losses) == STEPS and worst(losses, theirs) <= TOLERANCE


def main():
    program = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else
                              os.path.join(ROOT, "build", "sluice"))
    text = os.path.join(ROOT, "examples", "data", "tinyshakespeare.txt")
    torch.set_num_threads(1)
    is_ok = check(program, "transformer", GPT % text,
                  lambda: torch_models.GPT(3, 96, 4, 256, 64), True,
                  {"lr": 0.1, "momentum": 0.9, "decay": 0.01})
    is_ok &= check(program, "resnet-18", RESNET,
                   lambda: torch_models.ResNet(18, 10, "cifar"), False,
                   {"lr": 0.0003, "momentum": 0.0, "decay": 0.0005})
    print("passed" if is_ok else f"FAILED: above {TOLERANCE}")
    return 0 if is_ok else 1


if __name__ == "__main__":
    sys.exit(main())
