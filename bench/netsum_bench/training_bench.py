"""The demo's two models and a recommender trained with Gloo and with netsum in virtual racks: step time, speed-up, the same loss.

The recommender has a table of 200,000 items, whose gradient is a sparse tensor in the systems "-sparse", and otherwise dense.
The systems "-fsdp" train the language model by FSDP2 (fully_shard) instead of DDP; in "-fsdp-overlap" it communicates while it
computes, with a group of its own for reduce-scatters.

For each number of workers, link rate and model the systems take turns, round by round, so that whatever else the
machine does falls on all of them. Needs root.

  make bench-training                                                       the whole table (about an hour)
  make bench-training BENCH_FLAGS="--workers 8 --rates 100mbit --models lm"
  make bench-training BENCH_FLAGS="--workers 8 --models recommender --systems gloo,gloo-sparse,netsum-xdp,netsum-xdp-sparse"
"""

import dataclasses
import os
import sys
from types import SimpleNamespace

from netsum_bench.demo import children, places, summary
from netsum_bench.demo.command import Run, end_in_order
from netsum_bench.figures import markdown, median
from netsum_bench.machine import ROOT
from netsum_bench.options import BenchmarkRun, add_choice, make_parser, need_root, new_output
from netsum_bench.processes import Failed
from netsum_bench.records import load


@dataclasses.dataclass
class System:
    backend: str
    aggregator: str = "xdp"
    sparse: bool = False  # gradients of tables are sparse tensors
    parallel: str = "ddp"  # of train.PARALLEL


SYSTEMS = {
    "gloo": System("gloo"),
    "gloo-sparse": System("gloo", sparse=True),
    "netsum-xdp": System("netsum"),
    "netsum-user": System("netsum", "daemon"),
    "netsum-xdp-sparse": System("netsum", sparse=True),
    "gloo-fsdp": System("gloo", parallel="fsdp"),
    "gloo-fsdp-overlap": System("gloo", parallel="fsdp-overlap"),
    "netsum-user-fsdp": System("netsum", "daemon", parallel="fsdp"),
    "netsum-user-fsdp-overlap": System("netsum", "daemon", parallel="fsdp-overlap"),
}
STEPS = {"digits": 60, "lm": 12, "recommender": 20}


def trains(system, model):
    wants = SYSTEMS[system]
    return (model == "recommender" or not wants.sparse) and (model == "lm" or not is_sharded(system))


def is_sharded(system):
    return SYSTEMS[system].parallel != "ddp"


def train(options, model, workers, rate, system):
    how = SYSTEMS[system]
    folder = ROOT / "build/bench-training" / f"{model}-{workers}-{rate}-{system}"
    steps = options.steps or STEPS[model]
    run = Run(
        model, how.backend, workers, steps, options.seed, folder, "rack", sparse=how.sparse, parallel=how.parallel
    )
    children.clear(run)
    with places.Rack(rate, how.aggregator, f"train{os.getpid()}").training(run) as starts:
        wall_s = children.run_training(run, starts, lambda progress, elapsed_s: None)
    return summary.summarise(run, wall_s, places.counters_in(folder / "aggregator.log"))


def record_of(system, rate, number, result):
    return {
        "system": system,
        "model": result.model,
        "place": result.place,
        "workers": result.workers,
        "rate": rate,
        "round": number,
        "steps": result.steps,
        "step_ms": result.step_ms,
        "allreduce_ms": result.allreduce_ms,
        "held_out_loss": result.held_out_loss,
        "accuracy_percent": result.accuracy_percent,
        # The counters are those of one group, and FSDP2 can have two.
        "sent_per_gradient_byte": None if is_sharded(system) else result.sent_per_gradient_byte,
        "retransmissions": result.retransmissions,
        "where": result.where,
        "losses": [round(loss, 7) for loss in result.losses],
    }


def rows(records):
    """One row per place, model and system: medians over its rounds, compared with the first system of the place, and those of
    FSDP2 with the first of these."""
    groups = {}
    for record in records:
        if "step_ms" in record:
            place = (record["model"], record["workers"], record["rate"], is_sharded(record["system"]))
            groups.setdefault(place, {}).setdefault(record["system"], []).append(record)
    for (model, workers, rate, sharded), systems in groups.items():
        base = next(iter(systems.values()))
        base_run = SimpleNamespace(**base[0])  # which has what the demo compares of its runs
        for system, rounds in systems.items():
            over = lambda name, which=rounds: median([r[name]["median"] for r in which])
            yield {
                "model": model,
                "workers": workers,
                "rate": rate,
                "system": system,
                "rounds": len(rounds),
                "step_ms": over("step_ms"),
                "low_ms": min(r["step_ms"]["low"] for r in rounds),
                "high_ms": max(r["step_ms"]["high"] for r in rounds),
                "allreduce_ms": over("allreduce_ms"),
                "speed_up": over("step_ms", base) / over("step_ms"),
                "allreduce_speed_up": over("allreduce_ms", base) / over("allreduce_ms"),
                "held_out_loss": rounds[0]["held_out_loss"],
                "accuracy_percent": rounds[0]["accuracy_percent"],
                "sent": None if sharded else median([r["sent_per_gradient_byte"] for r in rounds]),
                "agrees": all(summary.compare(base_run, SimpleNamespace(**r)).agrees for r in rounds),
            }


HEADINGS = [
    "model",
    "workers",
    "rate",
    "system",
    "step ms",
    "10 % - 90 %",
    "speed-up",
    "all-reduce ms",
    "speed-up",
    "sent B/B",
    "held-out loss",
    "accuracy",
    "same",
]


def texts(row):
    return [
        row["model"],
        str(row["workers"]),
        row["rate"],
        row["system"],
        f"{row['step_ms']:.1f}",
        f"{row['low_ms']:.1f} - {row['high_ms']:.1f}",
        f"{row['speed_up']:.2f}",
        f"{row['allreduce_ms']:.1f}",
        f"{row['allreduce_speed_up']:.2f}",
        "" if row["sent"] is None else f"{row['sent']:.3f}",
        f"{row['held_out_loss']:.4f}",
        f"{row['accuracy_percent']:.2f} %",
        "yes" if row["agrees"] else "NO",
    ]


def table(records):
    """In Markdown, ready for docs/results.md."""
    return markdown(HEADINGS, map(texts, rows(records)), len(HEADINGS))


def parse_arguments():
    parser = make_parser(__doc__, netsum=False, budget=True)
    parser.add_argument("--workers", default="4,8", help="numbers of workers (default %(default)s)")
    parser.add_argument("--rates", default="100mbit,1gbit", help="link rates (default %(default)s)")
    add_choice(parser, "--models", STEPS)
    add_choice(parser, "--systems", SYSTEMS, note="the first is the one compared with: ")
    parser.add_argument("--rounds", type=int, default=2, help="turns of every system (default %(default)s)")
    parser.add_argument("--steps", type=int, help=f"of every training; default {STEPS}")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.output is None:
        options.output = new_output("training")
    need_root(parser)
    return options


def main():
    options = parse_arguments()
    run = BenchmarkRun(options)
    turns = [
        (model, int(workers), rate, number, system)
        for model in options.models
        for rate in options.rates.split(",")
        for workers in options.workers.split(",")
        for number in range(options.rounds)
        for system in options.systems
        if trains(system, model)
    ]
    for index, (model, workers, rate, number, system) in enumerate(turns, start=1):
        if run.expired():
            print(f"the budget of {options.budget:g} minutes is spent: {len(turns) - index + 1} trainings left out")
            break
        try:
            record = record_of(system, rate, number, train(options, model, workers, rate, system))
            said = f"{record['step_ms']['median']:.1f} ms a step"
        except Failed as error:
            record = {
                "system": system,
                "model": model,
                "workers": workers,
                "rate": rate,
                "round": number,
                "failed": str(error),
            }
            said = f"FAILED: {error}"
        run.keep(record)
        print(
            f"[{index}/{len(turns)}] {run.seconds():.0f} s  {model}, {workers} workers, {rate}, {system}: {said}",
            flush=True,
        )
    records = load(options.output)
    print(f"\n{table(records)}\n\nrecords: {options.output}")
    return 0 if all(row["agrees"] for row in rows(records)) and not any("failed" in r for r in records) else 1


if __name__ == "__main__":
    end_in_order()
    try:
        sys.exit(main())
    except Failed as error:
        sys.exit(f"training_bench: {error}")
    except KeyboardInterrupt:
        sys.exit("training_bench: stopped; the rack is down")
