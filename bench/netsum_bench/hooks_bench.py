"""What the hook of compression in C++ gains over the same hook in Python: the time of a step.

Ranks on this machine, summed in shared memory, train a model of many small buckets, with each method and both hooks, which take turns;
once alone, and once beside a thread of the same process that computes in Python. Needs the Python package (scripts/install_wheel.sh), and
no root.

  make bench-hooks
  make bench-hooks BENCH_FLAGS=--quick
"""

import json
import sys

from netsum_bench.figures import markdown, median, number, spread
from netsum_bench.one_host import Host
from netsum_bench.options import BenchmarkRun, add_choice, make_parser, new_output, number_from, say
from netsum_bench.processes import PROBLEMS
from netsum_bench.records import load
from netsum_bench.systems import TorchRanks

METHODS = {
    "none": {"method": "none"},
    "bf16": {"method": "bf16"},
    "int8": {"method": "int8"},
    "topk 1 %": {"method": "topk", "ratio": 0.01},
    "powersgd": {"method": "powersgd"},
}
HOOKS = ("Python", "C++")
LOADS = ("quiet", "busy")
TURN = 5  # steps with a hook before the other one trains
WARM_UP = 3  # steps of each that do not count: DDP makes other buckets after the first


def parse_arguments():
    parser = make_parser(__doc__, netsum=False)
    parser.add_argument("--workers", type=number_from(2, 32), default=4, help="(default %(default)s)")
    parser.add_argument("--steps", type=number_from(5, 10000), default=40, help="of each hook (default %(default)s)")
    add_choice(parser, "--methods", METHODS)
    parser.add_argument("--quick", action="store_true", help="5 steps, to see that it works")
    options = parser.parse_args()
    if options.quick:
        options.steps = TURN
    if options.output is None:
        options.output = new_output("hooks")
    return options


def step_ms(ranks, settings, hook, under, steps):
    """Of the slowest rank in each step."""
    asked = {"settings": settings, "hook": hook, "load": under, "steps": steps}
    answers = ranks.ask(lambda gate: json.dumps({"gate": gate, **asked}))
    return [round(1e3 * max(of_ranks), 3) for of_ranks in zip(*(a["step_s"] for a in answers), strict=True)]


def measure(ranks, settings, under, steps):
    """The step times of both hooks, which take turns, so that what else the machine does meets both."""
    times = {hook: [] for hook in HOOKS}
    for hook in HOOKS:
        step_ms(ranks, settings, hook, under, WARM_UP)
    while len(times[HOOKS[-1]]) < steps:
        for hook in HOOKS:
            times[hook] += step_ms(ranks, settings, hook, under, min(TURN, steps - len(times[hook])))
    return times


def table(records):
    """Medians, with the 10th and 90th percentile."""
    found = {}
    for record in records:
        if "step_ms" in record:
            found.setdefault((record["load"], record["method"]), {})[record["hook"]] = record["step_ms"]
    rows = []
    for (under, method), hooks in found.items():
        if any(hook not in hooks for hook in HOOKS):
            continue
        cells = []
        for hook in HOOKS:
            middle, low, high = map(number, spread(hooks[hook]))
            cells.append(f"{middle} ({low} - {high})")
        ratio = median(hooks["Python"]) / median(hooks["C++"])
        rows.append([{"quiet": "nothing", "busy": "Python"}[under], method, *cells, f"{ratio:.2f}"])
    if not rows:
        return "*Nothing to compare yet.*"
    return markdown(["beside it", "method", "Python, ms", "C++, ms", "Python / C++"], rows, left=2)


def main():
    options = parse_arguments()
    run = BenchmarkRun(options)
    host = Host(None, options.workers)
    try:
        ranks = TorchRanks(host, "hooks_worker")
        try:
            for under in LOADS:
                for method in options.methods:
                    times = measure(ranks, METHODS[method], under, options.steps)
                    for hook in HOOKS:
                        where = {"workers": options.workers, "load": under, "method": method, "hook": hook}
                        run.keep({**where, "step_ms": times[hook]})
                    medians = ", ".join(f"{hook} {median(of):.1f}" for hook, of in times.items())
                    say(f"[{run.seconds():.0f} s] {under}, {method}, ms a step: {medians}")
        finally:
            ranks.close()
    except PROBLEMS as problem:
        run.keep({"workers": options.workers, "failed": str(problem)})
        say(f"FAILED: {problem}")
    finally:
        host.close()
    say(f"\n{table(load(options.output))}\n\n{run.seconds():.0f} s; records: {options.output}")
    return 1 if run.failures else 0


if __name__ == "__main__":
    sys.exit(main())
