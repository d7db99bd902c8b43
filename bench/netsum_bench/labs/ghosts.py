"""Jobs with ghosts against jobs of real ranks: `netsum emulate --check`."""

import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile

from netsum_bench.machine import ROOT
from netsum_bench.processes import Failed
from netsum_bench.report import NOTHING, markdown

RECORDED = 12  # steps, of which the job repeats some
DEADLINE_S, GRACE_S = 1800, 60


def said_by(command, accepted=(0,)):
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(list(map(str, command)), cwd=ROOT, **output) as process:
        try:
            out, err = process.communicate(timeout=DEADLINE_S)
        except BaseException:
            process.terminate()  # so that it takes its rack down
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=GRACE_S)
            process.kill()
            raise
    if process.returncode not in accepted:
        raise Failed(err.strip()[-2000:] or f"{command[0]} ended with status {process.returncode}")
    return out


@contextlib.contextmanager
def ghosts(run, place, turns):
    """A small language model: 2.6 MB of gradients under DDP, or as much under FSDP2. A job of real ranks is followed by `checks` pairs
    of one with one real rank and ghosts, and one of real ranks, each in a rack of its own. Real ranks `train` it with PyTorch, each
    on an equal share of half of the processors, also beside ghosts, which play what the ranks of the run before have done, and with
    `train-fixed` each piece of a step takes the same time; or they `sleep` where a program without a cluster computes, as measured on
    this machine."""
    with tempfile.TemporaryDirectory() as folder:
        worker = [sys.executable, "-m", "netsum_bench.ghost_worker"]

        def measure(turn):
            program = os.path.join(folder, turn["model"])
            # Half, so that the network's threads and the aggregator never wait for a processor.
            share = (os.cpu_count() or 1) / turn["workers"] / 2
            model = ["--parallel", turn["model"], "--share", share]
            model += ["--fixed"] if turn["real"] == "train-fixed" else []
            said_by([*worker, *model, "--program", program, "--ranks", turn["workers"], "--steps", RECORDED])
            job = [run.netsum, "emulate", "--ranks", turn["workers"], "--rate", turn["rate"], "--json"]
            job += ["--profile", program, "--steps", turn["steps"], "--check", turn["checks"]]
            script = ["--", *worker, *model, "--steps", turn["steps"]] if turn["real"] != "sleep" else []
            # 1: it is not the same, or the machine cannot tell; that is a result as well.
            return json.loads(said_by([*job, *script], (0, 1)))

        yield measure


COMPUTES_MS, ELEMENTS, STEPS = 100, 100_000, 30  # of a step; of each of its two operations; of a run
RESAMPLES = 2000


def write_program(prefix, ranks):
    """Steps that compute, submit an all-reduce in the middle, and wait for a second one behind it."""
    half = ["compute", COMPUTES_MS * 500_000]
    thread = [half, ["submit", 0], half, ["submit", 1], ["wait", 0], ["wait", 1]]
    what = {"collective": "all_reduce", "type": "float32", "count": ELEMENTS, "operation": "sum", "root": -1}
    times = [{"submitted_ns": half[1] * (i + 1), "done_ns": half[1] * (i + 1)} for i in range(2)]
    operations = [{"id": i, "group": 0, "tag": 0, **what, **times[i]} for i in range(2)]
    step = {"operations": operations, "threads": [thread], "duration_ns": 2 * half[1]}
    job = {"format": "netsum-program", "version": 1, "world_size": ranks, "model": "", "netsum": "", "machine": ""}
    for rank in range(ranks):
        lines = [{**job, "rank": rank, "clock": "steady, ns", "steps": STEPS}]
        lines += [{"step": k, **step} for k in range(STEPS)]
        with open(f"{prefix}.{rank}.jsonl", "w", encoding="ascii") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)


def median_interval(values):
    """The median with the 95 % interval of a bootstrap."""
    draw = random.Random(1)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(RESAMPLES))
    low, high = (medians[round(share * (RESAMPLES - 1))] for share in (0.025, 0.975))
    return {"median": statistics.median(values), "low": low, "high": high}


@contextlib.contextmanager
def straggler(run, place, turns):
    """A ghost that computes 20 % longer, beside one real rank that sleeps, or none: how far is the step from what its program says? In
    each round a run with it follows one without. The step should grow by what the ghost computes longer, as all ranks wait for its
    second operation. On a busy machine it grows by less: what holds up other ranks or the aggregator lengthens the runs without it
    alone. So the quickest quarter of the steps is compared as well."""
    with tempfile.TemporaryDirectory() as folder:

        def measure(turn):
            ranks, factor = turn["workers"], turn["factor"]
            write_program(os.path.join(folder, "p"), ranks)
            job = [run.netsum, "emulate", "--ranks", ranks, "--real", turn["real"], "--rate", turn["rate"], "--json"]
            job += ["--profile", f"{folder}/p"]
            found = {"steps_ms": [], "differences": [], "quiet": []}
            for _ in range(turn["checks"]):
                # 1: ghosts were late, which is a part of the result.
                plain, slow = (
                    json.loads(said_by([*job, "--straggler", f"{ranks - 1}={f}:0:{STEPS}"], (0, 1)))
                    for f in (1, factor)
                )
                before, after = (1e3 * one["step_seconds"]["median"] for one in (plain, slow))
                longer = (factor - 1) * COMPUTES_MS
                found["steps_ms"].append([before, after])
                found["differences"].append(after / (before + longer) - 1)
                before, after = (1e3 * statistics.quantiles(one["steps"], n=4)[0] for one in (plain, slow))
                found["quiet"].append(after / (before + longer) - 1)
            return {
                **found,
                "difference": median_interval(found["differences"]),
                "quietest": median_interval(found["quiet"]),
            }

        yield measure


def straggler_table(records):
    rows = [
        [
            f"{record['real']} + {record['workers'] - record['real']} ghosts, {record['rate']}",
            f"{record['factor']:g}",
            *(f"{statistics.median(steps):.1f}" for steps in zip(*record["steps_ms"], strict=True)),
            percent(record["difference"]),
            percent(record["quietest"]),
        ]
        for record in records
        if "difference" in record
    ]
    header = ["ranks", "factor", "step without, ms", "step with it, ms", "step against the program's, %"]
    header += ["the quickest quarter of them, %"]
    return markdown(header, rows, left=1) if rows else NOTHING


VERDICTS = {"unknown": "cannot tell"}


def percent(interval):
    half = (interval["high"] - interval["low"]) / 2
    return f"{100 * interval['median']:+.2f} ± {100 * half:.2f}"


def pair(cost, scale, digits):
    return f"{scale * cost['ghosts']:.{digits}f} / {scale * cost['real']:.{digits}f}"


def table(records):
    """A row for each model, number and kind of ranks."""
    kinds = {"train": "PyTorch", "train-fixed": "PyTorch, fixed times", "sleep": "sleeping"}
    rows = [
        [
            f"{record['model'].upper()}, 1 + {record['workers'] - 1} ghosts, {record['rate']}: {kinds[record['real']]}",
            percent(record["among_real"]),
            percent(record["difference"]),
            f"{100 * record['lateness_share']:.3f}",
            f"{record['ghost_mib']:.1f}",
            pair(record["memory_bytes"], 2**-20, 0),
            pair(record["cpu_seconds"], 1, 1),
            VERDICTS.get(record["verdict"], record["verdict"]),
        ]
        for record in records
        if "difference" in record
    ]
    header = ["ranks", "among real, %", "step against real ranks, %", "p99 lateness, % of a step", "MiB of a ghost"]
    header += ["MiB, with ghosts / real", "CPU s, with ghosts / real", "verdict"]
    return markdown(header, rows, left=1) if rows else NOTHING
