"""All-reduces of tensors that are mostly zero, in a virtual rack whose switch sums.

For each case (pattern, overlap of the ranks, density) these systems sum the same tensors: netsum's sparse all-reduce of dense
tensors and of sparse ones (COO), its dense all-reduce, and Gloo's all-gather of sparse tensors. Gloo's and Open MPI's
all-reduces of dense tensors do not depend on what is in them, so they are measured once for each size. Every result is verified.
Each record has the bytes that the byte model of docs/sparse.md and OmniReduce's blocks of 256 elements need. Needs root, and the
Python package (scripts/install_wheel.sh).

All ranks start an iteration at one instant, and it lasts until the last rank has its result (start_gate.py).

  make bench-sparse                                            the essential cases, the most important ones first: 15 minutes
  make bench-sparse BENCH_FLAGS="--budget 5"                   what fits into five minutes
  make bench-sparse BENCH_FLAGS="--selection full"             every density, pattern and overlap: an hour
  make bench-sparse BENCH_FLAGS="--densities 0.01 --patterns element --workers 8"
"""

import contextlib
import dataclasses
import json
import os
import sys

from netsum_bench import rack_report, sparse_report
from netsum_bench.figures import median
from netsum_bench.machine import ROOT
from netsum_bench.options import (
    BenchmarkRun,
    make_parser,
    names_of,
    number_from,
    parse_rate,
    parse_size,
    ready_for_racks,
    say,
)
from netsum_bench.processes import PROBLEMS
from netsum_bench.rack import Rack
from netsum_bench.records import load
from netsum_bench.sparse_inputs import DENSITIES, OVERLAPS, SELECTIONS, UNITS, model_bytes
from netsum_bench.start_gate import combine, idle_share
from netsum_bench.systems import OpenMpi, TorchRanks


@dataclasses.dataclass
class System:
    """`backend` and `how`: of sparse_worker.py. `model`: which of model_bytes() it sends, to estimate its time."""

    backend: str
    how: str
    model: str
    per_size: bool = False  # does not depend on what is in the tensor


SYSTEMS = {
    "netsum-auto": System("netsum", "auto", "netsum"),
    "netsum-on": System("netsum", "on", "netsum"),
    "netsum-coo": System("netsum", "coo", "netsum-rows"),
    "netsum-dense": System("netsum", "dense", "dense"),
    "gloo-coo": System("gloo", "coo", "coo"),
    "gloo-dense": System("gloo", "dense", "dense", per_size=True),
    "openmpi-dense": System("openmpi", "dense", "dense", per_size=True),
}
PORTS = {"netsum": 29401, "gloo": 29402}
LEAST_TIMED_MS = 100  # ticks are 10 ms
MOST_S = 4  # a sparse all-reduce that the link alone needs longer for is left out
QUICK_S, SLOW_S = 0.5, 2  # on the link: fewer iterations from here on


class TorchSystem:
    """The ranks of one backend of PyTorch."""

    def __init__(self, rack, backend):
        self.ranks = TorchRanks(rack, "sparse_worker", backend, port=PORTS[backend])
        self.close = self.ranks.close

    def measure(self, system, case, number, iterations, warmup):
        def line(gate):
            what = {"gate": gate, "how": system.how, "id": number, "iterations": iterations, "warmup": warmup}
            return json.dumps({**what, **dataclasses.asdict(case)})

        answers = self.ranks.ask(line)
        found = combine(answers)
        return {**found, **answers[0]["counters"]}


class MpiSystem(OpenMpi):
    """Open MPI's settings are tried once, with the first size."""

    def measure(self, _system, case, _number, iterations, warmup):
        size = 4 * case.count
        if not self.chosen:
            self.calibrate([(size, 1, 0)])
        self.chosen.setdefault(size, next(iter(self.chosen.values()), None))
        return super().measure(size, warmup + iterations, 0)


def plan_iterations(system, link_s):
    """(timed, warm-up). In the first iteration, netsum's sparse all-reduce learns the density."""
    if link_s < QUICK_S:
        return 5, 1
    learns = system.backend == "netsum" and system.how != "dense"
    return 3 if link_s < SLOW_S else 2, int(learns)


def cases(options, workers):
    """The cases of the selection that the other options leave."""
    found = SELECTIONS[options.selection](workers)
    if options.count:
        found = dict.fromkeys(dataclasses.replace(case, count=options.count) for case in found)
    return [
        case
        for case in found
        if case.density in options.densities
        and case.pattern in options.patterns
        and case.overlap in options.overlaps
        and case.possible(workers)
    ]


def measure_one(rack, opened, system, case, number, link_s, idle):
    """A record of the case's time, counters, bytes on worker 0's link and the machine's processor time for an iteration
    without what it spends when idle (nothing where times are too short for the kernel's ticks), or of why there is none."""
    iterations, warmup = plan_iterations(system, link_s)
    up, down = rack.link_bytes()
    try:
        found = opened[system.backend].measure(system, case, number, iterations, warmup)
    except PROBLEMS as problem:
        return {"failed": str(problem)}
    up_after, down_after = rack.link_bytes()
    times = found.pop("times_ms")
    cpu_ms = max(0, found.pop("busy_s") * 1e3 - idle * sum(times)) / len(times)
    return {
        **found,
        "times_ms": times[warmup:],
        "first_ms": times[:warmup],
        "cpu_ms": round(cpu_ms, 1) if sum(times) > LEAST_TIMED_MS else None,
        "cores": os.cpu_count(),
        "link_up": round((up_after - up) / (iterations + warmup)),
        "link_down": round((down_after - down) / (iterations + warmup)),
    }


def said(name, record):
    if "failed" in record:
        return f"    {name:14} FAILED: {record['failed']}"
    wrong = f"  {record['wrong']} WRONG" if record["wrong"] else ""
    return f"    {name:14} {median(record['times_ms']):9.2f} ms{wrong}"


def open_backends(rack, wanted, stack, out):
    """What runs the systems, by backend. One that does not start is left out, with a record."""
    opened = {}
    for backend in dict.fromkeys(SYSTEMS[name].backend for name in wanted):
        try:
            opened[backend] = MpiSystem(rack) if backend == "openmpi" else TorchSystem(rack, backend)
        except PROBLEMS as problem:
            say(f"  {backend} is left out: {problem}")
            out({"left_out": backend, "failed": str(problem)})
            continue
        stack.callback(opened[backend].close)
    return opened


def run_place(options, workers, todo, run):
    place = {"rate": options.rate, "workers": workers}
    bits = rack_report.rate_bits(options.rate) or 1e9
    sizes_done = set()
    with contextlib.ExitStack() as stack:
        rack = stack.enter_context(Rack(options.netsum, "sparse", workers, options.rate, 1500, options.dataplane))
        opened = open_backends(rack, options.systems, stack, lambda record: run.keep({**place, **record}))
        idle = idle_share()
        for number, case in enumerate(todo, 1):
            if run.expired():
                say(f"the budget of {options.budget:g} minutes is spent: {len(todo) - number + 1} cases left out")
                return
            sizes = case.sizes(workers)
            model = model_bytes(case, sizes, workers)
            say(
                f"  [{number}/{len(todo)}] {run.seconds():.0f} s: {case.count >> 20} Mi, {case.pattern}, {case.overlap}, density "
                f"{case.density:g}, union {sizes['union'] / case.count:.2%}; bound "
                f"{sparse_report.bound_ms(model['netsum'], options.rate) or 0:.1f} ms"
            )
            for name in options.systems:
                system = SYSTEMS[name]
                link_s = model[system.model] * 8 / bits
                if system.backend not in opened or (system.per_size and (name, case.count) in sizes_done):
                    continue
                if system.how == "coo" and link_s > MOST_S:
                    continue
                record = measure_one(rack, opened, system, case, number, link_s, idle)
                if system.per_size:
                    sizes_done.add((name, case.count))
                case_fields = dataclasses.asdict(case)
                run.keep({**place, **case_fields, **sizes, "model": model, "system": name, "round": 0, **record})
                say(said(name, record))


def parse_densities(text):
    return [float(part) for part in text.split(",")]


def parse_arguments():
    parser = make_parser(__doc__, budget=True)
    parser.add_argument("--workers", default="8,4", help="numbers of workers (default %(default)s)")
    parser.add_argument("--rate", type=parse_rate, default="100mbit", help="of all links (default %(default)s)")
    parser.add_argument("--dataplane", choices=["user", "xdp"], default="user", help="(default %(default)s)")
    parser.add_argument("--selection", choices=list(SELECTIONS), default="essential", help="(default %(default)s)")
    parser.add_argument("--count", type=parse_size, help="float32 elements of all tensors, instead of the selection's")
    parser.add_argument(
        "--densities", type=parse_densities, default=list(DENSITIES), help="of the selection's, only these"
    )
    for name, known in {"patterns": list(UNITS), "overlaps": list(OVERLAPS), "systems": list(SYSTEMS)}.items():
        parser.add_argument(f"--{name}", type=names_of(known), default=known, help=f"only these of {', '.join(known)}")
    options = parser.parse_args()
    try:
        options.workers = [number_from(2, 32)(part) for part in options.workers.split(",")]
    except Exception as error:
        parser.error(f"--workers: {error}")
    if options.count is not None and (options.count < max(UNITS.values()) or options.count % max(UNITS.values())):
        parser.error(f"--count must be a multiple of {max(UNITS.values())}")
    return ready_for_racks(parser, options, "sparse")


def main():
    options = parse_arguments()
    run = BenchmarkRun(options)
    for workers in options.workers:
        todo = cases(options, workers)
        say(f"{workers} workers, {rack_report.rate_text(options.rate)}: {len(todo)} cases, {run.seconds():.0f} s")
        if not todo or run.expired():
            continue
        try:
            run_place(options, workers, todo, run)
        except PROBLEMS as problem:  # of the rack itself
            run.keep({"rate": options.rate, "workers": workers, "failed": str(problem)})
            say(f"  FAILED: {problem}")
    if options.output.exists():
        records = load(options.output)
        plot = ROOT / "build/bench/sparse.svg"
        plot.parent.mkdir(parents=True, exist_ok=True)
        sparse_report.write_plot(records, plot)
        say(f"\n{sparse_report.table(records)}\n\n{sparse_report.index_table(records)}")
        say(f"\n{run.seconds():.0f} s; records: {options.output}; plot: {plot}")
    return 1 if run.failures else 0


if __name__ == "__main__":
    sys.exit(main())
