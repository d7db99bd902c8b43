"""What the controller of compression costs over the best level of each phase, on a link whose rate changes.

In a virtual rack, the ranks train a model of 16 MiB of gradients with each fixed level and with "auto", which take turns. `netsum rack set
--rate` changes all links between two phases of so many steps. The first steps are a warm-up, and do not count. Needs root, and the Python
package (scripts/install_wheel.sh).

  make bench-controller
  make bench-controller BENCH_FLAGS=--quick                                        two workers, two rates: a minute
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

AUTO = controller_report.AUTO
LEVELS = ["none", "bf16", "int8", {"method": "topk", "ratio": 0.01, "sampled": True}]
SYSTEMS = {
    "none": None,
    "bf16": {"method": "bf16"},
    "int8": {"method": "int8"},
    "topk 1 %": LEVELS[3],
    AUTO: {"method": "auto", "levels": LEVELS, "warmup_steps": 5},
}
QUICK = {"workers": 2, "rates": ["10gbit", "200mbit"], "steps": 20}
PORT = 29403
TURN = 10  # steps of a system before the next one trains
WARM_UP = 20  # steps of the first phase that do not count


def parse_rates(text):
    return [parse_rate(part) for part in text.split(",")]


def parse_arguments():
    parser = make_parser(__doc__)
    parser.add_argument("--workers", type=number_from(2, 32), default=4, help="(default %(default)s)")
    parser.add_argument(
        "--rates", type=parse_rates, default=parse_rates("1gbit,100mbit,10gbit,300mbit,3gbit"), help="of the phases"
    )
    parser.add_argument("--steps", type=number_from(10, 10000), default=80, help="of a phase (default %(default)s)")
    parser.add_argument("--trace", help="file for the controller's trace: netsum compression replay")
    parser.add_argument("--dataplane", choices=["user", "xdp"], default="user", help="(default %(default)s)")
    parser.add_argument("--quick", action="store_true", help=f"instead: {QUICK}")
    options = parser.parse_args()
    if options.quick:
        vars(options).update(QUICK)
    options = ready_for_racks(parser, options, "controller")
    SYSTEMS[AUTO]["trace"] = options.trace
    return options


def step_ms(answers):
    """Of the slowest rank in each step."""
    return [round(1e3 * max(of_ranks), 3) for of_ranks in zip(*(a["step_s"] for a in answers), strict=True)]


def train(ranks, system, steps):
    asked = {"system": system, "settings": SYSTEMS[system], "steps": steps}
    return ranks.ask(lambda gate: json.dumps({"gate": gate, **asked}))


def train_phase(ranks, steps):
    """The step times of all systems, which take turns, so that what else the machine does meets all of them; and the controller's
    counts."""
    times, counts = {system: [] for system in SYSTEMS}, {}
    while len(times[AUTO]) < steps:
        for system in SYSTEMS:
            answers = train(ranks, system, min(TURN, steps - len(times[system])))
            times[system] += step_ms(answers)
            counts[system] = answers[0]["controller"]
    return times, counts


def run_phases(options, rack, run):
    ranks = TorchRanks(rack, "controller_worker", port=PORT)
    try:
        rack.set_links("--rate", options.rates[0])
        train_phase(ranks, WARM_UP)
        for phase, rate in enumerate(options.rates):
            rack.set_links("--rate", rate)
            times, counts = train_phase(ranks, options.steps)
            where = {"workers": options.workers, "phase": phase, "rate": rate, "steps": options.steps}
            for system in SYSTEMS:
                run.keep({**where, "system": system, "step_ms": times[system], "controller": counts[system]})
            means = ", ".join(f"{system} {sum(of) / len(of):.1f}" for system, of in times.items())
            say(f"[{run.seconds():.0f} s] {rate}, ms a step: {means}")
    finally:
        ranks.close()


def main():
    options = parse_arguments()
    run = BenchmarkRun(options)
    try:
        with Rack(options.netsum, "control", options.workers, options.rates[0], 1500, options.dataplane) as rack:
            run_phases(options, rack, run)
    except PROBLEMS as problem:
        run.keep({"workers": options.workers, "failed": str(problem)})
        say(f"FAILED: {problem}")
    records = load(options.output)
    plot = ROOT / "build/bench/controller.svg"
    plot.parent.mkdir(parents=True, exist_ok=True)
    controller_report.write_plot(records, plot)
    say(f"\n{controller_report.table(records)}\n\n{run.seconds():.0f} s; records: {options.output}; plot: {plot}")
    return 1 if run.failures else 0


if __name__ == "__main__":
    sys.exit(main())
