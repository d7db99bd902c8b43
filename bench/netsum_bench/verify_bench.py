"""What verified sums cost: processor time of ranks and of the aggregator with `--verify packet`, `both` and `sum`.

The modes take turns, round by round, each in a new `netsum bench allreduce` with an aggregator of its own, all on this machine.
Every result is verified. Processor time of ranks is that of the timed operations, of the aggregator that of the whole run,
divided by the packets that it has received and sent. Needs no root.

  .venv/bin/python -m netsum_bench.verify_bench                      8 ranks, 16 MiB: about two minutes
  .venv/bin/python -m netsum_bench.verify_bench --workers 2 --size 1Mi --rounds 1
"""

import json
import sys

from pandas import DataFrame

from netsum_bench.figures import change_text, markdown, range_text
from netsum_bench.options import BenchmarkRun, make_parser, number_from, parse_size, ready, say
from netsum_bench.processes import PROBLEMS, finish, start
from netsum_bench.rack_report import size_text
from netsum_bench.records import load

MODES = ["packet", "both", "sum"]
WARMUP = 1


def command_of(options, mode):
    return [
        str(options.netsum),
        "bench",
        "allreduce",
        *("--workers", str(options.workers)),
        *("--bytes", str(options.size)),
        *("--iterations", str(options.iterations)),
        *("--warmup", str(WARMUP)),
        *("--shares", "off"),
        *("--verify", mode),
        "--with-aggregator",
        "--json",
    ]


def measurement(report, iterations):
    """Of one run, from its report."""
    ranks = report["ranks"]
    packets = sum(rank["packets_sent"] + rank["packets_received"] for rank in ranks)
    return {
        "wrong": report["results_wrong"],
        "time_ms": report["time_us"]["median"] / 1e3,
        "ranks_cpu_ms": 1e3 * sum(rank["cpu_seconds"] for rank in ranks) / iterations,
        "packets": packets / iterations,
        "aggregator_ns": 1e9 * report["aggregator_cpu_seconds"] / (packets * (iterations + WARMUP) / iterations),
        "resent": sum(rank["retransmissions"] for rank in ranks) / iterations,
    }


def measure(options, mode):
    (output,) = finish([start(command_of(options, mode))])
    return measurement(json.loads(output), options.iterations)


def table(records):
    """By mode; the ratios are those to mode `packet` in the same round."""
    frame = DataFrame([record for record in records if "failed" not in record])
    rows = []
    for (workers, size), place in frame.groupby(["workers", "bytes"]):
        of_packet = place[place["mode"] == "packet"].set_index("round")
        for mode in MODES:
            runs = place[place["mode"] == mode].set_index("round")
            if runs.empty:
                continue
            row = [f"{workers} ranks, {size_text(size)}, `{mode}`", range_text(runs["ranks_cpu_ms"])]
            row.append("" if mode == "packet" else change_text(runs["ranks_cpu_ms"], of_packet["ranks_cpu_ms"]))
            row.append(range_text(runs["aggregator_ns"]))
            row.append("" if mode == "packet" else change_text(runs["aggregator_ns"], of_packet["aggregator_ns"]))
            rows.append([*row, f"{runs['packets'].median():.0f}", range_text(runs["time_ms"])])
    return markdown(HEADINGS, rows)


HEADINGS = [
    "median (least - greatest) of the rounds",
    "CPU ms of all ranks, per operation",
    "to `packet`",
    "CPU ns of the aggregator, per packet",
    "to `packet`",
    "packets per operation",
    "ms per operation",
]


def parse_arguments():
    parser = make_parser(__doc__, budget=True)
    parser.add_argument("--workers", type=number_from(2, 64), default=8, help="(default %(default)s)")
    parser.add_argument("--size", type=parse_size, default="16Mi", help="bytes as float32 (default %(default)s)")
    parser.add_argument("--iterations", type=number_from(1, 1000), default=6, help="of a round (default %(default)s)")
    parser.add_argument(
        "--rounds", type=number_from(1, 100), default=9, help="turns of every mode (default %(default)s)"
    )
    return ready(parser, parser.parse_args(), "verify")


def main():
    options = parse_arguments()
    run = BenchmarkRun(options)
    say(f"{options.workers} ranks, {size_text(options.size)}, an aggregator of one core")
    for number in range(options.rounds):
        for mode in MODES[number % len(MODES) :] + MODES[: number % len(MODES)]:
            if run.expired():
                break
            record = {"mode": mode, "workers": options.workers, "bytes": options.size, "round": number}
            try:
                record.update(measure(options, mode))
                text = f"{record['ranks_cpu_ms']:8.1f} ms of CPU, aggregator {record['aggregator_ns']:6.0f} ns a packet"
            except PROBLEMS as problem:
                record["failed"] = str(problem)
                text = f"FAILED: {problem}"
            run.keep(record)
            say(f"  round {number + 1}, {mode:6} {text}")
    say(f"\n{table(load(options.output))}\n\nrecords: {options.output}")
    return 1 if run.failures else 0


if __name__ == "__main__":
    sys.exit(main())
