#!/usr/bin/env python3
"""Adds up the results of the test runners: one closing line, 'N passed, N failed, N skipped'.

  summarize_tests.py [--budgets FILE] RESULTS RUNNER...

Each RUNNER (ctest, pytest, ...) must have left two files in the folder RESULTS: RUNNER.xml, its results as JUnit, and
RUNNER.exit, its exit status. ctest.json lists the tests that ctest was asked to run (ctest --show-only=json-v1). Those
with the label gtest are GoogleTest binaries: their cases are counted, from gtest/TEST.xml, in place of the binary.

Whatever is missing, unreadable or empty is a failure, as is a test that was asked for and has no result, a result that
comes twice, and a runner that ended with an error that none of its results shows. Exits with 1 on any failure.

The twenty slowest tests, and the processor seconds of each label, precede the counts. A test of ctest has a label of its own; that of
another runner is what precedes the first hyphen of its name. cpu/TEST and LABEL.cpu have the processor seconds of a test and of a label
(scripts/cpu_seconds.sh). A label above its budget is a failure.
"""

import argparse
import collections
import json
import pathlib
import sys
import xml.etree.ElementTree as ElementTree

Case = collections.namedtuple("Case", "name outcome reason seconds", defaults=(0.0,))

SLOWEST = 20


class Unusable(Exception):
    """A result file that says nothing."""


def failed(name, reason):
    return Case(name, "failed", reason)


def message_of(element):
    """The last line: GoogleTest puts the place in the source first."""
    text = (element.get("message") or element.text or "").strip()
    return text.splitlines()[-1].strip() if text else ""


def judge(case):
    """Outcome and reason of a <testcase> of ctest, GoogleTest or pytest."""
    for kind in ("failure", "error"):
        if case.find(kind) is not None:
            return "failed", message_of(case.find(kind))
    skip = case.find("skipped")
    if case.get("status") == "fail":
        return "failed", ""
    # ctest says "skipped" also of a test that it could not start.
    if skip is not None and skip.get("message") == "Unable to find executable":
        return "failed", "its executable is missing"
    if (
        skip is not None
        or case.get("status") in ("notrun", "disabled")
        or case.get("result") in ("skipped", "suppressed")
    ):
        return "skipped", message_of(skip) if skip is not None else "disabled"
    return "passed", ""


def read_cases(path):
    try:
        root = ElementTree.parse(path).getroot()
    except FileNotFoundError as error:
        raise Unusable(f"there is no {path.name}") from error
    except ElementTree.ParseError as error:
        raise Unusable(f"{path.name} is corrupted: {error}") from error
    cases = [
        Case(
            ".".join(filter(None, (case.get("classname"), case.get("name")))),
            *judge(case),
            float(case.get("time") or 0),
        )
        for case in root.iter("testcase")
    ]
    if not cases:
        raise Unusable(f"{path.name} holds no test")
    return cases


def read_exit(path):
    try:
        return int(path.read_text(encoding="ascii"))
    except (FileNotFoundError, ValueError) as error:
        raise Unusable(f"{path.name} is missing or empty: the runner did not end") from error


def gtest_cases(folder, name, of_ctest):
    """The cases of a GoogleTest binary, of which ctest knows `of_ctest`."""
    try:
        cases = [case._replace(name=f"{name}: {case.name}") for case in read_cases(folder / "gtest" / f"{name}.xml")]
    except Unusable as error:
        return [of_ctest._replace(outcome="failed", reason=of_ctest.reason or str(error))]
    if of_ctest.outcome != "passed" and all(case.outcome != "failed" for case in cases):
        reason = of_ctest.reason or "the binary failed, its cases did not"
        cases.append(of_ctest._replace(outcome="failed", reason=reason))
    return cases


def listed_tests(path):
    """The tests that ctest was asked to run: {name: labels}."""
    try:
        tests = json.loads(path.read_text(encoding="utf-8"))["tests"]
    except (FileNotFoundError, ValueError, KeyError) as error:
        raise Unusable(f"{path.name} is missing or corrupted") from error
    return {
        test["name"]: next((p["value"] for p in test.get("properties", []) if p["name"] == "LABELS"), [])
        for test in tests
    }


def ctest_cases(folder):
    # ctest repeats the test's name as its class, and names may contain dots.
    results = [case._replace(name=case.name[: len(case.name) // 2]) for case in read_cases(folder / "ctest.xml")]
    listed = listed_tests(folder / "ctest.json")
    cases = [failed(name, "has no result") for name in sorted(set(listed) - {result.name for result in results})]
    for result in results:
        if result.name not in listed:
            cases.append(failed(result.name, "was not asked for"))
        elif "gtest" in listed[result.name]:
            cases += gtest_cases(folder, result.name, result)
        else:
            cases.append(result)
    return cases


def runner_cases(folder, runner):
    try:
        status = read_exit(folder / f"{runner}.exit")
        cases = ctest_cases(folder) if runner == "ctest" else read_cases(folder / f"{runner}.xml")
    except Unusable as error:
        return [failed(runner, str(error))]
    if status != 0 and all(case.outcome != "failed" for case in cases):
        cases.append(failed(runner, f"ended with exit status {status}"))
    return cases


def collect(folder, runners):
    cases = [case for runner in runners for case in runner_cases(folder, runner)]
    times = collections.Counter(case.name for case in cases)
    return cases + [failed(name, f"has {count} results") for name, count in times.items() if count > 1]


def slowest(folder, runners):
    """Lines about the tests that took the most time; a GoogleTest binary counts as one."""
    tests = [case for runner in runners if (path := folder / f"{runner}.xml").exists() for case in read_cases(path)]
    for case in sorted(tests, key=lambda case: -case.seconds)[:SLOWEST]:
        half = case.name[: len(case.name) // 2]
        yield f"{case.seconds:7.1f} s  {half if case.name == f'{half}.{half}' else case.name}"


def cpu_seconds(path):
    """Of a file of cpu_seconds.sh: lines such as `0m1.250s 0m0.110s`."""
    return sum(
        60 * float(part.split("m")[0]) + float(part.split("m")[1].rstrip("s"))
        for part in path.read_text(encoding="ascii").split()
    )


def cpu_by_label(folder, runners):
    """Processor seconds of each label."""
    seconds = collections.Counter()
    for label in {runner.partition("-")[0] for runner in runners if runner != "ctest"}:
        if (folder / f"{label}.cpu").exists():
            seconds[label] = cpu_seconds(folder / f"{label}.cpu")
    for name, labels in listed_tests(folder / "ctest.json").items() if "ctest" in runners else ():
        label = next((label for label in labels if label != "gtest"), "other")
        if (folder / "cpu" / name).exists():
            seconds[label] += cpu_seconds(folder / "cpu" / name)
    return seconds


def over_budget(seconds, path):
    """Failed cases for the labels that took more than the file allows: lines `LABEL SECONDS`."""
    budgets = dict(line.split() for line in path.read_text(encoding="ascii").splitlines() if not line.startswith("#"))
    for label, used in seconds.items():
        if label not in budgets:
            yield failed(f"budget of {label}", f"{path.name} has none")
        elif used > float(budgets[label]):
            yield failed(f"budget of {label}", f"{used:.0f} processor seconds, {budgets[label]} allowed by {path.name}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("runners", nargs="+", metavar="RUNNER")
    parser.add_argument("--budgets", type=pathlib.Path, help="processor seconds that each label may take")
    arguments = parser.parse_args()
    cases = collect(arguments.results, arguments.runners)
    try:
        print(*slowest(arguments.results, arguments.runners), sep="\n")
        seconds = cpu_by_label(arguments.results, arguments.runners)
        print("processor seconds:", ", ".join(f"{label} {used:.0f}" for label, used in seconds.most_common()))
        if arguments.budgets:
            cases += over_budget(seconds, arguments.budgets)
    except Unusable:
        pass  # counted below
    for reason, count in collections.Counter(case.reason for case in cases if case.outcome == "skipped").most_common():
        print(f"skipped {count}: {reason}")
    for case in cases:
        if case.outcome == "failed":
            print(f"failed: {case.name}{': ' if case.reason else ''}{case.reason}")
    count = collections.Counter(case.outcome for case in cases)
    print(f"{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped")
    return 1 if count["failed"] or not count["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
