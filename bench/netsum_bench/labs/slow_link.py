"""All-reduces while the link of one worker becomes slow, and fast again."""

import contextlib
import functools
import os
import pathlib
import struct
import threading

from netsum_bench.labs.racks import link_seconds
from netsum_bench.processes import Failed
from netsum_bench.rack import Rack
from netsum_bench.report import rate_bits
from netsum_bench.systems import SYSTEMS

SLOW = 3  # the worker
OURS = "netsum-shards"
WARM_UP, BEFORE, SLOWED, REPAIRED = 1, 6, 24, 20  # operations
LAST = 8  # what a phase ends with, when the weights have settled
NEAR, IN_A_ROW = 1.1, 3
PEERS_TAKE = 3  # operations


def bound(workers, fraction):
    """What an all-reduce by the ranks takes at least, as a multiple of the tensor's time on a whole link, if the link of one has
    this fraction of the others' rate."""
    return max(1 / fraction, 2 * (workers - 1) / (workers - 1 + fraction))


def slow_rate(turn):
    return f"{rate_bits(turn['rate']) * turn['fraction'] / 1e3:.0f}kbit"


@contextlib.contextmanager
def changing(rack, turn, gate):
    """For the time of a `with`, in which the ranks run: makes the link slow and fast again at the right operations."""
    stop, problems = threading.Event(), []

    def wait_for(operation):
        """Until the ranks have begun it (start_gate.py); whether they have."""
        while struct.unpack("q", pathlib.Path(gate).read_bytes()[:8])[0] <= operation:
            if stop.wait(0.02):
                return False
        return True

    def change():
        try:
            if wait_for(WARM_UP + BEFORE):
                rack.set_links("--rate", slow_rate(turn), where=SLOW)
            if wait_for(WARM_UP + BEFORE + SLOWED):
                rack.set_links("--rate", turn["rate"], where=SLOW)
        except Failed as problem:
            problems.append(problem)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if problems:
        raise problems[0]


def phases(times_ms, least_ms):
    """Of all operations of a run. `settled_after`: how many it took until IN_A_ROW were near the bound; none if they never were."""
    slowed = times_ms[BEFORE + 1 :][: SLOWED - 1]  # without that during which the link changes
    near = [time <= NEAR * least_ms for time in slowed]
    settled = [n for n in range(len(near) - IN_A_ROW + 1) if all(near[n : n + IN_A_ROW])]
    return {
        "before_ms": times_ms[:BEFORE],
        "slowed_ms": slowed,
        "slow_ms": slowed[-LAST:],
        "settled_after": settled[0] if settled else None,
        "after_ms": times_ms[-LAST:],
    }


def netsum(rack, system, turn, least_ms):
    """A run during which the link changes."""
    during = functools.partial(changing, rack, turn)
    result = system.run(turn["bytes"], BEFORE + SLOWED + REPAIRED, WARM_UP, during=during)
    return {**phases(result["times_ms"], least_ms), "wrong": result["wrong"]}


def peer(rack, system, turn, _least_ms):
    """Has nothing to learn: the link is slow before."""
    rack.set_links("--rate", slow_rate(turn), where=SLOW)
    if turn["bytes"] not in system.chosen:
        system.calibrate([(turn["bytes"], 1, 0)])
    result = system.measure(turn["bytes"], PEERS_TAKE, 1)
    return {"slow_ms": result["times_ms"], "wrong": result["wrong"]}


@contextlib.contextmanager
def slow_link(run, place, turns):
    """netsum's ranks sum by embedded shards, and learn the rates of links from the sums. While they run, the rate of one worker's
    link falls to a fraction, and rises again. The peers are measured while it is slow. Every result is verified."""
    opened = {}
    with contextlib.ExitStack() as stack:
        rack = stack.enter_context(Rack(run.netsum, f"s{os.getpid()}", place["workers"], place["rate"], 1500, "user"))
        stack.callback(lambda: [system.close() for system in opened.values()])

        def measure(turn):
            name = turn["system"]
            if name not in opened:
                opened[name] = SYSTEMS[name].make(rack)
            least_ms = bound(place["workers"], turn["fraction"]) * link_seconds(turn["bytes"], place["rate"]) * 1e3
            try:
                found = (netsum if name == OURS else peer)(rack, opened[name], turn, least_ms)
            finally:
                rack.set_links("--rate", place["rate"], where=SLOW)
            return {**found, "times_ms": found["slow_ms"], "least_ms": least_ms}

        yield measure
