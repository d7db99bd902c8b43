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
DEADLINE_S = 1800


def said_by(command, accepted=(0,), **variables):
    ended = subprocess.run(
        list(map(str, command)),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        env=os.environ | variables,
    )
    if ended.returncode not in accepted:
        raise Failed(ended.stderr.strip()[-2000:] or f"{command[0]} ended with status {ended.returncode}")
    return ended.stdout


@contextlib.contextmanager
def ghosts(run, place, turns):
    """A small language model under DDP: 3.5 MB of gradients. Each of `checks` rounds is a job of real ranks, one of one real rank and
    ghosts, and one of real ranks again, each in a rack of its own. Real ranks `train` it with PyTorch, each with an equal share of the
    processors, also beside ghosts, which play the record of such a job; or they `sleep` where a program without a cluster computes,
    as measured on this machine."""
    with tempfile.TemporaryDirectory() as folder:
        worker = [sys.executable, "-m", "netsum_bench.ghost_worker"]
        programs = {kind: os.path.join(folder, kind) for kind in ("sleep", "train")}
        said_by([*worker, "--program", programs["sleep"], "--ranks", place["workers"], "--steps", RECORDED])

        def measure(turn):
            job = [run.netsum, "emulate", "--ranks", turn["workers"], "--rate", turn["rate"], "--json"]
            cores = (os.cpu_count() or 1) / turn["workers"]
            script = ["--", *worker, "--cores", cores, "--steps", turn["steps"]] if turn["real"] == "train" else []
            # 1: it is not the same, or the machine cannot tell; that is a result as well.
            if script:
                real = ["--real", turn["workers"], "--profile", programs["sleep"], "--steps", turn["steps"]]
                said_by([*job, *real, *script], (0, 1), NETSUM_RECORD=programs["train"])
            check = ["--check", turn["checks"], "--profile", programs[turn["real"]]]
            steps = ["--steps", turn["steps"]]
            return json.loads(said_by([*job, *check, *([] if script else steps), *script], (0, 1)))

        yield measure


def percent(interval):
    half = (interval["high"] - interval["low"]) / 2
    return f"{100 * interval['median']:+.2f} ± {100 * half:.2f}"


def table(records):
    """A row for each number and kind of ranks."""
    rows = [
        [
            f"1 + {record['workers'] - 1} ghosts, {record['rate']}: {'PyTorch' if record['real'] == 'train' else 'sleeping'}",
            percent(record["difference"]),
            percent(record["among_real"]),
            f"{100 * record['lateness_share']:.3f}",
            f"{record['ghost_mib']:.1f}",
            f"{100 * record['memory_share']:.0f}",
            f"{100 * record['cpu_share']:.0f}",
            record["verdict"],
        ]
        for record in records
        if "difference" in record
    ]
    header = ["ranks", "step against real ranks, %", "among real, %", "p99 lateness, % of a step"]
    header += ["MiB of a ghost", "memory, % of real", "CPU, % of real", "verdict"]
    return markdown(header, rows, left=1) if rows else NOTHING
