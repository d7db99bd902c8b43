"""The processes that the chaos test disturbs: the ranks' agents, and the aggregator in the switch."""

import collections
import contextlib
import json
import os
import signal
import subprocess

from netsum_bench.processes import Watched

START_S = 300  # for PyTorch to be imported by all, on few cores


class Broken(Exception):
    """What must hold does not."""


class Agent:
    """The place of one rank, with its process."""

    def __init__(self, rank, command, environment, log):
        self.rank = rank
        self.pid, self.ended, self.ready = None, None, False
        self.watched = Watched(command, self.on_line, stdin=subprocess.PIPE, stderr=log, bufsize=1, env=environment)

    def on_line(self, _stream, line):
        message = json.loads(line)
        self.ready = self.ready or "ready" in message
        if "ended" in message:
            if message["pid"] == self.pid:
                self.ended = message["ended"]
        elif "pid" in message:
            self.pid, self.ended = message["pid"], None

    def wait(self, condition, seconds, what):
        if not self.watched.wait(condition, seconds):
            why = ": its agent has ended" if self.watched.has_ended else ""
            raise Broken(f"rank {self.rank}: {what} not within {seconds} s{why}")

    def start(self, generation, environment):
        before = self.pid
        self.watched.process.stdin.write(json.dumps({"generation": generation, "env": environment}) + "\n")
        self.wait(lambda: self.pid != before, START_S, "a new process")

    def signal(self, number):
        """To the rank's process; whether there was one."""
        with self.watched.changed:
            if self.pid is None or self.ended is not None:
                return False
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)
            return True

    def close(self):
        self.signal(signal.SIGKILL)
        self.watched.close()


class Aggregator:
    """In the switch; started anew with another dataplane and other losses on purpose each time."""

    def __init__(self, rack, folder, draw):
        self.rack, self.folder, self.draw = rack, folder, draw
        self.process, self.starts, self.killed = None, collections.Counter(), False

    def start(self):
        dataplane = self.draw.choice(["user", "xdp"])
        loss = self.draw.choice([0, 0, 0.001, 0.01])
        self.starts[dataplane] += 1
        self.starts["--inject-loss"] += loss > 0
        command = [
            self.rack.netsum,
            "aggregator",
            "--listen",
            "10.77.1.1:5151",
            "--cores",
            "1",
            "--inject-loss",
            loss,
            "--inject-seed",
            self.draw.randrange(1000),
            "--dataplane",
            dataplane,
        ]
        if dataplane == "xdp":
            command += ["--interfaces", ",".join(f"w{w}" for w in range(self.rack.workers))]
        with (self.folder / "aggregator.log").open("a", encoding="utf-8") as log:
            self.process = subprocess.Popen(self.rack.inside("sw", *command), stdout=log, stderr=log)
        self.killed = False

    def kill(self):
        self.killed = True
        self.process.kill()
        self.process.wait()
