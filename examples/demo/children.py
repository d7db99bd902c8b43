"""Child processes of the demo: the aggregator and torchrun. Every one has a log, a deadline and an end."""

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

HERE = pathlib.Path(__file__).resolve().parent
START_TIMEOUT_S = 20
STOP_TIMEOUT_S = 10
POLL_S = 0.1


class DemoError(Exception):
    """Something the user should read: what was wrong, where, and what to do about it."""


class Child:
    """A process whose output goes to a log file. `stop` ends it and everything that it started."""

    def __init__(self, command, log, env=None):
        """`env` changes the environment; a value of None removes the variable."""
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
        if not self.running():
            return
        # torchrun gives each worker a session of its own, so a signal to its group would miss them.
        family = descendants(self.process.pid)
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_TIMEOUT_S)
        for pid, started in family:
            if start_time(pid) == started:  # the same process, not a later one with its number
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if self.running():
            self.process.kill()
        self.process.wait(STOP_TIMEOUT_S)


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
        flags = ("--listen", "127.0.0.1:0", "--log-format", "json", "--drain-timeout", "3s")
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

    def counters(self):
        """What it counted in its life; empty unless it has ended in order."""
        for line in reversed(self.child.log.read_text(errors="replace").splitlines()):
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if isinstance(entry, dict) and entry.get("message") == "counters":
                    return {key: value for key, value in entry.items() if isinstance(value, int)}
        return {}

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


def run_training(run, show_progress, env):
    """Trains once with torchrun, as `run` says. Returns the wall time in seconds."""
    run.folder.mkdir(parents=True, exist_ok=True)
    for old in [*run.folder.glob("rank*.json"), run.folder / "progress.jsonl"]:
        old.unlink(missing_ok=True)
    logs = run.folder / "logs"
    shutil.rmtree(logs, ignore_errors=True)
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", run.workers, "--redirects", 3, "--log-dir", logs, HERE / "train.py"),
        *("--model", run.model, "--backend", run.backend, "--steps", run.steps, "--seed", run.seed),
        *("--run-dir", run.folder),
    ]
    start = time.monotonic()
    with Child(command, run.folder / "torchrun.log", {"OMP_NUM_THREADS": "1", **env}) as child:
        _watch(child, run, show_progress, start)
        if child.process.returncode != 0:
            raise DemoError(_explain_failure(child, run, f"torchrun exit code {child.process.returncode}"))
    return time.monotonic() - start


def _watch(child, run, show_progress, start):
    """Returns when the child has ended; raises if it runs too long or makes no progress."""
    last_change, last_step = start, 0
    while child.running():
        now = time.monotonic()
        progress = read_progress(run.folder / "progress.jsonl")
        if progress and progress["step"] != last_step:
            last_change, last_step = now, progress["step"]
        show_progress(progress, now - start)
        if now - last_change > run.stall_s:
            raise DemoError(_explain_failure(child, run, f"no progress for {run.stall_s} s"))
        time.sleep(POLL_S)
    show_progress(read_progress(run.folder / "progress.jsonl"), time.monotonic() - start)


def read_progress(path):
    """The last whole line of the progress file, or None."""
    try:
        lines = path.read_text().split("\n")[:-1]
        return json.loads(lines[-1]) if lines else None
    except OSError:
        return None


def _explain_failure(child, run, reason):
    parts = [f"training {run.model} with {run.backend} failed ({reason})."]
    for said, ranks in last_words(run.folder / "logs").items():
        who = "worker" if len(ranks) == 1 else "workers"
        parts.append(f"End of the log of {who} {', '.join(ranks)}:\n{said}")
    if len(parts) == 1:
        parts.append(f"No worker wrote anything; torchrun said:\n{child.tail()}")
    parts.append(
        f"All logs: {run.folder}. To try this run alone:\n"
        f"    {sys.executable} {HERE / 'demo.py'} --models {run.model} --backends {run.backend} --quick"
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
