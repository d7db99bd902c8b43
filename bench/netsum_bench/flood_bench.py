"""What a flood takes from a job at the same aggregator, in the user-space daemon and in XDP.

In a virtual rack, two workers sum without end and a third floods the aggregator, with packets without a key, or as a tenant
with a job of its own whose every packet is answered in full. Measured is the job's time per sum, alternating between no flood,
a flood that nobody reads (what it costs the machine), and each of the others. Every sum is verified; where none
ends within --deadline, that is said. The aggregators have one core. Needs root.

  make bench-floods                                           300 000 packets per second, and as many as one thread can send
  make bench-floods BENCH_FLAGS="--floods 0 --rounds 7"
"""

import contextlib
import json
import os
import pathlib
import signal
import sys

from netsum_bench.figures import median
from netsum_bench.machine import ROOT, machine
from netsum_bench.options import make_parser, need_netsum, need_root, parse_size
from netsum_bench.processes import Failed, finish, running, start
from netsum_bench.rack import Rack
from netsum_bench.records import append_to

RANKS, FLOODER = 2, 2
ARMS = ("no flood", "to nobody", "forged packets", "a tenant, no quota", "a tenant, quota")


def flood(rack, options, arm, rate, aggregator, nobody):
    """For the time of a `with`."""
    if arm == "no flood":
        return contextlib.nullcontext()
    kind = {"to nobody": "nobody", "forged packets": "forged"}.get(arm, "tenant")
    # It ends by itself should we not come to that.
    return running(
        rack.inside(
            FLOODER, options.flood, kind, nobody if kind == "nobody" else aggregator, rate, options.deadline + 30
        ),
        "flooding",
        "the flood",
    )


def sums_per_second(rack, options, aggregator):
    """By the median of the slowest rank; 0 where the job did not end in time."""
    ranks = [
        start(
            rack.inside(
                rank,
                rack.netsum,
                "bench",
                "allreduce",
                "--rank",
                rank,
                "--world-size",
                RANKS,
                "--aggregator",
                aggregator,
                "--bytes",
                options.bytes,
                "--iterations",
                options.iterations,
                "--warmup",
                5,
                "--timeout",
                f"{options.deadline}s",
                "--json",
            )
        )
        for rank in range(RANKS)
    ]
    try:
        reports = [json.loads(out) for out in finish(ranks, options.deadline)]
    except Failed:
        if all(rank.returncode in (0, 3, -signal.SIGKILL) for rank in ranks):  # by a deadline, its own or ours
            return 0.0
        raise
    if any(report["results_wrong"] for report in reports):
        raise Failed("a sum was wrong")
    return 1e6 / reports[0]["time_us"]["median"]


def measure(rack, options, dataplane, rate, out):
    found = {arm: [] for arm in ARMS}
    switch = rack.switch_address()
    flags = (
        ["--dataplane", "xdp", "--interfaces", ",".join(f"w{w}" for w in range(rack.workers))]
        if dataplane == "xdp"
        else []
    )
    for number in range(options.rounds):
        for arm in ARMS:
            quota = ["--job-packet-rate", options.quota] if arm == "a tenant, quota" else []
            with (
                rack.aggregator("sw", f"{switch}:5252", *flags, *quota) as aggregator,
                rack.aggregator("sw", f"{switch}:5353", "--data-port", 5454),
                flood(rack, options, arm, rate, aggregator, f"{switch}:5454"),
            ):
                found[arm].append(sums_per_second(rack, options, aggregator))
            out({"dataplane": dataplane, "flood": rate, "round": number, "arm": arm, "sums_per_s": found[arm][-1]})
    print(f"{dataplane}, flood of {rate or 'as many as one thread can send'} packets/s: sums/s, median (least to most)")
    for arm, values in found.items():
        print(f"  {arm:<20} {median(values):8.0f} ({min(values):.0f} to {max(values):.0f})", flush=True)


def parse_arguments():
    parser = make_parser(__doc__)
    parser.add_argument("--dataplanes", default="user,xdp", help="(%(default)s)")
    parser.add_argument("--floods", default="300000,0", help="packets per second, or 0 for as many as go (%(default)s)")
    parser.add_argument(
        "--quota", type=int, default=300_000, help="packets per second of a job, where it has one (%(default)s)"
    )
    parser.add_argument(
        "--bytes", type=parse_size, default="200000", help="of the tensors that are summed (%(default)s)"
    )
    parser.add_argument("--iterations", type=int, default=200, help="sums of a turn (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each measurement (%(default)s)")
    parser.add_argument("--deadline", type=int, default=20, help="seconds after which a turn counts as 0 (%(default)s)")
    parser.add_argument("--flood", type=pathlib.Path, default=ROOT / "build/release/tests/attack/flood")
    options = parser.parse_args()
    need_root(parser)
    need_netsum(parser, options)
    return options


def main():
    options = parse_arguments()
    out = append_to(options.output)
    print(f"{machine()}; {RANKS} ranks, {options.bytes} bytes", flush=True)
    for dataplane in options.dataplanes.split(","):
        with Rack(options.netsum, f"f{os.getpid()}", RANKS + 1, "none", 1500, "user") as rack:
            for worker in range(rack.workers):
                # So that a veth end takes what XDP redirects to it; for the daemon, too: the same for both.
                finish([start(rack.inside(worker, "ethtool", "-K", "eth0", "gro", "on"))], 10)
            for rate in options.floods.split(","):
                measure(rack, options, dataplane, int(rate), out)


if __name__ == "__main__":
    try:
        main()
    except Failed as problem:
        sys.exit(f"flood_bench: {problem}")
