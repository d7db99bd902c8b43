"""Builds and runs the microbenchmarks: kernels, tags, the planner, sparse tensors, compression, engine threads, sockets,
the XDP program (as root). Adds what they say as records.

.venv/bin/python -m netsum_bench.micro_bench --output FILE [--benchmarks planner]
"""

import json
import os
import re
import subprocess
import sys

from netsum_bench.machine import ROOT
from netsum_bench.options import make_parser, names_of
from netsum_bench.records import append_to

BUILD = ROOT / "build/micro"
TARGETS = {
    "kernels": "netsum_kernels_bench",
    "tags": "netsum_tag_bench",
    "planner": "netsum_plan_bench",
    "memory": "netsum_local_sum_bench",
    "engine": "netsum_engine_bench",
    "sparse": "netsum_sparse_bench",
    "compression": "netsum_compress_bench",
    "sockets": "netsum_socket_bench",
    "xdp": "xdp_bench",
}
XDP_LINE = re.compile(r"^(.+?) +(\d+) B +(\d+) ns +\((\d+) to (\d+)\)$")


def build(targets):
    subprocess.run(
        [
            "cmake",
            "-S",
            ROOT,
            "-B",
            BUILD,
            "-G",
            "Ninja",
            "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
            "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O3 -g1",
            "-DCMAKE_C_FLAGS_RELWITHDEBINFO=-O3 -g1",
            "-DNETSUM_BUILD_BENCH=ON",
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    subprocess.run(["cmake", "--build", BUILD, "--target", *targets], check=True)


def google_benchmark(benchmark, repetitions, out):
    run = subprocess.run(
        [
            BUILD / "bench/micro" / TARGETS[benchmark],
            "--benchmark_format=json",
            f"--benchmark_repetitions={repetitions}",
            "--benchmark_enable_random_interleaving=true",
            "--benchmark_min_time=0.02",
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    for entry in json.loads(run.stdout)["benchmarks"]:
        if entry["run_type"] == "iteration":
            out(
                {
                    "benchmark": benchmark,
                    "case": entry["run_name"],
                    "cpu_ns": entry["cpu_time"],
                    "bytes_per_second": entry.get("bytes_per_second"),
                    **({"rounding_loss": entry["rounding_loss"]} if "rounding_loss" in entry else {}),
                }
            )


def xdp_program(out):
    run = subprocess.run([BUILD / "bench/micro" / TARGETS["xdp"]], capture_output=True, text=True, check=True)
    for line in run.stdout.splitlines():
        if found := XDP_LINE.match(line):
            case, *numbers = found.groups()
            size, middle, low, high = map(int, numbers)
            out({"benchmark": "xdp", "case": case, "bytes": size, "ns": middle, "low_ns": low, "high_ns": high})


def main():
    parser = make_parser(__doc__, netsum=False)
    parser.add_argument("--build-only", action="store_true", help="run nothing")
    parser.add_argument("--repetitions", type=int, default=9, help="of each case (%(default)s)")
    everything = [name for name in TARGETS if name != "xdp" or os.geteuid() == 0]
    parser.add_argument(
        "--benchmarks", type=names_of(everything), default=everything, help=f"of {', '.join(everything)} (default: all)"
    )
    options = parser.parse_args()
    build([TARGETS[name] for name in options.benchmarks])
    if options.build_only:
        return 0
    out = append_to(options.output)
    for name in options.benchmarks:
        if name == "xdp":
            xdp_program(out)
        else:
            google_benchmark(name, options.repetitions, out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
