"""The rack benchmark: netsum beside Gloo and Open MPI, in virtual racks on this machine.

For each number of workers and link rate, two racks are up side by side, one whose switch adds in a daemon, one in XDP;
Gloo and Open MPI run in the first. The systems take turns, size by size and round by round, so that whatever else the
machine does falls on all of them. Every result of every system is verified. Needs root.

  make bench                                            everything (about an hour)
  make bench-quick                                      a look, under three minutes
  make bench BENCH_FLAGS="--workers 8 --rates 100mbit --sizes 16Mi,64Mi"
"""
import argparse
import contextlib
import json
import os
import pathlib
import platform
import sys
import time

import rack_report
from systems import Failed, Gloo, Netsum, OpenMpi, Rack

ROOT = pathlib.Path(__file__).resolve().parents[2]
SUFFIX = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
SYSTEMS = ["netsum-user", "netsum-xdp", "netsum-user-bfloat16", "gloo", "openmpi"]
# When asked for; with AF_XDP only on unshaped links. (In XDP each worker has a port of its own, so multicast saves nothing.)
MORE_SYSTEMS = ["netsum-user-af_xdp", "netsum-xdp-af_xdp", "netsum-user-multicast"]
QUICK = {"workers": "4", "rates": "100mbit,none", "sizes": "4Ki,1Mi,4Mi", "rounds": 1}


def parse_size(text):
    for suffix, factor in SUFFIX.items():
        if text.endswith(suffix):
            return int(text[:-len(suffix)]) * factor
    return int(text)


def parse_rate(text):
    """Bits per second; None: not shaped."""
    return None if text == "none" else float(text[:-4]) * {"gbit": 1e9, "mbit": 1e6}[text[-4:]]


def need_root(parser):
    if os.geteuid() != 0:
        parser.exit(3, f"{pathlib.Path(sys.argv[0]).stem}: virtual racks need root: run it with sudo\n")


def append_to(path, head):
    """A function that adds records, each with `head`, to the file, as lines of JSON; without a path it does nothing."""
    def out(record):
        if path:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({**head, **record}) + "\n")
    return out


def machine():
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo", encoding="ascii", errors="replace")
                  if line.startswith("model name")), platform.machine())
    return f"{model}; {os.cpu_count()} cores; Linux {platform.release()}"


def iterations_for(size, rate):
    """As many as take about two seconds on the link, at least two; latencies need hundreds."""
    if size <= 64 << 10:
        return 200
    seconds = size * 16 / (rate or 2e9)
    return int(min(20, max(2, 2 / seconds)))


def open_systems(wanted, racks, stack, say):
    makers = {"netsum-user": lambda: Netsum(racks["user"]), "netsum-xdp": lambda: Netsum(racks["xdp"]),
              "netsum-user-af_xdp": lambda: Netsum(racks["user"], packet_io="af_xdp"),
              "netsum-xdp-af_xdp": lambda: Netsum(racks["xdp"], packet_io="af_xdp"),
              "netsum-user-multicast": lambda: Netsum(racks["multicast"]),
              "netsum-user-bfloat16": lambda: Netsum(racks["user"], "bfloat16"),
              "gloo": lambda: Gloo(racks["user"]), "openmpi": lambda: OpenMpi(racks["user"])}
    opened = []
    for name in wanted:
        try:
            system = makers[name]()
        except Failed as problem:
            say(f"  {name} is left out: {problem}")
            continue
        stack.callback(system.close)
        opened.append(system)
    return opened


def measure_one(system, size, iterations, warmup):
    rack = system.rack
    up, down = rack.link_bytes()
    switch = rack.switch_cpu_seconds()
    result = system.measure(size, iterations, warmup)
    up_after, down_after = rack.link_bytes()
    operations = iterations + warmup
    return {**result, "link_bytes_up": (up_after - up) / operations, "link_bytes_down": (down_after - down) / operations,
            "cpu_seconds_per_rank": result["cpu_seconds"] / iterations / rack.workers,
            "switch_cpu_seconds": (rack.switch_cpu_seconds() - switch) / operations}


def run_place(options, workers, rate, out, say):
    """All systems and sizes at one number of workers and one rate."""
    wanted = options.systems.split(",")
    with contextlib.ExitStack() as stack:
        racks = {dataplane: stack.enter_context(Rack(options.netsum, f"bench{dataplane}", workers, rate, options.mtu,
                                                     dataplane)) for dataplane in ("user", "xdp")}
        if any(name.endswith("-multicast") for name in wanted):
            racks["multicast"] = stack.enter_context(Rack(options.netsum, "benchmulticast", workers, rate, options.mtu,
                                                          "user", multicast=True))
        systems = open_systems(wanted, racks, stack, say)
        for size in map(parse_size, options.sizes.split(",")):
            iterations = iterations_for(size, parse_rate(rate))
            for number in range(options.rounds):
                for system in systems:
                    try:
                        result = measure_one(system, size, iterations, 1)
                    except Failed as problem:
                        say(f"  {system.name}, {size} bytes: FAILED: {problem}")
                        out({"system": system.name, "workers": workers, "rate": rate, "bytes": size, "round": number,
                             "failed": str(problem)})
                        continue
                    out({"system": system.name, "workers": workers, "rate": rate, "bytes": size, "round": number,
                         "iterations": iterations, "mtu": options.mtu, **result})
                    say(f"  {rack_report.size_text(size):>7}  {system.name:21} {result['median_s'] * 1e3:10.3f} ms"
                        + ("" if result["wrong"] == 0 else f"  {result['wrong']} WRONG ELEMENTS"))


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", default="2,4,8,16", help="numbers of workers (default %(default)s)")
    parser.add_argument("--rates", default="100mbit,1gbit,none", help="link rates (default %(default)s)")
    parser.add_argument("--sizes", default="4Ki,64Ki,1Mi,16Mi,64Mi", help="bytes as float32 (default %(default)s)")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help=f"of %(default)s; also {', '.join(MORE_SYSTEMS)}")
    parser.add_argument("--rounds", type=int, default=3, help="turns of every system (default %(default)s)")
    parser.add_argument("--mtu", type=int, default=1500)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK}, where not given")
    parser.add_argument("--netsum", type=pathlib.Path, default=ROOT / "build/release/tools/netsum/netsum",
                        help="the command to measure")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "build/bench", help="folder of the results")
    options = parser.parse_args()
    if options.quick:
        for name, value in QUICK.items():
            if getattr(options, name) == parser.get_default(name):
                setattr(options, name, value)
    unknown = set(options.systems.split(",")) - set(SYSTEMS + MORE_SYSTEMS)
    if unknown:
        parser.error(f"unknown system {', '.join(sorted(unknown))}; there are {', '.join(SYSTEMS + MORE_SYSTEMS)}")
    need_root(parser)
    if not options.netsum.exists():
        parser.exit(3, f"bench: there is no {options.netsum}: run make build first\n")
    return options


def main():
    options = parse_arguments()
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / "results.jsonl"
    begun = time.monotonic()
    say = lambda text: print(text, flush=True)
    places = [(int(w), rate) for rate in options.rates.split(",") for w in options.workers.split(",")]
    with path.open("w", encoding="utf-8") as file:
        def out(record):
            file.write(json.dumps(record) + "\n")
            file.flush()
        out({"machine": machine(), "command": " ".join(sys.argv), "date": time.strftime("%Y-%m-%d")})
        for number, (workers, rate) in enumerate(places):
            say(f"[{number + 1}/{len(places)}] {workers} workers, {rate}, {time.monotonic() - begun:.0f} s")
            run_place(options, workers, rate, out, say)
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    say("\n" + rack_report.table(records))
    page = rack_report.write_html(records, options.output / "report.html")
    say(f"\nresults: {path}\nreport:  {page}")
    return 1 if any(r.get("wrong") or "failed" in r for r in records) else 0


if __name__ == "__main__":
    sys.exit(main())
