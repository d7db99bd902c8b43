"""What a link must queue, and what a step takes, with and without pacing and barriers, of one to three jobs; and the bursts of
a training's steps."""

import contextlib
import json
import os

from netsum_bench.labs.turns import capturing
from netsum_bench.processes import PROBLEMS, Failed
from netsum_bench.rack import Rack
from netsum_bench.report import NOTHING, markdown, median, narrow, number, rate_bits
from netsum_bench.systems import TorchRanks

HOSTS = 4
# By job, the hosts of its ranks: in Gloo's ring, host 2 receives from another host in each job.
ORDERS = [[0, 1, 2, 3], [0, 3, 2, 1], [0, 2, 1, 3]]
SYSTEMS = {"ring": "gloo", "in-network": "netsum", "server": "netsum"}  # by name, the backend
BARRIERS = ["barrier", "none"]
PACES = [0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]  # of R; 0: no pacing
PAUSE_S = 0.04
FIRST = 2  # steps that do not count
PORT = 5252  # of the parameter server
MASTER_PORT = 29410  # of the first job's ranks


def share_of(system):
    """How much of a link each rank may use on average if the link that is needed most is full: R, in parts of its rate."""
    return 1 / HOSTS if system == "server" else 1


def ask_all(jobs, asked):
    """Tells all ranks of these jobs at once; what they answer, by job and rank."""
    try:
        for ranks, line in zip(jobs, asked, strict=True):
            ranks.tell(json.dumps(line))
        return [ranks.answers() for ranks in jobs]
    except PROBLEMS:  # of which this turn fails, but not those that follow
        for ranks in jobs:
            ranks.close(0)
            ranks.begin()
        raise


@contextlib.contextmanager
def backlog(run, place, turns):
    """Four hosts have a rank of each job. A step computes for 20 to 60 ms, at random, and sums. The ring is Gloo's; in-network, the
    aggregator is in the switch; the parameter server is an aggregator on a further host, which sums all and sends the sum to each
    rank. Of netsum's ranks NETSUM_PACE is a part of R, of Gloo's connections SO_MAX_PACING_RATE: R is the rate of a link, with the
    server a fourth of it, as its link carries what all ranks send. With a barrier, no rank of a job sends before all have computed.
    All frames are captured before the shaping of the receivers' links. Every sum is verified."""
    rate = place["rate"]
    with contextlib.ExitStack() as stack:
        rack = stack.enter_context(Rack(run.netsum, f"q{os.getpid()}", HOSTS, rate, 1500, "user", loss=0, spares=1))
        server = stack.enter_context(rack.aggregator(HOSTS, f"10.77.0.{HOSTS + 1}:{PORT}"))
        aggregators = {"ring": "", "in-network": f"{rack.switch_address()}:5151", "server": server}
        of_jobs = []
        for job in range(max(turn["jobs"] for turn in turns)):
            ranks = TorchRanks(rack, "backlog_worker", port=MASTER_PORT + job, hosts=ORDERS[job])
            of_jobs.append(ranks)
            stack.callback(ranks.close)

        def measure(turn):
            system, jobs = turn["system"], of_jobs[: turn["jobs"]]
            group = {
                "backend": SYSTEMS[system],
                "aggregator": aggregators[system],
                "pace_bps": round(rate_bits(rate) * share_of(system) * turn["pace"]),
            }
            steps = {"bytes": turn["bytes"], "steps": FIRST + turn["steps"], "pause_s": PAUSE_S}
            steps["barrier"] = turn["barrier"] == "barrier"
            streams = []
            ask_all(jobs, [group] * len(jobs))
            with capturing(rack, rate, streams):
                found = ask_all(jobs, [{**steps, "seed": 1 + job} for job in range(len(jobs))])
            wrong = sum(rank["wrong"] for ranks in found for rank in ranks)
            if wrong:
                raise Failed(f"{wrong} elements are wrong")
            ends = [
                [max(of_step) for of_step in zip(*(rank["ends_s"] for rank in ranks), strict=True)] for ranks in found
            ]
            needs = {
                one["port"]: max(one["backlog"], key=lambda each: each["bytes_per_s"])["backlog_bytes"]
                for one in streams
                if one["direction"] == "out"
            }
            return {
                "step_ms": [1e3 * (job[-1] - job[FIRST - 1]) / turn["steps"] for job in ends],
                "backlog_bytes": needs,
            }

        yield measure


def cell(records):
    """Milliseconds of a step, and KB that the link with the largest backlog needs."""
    if not records:
        return ""
    step = median([ms for record in records for ms in record["step_ms"]])
    needed = median([max(record["backlog_bytes"].values()) for record in records])
    return f"{step:.0f}/{number(needed / 1e3)}"


def table(records):
    """A row for each system, number of jobs and barrier; a column for each pace."""
    records = [record for record in records if "step_ms" in record]
    if not records:
        return NOTHING
    of = lambda field: sorted({record[field] for record in records})
    rows = []
    for jobs in of("jobs"):
        for system in SYSTEMS:
            for barrier in BARRIERS:
                row = [r for r in records if (r["jobs"], r["system"], r["barrier"]) == (jobs, system, barrier)]
                if row:
                    cells = [cell([r for r in row if r["pace"] == pace]) for pace in of("pace")]
                    rows.append([f"{jobs}", f"{system}{', barrier' if barrier == 'barrier' else ''}", *cells])
    headings = ["jobs", "", *("unpaced" if pace == 0 else f"{pace:g}R" for pace in of("pace"))]
    return narrow(headings, rows, 2)


# --- The bursts of a training

PEAKS_MODEL = {"width": 256, "layers": 2, "batch": 4, "bucket_mb": 4}  # 514 KiB of gradients in a bucket
BUCKET_BYTES = 64 << 10  # what the shaper of a link lets through at once
WINDOW_NS = 5_000_000


@contextlib.contextmanager
def peaks(run, place, turns):
    """Two ranks train with DDP, with a pause before each step, and the switch sums. All frames that worker 0 sends are captured behind
    the shaping of its link, which lets 64 KiB through at once, and then its rate."""
    rate = place["rate"]
    with Rack(run.netsum, f"p{os.getpid()}", 2, rate, 1500, "user", loss=0) as rack:
        ranks = TorchRanks(rack, "step_worker", port=MASTER_PORT)
        rack.resources.callback(ranks.close)
        asked = {"system": "DDP", "settings": None, "hook": "C++", "load": "quiet", "model": PEAKS_MODEL}
        ranks.ask(lambda _gate: json.dumps({**asked, "steps": FIRST}))

        def measure(turn):
            streams = []
            with capturing(rack, rate, streams):
                ranks.ask(lambda _gate: json.dumps({**asked, "steps": turn["steps"], "pause_s": turn["period"] / 1e3}))
            sent = next(one for one in streams if (one["port"], one["direction"]) == ("w0", "in"))
            return {
                "step_bytes": sent["bytes"] / turn["steps"],
                "mean_bytes_per_s": sent["mean_bytes_per_s"],
                "windows": sent["envelope"],
                "peak_to_mean": [one["peak_to_mean"] for one in sent["envelope"] if one["tau_ns"] >= WINDOW_NS][:1],
            }

        yield measure


def formula(record, tau_ns):
    """PtM(tau) of bursts that begin with what the shaper lets through at once, and go on at the link's rate."""
    rate = rate_bits(record["rate"]) / 8e9  # bytes per ns
    most = min(record["step_bytes"], BUCKET_BYTES + rate * tau_ns)
    return most / (tau_ns * 1e-9 * record["mean_bytes_per_s"])


def peaks_table(records):
    """A row for each window, of every fourth that was measured, from 1 ms to the pause: behind a period the formula ends. Then
    the differences of all."""
    rows = []
    for record in (record for record in records if record.get("windows")):
        pause, changes = f"{record['period'] / 1e3:g}", []
        for index, window in enumerate(record["windows"]):
            tau_ns, measured = window["tau_ns"], window["peak_to_mean"]
            if not 10**6 <= tau_ns <= 10**6 * record["period"]:
                continue
            expected = formula(record, tau_ns)
            changes.append(100 * (measured / expected - 1))
            if index % 4 == 0:
                rows.append([pause, number(tau_ns / 1e6), number(measured), number(expected), f"{changes[-1]:+.1f} %"])
        rows.append([pause, "all", "", "", f"{min(changes):+.1f} to {max(changes):+.1f} %"])
    return markdown(["pause, s", "window, ms", "peak to mean", "formula", "difference"], rows) if rows else NOTHING
