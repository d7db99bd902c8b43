"""Two jobs that share a link: alone, together, and in turns, with the offsets of `netsum plan --jobs`."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time

from netsum_bench.processes import Failed, Watched, finish, start
from netsum_bench.rack import Rack
from netsum_bench.report import NOTHING, markdown, median, number

JOBS, RANKS = 2, 2  # ranks of each
ARMS = ["alone", "together", "offsets"]
PORT = 5252  # of the aggregator that both use
BUSY = 0.4  # of a step that is alone
FIRST = 3  # steps that do not count: the first one waits for its phase
CALIBRATION = 10  # steps
AHEAD_S = 6  # until the common start
DEADLINE_S = 120


def plan(netsum, period_s, busy_s):
    """NETSUM_PHASE of each job."""
    shared = f"period: {round(1e3 * period_s)}ms, busy: {round(1e3 * busy_s)}ms, links: [port]"
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "jobs.yaml"
        file.write_text("jobs:\n" + "".join(f"  - {{name: job{job}, {shared}}}\n" for job in range(JOBS)))
        report = json.loads(finish([start([str(netsum), "plan", "--jobs", str(file), "--json"])], 60)[0])
    if not report["offsets_pay"]:
        raise Failed(f"the offsets do not pay: {report['links']}")
    phases = {one["name"]: one["phase"] for one in report["jobs"]}
    return [phases[f"job{job}"] for job in range(JOBS)]


def common_start():
    """A NETSUM_PHASE for which the first operations of all jobs wait, and no later ones: pauses are shorter than an eighth."""
    return f"20s,{round(1e3 * (time.time() + AHEAD_S)) % 20_000}ms"


@contextlib.contextmanager
def capturing(rack, rate, found):
    """For the time of a `with`: puts the streams of all links into `found`; Failed if frames were missed."""
    command = [rack.netsum, "bursts", "--rack", rack.name, "--for", f"{DEADLINE_S}s", "--rate", rate, "--json"]
    command += ["--bin-us", 10_000]  # the search for a period in more of them takes seconds
    capture = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        if not capture.stderr.readline().startswith("capturing"):
            raise Failed("the links of the rack cannot be captured")
        yield
        capture.send_signal(signal.SIGINT)
        report = json.loads(finish([capture], 60)[0])
        if missed := [warning for warning in report["warnings"] if "left out" in warning]:
            raise Failed(f"the capture is not whole: {missed[0]}")
        found.extend(report["streams"])
    finally:
        capture.kill()
        capture.wait()


def run_jobs(rack, aggregator, phases, size, steps, pause_s, counted_in=None):
    """One job for each of `phases`, at once; by job the seconds of its steps, and of the sums in them. All jobs make the steps that
    count in the context `counted_in`."""
    jobs, counted = [], range(FIRST, FIRST + steps)

    def command(job, rank):
        flags = ["--rank", rank, "--world-size", RANKS, "--job", f"job{job}", "--aggregator", aggregator]
        flags += ["--shares", "off", "--bytes", size, "--warmup", 0, "--iterations", FIRST + steps, "--report-events"]
        flags += ["--pause", f"{round(1e3 * pause_s)}ms", *(["--phase", phases[job]] if phases[job] else [])]
        return rack.inside(RANKS * job + rank, rack.netsum, "bench", "allreduce", *flags)

    with contextlib.ExitStack() as stack:
        for job in range(len(phases)):
            for rank in range(RANKS):
                events = []
                watched = Watched(
                    command(job, rank),
                    lambda _, line, events=events: events.append((time.monotonic(), json.loads(line))),
                    stderr=subprocess.DEVNULL,
                )
                stack.callback(watched.close)
                jobs.append((watched, events))
        found = []
        ready = lambda of: any(event["event"] == "iteration" and event["n"] == FIRST - 1 for _, event in of)
        for watched, events in jobs[::RANKS] if counted_in else []:
            watched.wait(lambda events=events: ready(events), DEADLINE_S)
        stack.enter_context(counted_in or contextlib.nullcontext())
        for watched, events in jobs[::RANKS]:
            watched.wait(lambda: False, DEADLINE_S)  # for its end
            ends = {event["n"]: (when, event) for when, event in events if event["event"] == "iteration"}
            if len(ends) != FIRST + steps or any(event["wrong"] for _, event in ends.values()):
                raise Failed(f"a job did not end well: {events[-1:]}")
            found.append(
                {
                    "step_s": [ends[n][0] - ends[n - 1][0] for n in counted],
                    "sum_s": [ends[n][1]["time_us"] / 1e6 for n in counted],
                }
            )
    return found


@contextlib.contextmanager
def turns(run, place, turns):
    """Two jobs of two workers sum at a spare host, whose link both need; each pauses between sums for so long that a sum takes 40 % of a
    step when the job is alone. They begin at the same time: one after the other alone, both, and both with offsets, after which the spare host gives turns. All
    frames of the steps that count, on its link, are captured. The backlog of one job varies with its windows by a factor of up to
    three: that of jobs alone is the larger one of both. Every result is verified."""
    rate, workers = place["rate"], JOBS * RANKS
    with contextlib.ExitStack() as stack:
        rack = stack.enter_context(Rack(run.netsum, f"t{os.getpid()}", workers, rate, 1500, "user", loss=0, spares=1))
        aggregator = stack.enter_context(rack.aggregator(workers, f"10.77.0.{workers + 1}:{PORT}"))
        alone = {}

        def calibrate(size):
            """The pause, and the seconds of a step and a sum with it."""
            if size not in alone:
                pause_s = 0.1
                for _ in range(2):
                    found = run_jobs(rack, aggregator, [""], size, CALIBRATION, pause_s)[0]
                    step_s, sum_s = median(found["step_s"]), median(found["sum_s"])
                    last_s, pause_s = pause_s, max(0.01, sum_s / BUSY - (step_s - pause_s))
                alone[size] = last_s, step_s, sum_s
            return alone[size]

        def measure(turn):
            pause_s, step_s, sum_s = calibrate(turn["bytes"])
            phases = plan(run.netsum, step_s, sum_s)
            found, backlogs = [], []
            for _ in range(JOBS if turn["arm"] == "alone" else 1):
                if turn["arm"] != "offsets":
                    phases = [common_start()] * (1 if turn["arm"] == "alone" else JOBS)
                streams = []
                counted_in = capturing(rack, rate, streams)
                found += run_jobs(rack, aggregator, phases, turn["bytes"], turn["steps"], pause_s, counted_in)
                link = next(one for one in streams if (one["port"], one["direction"]) == (f"w{workers}", "out"))
                backlogs.append(max(link["backlog"], key=lambda one: one["bytes_per_s"])["backlog_bytes"])
            return {
                "step_ms": [1e3 * step for job in found for step in job["step_s"]],
                "sum_ms": [1e3 * one for job in found for one in job["sum_s"]],
                "busy": sum_s / step_s,
                "phases": phases,
                "backlog_bytes": max(backlogs),
            }

        yield measure


def table(records):
    """A row for each arm: the steps and sums, by how much steps are slower than alone, and the backlog that the link needs."""
    arms = {arm: [one for one in records if one.get("arm") == arm and "step_ms" in one] for arm in ARMS}
    if not all(arms.values()):
        return NOTHING
    mean = {arm: [sum(one["step_ms"]) / len(one["step_ms"]) for one in of] for arm, of in arms.items()}
    rows = [
        [
            arm,
            number(median(mean[arm])),
            number(median([ms for one in of for ms in one["sum_ms"]])),
            "" if arm == "alone" else f"{100 * (median(mean[arm]) / median(mean['alone']) - 1):+.1f} %",
            number(median([one["backlog_bytes"] for one in of]) / 1e3),
        ]
        for arm, of in arms.items()
    ]
    headings = ["two jobs", "ms a step, mean", "ms a sum, median", "step over alone", "backlog of the link, KB"]
    return markdown(headings, rows, left=1)
