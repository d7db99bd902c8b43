"""Trains three models with Gloo and with netsum, side by side, and shows what each cost and gave.

As root it does so in a virtual rack, with shaped links and a switch that adds in the kernel; otherwise on this
machine's loopback device, with a daemon that adds.

examples:
  python -m netsum_bench.demo                                  all models, both backends: four minutes on 2 cores
  python -m netsum_bench.demo --quick                          the same with a fifth of the steps
  python -m netsum_bench.demo --models digits --steps 100      only the classifier, 100 steps
  python -m netsum_bench.demo --place loopback                 not in a rack, even as root
  python -m netsum_bench.demo --rate 1gbit --workers 8         a faster and larger rack
  python -m netsum_bench.demo --aggregator embedded            no aggregator: every worker embeds a shard of one
"""

import argparse
import contextlib
import dataclasses
import importlib.util
import json
import math
import os
import pathlib
import sys
import time

from netsum_bench.demo import children, places, report, summary
from netsum_bench.options import names_of, number_from, parse_rate
from netsum_bench.processes import Failed, end_in_order

# Such that the whole takes three to four minutes. On loopback the language model's arithmetic takes most of the
# time, in the rack its 20 MB of gradients per step do.
STEPS = {"loopback": {"digits": 300, "lm": 80, "recommender": 60}, "rack": {"digits": 200, "lm": 20, "recommender": 60}}
STALL_S = 120  # longer than any step, and than starting four workers on a slow machine
PLAIN_INTERVAL_S = 5


@dataclasses.dataclass
class Run:
    """One training: a model with a backend."""

    model: str
    backend: str
    workers: int
    steps: int
    seed: int
    folder: pathlib.Path
    place: str = "loopback"
    stall_s: int = STALL_S
    sparse: bool = False  # gradients of tables are sparse tensors
    parallel: str = "ddp"  # of train.PARALLEL
    more: tuple = ()  # further flags of train

    @property
    def title(self):
        return f"{summary.TITLES[self.model]} with {summary.BACKENDS[self.backend]}"


class ProgressLine:
    """One updating line on a terminal; elsewhere a plain line every few seconds."""

    def __init__(self, run, number, total, out=sys.stdout):
        self._run, self._prefix, self._out = run, f"[{number}/{total}] {run.title}", out
        self._last_plain = -math.inf
        self._live = out.isatty()

    def __call__(self, progress, elapsed_s):
        if progress:
            share = progress["step"] / self._run.steps
            bar = "#" * round(20 * share) + "." * (20 - round(20 * share))
            text = f"{bar} step {progress['step']}/{self._run.steps}  loss {progress['loss']:.3f}"
            if progress["step"] == self._run.steps:
                text += ", evaluating"
        else:
            text = "starting the workers"
        line = f"{self._prefix}: {text}  {elapsed_s:.0f} s"
        if self._live:
            self._out.write(f"\r\033[K{line}")
            self._out.flush()
        elif elapsed_s - self._last_plain >= PLAIN_INTERVAL_S:
            self._last_plain = elapsed_s
            print(line, file=self._out, flush=True)

    def end(self, text):
        self._out.write("\r\033[K" if self._live else "")
        print(f"{self._prefix}: {text}", file=self._out, flush=True)


def train_once(run, place, number, total):
    """Trains, and returns the Summary."""
    line = ProgressLine(run, number, total)
    children.clear(run)
    with contextlib.ExitStack() as stack:
        stack.callback(sys.stdout.flush)
        starts = stack.enter_context(place.training(run))
        wall_s = children.run_training(run, starts, line)
    result = summary.summarise(run, wall_s, places.counters_in(run.folder / "aggregator.log"))
    line.end(f"loss {result.final_loss:.3f}, accuracy {result.accuracy_percent:.1f} %, {wall_s:.0f} s")
    return result


def choose_place(options):
    """The rack if it can be and nothing else is asked for. Says which, and why."""
    if options.place == "loopback":
        if options.aggregator == "xdp":
            raise children.DemoError("--aggregator xdp needs a rack: loopback has no ports for XDP. Leave one out.")
        place, why = places.Loopback(options.aggregator or "daemon"), ""
    else:
        place, why = places.Rack(options.rate, options.aggregator or "xdp"), ""
        problem = place.problem()
        if problem and (options.place == "rack" or options.aggregator == "xdp"):
            raise children.DemoError(f"no rack can be made here: {problem}")
        if problem:
            why = f"\n(not in a virtual rack: {problem})"
            place = places.Loopback(options.aggregator or "daemon")
    print(f"Training {place.sentence}{why}", flush=True)
    return place


def run_demo(options):
    check_requirements(options)
    options.output.mkdir(parents=True, exist_ok=True)
    place = choose_place(options)
    runs = [
        Run(model, backend, options.workers, steps_for(model, place.name, options), options.seed,
            options.output.resolve() / "runs" / f"{model}-{backend}", place.name, sparse=model == "recommender")
        for model in options.models
        for backend in options.backends
    ]  # fmt: skip
    print(f"{len(runs)} runs of {options.workers} workers each, on {os.cpu_count()} cores", flush=True)
    start = time.monotonic()
    summaries = [train_once(run, place, number, len(runs)) for number, run in enumerate(runs, start=1)]
    comparisons = compare_backends(summaries)
    total_s = time.monotonic() - start
    print(f"\n{summary.text_table(summaries)}\n")
    print("Bytes include Ethernet, IP and UDP or TCP headers. Time of a step: median (10th-90th percentile).")
    for where in sorted({(summary.BACKENDS[s.backend], s.where) for s in summaries}):
        print(": ".join(where))
    for comparison in comparisons:
        print(f"{summary.TITLES[comparison.model]}: {comparison.sentence()}")
    facts = report.machine_facts(options, place, total_s)
    write_results(options.output / "results.json", summaries, comparisons, facts)
    page = options.output / "index.html"
    page.write_text(report.render(summaries, comparisons, facts))
    print(f"\nTook {total_s:.0f} s. Report: {page}")
    return 0 if all(comparison.agrees for comparison in comparisons) else 1


def compare_backends(summaries):
    """One comparison with the first backend for each further one, per model."""
    comparisons = []
    for model in dict.fromkeys(s.model for s in summaries):
        base, *others = (s for s in summaries if s.model == model)
        comparisons += [summary.compare(base, other) for other in others]
    return comparisons


def write_results(path, summaries, comparisons, facts):
    results = {
        "facts": facts,
        "runs": [dataclasses.asdict(s) for s in summaries],
        "comparisons": [{**dataclasses.asdict(c), "agrees": c.agrees} for c in comparisons],
    }
    path.write_text(json.dumps(results, indent=1) + "\n")


def steps_for(model, place, options):
    steps = options.steps or STEPS[place][model]
    return max(5, steps // 5) if options.quick and not options.steps else steps


def check_requirements(options):
    # Only looked for: the workers import them, which takes seconds.
    for name in ("sklearn", "torch", *(("netsum",) if "netsum" in options.backends else ())):
        if importlib.util.find_spec(name) is None:
            raise children.DemoError(
                f"{sys.executable} has no package {name}.\nRun `make demo`, which installs all that is needed into .venv."
            )
    if "netsum" in options.backends and options.aggregator != "embedded":
        children.find_netsum_command()


def parse_arguments(arguments=None):
    summary_line, _, examples = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m netsum_bench.demo",
        description=summary_line,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--models",
        type=names_of(summary.TITLES),
        default=list(summary.TITLES),
        help="comma-separated: digits (a classifier), lm (a language model), recommender (with a table whose gradients "
        "are sparse); default all",
    )
    parser.add_argument(
        "--backends",
        type=names_of(summary.BACKENDS),
        default=list(summary.BACKENDS),
        help="comma-separated: gloo, netsum; default both",
    )
    parser.add_argument("--workers", type=number_from(2, 16), default=4, help="default 4")
    parser.add_argument(
        "--steps",
        type=number_from(5, 100_000),
        help="training steps of every run; default {}".format(
            "; ".join(
                f"{place}: " + ", ".join(f"{steps} for {model}" for model, steps in of_models.items())
                for place, of_models in STEPS.items()
            )
        ),
    )
    parser.add_argument("--quick", action="store_true", help="a fifth of the default steps")
    parser.add_argument("--seed", type=number_from(0, 1_000_000), default=1, help="default 1")
    parser.add_argument(
        "--place",
        choices=["auto", "rack", "loopback"],
        default="auto",
        help="rack: every worker a network namespace with a link of its own (needs root); loopback: "
        "none of that; auto (default): the rack if it can be made",
    )
    parser.add_argument(
        "--rate", type=parse_rate, default="100mbit", help="of the rack's links, or none; default 100mbit"
    )
    parser.add_argument(
        "--aggregator",
        choices=["xdp", "daemon", "embedded"],
        help="who adds up for netsum: XDP in the switch's kernel (default in the rack), a daemon "
        "(default on loopback), or shards inside the workers",
    )
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("demo-report"),
                        help="folder of the report; default demo-report")  # fmt: skip
    return parser.parse_args(arguments)


def main():
    end_in_order()
    try:
        return run_demo(parse_arguments())
    except Failed as error:
        print(f"\ndemo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ndemo: stopped; all workers, the aggregator and the rack have been ended", file=sys.stderr)
        return 130
