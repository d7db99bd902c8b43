"""Starts the netsum command for tests: every wait has a deadline, and nothing is left running."""

import contextlib
import json
import os
import pathlib
import queue
import random
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time

import pytest

BUILD = pathlib.Path(os.environ.get("NETSUM_BUILD", pathlib.Path(__file__).resolve().parents[2] / "build/release"))
NETSUM = str(BUILD / "tools/netsum/netsum")
# Generous: sanitizer builds and busy machines are slow. The deadlines under test are netsum's own.
PATIENCE_S = 60


def clean_environment(**more):
    """Without variables that would change what the command does."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NETSUM_")}
    return {**kept, **more}


def free_port(kind=socket.SOCK_STREAM):
    """Not of those that the kernel gives to who asks for any, as other tests do before it is used."""
    with socket.socket(socket.AF_INET, kind) as probe:
        for port in random.sample(range(12_000, 28_000), 100):
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return port
    raise RuntimeError("100 of the ports from 12000 to 28000 are in use")


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
        self.process = subprocess.Popen(
            [program, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            env=environment or clean_environment(),
        )
        self.lines = {"out": [], "err": []}
        self.new_lines = queue.Queue()
        self.readers = [
            threading.Thread(target=self._read, args=(name, stream), daemon=True)
            for name, stream in (("out", self.process.stdout), ("err", self.process.stderr))
        ]
        for reader in self.readers:
            reader.start()

    def _read(self, name, stream):
        for line in stream:
            self.lines[name].append(line.rstrip("\n"))
            self.new_lines.put(line)
        self.new_lines.put(None)

    def text(self, name):
        return "\n".join(self.lines[name])

    def wait_for(self, *words, name="err"):
        """The first line that has all of `words`."""
        deadline = time.monotonic() + self.patience_s
        while True:
            for line in list(self.lines[name]):
                if all(word in line for word in words):
                    return line
            left = deadline - time.monotonic()
            if left <= 0 or (self.process.poll() is not None and not any(r.is_alive() for r in self.readers)):
                raise AssertionError(f"no line with {words} in:\n{self.text('out')}\n{self.text('err')}")
            with contextlib.suppress(queue.Empty):
                self.new_lines.get(timeout=min(left, 0.2))

    def end(self):
        """Waits for the end; returns the exit status."""
        status = self.process.wait(timeout=self.patience_s)
        for reader in self.readers:
            reader.join(timeout=PATIENCE_S)
        return status

    def stop(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for reader in self.readers:
            reader.join(timeout=PATIENCE_S)
        self.process.stdout.close()
        self.process.stderr.close()


class CommandTest:
    """Base of the tests of the command. `self.cleanup`, an ExitStack, is closed after each test."""

    @pytest.fixture(autouse=True)
    def with_cleanup(self):
        with contextlib.ExitStack() as self.cleanup:
            self.set_up()
            yield

    def set_up(self):
        """Runs before each test, and may skip it."""

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
        bench = self.start_bench(daemon, "--workers", 2, "--bytes", "256Ki", "--iterations", 1_000_000, *arguments)
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
                "--bytes",
                "256Ki",
                "--iterations",
                1_000_000,
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

    def write_file(self, text):
        folder = tempfile.TemporaryDirectory()
        self.cleanup.callback(folder.cleanup)
        path = pathlib.Path(folder.name) / "file"
        path.write_text(text, encoding="utf-8")
        return path

    @staticmethod
    def send_signal(running, number=signal.SIGTERM):
        running.process.send_signal(number)
