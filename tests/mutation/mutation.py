#!/usr/bin/env python3
"""Mutation testing: changes one expression or statement at a time, and counts the changes that no test finds.

  mutation.py [--file PATH[:LINE] ...] [--since REV] [--sample N] [--seed S] [--jobs J] [--json FILE] [--list]
  mutation.py --known [NAME ...]

subjects.toml names the files and, for each, the tests that must find its mutants. All mutants of a file are compiled into one
program (operators.py, switch.h), which has one of them on at a time. A test runs only with those that it reaches, and may take
several times what it takes without one. A mutant that no test reaches may be in a constant that the compiler evaluated: it is
built alone.

A mutant is `killed` if a test fails, crashes or hangs, and `survives` otherwise. Not counted: those that do not build, and those
of equivalent.toml, which change nothing that a test could see. The exit status is 1 if less than --least percent were killed.

--known plants the bugs of known.toml instead, all or some, and demands that each is found by its test.
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import json
import mmap
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import time

import operators
import tomllib
from overlay import ROOT, Build, DoesNotBuild, Overlay, Skipped, Unusable, run

FOLDER = pathlib.Path(__file__).resolve().parent
LEAST_LIMIT_S = 10
LIMIT_FACTOR = 8  # a test may take this many times what it takes without a mutant
MEMORY = 16 << 30  # address space of a test: a mutant may allocate without end
KNOWN_LIMIT_S = 240
MOST_OF_FILE = 25  # of a sample
MOST_ROUNDS = 8  # builds of a file until what remains of its mutants compiles
MOST_MUTANTS = 1 << 16  # of a file: switch.h


def table(name):
    with open(FOLDER / name, "rb") as file:
        return tomllib.load(file)


@dataclasses.dataclass
class Outcome:
    mutant: operators.Mutant
    difference: tuple  # the changed lines, before and after
    outcome: str  # killed, survived, equivalent, does not build
    by: str = ""


def difference(text, mutant):
    """The lines that a mutant changes, before and after, as one line each."""
    begin = text.rfind(b"\n", 0, mutant.start) + 1
    end = text.find(b"\n", mutant.end)
    after = text[begin : mutant.start] + mutant.new.encode() + text[mutant.end : end]
    return tuple(" ".join(lines.decode().split()) for lines in (text[begin:end], after))


def run_test(test, overlay, programs, environment, limit_s):
    """By what the test failed, or None."""
    target, arguments = overlay.build.program(test)
    command = ["prlimit", "--core=0", f"--as={MEMORY}", programs[target], *arguments, "--gtest_fail_fast"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=overlay.objects,
        env=environment,
        start_new_session=True,
        text=True,
        errors="replace",
    ) as process:
        try:
            output = process.communicate(timeout=limit_s)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return f"{test}: took more than {limit_s:.0f} s"
    if process.returncode == 0:
        if "[       OK ]" in output:
            return None
        raise (Skipped if "[  SKIPPED ]" in output else Unusable)(f"no test of '{test}' ran")
    failed = re.search(r"\[  FAILED  \] (\S+?),? ", output)
    running = re.findall(r"\[ RUN      \] (\S+)", output)
    return failed.group(1) if failed else f"{running[-1] if running else test} (crash)"


class File:
    """The mutants of one file, and how to try them."""

    def __init__(self, name, tests, build, work, jobs):
        self.name = name
        self.tests = tests
        self.build = build
        self.work = work
        self.jobs = jobs
        self.text = (ROOT / name).read_bytes()
        self.limits = {}

    def overlay(self, text, folder):
        return Overlay(self.build, self.work / folder, self.name, text)

    def switched(self, mutants):
        """Programs with those of the mutants that build, these, and those that the compiler refused."""
        refused = []
        for _ in range(MOST_ROUNDS):
            changed, places = operators.switched(self.text, mutants)
            head = f'#include "switch.h"\n#line 1 "{self.name}"\n'.encode() if mutants else b""
            overlay = self.overlay(head + changed, "all")
            try:
                return overlay, overlay.make(self.build.targets(self.tests), self.jobs), mutants, refused
            except DoesNotBuild as error:
                if not error.errors:
                    raise Unusable(f"{error}") from error
                guilty = self.guilty(changed, places, error.errors)
                refused += [mutant for mutant in mutants if mutant in guilty]
                mutants = [mutant for mutant in mutants if mutant not in guilty]
        raise Unusable(f"does not build after {MOST_ROUNDS} rounds")

    def guilty(self, changed, places, errors):
        """The mutants whose text the errors are in; if there is none at the column of an error, those of its line."""
        starts = [0, *(found.end() for found in re.finditer(rb"\n", changed))]
        guilty = set()
        for line, column in errors:
            place = starts[line - 1] + column - 1
            at = [mutant for start, end, mutant in places if start <= place < end]
            guilty.update(at or [m for _, _, m in places if m.first_line <= line <= m.last_line])
        if not guilty:
            raise Unusable(f"line {errors[0][0]} does not build, and has no mutant")
        return guilty

    def measure(self, overlay, programs):
        """What each test reaches, by number; and its limit of time."""
        reached = {}
        for test in self.tests:
            file = self.work / "reached"
            file.write_bytes(bytes(MOST_MUTANTS))
            started = time.monotonic()
            environment = {**overlay.environment(), "NETSUM_REACHED": str(file)}
            failed = run_test(test, overlay, programs, environment, 600)
            if failed:
                raise Unusable(f"{failed} fails without a mutant")
            self.limits[test] = max(LEAST_LIMIT_S, LIMIT_FACTOR * (time.monotonic() - started))
            with open(file, "rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as bytes_of:
                reached[test] = bytes_of[:]
        return reached

    def alone(self, mutant):
        """Built with no other mutant."""
        overlay = self.overlay(operators.changed(self.text, mutant), f"alone-{mutant.number}")
        try:
            programs = overlay.make(self.build.targets(self.tests), 1)
        except DoesNotBuild:
            return "does not build", ""
        else:
            for test in self.tests:
                limit_s = self.limits.get(test, 120)
                if failed := run_test(test, overlay, programs, overlay.environment(), limit_s):
                    return "killed", failed
            return "survived", ""
        finally:
            shutil.rmtree(self.work / f"alone-{mutant.number}")

    def attempt(self, mutant, overlay, programs, reached):
        environment = {**overlay.environment(), "NETSUM_MUTANT": str(mutant.number)}
        tests = [test for test in self.tests if reached[test][mutant.number]]
        if not tests:
            return self.alone(mutant)
        for test in tests:
            if failed := run_test(test, overlay, programs, environment, self.limits[test]):
                return "killed", failed
        return "survived", ""

    def outcomes(self, mutants, said):
        """Tries the mutants, and gives each outcome to `said`."""
        overlay, programs, built, refused = self.switched([mutant for mutant in mutants if mutant.switchable])
        self.tests = [test for test in self.tests if self.build.program(test)[0] in programs]
        if not self.tests:
            raise Unusable("none of its tests uses it")
        reached = self.measure(overlay, programs)
        for mutant in refused:
            said(mutant, "does not build", "")

        def one(mutant):
            said(mutant, *(self.attempt(mutant, overlay, programs, reached) if mutant in kept else self.alone(mutant)))

        kept = set(built)
        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            list(pool.map(one, [mutant for mutant in mutants if mutant not in refused]))


def changed_lines(revision, file):
    """The numbers of the lines of a file that are not in a revision."""
    listed = run(["git", "-C", str(ROOT), "diff", "-U0", revision, "--", file], 60)
    if listed.returncode != 0:
        raise Unusable(listed.stderr.strip())
    lines = set()
    for start, count in re.findall(r"^@@ \S+ \+(\d+)(?:,(\d+))? @@", listed.stdout, re.MULTILINE):
        lines.update(range(int(start), int(start) + int(count or 1)))
    return lines


def tests_by_file(subjects):
    """File: its tests. A subject's pattern may name a whole folder; a file belongs to the first that matches."""
    found = {}
    for subject in subjects:
        for pattern in subject["files"]:
            paths = sorted(path for path in ROOT.glob(pattern) if not re.search("_test|testing|_bench", path.name))
            if not paths:
                raise Unusable(f"subjects.toml: no file is called {pattern}")
            for path in paths:
                found.setdefault(str(path.relative_to(ROOT)), subject["tests"])
    return found


def sample(mutants, count, rng):
    """Some mutants of each of a few files, because most of the time goes into building a file."""
    by_file = collections.defaultdict(list)
    for mutant in mutants:
        by_file[mutant.file].append(mutant)
    chosen = []
    for file in rng.sample(list(by_file), len(by_file)):
        most = min(MOST_OF_FILE, len(by_file[file]), count - len(chosen))
        chosen += sorted(rng.sample(by_file[file], most), key=lambda mutant: mutant.number)
    return chosen


def choose(tests, arguments):
    """The mutants to try."""
    places = [place.partition(":")[::2] for place in arguments.file]
    unknown = [file for file, _ in places if file not in tests]
    if unknown:
        raise Unusable(f"subjects.toml does not name {unknown[0]}")
    chosen = []
    for file in tests:
        lines = [int(line) if line else None for name, line in places if name == file]
        if places and not lines:
            continue
        since = changed_lines(arguments.since, file) if arguments.since else None
        for mutant in operators.mutants_of(file, (ROOT / file).read_bytes()):
            at = range(mutant.first_line, mutant.last_line + 1)
            if (since is None or since & set(at)) and (not lines or None in lines or set(lines) & set(at)):
                chosen.append(mutant)
    if arguments.sample is not None:
        chosen = sample(chosen, arguments.sample, random.Random(arguments.seed))
    return chosen


def write_json(path, outcomes):
    fields = [
        {**dataclasses.asdict(one.mutant), "outcome": one.outcome, "by": one.by, "difference": one.difference}
        for one in outcomes
    ]
    path.write_text(json.dumps(fields, indent=1) + "\n", encoding="utf-8")


def plant(bug, build, work):
    """By what a known bug was found; None if it was not."""
    file, text = bug["file"], (ROOT / bug["file"]).read_text(encoding="utf-8")
    if text.count(bug["old"]) != 1:
        raise Unusable(f"{file} has the text {text.count(bug['old'])} times; adapt known.toml:\n{bug['old']}")
    overlay = Overlay(build, work / bug["name"], file, text.replace(bug["old"], bug["new"]).encode())
    programs = overlay.make(build.targets([bug["test"]]), 1)
    if not programs:
        raise Unusable(f"{bug['test']} does not use {file}")
    try:
        return run_test(bug["test"], overlay, programs, overlay.environment(), KNOWN_LIMIT_S)
    finally:
        shutil.rmtree(work / bug["name"])


def plant_known(arguments):
    bugs = [bug for bug in table("known.toml")["bug"] if not arguments.known or bug["name"] in arguments.known]
    if unknown := set(arguments.known) - {bug["name"] for bug in bugs}:
        raise Unusable(f"known.toml has no bug {min(unknown)}")
    build = Build(arguments.build.resolve())
    build.make(build.targets(bug["test"] for bug in bugs), arguments.jobs)
    work = build.folder / "mutation" / "known"

    def one(bug):
        try:
            found = plant(bug, build, work)
        except Skipped as error:
            found = f"not tried: {error}"
        except (Unusable, DoesNotBuild) as error:
            return print(f"{bug['name']}: FAILED: {error}", flush=True)
        print(f"{bug['name']} ({bug['what']}): {found or 'NOT FOUND by ' + bug['test']}", flush=True)
        return found

    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        found = [bool(by) for by in pool.map(one, bugs)]
    print(f"{len(bugs)} known bugs: {found.count(True)} found")
    return int(not all(found))


def report(outcomes):
    counts = collections.defaultdict(collections.Counter)
    for one in outcomes:
        counts[one.mutant.file][one.outcome] += 1
        counts["all"][one.outcome] += 1
    kinds = ("killed", "survived", "equivalent", "does not build")
    print(f"| file | mutants | {' | '.join(kinds)} |\n|--|--:|--:|--:|--:|--:|")
    for file, count in counts.items():
        if file != "all":
            print(f"| {file} | {count.total()} | {' | '.join(str(count[kind]) for kind in kinds)} |")
    count = counts["all"]
    print(f"| all | {count.total()} | {' | '.join(str(count[kind]) for kind in kinds)} |")
    return 100 * count["killed"] / max(1, count["killed"] + count["survived"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    parser.add_argument(
        "--file", action="append", default=[], metavar="PATH[:LINE]", help="only this file, or line of it"
    )
    parser.add_argument("--since", metavar="REV", help="only lines that were changed since a revision")
    parser.add_argument("--sample", type=int, metavar="N", help="only N mutants, chosen by --seed")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--least", type=float, default=0, metavar="PERCENT", help="of the mutants must be killed")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write all outcomes into a file")
    parser.add_argument("--known", nargs="*", metavar="NAME", help="plant the bugs of known.toml, or these")
    parser.add_argument("--list", action="store_true", help="print the mutants, and try none")
    arguments = parser.parse_args()
    if arguments.seed is None:
        # Of all random choices of the tests: a second run repeats the first.
        arguments.seed = int(os.environ.get("NETSUM_SIM_SEED") or random.SystemRandom().randrange(2**32))
    equivalent = {(one["file"], one["line"], one["becomes"]) for one in table("equivalent.toml")["equivalent"]}
    try:
        if arguments.known is not None:
            return plant_known(arguments)
        tests = tests_by_file(table("subjects.toml")["subject"])
        chosen = choose(tests, arguments)
        by_file = collections.defaultdict(list)
        for mutant in chosen:
            by_file[mutant.file].append(mutant)
        texts = {file: (ROOT / file).read_bytes() for file in by_file}
        if arguments.list:
            for mutant in chosen:
                print(mutant.name, *difference(texts[mutant.file], mutant), sep="\n    ")
            return 0
        print(f"seed {arguments.seed}: {len(chosen)} mutants of {len(by_file)} files", flush=True)
        folder = arguments.build.resolve()
        build = Build(folder)
        build.make(build.targets(test for file in by_file for test in tests[file]), arguments.jobs)
        outcomes = []
        failed = []  # files that could not be tried

        def said(mutant, outcome, by):
            changed = difference(texts[mutant.file], mutant)
            if outcome == "survived" and (mutant.file, *changed) in equivalent:
                outcome = "equivalent"
            outcomes.append(Outcome(mutant, changed, outcome, by))
            if outcome == "survived":
                print(f"{mutant.name} survived\n    {changed[0]}\n    {changed[1]}", flush=True)

        for file, mutants in by_file.items():
            started = time.monotonic()
            work = folder / "mutation" / file.replace("/", "-")
            try:
                File(file, tests[file], build, work, arguments.jobs).outcomes(mutants, said)
            except Unusable as error:
                print(f"mutation.py: {file}: {error}", file=sys.stderr, flush=True)
                failed += [] if isinstance(error, Skipped) else [file]
            shutil.rmtree(work, ignore_errors=True)
            if arguments.json:
                write_json(arguments.json, outcomes)
            took = time.monotonic() - started
            print(f"{file}: {len(mutants)} mutants, {took:.0f} s; {len(outcomes)} of {len(chosen)}", flush=True)
    except Unusable as error:
        print(f"mutation.py: {error}", file=sys.stderr)
        return 2
    killed = report(sorted(outcomes, key=lambda one: one.mutant.file))
    print(f"seed {arguments.seed}: {killed:.1f} % killed")
    return 2 if failed else int(killed < arguments.least)


if __name__ == "__main__":
    sys.exit(main())
