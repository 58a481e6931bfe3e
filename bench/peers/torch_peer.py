# SPDX-License-Identifier: Apache-2.0
"""Trains one of the example models in PyTorch for the comparison: the same
weights, batches and micro-batches; prints a JSON line of losses and step
times. Run by compare.py."""

import argparse
import json
import resource
import time

import torch
import torch_models


def build(name, classes, context):
    if name.startswith("resnet"):
        return torch_models.ResNet(int(name[6:]), classes)
    layers, width, heads = (int(x) for x in name[3:].split("-"))
    return torch_models.GPT(layers, width, heads, classes, context)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", help="resnet101 or gptLAYERS-WIDTH-HEADS")
    parser.add_argument("weights")
    parser.add_argument("batches")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--micro-batches", type=int, default=1)
    parser.add_argument("--classes", type=int, required=True)
    parser.add_argument("--context", type=int, default=0)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--channels-last", action="store_true")
    arguments = parser.parse_args()

    torch.set_num_threads(arguments.threads)
    is_text = arguments.model.startswith("gpt")
    model = build(arguments.model, arguments.classes, arguments.context)
    torch_models.load(model,
                      torch_models.read_safetensors(arguments.weights))
    batches = torch_models.batches(arguments.batches, is_text)
    if arguments.channels_last:
        model = model.to(memory_format=torch.channels_last)
        batches = [(d.to(memory_format=torch.channels_last), t)
                   for d, t in batches]
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr,
                                momentum=0.9)
    losses, times = [], []
    for data, target in batches:
        start = time.perf_counter()
        losses.append(torch_models.train_step(model, optimizer, data, target,
                                              arguments.micro_batches))
        times.append((time.perf_counter() - start) * 1e3)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"losses": losses, "step_ms": times,
                      "peak_bytes": peak}))


if __name__ == "__main__":
    main()
