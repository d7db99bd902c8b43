"""Jobs side by side at one aggregator, under floods, and with parts that fail, in virtual racks."""

import contextlib
import functools
import json
import os
import pathlib
import select
import signal
import subprocess
import time

from netsum_bench.machine import ROOT
from netsum_bench.processes import Failed, Watched, finish, running, start
from netsum_bench.rack import Rack

# --- Several jobs

WORKERS_OF_A_JOB = 2
PORT = 5252  # of our aggregator, beside the rack's own
JOBS_DEADLINE_S = 300


def run_jobs(rack, turn, address, jobs, *flags):
    """All at once; per job its report, and the seconds from the start of all to its end, in the order in which they end."""
    begun = time.monotonic()

    def command(job, rank):
        of_job = ["--rank", rank, "--world-size", WORKERS_OF_A_JOB, "--job", f"job{job}", "--aggregator", address]
        of_job += ["--root", f"10.77.0.{WORKERS_OF_A_JOB * job + 1}:5353", "--connect-timeout", "120s"]
        sums = ["--bytes", turn["bytes"], "--iterations", turn["iterations"], "--warmup", 2]
        where = WORKERS_OF_A_JOB * job + rank
        return rack.inside(where, rack.netsum, "bench", "allreduce", *of_job, *sums, "--json", *flags)

    ranks = {job: [start(command(job, rank)) for rank in range(WORKERS_OF_A_JOB)] for job in jobs}
    ends, waiting = {}, dict(ranks)
    while waiting and time.monotonic() < begun + JOBS_DEADLINE_S:
        for job, processes in list(waiting.items()):
            if all(process.poll() is not None for process in processes):
                del waiting[job]
                ends[job] = time.monotonic() - begun
        time.sleep(0.01)
    outputs = {job: [json.loads(out) for out in finish(processes, 1)] for job, processes in ranks.items()}
    for job, of_ranks in outputs.items():
        if any(report["results_wrong"] for report in of_ranks):
            raise Failed(f"job {job} has wrong results")
    return [
        {
            "job": job,
            "seconds": seconds,
            "median_s": outputs[job][0]["time_us"]["median"] / 1e6,
            "summed_by": outputs[job][0]["summed_by"],
        }
        for job, seconds in ends.items()
    ]


@contextlib.contextmanager
def jobs(run, place, turns):
    """Every job has two workers of its own, and the switch has one aggregator of one core for all. Measured are one job
    alone and all of them together, and then all of them where there is room for half, with the policies wait and hosts.
    Every result is verified."""
    number = place["jobs"]
    with Rack(run.netsum, f"j{os.getpid()}", WORKERS_OF_A_JOB * number, place["rate"], 1500, "user") as rack:
        ours = f"{rack.switch_address()}:{PORT}"

        def measure(turn):
            what = turn["what"]
            queued = what not in ("alone", "together")
            room = ["--max-jobs", max(1, number // 2)] if queued else []
            with rack.aggregator("sw", ours, *room) as address:
                wanted = [0] if what == "alone" else range(number)
                found = run_jobs(rack, turn, address, wanted, *(["--when-full", what] if queued else []))
            return {"jobs": found, "slowest_s": max(job["seconds"] for job in found)}

        yield measure


# --- Floods

RANKS, FLOODER = 2, 2
ARMS = ["no flood", "to nobody", "forged packets", "a tenant, no quota", "a tenant, quota"]


def flood(rack, turn, aggregator, nobody):
    """For the time of a `with`."""
    arm = turn["arm"]
    if arm == "no flood":
        return contextlib.nullcontext()
    kind = {"to nobody": "nobody", "forged packets": "forged"}.get(arm, "tenant")
    program = ROOT / "build/release/tests/attack/flood"
    target = nobody if kind == "nobody" else aggregator
    # It ends by itself should we not come to that.
    command = rack.inside(FLOODER, program, kind, target, turn["flood"], turn["deadline"] + 30)
    return running(command, "flooding", "the flood")


def sums_per_second(rack, turn, aggregator):
    """By the median of the slowest rank; 0 where the job did not end in time."""
    deadline_s = turn["deadline"]
    flags = ["--aggregator", aggregator, "--bytes", turn["bytes"], "--iterations", turn["iterations"], "--warmup", 5]
    flags += ["--timeout", f"{deadline_s}s", "--json"]
    command = (rack.netsum, "bench", "allreduce", "--world-size", RANKS)
    ranks = [start(rack.inside(rank, *command, "--rank", rank, *flags)) for rank in range(RANKS)]
    try:
        found = [json.loads(out) for out in finish(ranks, deadline_s)]
    except Failed:
        if all(rank.returncode in (0, 3, -signal.SIGKILL) for rank in ranks):  # by a deadline, its own or ours
            return 0.0
        raise
    if any(report["results_wrong"] for report in found):
        raise Failed("a sum was wrong")
    return 1e6 / found[0]["time_us"]["median"]


@contextlib.contextmanager
def floods(run, place, turns):
    """Two workers sum without end and a third floods their aggregator, which has one core: with packets without a key,
    or as a tenant with a job of its own whose every packet is answered in full; or a port that nobody reads, which
    shows what the flood costs the machine. Every sum is verified; 0 where none ends within the deadline."""
    dataplane = place["dataplane"]
    with Rack(run.netsum, f"f{os.getpid()}", RANKS + 1, "none", 1500, "user") as rack:
        for worker in range(rack.workers):
            # So that a veth end takes what XDP redirects to it; for the daemon, too: the same for both.
            finish([start(rack.inside(worker, "ethtool", "-K", "eth0", "gro", "on"))], 10)
        switch = rack.switch_address()
        interfaces = ",".join(f"w{w}" for w in range(rack.workers))
        flags = ["--dataplane", "xdp", "--interfaces", interfaces] if dataplane == "xdp" else []

        def measure(turn):
            quota = ["--job-packet-rate", turn["quota"]] if turn["arm"] == "a tenant, quota" else []
            with (
                rack.aggregator("sw", f"{switch}:5252", *flags, *quota) as aggregator,
                rack.aggregator("sw", f"{switch}:5353", "--data-port", 5454),
                flood(rack, turn, aggregator, f"{switch}:5454"),
            ):
                return {"sums_per_s": sums_per_second(rack, turn, aggregator)}

        yield measure


# --- Failures

START_S, END_S = 60, 60  # for all ranks to sum, and for the last word after the failure
VICTIM = 1
SPARE = "10.77.0.1:5252"  # of the aggregator to go on at, on worker 0


class Rank:
    """One `netsum bench allreduce`, and the moments at which it reported what."""

    def __init__(self, rack, rank, flags):
        command = [rack.netsum, "bench", "allreduce", "--rank", rank, "--world-size", rack.workers]
        command += ["--iterations", 1_000_000, "--report-events", "--mtu", rack.mtu, *flags]
        self.events = []
        self.watched = Watched(rack.inside(rank, *command), self.on_line, stderr=subprocess.DEVNULL)
        self.process = self.watched.process

    def on_line(self, _stream, line):
        self.events.append((time.monotonic(), json.loads(line)))

    def wait(self, happened, seconds):
        """The first thing that `happened` finds in the list of events; Failed after so long."""
        self.watched.wait(lambda: happened(self.events) is not None, seconds)
        found = happened(self.events)
        if found is None:
            raise Failed(f"not within {seconds} s; the last event: {self.events[-1:]}")
        return found

    def sums(self):
        return [(when, e) for when, e in self.events if e["event"] == "iteration"]

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGCONT)
        self.watched.close()


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


def time_to_error(rack, flags, break_it, code="peer_lost", about=VICTIM):
    """Seconds from `break_it(ranks)` to the last survivor's error, which must have this code, and be about this rank."""
    with ranks_at_work(rack, flags) as ranks:
        begun = last = time.monotonic()
        break_it(ranks)
        for survivor in (rank for number, rank in enumerate(ranks) if number != about):
            when, error = survivor.wait(first_error, END_S)
            if (error["code"], error["rank"]) != (code, about):
                raise Failed(f"expected {code} about rank {about}: {error}")
            last = max(last, when)
    return last - begun


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


def signalled(number, rack, flags):
    return time_to_error(rack, flags, lambda ranks: os.kill(ranks[VICTIM].process.pid, number))


def rank_cut_off(rack, flags):
    try:
        return time_to_error(rack, flags, lambda _: rack.set_links("--link", "down", where=VICTIM))
    finally:
        rack.set_links("--link", "up", where=VICTIM)


def aggregator_killed(rack, flags):
    try:
        return time_to_error(rack, flags, lambda _: kill_aggregator(rack), "aggregator_lost", -1)
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
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    successors = []

    def break_it():
        kill_aggregator(rack)
        successors.append(subprocess.Popen(rack.inside("sw", rack.netsum, *command), **quiet))

    try:
        return standstill(rack, flags, break_it)
    finally:
        for process in successors:
            process.kill()
            process.wait()
        rack.up()


KILL, STOP = (functools.partial(signalled, number) for number in (signal.SIGKILL, signal.SIGSTOP))
SCENARIOS = {
    "rank-killed": (KILL, [], "a rank is killed"),
    "rank-stopped": (STOP, [], "a rank is stopped (SIGSTOP), silence limit 5 s"),
    "rank-stopped-800ms": (STOP, ["--liveness-timeout", "800ms"], "the same, `--liveness-timeout 800ms`"),
    "rank-stopped-80ms": (STOP, ["--liveness-timeout", "80ms"], "the same, `--liveness-timeout 80ms`"),
    "rank-cut-off-800ms": (
        rank_cut_off,
        ["--liveness-timeout", "800ms"],
        "a rank's link goes down, `--liveness-timeout 800ms`",
    ),
    "aggregator-killed": (aggregator_killed, [], "the aggregator is killed"),
    "failover-to-another": (failover_to_another, [], "failover to another aggregator"),
    "failover-restarted": (failover_restarted, [], "failover to the same one, restarted at once"),
}


@contextlib.contextmanager
def failures(run, place, turns):
    """Every worker sums without end (`netsum bench allreduce`, every result verified); something is killed, stopped or
    cut off; what each rank then says is timed from that moment. Figures are of the last rank to say it."""
    with Rack(run.netsum, f"x{os.getpid()}", place["workers"], place["rate"], 1500, place["dataplane"]) as rack:

        def measure(turn):
            scenario, flags, _ = SCENARIOS[turn["scenario"]]
            return {"seconds": scenario(rack, ["--bytes", turn["bytes"], *flags])}

        yield measure
