"""Sparse all-reduces in a rack whose switch sums, beside dense ones and other systems'."""

import contextlib
import dataclasses
import itertools
import json
import os

from netsum_bench.processes import PROBLEMS
from netsum_bench.rack import Rack
from netsum_bench.report import rate_bits
from netsum_bench.sparse_inputs import SELECTIONS, UNITS, Case, model_bytes
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
FIELDS = [field.name for field in dataclasses.fields(Case)]  # of a turn
LEAST_TIMED_MS = 100  # ticks are 10 ms
MOST_S = 4  # a sparse all-reduce that the link alone needs longer for is left out
QUICK_S, SLOW_S = 0.5, 2  # on the link: fewer iterations from here on


def turns(axes):
    """Those of the selection that the other axes leave, the most important ones first. A count replaces the selection's."""
    largest = max(UNITS.values())
    if any(count % largest for count in axes["count"]):
        raise ValueError(f"the count must be a multiple of {largest}")
    for workers, rate, dataplane in itertools.product(axes["workers"], axes["rate"], axes["dataplane"]):
        found = [case for name in axes["selection"] for case in SELECTIONS[name](workers)]
        if axes["count"] != [0]:
            found = [dataclasses.replace(case, count=count) for count in axes["count"] for case in found]
        for case in dict.fromkeys(found):
            wanted = all(getattr(case, field) in axes[field] for field in ("density", "pattern", "overlap"))
            if wanted and case.possible(workers):
                place = {"workers": workers, "rate": rate, "dataplane": dataplane, "round": 0}
                for system in axes["system"]:
                    yield {**place, **dataclasses.asdict(case), "system": system}


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
        return {**combine(answers), **answers[0]["counters"]}


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


def measure_one(rack, opened, system, case, number, link_s, idle):
    """A record of the case's time, counters, bytes on worker 0's link and the machine's processor time for an iteration
    without what it spends when idle (nothing where times are too short for the kernel's ticks)."""
    iterations, warmup = plan_iterations(system, link_s)
    up, down = rack.link_bytes()
    found = opened.measure(system, case, number, iterations, warmup)
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


@contextlib.contextmanager
def sparse(run, place, turns):
    """For each case (pattern, overlap of the ranks, density) these systems sum the same tensors: netsum's sparse
    all-reduce of dense tensors and of sparse ones (COO), its dense all-reduce, and Gloo's all-gather of sparse tensors.
    Gloo's and Open MPI's all-reduces of dense tensors do not depend on what is in them, so they are measured once for
    each size. Every result is verified. Each record has the bytes that the byte model of docs/sparse.md and
    OmniReduce's blocks of 256 elements need."""
    bits = rate_bits(place["rate"]) or 1e9
    workers, opened, numbers, done = place["workers"], {}, {}, set()
    with contextlib.ExitStack() as stack:
        rack = stack.enter_context(
            Rack(run.netsum, f"z{os.getpid()}", workers, place["rate"], 1500, place["dataplane"])
        )
        for backend in dict.fromkeys(SYSTEMS[turn["system"]].backend for turn in turns):
            try:
                opened[backend] = MpiSystem(rack) if backend == "openmpi" else TorchSystem(rack, backend)
            except PROBLEMS as problem:
                run.say(f"  {backend} is left out: {problem}")
                run.keep({**place, "left_out": backend, "failed": str(problem)})
                continue
            stack.callback(opened[backend].close)
        idle = idle_share()

        def measure(turn):
            case, system = Case(**{field: turn[field] for field in FIELDS}), SYSTEMS[turn["system"]]
            if case not in numbers:
                sizes = case.sizes(workers)
                numbers[case] = (len(numbers) + 1, sizes, model_bytes(case, sizes, workers))
            number, sizes, model = numbers[case]
            link_s = model[system.model] * 8 / bits
            once = (turn["system"], case.count) in done
            if system.backend not in opened or once or (system.how == "coo" and link_s > MOST_S):
                return None
            if system.per_size:
                done.add((turn["system"], case.count))
            about = {**sizes, "model": model}
            try:
                return {**about, **measure_one(rack, opened[system.backend], system, case, number, link_s, idle)}
            except PROBLEMS as problem:
                return {**about, "failed": str(problem)}

        yield measure
