"""Time and bytes of planned shares: every placement beside what the planner computes for it, Gloo and Open MPI.

Virtual racks with spare hosts, several ports, unequal links and a slow switch are up side by side. The systems of the rack
benchmark take turns in them, round by round; every result is verified. For each placement the optimum is that of `netsum plan`
for the same rack. The bytes of every link are those of its token buckets, without those of joining. Needs root.

  make bench-shares                                              8 workers, 100 Mbit/s, 16 MiB: about nine minutes
  make bench-shares BENCH_FLAGS="--placements netsum-shares,netsum-spare1,gloo --rounds 1"
"""

import contextlib
import dataclasses
import functools
import json
import subprocess
import sys

from netsum_bench import rack_report
from netsum_bench.figures import markdown, median, number
from netsum_bench.options import (
    BenchmarkRun,
    make_parser,
    names_of,
    parse_rate,
    parse_size,
    ready_for_racks,
    say,
)
from netsum_bench.processes import PROBLEMS, Failed
from netsum_bench.rack import Rack
from netsum_bench.rack_bench import measure_cells, plan_rounds
from netsum_bench.rack_report import NETSUM_FRAME, TCP_FRAME, cells, size_text
from netsum_bench.records import load
from netsum_bench.systems import Gloo, Netsum, OpenMpi

SPARES = 8


@dataclasses.dataclass
class Placement:
    """A row of the table. `rack`: of rack_flags(). `places`: the aggregators' nodes in it, all of them if None. `case`: of netsum
    plan. `corrects`: whether a plan from a wrong rate is corrected; None: the rates are right."""

    title: str
    rack: str
    places: list | None
    case: str
    corrects: bool | None = None


PLACEMENTS = {
    "netsum-shares": Placement("nothing but the workers", "equal", [], "embedded shards"),
    **{
        f"netsum-spare{k}": Placement(
            f"{k} spare host{'s' * (k > 1)}",
            "equal",
            [f"s{s}" for s in range(k)],
            f"{k} spare host{'s' * (k > 1)} and shards",
        )
        for k in (1, 2, 4, 8)
    },
    "netsum-fast": Placement("1 spare host, its link 4 times as fast", "fast", None, "best mix"),
    "netsum-ports": Placement("1 spare host with 4 ports", "ports", None, "best mix"),
    "netsum-unequal": Placement("half of the workers' links half as fast", "unequal", [], "embedded shards"),
    "netsum-unequal-spare": Placement("the same, and 1 spare host", "unequal", None, "best mix"),
    "netsum-switch": Placement("an aggregator in the switch", "equal", ["sw"], "sw alone"),
    "netsum-half": Placement("the same, which sums only half the rate", "half", None, "best mix"),
    "netsum-wrong-planned": Placement(
        "1 spare host with half of the declared rate, `--shares planned`", "wrong", None, "best mix", corrects=False
    ),
    "netsum-wrong": Placement("the same, `--shares auto`", "wrong", None, "best mix", corrects=True),
}
# What is measured after a plan from a wrong rate: iterations, and those before them in which it can be corrected. A quarter of
# the size, because there are many.
CORRECTED = (7, 56)
SMALLER = 4
PEERS = {"gloo": (Gloo, "equal"), "openmpi": (OpenMpi, "equal")}
PEERS |= {f"{name}-unequal": (kind, "unequal") for name, (kind, _) in PEERS.items()}


def rack_flags(rack, workers, rate):
    """Of `netsum rack up`."""
    bits = rack_report.rate_bits(rate)
    times = lambda factor: f"{bits * factor / 1e3:.0f}kbit"
    return {
        "equal": ("--spare", SPARES),
        "fast": ("--spare", 1, "--spare-rate", times(4), "--no-switch-aggregator"),
        "ports": ("--spare", 1, "--ports", 4, "--no-switch-aggregator"),
        "unequal": (
            *("--worker-rate", f"{workers // 2}-{workers - 1}={times(0.5)}"),
            *("--spare", 1, "--no-switch-aggregator"),
        ),
        "half": ("--switch-rate", times(0.5)),
        "wrong": ("--spare", 1, "--no-switch-aggregator"),
    }[rack]


class Placed(Netsum):
    """netsum at one placement."""

    def __init__(self, rack, name):
        super().__init__(rack)
        self.name, placement = name, PLACEMENTS[name]
        used = [
            one["address"]
            for one in rack.status()["aggregators"]
            if placement.places is None or one["node"] in placement.places
        ]
        self.flags = ["--aggregator", ",".join(used), *(() if used else ("--root", rack.root))]
        self.flags += ["--shares", "planned"] if placement.corrects is False else []
        report = subprocess.run([rack.netsum, "plan", "--rack", rack.name, "--json"], capture_output=True, text=True)
        if report.returncode != 0:
            raise Failed(f"netsum plan: {report.stderr.strip()}")
        plan = json.loads(report.stdout)
        self.case = next(case for case in plan["cases"] if case["name"] == placement.case)
        self.ring_s_per_gigabyte = plan["ring_s_per_gigabyte"]

    def plan(self):
        """What the program says, for the records; loads are in units of the gradient."""
        return {
            "s_per_gigabyte": self.case["s_per_gigabyte"],
            "ring_s_per_gigabyte": self.ring_s_per_gigabyte,
            "bottleneck": self.case["bottleneck"],
            "stripes": sum(one["weight"] > 0 for one in self.case["weights"]),
            "loads": {link["name"]: link["bytes_per_gigabyte"] / 1e9 for link in self.case["links"]},
        }

    def carried(self, size, iterations, warmup):
        """A measurement, and the bytes of each link in it, named as in the plan."""
        before = self.counted()
        result = super().measure(size, iterations, warmup)
        return result, {link: count - before[link] for link, count in self.counted().items()}

    def counted(self):
        """Bytes so far of each link, and of what a slow switch sums from each worker."""
        counts = {
            f"{link.replace('-p', ' port ')}, {way}": carried[way]
            for link, carried in self.rack.all_link_bytes().items()
            for way in ("in", "out")
        }
        if shaped := self.rack.bucket_bytes("sw"):
            counts["sw, sums"] = shaped["ifb-br0"] // self.rack.workers
        return counts

    @functools.cached_property
    def joining(self):
        return self.carried(4, 1, 0)[1]

    def measure(self, size, iterations, warmup):
        joining = self.joining
        result, carried = self.carried(size, iterations, warmup)
        per_operation = {
            link: round((count - joining[link]) / (iterations + warmup))
            for link, count in carried.items()
            if link in self.plan()["loads"]
        }
        return {**result, "link_bytes": per_operation}


def run(options, out, say, expired):
    wanted = options.placements
    with contextlib.ExitStack() as stack:
        racks = {}
        for name in dict.fromkeys([PLACEMENTS[n].rack if n in PLACEMENTS else PEERS[n][1] for n in wanted]):
            flags = rack_flags(name, options.workers, options.rate)
            rack = Rack(options.netsum, f"shares{name}", options.workers, options.rate, 1500, "user", flags=flags)
            racks[name] = stack.enter_context(rack)
            if name == "wrong":  # the aggregator has declared the other rate
                half = rack_report.rate_bits(options.rate) / 2
                rack.set_links("--rate", f"{half / 1e3:.0f}kbit", where="s0")
        place = {"rate": options.rate, "workers": options.workers}
        wrong = {name for name in wanted if name in PLACEMENTS and PLACEMENTS[name].corrects is not None}
        smaller = options.size // SMALLER
        systems, with_wrong_rates = [], []
        for name in wanted:
            try:
                if name in PEERS:
                    kind, rack = PEERS[name]
                    system = kind(racks[rack])
                    system.name = name
                else:
                    system = Placed(racks[PLACEMENTS[name].rack], name)
                    size = smaller if name in wrong else options.size
                    out({**place, "bytes": size, "system": name, "plan": system.plan()})
            except PROBLEMS as problem:
                say(f"  {name} is left out: {problem}")
                out({**place, "bytes": options.size, "left_out": name, "failed": str(problem)})
                continue
            stack.callback(system.close)
            (with_wrong_rates if name in wrong else systems).append(system)
        rounds = lambda size: plan_rounds(size, options.rate, options.rounds)
        measure_cells(systems, place, [options.size], rounds, out, say, expired)
        measure_cells(with_wrong_rates, place, [smaller], lambda _: [CORRECTED], out, say, expired)


def beyond_program(rounds, plan, size):
    """The link that differs most from the program: in packets and in percent of what the program says, headers included. Links
    that the program leaves idle count as packets only."""
    differences = []
    for link, units in plan["loads"].items():
        expected = units * size * NETSUM_FRAME
        counted = [r["link_bytes"][link] for r in rounds if link in r.get("link_bytes", {})]
        if not counted:  # nothing counts what an unshaped switch sums
            continue
        difference = median(counted) - expected
        differences.append((abs(difference), difference, expected))
    if not differences:
        return ""
    _, difference, expected = max(differences)
    share = f", {difference / expected:+.1%}" if expected else ""
    return f"{difference / 1514:+.0f}{share}"


def table(records):
    """A row for each placement, with the peers on the same links."""
    found = cells(records)
    plans = {(r["rate"], r["workers"], r["bytes"], r["system"]): r["plan"] for r in records if "plan" in r}
    rows = []
    for key, plan in sorted(plans.items(), key=lambda item: list(PLACEMENTS).index(item[0][-1])):
        rate, workers, size, name = key
        cell = found.get(key, {})
        where = f"{workers} workers, {rack_report.rate_text(rate)}, {size_text(size)}"
        optimum = plan["s_per_gigabyte"] * size / 1e6 * NETSUM_FRAME
        ring = plan["ring_s_per_gigabyte"] * size / 1e6 * TCP_FRAME
        suffix = "-unequal" if PLACEMENTS[name].rack == "unequal" else ""
        row = [where, PLACEMENTS[name].title, number(optimum)]
        if "median" in cell:
            rounds = [
                r for r in records if "times_ms" in r and (r["rate"], r["workers"], r["bytes"], r["system"]) == key
            ]
            time_ms = cell["median"]
            row += [rack_report.time_text(cell, False), f"{time_ms / optimum - 1:+.0%}", f"{ring / time_ms:.2f}"]
            row += [beyond_program(rounds, plan, size)]
        else:
            row += ["failed" if cell else "not measured", "", "", ""]
        for peer in ("gloo", "openmpi"):
            other = found.get((rate, workers, size, peer + suffix), {})
            row.append(number(other["median"]) if "median" in other else "")
        rows.append(row)
    headings = ["", "what there is", "optimum, ms", "netsum, ms", "over the optimum", "over a ring's bound"]
    headings += ["link that differs most from the program, packets", "Gloo, ms", "Open MPI, ms"]
    return markdown(headings, rows, 2)


def parse_arguments():
    parser = make_parser(__doc__, budget=True)
    everything = [*PLACEMENTS, *PEERS]
    parser.add_argument(
        "--workers", type=int, default=8, choices=range(2, 33), metavar="N", help="(default %(default)s)"
    )
    parser.add_argument("--rate", type=parse_rate, default="100mbit", help="of most links (default %(default)s)")
    parser.add_argument("--size", type=parse_size, default=16 << 20, help="bytes as float32 (default 16Mi)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of every system (default %(default)s)")
    parser.add_argument(
        "--placements",
        type=names_of(everything),
        default=everything,
        help=f"what is measured: of {', '.join(everything)} (default: all)",
    )
    options = parser.parse_args()
    if options.rate == "none":
        parser.error("--rate none: without a rate there is nothing to plan")
    return ready_for_racks(parser, options, "shares")


def main():
    options = parse_arguments()
    this_run = BenchmarkRun(options)
    try:
        run(options, this_run.keep, say, this_run.expired)
    except PROBLEMS as problem:  # of a rack
        this_run.keep({"rate": options.rate, "workers": options.workers, "failed": str(problem)})
        say(f"FAILED: {problem}")
    if options.output.exists():
        say("\n" + table(load(options.output)) + f"\n\nrecords: {options.output}")
    return 1 if this_run.failures else 0


if __name__ == "__main__":
    sys.exit(main())
