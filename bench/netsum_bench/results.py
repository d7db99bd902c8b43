"""Takes the figures of the documentation, and writes them into it.

Every table of figures in docs/*.md and README.md stands between two marks, <!-- figures NAME --> and <!-- end NAME -->, and is
written from the records in docs/data/*.jsonl: by commit, machine, command and date. Nothing else writes there. Records are
added measurement by measurement, so a run that is interrupted loses nothing; what is measured again replaces the old.

  make results                          every piece, in order of importance (root; two to three hours)
  make results ONLY=rack,one-host       these pieces
  make results BUDGET=10                what fits into so many minutes
  make results ONLY=rack FULL=1         with 16 workers and 64 MiB
  make tables                           only writes the tables; says which are older than what they measure
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
from netsum_bench.machine import ROOT, git
from netsum_bench.records import compact, latest, load

ENGINE = ["include", "src", "wire", "aggregator", "collective", "cmake"]
RACK = [*ENGINE, "tools/netsum", "bench/netsum_bench"]
NOT_MEASURED = [
    ":(exclude)*_test.cc",
    ":(exclude)*test_*",
    ":(exclude)*/testing.*",
    ":(exclude)bench/tests",
    # What only shows records. The flags of a piece are part of its records.
    ":(exclude)bench/netsum_bench/results.py",
    ":(exclude)bench/netsum_bench/tables.py",
    ":(exclude)bench/netsum_bench/*_report.py",
    ":(exclude)bench/netsum_bench/pages.py",
    ":(exclude)*.md",
]
PYTHON, NETSUM = ".venv/bin/python", "build/release/tools/netsum/netsum"  # from the root
OUTPUT = "OUTPUT"  # stands for the file of the piece's records


@dataclasses.dataclass
class Piece:
    """Something that is measured by one command. `key`: what a later run of it replaces."""

    name: str
    minutes: float
    command: list
    key: tuple
    measures: list  # paths whose later change makes the figures old
    full: tuple = ()  # flags for what takes long
    has_budget: bool = False
    only_full: bool = False
    least_cores: int = 1  # of a machine that measures it

    @property
    def path(self):
        return ROOT / "docs/data" / f"{self.name}.jsonl"

    @property
    def pathspecs(self):
        return [*self.measures, *NOT_MEASURED]


def training(name, minutes, model, systems, more=(), full=("--workers", "4,8")):
    """A piece of the training benchmark: one round with 8 workers."""
    command = [PYTHON, "-m", "netsum_bench.training_bench", "--rounds", "1", "--models", model, "--workers", "8"]
    return Piece(
        name,
        minutes,
        [*command, *more, "--systems", systems],
        ("model", "workers", "rate", "system"),
        [*RACK, "torch"],
        full,
        True,
    )


RACK_BENCH = [PYTHON, "-m", "netsum_bench.rack_bench"]
ONE_HOST = [PYTHON, "-m", "netsum_bench.one_host"]
EQUAL_SYSTEMS = "netsum-user,netsum-shards,gloo,openmpi"
COMPRESSED = f"netsum-user,gloo,openmpi,{','.join(rack_bench.COMPRESSED)}"


def door(name, minutes, systems, measures, sizes="4Ki,1Mi,16Mi"):
    """A piece of the rack benchmark: all-reduces of 8 workers through a plug-in or with an option, beside the usual way."""
    command = [*RACK_BENCH, "--workers", "8", "--rates", "100mbit", "--sizes", sizes]
    key = ("rate", "workers", "bytes", "system")
    return Piece(name, minutes, [*command, "--systems", systems], key, [*RACK, *measures], (), True)


# In order of importance.
PIECES = [
    Piece(
        "rack",
        16,
        RACK_BENCH,
        ("rate", "workers", "bytes", "system"),
        RACK,
        ("--full",),
        True,
    ),
    Piece(
        "shares", 7, [PYTHON, "-m", "netsum_bench.shares_bench"], ("rate", "workers", "bytes", "system"), RACK, (), True
    ),
    Piece(
        "sparse",
        15,
        [PYTHON, "-m", "netsum_bench.sparse_bench"],
        ("rate", "workers", "count", "pattern", "overlap", "density", "system"),
        [*RACK, "torch"],
        ("--selection", "full"),
        True,
    ),
    Piece(
        "collectives",
        11,
        [PYTHON, "-m", "netsum_bench.collectives_bench"],
        ("rate", "workers", "collective", "bytes", "system"),
        RACK,
        (),
        True,
    ),
    Piece("one-host", 5, ONE_HOST, ("workers", "bytes", "system"), RACK, (), True),
    door("mpi", 3.5, "netsum-user,netsum-mpi,openmpi", ["mpi"]),
    door("lanes8", 6, "netsum-user,netsum-xdp,netsum-user-lanes8,netsum-xdp-lanes8,gloo,openmpi", []),
    door("nccl", 2, "netsum-user,netsum-nccl", ["nccl"]),
    door("compressed", 5, COMPRESSED, [], "16Mi"),
    Piece(
        "rack-9000",
        2,
        [*RACK_BENCH, "--mtu", "9000", "--rates", "none", "--sizes", "1Mi,16Mi", "--systems", EQUAL_SYSTEMS],
        ("rate", "workers", "bytes", "system"),
        RACK,
        (),
        True,
    ),
    Piece(
        "rack-16-cores",
        3,
        [*RACK_BENCH, "--rates", "none", "--sizes", "4Ki,1Mi,16Mi", "--systems", f"{EQUAL_SYSTEMS},netsum-xdp"],
        ("rate", "workers", "bytes", "system"),
        RACK,
        (),
        True,
        least_cores=16,
    ),
    Piece(
        "one-host-16-cores",
        2,
        [*ONE_HOST, "--systems", "netsum-memory,openmpi-memory"],
        ("workers", "bytes", "system"),
        RACK,
        (),
        True,
        least_cores=16,
    ),
    dataclasses.replace(door("compressed-16-cores", 3, COMPRESSED, [], "16Mi"), least_cores=16),
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
        RACK,
        ("--size", "16Mi"),
        True,
    ),
    Piece(
        "failures", 4, [PYTHON, "-m", "netsum_bench.failures_bench", "--rounds", "3"], ("scenario", "dataplane"), RACK
    ),
    Piece("jobs", 1.5, [PYTHON, "-m", "netsum_bench.jobs_bench"], ("rate", "what"), RACK),
    Piece(
        "floods",
        2,
        [PYTHON, "-m", "netsum_bench.flood_bench", "--rounds", "3"],
        ("dataplane", "flood", "arm"),
        [*RACK, "tests/attack"],
    ),
    Piece(
        "simulation",
        1.5,
        [PYTHON, "-m", "netsum_bench.capture", "--output", OUTPUT, "--", NETSUM, "simulate", "--runs", "20000"],
        ("what",),
        [*ENGINE, "emulate", "tools/netsum/simulate.cc"],
    ),
    Piece(
        "chaos",
        11,
        [PYTHON, "-m", "netsum_bench.capture", "--output", OUTPUT, "--", PYTHON, "tests/chaos/chaos.py", "--seed", "1"],
        ("what",),
        [*RACK, "torch", "tests/chaos"],
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
        RACK,
        (),
        True,
        True,
    ),
    Piece(
        "compression",
        30,
        [PYTHON, "-m", "netsum_bench.compression_bench", "--budget", "30"],
        ("rate", "model", "workers", "seed", "system"),
        [*RACK, "torch"],
        ("--budget", "600"),
        True,
    ),
    Piece(
        "thresholds",
        3,
        [PYTHON, "-m", "netsum_bench.thresholds_bench"],
        ("model", "method", "ratio"),
        ["src/compress", "src/kernels", "bench/netsum_bench/demo"],
    ),
    Piece(
        "verify",
        3,
        [PYTHON, "-m", "netsum_bench.verify_bench"],
        ("workers", "bytes", "mode"),
        RACK,
        (),
        True,
    ),
    Piece(
        "predict",
        5,
        [PYTHON, "-m", "netsum_bench.predict_bench"],
        ("workers", "bytes", "data"),
        RACK,
        (),
        True,
    ),
    Piece(
        "lies",
        20,
        [PYTHON, "-m", "netsum_bench.lies_bench"],
        ("what",),
        [*ENGINE, "emulate", "tools/netsum/simulate.cc"],
        (),
        True,
    ),
    Piece(
        "controller",
        6,
        [PYTHON, "-m", "netsum_bench.controller_bench"],
        ("workers", "phase", "system"),
        [*RACK, "torch"],
    ),
    Piece(
        "hooks",
        4,
        [PYTHON, "-m", "netsum_bench.hooks_bench"],
        ("workers", "load", "method", "hook"),
        [*RACK, "torch"],
    ),
    Piece("profile", 1.5, [PYTHON, "-m", "netsum_bench.profile"], ("case",), RACK),
    Piece("micro", 1, [PYTHON, "-m", "netsum_bench.micro_bench"], ("benchmark",), [*ENGINE, "bench/micro"]),
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


def age(piece, runs):
    """A sentence, if the figures may not be those of the present code."""
    for run in runs:
        changed = [
            name for name in run["changed"] if any(name == p or name.startswith(p + "/") for p in piece.measures)
        ]
        if changed:
            return f" **Taken with uncommitted changes** to {', '.join(changed[:3])}."
    commits = {run["commit"] for run in runs}
    for commit in sorted(commits):
        if not git("cat-file", "-t", commit):
            return " **Old**: its commit is not in this repository."
        if git("diff", "--stat", commit, "HEAD", "--", *piece.pathspecs):
            count = git("rev-list", "--count", f"{commit}..HEAD", "--", *piece.pathspecs)
            return f" **Old**: {count} later commits changed what it measures."
    return ""


def provenance(piece, records):
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
    return f"*`make results ONLY={piece.name}`: {said}.*{age(piece, runs)}"


def block(name):
    """The text between the marks of `name`: a piece's, or one of its tables', PIECE:TABLE."""
    piece_name, _, part = name.partition(":")
    piece = next(p for p in PIECES if p.name == piece_name)
    if not piece.path.exists():
        return f"*Not measured yet: `make results ONLY={piece.name}`.*"
    records = latest(load(piece.path), *piece.key)
    if piece.key == ("benchmark",):  # which are taken, and become old, one by one
        records = [record for record in records if record["benchmark"] == part]
        if not records:
            return f"*Not measured yet: `make results ONLY={piece.name}`.*"
    return f"{provenance(piece, records)}\n\n{tables.TABLES[name](records)}"


MARKS = re.compile(r"(<!-- figures (\S+) -->\n)(?:.*?\n)??(<!-- end \2 -->)", re.DOTALL)


AGE = re.compile(r" \*\*(Old|Taken with).*")


def write_tables(check=False, with_age=True):
    """Writes all tables; with `check` only tells which differ. Returns the files that (would) change."""
    same = (lambda a, b: a == b) if with_age else (lambda a, b: AGE.sub("", a) == AGE.sub("", b))
    changed = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        old = path.read_text(encoding="utf-8")
        new = MARKS.sub(lambda found: f"{found[1]}{block(found[2])}\n{found[3]}", old)
        if not same(old, new):
            changed.append(path)
            if not check:
                path.write_text(new, encoding="utf-8")
            print(
                f"{path.relative_to(ROOT)}: "
                + ("not the tables of docs/data, or old without saying so: make tables" if check else "written")
            )
    return changed


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [piece.name for piece in PIECES]
    parser.add_argument("--only", default=",".join(names), help="of: %(default)s")
    parser.add_argument("--full", action="store_true", help="also what takes long")
    parser.add_argument("--budget", type=float, help="minutes for all pieces together")
    parser.add_argument("--tables", action="store_true", help="measure nothing")
    parser.add_argument("--check", action="store_true", help="measure and write nothing; fail where a table differs")
    options = parser.parse_args()
    options.only = options.only.split(",")
    unknown = set(options.only) - set(names)
    if unknown:
        parser.error(f"--only: there is no {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    if not (options.tables or options.check) and os.geteuid() != 0:
        parser.exit(3, "results: virtual racks need root: run it with sudo\n")
    return options


def main():
    options = parse_arguments()
    if options.check:
        return 1 if write_tables(check=True) else 0
    failed = []
    begun = time.monotonic()
    wanted = [piece for piece in PIECES if piece.name in options.only and (options.full or not piece.only_full)]
    for number, piece in enumerate([] if options.tables else wanted):
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
        write_tables()
    write_tables()
    if failed:
        print(f"not all of it went well: {', '.join(failed)} (what was measured is kept)")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
