"""Virtual racks for tests: real namespaces, links and packets; everything is taken away again."""

import hashlib
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time

import pytest
from harness import NETSUM, PATIENCE_S, CommandTest, clean_environment

# Sends its standard input to, or writes to standard output what comes from, one TCP connection.
SEND = (
    "import socket,sys;s=socket.create_connection((sys.argv[1],9000),30);s.sendall(sys.stdin.buffer.read());s.close()"
)
RECEIVE = """
import socket,sys,hashlib
server=socket.create_server(("0.0.0.0",9000));print("listening",flush=True);server.settimeout(30)
s,_=server.accept();s.settimeout(30);h=hashlib.sha256();n=0
while chunk:=s.recv(1<<20): h.update(chunk);n+=len(chunk)
print(n,h.hexdigest(),flush=True)
"""


def namespaces():
    folder = pathlib.Path("/run/netns")
    return set(os.listdir(folder)) if folder.exists() else set()


def may_make_namespaces():
    probe = f"netsum-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
    if made.returncode == 0:
        subprocess.run(["ip", "netns", "del", probe], check=False)
    return made.returncode == 0, made.stderr.strip()


class RackCommandTest(CommandTest):
    def set_up(self):
        permitted, why = may_make_namespaces()
        if not permitted:
            pytest.skip(f"no network namespaces here: {why}")
        folder = tempfile.TemporaryDirectory()
        self.cleanup.callback(folder.cleanup)
        self.environment = clean_environment(NETSUM_RACK_DIR=folder.name)
        self.folder = pathlib.Path(folder.name)
        self.name = f"t{os.getpid()}"
        self.cleanup.callback(lambda: self.rack("down", "--all"))

    def rack(self, *arguments):
        return self.run_command("rack", *arguments, environment=self.environment)

    def up(self, *arguments):
        up = self.rack("up", "--name", self.name, *arguments)
        assert up.status == 0, up.text("err")
        return up

    def start_in(self, where, *command):
        return self.start("rack", "exec", "--name", self.name, where, "--", *command, environment=self.environment)

    def run_in(self, where, *command):
        running = self.start_in(where, *command)
        running.status = running.end()
        return running

    def status(self):
        racks = json.loads(self.rack("status", "--json").text("out"))
        return next(rack for rack in racks if rack["name"] == self.name)

    def start_rank(self, worker, workers, *flags):
        """The worker's rank of an all-reduce over the rack's first `workers`."""
        return self.start_in(worker, NETSUM, "bench", "allreduce", "--rank", worker, "--world-size", workers, *flags)

    def sum_over(self, workers, *flags):
        """All workers sum over the rack's aggregator; returns rank 0's report."""
        ranks = [
            self.start_rank(
                w,
                workers,
                "--json",
                "--timeout",
                "20s",
                *flags,
            )
            for w in range(workers)
        ]
        for rank in ranks:
            assert rank.end() == 0, rank.text("err")
        return json.loads(ranks[0].text("out"))

    def reports_of(self, ranks):
        """Of a `netsum bench --json` on every worker, which must end well and verified."""
        reports = []
        for rank in ranks:
            assert rank.end() == 0, rank.text("err")
            reports.append(json.loads(rank.text("out")))
            assert reports[-1]["verified"]
        return reports

    def assert_nothing_left(self):
        assert {n for n in namespaces() if n.startswith(f"netsum-{self.name}-")} == set()
        assert list(self.folder.rglob("*.json")) == []

    def send_between(self, sender, receiver, payload):
        """A TCP flow from worker to worker arrives whole."""
        address = next(node["address"] for node in self.status()["nodes"] if node["id"] == f"w{receiver}")
        server = self.start_in(receiver, "python3", "-c", RECEIVE)
        server.wait_for("listening", name="out")
        subprocess.run(
            [NETSUM, "rack", "exec", "--name", self.name, str(sender), "--", "python3", "-c", SEND, address],
            input=payload,
            env=self.environment,
            timeout=PATIENCE_S,
            check=True,
        )
        assert server.end() == 0, server.text("err")
        return server.wait_for(str(len(payload)), hashlib.sha256(payload).hexdigest(), name="out")

    def switch(self):
        """The switch, or the spine, with its aggregator's fields."""
        status = self.status()
        return {**status["aggregators"][0], **status["nodes"][0]}

    def data_port(self):
        ready = pathlib.Path(self.switch()["log"]).read_text(encoding="utf-8")
        return int(re.search(r"ready: control \S+, data \S+:(\d+)", ready).group(1))

    def wait_in_log(self, words):
        """The first line of the switch's aggregator's log that has `words`."""
        log = pathlib.Path(self.switch()["log"])
        deadline = time.monotonic() + PATIENCE_S
        while True:
            text = log.read_text(encoding="utf-8")
            for line in text.splitlines():
                if words in line:
                    return line
            assert time.monotonic() < deadline, f"no line with '{words}' in:\n{text}"
            time.sleep(0.02)

    def end_aggregator(self):
        """Ends the switch's aggregator in order; returns its counters."""
        os.kill(self.switch()["pid"], signal.SIGTERM)
        line = self.wait_in_log(" counters ")
        return {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", line)}
