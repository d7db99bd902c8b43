"""Ranks on one host: netsum's sums in shared memory beside Gloo's all-reduce over loopback.

The two take turns, round by round, so that whatever else the machine does falls on both; every result is verified.

  .venv/bin/python bench/rack/one_host.py                           4 and 8 ranks, 4 KiB to 16 MiB
  .venv/bin/python bench/rack/one_host.py --workers 8 --sizes 64Mi --rounds 3
"""
import argparse
import contextlib
import datetime
import json
import os
import pathlib
import shlex
import socket
import statistics
import sys

from bench import ROOT, machine, parse_size
from systems import Failed, Gloo, finish, start

SYSTEMS = ("netsum", "gloo")


class Host:
    """In the place of a rack: every rank runs here, side by side."""

    def __init__(self, netsum, workers):
        self.netsum, self.workers = netsum, workers
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.master = "127.0.0.1:%d" % probe.getsockname()[1]

    @staticmethod
    def inside(_where, *command):
        return [str(part) for part in command]


class SharedMemory:
    """netsum in shared memory, each measurement a run of `netsum bench allreduce`."""

    name = "netsum"

    def __init__(self, host):
        self.host = host

    def measure(self, size, iterations, warmup):
        command = [self.host.netsum, "bench", "allreduce", "--workers", self.host.workers, "--shared-memory", "--bytes",
                   size, "--iterations", iterations, "--warmup", warmup, "--timeout", "120s", "--json"]
        report = json.loads(finish([start(self.host.inside(None, *command))])[0])
        times = report["time_us"]
        sent = sum(rank["bytes_sent"] for rank in report["ranks"])
        if sent:
            raise Failed(f"{sent} bytes went into the network: {report['summed_by']}")
        return {"wrong": report["results_wrong"], "median_s": times["median"] / 1e6, "p99_s": times["p99"] / 1e6,
                "cpu_seconds": sum(rank["cpu_seconds"] for rank in report["ranks"])}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", default="4,8", help="numbers of ranks (%(default)s)")
    parser.add_argument("--sizes", default="4Ki,1Mi,16Mi", help="bytes of a float32 tensor (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each system at each size (%(default)s)")
    parser.add_argument("--netsum", type=pathlib.Path, default=ROOT / "build/release/tools/netsum/netsum")
    parser.add_argument("--output", type=pathlib.Path, help="also append one JSON object per measurement to this file")
    return parser.parse_args()


def iterations_for(size):
    """Most of the time goes into making and checking tensors."""
    return 100 if size <= 64 << 10 else 5


def measure_all(options, keep):
    for workers in map(int, options.workers.split(",")):
        host = Host(options.netsum, workers)
        with contextlib.closing(Gloo(host)) as gloo:
            systems = [SharedMemory(host), gloo]
            for size in map(parse_size, options.sizes.split(",")):
                iterations = iterations_for(size)
                for number in range(options.rounds):
                    for system in systems:
                        result = system.measure(size, iterations, 2)
                        if result["wrong"]:
                            raise Failed(f"{system.name} gave {result['wrong']} wrong results")
                        keep({"system": system.name, "workers": workers, "bytes": size, "round": number,
                              "median_s": result["median_s"], "p99_s": result["p99_s"],
                              "cpu_seconds_per_rank": result["cpu_seconds"] / iterations / workers})
                yield workers, size


def line_of(records, workers, size):
    """Medians over the rounds [least - most], and how many times as fast as Gloo netsum was, round by round."""
    rounds = {name: sorted((r for r in records if (r["system"], r["workers"], r["bytes"]) == (name, workers, size)),
                           key=lambda r: r["round"]) for name in SYSTEMS}
    cells = [f"{workers:5d} {size:10d}"]
    for name in SYSTEMS:
        times = [r["median_s"] * 1e3 for r in rounds[name]]
        cells.append(f"{statistics.median(times):9.3f} [{min(times):8.3f} - {max(times):8.3f}]")
        cells.append(f"{statistics.median(r['cpu_seconds_per_rank'] for r in rounds[name]) * 1e3:9.3f}")
    ratios = [gloo["median_s"] / ours["median_s"] for ours, gloo in zip(*(rounds[name] for name in SYSTEMS))]
    cells.append(f"{statistics.median(ratios):6.2f} [{min(ratios):.2f} - {max(ratios):.2f}]")
    return "  ".join(cells)


def main():
    options = parse_arguments()
    if not options.netsum.exists():
        print(f"one_host: {options.netsum} is not there; build it (make build) or name it (--netsum)", file=sys.stderr)
        return 3
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    head = {"machine": machine(), "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "command": shlex.join(sys.argv)}
    print(f"{head['machine']}; {head['date']}\n{head['command']}\nmilliseconds: median [min - max] of the rounds, then "
          "CPU per rank and operation\n"
          f"ranks      bytes  {'netsum':>31}  {'CPU':>9}  {'Gloo':>31}  {'CPU':>9}  times as fast", flush=True)
    records = []
    with contextlib.ExitStack() as stack:
        out = stack.enter_context(options.output.open("a", encoding="utf-8")) if options.output else None

        def keep(record):
            records.append(record)
            if out:
                out.write(json.dumps({**head, **record}) + "\n")

        try:
            for workers, size in measure_all(options, keep):
                print(line_of(records, workers, size), flush=True)
        except Failed as problem:
            print(f"one_host: {problem}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
