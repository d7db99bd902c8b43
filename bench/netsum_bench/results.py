"""Runs the benchmarks behind the published figures, and writes their tables.

Records go to build/results/PIECE.jsonl, measurement by measurement, so a run that is interrupted loses nothing; what is
measured again replaces the old. build/results/results.md has all tables of all records, and the plots lie beside it. No file
of the repository changes, except with PUBLISH=1, which a release uses: it writes the tables of README.md and
docs/results.md, which stand between <!-- figures NAME --> and <!-- end NAME -->.

  make results                          every piece, in order of importance (root; two to three hours)
  make results ONLY=rack,one-host       these pieces
  make results BUDGET=10                what fits into so many minutes
  make results ONLY=rack FULL=1         with 16 workers and 64 MiB
  make results ONLY=rack PUBLISH=1      and write the published tables
"""

import argparse
import dataclasses
import os
import re
import signal
import subprocess
import sys
import time

from netsum_bench import rack_bench, tables
from netsum_bench.machine import ROOT, version
from netsum_bench.records import compact, latest, load

RESULTS = ROOT / "build/results"
PYTHON, NETSUM = ".venv/bin/python", "build/release/tools/netsum/netsum"  # from the root
OUTPUT = "OUTPUT"  # stands for the file of the piece's records


@dataclasses.dataclass
class Piece:
    """Something that is measured by one command. `key`: what a later run of it replaces."""

    name: str
    minutes: float
    command: list
    key: tuple
    full: tuple = ()  # flags for what takes long
    has_budget: bool = False
    only_full: bool = False
    least_cores: int = 1  # of a machine that measures it

    @property
    def path(self):
        return RESULTS / f"{self.name}.jsonl"


def training(name, minutes, model, systems, more=(), full=("--workers", "4,8")):
    """A piece of the training benchmark: one round with 8 workers."""
    command = [PYTHON, "-m", "netsum_bench.training_bench", "--rounds", "1", "--models", model, "--workers", "8"]
    return Piece(
        name,
        minutes,
        [*command, *more, "--systems", systems],
        ("model", "workers", "rate", "system"),
        full,
        True,
    )


RACK_BENCH = [PYTHON, "-m", "netsum_bench.rack_bench"]
ONE_HOST = [PYTHON, "-m", "netsum_bench.one_host"]
EQUAL_SYSTEMS = "netsum-user,netsum-shards,gloo,openmpi"
COMPRESSED = f"netsum-user,gloo,openmpi,{','.join(rack_bench.COMPRESSED)}"


def door(name, minutes, systems, sizes="4Ki,1Mi,16Mi"):
    """A piece of the rack benchmark: all-reduces of 8 workers through a plug-in or with an option, beside the usual way."""
    command = [*RACK_BENCH, "--workers", "8", "--rates", "100mbit", "--sizes", sizes]
    key = ("rate", "workers", "bytes", "system")
    return Piece(name, minutes, [*command, "--systems", systems], key, (), True)


# In order of importance.
PIECES = [
    Piece(
        "rack",
        16,
        RACK_BENCH,
        ("rate", "workers", "bytes", "system"),
        ("--full",),
        True,
    ),
    Piece("shares", 7, [PYTHON, "-m", "netsum_bench.shares_bench"], ("rate", "workers", "bytes", "system"), (), True),
    Piece(
        "sparse",
        15,
        [PYTHON, "-m", "netsum_bench.sparse_bench"],
        ("rate", "workers", "count", "pattern", "overlap", "density", "system"),
        ("--selection", "full"),
        True,
    ),
    Piece(
        "collectives",
        11,
        [PYTHON, "-m", "netsum_bench.collectives_bench"],
        ("rate", "workers", "collective", "bytes", "system"),
        (),
        True,
    ),
    Piece("one-host", 5, ONE_HOST, ("workers", "bytes", "system"), (), True),
    door("mpi", 3.5, "netsum-user,netsum-mpi,openmpi"),
    door("lanes8", 6, "netsum-user,netsum-xdp,netsum-user-lanes8,netsum-xdp-lanes8,gloo,openmpi"),
    door("nccl", 2, "netsum-user,netsum-nccl"),
    door("compressed", 5, COMPRESSED, "16Mi"),
    Piece(
        "rack-9000",
        2,
        [*RACK_BENCH, "--mtu", "9000", "--rates", "none", "--sizes", "1Mi,16Mi", "--systems", EQUAL_SYSTEMS],
        ("rate", "workers", "bytes", "system"),
        (),
        True,
    ),
    Piece(
        "rack-16-cores",
        3,
        [*RACK_BENCH, "--rates", "none", "--sizes", "4Ki,1Mi,16Mi", "--systems", f"{EQUAL_SYSTEMS},netsum-xdp"],
        ("rate", "workers", "bytes", "system"),
        (),
        True,
        least_cores=16,
    ),
    Piece(
        "one-host-16-cores",
        2,
        [*ONE_HOST, "--systems", "netsum-memory,openmpi-memory"],
        ("workers", "bytes", "system"),
        (),
        True,
        least_cores=16,
    ),
    dataclasses.replace(door("compressed-16-cores", 3, COMPRESSED, "16Mi"), least_cores=16),
    training("training", 4, "lm", "gloo,netsum-xdp", full=("--models", "digits,lm", "--workers", "4,8")),
    training(
        "fsdp",
        6,
        "lm",
        "gloo-fsdp,gloo-fsdp-overlap,netsum-user-fsdp,netsum-user-fsdp-overlap",
        ("--rates", "100mbit"),
    ),
    training("recommender", 5, "recommender", "gloo,gloo-sparse,netsum-xdp,netsum-xdp-sparse"),
    Piece(
        "loss",
        3,
        [PYTHON, "-m", "netsum_bench.loss_bench"],
        ("loss", "system", "workers", "rate"),
        ("--size", "16Mi"),
        True,
    ),
    Piece("failures", 4, [PYTHON, "-m", "netsum_bench.failures_bench", "--rounds", "3"], ("scenario", "dataplane")),
    Piece("jobs", 1.5, [PYTHON, "-m", "netsum_bench.jobs_bench"], ("rate", "what")),
    Piece(
        "floods",
        2,
        [PYTHON, "-m", "netsum_bench.flood_bench", "--rounds", "3"],
        ("dataplane", "flood", "arm"),
    ),
    Piece(
        "simulation",
        1.5,
        [PYTHON, "-m", "netsum_bench.capture", "--output", OUTPUT, "--", NETSUM, "simulate", "--runs", "20000"],
        ("what",),
    ),
    Piece(
        "chaos",
        11,
        [PYTHON, "-m", "netsum_bench.capture", "--output", OUTPUT, "--", PYTHON, "tests/chaos/chaos.py", "--seed", "1"],
        ("what",),
        only_full=True,
    ),
    Piece(
        "variants",
        4,
        [
            PYTHON,
            "-m",
            "netsum_bench.rack_bench",
            "--workers",
            "4,2",
            "--rates",
            "none",
            "--sizes",
            "4Ki,16Mi",
            "--systems",
            "netsum-user,netsum-user-multicast,netsum-user-af_xdp,netsum-xdp,netsum-xdp-af_xdp",
        ],
        ("rate", "workers", "bytes", "system"),
        (),
        True,
        True,
    ),
    Piece(
        "compression",
        30,
        [PYTHON, "-m", "netsum_bench.compression_bench", "--budget", "30"],
        ("rate", "model", "workers", "seed", "system"),
        ("--budget", "600"),
        True,
    ),
    Piece(
        "thresholds",
        3,
        [PYTHON, "-m", "netsum_bench.thresholds_bench"],
        ("model", "method", "ratio"),
    ),
    Piece(
        "verify",
        3,
        [PYTHON, "-m", "netsum_bench.verify_bench"],
        ("workers", "bytes", "mode"),
        (),
        True,
    ),
    Piece(
        "predict",
        5,
        [PYTHON, "-m", "netsum_bench.predict_bench"],
        ("workers", "bytes", "data"),
        (),
        True,
    ),
    Piece(
        "lies",
        20,
        [PYTHON, "-m", "netsum_bench.lies_bench"],
        ("what",),
        (),
        True,
    ),
    Piece(
        "controller",
        6,
        [PYTHON, "-m", "netsum_bench.controller_bench"],
        ("workers", "phase", "system"),
    ),
    Piece(
        "hooks",
        4,
        [PYTHON, "-m", "netsum_bench.hooks_bench"],
        ("workers", "load", "method", "hook"),
    ),
    Piece("profile", 1.5, [PYTHON, "-m", "netsum_bench.profile"], ("case",)),
    Piece("micro", 1, [PYTHON, "-m", "netsum_bench.micro_bench"], ("benchmark",)),
]


def measure(piece, full, minutes):
    """Runs the piece, for so many minutes at most. Returns whether it ended well."""
    output = str(piece.path.relative_to(ROOT))  # the command is part of the records
    command = [output if part == OUTPUT else part for part in piece.command]
    command += [*(() if OUTPUT in piece.command else ("--output", output)), *(piece.full if full else ())]
    if piece.has_budget and minutes is not None:
        command += ["--budget", f"{minutes:.1f}"]
    print(f"\n=== {piece.name}: {' '.join(command)}", flush=True)
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        # Those that know a budget end soon after it by themselves.
        status = process.wait(None if minutes is None else 60 * (minutes + (5 if piece.has_budget else 0)))
    except (subprocess.TimeoutExpired, KeyboardInterrupt) as stopped:
        process.send_signal(signal.SIGINT)  # racks come down
        process.wait(60)
        if isinstance(stopped, KeyboardInterrupt):
            raise
        print(f"=== {piece.name}: stopped when its time was spent", flush=True)
        return False
    return status == 0


def provenance(piece, records):
    """What was measured: version, command, and where and when."""
    runs = []
    for record in records:
        if record["run"] not in runs:
            runs.append(record["run"])
    by_commit = {}
    for run in runs:
        by_commit.setdefault((run["commit"][:10], run["machine"]), []).append(run)
    said = "; ".join(
        f"{of[0]['date'][:10]}, commit `{commit}`, {machine}, load before it {max(run['load'] for run in of):.1f}"
        for (commit, machine), of in by_commit.items()
    )
    return f"*netsum {version()}, `make results ONLY={piece.name}`: {said}.*"


def block(name):
    """A table with what was measured, or None without records. `name` is a piece's, or one of its tables', PIECE:TABLE."""
    piece_name, _, part = name.partition(":")
    piece = next(p for p in PIECES if p.name == piece_name)
    if not piece.path.exists():
        return None
    records = latest(load(piece.path), *piece.key)
    if piece.key == ("benchmark",):  # which are taken one by one
        records = [record for record in records if record["benchmark"] == part]
    return f"{provenance(piece, records)}\n\n{tables.TABLES[name](records)}" if records else None


def write_page():
    """All tables of all records, in build/results/results.md."""
    blocks = {name: block(name) for name in tables.TABLES}
    page = "\n\n".join(f"## {name}\n\n{text}" for name, text in blocks.items() if text)
    (RESULTS / "results.md").write_text(f"# Measured figures\n\n{page}\n", encoding="utf-8")


MARKS = re.compile(r"(<!-- figures (\S+) -->\n)(.*?)\n?(<!-- end \2 -->)", re.DOTALL)
PUBLISHED = [ROOT / "README.md", ROOT / "docs/results.md"]


def publish():
    """Writes the tables of the documents. What has no records stays as it is."""
    for path in PUBLISHED:
        old = path.read_text(encoding="utf-8")
        path.write_text(MARKS.sub(lambda m: f"{m[1]}{block(m[2]) or m[3]}\n{m[4]}", old), encoding="utf-8")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [piece.name for piece in PIECES]
    parser.add_argument("--only", default=",".join(names), help="of: %(default)s")
    parser.add_argument("--full", action="store_true", help="also what takes long")
    parser.add_argument("--budget", type=float, help="minutes for all pieces together")
    parser.add_argument("--publish", action="store_true", help="write the tables of README.md and docs/results.md")
    options = parser.parse_args()
    options.only = options.only.split(",")
    unknown = set(options.only) - set(names)
    if unknown:
        parser.error(f"--only: there is no {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    if os.geteuid() != 0:
        parser.exit(3, "results: virtual racks need root: run it with sudo\n")
    return options


def main():
    options = parse_arguments()
    failed = []
    begun = time.monotonic()
    wanted = [piece for piece in PIECES if piece.name in options.only and (options.full or not piece.only_full)]
    for number, piece in enumerate(wanted):
        share = None
        if options.budget is not None:  # what is left, in proportion to what each needs
            left = options.budget - (time.monotonic() - begun) / 60
            share = left * piece.minutes / sum(other.minutes for other in wanted[number:])
            if share < 0.2 * piece.minutes:
                print(f"=== {piece.name}: left out, the budget is spent", flush=True)
                continue
        if (os.cpu_count() or 1) < piece.least_cores:
            print(f"=== {piece.name}: left out, it is for a machine with {piece.least_cores} cores", flush=True)
            continue
        if not measure(piece, options.full, share):
            failed.append(piece.name)
        if piece.path.exists():
            compact(piece.path, *piece.key)
            if piece.name in tables.PLOTS:
                tables.PLOTS[piece.name](load(piece.path), piece.path.with_suffix(".svg"))
        write_page()
    if options.publish:
        publish()
    print(f"the tables: {(RESULTS / 'results.md').relative_to(ROOT)}")
    if failed:
        print(f"not all of it went well: {', '.join(failed)} (what was measured is kept)")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
