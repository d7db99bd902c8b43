"""The rack benchmark of the other collectives: netsum beside Gloo and Open MPI, 8 workers, links of 100 Mbit/s.

Broadcast, all-gather, reduce-scatter, the last two at once (as in FSDP), and barrier, in racks, with the clock rule, the turns
and the choice of the peers' settings of rack_bench.py. Sizes are those of all parts together. Every result is verified. Needs
root.

  .venv/bin/python -m netsum_bench.collectives_bench                           about ten minutes
  .venv/bin/python -m netsum_bench.collectives_bench --collectives broadcast --sizes 16Mi --systems netsum-xdp,openmpi
"""

import contextlib
import functools
import sys

from netsum_bench.figures import markdown, number, spread, verdict
from netsum_bench.options import (
    BenchmarkRun,
    add_choice,
    make_parser,
    parse_size,
    ready_for_racks,
    say,
)
from netsum_bench.processes import PROBLEMS
from netsum_bench.rack import Rack
from netsum_bench.rack_bench import SLOW_S, link_seconds, measure_cells
from netsum_bench.rack_report import NETSUM_FRAME, PEERS, SYSTEMS, rate_bits, rate_text, size_text
from netsum_bench.systems import SMALL, Gloo, GlooRanks, Netsum, OpenMpi

WANTED = ["netsum-xdp", "netsum-user", "gloo", "openmpi"]
BARRIER = "barrier"

# By collective: what the settings of Gloo call (gloo_worker.py); the algorithms of Open MPI, large tensors first; and how much
# each link must carry in its busier direction, of all parts together, whatever the algorithm. With N workers:
COLLECTIVES = {
    "broadcast": (
        ["broadcast"],
        {
            "pipeline/65536": ("bcast", 3, 65536),
            "chain/65536": ("bcast", 2, 65536),
            "scatter, ring all-gather": ("bcast", 9, 0),
            "binomial/65536": ("bcast", 6, 65536),
        },
        {"binomial": ("bcast", 6, 0), "linear": ("bcast", 1, 0)},
        lambda n: 1,
    ),
    "allgather": (
        ["all_gather", "all_gather_into_tensor"],
        {"ring": ("allgather", 4, 0), "neighbor exchange": ("allgather", 5, 0)},
        {"recursive doubling": ("allgather", 3, 0), "Bruck": ("allgather", 2, 0)},
        lambda n: (n - 1) / n,
    ),
    "reducescatter": (
        ["reduce_scatter", "reduce_scatter_tensor", "all_reduce_for_a_part"],
        {"ring": ("reduce_scatter", 3, 0), "recursive halving": ("reduce_scatter", 2, 0)},
        {"recursive halving": ("reduce_scatter", 2, 0), "butterfly": ("reduce_scatter", 4, 0)},
        lambda n: (n - 1) / n,
    ),
    "allgather+reducescatter": (
        ["both_at_once", "one_after_the_other"],
        {},
        {},
        # An all-gather needs 1/N of the one direction and (N-1)/N of the other, a reduce-scatter the reverse.
        lambda n: 1,
    ),
    BARRIER: (
        ["barrier"],
        {},
        {"recursive doubling": ("barrier", 3, 0), "Bruck": ("barrier", 4, 0), "tree": ("barrier", 6, 0)},
        None,
    ),
}
TITLES = {
    "broadcast": "broadcast",
    "allgather": "all-gather",
    "reducescatter": "reduce-scatter",
    "allgather+reducescatter": "all-gather and reduce-scatter at once",
    BARRIER: "barrier",
}
ONE_AFTER_THE_OTHER = "one after the other, "


class NetsumCollective(Netsum):
    def __init__(self, rack, collective):
        super().__init__(rack)
        self.collective = collective


class GlooCollective(Gloo):
    def __init__(self, rack, collective, ranks):
        super().__init__(rack, ranks=ranks)
        self.collective = collective

    def candidates(self, sizes):
        return dict.fromkeys(COLLECTIVES[self.collective][0], sizes)


class OpenMpiCollective(OpenMpi):
    """Settings as those of OpenMpi, with algorithms of the collective. "Both" is tried with the calls that do not block, and
    one after the other, with rings for large tensors."""

    def __init__(self, rack, collective):
        super().__init__(rack)
        self.collective = collective

    def algorithms(self):
        """By setting: for which sizes, and the flags."""
        _, large, small, _ = COLLECTIVES[self.collective]
        rules = ["--mca", "coll_tuned_use_dynamic_rules", "1"]

        def forced(algorithm):
            of, number_of, segment = algorithm
            flags = [*rules, "--mca", f"coll_tuned_{of}_algorithm", str(number_of)]
            return flags + (["--mca", f"coll_tuned_{of}_algorithm_segmentsize", str(segment)] if segment else [])

        every = lambda size: True
        found = {"default": (every, []), "yield": (every, self.YIELD)}
        for sizes, algorithms in ((lambda size: size > SMALL, large), (lambda size: size <= SMALL, small)):
            for name, algorithm in algorithms.items():
                found[f"yield, {name}"] = (sizes, [*self.YIELD, *forced(algorithm)])
        if self.collective == "allgather+reducescatter":
            rings = [*forced(("allgather", 4, 0)), *forced(("reduce_scatter", 3, 0))]
            found[ONE_AFTER_THE_OTHER + "yield"] = (every, self.YIELD)
            found[ONE_AFTER_THE_OTHER + "rings"] = (lambda size: size > SMALL, [*self.YIELD, *rings])
        return found

    def flags(self, setting):
        return self.algorithms()[setting][1]

    def program_of(self, setting):
        return self.collective.replace("+", ", ") if setting.startswith(ONE_AFTER_THE_OTHER) else self.collective

    def candidates(self, sizes):
        found = {setting: [s for s in sizes if fits(s)] for setting, (fits, _) in self.algorithms().items()}
        return {setting: of_sizes for setting, of_sizes in found.items() if of_sizes}


def plan_rounds(size, rate, rounds):
    """As in rack_bench.py, of fewer iterations: the collectives are many."""
    return [(2, 0) if link_seconds(size, rate) > SLOW_S else (30 if size <= SMALL else 4, 1)] * rounds


def run_place(options, out, say, expired):
    workers, rate = options.workers, options.rate
    with contextlib.ExitStack() as stack:
        rack = functools.cache(
            lambda dataplane: stack.enter_context(
                Rack(options.netsum, f"bench{dataplane}", workers, rate, 1500, dataplane)
            )
        )

        @functools.cache
        def gloo_ranks():
            ranks = GlooRanks(rack("user"))
            stack.callback(ranks.close)
            return ranks

        makers = {
            "netsum-xdp": lambda collective: NetsumCollective(rack("xdp"), collective),
            "netsum-user": lambda collective: NetsumCollective(rack("user"), collective),
            "gloo": lambda collective: GlooCollective(rack("user"), collective, gloo_ranks()),
            "openmpi": lambda collective: OpenMpiCollective(rack("user"), collective),
        }
        for number_of, collective in enumerate(options.collectives):
            place = {"rate": rate, "workers": workers, "collective": collective}
            say(f"[{number_of + 1}/{len(options.collectives)}] {TITLES[collective]}")
            systems = []
            for name in options.systems:
                try:
                    systems.append(makers[name](collective))
                except PROBLEMS as problem:
                    say(f"  {name} is left out: {problem}")
                    out({**place, "left_out": name, "failed": str(problem)})
                    continue
                stack.callback(systems[-1].close)
            sizes = [0] if collective == BARRIER else list(map(parse_size, options.sizes.split(",")))
            measure_cells(
                systems, place, sizes, lambda size: plan_rounds(size, rate, options.rounds), out, say, expired
            )


# --- The table ----------------------------------------------------------------------------------------------------


def bound_ms(collective, rate, workers, size):
    """What the links allow any algorithm, headers included; None where their token buckets let it through at once."""
    load, bits = COLLECTIVES[collective][3], rate_bits(rate)
    if load is None or bits is None or size <= 256 << 10:
        return None
    return load(workers) * size * 8 / bits * 1e3 * NETSUM_FRAME


def table(records):
    """Rows of collectives and sizes: the median of each system in ms, what the links allow, and the verdict."""
    times, settings = {}, {}
    for record in records:
        if "round" in record:
            key = record["collective"], record["rate"], record["workers"], record["bytes"]
            system = record["system"]
            good = [] if record.get("wrong") else record.get("times_ms", [])
            times.setdefault(key, {}).setdefault(system, []).extend(good)
            if good and record.get("setting"):
                settings.setdefault((key, system), record["setting"])
    present = [s for s in WANTED if any(s in of for of in times.values())]
    rows = []
    for key in sorted(times, key=lambda k: (k[1], k[2], list(COLLECTIVES).index(k[0]), -k[3])):
        collective, rate, workers, size = key
        ranges = {s: dict(zip(("median", "low", "high"), spread(t), strict=True)) for s, t in times[key].items() if t}
        medians = {s: of["median"] for s, of in ranges.items()}
        texts = []
        for system in present:
            setting = settings.get((key, system))
            text = number(medians[system]) if system in medians else "failed" if system in times[key] else ""
            texts.append(f"{text} ({setting})" if setting and system in medians else text)
        bound = bound_ms(collective, rate, workers, size)
        our_name = min((s for s in medians if s.startswith("netsum")), key=medians.get, default=None)
        peers_name = min((s for s in medians if s in PEERS), key=medians.get, default=None)
        mine = medians.get(our_name)
        what = TITLES[collective] + (f", {size_text(size)}" if size else "")
        of_bound = f"{number(bound)} ({bound / mine:.0%})" if bound and mine else number(bound) if bound else ""
        said = ""
        if our_name and peers_name:
            said = verdict(medians[peers_name] / mine, ranges[our_name], ranges[peers_name], " x")
        rows.append([f"{what}, {workers} workers, {rate_text(rate)}", *texts, of_bound, said])
    headings = ["ms", *(" ".join(SYSTEMS[s][:1]) for s in present), "bound (netsum's share of it)", "times as fast"]
    return markdown(headings, rows)


def parse_arguments():
    parser = make_parser(__doc__, budget=True)
    parser.add_argument("--workers", type=int, default=8, help="number of workers (default %(default)s)")
    parser.add_argument("--rate", default="100mbit", help="of the links (default %(default)s)")
    parser.add_argument("--sizes", default="16Mi,4Ki", help="bytes of all parts together (default %(default)s)")
    add_choice(parser, "--collectives", COLLECTIVES)
    add_choice(parser, "--systems", WANTED)
    parser.add_argument("--rounds", type=int, default=2, help="turns of every system (default %(default)s)")
    options = parser.parse_args()
    return ready_for_racks(parser, options, "collectives")


def main():
    options = parse_arguments()
    run = BenchmarkRun(options)
    kept = []

    def keep(record):
        run.keep(record)
        kept.append(record)

    try:
        run_place(options, keep, say, run.expired)
    except PROBLEMS as problem:  # of the rack itself
        keep({"rate": options.rate, "workers": options.workers, "failed": str(problem)})
        say(f"  FAILED: {problem}")
    say(f"\n{table(kept)}\n\nrecords: {options.output}; {run.seconds():.0f} s")
    return 1 if run.failures else 0


if __name__ == "__main__":
    sys.exit(main())
