# SPDX-License-Identifier: Apache-2.0
"""The example models in plain PyTorch, with Sluice's parameter names, and
the reading of Sluice's safetensors files. Used by the parity test and by the
comparison of speed."""

import json

import numpy
import torch
from torch import nn
from torch.nn import functional


def read_safetensors(path):
    """All F32 tensors of a file as a dict of numpy arrays."""
    with open(path, "rb") as file:
        n_header = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(n_header))
        data = file.read()
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        flat = numpy.frombuffer(data[begin:end], dtype="<f4")
        tensors[name] = flat.reshape(entry["shape"]).copy()
    return tensors


class Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, inplanes, planes, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, planes * 4, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(planes * 4)
        self.downsample = shortcut(inplanes, planes * 4, stride)

    def forward(self, x):
        y = functional.relu(self.bn1(self.conv1(x)), inplace=True)
        y = functional.relu(self.bn2(self.conv2(y)), inplace=True)
        y = self.bn3(self.conv3(y))
        y += x if self.downsample is None else self.downsample(x)
        return functional.relu(y, inplace=True)


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, inplanes, planes, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = shortcut(inplanes, planes, stride)

    def forward(self, x):
        y = functional.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        y += x if self.downsample is None else self.downsample(x)
        return functional.relu(y, inplace=True)


def shortcut(inplanes, planes, stride):
    if stride == 1 and inplanes == planes:
        return None
    return nn.Sequential(nn.Conv2d(inplanes, planes, 1, stride, bias=False),
                         nn.BatchNorm2d(planes))


class ResNet(nn.Module):
    DEPTHS = {
        18: (BasicBlock, (2, 2, 2, 2)),
        34: (BasicBlock, (3, 4, 6, 3)),
        50: (Bottleneck, (3, 4, 6, 3)),
        101: (Bottleneck, (3, 4, 23, 3)),
        152: (Bottleneck, (3, 8, 36, 3)),
    }

    def __init__(self, depth, classes, stem="imagenet", channels=3):
        super().__init__()
        block, counts = self.DEPTHS[depth]
        self.is_cifar = stem == "cifar"
        self.conv1 = (nn.Conv2d(channels, 64, 3, 1, 1, bias=False)
                      if self.is_cifar else
                      nn.Conv2d(channels, 64, 7, 2, 3, bias=False))
        self.bn1 = nn.BatchNorm2d(64)
        inplanes = 64
        for i, count in enumerate(counts):
            planes = 64 << i
            blocks = []
            for j in range(count):
                stride = 2 if i > 0 and j == 0 else 1
                blocks.append(block(inplanes, planes, stride))
                inplanes = planes * block.expansion
            setattr(self, f"layer{i + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(inplanes, classes)

    def forward(self, x):
        x = functional.relu(self.bn1(self.conv1(x)), inplace=True)
        if not self.is_cifar:
            x = functional.max_pool2d(x, 3, 2, 1)
        for i in range(1, 5):
            x = getattr(self, f"layer{i}")(x)
        x = functional.adaptive_avg_pool2d(x, 1).flatten(1)
        return self.fc(x)


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.c_attn(x).split(c, dim=2)
        shape = (b, t, self.heads, c // self.heads)
        q, k, v = (z.view(shape).transpose(1, 2) for z in (q, k, v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(b, t, c))


class MLP(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width)
        self.c_proj = nn.Linear(4 * width, width)

    def forward(self, x):
        return self.c_proj(functional.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = MLP(width)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Embedding(nn.Module):
    """Tokens and positions under one name, as in Sluice."""

    def __init__(self, vocab, width, context):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab, width))
        self.position = nn.Parameter(torch.empty(context, width))

    def forward(self, x):
        return functional.embedding(x, self.weight) + \
            self.position[:x.shape[1]]


class GPT(nn.Module):
    def __init__(self, layers, width, heads, vocab, context):
        super().__init__()
        self.wte = Embedding(vocab, width, context)
        self.h = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)

    def forward(self, x):
        x = self.wte(x)
        for block in self.h:
            x = block(x)
        return functional.linear(self.ln_f(x), self.wte.weight)


def load(model, weights):
    """Copy Sluice's weights by name; every tensor must find its place."""
    own = {name: tensor for name, tensor in model.state_dict().items()
           if not name.endswith("num_batches_tracked")}
    if set(own) != set(weights):
        raise SystemExit(f"names differ: {sorted(set(own) ^ set(weights))}")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(torch.from_numpy(weights[name]))


def batches(path, is_text):
    """The batches that `sluice batches` wrote, in order."""
    tensors = read_safetensors(path)
    out = []
    while f"data.{len(out)}" in tensors:
        data = torch.from_numpy(tensors[f"data.{len(out)}"])
        target = torch.from_numpy(tensors[f"target.{len(out)}"]).long()
        out.append((data.long() if is_text else data, target))
    return out


def loss_sum(model, data, target):
    logits = model(data)
    return functional.cross_entropy(logits.reshape(-1, logits.shape[-1]),
                                    target.reshape(-1), reduction="sum",
                                    ignore_index=-100)


def train_step(model, optimizer, data, target, micro_batches):
    """One step over micro-batches split as Sluice splits them; the loss is
    the mean over all targets of the batch."""
    optimizer.zero_grad(set_to_none=True)
    n_valid = max(1, int((target != -100).sum()))
    n = min(micro_batches, len(data))
    total, first = 0.0, 0
    for m in range(n):
        rows = len(data) // n + (m < len(data) % n)
        loss = loss_sum(model, data[first:first + rows],
                        target[first:first + rows]) / n_valid
        loss.backward()
        total += loss.item()
        first += rows
    optimizer.step()
    return total
