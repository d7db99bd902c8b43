#!/usr/bin/env python3
"""Records the latest result of every soak test in docs/data/soak.jsonl, and writes docs/soak.md from it.

  record_soak.py RESULTS RUNNER...

RESULTS and RUNNER are those of summarize_tests.py. Besides, RESULTS/soak-tests.txt names all soak tests, one per line.
Only the tests that ran get a new record. A record of a test that does not exist any more is removed.
"""

import collections
import datetime
import json
import os
import pathlib
import sys
import xml.etree.ElementTree as ElementTree

import summarize_tests
from netsum_bench.machine import git, machine

DOCS = pathlib.Path(__file__).resolve().parents[1] / "docs"
PAGE = """# Soak tests

`make soak` runs the tests that are too long for `make test`; `make soak ONLY=REGEX` runs those whose names match. Both write
this page, from `docs/data/soak.jsonl`: the latest result of every test.

| test | result | seconds | date | commit | seed of simulations | machine |
|---|---|--:|---|---|---|---|
{rows}
"""
COLUMNS = ("result", "seconds", "date", "commit", "seed", "machine")


def commit():
    """What was tested. The documents do not count: earlier runs of soak tests have changed them."""
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ":!docs")
    return git("rev-parse", "--short=12", "HEAD") + ("-dirty" if changed else "")


def run_facts():
    """What the records of one run have in common."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit(),
        "seed": os.environ["NETSUM_SIM_SEED"],
        "machine": machine(),
    }


def seconds_of(folder, runners):
    """{name: seconds} of the tests of ctest and pytest."""
    seconds = {}
    for runner in runners:
        try:
            root = ElementTree.parse(folder / f"{runner}.xml").getroot()
        except (FileNotFoundError, ElementTree.ParseError):
            continue  # summarize_tests counts it as a failure
        for case in root.iter("testcase"):
            name = case.get("name") if runner == "ctest" else f"{case.get('classname')}.{case.get('name')}"
            seconds[name] = float(case.get("time", 0))
    return seconds


def new_records(folder, runners, facts):
    """{name: record} of the tests that ran. The cases of a GoogleTest binary make one record."""
    outcomes = collections.defaultdict(collections.Counter)
    for case in summarize_tests.collect(folder, runners):
        outcomes[case.name.split(": ")[0]][case.outcome] += 1
    seconds = seconds_of(folder, runners)
    return {
        name: {
            "test": name,
            "result": ", ".join(f"{n} {outcome}" for outcome, n in sorted(count.items())),
            "seconds": round(seconds.get(name, 0)),
            **facts,
        }
        for name, count in outcomes.items()
    }


def read_records(path):
    if not path.exists():
        return {}
    records = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return {record["test"]: record for record in records}


def page(names, records):
    rows = []
    for name in names:
        cells = [str(records[name][column]) for column in COLUMNS] if name in records else ["never run"] + [""] * 5
        rows.append(f"| {' | '.join([f'`{name}`', *cells])} |")
    return PAGE.format(rows="\n".join(rows))


def record(folder, runners, docs, facts):
    names = sorted(set((folder / "soak-tests.txt").read_text(encoding="utf-8").splitlines()))
    data = docs / "data" / "soak.jsonl"
    records = {**read_records(data), **new_records(folder, runners, facts)}
    records = {name: records[name] for name in names if name in records}
    data.write_text("".join(json.dumps(each) + "\n" for each in records.values()), encoding="utf-8")
    (docs / "soak.md").write_text(page(names, records), encoding="utf-8")


if __name__ == "__main__":
    record(pathlib.Path(sys.argv[1]), sys.argv[2:], DOCS, run_facts())
