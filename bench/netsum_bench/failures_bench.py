"""How soon a failure is known, and how long an aggregator's loss is felt, on real processes in a virtual rack.

Every worker sums without end (`netsum bench allreduce`, every result verified); something is killed, stopped or cut off;
what each rank then says is timed from that moment. Figures are of the last rank to say it. Needs root.

  make bench-failures                                               everything (about ten minutes)
  make bench-failures BENCH_FLAGS="--workers 4 --only rank-killed --rounds 20"
"""

import contextlib
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import threading
import time

from netsum_bench.figures import median
from netsum_bench.machine import machine
from netsum_bench.options import make_parser, need_netsum, need_root
from netsum_bench.processes import Failed
from netsum_bench.rack import Rack
from netsum_bench.records import append_to

START_S, END_S = 60, 60  # for all ranks to sum, and for the last word after the failure
VICTIM = 1
SPARE = "10.77.0.1:5252"  # of the aggregator to go on at, on worker 0


class Rank:
    """One `netsum bench allreduce`, and the moments at which it reported what."""

    def __init__(self, rack, rank, flags):
        command = [
            rack.netsum,
            "bench",
            "allreduce",
            "--rank",
            rank,
            "--world-size",
            rack.workers,
            "--iterations",
            1_000_000,
            "--report-events",
            "--mtu",
            rack.mtu,
            *flags,
        ]
        self.process = subprocess.Popen(
            rack.inside(rank, *command), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.changed = threading.Condition()
        self.events, self.ended = [], False
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            with self.changed:
                self.events.append((time.monotonic(), json.loads(line)))
                self.changed.notify_all()
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    def wait(self, happened, seconds):
        """The first thing that `happened` finds in the list of events; Failed after so long."""
        with self.changed:
            self.changed.wait_for(lambda: happened(self.events) is not None or self.ended, seconds)
            found = happened(self.events)
        if found is None:
            raise Failed(f"not within {seconds} s; the last event: {self.events[-1:]}")
        return found

    def sums(self):
        return [(when, e) for when, e in self.events if e["event"] == "iteration"]

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGCONT)
        self.process.kill()
        self.process.wait()
        self.reader.join()


@contextlib.contextmanager
def ranks_at_work(rack, flags):
    ranks = []
    try:
        for rank in range(rack.workers):
            ranks.append(Rank(rack, rank, flags))
        for rank in ranks:
            rank.wait(lambda events: True if sum(e["event"] == "iteration" for _, e in events) >= 5 else None, START_S)
        yield ranks
    finally:
        for rank in ranks:
            rank.close()


def first_error(events):
    return next(((when, e) for when, e in events if e["event"] == "error"), None)


def time_to_error(rack, flags, break_it, code, about, survivors):
    """Seconds from `break_it(ranks)` to the last survivor's error, which must have this code, and be about this rank."""
    with ranks_at_work(rack, flags) as ranks:
        start = time.monotonic()
        break_it(ranks)
        last = start
        for rank in (ranks[r] for r in survivors(rack)):
            when, error = rank.wait(first_error, END_S)
            if (error["code"], error["rank"]) != (code, about):
                raise Failed(f"expected {code} about rank {about}: {error}")
            last = max(last, when)
    return last - start


def all_but_victim(rack):
    return [rank for rank in range(rack.workers) if rank != VICTIM]


def everybody(rack):
    return range(rack.workers)


def kill(ranks):
    os.kill(ranks[VICTIM].process.pid, signal.SIGKILL)


def stop(ranks):
    os.kill(ranks[VICTIM].process.pid, signal.SIGSTOP)


def kill_aggregator(rack):
    """And waits for its end."""
    pid = rack.aggregator_pid()
    handle = os.pidfd_open(pid)
    try:
        os.kill(pid, signal.SIGKILL)
        if not select.select([handle], [], [], END_S)[0]:
            raise Failed("the aggregator did not die")
    finally:
        os.close(handle)


def standstill(rack, flags, break_it):
    """Seconds from `break_it()` until the last rank has verified its next sum."""
    with ranks_at_work(rack, [*flags, "--on-failure", "failover"]) as ranks:
        break_it()
        broken = time.monotonic()
        seen = [len(rank.sums()) for rank in ranks]
        # One sum may have been under way, or be reported late; the third has gone all the way.
        last = max(
            rank.wait(
                lambda events, n=n: next(iter([w for w, e in events if e["event"] == "iteration"][n + 2 :]), None),
                END_S,
            )
            for rank, n in zip(ranks, seen, strict=True)
        )
        if any(e["wrong"] for rank in ranks for _, e in rank.sums()):
            raise Failed("a wrong result")
    return last - broken


# What fails, and the figure taken; each a function of the rack and the flags that all ranks get.
def rank_killed(rack, flags):
    return time_to_error(rack, flags, kill, "peer_lost", VICTIM, all_but_victim)


def rank_stopped(rack, flags):
    return time_to_error(rack, flags, stop, "peer_lost", VICTIM, all_but_victim)


def rank_cut_off(rack, flags):
    try:
        return time_to_error(
            rack, flags, lambda _: rack.set_links("--link", "down", where=VICTIM), "peer_lost", VICTIM, all_but_victim
        )
    finally:
        rack.set_links("--link", "up", where=VICTIM)


def aggregator_killed(rack, flags):
    try:
        return time_to_error(rack, flags, lambda _: kill_aggregator(rack), "aggregator_lost", -1, everybody)
    finally:
        rack.up()


def failover_to_another(rack, flags):
    try:
        with rack.aggregator(0, SPARE) as address:
            return standstill(rack, [*flags, "--fallback", address], lambda: kill_aggregator(rack))
    finally:
        rack.up()


def failover_restarted(rack, flags):
    """Another process takes the place of the dead one at once, as a service manager would see to."""
    command = pathlib.Path(f"/proc/{rack.aggregator_pid()}/cmdline").read_bytes().decode().split("\0")[1:-1]
    successors = []

    def break_it():
        kill_aggregator(rack)
        successors.append(
            subprocess.Popen(
                rack.inside("sw", rack.netsum, *command), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        )

    try:
        return standstill(rack, flags, break_it)
    finally:
        for process in successors:
            process.kill()
            process.wait()
        rack.up()


SCENARIOS = {
    "rank-killed": (rank_killed, []),
    "rank-stopped": (rank_stopped, []),
    "rank-stopped-800ms": (rank_stopped, ["--liveness-timeout", "800ms"]),
    "rank-stopped-80ms": (rank_stopped, ["--liveness-timeout", "80ms"]),
    "rank-cut-off-800ms": (rank_cut_off, ["--liveness-timeout", "800ms"]),
    "aggregator-killed": (aggregator_killed, []),
    "failover-to-another": (failover_to_another, []),
    "failover-restarted": (failover_restarted, []),
}


def parse_arguments():
    parser = make_parser(__doc__)
    parser.add_argument("--workers", type=int, default=8, help="number of ranks (%(default)s)")
    parser.add_argument("--rate", default="1gbit", help="of every link (%(default)s)")
    parser.add_argument("--dataplanes", default="user,xdp", help="of the switch (%(default)s)")
    parser.add_argument("--bytes", default="256Ki", help="of the tensors that are summed (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="times that each thing happens (%(default)s)")
    parser.add_argument("--only", default=",".join(SCENARIOS), help="of: %(default)s")
    options = parser.parse_args()
    options.only, options.dataplanes = options.only.split(","), options.dataplanes.split(",")
    if set(options.dataplanes) - {"user", "xdp"}:
        parser.error("--dataplanes: there are user and xdp")
    unknown = [name for name in options.only if name not in SCENARIOS]
    if unknown:
        parser.error(f"--only: there is no {unknown[0]}; there are {', '.join(SCENARIOS)}")
    if options.workers < 2:
        parser.error("--workers: at least 2, since one is lost")
    need_root(parser)
    need_netsum(parser, options)
    return options


def measure_all(options, dataplane, out):
    """Returns whether all went well."""
    well = True
    place = {"workers": options.workers, "rate": options.rate, "dataplane": dataplane, "bytes": options.bytes}
    with Rack(options.netsum, f"f{os.getpid()}", options.workers, options.rate, 1500, dataplane) as rack:
        for name in options.only:
            measure, flags = SCENARIOS[name]
            times = []
            for number in range(options.rounds):
                record = {**place, "scenario": name, "round": number}
                try:
                    record["seconds"] = measure(rack, ["--bytes", options.bytes, *flags])
                    times.append(record["seconds"] * 1e3)
                except Failed as problem:
                    well = False
                    record["failed"] = str(problem)
                    print(f"{name}: {problem}", file=sys.stderr, flush=True)
                out(record)
            if times:
                print(f"{name:22}  {median(times):9.0f}   {min(times):.0f} - {max(times):.0f}", flush=True)
    return well


def main():
    options = parse_arguments()
    out = append_to(options.output)
    well = True
    for dataplane in options.dataplanes:
        print(f"{machine()}; {options.workers} workers, links of {options.rate}, {dataplane}", flush=True)
        print(f"{'':22}  median ms   low - high", flush=True)
        well &= measure_all(options, dataplane, out)
    return 0 if well else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as problem:
        sys.exit(f"failures_bench: {problem}")
