"""Jobs with ghosts against jobs of real ranks: `netsum emulate --check`."""

import contextlib
import json
import os
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
    on an equal share of half of the processors, also beside ghosts, which play what the ranks of the run before have done; or they
    `sleep` where a program without a cluster computes, as measured on this machine."""
    with tempfile.TemporaryDirectory() as folder:
        worker = [sys.executable, "-m", "netsum_bench.ghost_worker"]

        def measure(turn):
            program = os.path.join(folder, turn["model"])
            # Half, so that the network's threads and the aggregator never wait for a processor.
            share = (os.cpu_count() or 1) / turn["workers"] / 2
            model = ["--parallel", turn["model"], "--share", share]
            said_by([*worker, *model, "--program", program, "--ranks", turn["workers"], "--steps", RECORDED])
            job = [run.netsum, "emulate", "--ranks", turn["workers"], "--rate", turn["rate"], "--json"]
            job += ["--profile", program, "--steps", turn["steps"], "--check", turn["checks"]]
            script = ["--", *worker, *model, "--steps", turn["steps"]] if turn["real"] == "train" else []
            # 1: it is not the same, or the machine cannot tell; that is a result as well.
            return json.loads(said_by([*job, *script], (0, 1)))

        yield measure


VERDICTS = {"unknown": "cannot tell"}


def percent(interval):
    half = (interval["high"] - interval["low"]) / 2
    return f"{100 * interval['median']:+.2f} ± {100 * half:.2f}"


def pair(cost, scale, digits):
    return f"{scale * cost['ghosts']:.{digits}f} / {scale * cost['real']:.{digits}f}"


def table(records):
    """A row for each model, number and kind of ranks."""
    kinds = {"train": "PyTorch", "sleep": "sleeping"}
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
