# SPDX-License-Identifier: Apache-2.0
"""Trains one of the example models in PyTorch for the comparison: the same
weights, batches and micro-batches; prints a JSON line of losses and step
times. Run by compare.py.

On a GPU parameters stay in single precision, as they do in Sluice; bf16 is
autocast, tf32 lets matrix products and convolutions round their factors, f32
does not. Each step's batch comes from pinned memory, and a step ends when its
loss is on the host."""

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


def set_precision(precision):
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.benchmark = True


def gpu_step(model, optimizer, data, target, micro_batches, precision):
    """As torch_models.train_step, with one wait at the end."""
    optimizer.zero_grad(set_to_none=True)
    n_valid = max(1, int((target != -100).sum()))
    data = data.to("cuda", non_blocking=True)
    target = target.to("cuda", non_blocking=True)
    n = min(micro_batches, len(data))
    losses, first = [], 0
    for m in range(n):
        rows = len(data) // n + (m < len(data) % n)
        with torch.autocast("cuda", torch.bfloat16,
                            enabled=precision == "bf16"):
            loss = torch_models.loss_sum(model, data[first:first + rows],
                                         target[first:first + rows]) / n_valid
        loss.backward()
        losses.append(loss.detach())
        first += rows
    optimizer.step()
    return float(torch.stack(losses).sum())


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
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--precision", choices=["f32", "tf32", "bf16"],
                        default="f32")
    parser.add_argument("--steps", type=int, default=0,
                        help="over the batches, again and again (default: "
                             "each once)")
    arguments = parser.parse_args()
    is_gpu = arguments.device == "cuda"

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
    if is_gpu:
        set_precision(arguments.precision)
        model = model.to("cuda")
        batches = [(d.pin_memory(), t.pin_memory()) for d, t in batches]
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr,
                                momentum=0.9, fused=True if is_gpu else None)
    losses, times = [], []
    for i in range(arguments.steps or len(batches)):
        data, target = batches[i % len(batches)]
        start = time.perf_counter()
        if is_gpu:
            losses.append(gpu_step(model, optimizer, data, target,
                                   arguments.micro_batches,
                                   arguments.precision))
        else:
            losses.append(torch_models.train_step(model, optimizer, data,
                                                  target,
                                                  arguments.micro_batches))
        times.append((time.perf_counter() - start) * 1e3)
    peak = torch.cuda.max_memory_reserved() if is_gpu else \
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"losses": losses, "step_ms": times,
                      "peak_bytes": peak}))


if __name__ == "__main__":
    main()
