#!/usr/bin/env python3
"""Writes the page on the last run of `make soak`:  record_soak.py PAGE SECONDS RESULTS RUNNER...

RESULTS and RUNNER are those of summarize_tests.py.
"""
import collections
import datetime
import os
import pathlib
import platform
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import summarize_tests  # noqa: E402

PAGE = """# The last soak run

`make soak` runs the tests that are too long for `make test`, and writes this page.

| date | commit | machine | simulation seeds from | minutes | result |
|---|---|---|---|---|---|
| {date} | {commit} | {machine} | {seed} | {minutes:.0f} | {result} |

| test | result | seconds |
|---|---|---|
{tests}
"""


def machine():
    model = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    return f"{os.cpu_count()} x {model.group(1) if model else platform.machine()}, Linux {platform.release()}"


def commit():
    return subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=12"], capture_output=True, text=True,
                          check=True).stdout.strip()


def seconds_of(folder, runners):
    """Of every test of ctest and pytest, by name."""
    for runner in runners:
        try:
            root = ElementTree.parse(folder / f"{runner}.xml").getroot()
        except (FileNotFoundError, ElementTree.ParseError):
            continue  # a failure, which the counts say
        for case in root.iter("testcase"):
            name = case.get("name") if runner == "ctest" else f"{case.get('classname')}.{case.get('name')}"
            yield name, float(case.get("time", 0))


def main():
    page, seconds, folder, runners = pathlib.Path(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[3]), sys.argv[4:]
    cases = summarize_tests.collect(folder, runners)
    count = collections.Counter(case.outcome for case in cases)
    rows = []
    for name, took in seconds_of(folder, runners):
        # A GoogleTest binary is one row, whatever its cases.
        outcomes = collections.Counter(case.outcome for case in cases if case.name.split(": ")[0] == name)
        rows.append(f"| {name} | {', '.join(f'{n} {outcome}' for outcome, n in outcomes.items())} | {took:.0f} |")
    page.write_text(PAGE.format(
        date=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"), commit=commit(),
        machine=machine(), seed=os.environ["NETSUM_SIM_SEED"], minutes=seconds / 60,
        result=f"{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped",
        tests="\n".join(rows)), encoding="utf-8")


if __name__ == "__main__":
    main()
