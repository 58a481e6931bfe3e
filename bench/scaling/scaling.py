#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two ranks on two cores beside one rank on one core, one kernel thread each:
`sluice train` under mpirun as a pipeline of two stages and as two replicas;
beside PyTorch, torch.distributed.pipelining (GPipe and 1F1B) and
DistributedDataParallel over gloo, on the same model, weights and batches in
the same run. Everything in turn (A B C ... A B C ...), medians of the steps.

    bench/scaling/scaling.py [--sluice build/sluice] [--python PYTHON]
                             [--rounds 5] [--steps 6] [CASE...]

The speed-up is over the own single rank; `of ideal` is that over the ideal:
M * sum(t) / (sum(t) + (M - 1) * max(t)) for a pipeline, t being the stages'
own times as measured alone; for two replicas the single rank's time over that
of one rank with half of the rows, also measured alone: the update of the weights
is in both. --python names a Python
with PyTorch; without one PyTorch is left out. The losses of the first step
must agree.
"""

import argparse
import glob
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile

IDEAL_ROUNDS = 2  # stages are measured alone in so many rounds

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PEER = os.path.join(HERE, "torch_rank.py")

# name: layers-width-heads, vocabulary, context, batch, micro-batches, lr
CASES = {
    "gpt2": ("12-768-12", 512, 256, 8, 4, 1e-2),
    "gpt-small": ("4-192-6", 256, 128, 48, 6, 1e-2),
}

CONFIG = """
name: {name}
data: {{format: synthetic_tokens, context: {context}, classes: {vocab},
       n_samples: 512}}
model: {{type: gpt, layers: {layers}, width: {width}, heads: {heads},
        vocab: {vocab}}}
train: {{batch: {batch}, micro_batches: {micro}, steps: {steps}}}
optimizer: {{type: sgd, lr: {lr}, momentum: 0.9}}
"""

# name: stages, replicas, schedule
WAYS = {
    "one rank": (1, 1, "1f1b"),
    "pipeline gpipe": (2, 1, "gpipe"),
    "pipeline 1f1b": (2, 1, "1f1b"),
    "two replicas": (1, 2, "1f1b"),
}
TORCH_MODES = {"one rank": "alone", "pipeline gpipe": "gpipe",
               "pipeline 1f1b": "1f1b", "two replicas": "ddp"}


def run(command, environment=None):
    done = subprocess.run(command, env=environment, text=True,
                          stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit status "
                         f"{done.returncode}")
    return done.stdout


def read_lines(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def free_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


class Case:
    def __init__(self, name, arguments, folder):
        shape, self.vocab, self.context, self.batch, self.micro, self.lr = \
            CASES[name]
        layers, width, heads = shape.split("-")
        self.model = "gpt" + shape
        self.arguments = arguments
        self.folder = folder
        self.config = os.path.join(folder, "config.yaml")
        self.weights = os.path.join(folder, "weights.safetensors")
        self.batches = os.path.join(folder, "batches.safetensors")
        with open(self.config, "w", encoding="utf-8") as file:
            file.write(CONFIG.format(
                name=name, context=self.context, vocab=self.vocab,
                layers=layers, width=width, heads=heads, batch=self.batch,
                micro=self.micro, steps=arguments.steps + 2, lr=self.lr))
        sluice = arguments.sluice
        run([sluice, "train", self.config, "--quiet", "--steps", "0",
             "--save", self.weights])
        run([sluice, "batches", self.config, "--save", self.batches])

    def micro_batches(self, way):
        """Of a replica, so that all ways have the same micro-batches."""
        return self.micro // WAYS[way][1]

    def sluice(self, way):
        n_stages, n_replicas, schedule = WAYS[way]
        options = ["--stages", str(n_stages), "--schedule", schedule,
                   "--micro-batches", str(self.micro_batches(way))]
        if n_replicas > 1:
            options += ["--replicas", str(n_replicas)]
        return self.train(options, n_stages * n_replicas)

    def train(self, options, n_ranks):
        metrics = os.path.join(self.folder, "metrics.jsonl")
        edges = os.path.join(self.folder, "edges.jsonl")
        for path in glob.glob(self.folder + "/*.jsonl*"):
            os.unlink(path)
        command = [self.arguments.sluice, "train", self.config, "--quiet",
                   "--weights", self.weights, "--metrics", metrics,
                   "--devices", "cpu:1", "--threads", "1", *options]
        if n_ranks > 1:
            command += ["--edges", edges]
        self.launch(command, n_ranks)
        result = {"losses": [], "step_ms": [], "edges": []}
        for step in read_lines(metrics):
            result["losses"].append(step["loss"])
            result["step_ms"].append(step["step_ms"])
        for path in sorted(glob.glob(edges + ".*")):
            result["edges"] += read_lines(path)
        return result

    def launch(self, command, n_ranks):
        if n_ranks > 1:
            command = self.arguments.mpirun.split() + \
                ["-n", str(n_ranks)] + command
        run(command, dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1",
                          OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1"))

    def sluice_ideal(self, way, whole_ms):
        """From what is measured on one device: the stages' times, or that of a
        replica's part of the batch."""
        n_stages, n_replicas, schedule = WAYS[way]
        if n_replicas > 1:
            part = self.train(["--batch", str(self.batch // n_replicas),
                               "--micro-batches",
                               str(self.micro_batches(way))], 1)
            return whole_ms / median_step([part])
        if n_stages == 1:
            return 1.0
        return json.loads(
            run([self.arguments.sluice, "speedup", self.config, "--json",
                 "--devices", f"cpu:{n_stages}", "--threads", "1",
                 "--schedule", schedule, "--repeats", "5"]))["ideal"]

    def torch(self, way):
        return self.torch_run(way, TORCH_MODES[way])

    def torch_ideal(self, way, one_rank):
        if WAYS[way][1] > 1:
            part = self.torch_run(way, "half", 1)
            return median_step([one_rank]) / median_step([part])
        return pipeline_ideal(one_rank["stage_ms"], self.micro) \
            if WAYS[way][0] > 1 else 1.0

    def torch_run(self, way, mode, n_ranks=None):
        command = [self.arguments.python, PEER, mode, self.model,
                   self.weights, self.batches, "--micro-batches",
                   str(self.micro_batches(way)), "--classes", str(self.vocab),
                   "--context", str(self.context), "--lr", str(self.lr)]
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith("OPENBLAS_")}
        environment["OMP_NUM_THREADS"] = "1"
        if n_ranks is None:
            n_ranks = WAYS[way][0] * WAYS[way][1]
        if n_ranks == 1:
            return json.loads(run(command, environment))
        environment.update(MASTER_ADDR="127.0.0.1",
                           MASTER_PORT=str(free_port()),
                           WORLD_SIZE=str(n_ranks),
                           GLOO_SOCKET_IFNAME="lo")
        cores = sorted(os.sched_getaffinity(0))
        ranks = [subprocess.Popen(
            ["taskset", "-c", str(cores[r % len(cores)])] + command,
            env=dict(environment, RANK=str(r)), text=True,
            stdout=subprocess.PIPE, stderr=None) for r in range(n_ranks)]
        outputs = [rank.communicate()[0] for rank in ranks]
        if any(rank.returncode != 0 for rank in ranks):
            raise SystemExit(f"{' '.join(command)}: failed")
        return json.loads(outputs[0])


def pipeline_ideal(stage_ms, n_micro):
    total, slowest = sum(stage_ms), max(stage_ms)
    return n_micro * total / (total + (n_micro - 1) * slowest)


def median_step(runs):
    """The first two steps of a run are its warm-up."""
    return statistics.median(ms for r in runs for ms in r["step_ms"][2:])


def tell(case, number, way, label, runs):
    """Progress, so that a run that is cut short has said something."""
    print(f"{case} {number}: {label}, {way}: {median_step(runs[-1:]):.2f} ms",
          file=sys.stderr, flush=True)


def hidden_part(edges, side):
    """How much of the transfers' time lay under compute of one side."""
    timed = [edge for edge in edges if edge["is_sender"] and "timed" in edge]
    total = sum(edge["timed_us"] for edge in timed)
    if total == 0:
        return None
    return sum(edge["timed_us"] * edge[side] for edge in timed) / total


def print_overlap(runs):
    """Of all runs."""
    edges = [edge for run in runs for edge in run["edges"]]
    sender = hidden_part(edges, "under_sender")
    if sender is not None:
        receiver = hidden_part(edges, "under_receiver")
        print(f"    of the transfers' time {100 * sender:.0f} % lay under "
              f"compute of the sending device, {100 * receiver:.0f} % of the "
              "receiving one", flush=True)


def place(cell):
    return f"{cell[0]}.{cell[1]}"


def part(edge, side):
    return f"{100 * edge[side]:.0f} %" if "timed" in edge else "-"


def print_edges(runs):
    """Of the latest run, an edge a line: between which stages (replica.stage),
    what it has carried, how long a message took from queued to left, how
    many waited for a slot, and which part of the timed transfers lay under
    compute of either side."""
    edges = [edge for edge in runs[-1]["edges"]
             if edge["is_sender"] and edge["messages"] > 0]
    if not edges:
        return
    print(f"    {'edge':<12} {'from':>5} {'to':>5} {'messages':>9} "
          f"{'MiB':>9} {'latency us':>10} {'waited':>7} {'sender':>7} "
          f"{'receiver':>8}")
    for edge in edges:
        print(f"    {edge['kind']:<12} {place(edge['from']):>5} "
              f"{place(edge['to']):>5} {edge['messages']:>9} "
              f"{edge['bytes'] / 2**20:>9.2f} "
              f"{edge['mean_latency_us']:>10.1f} {edge['stalls']:>7} "
              f"{part(edge, 'under_sender'):>7} "
              f"{part(edge, 'under_receiver'):>8}", flush=True)


def run_case(name, arguments):
    with tempfile.TemporaryDirectory() as folder:
        case = Case(name, arguments, folder)
        ways = [way for way in WAYS if way in arguments.ways]
        ours = {way: [] for way in ways}
        theirs = {way: [] for way in ways}
        ideals = {way: [] for way in ways}
        their_ideals = {way: [] for way in ways}
        for number in range(arguments.rounds):
            for way in ways:
                ours[way].append(case.sluice(way))
                tell(name, number, way, "sluice", ours[way])
                if number < IDEAL_ROUNDS:
                    ideals[way].append(case.sluice_ideal(
                        way, median_step(ours["one rank"][-1:])))
                if arguments.python is not None:
                    theirs[way].append(case.torch(way))
                    tell(name, number, way, "torch", theirs[way])
                    if number < IDEAL_ROUNDS:
                        their_ideals[way].append(case.torch_ideal(
                            way, theirs["one rank"][-1]))
    print(f"\n{name}: batch {case.batch}, {case.micro} micro-batches in all\n"
          f"{'':<10} {'way':<16} {'ms':>9} {'speed-up':>8} {'ideal':>6} "
          f"{'of ideal':>8}")
    first = ours["one rank"][0]["losses"][0]
    for label, results, limits in (("sluice", ours, ideals),
                                   ("torch", theirs, their_ideals)):
        for way in ways:
            if not results[way]:
                continue
            speed_up = median_step(results["one rank"]) / \
                median_step(results[way])
            ideal = statistics.median(limits[way])
            print(f"{label:<10} {way:<16} {median_step(results[way]):>9.2f} "
                  f"{speed_up:>8.3f} {ideal:>6.3f} {speed_up / ideal:>8.3f}",
                  flush=True)
            if label == "sluice":
                print_edges(results[way])
                print_overlap(results[way])
            loss = results[way][0]["losses"][0]
            if abs(loss / first - 1) > 1e-4:
                raise SystemExit(f"{label}, {way}: first loss {loss}, not "
                                 f"{first}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sluice",
                        default=os.path.join(ROOT, "build", "sluice"))
    parser.add_argument("--python", help="a Python with PyTorch")
    parser.add_argument("--mpirun", default="mpirun --bind-to none",
                        help="ranks take their own share of the cores")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--ways", default=",".join(WAYS),
                        help="comma-separated, of: " + ", ".join(WAYS))
    parser.add_argument("cases", nargs="*")
    arguments = parser.parse_args()
    arguments.ways = ["one rank"] + arguments.ways.split(",")
    if not set(arguments.ways) <= set(WAYS):
        raise SystemExit(f"--ways: there are {', '.join(WAYS)}")
    if arguments.python is None:
        print("no --python: PyTorch is left out", file=sys.stderr)
    for name in arguments.cases or CASES:
        run_case(name, arguments)


if __name__ == "__main__":
    main()
