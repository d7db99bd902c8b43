"""Starts the netsum command for tests: every wait has a deadline, and nothing is left running."""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time

import pytest
from netsum_bench.processes import Watched

BUILD = pathlib.Path(os.environ.get("NETSUM_BUILD", pathlib.Path(__file__).resolve().parents[2] / "build/release"))
NETSUM = str(BUILD / "tools/netsum/netsum")
# Generous: sanitizer builds and busy machines are slow. The deadlines under test are netsum's own.
PATIENCE_S = 60
# Of a bench that sums until it is ended, without keeping the cores busy.
LONG = ("--bytes", "256Ki", "--iterations", 1_000_000, "--pause", "10ms")


def clean_environment(**more):
    """Without variables that would change what the command does."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NETSUM_")}
    return {**kept, **more}


def rights_of(pid):
    """What the kernel says of every thread of the process: (effective, permitted, ambient, no_new_privs)."""
    rights = []
    for status in pathlib.Path(f"/proc/{pid}/task").glob("*/status"):
        fields = dict(re.findall(r"^(\w+):\s*(\w+)$", status.read_text(encoding="ascii"), re.MULTILINE))
        rights.append(
            (int(fields["CapEff"], 16), int(fields["CapPrm"], 16), int(fields["CapAmb"], 16), int(fields["NoNewPrivs"]))
        )
    return rights


class Running:
    """A started command. Its lines of output are collected as they come. All waits end after `patience_s`."""

    def __init__(self, *arguments, environment=None, program=NETSUM, patience_s=PATIENCE_S):
        self.patience_s = patience_s
        self.lines = {"out": [], "err": []}
        self.watched = Watched(
            [program, *arguments],
            lambda stream, line: self.lines[stream].append(line),
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            env=environment or clean_environment(),
        )
        self.process = self.watched.process

    def text(self, name):
        return "\n".join(self.lines[name])

    def wait_for(self, *words, name="err"):
        """The first line that has all of `words`."""

        def found():
            return next((line for line in self.lines[name] if all(word in line for word in words)), None)

        if not self.watched.wait(lambda: found() is not None, self.patience_s):
            raise AssertionError(f"no line with {words} in:\n{self.text('out')}\n{self.text('err')}")
        return found()

    def end(self):
        """Waits for the end; returns the exit status."""
        return self.watched.end(self.patience_s)

    def stop(self):
        self.watched.close(PATIENCE_S)


class CommandTest:
    """Base of the tests of the command. `self.cleanup`, an ExitStack, is closed after each test."""

    @pytest.fixture(autouse=True)
    def with_cleanup(self):
        with contextlib.ExitStack() as self.cleanup:
            self.set_up()
            yield

    def set_up(self):
        """Runs before each test, and may skip it."""

    def until(self, what, condition):
        """Asks again and again, until `condition` gives something true."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if found := condition():
                return found
            time.sleep(0.05)
        raise AssertionError(f"never came: {what}")

    def start(self, *arguments, **more):
        running = Running(*arguments, **more)
        self.cleanup.callback(running.stop)
        return running

    def run_command(self, *arguments, **more):
        running = self.start(*arguments, **more)
        running.status = running.end()
        return running

    def start_aggregator(self, *arguments, cores=1, **more):
        """Returns the running daemon, with .address for --aggregator. It sums all: on one machine, no link counts."""
        where = ("--listen", "127.0.0.1:0", "--cores", cores, "--in-switch")
        daemon = self.start("aggregator", *where, *arguments, **more)
        daemon.address = daemon.wait_for("NETSUM_AGGREGATOR=", name="out").split("=")[1]
        daemon.ready = daemon.wait_for("ready:", name="out")
        return daemon

    def start_bench(self, daemon, *arguments, connect_timeout="30s", **more):
        return self.start(
            "bench",
            "allreduce",
            "--aggregator",
            daemon.address,
            "--timeout",
            "8s",
            "--connect-timeout",
            connect_timeout,
            *arguments,
            **more,
        )

    def start_long_job(self, daemon, *arguments):
        """A bench that runs until it is stopped or something happens to it; returns when the job runs."""
        bench = self.start_bench(daemon, "--workers", 2, *LONG, *arguments)
        daemon.wait_for("job", "state=running")
        return bench

    def start_running_ranks(self, daemon, count):
        """Ranks of one long job, each a command of its own; returns when every one has got a sum."""
        ranks = [
            self.start_bench(
                daemon,
                "--rank",
                rank,
                "--world-size",
                count,
                *LONG,
                "--report-events",
            )
            for rank in range(count)
        ]
        for rank in ranks:
            rank.wait_for('"event":"iteration"', name="out")
        return ranks

    def assert_serves(self, daemon, *arguments):
        """The daemon must go on serving: another job runs and its sums are right."""
        bench = self.start_bench(daemon, "--workers", 2, "--bytes", "256Ki", "--iterations", 2, "--json", *arguments)
        assert bench.end() == 0, bench.text("err")
        assert json.loads(bench.text("out"))["verified"]

    def assert_all_ranks_say(self, bench, workers, *words):
        """Every rank's failure is reported, each with one of `words`."""
        for rank in range(workers):
            line = bench.wait_for(f"rank {rank}:")
            assert any(word in line for word in words), line

    @staticmethod
    def assert_refuses_file(command, name, line, words):
        """It ended because of a file: the error has `words`, and where, a line of the file or None."""
        assert command.status == 2, command.text("out")
        assert (f"{name}:{line}: " if line else f"{name}: ") in command.text("err")
        for word in words:
            assert word in command.text("err")
        assert command.text("out") == ""

    def write_file(self, text):
        folder = tempfile.TemporaryDirectory()
        self.cleanup.callback(folder.cleanup)
        path = pathlib.Path(folder.name) / "file"
        path.write_text(text, encoding="utf-8")
        return path

    @staticmethod
    def send_signal(running, number=signal.SIGTERM):
        running.process.send_signal(number)
