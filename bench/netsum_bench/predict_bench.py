"""What predicted scales gain and cost: times of all-reduces with and without them, over inputs that differ in what recurs.

Inputs whose scales recur (`steady`), that are normally distributed with a slowly changing deviation (`normal`), and whose scales
never recur (`varied`). With and without take turns, round by round, each in a new `netsum bench allreduce` with an aggregator of
its own, all on this machine. Every result is verified. Needs no root.

  .venv/bin/python -m netsum_bench.predict_bench                      4 ranks, 4 KiB to 16 MiB: about five minutes
  .venv/bin/python -m netsum_bench.predict_bench --workers 2 --sizes 64Ki --rounds 1
"""

import json
import sys

from pandas import DataFrame

from netsum_bench.figures import change_text, markdown, number, range_text
from netsum_bench.options import (
    BenchmarkRun,
    add_choice,
    make_parser,
    number_from,
    parse_size,
    ready,
    say,
)
from netsum_bench.processes import PROBLEMS, finish, start
from netsum_bench.rack_report import size_text
from netsum_bench.records import load

DATA = ["steady", "normal", "varied"]
# Enough for scales to be trusted, which takes three times.
WARMUP = 8
# Fewer of large tensors: an iteration is verified, too, which takes each rank time in proportion to the data of all.
ITERATIONS_UP_TO = [(64 << 10, 200), (1 << 20, 50), (1 << 62, 12)]


def iterations_of(size):
    return next(count for limit, count in ITERATIONS_UP_TO if size <= limit)


def command_of(options, size, data, predict):
    return [
        str(options.netsum),
        "bench",
        "allreduce",
        *("--workers", str(options.workers)),
        *("--bytes", str(size)),
        *("--iterations", str(iterations_of(size))),
        *("--warmup", str(WARMUP)),
        *("--data", data),
        *("--predict-scales", "1" if predict else "0"),
        *("--shares", "off"),
        "--with-aggregator",
        "--json",
    ]


def measurement(report):
    """Of one run, from its report."""
    ranks = report["ranks"]
    iterations = report["iterations"]
    return {
        "wrong": report["results_wrong"],
        "time_us": report["time_us"]["median"],
        "cpu_ms": 1e3 * sum(rank["cpu_seconds"] for rank in ranks) / iterations,
        "predicted": ranks[0]["scales_predicted"] / iterations,
        "mispredicted": ranks[0]["scales_mispredicted"] / iterations,
        "resent": sum(rank["retransmissions"] for rank in ranks) / iterations,
    }


def table(records):
    """By size and data; ratios are those to the run without prediction in the same round."""
    frame = DataFrame([record for record in records if "failed" not in record])
    rows = []
    for (workers, size), place in frame.groupby(["workers", "bytes"]):
        for data in DATA:
            runs = place[place["data"] == data].set_index("round")
            without, with_it = (runs[runs["predict"] == predict] for predict in (False, True))
            if without.empty or with_it.empty:
                continue
            predicted, wrong = with_it["predicted"].median(), with_it["mispredicted"].median()
            row = [f"{workers} ranks, {size_text(size)}, {data}", f"{number(predicted)}, {number(wrong)}"]
            row += [range_text(without["time_us"] / 1e3, "{:.3g}"), range_text(with_it["time_us"] / 1e3, "{:.3g}")]
            row += [
                change_text(with_it["time_us"], without["time_us"]),
                change_text(with_it["cpu_ms"], without["cpu_ms"]),
            ]
            rows.append(row)
    return markdown(HEADINGS, rows)


HEADINGS = [
    "median (least - greatest) of the rounds",
    "chunks predicted, wrong",
    "ms without",
    "ms with",
    "time",
    "CPU of ranks",
]


def parse_arguments():
    parser = make_parser(__doc__, budget=True)
    parser.add_argument("--workers", type=number_from(2, 64), default=4, help="(default %(default)s)")
    parser.add_argument(
        "--sizes",
        type=lambda text: [parse_size(size) for size in text.split(",")],
        default="4Ki,64Ki,1Mi,16Mi",
        help="bytes as float32 (default %(default)s)",
    )
    add_choice(parser, "--data", DATA)
    parser.add_argument(
        "--rounds", type=number_from(1, 100), default=7, help="turns with and without (default %(default)s)"
    )
    return ready(parser, parser.parse_args(), "predict")


def main():
    options = parse_arguments()
    run = BenchmarkRun(options)
    for round_number in range(options.rounds):
        for size in options.sizes:
            for data in options.data:
                for predict in (False, True) if round_number % 2 == 0 else (True, False):
                    if run.expired():
                        break
                    record = {"workers": options.workers, "bytes": size, "data": data, "predict": predict}
                    record["round"] = round_number
                    try:
                        (output,) = finish([start(command_of(options, size, data, predict))])
                        record.update(measurement(json.loads(output)))
                        text = f"{record['time_us'] / 1e3:9.3f} ms, {record['predicted']:.1f} chunks predicted"
                    except PROBLEMS as problem:
                        record["failed"] = str(problem)
                        text = f"FAILED: {problem}"
                    run.keep(record)
                    say(
                        f"  round {round_number + 1}, {size_text(size)}, {data:7}{'with' if predict else 'without':8}{text}"
                    )
    say(f"\n{table(load(options.output))}\n\nrecords: {options.output}")
    return 1 if run.failures else 0


if __name__ == "__main__":
    sys.exit(main())
