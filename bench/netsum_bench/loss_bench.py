"""Goodput with packet loss on every link: netsum beside Gloo over TCP, in virtual racks on this machine.

Two racks of lossy links are up side by side, one whose switch adds in a daemon, one in XDP; Gloo runs in the first. The
systems take turns, loss by loss and round by round, so that whatever else the machine does falls on all of them. Every
link loses single packets by chance, each way; every result is verified. Goodput is relative to the same system's without
loss, round by round. Needs root.

  make bench-loss                                              8 workers, 100 Mbit/s, 4 MiB: about three minutes
  make bench-loss BENCH_FLAGS="--losses 0,1% --systems netsum-user --rounds 1"
"""

import contextlib
import sys

from pandas import DataFrame

from netsum_bench.figures import markdown, median, spread
from netsum_bench.options import BenchmarkRun, make_parser, need_netsum, need_root, new_output, parse_size, say
from netsum_bench.processes import PROBLEMS
from netsum_bench.rack import Rack
from netsum_bench.rack_report import SYSTEMS as LABELS
from netsum_bench.rack_report import size_text
from netsum_bench.records import load
from netsum_bench.systems import GlooOnLossyLinks, Netsum

SYSTEMS = ["netsum-user", "netsum-xdp", "gloo"]
ITERATIONS = 3  # of a round


def parse_loss(text):
    value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    if not 0 <= value < 1:
        raise ValueError(text)
    return value


class Players:
    """The systems, opened when they are first needed, and anew after one has failed."""

    def __init__(self, racks):
        self.makers = {
            "netsum-user": lambda: Netsum(racks["user"]),
            "netsum-xdp": lambda: Netsum(racks["xdp"]),
            "gloo": lambda: GlooOnLossyLinks(racks["user"]),
        }
        self.opened = {}
        self.settings = {}  # the best, by name and loss

    def measure(self, name, loss, size, iterations):
        if name not in self.opened:
            self.opened[name] = self.makers[name]()
        system = self.opened[name]
        system.rack.set_links("--loss", loss)
        try:
            if (name, loss) not in self.settings:  # which is best depends on the loss
                system.calibrate([(size, 1, 0)])
                self.settings[name, loss] = system.chosen.get(size)
            system.chosen = {size: self.settings[name, loss]} if self.settings[name, loss] else {}
            passed, lost = system.rack.packets()
            result = system.measure(size, iterations, 1)
        except PROBLEMS:
            self.opened.pop(name).close()
            raise
        finally:
            system.rack.set_links("--loss", 0)
        passed_after, lost_after = system.rack.packets()
        return {**result, "packets_passed": passed_after - passed, "packets_lost": lost_after - lost}

    def close(self):
        for system in self.opened.values():
            system.close()


def measure_all(options, out, expired):
    with contextlib.ExitStack() as stack:
        racks = {
            dataplane: stack.enter_context(
                Rack(options.netsum, f"loss{dataplane}", options.workers, options.rate, 1500, dataplane, loss=0)
            )
            for dataplane in ("user", "xdp")
        }
        players = Players(racks)
        stack.callback(players.close)
        for number in range(options.rounds):
            for loss in options.losses:
                for name in options.systems:
                    if expired():
                        say(f"the budget of {options.budget:g} minutes is spent")
                        return
                    record = {
                        "system": name,
                        "workers": options.workers,
                        "rate": options.rate,
                        "bytes": options.size,
                        "loss": loss,
                        "round": number,
                    }
                    try:
                        record.update(players.measure(name, loss, options.size, ITERATIONS))
                        text = f"{median(record['times_ms']):10.1f} ms" + (
                            "" if record["wrong"] == 0 else f"  {record['wrong']} WRONG ELEMENTS"
                        )
                    except PROBLEMS as problem:
                        record["failed"] = str(problem)
                        text = f"FAILED: {problem}"
                    out(record)
                    say(f"  round {number + 1}, loss {loss:7.2%}  {name:12} {text}")


def table(records):
    """Per loss and system, over all rounds; goodput relative to no loss in the same round."""
    frame = DataFrame(records).reindex(columns=COLUMNS)
    frame["median_ms"] = frame["times_ms"].map(median, na_action="ignore")
    without = frame[frame["loss"] == 0].groupby(["system", "round"])["median_ms"].last()
    rows = []
    for (loss, system), rounds in frame.groupby(["loss", "system"]):
        row = [f"{loss * 100:g} %", LABELS[system][0]]
        well = rounds.dropna(subset="times_ms")
        if well.empty:
            rows.append([*row, "", "", "", "", len(rounds)])
            continue
        relative = well.set_index(["system", "round"])["median_ms"].rdiv(without).dropna()
        lost, passed = int(well["packets_lost"].sum()), int(well["packets_passed"].sum())
        rows.append(
            [
                *row,
                "{:.0f} [{:.0f} - {:.0f}]".format(*spread(well["times_ms"].explode().astype(float))),
                f"{relative.median():.3f} [{relative.min():.3f} - {relative.max():.3f}]" if len(relative) else "",
                f"{lost} ({lost / max(1, lost + passed):.3%})",
                int(well["wrong"].sum()),
                len(rounds) - len(well),
            ]
        )
    return markdown(HEADINGS, rows, 2)


COLUMNS = ["loss", "system", "round", "times_ms", "packets_lost", "packets_passed", "wrong"]
HEADINGS = [
    "loss on every link",
    "system",
    "median [10 % - 90 %] ms",
    "goodput relative to no loss",
    "packets lost",
    "wrong",
    "rounds failed",
]


def parse_arguments():
    parser = make_parser(__doc__, budget=True)
    parser.add_argument("--workers", type=int, default=8, help="(default %(default)s)")
    parser.add_argument("--rate", default="100mbit", help="of every link (default %(default)s)")
    parser.add_argument("--size", type=parse_size, default="4Mi", help="bytes as float32 (default %(default)s)")
    parser.add_argument("--losses", default="0,0.1%,1%,5%", help="on every link, each way (default %(default)s)")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="of %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="turns of every system (default %(default)s)")
    options = parser.parse_args()
    if options.output is None:
        options.output = new_output("loss")
    options.systems = options.systems.split(",")
    unknown = set(options.systems) - set(SYSTEMS)
    if unknown:
        parser.error(f"unknown system {', '.join(sorted(unknown))}; there are {', '.join(SYSTEMS)}")
    try:
        options.losses = [parse_loss(text) for text in options.losses.split(",")]
    except ValueError as problem:
        parser.error(f"--losses: {problem} is no probability below 1: use e.g. 0.01 or 1%")
    need_root(parser)
    need_netsum(parser, options)
    return options


def main():
    options = parse_arguments()
    run = BenchmarkRun(options)
    say(f"{options.workers} workers, {options.rate}, {size_text(options.size)}")
    measure_all(options, run.keep, run.expired)
    say(f"\n{table(load(options.output))}\n\nrecords: {options.output}")
    return 1 if any(r.get("wrong") or r["system"] != "gloo" for r in run.failures) else 0


if __name__ == "__main__":
    sys.exit(main())
