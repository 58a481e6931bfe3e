#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A guarantee job on two cores with a guest beside it, under several ways of
sharing. Both jobs run all the time; one or the other is held in turn: guarantee
job alone, both, guest alone, and again, so that each measurement of both has
its comparison within seconds, on the machine as it is then. Checks that
results do not depend on the company.

    bench/sharing/sharing.py [--sluice build/sluice] [--repetitions 5]
                             [--seconds 4] [--warm-up 20] [--load-steps 5]
                             [--raw FILE] [--no-check]
                             [--guest device|pipeline] [WAY...]

The guarantee job is a pipeline of two stages with few micro-batches, so its
idle part are its bubbles. The guest trains the same model on one device or,
with --guest pipeline, on both: then it also waits for itself, since the two
devices are idle at different times.

The guarantee job is also held --load-steps times, so that the guest
has all, and let go, by turns with as many times when the guest is held too. The
guest must have yielded within 1 s or 10 mini-batches, whichever is longer: how
much slower is the guarantee job from then on than without the guest?
"""

import argparse
import glob
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))

CONFIG = """
name: bench
data: {format: synthetic_tokens, context: 64, classes: 256, n_samples: 512}
model: {type: gpt, layers: 6, width: 128, heads: 4, vocab: 256, dropout: 0.0}
train: {batch: 16, schedule: 1f1b}
optimizer: {type: sgd, lr: 1.0e-3}
devices: {use: "cpu:2", threads: 1}
"""

GUESTS = {
    "device": ["--devices", "cpu:1"],
    "pipeline": [],
}

# name: (policy of a coordinator, prefix of the guest's command)
WAYS = {
    "no control": (None, []),
    "nice 19": (None, ["nice", "-n", "19"]),
    "static 50/50": ("static", []),
    "guarantee-first": ("guarantee-first", []),
}


def read_steps(path):
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().split("\n")[:-1]
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines]


class Job:
    """A `sluice train` in the background."""

    def __init__(self, bench, name, options, prefix=()):
        self.metrics = os.path.join(bench.folder, f"{name}.jsonl")
        self.log = open(os.path.join(bench.folder, f"{name}.log"), "w+",
                        encoding="utf-8")
        if os.path.exists(self.metrics):
            os.remove(self.metrics)
        self.process = subprocess.Popen(
            [*prefix, bench.sluice, "train", bench.config, "--quiet",
             "--metrics", self.metrics, "--job-name", name, *options],
            stdout=self.log, stderr=subprocess.STDOUT, env=bench.environment)

    def n_steps(self):
        return len(read_steps(self.metrics))

    def wait_for_step(self, n, timeout=120):
        end = time.monotonic() + timeout
        while self.n_steps() < n:
            if self.process.poll() is not None or time.monotonic() > end:
                raise SystemExit("a job did not come to step "
                                 f"{n}:\n{self.output()}")
            time.sleep(0.05)

    def output(self):
        self.log.flush()
        self.log.seek(0)
        return self.log.read()

    def end(self):
        """Ends after its step; returns (steps, hash)."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.wait(120)
        found = re.search(r"step (\d+)  state-hash (\w+)", self.output())
        if found is None:
            raise SystemExit(f"a job failed:\n{self.output()}")
        return int(found.group(1)), found.group(2)


class Bench:
    def __init__(self, arguments):
        self.sluice = os.path.abspath(arguments.sluice)
        self.seconds = arguments.seconds
        self.warm_up = arguments.warm_up
        self.repetitions = arguments.repetitions
        self.n_load_steps = arguments.load_steps
        self.load_steps = {}  # by way
        self.folder = tempfile.mkdtemp(prefix="sluice-sharing-")
        self.config = os.path.join(self.folder, "config.yaml")
        with open(self.config, "w", encoding="utf-8") as file:
            file.write(CONFIG)
        self.environment = dict(os.environ)
        self.environment["SLUICE_RUN_DIR"] = os.path.join(self.folder, "run")
        self.hosts = ["--class", "guarantee", "--micro-batches", "2"]
        self.guests = ["--class", "opportunistic", "--micro-batches", "8",
                       *GUESTS[arguments.guest]]

    def close(self):
        shutil.rmtree(self.folder, ignore_errors=True)

    def ctl(self, *words):
        subprocess.run([self.sluice, "ctl", *words], env=self.environment,
                       check=True)

    def progress(self):
        """The guest's ops so far and the time of that status: finer than its
        mini-batches."""
        path = glob.glob(os.path.join(self.environment["SLUICE_RUN_DIR"],
                                      "jobs", "guest-*", "status.json"))[0]
        with open(path, encoding="utf-8") as file:
            status = json.load(file)
        return (sum(device["n_ops"] for device in status["devices"]),
                status["time_ns"] * 1e-9)

    def later_progress(self, after):
        """The first status that is later."""
        while True:
            ops, when = self.progress()
            if when > after:
                return ops, when
            time.sleep(0.02)

    def measure(self, host, guest, has_host, has_guest):
        """One window. Holding and letting go act within a mini-batch."""
        if has_host:
            self.ctl("resume", "host")
        if has_guest:
            self.ctl("share", "guest", "all", "auto")
        time.sleep(0.3)
        # looking takes a core: the host's mini-batches count between looks
        if has_guest:
            begin, start = self.later_progress(self.progress()[1])
        if has_host:  # the first mini-batch began before
            host.wait_for_step(host.n_steps() + 1)
            first = host.n_steps() + 1
        time.sleep(self.seconds)
        result = {}
        if has_host:
            host.wait_for_step(first + 3)
            steps = read_steps(host.metrics)[first:]
            result["ms"] = [step["step_ms"] for step in steps]
            result["idle"] = 1.0 - statistics.mean(
                device["busy"] for step in steps for device in step["devices"])
        if has_guest:
            ops, end = self.later_progress(self.progress()[1])
            result["rate"] = (ops - begin) / (end - start)
        return result

    def load_step(self, host, has_guest):
        """The guarantee job is held, so that the guest has all or, for
        comparison, is held too, and let go. Its mini-batches from then on, ms,
        and the guest's part of the rate it had before: once the bound is over,
        and as it settles."""
        self.ctl("share", "guest", "all", "auto" if has_guest else "0")
        self.ctl("suspend", "host")
        time.sleep(1.0)
        solo = self.rate_for(1.0)
        first = host.n_steps() + 1  # one was begun before: it holds the hold
        self.ctl("resume", "host")
        time.sleep(1.0)
        after = self.rate_for(1.5)
        settled = self.rate_for(1.5)
        host.wait_for_step(first + 12)
        step = {"ms": [step["step_ms"]
                       for step in read_steps(host.metrics)[first:]]}
        if has_guest and solo > 0:
            step["after"] = after / solo
            step["settled"] = settled / solo
        return step

    def rate_for(self, seconds):
        """The guest's ops a second for so long."""
        begin, start = self.later_progress(self.progress()[1])
        time.sleep(seconds)
        ops, end = self.later_progress(self.progress()[1])
        return (ops - begin) / (end - start)

    def load_steps_of(self, host):
        """Pairs: without the guest, and with it."""
        return [(self.load_step(host, False),
                 self.load_step(host, True))
                for _ in range(self.n_load_steps)]

    def run(self, way):
        policy, prefix = WAYS[way]
        coordinator = None
        if policy is not None:
            coordinator = subprocess.Popen(
                [self.sluice, "coordinator", "--quiet", "--policy", policy],
                env=self.environment)
            time.sleep(0.5)
        many = ["--steps", "1000000"]
        host = Job(self, "host", self.hosts + many)
        host.wait_for_step(12)
        guest = Job(self, "guest", self.guests + many, prefix)
        guest.wait_for_step(1)
        time.sleep(self.warm_up if policy else 1.0)
        windows = []
        for _ in range(self.repetitions):
            self.ctl("share", "guest", "all", "0")
            alone = self.measure(host, guest, True, False)
            both = self.measure(host, guest, True, True)
            self.ctl("suspend", "host")
            solo = self.measure(host, guest, False, True)
            windows.append((alone, both, solo))
        ends = {"host": None, "guest": None}
        self.ctl("resume", "host")
        time.sleep(self.warm_up if self.n_load_steps > 0 else 0.0)
        self.load_steps[way] = self.load_steps_of(host)
        for name, job in (("host", host), ("guest", guest)):
            ends[name] = job.end()
        if coordinator is not None:
            coordinator.send_signal(signal.SIGTERM)
            if coordinator.wait(10) != 0:
                raise SystemExit("the coordinator failed")
        return windows, ends

    def is_exact(self, options, end):
        """Whether a job alone has the same state after as many steps."""
        n_steps, state = end
        job = Job(self, "check", options + ["--steps", str(n_steps)])
        job.process.wait(600)
        return job.end() == (n_steps, state)


def percentile(values, part):
    values = sorted(values)
    return values[min(len(values) - 1, int(part * len(values)))]


def slower(values):
    return f"{100 * (statistics.median(values) - 1):+7.1f} %"


def tail_ratio(windows):
    """The p99 of all mini-batches beside the guest over that of all alone, each
    mini-batch over the median alone of its own repetition: a single window has
    two or three beyond its p99, which is what the machine did meanwhile."""
    tails = []
    for part in (1, 0):
        tails.append(percentile(
            [ms / statistics.median(window[0]["ms"])
             for window in windows for ms in window[part]["ms"]], 0.99))
    return tails[0] / tails[1]


def tail_range(windows):
    """Between which tail_ratio lies for nine tenths of the sets of as many
    repetitions, drawn from these with repeats: what chance may do to it."""
    draw = random.Random(1)
    ratios = [tail_ratio(draw.choices(windows, k=len(windows)))
              for _ in range(400)]
    return (f"{100 * (percentile(ratios, 0.05) - 1):+.1f} .. "
            f"{100 * (percentile(ratios, 0.95) - 1):+.1f} %")


def summarise(windows):
    """Medians over the repetitions, each against its own neighbours."""
    mean, median, rate, idle = [], [], [], []
    for alone, both, solo in windows:
        mean.append(statistics.mean(both["ms"]) / statistics.mean(alone["ms"]))
        median.append(statistics.median(both["ms"]) /
                      statistics.median(alone["ms"]))
        if not solo["rate"]:
            raise SystemExit("the guest alone got nowhere: the machine is "
                             "too busy to measure on")
        rate.append(both["rate"] / solo["rate"])
        idle.append(rate[-1] / alone["idle"])
    tail = tail_ratio(windows)
    return (f"{slower(mean)}{slower(median)}{slower([tail])}"
            f"{statistics.median(rate):9.2f}{statistics.median(idle):9.2f}"
            f"   {100 * (min(mean) - 1):+.1f} .. {100 * (max(mean) - 1):+.1f} %"
            f"   {min(rate):.2f} .. {max(rate):.2f}"
            f"   {tail_range(windows)}")


def print_table(runs):
    alone = [window[0] for windows in runs.values() for window in windows]
    own = statistics.median(statistics.median(run["ms"]) for run in alone)
    idle = statistics.median(run["idle"] for run in alone)
    load = os.getloadavg()[1]
    print(f"\nguarantee job alone: median mini-batch {own:.1f} ms, idle part "
          f"{idle:.2f}; load of the machine {load:.1f}")
    print("guarantee job slower by; guest's throughput over alone, and over "
          "(alone x idle part); medians and range over the repetitions, p99 of "
          f"all {sum(len(run['ms']) for run in alone) // len(runs)} "
          "mini-batches\n")
    print(f"{'':18}{'mean':>9}{'median':>9}{'p99':>9}{'guest':>9}"
          f"{'of idle':>9}   least .. most mean   least .. most guest"
          "   p99 by chance")
    for way, windows in runs.items():
        print(f"{way:18}{summarise(windows)}")


def beyond_the_bound(times):
    """The mini-batches that begin when the guest must have yielded: after 10 of
    them and after 1 s; and not more than a second and a half of them."""
    begin_ms, found = 0.0, []
    for n, ms in enumerate(times):
        if n >= 10 and begin_ms >= 1000.0 and sum(found) < 1500.0:
            found.append(ms)
        begin_ms += ms
    return found


def print_load_steps(load_steps):
    """What the guarantee job takes beyond the bound, over what it takes there
    when it is let go with no guest around, a few seconds before."""
    for way, pairs in load_steps.items():
        if not pairs:
            continue
        ratios = [statistics.median(beyond_the_bound(guest["ms"])) /
                  statistics.median(beyond_the_bound(alone["ms"]))
                  for alone, guest in pairs]
        guests = [guest for _, guest in pairs]
        print(f"\n{way}: {len(pairs)} load steps; from 1 s and 10 mini-batches "
              "on the guarantee job is slower than after load steps without a "
              f"guest by{slower(ratios)} in the median, by at most 5 % after "
              f"{sum(ratio <= 1.05 for ratio in ratios)}")
        print("slower by:             " +
              " ".join(f"{ratio - 1:+.3f}" for ratio in ratios))
        for name, text in (("after", "guest's rate there:    "),
                           ("settled", "and 1.5 s later:       ")):
            print(text + "   ".join(f"{guest[name]:.2f}" for guest in guests
                                    if name in guest))


def check(bench, way, ends):
    """Both jobs again alone."""
    is_good = True
    for job, options in (("host", bench.hosts), ("guest", bench.guests)):
        if not bench.is_exact(options, ends[job]):
            print(f"{way}: the {job}'s state differs from alone")
            is_good = False
    if is_good:
        print(f"\n{way}: states of both jobs are the same as alone, bit by "
              "bit")
    return is_good


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sluice",
                        default=os.path.join(ROOT, "build", "sluice"))
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--warm-up", type=float, default=20.0)
    parser.add_argument("--guest", choices=GUESTS, default="device")
    parser.add_argument("--load-steps", type=int, default=5, metavar="N")
    parser.add_argument("--no-check", action="store_true",
                        help="do not run the jobs again alone at the end, which"
                        " takes as long as all before")
    parser.add_argument("--raw", metavar="FILE",
                        help="write all that was measured, as JSON")
    parser.add_argument("ways", nargs="*", metavar="WAY",
                        help="of " + ", ".join(WAYS))
    arguments = parser.parse_args()
    for way in arguments.ways:
        if way not in WAYS:
            parser.error(f"there is no '{way}'; there are " + ", ".join(WAYS))
    bench = Bench(arguments)
    runs, ends = {}, {}
    try:
        for way in arguments.ways or WAYS:
            print(f"{way} ...", file=sys.stderr)
            runs[way], ends[way] = bench.run(way)
        print_table(runs)
        print_load_steps(bench.load_steps)
        if arguments.raw is not None:
            with open(arguments.raw, "w", encoding="utf-8") as file:
                json.dump({"windows": runs, "load_steps": bench.load_steps},
                          file)
        is_good = arguments.no_check or \
            all([check(bench, way, ends[way]) for way in runs])
    finally:
        bench.close()
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
