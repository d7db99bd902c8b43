"""Where a training runs: on this machine's loopback, or in a virtual rack whose switch adds.

A place has a sentence for people (`sentence`), and `training(run)`, a context in which all that one training needs is
up and that yields the commands of its processes. An aggregator leaves its log, which ends with its counters, in the
run's folder as `aggregator.log`.
"""

import contextlib
import os
import pathlib
import re
import shutil
import signal
import sys
import time

from netsum_bench.demo.children import Aggregator, Start, find_netsum_command
from netsum_bench.processes import Failed
from netsum_bench.rack import Rack as VirtualRack

COUNTERS_TIMEOUT_S = 10
MASTER_PORT = 29400  # of worker 0, where nothing else runs


class Loopback:
    """All workers on this machine, started by torchrun."""

    name = "loopback"

    def __init__(self, aggregator="daemon"):
        self.aggregator = aggregator

    @property
    def sentence(self):
        how = "by a daemon" if self.aggregator == "daemon" else "in shards inside the workers"
        return f"on this machine's loopback device; netsum adds {how}"

    @contextlib.contextmanager
    def training(self, run):
        # The workers stand for hosts of their own, so not even these are summed in shared memory.
        environment = {"NETSUM_AGGREGATOR": None, "NETSUM_SHARED_MEMORY": "0", "OMP_NUM_THREADS": "1"}
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", run.workers, "--redirects", 3, "--log-dir", run.folder / "logs"),
            *train_arguments(run),
        ]
        with contextlib.ExitStack() as stack:
            if run.backend == "netsum" and self.aggregator == "daemon":
                daemon = stack.enter_context(Aggregator(run.folder / "aggregator.log"))
                environment["NETSUM_AGGREGATOR"] = daemon.address
            yield [Start(command, run.folder / "torchrun.log", environment)]


class Rack:
    """A virtual rack for each training: every worker a network namespace with a link of `rate` to the switch.

    Gloo gets a rack without XDP: a program on the switch's ports would take segmentation offload from its links.
    """

    name = "rack"

    def __init__(self, rate, aggregator="xdp", rack_name=None):
        self.rate, self.aggregator = rate, aggregator
        self.rack_name = rack_name or f"demo{os.getpid()}"

    @property
    def sentence(self):
        how = {
            "xdp": "in the kernel of the rack's switch (XDP)",
            "daemon": "by a daemon in the rack's switch",
            "embedded": "in shards inside the workers",
        }
        link = "links as fast as the machine" if self.rate == "none" else f"links of {self.rate}"
        return f"in a virtual rack with {link}; netsum adds {how[self.aggregator]}"

    def problem(self):
        """Why there can be no such rack here, in the words of the command that failed; None if there can be one."""
        try:
            with self._rack(1, "netsum"):
                return None
        except Failed as error:
            return str(error)

    @contextlib.contextmanager
    def training(self, run):
        logs = run.folder / "logs"
        # rack exec sets NETSUM_AGGREGATOR, MASTER_ADDR and GLOO_SOCKET_IFNAME as fits the rack.
        unset = ["env", "-u", "NETSUM_AGGREGATOR"] if self.aggregator == "embedded" else []
        with self._rack(run.workers, run.backend) as rack:
            starts = []
            for worker in range(run.workers):
                (logs / str(worker)).mkdir(parents=True)
                environment = {
                    "RANK": str(worker),
                    "WORLD_SIZE": str(run.workers),
                    "MASTER_PORT": str(MASTER_PORT),
                    "OMP_NUM_THREADS": "1",
                    "MASTER_ADDR": None,
                    "GLOO_SOCKET_IFNAME": None,
                }
                command = rack.inside(worker, *unset, sys.executable, *train_arguments(run))
                starts.append(Start(command, logs / str(worker) / "stderr.log", environment))
            yield starts
            if run.backend == "netsum" and self.aggregator != "embedded":
                keep_aggregator_log(rack, run.folder / "aggregator.log")

    def _rack(self, workers, backend):
        dataplane = "xdp" if backend == "netsum" and self.aggregator == "xdp" else "user"
        return VirtualRack(find_netsum_command(), self.rack_name, workers, self.rate, 1500, dataplane)


def keep_aggregator_log(rack, path):
    """Ends the switch's aggregator, which then logs its counters, and copies its log; the rack takes it away."""
    [aggregator] = rack.status()["aggregators"]
    os.kill(aggregator["pid"], signal.SIGTERM)
    deadline = time.monotonic() + COUNTERS_TIMEOUT_S
    log = pathlib.Path(aggregator["log"])
    while not counters_in(log) and time.monotonic() < deadline:
        time.sleep(0.05)
    shutil.copyfile(log, path)


def train_arguments(run):
    return [
        *("-m", "netsum_bench.demo.train", "--model", run.model, "--backend", run.backend, "--steps", run.steps),
        *("--seed", run.seed, "--run-dir", run.folder),
        *(("--sparse",) if run.sparse else ()),
        *("--parallel", run.parallel),
        *run.more,
    ]


def counters_in(log):
    """What an aggregator counted in its life, from its log; empty unless it has ended in order."""
    with contextlib.suppress(OSError):
        for line in log.read_text(errors="replace").splitlines():
            _, found, counts = line.partition(" counters ")
            if found:
                return {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", counts)}
    return {}
