"""tools/measure/start_gate.h in Python: the ranks of a benchmark on one machine start every iteration together."""

import contextlib
import mmap
import os
import tempfile
import time

LEAD_NS, POLL_S = 8_000_000, 0.001
BUSY_BYTES = 256 << 10  # processor time is read only around tensors of this size
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def gate_file(ranks):
    """The path of a fresh gate, for the time of a `with`."""
    with tempfile.NamedTemporaryFile(prefix="netsum-gate-") as file:
        file.truncate(8 * (2 + ranks))
        yield file.name


class StartGate:
    def __init__(self, path, rank, ranks):
        self.rank, self.ranks = rank, ranks
        with open(path, "r+b") as file:
            self.words = memoryview(mmap.mmap(file.fileno(), 8 * (2 + ranks))).cast("q")

    def wait(self, iteration, timeout_s):
        """Until all ranks are ready for `iteration` (from 1), then until its start."""
        deadline = time.monotonic() + timeout_s
        self.words[2 + self.rank] = iteration
        while self.words[0] < iteration:
            if self.rank == 0 and all(word >= iteration for word in self.words[2:]):
                self.words[1] = time.monotonic_ns() + LEAD_NS
                self.words[0] = iteration
                break
            if time.monotonic() > deadline:
                raise TimeoutError(f"not all ranks came to iteration {iteration} in time")
            time.sleep(POLL_S)
        time.sleep(max(0, self.words[1] - time.monotonic_ns()) / 1e9)


def machine_busy_ticks():
    """Processor time that the whole machine has spent so far: user, nice, system, irq, softirq."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _idle, _iowait, irq, softirq = map(int, file.readline().split()[1:8])
    return user + nice + system + irq + softirq


def idle_share(seconds=0.5):
    """Processors busy while nothing is measured: seconds of processor time per second."""
    before = machine_busy_ticks()
    time.sleep(seconds)
    return (machine_busy_ticks() - before) / TICKS_PER_S / seconds


def combine(ranks):
    """The one clock rule for all systems. `ranks`: what each rank reports of a measurement, {"wrong", "sums" (a checksum of
    each result), "stamps", "cpu_s" (of its process in all timed iterations)}, a stamp being [start, end, busy before, busy
    after] of one timed iteration.

    An iteration takes from the first rank's start, which the gate makes the same for all, to the last rank's end; its
    processor time is the whole machine's. `ranks_cpu_s`: of the ranks' processes together, if all report it.
    """
    iterations = list(zip(*(rank["stamps"] for rank in ranks), strict=True))
    windows = [(max(s[1] for s in stamps) - min(s[0] for s in stamps)) / 1e9 for stamps in iterations]
    busy = sum(max(s[3] for s in stamps) - min(s[2] for s in stamps) for stamps in iterations)
    differing = sum(len(set(sums)) > 1 for sums in zip(*(rank["sums"] for rank in ranks), strict=True))
    own = [rank["cpu_s"] for rank in ranks if "cpu_s" in rank]
    return {
        **({"ranks_cpu_s": sum(own)} if len(own) == len(ranks) else {}),
        "times_ms": [round(w * 1e3, 4) for w in windows],
        "busy_s": busy / TICKS_PER_S,
        "wrong": sum(rank["wrong"] for rank in ranks) + differing,
    }
