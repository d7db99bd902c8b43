"""The rack benchmark: netsum beside Gloo and Open MPI, in virtual racks on this machine.

For each number of workers and link rate, two racks are up side by side, one whose switch adds in a daemon, one in XDP;
everything else runs in the first, whose last node is a spare host. First the peers' settings are tried at each size, and
the best is taken. Then the systems take turns, size by size and round by round. Every result is verified. Needs root.

All ranks start an iteration at one instant, and it lasts until the last rank has its result (start_gate.py).

  make bench                                            2, 4, 8 workers; 100 Mbit/s, 1 Gbit/s, unshaped; 4 KiB to 16 MiB
  make bench BENCH_FLAGS=--full                         also 16 workers and 64 MiB
  make bench-quick                                      a look, under three minutes
  make bench BENCH_FLAGS="--workers 8 --rates 100mbit --sizes 16Mi,64Mi"
"""

import contextlib
import functools
import os
import sys

from netsum_bench import rack_report
from netsum_bench.figures import median
from netsum_bench.machine import ROOT
from netsum_bench.options import (
    BenchmarkRun,
    make_parser,
    parse_size,
    ready_for_racks,
    say,
)
from netsum_bench.processes import PROBLEMS
from netsum_bench.rack import Rack
from netsum_bench.records import load
from netsum_bench.start_gate import idle_share
from netsum_bench.systems import SMALL, Gloo, GlooRanks, Netsum, NetsumMpi, NetsumNccl, OpenMpi

SYSTEMS = [
    "netsum-user",
    "netsum-xdp",
    "netsum-mix",
    "netsum-shards",
    "gloo",
    "openmpi",
    "netsum-user-bfloat16",
    "gloo-bfloat16",
]
# When asked for; AF_XDP only on unshaped links. (In XDP each worker has a port of its own, so multicast saves nothing.)
MORE_SYSTEMS = [
    "netsum-user-lanes8",
    "netsum-xdp-lanes8",
    "netsum-user-af_xdp",
    "netsum-xdp-af_xdp",
    "netsum-user-multicast",
    "netsum-mpi",
    "netsum-nccl",
]
# When asked for: tensors that the workers compress, summed by the daemon. What --compress takes.
COMPRESSED = {
    "compressed-bf16": "bf16",
    "compressed-lanes8": "lanes8",
    "compressed-topk-1%": "topk,ratio=0.01,sampled=true",
    "compressed-topk-0.1%": "topk,ratio=0.001,sampled=true",
    "compressed-dgc-1%": "dgc,ratio=0.01,sampled=true",
    "compressed-dgc-0.1%": "dgc,ratio=0.001,sampled=true",
    "compressed-sidco-1%": "sidco,ratio=0.01,fit=pareto",
    "compressed-sidco-0.1%": "sidco,ratio=0.001,fit=pareto",
    "compressed-powersgd": "powersgd,rank=4",
}
KNOWN = [*SYSTEMS, *MORE_SYSTEMS, *COMPRESSED]
QUICK = {"workers": "4", "rates": "100mbit,none", "sizes": "4Ki,1Mi", "rounds": 1}
FULL = {"workers": "8,4,2,16", "sizes": "4Ki,64Ki,1Mi,16Mi,64Mi"}
LEAST_ITERATIONS = 7  # of each system in each cell, over all rounds
SLOW_S = 0.5


def link_seconds(size, rate):
    return size * 8 / (rack_report.rate_bits(rate) or 1e9)


def plan_rounds(size, rate, rounds):
    """(iterations, warm-up) of each round, for all systems alike: what takes about a second, but LEAST_ITERATIONS in all rounds
    together; one iteration of warm-up, or none where the link alone needs more than half a second for one."""
    if link_seconds(size, rate) > SLOW_S:
        shares = [LEAST_ITERATIONS // rounds + (n < LEAST_ITERATIONS % rounds) for n in range(rounds)]
        return [(share, 0) for share in shares if share]
    least = -(-LEAST_ITERATIONS // rounds)
    count = max(least, 30) if size <= SMALL else int(min(10, max(least, 0.5 / link_seconds(size, rate))))
    return [(count, 1)] * rounds


def open_systems(wanted, racks, stack, out, say):
    @functools.cache
    def gloo_ranks():
        ranks = GlooRanks(racks["user"])
        stack.callback(ranks.close)
        return ranks

    makers = {
        "netsum-user": lambda: Netsum(racks["user"]),
        "netsum-xdp": lambda: Netsum(racks["xdp"]),
        "netsum-mix": lambda: Netsum(racks["user"], "mix"),
        "netsum-shards": lambda: Netsum(racks["user"], "shards"),
        "netsum-user-af_xdp": lambda: Netsum(racks["user"], packet_io="af_xdp"),
        "netsum-xdp-af_xdp": lambda: Netsum(racks["xdp"], packet_io="af_xdp"),
        "netsum-user-multicast": lambda: Netsum(racks["multicast"]),
        "netsum-user-lanes8": lambda: Netsum(racks["user"], lane_bits=8),
        "netsum-xdp-lanes8": lambda: Netsum(racks["xdp"], lane_bits=8),
        "netsum-user-bfloat16": lambda: Netsum(racks["user"], dtype="bfloat16"),
        "gloo": lambda: Gloo(racks["user"], ranks=gloo_ranks()),
        "gloo-bfloat16": lambda: Gloo(racks["user"], "bfloat16", gloo_ranks()),
        "openmpi": lambda: OpenMpi(racks["user"]),
        "netsum-mpi": lambda: NetsumMpi(racks["user"]),
        "netsum-nccl": lambda: NetsumNccl(racks["user"]),
        **{
            name: functools.partial(lambda of: Netsum(racks["user"], compress=of), (name, text))
            for name, text in COMPRESSED.items()
        },
    }
    opened = []
    for name in wanted:
        try:
            system = makers[name]()
        except PROBLEMS as problem:
            say(f"  {name} is left out: {problem}")
            out({"left_out": name, "failed": str(problem)})
            continue
        stack.callback(system.close)
        opened.append(system)
    return opened


def measure_one(system, size, iterations, warmup, idle):
    """One turn of a system. Processor time is what the whole machine spent during the timed iterations, softirqs included,
    without what it spends when idle; nothing where those are too short for the kernel's ticks."""
    up, down = system.rack.link_bytes()
    result = system.measure(size, iterations, warmup)
    up_after, down_after = system.rack.link_bytes()
    window_s = sum(result["times_ms"]) / 1e3
    busy_s = result.pop("busy_s") - idle * window_s
    cpu_ms = round(max(0, busy_s) / iterations * 1e3, 2) if window_s > 0.1 and size > SMALL else None
    return {
        **result,
        "cpu_ms": cpu_ms,
        "link_up": round((up_after - up) / (iterations + warmup)),
        "link_down": round((down_after - down) / (iterations + warmup)),
    }


def measure_cells(systems, place, sizes, rounds_of, out, say, expired=lambda: False):
    """All systems and sizes at one place: calibration, then turns. `place` is part of every record."""
    # A look at each setting: at sizes that take long on the link, a single sum.
    slow = lambda size: link_seconds(size, place["rate"]) > SLOW_S
    plan = [(size, 20, 2) if size <= SMALL else (size, 1, 0) if slow(size) else (size, 5, 1) for size in sizes]
    for system in systems:
        if expired():
            return
        found = system.calibrate(plan)
        for size, times in found.items():
            out({**place, "bytes": size, "calibrated": system.name, "calibration_ms": times})
        if found:
            say(
                f"  {system.name}: "
                + "; ".join(f"{rack_report.size_text(s)}: {system.chosen.get(s, 'none works')}" for s in found)
            )
    idle = idle_share()
    for size in sizes:
        for number, (iterations, warmup) in enumerate(rounds_of(size)):
            for system in systems:
                if expired():
                    return
                record = {**place, "bytes": size, "system": system.name, "round": number}
                try:
                    record.update(measure_one(system, size, iterations, warmup, idle))
                except PROBLEMS as problem:
                    record["failed"] = str(problem)
                out(record)
                say(
                    f"  {rack_report.size_text(size):>7}  {system.name:21} "
                    + (
                        f"FAILED: {record['failed']}"
                        if "failed" in record
                        else f"{median(record['times_ms']):10.3f} ms"
                        + ("" if record["wrong"] == 0 else f"  {record['wrong']} WRONG")
                    )
                )


def run_place(options, workers, rate, out, say, expired):
    wanted = options.systems.split(",")
    place = {"rate": rate, "workers": workers}
    with contextlib.ExitStack() as stack:
        racks = {}
        for dataplane in ("user", "xdp"):
            if any(("xdp" in name.removesuffix("af_xdp")) == (dataplane == "xdp") for name in wanted):
                racks[dataplane] = stack.enter_context(
                    Rack(
                        options.netsum,
                        f"bench{dataplane}",
                        workers,
                        rate,
                        options.mtu,
                        dataplane,
                        spares=1,
                        flags=("--cores", options.cores),
                    )
                )
        if any(name.endswith("-multicast") for name in wanted):
            racks["multicast"] = stack.enter_context(
                Rack(options.netsum, "benchmulticast", workers, rate, options.mtu, "user", multicast=True)
            )
        systems = open_systems(wanted, racks, stack, lambda record: out({**place, **record}), say)
        measure_cells(
            systems,
            place,
            list(map(parse_size, options.sizes.split(","))),
            lambda size: plan_rounds(size, rate, options.rounds),
            out,
            say,
            expired,
        )


def parse_arguments():
    parser = make_parser(__doc__, budget=True)
    parser.add_argument("--workers", default="8,4,2", help="numbers of workers (default %(default)s)")
    parser.add_argument("--rates", default="100mbit,1gbit,none", help="link rates (default %(default)s)")
    parser.add_argument("--sizes", default="4Ki,64Ki,1Mi,16Mi", help="bytes as float32 (default %(default)s)")
    parser.add_argument(
        "--systems",
        default=",".join(SYSTEMS),
        help=f"of {', '.join(KNOWN).replace('%', '%%')} (default: {', '.join(SYSTEMS)})",
    )
    parser.add_argument("--rounds", type=int, default=3, help="turns of every system (default %(default)s)")
    parser.add_argument("--mtu", type=int, default=1500)
    parser.add_argument(
        "--cores",
        type=int,
        default=max(1, min(8, os.cpu_count() // 4)),
        help="threads of the daemon in the switch (default: a quarter of the machine's cores, %(default)s)",
    )
    parser.add_argument("--quick", action="store_true", help=f"{QUICK}, where not given")
    parser.add_argument("--full", action="store_true", help=f"{FULL}, where not given")
    options = parser.parse_args()
    for name, value in (QUICK if options.quick else FULL if options.full else {}).items():
        if getattr(options, name) == parser.get_default(name):
            setattr(options, name, value)
    unknown = set(options.systems.split(",")) - set(KNOWN)
    if unknown:
        parser.error(f"unknown system {', '.join(sorted(unknown))}; there are {', '.join(KNOWN)}")
    return ready_for_racks(parser, options, "rack")


def main():
    options = parse_arguments()
    run = BenchmarkRun(options)
    places = [(int(w), rate) for w in options.workers.split(",") for rate in options.rates.split(",")]
    for number, (workers, rate) in enumerate(places):
        if run.expired():
            say(
                f"the budget of {options.budget:g} minutes is spent: {len(places) - number} of {len(places)} places left out"
            )
            break
        say(f"[{number + 1}/{len(places)}] {workers} workers, {rate}, {run.seconds():.0f} s")
        try:
            run_place(options, workers, rate, run.keep, say, run.expired)
        except PROBLEMS as problem:  # of the rack itself
            run.keep({"rate": rate, "workers": workers, "failed": str(problem)})
            say(f"  FAILED: {problem}")
    if options.output.exists():
        (ROOT / "build/bench").mkdir(parents=True, exist_ok=True)
        records = load(options.output)
        say("\n" + rack_report.text(records))
        say(f"\nrecords: {options.output}\nreport:  {rack_report.write_html(records, ROOT / 'build/bench/rack.html')}")
    return 1 if run.failures else 0


if __name__ == "__main__":
    sys.exit(main())
