"""Several jobs at one aggregator: how evenly they share it, and what becomes of those that find no room.

In a virtual rack, every job has two workers of its own, and the switch has one aggregator of one core for all. Measured are,
in turns, one job alone and all of them together, and then all of them where there is room for half, with the policies wait
and hosts. Every result is verified. Needs root.

  make bench-jobs                                             four jobs, links of 100 Mbit/s and unshaped
  make bench-jobs BENCH_FLAGS="--jobs 8 --rates 1gbit --rounds 5"
"""

import json
import os
import sys
import time

from netsum_bench.figures import jain, median, range_text
from netsum_bench.machine import machine
from netsum_bench.options import make_parser, need_netsum, need_root, parse_size
from netsum_bench.processes import Failed, finish, start
from netsum_bench.rack import Rack
from netsum_bench.records import append_to

TWO_DIGITS = "{:.2f}"
WORKERS = 2  # of a job
PORT = 5252  # of our aggregator, beside the rack's own


def run_jobs(rack, options, address, jobs, *flags):
    """All at once; per job its report, and the seconds from the start of all to its end."""
    begun = time.monotonic()
    ranks = {
        job: [
            start(
                rack.inside(
                    WORKERS * job + rank,
                    rack.netsum,
                    "bench",
                    "allreduce",
                    "--rank",
                    rank,
                    "--world-size",
                    WORKERS,
                    "--job",
                    f"job{job}",
                    "--aggregator",
                    address,
                    "--bytes",
                    options.bytes,
                    "--iterations",
                    options.iterations,
                    "--warmup",
                    2,
                    "--connect-timeout",
                    "120s",
                    "--root",
                    f"10.77.0.{WORKERS * job + 1}:5353",
                    "--json",
                    *flags,
                )
            )
            for rank in range(WORKERS)
        ]
        for job in jobs
    }
    results = []
    waiting = dict(ranks)
    while waiting:  # in the order in which they end
        for job, processes in list(waiting.items()):
            if all(process.poll() is not None for process in processes):
                del waiting[job]
                results.append((job, time.monotonic() - begun))
        if time.monotonic() > begun + options.deadline:
            break
        time.sleep(0.01)
    reports = {}
    for job, processes in ranks.items():
        outputs = [json.loads(out) for out in finish(processes, 1)]
        if any(report["results_wrong"] for report in outputs):
            raise Failed(f"job {job} has wrong results")
        reports[job] = outputs[0]
    return [
        {
            "job": job,
            "seconds": seconds,
            "median_s": reports[job]["time_us"]["median"] / 1e6,
            "summed_by": reports[job]["summed_by"],
        }
        for job, seconds in results
    ]


def measure(rack, options, out):
    size, everyone = parse_size(options.bytes), range(options.jobs)
    ours = f"{rack.switch_address()}:{PORT}"
    alone, together, fairness = [], [], []
    makespans = {"wait": [], "hosts": []}
    on_hosts = []
    for number in range(options.rounds):
        with rack.aggregator("sw", ours) as address:
            [one] = run_jobs(rack, options, address, [0])
            all_of_them = run_jobs(rack, options, address, everyone)
        alone.append(size * 8 / one["median_s"] / 1e6)
        rates = [size * 8 / job["median_s"] / 1e6 for job in all_of_them]
        together += rates
        fairness.append(jain(rates))
        out({"rate": rack.rate, "round": number, "what": "alone", "bytes": size, "jobs": [one]})
        out({"rate": rack.rate, "round": number, "what": "together", "bytes": size, "jobs": all_of_them})
        for policy, seconds in makespans.items():
            with rack.aggregator("sw", ours, "--max-jobs", max(1, options.jobs // 2)) as address:
                jobs = run_jobs(rack, options, address, everyone, "--when-full", policy)
            seconds.append(max(job["seconds"] for job in jobs))
            if policy == "hosts":
                on_hosts.append(sum("embedded shards" in job["summed_by"] for job in jobs))
            out({"rate": rack.rate, "round": number, "what": policy, "bytes": size, "jobs": jobs})
    print(f"links: {rack.rate}; medians and, in brackets, least and greatest")
    print(f"  one job alone, Mbit/s of gradient          {range_text(alone, TWO_DIGITS)}")
    print(f"  each of {options.jobs} together, Mbit/s                {range_text(together, TWO_DIGITS)}")
    print(f"  Jain's fairness index of these             {min(fairness):.4f} at least")
    print(f"  room for half, the others wait: all done   {range_text(makespans['wait'], TWO_DIGITS)} s")
    print(
        f"  room for half, the others on their hosts   {range_text(makespans['hosts'], TWO_DIGITS)} s, "
        f"{median(on_hosts):g} jobs on hosts",
        flush=True,
    )


def parse_arguments():
    parser = make_parser(__doc__)
    parser.add_argument("--jobs", type=int, default=4, help="jobs at once, of two workers each (%(default)s)")
    parser.add_argument("--rates", default="100mbit,none", help="of every link (%(default)s)")
    parser.add_argument("--bytes", default="1Mi", help="of the tensors that are summed (%(default)s)")
    parser.add_argument("--iterations", type=int, default=30, help="sums of each job (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each measurement (%(default)s)")
    parser.add_argument(
        "--deadline", type=float, default=300, help="seconds after which a turn has failed (%(default)s)"
    )
    options = parser.parse_args()
    if not 1 <= options.jobs <= 16:
        parser.error("--jobs: 1 to 16")
    need_root(parser)
    need_netsum(parser, options)
    return options


def main():
    options = parse_arguments()
    out = append_to(options.output)
    print(f"{machine()}; {options.jobs} jobs of {WORKERS} workers, {options.bytes} each", flush=True)
    for rate in options.rates.split(","):
        with Rack(options.netsum, f"j{os.getpid()}", WORKERS * options.jobs, rate, 1500, "user") as rack:
            measure(rack, options, out)


if __name__ == "__main__":
    try:
        main()
    except Failed as problem:
        sys.exit(f"jobs_bench: {problem}")
