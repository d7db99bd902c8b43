#!/usr/bin/env python3
"""Plants known bugs, one at a time, and demands that a named test finds each.

  planted.py [--build DIR] [--sample N] [--seed S] [--jobs J] [--list] [--texts] [NAME | AREA ...]

A bug is one replacement of text in one source file (bugs_*.py beside this file). The changed copy lies in a folder of
its own, which comes first on the include path; only the objects that include it are compiled, with the commands of the
build folder, and linked into a second copy of the test. The project's sources and build are not touched, and the sources
carry no switches for this. The test that is named for the bug must fail: by an assertion, a crash, or by hanging.

--sample N tries N bugs chosen by --seed (by default NETSUM_SIM_SEED, or a new seed, printed); at least one of each area. --texts only looks
whether every text is in the sources. Exits with 1 if a bug was not found, or if its text is not exactly once in its file.
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import random
import re
import shlex
import shutil
import subprocess
import sys
import time

import bugs_collectives
import bugs_compress
import bugs_compression_control
import bugs_engine
import bugs_failover
import bugs_numbers
import bugs_predict
import bugs_protocol
import bugs_service
import bugs_sparse
import bugs_verify

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUGS = [
    *bugs_protocol.BUGS,
    *bugs_collectives.BUGS,
    *bugs_sparse.BUGS,
    *bugs_compress.BUGS,
    *bugs_compression_control.BUGS,
    *bugs_numbers.BUGS,
    *bugs_service.BUGS,
    *bugs_failover.BUGS,
    *bugs_engine.BUGS,
    *bugs_predict.BUGS,
    *bugs_verify.BUGS,
]
BUILD_DEADLINE_S = 600
SKIPPED = 77  # the exit status when all bugs that were tried were found, but some could not be tried
RUN_DEADLINE_S = 240


class Unusable(Exception):
    """Something that keeps a bug from being tried."""


def run(command, deadline_s, **more):
    return subprocess.run(
        command, capture_output=True, text=True, errors="replace", timeout=deadline_s, check=False, **more
    )


def changed_text(bug):
    text = (ROOT / bug.file).read_text(encoding="utf-8")
    if text.count(bug.old) != 1:
        raise Unusable(f"{bug.file} has the text {text.count(bug.old)} times; adapt the bug to the sources:\n{bug.old}")
    return text.replace(bug.old, bug.new)


@dataclasses.dataclass
class Build:
    """What ninja knows of the build folder."""

    folder: pathlib.Path

    def __post_init__(self):
        self.deps = {}  # output: the files that its compiler read
        listed = run(["ninja", "-C", str(self.folder), "-t", "deps"], 60).stdout
        for block in listed.split("\n\n"):
            lines = block.split("\n")
            output = lines[0].partition(": #deps")[0]
            self.deps[self.path(output)] = {self.path(line.strip()) for line in lines[1:]}
        self.commands_of = {}
        listed = run(["ctest", "--test-dir", str(self.folder), "--show-only=json-v1"], 60).stdout
        self.tests = {test["name"]: test["command"] for test in json.loads(listed)["tests"]}

    def path(self, name):
        return os.path.normpath(self.folder / name)

    def make(self, targets):
        done = run(["ninja", "-C", str(self.folder), *targets], 3600)
        if done.returncode != 0:
            raise Unusable(f"{' '.join(targets)}: the build failed\n{done.stdout[-2000:]}")

    def program(self, test):
        """The target of the binary of a test of ctest, and the arguments by which the binary runs only this test."""
        if test not in self.tests:
            raise Unusable(f"ctest has no test {test}")
        program, *arguments = self.tests[test][2:]  # after cpu_seconds.sh and its file (netsum_add_test)
        return pathlib.Path(program).name, arguments

    def commands(self, target):
        if target not in self.commands_of:
            listed = run(["ninja", "-C", str(self.folder), "-t", "commands", target], 60)
            self.commands_of[target] = listed.stdout.splitlines()
        return self.commands_of[target]


class Planting:
    """One bug, in a folder of its own."""

    def __init__(self, bug, build, work):
        self.bug = bug
        self.build = build
        self.sources = work / "source"
        self.objects = work / "build"
        self.made = {}  # path in the build folder: our own in its place
        shutil.rmtree(work, ignore_errors=True)
        changed = self.sources / bug.file
        changed.parent.mkdir(parents=True)
        changed.write_text(changed_text(bug), encoding="utf-8")
        self.made[str(ROOT / bug.file)] = str(changed)

    def own(self, path):
        path = pathlib.Path(path)
        if not path.is_relative_to(self.build.folder):
            raise Unusable(f"{path} is not in the build folder")
        own = self.objects / path.relative_to(self.build.folder)
        own.parent.mkdir(parents=True, exist_ok=True)
        self.made[str(path)] = str(own)
        return str(own)

    def replace(self, token):
        """The token of a command, with the files that we have made in place of the build's."""
        prefix, path = ("-L", token[2:]) if token.startswith("-L") else ("", token)
        return prefix + self.made.get(self.build.path(path), path)

    def is_touched(self, output, inputs):
        return any(path in self.made for path in (*map(self.build.path, inputs), *self.build.deps.get(output, ())))

    def do(self, command, folder=None):
        done = run(["bash", "-c", command], BUILD_DEADLINE_S, cwd=folder or self.build.folder)
        if done.returncode != 0:
            raise Unusable(f"does not build: {(done.stderr + done.stdout)[-2000:]}")

    def compile(self, tokens):
        output = self.build.path(tokens[tokens.index("-o") + 1])
        if not self.is_touched(output, tokens[tokens.index("-c") + 1 :]):
            return
        kept = []
        skip = False
        for token in tokens:
            if skip or token in ("-MD", "-MT", "-MF"):
                skip = token in ("-MT", "-MF")
                continue
            kept.append(token)
        first = next(i for i, token in enumerate(kept) if token.startswith("-I"))
        kept[first:first] = [f"-I{self.sources}", f"-I{self.objects / 'generated'}"]
        # Quick to build rather than quick to run.
        kept = [self.replace("-O1" if token == "-O3" else token) for token in kept if not token.startswith("-g")]
        kept[kept.index("-o") + 1] = self.own(output)
        self.do(shlex.join(kept))

    def link(self, command):
        """Archives, shared libraries and programs: ': && ar qc LIBRARY OBJECTS && ...'."""
        for part in command.split("&&"):
            tokens = shlex.split(part)
            if len(tokens) < 3 or "-E" in tokens:
                continue
            if tokens[0].endswith("ar"):
                output = self.build.path(tokens[2])
            elif "-o" in tokens:
                output = self.build.path(tokens[tokens.index("-o") + 1])
            else:
                continue
            if not self.is_touched(output, tokens):
                continue
            tokens = [self.replace(token) for token in tokens]
            own = self.own(output)
            tokens[2 if tokens[0].endswith("ar") else tokens.index("-o") + 1] = own
            self.do(shlex.join(tokens))
            soname = next((token[12:] for token in tokens if token.startswith("-Wl,-soname,")), None)
            if soname and soname != pathlib.Path(own).name:
                pathlib.Path(own).with_name(soname).symlink_to(pathlib.Path(own).name)

    def skeleton(self, command):
        """A BPF program and the header made of it."""
        tokens = shlex.split(command)
        output = self.build.path(tokens[tokens.index("-MT") + 1])
        # Ninja does not keep what it reads in the dependency files of custom commands.
        listed = pathlib.Path(tokens[tokens.index("-MF") + 1]).read_text(encoding="utf-8")
        if not self.is_touched(output, listed.replace("\\\n", " ").split()):
            return
        program = tokens[tokens.index("-o") + 1]
        names = {program: self.own(program), output: self.own(output), **self.made}
        command = re.sub(r"-MD -MF \S+ -MT \S+", "", command).replace(f"-I{ROOT}", f"-I{self.sources} -I{ROOT}")
        self.do(" ".join(names.get(word, word) for word in command.split()))

    def make(self):
        target, _ = self.build.program(self.bug.target)
        for command in self.build.commands(target):
            if "gen skeleton" in command:
                self.skeleton(command)
            elif " -c " in command:
                self.compile(shlex.split(command))
            else:
                self.link(command)
        programs = [own for path, own in self.made.items() if pathlib.Path(path).name == target]
        if not programs:
            raise Unusable(f"{self.bug.target} does not use {self.bug.file}")
        return programs[0]

    def environment(self):
        folders = {str(pathlib.Path(own).parent) for own in self.made.values() if ".so" in own}
        return {**os.environ, "NETSUM_SIM_SEED": "1", "LD_LIBRARY_PATH": ":".join(sorted(folders))}

    def find(self):
        """By what the bug was found; None if it was not, "" if the test did not run here."""
        program = self.make()
        _, all_of_it = self.build.program(self.bug.target)
        chosen = [f"--gtest_filter={self.bug.tests}"] if self.bug.tests else all_of_it
        command = [program, *chosen, "--gtest_fail_fast"]
        try:
            done = run(command, RUN_DEADLINE_S, cwd=self.objects, env=self.environment())
        except subprocess.TimeoutExpired:
            return f"hangs for {RUN_DEADLINE_S} s"
        output = done.stdout + done.stderr
        failed = re.search(r"\[  FAILED  \] (\S+?),? ", output)
        runs = re.search(r"(\d+) runs done", output)
        if done.returncode < 0:
            running = re.findall(r"\[ RUN      \] (\S+)", output)
            return f"crash in {running[-1] if running else self.bug.target}"
        if done.returncode != 0:
            return (failed.group(1) if failed else "failure") + (f" after {runs.group(1)} runs" if runs else "")
        if "[  SKIPPED ]" in output and "[       OK ]" not in output:
            return ""
        if "[       OK ]" not in output:
            raise Unusable(f"{self.bug.target} has no test '{self.bug.tests}'")
        return None


def attempt(bug, build, work):
    started = time.monotonic()
    try:
        found = Planting(bug, build, work / bug.name).find()
        outcome = "missed" if found is None else "found" if found else "skipped"
        said = {"missed": f"NOT FOUND by {bug.suite}", "found": found, "skipped": "the test does not run here"}[outcome]
    except (Unusable, subprocess.TimeoutExpired) as error:
        outcome, said = "failed", f"FAILED: {error}"
    shutil.rmtree(work / bug.name, ignore_errors=True)
    print(f"| {bug.area} | `{bug.name}` | {bug.what} | {said} | {time.monotonic() - started:.0f} s |", flush=True)
    return outcome


def sample(count, seed):
    """At least one bug of each area, the rest as they come; none that hangs its test."""
    rng = random.Random(seed)
    candidates = [bug for bug in BUGS if not bug.hangs]
    shuffled = rng.sample(candidates, len(candidates))
    first_of_area = {bug.area: bug for bug in reversed(shuffled)}
    chosen = list(first_of_area.values())
    chosen += [bug for bug in shuffled if bug not in chosen][: max(0, count - len(chosen))]
    return chosen


def check_texts():
    wrong = 0
    for bug in BUGS:
        try:
            changed_text(bug)
        except Unusable as error:
            print(f"planted.py: {bug.name}: {error}", file=sys.stderr)
            wrong += 1
    repeated = [name for name, count in collections.Counter(bug.name for bug in BUGS).items() if count > 1]
    for name in repeated:
        print(f"planted.py: two bugs are called '{name}'", file=sys.stderr)
    return not wrong and not repeated


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    parser.add_argument("--sample", type=int, metavar="N", help="only N bugs, chosen by --seed")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--list", action="store_true", help="print the names of the bugs")
    parser.add_argument("--texts", action="store_true", help="only look for the texts in the sources")
    arguments = parser.parse_args()
    known = {bug.name for bug in BUGS} | {bug.area for bug in BUGS}
    unknown = [name for name in arguments.names if name not in known]
    if unknown:
        parser.error(f"there is no bug or area '{unknown[0]}'; --list prints them")
    if arguments.list:
        print("\n".join(f"{bug.area} {bug.name}: {bug.what}" for bug in BUGS))
        return 0
    if not check_texts():
        return 1
    if arguments.texts:
        print(f"all {len(BUGS)} texts are in the sources")
        return 0
    chosen = [bug for bug in BUGS if not arguments.names or {bug.name, bug.area} & set(arguments.names)]
    if arguments.sample:
        seed = arguments.seed
        if seed is None:
            # Of all random choices of `make test`: a second run repeats the first.
            seed = int(os.environ.get("NETSUM_SIM_SEED") or random.SystemRandom().randrange(2**32))
        chosen = sample(arguments.sample, seed)
        print(
            f"seed {seed}: {len(chosen)} of {len(BUGS)} bugs; again with --sample {arguments.sample} --seed {seed}",
            flush=True,
        )
    folder = arguments.build.resolve()
    build = Build(folder)
    build.make(sorted({build.program(bug.target)[0] for bug in chosen}))
    build = Build(folder)
    print("| area | bug | what | found by | time |\n|--|--|--|--|--:|", flush=True)
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        outcomes = collections.Counter(pool.map(lambda bug: attempt(bug, build, folder / "planted"), chosen))
    print(
        f"{len(chosen)} bugs: {outcomes['found']} found, {outcomes['missed']} not found, {outcomes['failed']} could not be "
        f"planted, {outcomes['skipped']} not tried because their test needs more rights"
    )
    if outcomes["missed"] or outcomes["failed"]:
        return 1
    return SKIPPED if outcomes["skipped"] else 0


if __name__ == "__main__":
    sys.exit(main())
