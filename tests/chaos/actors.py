"""The processes that the chaos test disturbs: the ranks, and the aggregator in the switch."""

import collections
import contextlib
import json
import os
import subprocess

from netsum_bench.processes import Watched

START_S = 300  # for PyTorch to be imported, on few cores


class Broken(Exception):
    """What must hold does not."""


class Agent:
    """Starts the processes of all ranks (agent.py)."""

    def __init__(self, command, environment, log):
        self.ready, self.ranks = False, {}
        self.watched = Watched(command, self.on_line, stdin=subprocess.PIPE, stderr=log, bufsize=1, env=environment)

    def on_line(self, _stream, line):
        message = json.loads(line)
        self.ready = self.ready or "ready" in message
        if "rank" in message:
            self.ranks[message["rank"]].on_message(message)

    def wait(self, condition, seconds, what):
        if not self.watched.wait(condition, seconds):
            why = ": the agent has ended" if self.watched.has_ended else ""
            raise Broken(f"{what} not within {seconds} s{why}")

    def close(self):
        self.watched.close()


class Rank:
    """The place of one rank, with its process."""

    def __init__(self, rank, agent, folder, namespace=None, environment=None):
        self.rank, self.agent, self.environment = rank, agent, environment or {}
        self.order = {"rank": rank, "folder": str(folder), "namespace": namespace}
        self.pid, self.ended = None, None
        agent.ranks[rank] = self

    def on_message(self, message):
        if "ended" not in message:
            self.pid, self.ended = message["pid"], None
        elif message["pid"] == self.pid:
            self.ended = message["ended"]

    def start(self, generation, environment):
        before = self.pid
        order = {**self.order, "generation": generation, "env": {**self.environment, **environment}}
        self.agent.watched.process.stdin.write(json.dumps(order) + "\n")
        self.agent.wait(lambda: self.pid != before, START_S, f"rank {self.rank}: a new process")

    def signal(self, number):
        """To the rank's process; whether there was one."""
        with self.agent.watched.changed:
            if self.pid is None or self.ended is not None:
                return False
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)
            return True


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
