"""Simulated runs with verified sums, aggregators that lie, and memory that flips bits: what was sent, noticed and delivered.

Runs `netsum simulate --lying` on all processors, piece by piece, and adds the counts up after each piece. A run in which
something false is delivered, something right refused, or a lie not noticed ends it, with the command that replays the run.

  .venv/bin/python -m netsum_bench.lies_bench                  1,000,000 runs: 20 minutes on two cores
  .venv/bin/python -m netsum_bench.lies_bench --runs 2000
"""

import json
import os
import subprocess
import sys

from netsum_bench.figures import markdown
from netsum_bench.options import BenchmarkRun, make_parser, number_from, ready, say
from netsum_bench.processes import PROBLEMS, Failed

PIECE_LIMIT_S = 3600


def simulate(options, seed, runs):
    """The counts of so many runs, from this seed on."""
    command = [str(options.netsum), "simulate", "--lying", "--json", "--seed", str(seed), "--runs", str(runs)]
    process = subprocess.run(
        [*command, "--jobs", str(options.jobs)], capture_output=True, text=True, timeout=PIECE_LIMIT_S, check=False
    )
    counts = [line for line in process.stdout.splitlines() if line.startswith("{")]
    if process.returncode != 0 or len(counts) != 1:
        raise Failed(f"{process.stdout.strip()}\n{process.stderr.strip()}".strip()[-3000:])
    return json.loads(counts[0])


def add(counts, more):
    """The sums of two trees of numbers."""
    if not counts:
        return more
    return {
        name: add(counts[name], value) if isinstance(value, dict) else counts[name] + value
        for name, value in more.items()
    }


def table(records):
    """Of the last record: those before it are parts of it."""
    counts = records[-1]
    told = sum(counts["told"].values())
    unnoticed = counts["runs_ended"] + counts["runs_unbalanced"]
    rows = [
        ["runs", counts["runs"]],
        ["sums verified by ranks", counts["sums_verified"]],
        ["lies told, all kinds", told],
        *([f"- {kind}", count] for kind, count in counts["told"].items()),
        # Earlier records have neither lies of racks to their parents nor P4 switches.
        ["of all kinds, those of racks to their parents", counts.get("told_upwards", 0)],
        [
            "false results sent: lies, sums with flipped bits or of what racks have altered, and what racks pass on of these",
            counts["false_sent"],
        ],
        ["bits flipped in what ranks have received", counts["flipped_in_ranks"]],
        ["false results that reached ranks that waited for them", counts["refused"] + counts["scales_taken"]],
        ["- refused at once", counts["refused"]],
        ["- false scales, taken until they were to be confirmed, before data is sent", counts["scales_taken"]],
        ["**wrong sums delivered**", counts["wrong_delivered"]],
        ["**right results refused (false alarms)**", counts["false_alarms"]],
        ["runs in which a rack lied to its parent", counts.get("runs_upwards", 0)],
        [
            "runs with P4 switches, as the model of their pipeline, in which false results were sent",
            counts.get("runs_switches", 0),
        ],
        ["runs in which no false result reached a rank", counts["runs_without"]],
        ["runs in which one did", counts["runs_reached"]],
        ["- with an alarm", counts["runs_reached"] - unnoticed],
        ["- without: the job ended before the false scales were confirmed", counts["runs_ended"]],
        [
            "- without: the false scales were those of a correction of the stripes' weights, unconfirmed when the last"
            " operation ended",
            counts["runs_unbalanced"],
        ],
    ]
    return markdown(["", ""], [[name, f"{count:,}" if isinstance(count, int) else count] for name, count in rows])


def parse_arguments():
    parser = make_parser(__doc__, budget=True)
    parser.add_argument("--runs", type=number_from(1, 10**9), default=1_000_000, help="(default %(default)s)")
    parser.add_argument("--seed", type=number_from(0, 2**63), default=1, help="of the first run (default %(default)s)")
    parser.add_argument("--piece", type=number_from(1, 10**6), default=10_000, help="runs between two reports")
    parser.add_argument("--jobs", type=number_from(1, 1024), default=os.cpu_count(), help="threads; default: all CPUs")
    return ready(parser, parser.parse_args(), "lies")


def main():
    options = parse_arguments()
    run = BenchmarkRun(options)
    counts, done = {}, 0
    while done < options.runs and not run.expired():
        runs = min(options.piece, options.runs - done)
        try:
            counts = add(counts, simulate(options, options.seed + done, runs))
        except PROBLEMS as problem:
            say(f"FAILED: {problem}")
            return 1
        done += runs
        run.keep({"what": "lies", "seed": options.seed, **counts})
        left = run.seconds() / done * (options.runs - done)
        say(f"  {done:,} runs, nothing wrong; {sum(counts['told'].values()):,} lies; {left / 60:.0f} minutes left")
    say(f"\n{table([counts])}\n\nrecords: {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
