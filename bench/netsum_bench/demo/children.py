"""Child processes of the demo: the aggregator and the workers. Every one has a log, a deadline and an end."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
from typing import NamedTuple

from netsum_bench.processes import Failed

START_TIMEOUT_S = 20
STOP_TIMEOUT_S = 10
POLL_S = 0.1


class DemoError(Failed):
    """Something the user should read: what was wrong, where, and what to do about it."""


class Start(NamedTuple):
    """How to start a child. `env` changes the environment; a value of None removes the variable."""

    command: list
    log: pathlib.Path
    env: dict


class Child:
    """A process whose output goes to a log file. `stop` ends it and everything that it started."""

    def __init__(self, command, log, env=None):
        self.command, self.log = [str(part) for part in command], log
        with log.open("w") as output:
            # Its own session: a Ctrl-C reaches only the demo, which then ends its children in order.
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={key: value for key, value in {**os.environ, **(env or {})}.items() if value is not None},
                start_new_session=True,
            )

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.stop()

    def running(self):
        return self.process.poll() is None

    def tail(self, lines=15):
        return tail_of(self.log, lines)

    def stop(self):
        stop_all([self])


def stop_all(children):
    """Ends them at the same time, by force after STOP_TIMEOUT_S."""
    running = [child for child in children if child.running()]
    # torchrun gives each worker a session of its own, so a signal to its group would miss them.
    families = [member for child in running for member in descendants(child.process.pid)]
    for child in running:
        child.process.terminate()
    deadline = time.monotonic() + STOP_TIMEOUT_S
    for child in running:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.process.wait(max(0, deadline - time.monotonic()))
    for pid, started in families:
        if start_time(pid) == started:  # the same process, not a later one with its number
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    for child in running:
        if child.running():
            child.process.kill()
        child.process.wait(STOP_TIMEOUT_S)


def start_time(pid):
    """When Linux started the process, in clock ticks; None if there is none."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None


def descendants(pid):
    """[(pid, start time)] of all processes below `pid`."""
    found = []
    for children in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, children.read_text().split()):
                found += [(child, start_time(child)), *descendants(child)]
    return found


def tail_of(path, lines):
    try:
        text = path.read_text(errors="replace").rstrip().splitlines()
    except OSError:
        return ""
    return "\n".join(f"    {line}" for line in text[-lines:])


def find_netsum_command():
    """The `netsum` command that came with the wheel, else the one on PATH."""
    beside = pathlib.Path(sys.executable).parent / "netsum"
    found = str(beside) if beside.is_file() else shutil.which("netsum")
    if not found:
        raise DemoError(
            f"no `netsum` command beside {sys.executable} nor on PATH, so no aggregator can be started.\n"
            "Run `make demo`, which builds and installs it, or pass --aggregator embedded."
        )
    return found


class Aggregator:
    """`netsum aggregator` on free ports of this machine, for as long as the `with` block lasts."""

    def __init__(self, log):
        # Jobs leave before the daemon is asked to; the drain matters only after a failure.
        flags = ("--listen", "127.0.0.1:0", "--drain-timeout", "3s")
        self.child = Child([find_netsum_command(), "aggregator", *flags], log)
        try:
            self.address = self._wait_for_address()
        except BaseException:
            self.child.stop()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.child.stop()

    def _wait_for_address(self):
        deadline = time.monotonic() + START_TIMEOUT_S
        reason = f"did not say where it listens within {START_TIMEOUT_S} s"
        while time.monotonic() < deadline:
            output = self.child.log.read_text(errors="replace")
            if match := re.search(r"NETSUM_AGGREGATOR=(\S+:\d+)", output):
                return match.group(1)
            if not self.child.running():
                reason = f"ended at once with exit code {self.child.process.returncode}"
                break
            time.sleep(POLL_S)
        command = " ".join(self.child.command)
        raise DemoError(f"the aggregator ({command}) {reason}. Its output:\n{self.child.tail()}")


def run_training(run, starts, show_progress):
    """Trains once by starting all of `starts`. Returns the wall time in seconds."""
    start = time.monotonic()
    workers = []
    try:
        for each in starts:
            workers.append(Child(*each))
        _watch(workers, run, show_progress, start)
    finally:
        stop_all(workers)
    return time.monotonic() - start


def clear(run):
    """Takes away what an earlier run has left in the folder."""
    run.folder.mkdir(parents=True, exist_ok=True)
    for old in [*run.folder.glob("rank*.json"), run.folder / "progress.jsonl", *run.folder.glob("*.log")]:
        old.unlink(missing_ok=True)
    shutil.rmtree(run.folder / "logs", ignore_errors=True)


def _watch(workers, run, show_progress, start):
    """Returns when all have ended well; raises if one fails, or if there is no progress for too long."""
    last_change, last_step = start, 0
    while any([worker.running() for worker in workers]):  # noqa: C419  (all are asked)
        now = time.monotonic()
        progress = read_progress(run.folder / "progress.jsonl")
        if progress and progress["step"] != last_step:
            last_change, last_step = now, progress["step"]
        show_progress(progress, now - start)
        _check_none_failed(workers, run)
        if now - last_change > run.stall_s:
            raise DemoError(_explain_failure(workers, run, f"no progress for {run.stall_s} s"))
        time.sleep(POLL_S)
    _check_none_failed(workers, run)
    show_progress(read_progress(run.folder / "progress.jsonl"), time.monotonic() - start)


def _check_none_failed(workers, run):
    failed = [worker.process.returncode for worker in workers if worker.process.returncode]
    if failed:
        raise DemoError(_explain_failure(workers, run, f"exit code {failed[0]}"))


def read_progress(path):
    """The last whole line of the progress file, or None."""
    try:
        lines = path.read_text().split("\n")[:-1]
        return json.loads(lines[-1]) if lines else None
    except OSError:
        return None


def _explain_failure(workers, run, reason):
    parts = [f"training {run.model} with {run.backend} failed ({reason})."]
    for said, ranks in last_words(run.folder / "logs").items():
        who = "worker" if len(ranks) == 1 else "workers"
        parts.append(f"End of the log of {who} {', '.join(ranks)}:\n{said}")
    if len(parts) == 1:
        parts.append(f"No worker wrote anything; torchrun said:\n{workers[0].tail()}")
    parts.append(
        f"All logs: {run.folder}. To try this run alone:\n"
        f"    {sys.executable} -m netsum_bench.demo --models {run.model} --backends {run.backend} --quick "
        f"--place {run.place}"
    )
    if run.backend == "netsum":
        parts.append("`netsum doctor` checks this machine for what netsum needs.")
    return "\n".join(parts)


def last_words(logs, lines=12):
    """{end of the error output: [ranks that wrote it]}: mostly, all ranks fail in the same way."""
    words = {}
    for log in sorted(logs.rglob("stderr.log")):
        rank = log.parent.name
        if said := tail_of(log, lines).replace(f"[rank{rank}]: ", ""):
            words.setdefault(said, []).append(rank)
    return words
