"""Runs the cases behind the published figures, and writes their tables.

Records go to build/results/CASE.jsonl, measurement by measurement, so a run that is interrupted loses nothing; what is
measured again replaces the old. build/results/results.md has all tables of all records, and pages with the plots lie beside it. No
file of the repository changes, except with PUBLISH=1, which a release uses: it writes the tables of README.md,
docs/results.md and docs/emulation.md, which stand between <!-- figures NAME --> and <!-- end NAME -->.

  make results                          every case, in order of importance (root; two to three hours)
  make results ONLY=rack,one-host       these cases
  make results BUDGET=10                what fits into so many minutes
  make results ONLY=rack FULL=1         with 16 workers and 64 MiB
  make results ONLY=rack PUBLISH=1      and write the published tables
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import time

from netsum_bench.cases import CASES
from netsum_bench.labs.commands import build_micro
from netsum_bench.machine import ROOT, version
from netsum_bench.options import names_of
from netsum_bench.records import compact, latest, load

RESULTS = ROOT / "build/results"
LONGER = {"compression": 600}  # minutes of a case with FULL=1 that makes of any time what it can
PATIENCE_S = 300  # after a budget, until a case has ended by itself
TABLES = {name: case for case in CASES.values() for name in case.tables}


def records_of(case):
    return RESULTS / f"{case.name}.jsonl"


def measure(case, full, minutes):
    """Runs the case, for so many minutes at most. Returns whether it ended well."""
    output = str(records_of(case).relative_to(ROOT))  # the command is part of the records
    command = [".venv/bin/python", "-m", "netsum_bench", case.name, "--json", output]
    command += ["--full"] if full and case.full else []
    if case.name in LONGER and minutes is None:
        minutes = LONGER[case.name] if full else case.minutes
    command += ["--budget", f"{minutes:.1f}"] if minutes is not None else []
    print(f"\n=== {case.name}: {' '.join(command)}", flush=True)
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        status = process.wait(None if minutes is None else 60 * minutes + PATIENCE_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt) as stopped:
        process.send_signal(signal.SIGINT)  # racks come down
        process.wait(60)
        if isinstance(stopped, KeyboardInterrupt):
            raise
        print(f"=== {case.name}: stopped when its time was spent", flush=True)
        return False
    return status == 0


def provenance(case, records):
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
    return f"*netsum {version()}, `make results ONLY={case.name}`: {said}.*"


def block(name):
    """A table with what was measured, or None without records. `name` is a case's, or one of its tables', CASE:TABLE."""
    case = TABLES[name]
    if not records_of(case).exists():
        return None
    records = latest(load(records_of(case)), *case.fields)
    if case.key == ("benchmark",):  # which are taken one by one
        records = [record for record in records if record.get("benchmark") == name.partition(":")[2]]
    return f"{provenance(case, records)}\n\n{case.tables[name](records)}" if records else None


def write_page():
    """All tables of all records, in build/results/results.md."""
    blocks = {name: block(name) for name in TABLES}
    page = "\n\n".join(f"## {name}\n\n{text}" for name, text in blocks.items() if text)
    (RESULTS / "results.md").write_text(f"# Measured figures\n\n{page}\n", encoding="utf-8")


MARKS = re.compile(r"(<!-- figures (\S+) -->\n)(.*?)\n?(<!-- end \2 -->)", re.DOTALL)
PUBLISHED = [ROOT / "README.md", ROOT / "docs/results.md", ROOT / "docs/emulation.md"]


def publish():
    """Writes the tables of the documents. What has no records stays as it is."""
    for path in PUBLISHED:
        old = path.read_text(encoding="utf-8")
        path.write_text(MARKS.sub(lambda m: f"{m[1]}{block(m[2]) or m[3]}\n{m[4]}", old), encoding="utf-8")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=names_of(CASES), default=list(CASES), help=f"of: {','.join(CASES)}")
    parser.add_argument("--full", action="store_true", help="also what takes long")
    parser.add_argument("--budget", type=float, help="minutes for all cases together")
    parser.add_argument("--publish", action="store_true", help="write the tables of the documents")
    options = parser.parse_args()
    if os.geteuid() != 0:
        parser.exit(3, "results: virtual racks need root: run it with sudo\n")
    return options


def main():
    options = parse_arguments()
    failed = []
    wanted = [case for case in CASES.values() if case.name in options.only and (options.full or not case.only_full)]
    RESULTS.mkdir(parents=True, exist_ok=True)
    if any(case.name == "micro" for case in wanted):
        build_micro()  # outside the budget
    begun = time.monotonic()
    for number, case in enumerate(wanted):
        share = None
        if options.budget is not None:  # what is left, in proportion to what each needs
            left = options.budget - (time.monotonic() - begun) / 60
            share = left * case.minutes / sum(other.minutes for other in wanted[number:])
            if share < 0.2 * case.minutes:
                print(f"=== {case.name}: left out, the budget is spent", flush=True)
                continue
        if (os.cpu_count() or 1) < case.least_cores:
            print(f"=== {case.name}: left out, it is for a machine with {case.least_cores} cores", flush=True)
            continue
        if not measure(case, options.full, share):
            failed.append(case.name)
        if records_of(case).exists():
            compact(records_of(case), *case.fields)
        write_page()
    if options.publish:
        publish()
    print(f"the tables: {(RESULTS / 'results.md').relative_to(ROOT)}")
    if failed:
        print(f"not all of it went well: {', '.join(failed)} (what was measured is kept)")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
