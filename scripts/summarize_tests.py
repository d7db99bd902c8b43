#!/usr/bin/env python3
"""Adds up JUnit files of ctest, GoogleTest and pytest: one closing line, 'N passed, N failed, N skipped'.

A GoogleTest binary is one test to ctest; its own file counts the cases in it instead. Exits with 1 if anything
failed or nothing ran.
"""
import pathlib
import sys
import xml.etree.ElementTree as ElementTree


def outcome(case):
    if case.find("failure") is not None or case.find("error") is not None or case.get("status") == "fail":
        return "failed"
    if case.find("skipped") is not None or case.get("status") in ("notrun", "disabled") \
            or case.get("result") in ("skipped", "suppressed"):
        return "skipped"
    return "passed"


def cases_of(path):
    """Pairs of (name, outcome). A file that cannot be read is a failure: its writer died."""
    try:
        root = ElementTree.parse(path).getroot()
    except ElementTree.ParseError:
        return [(path.stem, "failed")]
    return [(".".join(filter(None, (case.get("classname"), case.get("name")))), outcome(case))
            for case in root.iter("testcase")]


def collect(folder):
    by_binary = {path.stem: cases_of(path) for path in sorted((folder / "gtest").glob("*.xml"))}
    results = []
    for path in sorted(folder.glob("*.xml")):
        for name, result in cases_of(path):
            # ctest repeats the test's name as its class.
            short = name.split(".")[-1] if path.stem == "ctest" else name
            cases = by_binary.get(short, []) if path.stem == "ctest" else []
            if not cases:
                results.append((name, result))
                continue
            results += [(f"{short}: {case}", state) for case, state in cases]
            # Crashed or hung: its file, if any, may count only what ran before.
            if result == "failed" and all(state != "failed" for _, state in cases):
                results.append((short, "failed"))
    return results


def main():
    results = collect(pathlib.Path(sys.argv[1]))
    for name, result in results:
        if result == "failed":
            print(f"failed: {name}")
    count = {state: sum(result == state for _, result in results) for state in ("passed", "failed", "skipped")}
    print(f"{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped")
    return 1 if count["failed"] or not count["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
