#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The largest models that train under a fixed memory per device, after table
1 of the GPipe paper: bench/headline/run.py [--memory-mib N] [--sluice FILE].

Candidates are rehearsed by `sluice plan`; the largest that fits is then
trained for --steps steps by `sluice train` under the same limit."""
import argparse
import json
import os
import subprocess
import tempfile
import time

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")

GPT = """name: gpt
data: {format: synthetic_tokens, context: 64, classes: 512, n_samples: 64}
model: {type: gpt, layers: %d, width: 512, heads: 8, vocab: 512}
optimizer: {type: adamw, lr: 3.0e-4}
"""

RESNET = """name: resnet
data: {format: synthetic_images, n_samples: 64, classes: 100,
       image: {channels: 3, height: 96, width: 96}}
model:
  layers:
%s
optimizer: {type: sgd, lr: 0.01, momentum: 0.9}
"""


def resnet_layers(blocks):
    """Bottleneck blocks as torchvision's ResNets have them, `blocks` a list
    of four counts: [3, 4, 23, 3] is ResNet-101."""
    lines = []

    def add(kind, name, source, **attrs):
        more = "".join(", %s: %s" % item for item in attrs.items())
        lines.append("    - {type: %s, name: %s, from: %s%s}" % (
            kind, name, source, more))
        return name

    def conv(name, source, out, kernel, stride=1):
        return add("conv2d", name, source, out=out, kernel=kernel,
                   stride=stride, pad=kernel // 2, bias="false",
                   init="kaiming")

    x = conv("conv1", "data", 64, 7, 2)
    x = add("batch_norm", "bn1", x, relu="true")
    x = add("max_pool2d", "maxpool", x, kernel=3, stride=2, pad=1)
    for stage, n in enumerate(blocks):
        width = 64 << stage
        for i in range(n):
            name = "layer%d.%d." % (stage + 1, i)
            stride = 2 if stage > 0 and i == 0 else 1
            skip = x
            if i == 0:
                skip = conv(name + "downsample.0", x, 4 * width, 1, stride)
                skip = add("batch_norm", name + "downsample.1", skip)
            x = conv(name + "conv1", x, width, 1)
            x = add("batch_norm", name + "bn1", x, relu="true")
            x = conv(name + "conv2", x, width, 3, stride)
            x = add("batch_norm", name + "bn2", x, relu="true")
            x = conv(name + "conv3", x, 4 * width, 1)
            x = add("batch_norm", name + "bn3", "[%s, %s]" % (x, skip),
                    relu="true")
    x = add("global_avg_pool", "avgpool", x)
    x = add("linear", "fc", x, out=100)
    lines.append("    - {type: softmax_cross_entropy, name: loss}")
    return "\n".join(lines)


def resnet(n):
    return RESNET % resnet_layers([3, 4, n, 3])


FAMILIES = [
    # key, name, config of size n, what n is, batch
    ("gpt", "GPT, 512 wide, 64 tokens", lambda n: GPT % n, lambda n: "%d blocks" % n, 32),
    ("resnet", "ResNet, images 96 x 96", resnet,
     lambda n: "ResNet-%d" % (3 * (3 + 4 + n + 3) + 2), 8),
]

# label, devices, micro-batches, recompute
SETUPS = [
    ("naive", 1, 1, "none"),
    ("pipeline-1", 1, 8, "full"),
    ("pipeline-2", 2, 8, "full"),
    ("pipeline-4", 4, 8, "full"),
    ("pipeline-8", 8, 8, "full"),
]


class Search:
    def __init__(self, args, folder, family, setup):
        self.args = args
        self.folder = folder
        self.make, self.batch = family[2], family[4]
        _, self.devices, self.micro, self.recompute = setup

    def command(self, verb, n, more):
        path = os.path.join(self.folder, "config.yaml")
        with open(path, "w") as file:
            file.write(self.make(n))
        return [self.args.sluice, verb, path, "--devices",
                "cpu:%d" % self.devices, "--threads", "1", "--batch",
                str(self.batch), "--micro-batches", str(self.micro),
                "--recompute", self.recompute, "--schedule", "1f1b",
                "--costs", "analytic"] + more

    def plan(self, n, policy, memory):
        more = ["--json", "--policy", policy]
        more += ["--device-memory", memory] if memory else []
        done = subprocess.run(self.command("plan", n, more),
                              stdout=subprocess.PIPE, check=True)
        return json.loads(done.stdout)

    def peak(self, n, policy):
        plan = self.plan(n, policy, None)
        return max(d["peak_bytes"] for d in plan["memory"]["devices"])

    def largest(self, policy, limit_bytes):
        """By peaks first, which is quick, then as the limit is enforced."""
        low, high = 0, 1
        while self.peak(high, policy) <= limit_bytes:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            if self.peak(middle, policy) <= limit_bytes:
                low = middle
            else:
                high = middle
        while low > 0 and not self.plan(low, policy,
                                        self.args.memory)["memory"]["fits"]:
            low -= 1
        return low

    def train(self, n, policy):
        metrics = os.path.join(self.folder, "metrics.jsonl")
        if os.path.exists(metrics):
            os.remove(metrics)
        subprocess.run(
            self.command("train", n, ["--steps", str(self.args.steps),
                                      "--policy", policy, "--quiet",
                                      "--device-memory", self.args.memory,
                                      "--metrics", metrics]),
            stdout=subprocess.DEVNULL, check=True)
        with open(metrics) as file:
            steps = [json.loads(line) for line in file if line.strip()]
        steps = [step for step in steps if "loss" in step]
        assert len(steps) == self.args.steps, steps
        peak = max(d["peak_bytes"] for d in steps[-1]["devices"])
        return [step["loss"] for step in steps], peak


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sluice",
                        default=os.path.join(ROOT, "build", "sluice"))
    parser.add_argument("--memory-mib", type=int, default=512,
                        help="memory limit of each device")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--family", default="all",
                        choices=["gpt", "resnet", "all"])
    args = parser.parse_args()
    args.memory = "%dMiB" % args.memory_mib
    limit = args.memory_mib << 20
    started = time.time()
    with tempfile.TemporaryDirectory() as folder:
        for family in FAMILIES:
            if args.family not in (family[0], "all"):
                continue
            print("\n%s, batch %d, %s a device\n" % (family[1], family[4],
                                                    args.memory))
            print("| setup | devices | micro-batches | recompute | largest | "
                  "parameters | to naive | peak MiB | losses |\n"
                  "|---|---|---|---|---|---|---|---|---|", flush=True)
            naive = None
            for setup in SETUPS:
                search = Search(args, folder, family, setup)
                policies = ["dp"] if setup[1] == 1 else ["dp", "uniform"]
                n, policy = max((search.largest(p, limit), p)
                                for p in policies)
                if n == 0:
                    print("| %s | %d | %d | %s | none |" % setup)
                    continue
                count = search.plan(n, policy, None)["parameters"]
                naive = naive or count
                losses, peak = search.train(n, policy)
                print("| %s | %d | %d | %s | %s | %.1f M | %.1fx | %.1f | "
                      "%s |" % (
                          setup[0], setup[1], setup[2], setup[3],
                          family[3](n), count / 1e6, count / naive,
                          peak / (1 << 20),
                          ", ".join("%.3f" % x for x in losses)), flush=True)
    print("\n%.0f s in all" % (time.time() - started))


main()
