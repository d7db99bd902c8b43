"""What compression costs and gives: gradients reduced and models trained in virtual racks with each method, beside PyTorch's own hooks
on Gloo.

Reductions: the ranks reduce 16 MiB of generated gradients, normally distributed and different on all ranks, as DistributedDataParallel
does in a step, on idle workers. Trainings: the base, netsum without compression, trains so many steps; what it takes for them is the
time that all others get, too. Each system trains at least these steps, and on until the time is over (for at most 4 times the steps).
Held-out data are evaluated on the way, outside the time. So there are a loss after equal steps, and one after equal time. After
training, the last gradients are reduced on idle workers, too: "reduction" is encoding, sum and decoding.

What matters most is measured first, and with a budget the rest is left out, which the report names. With a budget of less than an
hour, the language model and the recommender are smaller, and all train fewer steps. Needs root.

  make bench-compression                                                          everything (hours)
  make bench-compression BENCH_FLAGS="--budget 20"                                what matters most, in 20 minutes
  make bench-compression BENCH_FLAGS=--quick                                      one model, few methods, one rate: a minute
  make bench-compression BENCH_FLAGS="--models lm --workers 8 --rates 100mbit --seeds 1 --systems netsum,netsum-topk-1%"
"""

import contextlib
import dataclasses
import json
import os
import statistics
import sys

from netsum_bench import compression_report
from netsum_bench.demo import summary
from netsum_bench.demo.children import find_netsum_command
from netsum_bench.machine import ROOT
from netsum_bench.options import (
    BenchmarkRun,
    add_choice,
    make_parser,
    need_root,
    new_output,
    number_from,
    parse_rate,
    say,
)
from netsum_bench.processes import PROBLEMS, Failed
from netsum_bench.rack import Rack
from netsum_bench.records import load
from netsum_bench.systems import TorchRanks


@dataclasses.dataclass
class System:
    backend: str = "netsum"
    compression: dict | None = None  # arguments of netsum.torch.compress()
    hook: str | None = None  # of PyTorch
    sparse: bool = False  # gradients of tables are sparse tensors
    models: tuple = ()  # those it is for; none: all


def method(name, **options):
    return System(compression={"method": name, **options})


def dgc(ratio):
    # It takes the place of the optimizer's momentum.
    return dataclasses.replace(method("dgc", ratio=ratio, sampled=True), models=("generated", "digits"))


# Those that come first are measured first.
SYSTEMS = {
    "netsum": System(),
    "gloo": System("gloo"),
    "gloo-fp16": System("gloo", hook="fp16"),
    "gloo-powersgd": System("gloo", hook="powersgd"),
    "netsum-powersgd": method("powersgd", rank=4),
    "netsum-bf16": method("bf16"),
    "netsum-lanes8": method("lanes8"),
    "netsum-topk-1%": method("topk", ratio=0.01, sampled=True),
    "netsum-topk-0.1%": method("topk", ratio=0.001, sampled=True),
    "netsum-dgc-1%": dgc(0.01),
    "netsum-dgc-0.1%": dgc(0.001),
    "netsum-sidco-1%": method("sidco", ratio=0.01, fit="pareto"),
    "netsum-sidco-0.1%": method("sidco", ratio=0.001, fit="pareto"),
    "netsum-sparse": System(sparse=True, models=("recommender",)),
    "netsum-int4": method("int4", rotated=True),
    "netsum-fp16": method("fp16"),
    "netsum-int8": method("int8"),
    "netsum-thc": method("thc", block=1024),
    "netsum-thc-table": method("thc_table", block=1024),
    "netsum-fp8": method("fp8_e4m3"),
    "netsum-randomk-1%": method("randomk", ratio=0.01),
    "netsum-blocktopk-1%": method("blocktopk", ratio=0.01, block=64),
    "netsum-qsgd": method("qsgd", levels=127),
    "netsum-terngrad": method("terngrad"),
    "netsum-efsign": method("efsign"),
    "netsum-onebit": method("onebit"),
    "netsum-natural": method("natural"),
    "netsum-u8bit": method("u8bit"),
    "netsum-inceptionn": method("inceptionn"),
    "netsum-sketch": method("sketch"),
    "netsum-adaq-1%": method("adaq", ratio=0.01),
    "netsum-chunktopk": method("chunktopk", k=64, block=4096),
    "netsum-dcttopk": method("dcttopk", k=4, block=64),
    "netsum-countsketch-0.1%": method("countsketch", ratio=0.001),
}
BASE = "netsum"
CORE = [name for name in SYSTEMS if list(SYSTEMS).index(name) <= list(SYSTEMS).index("netsum-sparse")]
FEW = [
    "netsum",
    "gloo",
    "gloo-fp16",
    "gloo-powersgd",
    "netsum-powersgd",
    "netsum-bf16",
    "netsum-lanes8",
    "netsum-topk-1%",
]
GENERATED = "generated"
STEPS = {GENERATED: 0, "digits": 120, "lm": 24, "recommender": 30}
SHORT_STEPS = {GENERATED: 0, "digits": 100, "lm": 30, "recommender": 24}  # of smaller models, with a budget below this
MINUTES_OF_ALL_STEPS = 60
EVALUATIONS = 10  # on the way to the last step
LONGEST = 4  # times the steps, for systems that are faster
PORTS = {"netsum": 29404, "gloo": 29405}
QUICK = {
    "models": ["generated", "digits"],
    "systems": ["netsum", "gloo-fp16", "netsum-topk-1%"],
    "workers": [4],
    "rates": ["100mbit"],
    "seeds": [1],
    "budget": 5,
}


@dataclasses.dataclass(frozen=True)
class Cell:
    """One measurement. Of generated gradients there is one seed."""

    workers: int
    rate: str
    model: str
    seed: int
    system: str

    def turn(self):
        return dataclasses.asdict(self)

    def task(self, options, seconds):
        """For compression_worker.py. `seconds`: that it trains for at least."""
        how, steps = SYSTEMS[self.system], steps_of(options, self.model)
        return {
            "model": self.model,
            "seed": self.seed,
            "small": is_short(options),
            "compression": how.compression,
            "hook": how.hook,
            "sparse": how.sparse,
            "steps": steps,
            "seconds": seconds,
            "most_steps": LONGEST * steps,
            "evaluate_every": max(1, steps // EVALUATIONS),
        }


def is_short(options):
    return options.budget is not None and options.budget < MINUTES_OF_ALL_STEPS


def steps_of(options, model):
    return options.steps or (SHORT_STEPS if is_short(options) else STEPS)[model]


def trains(system, model):
    return not SYSTEMS[system].models or model in SYSTEMS[system].models


def cells(options):
    """All that is to be measured, what matters most first: all systems of interest at the first number of workers, rate and seed; few
    systems at the other rates, and at the next number of workers; the spread over seeds; then everything else."""
    workers, rates, seeds = options.workers, options.rates, options.seeds
    trained = [model for model in options.models if model != GENERATED]
    generated = [model for model in options.models if model == GENERATED]
    first, every = (workers[:1], rates[:1]), list(SYSTEMS)
    place = lambda some, systems: [(*some, generated, seeds[:1], CORE), (*some, trained, seeds[:1], systems)]
    blocks = place(first, CORE)
    for some in [*((workers[:1], [rate]) for rate in rates[1:]), (workers[1:], rates[:1])]:
        blocks += place(some, FEW)
    blocks += [(*first, trained, [seed], FEW) for seed in seeds[1:]]
    for rate in rates[1:]:
        blocks += place((workers[1:], [rate]), FEW)
    blocks += [(*first, trained, seeds[1:], CORE), (*first, options.models, seeds[:1], every)]
    blocks += [(workers, rates, options.models, seeds[:1], every), (workers, rates, trained, seeds, every)]
    found = {}  # in their order, each once
    for of_workers, of_rates, of_models, of_seeds, systems in blocks:
        for count in of_workers:
            for rate in of_rates:
                for seed in of_seeds:
                    for model in of_models:
                        for system in systems:
                            if system in options.systems and trains(system, model):
                                found[Cell(count, rate, model, seed, system)] = None
    return list(found)


class Place:
    """The rack that is up, with the ranks of each backend that has been needed. Links with a rate can get another one; links without
    one need a rack of their own."""

    def __init__(self, options):
        self._options = options
        self._kind = self._rack = None
        self._ranks = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stack.close()

    def ranks(self, workers, rate, backend):
        if self._kind != (workers, rate == "none"):
            self._kind, self._ranks = None, {}
            self._stack.close()
            rack = Rack(find_netsum_command(), f"compr{os.getpid()}", workers, rate, 1500, self._options.dataplane)
            self._rack = self._stack.enter_context(rack)
            self._kind = (workers, rate == "none")
        if rate != "none":
            self._rack.set_links("--rate", rate)
        if backend not in self._ranks:
            ranks = TorchRanks(self._rack, "compression_worker", backend, port=PORTS[backend])
            self._stack.callback(ranks.close)
            self._ranks[backend] = ranks
        return self._ranks[backend]


def sent_by(ranks):
    """Mean bytes of a rank, headers included, and what was sent again by all."""
    traffic = summary.netsum_traffic(ranks) if ranks[0]["netsum"] else summary.tcp_traffic(ranks)
    return statistics.mean(traffic["sent"]), traffic["retransmissions"]


def curve_of(ranks):
    """Steps, seconds of rank 0, and the loss and accuracy on the held-out data of all ranks."""
    curve = []
    for points in zip(*(rank["curve"] for rank in ranks), strict=True):
        count = sum(point["count"] for point in points)
        curve.append(
            {
                "step": points[0]["step"],
                "s": round(points[0]["s"], 4),
                "loss": round(sum(point["loss_sum"] for point in points) / count, 6),
                "accuracy_percent": round(100 * sum(point["right"] for point in points) / count, 3),
            }
        )
    return curve


def reduction_of(ranks):
    """What the reduction on idle workers took, for the record."""
    reductions = [rank["reduction"] for rank in ranks]
    if None in reductions:
        return {}
    sent, _ = sent_by(reductions)
    found = {"reduction_ms": summary.spread([s for one in reductions for s in one["s"]])}
    found["reduction_bytes"] = sent / reductions[0]["steps"]
    for part in ("encode", "decode"):
        seconds = [one.get(f"{part}_s") for one in reductions]
        found[f"{part}_ms"] = None if None in seconds else 1000 * statistics.mean(seconds)
    return found


def record_of(cell, steps, ranks):
    record = {**cell.turn(), "parameters": ranks[0]["parameters"], **reduction_of(ranks)}
    if cell.model == GENERATED:
        return record
    count = len(ranks[0]["step_s"])
    sent, retransmissions = sent_by(ranks)
    # The first steps allocate memory and rebuild DDP's buckets.
    step_ms = summary.spread([s for rank in ranks for s in rank["step_s"][min(3, count - 1) :]])
    record |= {"steps": steps, "steps_in_all": count, "step_ms": step_ms, "sent_bytes_per_step": sent / count}
    return {**record, "retransmissions": retransmissions, "curve": curve_of(ranks)}


def base_seconds(records, turn):
    """What the base took for the steps that all train, in the place of the turn; None if it failed."""
    for other in records:
        same = all(other[field] == turn[field] for field in ("model", "workers", "rate", "seed"))
        if same and other["system"] == BASE and "curve" in other:
            return next(point["s"] for point in other["curve"] if point["step"] == other["steps"])
    return None


def numbers_of(least, most):
    return lambda text: list(map(number_from(least, most), text.split(",")))


def parse_arguments():
    parser = make_parser(__doc__, netsum=False, budget=True)
    parser.add_argument("--workers", type=numbers_of(2, 32), default=[8, 4], help="numbers of workers (default 8,4)")
    rates = lambda text: [parse_rate(part) for part in text.split(",")]
    parser.add_argument("--rates", type=rates, default=rates("100mbit,1gbit,none"), help="(default 100mbit,1gbit,none)")
    add_choice(parser, "--models", STEPS)
    add_choice(parser, "--systems", SYSTEMS, note=f"{BASE} and ")
    parser.add_argument(
        "--seeds", type=numbers_of(1, 1 << 20), default=[1, 2, 3], help="of data and parameters (default 1,2,3)"
    )
    parser.add_argument("--steps", type=number_from(4, 100000), help=f"that all train; default {STEPS}")
    parser.add_argument("--dataplane", choices=["user", "xdp"], default="user", help="(default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="instead: " + str(QUICK).replace("%", "%%"))
    options = parser.parse_args()
    if options.quick:
        vars(options).update(QUICK)
    if options.systems[0] != BASE:
        parser.error(f"--systems must begin with {BASE}: its time is that of the others")
    if options.output is None:
        options.output = new_output("compression")
    need_root(parser)
    return options


def measure(options, place, cell, records):
    """The record of a cell, and what to say of it."""
    try:
        seconds = None if cell.system == BASE else base_seconds(records, cell.turn())
        task = cell.task(options, seconds)
        ranks = place.ranks(cell.workers, cell.rate, SYSTEMS[cell.system].backend)
        answers = ranks.ask(lambda gate: json.dumps({"gate": gate, **task}))
        record = record_of(cell, task["steps"], answers)
    except PROBLEMS as error:
        return {**cell.turn(), "failed": str(error)}, f"FAILED: {error}"
    if cell.model == GENERATED:
        return record, f"{record['reduction_ms']['median']:.1f} ms"
    return record, f"{record['step_ms']['median']:.1f} ms a step, loss {record['curve'][-1]['loss']:.3f}"


def main():
    options = parse_arguments()
    run, records = BenchmarkRun(options), []
    todo = cells(options)
    with Place(options) as place:
        for number, cell in enumerate(todo):
            if run.expired():
                run.keep({"left_out": [one.turn() for one in todo[number:]]})
                say(f"the budget of {options.budget:g} minutes is spent: {len(todo) - number} of {len(todo)} left out")
                break
            record, said = measure(options, place, cell, records)
            run.keep(record)
            records.append(record)
            what = f"{cell.model}, {cell.workers} workers, {cell.rate}, seed {cell.seed}, {cell.system}"
            say(f"[{run.seconds():.0f} s] {what}: {said}")
    kept = load(options.output)
    plot = ROOT / "build/bench/compression.svg"
    plot.parent.mkdir(parents=True, exist_ok=True)
    compression_report.write_plot(kept, plot)
    say(
        f"\n{compression_report.reductions(kept)}\n\n{compression_report.table(kept)}\n\n{compression_report.choice(kept)}"
    )
    say(f"\n{run.seconds():.0f} s; records: {options.output}; plot: {plot}")
    return 1 if run.failures else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as error:
        sys.exit(f"compression_bench: {error}")
