"""What the controller of compression costs over the best level of each phase, on a link whose rate changes.

In a virtual rack, the ranks train a model of 16 MiB of gradients with each fixed level and with "auto". `netsum rack set --rate` changes all
links between two phases of so many steps. The first phase is a warm-up, and does not count. Needs root, and the Python
package (scripts/install_wheel.sh).

  make bench-controller
  make bench-controller BENCH_FLAGS="--workers 2 --steps 40 --rates 1gbit,100mbit"
"""

import json
import sys

from netsum_bench import controller_report
from netsum_bench.machine import ROOT
from netsum_bench.options import BenchmarkRun, make_parser, number_from, parse_rate, ready_for_racks, say
from netsum_bench.processes import PROBLEMS
from netsum_bench.rack import Rack
from netsum_bench.records import load
from netsum_bench.systems import TorchRanks

LEVELS = ["none", "bf16", "int8", {"method": "topk", "ratio": 0.01, "sampled": True}]
SYSTEMS = {
    "none": None,
    "bf16": {"method": "bf16"},
    "int8": {"method": "int8"},
    "topk 1 %": LEVELS[3],
    "auto": {"method": "auto", "levels": LEVELS, "warmup_steps": 5},
}
PORT = 29403
WARM_UP = 12  # steps of the first phase that do not count


def parse_rates(text):
    return [parse_rate(part) for part in text.split(",")]


def parse_arguments():
    parser = make_parser(__doc__)
    parser.add_argument("--workers", type=number_from(2, 32), default=4, help="(default %(default)s)")
    parser.add_argument(
        "--rates", type=parse_rates, default=parse_rates("1gbit,100mbit,10gbit,300mbit,3gbit"), help="of the phases"
    )
    parser.add_argument("--steps", type=number_from(10, 10000), default=80, help="of a phase (default %(default)s)")
    parser.add_argument("--dataplane", choices=["user", "xdp"], default="user", help="(default %(default)s)")
    return ready_for_racks(parser, parser.parse_args(), "controller")


def step_ms(answers):
    """Of the slowest rank in each step."""
    return [round(1e3 * max(of_ranks), 3) for of_ranks in zip(*(a["step_s"] for a in answers), strict=True)]


def train(ranks, system, steps):
    asked = {"system": system, "settings": SYSTEMS[system], "steps": steps}
    return ranks.ask(lambda gate: json.dumps({"gate": gate, **asked}))


def run_system(options, rack, run, system):
    ranks = TorchRanks(rack, "controller_worker", port=PORT)
    try:
        rack.set_links("--rate", options.rates[0])
        train(ranks, system, WARM_UP)
        for phase, rate in enumerate(options.rates):
            rack.set_links("--rate", rate)
            answers = train(ranks, system, options.steps)
            times = step_ms(answers)
            run.keep(
                {
                    "workers": options.workers,
                    "phase": phase,
                    "rate": rate,
                    "system": system,
                    "steps": options.steps,
                    "step_ms": times,
                    "controller": answers[0]["controller"],
                }
            )
            say(f"  {system:10} {rate:8} {sum(times) / len(times):8.1f} ms a step")
    finally:
        ranks.close()


def main():
    options = parse_arguments()
    run = BenchmarkRun(options)
    for system in SYSTEMS:
        try:
            with Rack(options.netsum, "control", options.workers, options.rates[0], 1500, options.dataplane) as rack:
                run_system(options, rack, run, system)
        except PROBLEMS as problem:
            run.keep({"workers": options.workers, "system": system, "failed": str(problem)})
            say(f"  {system}: FAILED: {problem}")
    records = load(options.output)
    plot = ROOT / "build/bench/controller.svg"
    plot.parent.mkdir(parents=True, exist_ok=True)
    controller_report.write_plot(records, plot)
    say(f"\n{controller_report.table(records)}\n\n{run.seconds():.0f} s; records: {options.output}; plot: {plot}")
    return 1 if run.failures else 0


if __name__ == "__main__":
    sys.exit(main())
