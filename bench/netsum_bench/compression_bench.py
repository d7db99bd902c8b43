"""What compression costs and gives: models trained in virtual racks with each method, beside PyTorch's own hooks on Gloo.

The first system of a place, netsum without compression, trains so many steps; what it takes for them is the time that all others
get, too. Each trains at least these steps, and on until the time is over (for at most 4 times the steps). Held-out data are
evaluated on the way, outside the time. So there are a loss after equal steps, and one after equal time.

The systems of a model with one seed are a round. With a budget of less than an hour, the longer models train fewer steps, and a round
that is not expected to fit is left out: seeds of the longer models first.

After training, the last gradients are reduced on idle workers: "reduction" is encoding, sum and decoding. Needs root.

  make bench-compression                                                          the whole table (hours)
  make bench-compression BENCH_FLAGS=--quick                                      one model, few methods, one rate: minutes
  make bench-compression BENCH_FLAGS="--models lm --workers 8 --rates 100mbit --seeds 1 --systems netsum,netsum-topk-1%"
"""

import dataclasses
import json
import os
import sys

from netsum_bench import compression_report
from netsum_bench.demo import children, places, summary
from netsum_bench.demo.command import Run, end_in_order
from netsum_bench.machine import ROOT
from netsum_bench.options import BenchmarkRun, add_choice, make_parser, need_root, new_output, say
from netsum_bench.processes import Failed
from netsum_bench.records import load


@dataclasses.dataclass
class System:
    backend: str = "netsum"
    compression: dict | None = None  # arguments of netsum.torch.compress()
    hook: str | None = None  # of PyTorch
    models: tuple = ()  # those it trains; none: all


SYSTEMS = {
    "netsum": System(),
    "gloo": System("gloo"),
    "gloo-fp16": System("gloo", hook="fp16"),
    "gloo-powersgd": System("gloo", hook="powersgd"),
    "netsum-bf16": System(compression={"method": "bf16"}),
    "netsum-fp16": System(compression={"method": "fp16"}),
    "netsum-topk-1%": System(compression={"method": "topk", "ratio": 0.01, "sampled": True}),
    "netsum-topk-0.1%": System(compression={"method": "topk", "ratio": 0.001, "sampled": True}),
    "netsum-sidco-1%": System(compression={"method": "sidco", "ratio": 0.01, "fit": "pareto"}),
    # It takes the place of the optimizer's momentum.
    "netsum-dgc-1%": System(compression={"method": "dgc", "ratio": 0.01, "sampled": True}, models=("digits",)),
    "netsum-randomk-1%": System(compression={"method": "randomk", "ratio": 0.01}),
    "netsum-powersgd": System(compression={"method": "powersgd", "rank": 4}),
    "netsum-lanes8": System(compression={"method": "lanes8"}),
    "netsum-int8": System(compression={"method": "int8"}),
    "netsum-int4": System(compression={"method": "int4", "rotated": True}),
    "netsum-thc": System(compression={"method": "thc", "block": 1024}),
    "netsum-blocktopk-1%": System(compression={"method": "blocktopk", "ratio": 0.01, "block": 64}),
    "netsum-countsketch-0.1%": System(compression={"method": "countsketch", "ratio": 0.001}),
    "netsum-qsgd": System(compression={"method": "qsgd", "levels": 127}),
    "netsum-terngrad": System(compression={"method": "terngrad"}),
    "netsum-efsign": System(compression={"method": "efsign"}),
    "netsum-natural": System(compression={"method": "natural"}),
    "netsum-u8bit": System(compression={"method": "u8bit"}),
    "netsum-inceptionn": System(compression={"method": "inceptionn"}),
    "netsum-sketch": System(compression={"method": "sketch"}),
    "netsum-adaq-1%": System(compression={"method": "adaq", "ratio": 0.01}),
    "netsum-chunktopk": System(compression={"method": "chunktopk", "k": 64, "block": 4096}),
    "netsum-dcttopk": System(compression={"method": "dcttopk", "k": 4, "block": 64}),
}
BASE = "netsum"
STEPS = {"digits": 120, "lm": 24, "recommender": 30}
FEW_STEPS = {"digits": 120, "lm": 16, "recommender": 20}  # with a budget below this
MINUTES_OF_ALL_STEPS = 60
EVALUATIONS = 12  # on the way to the last step
LONGEST = 4  # times the steps, for systems that are faster
QUICK = {
    "models": ["digits"],
    "systems": ["netsum", "gloo-fp16", "netsum-topk-1%"],
    "workers": "4",
    "rates": "100mbit",
    "seeds": "1",
}


def trains(system, model):
    return not SYSTEMS[system].models or model in SYSTEMS[system].models


def steps_of(options, model):
    if options.steps:
        return options.steps
    is_short = options.budget is not None and options.budget < MINUTES_OF_ALL_STEPS
    return (FEW_STEPS if is_short else STEPS)[model]


def run_of(options, model, workers, rate, seed, system, seconds):
    how = SYSTEMS[system]
    folder = ROOT / "build/bench-compression" / f"{model}-{workers}-{rate}-{seed}-{system}"
    steps = steps_of(options, model)
    more = ["--evaluate-every", str(max(1, steps // EVALUATIONS)), "--most-steps", str(LONGEST * steps)]
    if seconds is not None:
        more += ["--seconds", f"{seconds:.3f}"]
    if how.compression:
        more += ["--compression", json.dumps(how.compression)]
    if how.hook:
        more += ["--hook", how.hook]
    return Run(model, how.backend, workers, steps, seed, folder, "rack", more=tuple(more))


def train(options, run, rate):
    children.clear(run)
    with places.Rack(rate, options.aggregator, f"compr{os.getpid()}").training(run) as starts:
        wall_s = children.run_training(run, starts, lambda progress, elapsed_s: None)
    result = summary.summarise(run, wall_s, places.counters_in(run.folder / "aggregator.log"))
    ranks = [json.loads((run.folder / f"rank{rank}.json").read_text()) for rank in range(run.workers)]
    return result, ranks


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


def record_of(run, system, rate, result, ranks):
    curve = curve_of(ranks)
    record = {
        "system": system,
        "model": run.model,
        "workers": run.workers,
        "rate": rate,
        "seed": run.seed,
        "steps": run.steps,
        "steps_in_all": result.steps,
        "parameters": result.parameters,
        "step_ms": result.step_ms,
        "sent_bytes_per_step": sum(result.sent) / run.workers / result.steps,
        "retransmissions": result.retransmissions,
        "where": result.where,
        "curve": curve,
    }
    if ranks[0]["reduction"]:
        record["reduction_ms"] = summary.spread([s for rank in ranks for s in rank["reduction"]["s"]])
        for part in ("encode", "decode"):
            found = [rank["reduction"].get(f"{part}_s") for rank in ranks]
            record[f"{part}_ms"] = None if None in found else 1000 * sum(found) / len(found)
    else:
        record["reduction_ms"] = result.allreduce_ms
    return record


def base_seconds(records, record):
    """What the base took for the steps that all train, in the place of the record; None if it failed."""
    for other in records:
        same = all(other[field] == record[field] for field in ("model", "workers", "rate", "seed"))
        if same and other["system"] == BASE and "curve" in other:
            return next(point["s"] for point in other["curve"] if point["step"] == other["steps"])
    return None


def parse_arguments():
    parser = make_parser(__doc__, netsum=False, budget=True)
    parser.add_argument("--workers", default="4,8", help="numbers of workers (default %(default)s)")
    parser.add_argument("--rates", default="100mbit,1gbit,none", help="link rates (default %(default)s)")
    add_choice(parser, "--models", STEPS)
    add_choice(parser, "--systems", SYSTEMS, note=f"{BASE} and ")
    parser.add_argument("--seeds", default="1,2,3", help="of data and parameters (default %(default)s)")
    parser.add_argument("--steps", type=int, help=f"that all train; default {STEPS}")
    parser.add_argument(
        "--aggregator", choices=["xdp", "daemon"], default="xdp", help="in the switch (default %(default)s)"
    )
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


class Plan:
    """Which rounds a budget has time for, by what the rounds of other seeds have taken."""

    def __init__(self, run):
        self._run = run
        self._seconds = {}  # of a round, by its place

    def admits(self, place):
        return self._run.fits(self._seconds.get(place, 0))

    def took(self, place, seconds):
        self._seconds[place] = max(seconds, self._seconds.get(place, 0))


def train_round(options, run, systems, place, seed, records):
    """Trains all systems; False if the budget was spent before the last."""
    model, workers, rate = place
    for index, system in enumerate(systems):
        if run.expired():
            say(f"the budget of {options.budget:g} minutes is spent: left out {', '.join(systems[index:])}")
            return False
        turn = {"model": model, "workers": workers, "rate": rate, "seed": seed, "system": system}
        try:
            seconds = None if system == BASE else base_seconds(records, turn)
            training = run_of(options, model, workers, rate, seed, system, seconds)
            record = record_of(training, system, rate, *train(options, training, rate))
            said = f"{record['step_ms']['median']:.1f} ms a step, loss {record['curve'][-1]['loss']:.3f}"
        except Failed as error:
            record = {**turn, "failed": str(error)}
            said = f"FAILED: {error}"
        run.keep(record)
        records.append(record)
        say(f"[{run.seconds():.0f} s] {model}, {workers} workers, {rate}, seed {seed}, {system}: {said}")
    return True


def main():
    options = parse_arguments()
    run = BenchmarkRun(options)
    plan, records = Plan(run), []
    rounds = [
        ((model, int(workers), rate), int(seed))
        for rate in options.rates.split(",")
        for workers in reversed(options.workers.split(","))
        for seed in options.seeds.split(",")  # so that a budget that is spent leaves out seeds, not models
        for model in options.models
    ]
    for place, seed in rounds:
        systems = [system for system in options.systems if trains(system, place[0])]
        if not plan.admits(place):
            say(f"left out, because the budget ends before it: {place[0]}, {place[1]} workers, {place[2]}, seed {seed}")
            continue
        begun = run.seconds()
        if train_round(options, run, systems, place, seed, records):
            plan.took(place, run.seconds() - begun)
    kept = load(options.output)
    compression_report.write_plot(kept, options.output.with_suffix(".svg"))
    print(f"\n{compression_report.table(kept)}\n\nrecords: {options.output}")
    return 1 if run.failures else 0


if __name__ == "__main__":
    end_in_order()
    try:
        sys.exit(main())
    except Failed as error:
        sys.exit(f"compression_bench: {error}")
    except KeyboardInterrupt:
        sys.exit("compression_bench: stopped; the rack is down")
