#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the allocator, beside the C library's, jemalloc and mimalloc.

    cmake -B build -DSL_BENCH=ON && cmake --build build
    bench/memory/run.py --build build [pairs] [traces] [resize] [limits]

Prints Markdown tables. Traces are recorded from the examples with small
settings. jemalloc and mimalloc are used when the system has them
(libjemalloc2, libmimalloc2.0); else the table says so.
"""
import argparse
import ctypes.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEVICES = ["--devices", "cpu:2", "--threads", "1", "--steps", "4", "--quiet"]
JOBS = {
    "gpt_shakespeare": ["--batch", "12"],
    "gpt2_synthetic": ["--batch", "4"],
    "resnet101_synthetic": [
        "--batch", "4", "--set", "data.n_samples=16",
        "--set", "data.image={channels: 3, height: 96, width: 96}"],
    "unet_layers": [],
}
JOB = ["examples/gpt_shakespeare.yaml", "devices.use=cpu:2",
       "devices.threads=1", "devices.memory=1GiB", "devices.host_memory=1GiB",
       "train.batch=12"]


def allocators():
    """Name, library to preload (None: none), which side of bench_alloc."""
    yield "sluice", None, "sluice"
    yield "glibc", None, "malloc"
    for name in ("jemalloc", "mimalloc"):
        library = ctypes.util.find_library(name)
        if library is None:
            print(f"{name}: not installed, left out", file=sys.stderr)
        else:
            yield name, library, "malloc"


def run(command, preload=None):
    environment = dict(os.environ)
    if preload is not None:
        environment["LD_PRELOAD"] = preload
    done = subprocess.run(command, cwd=ROOT, env=environment, check=True,
                          stdout=subprocess.PIPE, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()
            if line.startswith("{")]


def table(head, rows):
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |")
    print()


def pairs(bin_dir):
    rows = []
    for name, library, side in allocators():
        result = run([bin_dir / "bench_alloc", side, "pairs"], library)
        rows.append([name] + [f"{r['ns_per_pair']:.0f}" for r in result])
    table(["ns per pair", "1 thread", "4 threads", "16 threads"], rows)


def traces(bin_dir, sluice):
    with tempfile.TemporaryDirectory() as directory:
        rows, limits = [], []
        for job, options in JOBS.items():
            path = os.path.join(directory, job)
            run([sluice, "train", f"examples/{job}.yaml", *DEVICES, *options,
                 "--memory-trace", path])
            for device in ("cpu0", "cpu1"):
                trace = f"{path}.{device}"
                label = f"{job} {device}"
                for name, library, side in allocators():
                    r, = run([bin_dir / "bench_alloc", side, "replay", trace],
                             library)
                    live = r["peak_live"]
                    rows.append([
                        label, name, r["ops"], f"{r['ns_per_op']:.0f}",
                        f"{r['ns_per_op_touched']:.0f}",
                        f"{live / 1e6:.1f}",
                        f"{r['peak_resident'] / live:.3f}",
                        f"{r['held'] / live:.3f}" if "held" in r else ""])
                r, = run([bin_dir / "bench_alloc", "sluice", "limit", trace])
                limits.append([label, f"{r['peak_live'] / 1e6:.1f}",
                               f"{r['over_live']:.3f}"])
    table(["trace", "allocator", "ops", "ns/op", "ns/op with pages",
           "peak live MB", "resident / live", "held / live"], rows)
    table(["trace", "peak live MB", "smallest limit / live"], limits)


def resize(bin_dir):
    *kinds, steps = run([bin_dir / "bench_job", "resize", *JOB])
    table(["request", "n", "p50 ms", "p90 ms", "p99 ms", "max ms"],
          [[r["request"], r["n"], r["p50_ms"], r["p90_ms"], r["p99_ms"],
            r["max_ms"]] for r in kinds])
    table(["steps", "p50 ms", "p99 ms", "max ms", "honoured at the first boundary"],
          [[steps["steps"], steps["step_p50_ms"], steps["step_p99_ms"],
            steps["step_max_ms"], steps["at_first_boundary"]]])


def limits(bin_dir):
    rows = run([bin_dir / "bench_job", "limits", *JOB])
    table(["limit / need", "held MB", "step ms (median)", "step ms (least)",
           "CPU ms per step", "host MB allocated per step",
           "regions asked per step"],
          [[f"{r['percent']} %", f"{r['held'] / 1e6:.1f}", r["step_ms"],
            r["step_min_ms"], r["cpu_ms"],
            f"{r['spill_bytes_per_step'] / 1e6:.1f}",
            r["regions_per_step"]] for r in rows])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", default="build", type=pathlib.Path)
    parser.add_argument("what", nargs="*",
                        help="pairs, traces, resize, limits; default: all")
    options = parser.parse_args()
    build = options.build.resolve()
    what = options.what or ["pairs", "traces", "resize", "limits"]
    if "pairs" in what:
        pairs(build / "bench")
    if "traces" in what:
        traces(build / "bench", build / "sluice")
    if "resize" in what:
        resize(build / "bench")
    if "limits" in what:
        limits(build / "bench")


if __name__ == "__main__":
    main()
