"""Ranks on one host: netsum's sums in shared memory beside Open MPI's, and netsum, Gloo and Open MPI over loopback.

The clock rule, the turns and the choice of the peers' settings are those of bench.py. Needs no root.

  .venv/bin/python -m netsum_bench.one_host                           4 and 8 ranks, 1 KiB to 64 MiB
  .venv/bin/python -m netsum_bench.one_host --workers 8 --sizes 4Mi --rounds 3
"""

import contextlib
import os
import socket
import sys

from netsum_bench import rack_report
from netsum_bench.options import BenchmarkRun, make_parser, need_netsum, new_output, parse_size, say
from netsum_bench.processes import PROBLEMS, running
from netsum_bench.rack_bench import LEAST_ITERATIONS, SMALL, measure_cells
from netsum_bench.records import load
from netsum_bench.systems import Gloo, Netsum, OpenMpi

SYSTEMS = ["netsum-memory", "openmpi-memory", "netsum-user", "netsum-shards", "gloo"]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Host:
    """In the place of a rack: every rank runs here, side by side, with nothing between them but this machine."""

    dataplane, multicast, rate, mtu = "user", False, "none", 1500

    def __init__(self, netsum, workers):
        self.netsum, self.workers = netsum, workers
        self.master, self.root = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        self.resources = contextlib.ExitStack()
        self.environment = []

    @contextlib.contextmanager
    def another_in_switch(self, *flags):
        """An aggregator of one core, for the time of a `with`: its address."""
        address = f"127.0.0.1:{free_port()}"
        command = [str(self.netsum), "aggregator", "--listen", address, "--cores", "1", *flags]
        with running(command, "ready", "the aggregator"):
            yield address

    def serve(self):
        """Starts an aggregator, which ranks use unless told otherwise."""
        address = self.resources.enter_context(self.another_in_switch())
        self.environment = ["env", f"NETSUM_AGGREGATOR={address}"]

    def inside(self, _where, *command):
        return [str(part) for part in (*self.environment, *command)]

    @staticmethod
    def mpi_placement(_folder):
        return ["--oversubscribe", "--mca", "btl", "vader,self"]

    @staticmethod
    def link_bytes():
        return 0, 0

    def close(self):
        self.resources.close()


class OpenMpiInMemory(OpenMpi):
    name = "openmpi-memory"

    def candidates(self, sizes):
        without = [
            "default, no CMA",
            "default, nonoverlapping, no CMA",
            "yield, no CMA",
            "yield, nonoverlapping, no CMA",
        ]
        return {**super().candidates(sizes), **dict.fromkeys(without, sizes)}


def plan_rounds(size, rounds):
    return [(30 if size <= SMALL else max(-(-LEAST_ITERATIONS // rounds), 5), 1)] * rounds


def run_host(options, workers, out, say, expired):
    with contextlib.ExitStack() as stack:
        host = Host(options.netsum, workers)
        stack.callback(host.close)
        host.serve()
        makers = {
            "netsum-memory": lambda: Netsum(host, "memory"),
            "openmpi-memory": lambda: OpenMpiInMemory(host),
            "netsum-user": lambda: Netsum(host),
            "netsum-shards": lambda: Netsum(host, "shards"),
            "gloo": lambda: Gloo(host),
        }
        systems = []
        for name in options.systems.split(","):
            try:
                systems.append(makers[name]())
            except PROBLEMS as problem:
                say(f"  {name} is left out: {problem}")
                out({"rate": "host", "workers": workers, "left_out": name, "failed": str(problem)})
                continue
            stack.callback(systems[-1].close)
        measure_cells(
            systems,
            {"rate": "host", "workers": workers},
            list(map(parse_size, options.sizes.split(","))),
            lambda size: plan_rounds(size, options.rounds),
            out,
            say,
            expired,
        )


def parse_arguments():
    parser = make_parser(__doc__, budget=True)
    parser.add_argument("--workers", default="4,8", help="numbers of ranks (%(default)s)")
    parser.add_argument("--sizes", default="1Ki,4Ki,64Ki,1Mi,16Mi,64Mi", help="bytes of a float32 tensor (%(default)s)")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="of %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each system at each size (%(default)s)")
    options = parser.parse_args()
    unknown = set(options.systems.split(",")) - set(SYSTEMS)
    if unknown:
        parser.error(f"unknown system {', '.join(sorted(unknown))}; there are {', '.join(SYSTEMS)}")
    need_netsum(parser, options)
    if options.output is None:
        options.output = new_output("one-host")
    return options


def main():
    options = parse_arguments()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    run = BenchmarkRun(options)
    for workers in map(int, options.workers.split(",")):
        if run.expired():
            print(f"the budget of {options.budget:g} minutes is spent: {workers} ranks left out")
            break
        print(f"{workers} ranks", flush=True)
        run_host(options, workers, run.keep, say, run.expired)
    if options.output.exists():
        print("\n" + rack_report.text(load(options.output)) + f"\n\nrecords: {options.output}")
    return 1 if run.failures else 0


if __name__ == "__main__":
    sys.exit(main())
