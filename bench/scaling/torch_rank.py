# SPDX-License-Identifier: Apache-2.0
"""One rank of PyTorch training the GPT of bench/peers: alone, as a stage of
torch.distributed.pipelining over gloo, or as a replica of
DistributedDataParallel over gloo. Rank 0 prints a JSON line. Run by
scaling.py."""

import argparse
import contextlib
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))), "peers"))
import torch_models  # noqa: E402


class First(nn.Module):
    """Embedding and the first blocks."""

    def __init__(self, model, n_blocks):
        super().__init__()
        self.wte = model.wte
        self.h = nn.ModuleList(model.h[:n_blocks])

    def forward(self, x):
        x = self.wte(x)
        for block in self.h:
            x = block(x)
        return x


class Last(nn.Module):
    """The other blocks and the head, which has the embedding's weight."""

    def __init__(self, model, n_blocks, is_copy):
        super().__init__()
        self.h = nn.ModuleList(model.h[n_blocks:])
        self.ln_f = model.ln_f
        weight = model.wte.weight
        self.head = nn.Parameter(weight.detach().clone()) if is_copy \
            else weight

    def forward(self, x):
        for block in self.h:
            x = block(x)
        return nn.functional.linear(self.ln_f(x), self.head)


def loss_fn(logits, target):
    return nn.functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]), target.reshape(-1))


def new_optimizer(module, lr):
    return torch.optim.SGD(module.parameters(), lr=lr, momentum=0.9)


class Alone:
    def __init__(self, model, arguments):
        self.model = model
        self.n_micro = arguments.micro_batches
        self.optimizer = new_optimizer(model, arguments.lr)

    def step(self, data, target):
        return torch_models.train_step(self.model, self.optimizer, data,
                                       target, self.n_micro)

    def stage_ms(self, data, target, n_blocks):
        """Time of both halves for one micro-batch, one after the other."""
        halves = First(self.model, n_blocks), Last(self.model, n_blocks, False)
        x, y = data.chunk(self.n_micro)[0], target.chunk(self.n_micro)[0]
        best = [float("inf"), float("inf")]
        for _ in range(4):
            start = time.perf_counter()
            middle = halves[0](x)
            first = time.perf_counter() - start
            cut = middle.detach().requires_grad_()
            start = time.perf_counter()
            loss_fn(halves[1](cut), y).backward()
            best[1] = min(best[1], time.perf_counter() - start)
            start = time.perf_counter()
            middle.backward(cut.grad)
            best[0] = min(best[0], first + time.perf_counter() - start)
        self.optimizer.zero_grad(set_to_none=True)
        return [t * 1e3 for t in best]


class Pipeline:
    """Two stages. The shared weight's gradient is summed over both, so that
    the copies stay equal."""

    def __init__(self, model, arguments):
        from torch.distributed import pipelining
        self.is_first = dist.get_rank() == 0
        module = First(model, arguments.cut) if self.is_first \
            else Last(model, arguments.cut, True)
        self.shared = module.wte.weight if self.is_first else module.head
        stage = pipelining.PipelineStage(module, dist.get_rank(), 2,
                                         torch.device("cpu"))
        kind = {"gpipe": pipelining.ScheduleGPipe,
                "1f1b": pipelining.Schedule1F1B}[arguments.mode]
        self.schedule = kind(stage, arguments.micro_batches, loss_fn=loss_fn)
        self.optimizer = new_optimizer(module, arguments.lr)

    def step(self, data, target):
        self.optimizer.zero_grad(set_to_none=True)
        losses = []
        if self.is_first:
            self.schedule.step(data)
        else:
            self.schedule.step(target=target, losses=losses)
        dist.all_reduce(self.shared.grad)
        self.optimizer.step()
        loss = torch.tensor([sum(l.item() for l in losses) /
                             max(1, len(losses))])
        dist.broadcast(loss, 1)
        return loss.item()


class Replica:
    """Each rank has its half of the rows; gradients are averaged while the
    last micro-batch runs backward."""

    def __init__(self, model, arguments):
        self.model = nn.parallel.DistributedDataParallel(model)
        self.n_micro = arguments.micro_batches
        self.optimizer = new_optimizer(model, arguments.lr)

    def step(self, data, target):
        rank = dist.get_rank()
        data, target = data.chunk(2)[rank], target.chunk(2)[rank]
        self.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros(1)
        parts = list(zip(data.chunk(self.n_micro),
                         target.chunk(self.n_micro)))
        for m, (x, y) in enumerate(parts):
            is_last = m == len(parts) - 1
            with contextlib.nullcontext() if is_last \
                    else self.model.no_sync():
                loss = loss_fn(self.model(x), y) / len(parts)
                loss.backward()
                total += loss.item()
        self.optimizer.step()
        dist.all_reduce(total)
        return total.item() / 2


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=["alone", "half", "gpipe", "1f1b",
                                         "ddp"],
                        help="half: alone with a replica's half of the rows")
    parser.add_argument("model", help="gptLAYERS-WIDTH-HEADS")
    parser.add_argument("weights")
    parser.add_argument("batches")
    parser.add_argument("--micro-batches", type=int, required=True)
    parser.add_argument("--classes", type=int, required=True)
    parser.add_argument("--context", type=int, required=True)
    parser.add_argument("--lr", type=float, default=1e-3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    layers, width, heads = (int(x) for x in arguments.model[3:].split("-"))
    arguments.cut = (layers + 1) // 2
    model = torch_models.GPT(layers, width, heads, arguments.classes,
                             arguments.context)
    torch_models.load(model, torch_models.read_safetensors(arguments.weights))
    batches = torch_models.batches(arguments.batches, True)
    is_alone = arguments.mode in ("alone", "half")
    if arguments.mode == "half":
        batches = [(data.chunk(2)[0], target.chunk(2)[0])
                   for data, target in batches]
    if not is_alone:
        dist.init_process_group("gloo")
    kind = Alone if is_alone else \
        {"ddp": Replica}.get(arguments.mode, Pipeline)
    trainer = kind(model, arguments)
    losses, times = [], []
    for data, target in batches:
        if not is_alone:
            dist.barrier()
        start = time.perf_counter()
        losses.append(trainer.step(data, target))
        times.append((time.perf_counter() - start) * 1e3)
    result = {"losses": losses, "step_ms": times}
    if is_alone:
        result["stage_ms"] = trainer.stage_ms(*batches[0], arguments.cut)
    if is_alone or dist.get_rank() == 0:
        print(json.dumps(result), flush=True)
    if not is_alone:
        dist.barrier()
        os._exit(0)  # Gloo's threads can abort a process that ends normally.


if __name__ == "__main__":
    main()
