"""Builds test programs with another text in place of one source file; the project's sources and build stay as they are.

The changed copy lies in a folder of its own, which comes first on the include path. Only the objects that include it are
compiled, by the commands of the build folder, and linked into second copies of the programs.
"""

import concurrent.futures
import dataclasses
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD_DEADLINE_S = 600


class DoesNotBuild(Exception):
    """`errors`: line and column of each error in the changed file."""

    def __init__(self, output, file):
        super().__init__(output[-2000:])
        # A template's error may be elsewhere, and name our line as where it was needed.
        found = [re.findall(rf"{re.escape(file)}:(\d+):(\d+): {kind}", output) for kind in ("(?:fatal )?error", "")]
        self.errors = sorted({(int(line), int(column)) for line, column in found[0] or found[1]})


class Unusable(Exception):
    """Something that keeps a test from being built or run at all."""


class Skipped(Unusable):
    """The test skips itself here; most often it needs root."""


def run(command, deadline_s, **more):
    return subprocess.run(
        command, capture_output=True, text=True, errors="replace", timeout=deadline_s, check=False, **more
    )


@dataclasses.dataclass
class Build:
    """What ninja knows of the build folder."""

    folder: pathlib.Path

    def __post_init__(self):
        self.deps = {}  # output: the files that its compiler read
        self.commands_of = {}
        listed = run(["ctest", "--test-dir", str(self.folder), "--show-only=json-v1"], 60).stdout
        self.tests = {test["name"]: test.get("command", ()) for test in json.loads(listed)["tests"]}

    def program(self, test):
        """The target of a test of ctest, "TEST [GTEST_FILTER]", and the arguments by which its binary runs only this test."""
        name, _, chosen = test.partition(" ")
        if len(self.tests.get(name, ())) < 3:
            raise Unusable(f"ctest has no test {name}")
        program, *arguments = self.tests[name][2:]  # after cpu_seconds.sh and its file (netsum_add_test)
        return pathlib.Path(program).name, [f"--gtest_filter={chosen}"] if chosen else arguments

    def targets(self, tests):
        return list(dict.fromkeys(self.program(test)[0] for test in tests))

    def path(self, name):
        return os.path.normpath(self.folder / name)

    def make(self, targets, jobs):
        done = run(["ninja", "-C", str(self.folder), f"-j{jobs}", *targets], 7200)
        if done.returncode != 0:
            raise Unusable(f"{' '.join(targets)}: the build failed\n{done.stdout[-2000:]}")
        listed = run(["ninja", "-C", str(self.folder), "-t", "deps"], 60).stdout
        for block in listed.split("\n\n"):
            lines = block.split("\n")
            output = lines[0].partition(": #deps")[0]
            self.deps[self.path(output)] = {self.path(line.strip()) for line in lines[1:]}

    def commands(self, target):
        if target not in self.commands_of:
            listed = run(["ninja", "-C", str(self.folder), "-t", "commands", target], 60)
            self.commands_of[target] = listed.stdout.splitlines()
        return self.commands_of[target]


class Overlay:
    """Test programs with `text` in place of `file`."""

    def __init__(self, build, work, file, text):
        self.build = build
        self.file = file
        self.sources = work / "source"
        self.objects = work / "build"
        self.made = {str(ROOT / file): str(self.sources / file)}  # path in the project: our own in its place
        shutil.rmtree(work, ignore_errors=True)
        (self.sources / file).parent.mkdir(parents=True)
        (self.sources / file).write_bytes(text)

    def own(self, path):
        own = self.objects / pathlib.Path(path).relative_to(self.build.folder)
        own.parent.mkdir(parents=True, exist_ok=True)
        self.made[path] = str(own)
        return str(own)

    def replace(self, token):
        """The token of a command, with the files that we have made in place of the build's."""
        prefix, path = ("-L", token[2:]) if token.startswith("-L") else ("", token)
        return prefix + self.made.get(self.build.path(path), path)

    def is_touched(self, output, inputs):
        return any(path in self.made for path in (*map(self.build.path, inputs), *self.build.deps.get(output, ())))

    def compile_command(self, tokens):
        """None if the object does not include the file. Objects of C are not used by programs, only compiled as a check."""
        output = self.build.path(tokens[tokens.index("-o") + 1])
        source = tokens[tokens.index("-c") + 1]
        if output in self.made or source.endswith(".c") or not self.is_touched(output, [source]):
            return None
        kept = []
        skip = False
        for token in tokens:
            if skip or token in ("-MD", "-MT", "-MF"):
                skip = token in ("-MT", "-MF")
                continue
            kept.append(token)
        first = next(i for i, token in enumerate(kept) if token.startswith("-I"))
        kept[first:first] = [
            f"-I{self.sources}",
            f"-I{self.objects / 'generated'}",
            f"-I{pathlib.Path(__file__).parent}",
        ]
        # Quick to build rather than quick to run.
        kept = [self.replace("-O1" if token == "-O3" else token) for token in kept if not token.startswith("-g")]
        kept[kept.index("-o") + 1] = self.own(output)
        return kept

    def skeleton(self, command):
        """A BPF program and the header made of it."""
        tokens = shlex.split(command)
        output = self.build.path(tokens[tokens.index("-MT") + 1])
        # Ninja does not keep what it reads in the dependency files of custom commands.
        listed = pathlib.Path(tokens[tokens.index("-MF") + 1]).read_text(encoding="utf-8")
        if output in self.made or not self.is_touched(output, listed.replace("\\\n", " ").split()):
            return
        program = tokens[tokens.index("-o") + 1]
        names = {program: self.own(program), output: self.own(output), **self.made}
        command = re.sub(r"-MD -MF \S+ -MT \S+", "", command).replace(f"-I{ROOT}", f"-I{self.sources} -I{ROOT}")
        command = " ".join(names.get(word, word) for word in command.split())
        done = run(["bash", "-c", command], BUILD_DEADLINE_S, cwd=self.build.folder)
        if done.returncode != 0:
            raise DoesNotBuild(done.stderr + done.stdout, self.file)

    def link(self, command):
        """Archives, shared libraries and programs: ': && ar qc LIBRARY OBJECTS && ...'."""
        for part in command.split("&&"):
            tokens = shlex.split(part)
            if len(tokens) < 3 or "-E" in tokens or not (tokens[0].endswith("ar") or "-o" in tokens):
                continue
            place = 2 if tokens[0].endswith("ar") else tokens.index("-o") + 1
            output = self.build.path(tokens[place])
            if output in self.made or not self.is_touched(output, tokens):
                continue
            tokens = [self.replace(token) for token in tokens]
            own = self.own(output)
            tokens[place] = own
            done = run(tokens, BUILD_DEADLINE_S, cwd=self.build.folder)
            if done.returncode != 0:
                raise DoesNotBuild(done.stderr + done.stdout, self.file)
            soname = next((token[12:] for token in tokens if token.startswith("-Wl,-soname,")), None)
            if soname and soname != pathlib.Path(own).name:
                pathlib.Path(own).with_name(soname).symlink_to(pathlib.Path(own).name)

    def make(self, targets, jobs):
        """The programs of those targets that use the file."""
        commands = [command for target in targets for command in self.build.commands(target)]
        if ".bpf." in self.file:
            for command in commands:
                if "gen skeleton" in command:
                    self.skeleton(command)
        commands = [command for command in commands if "gen skeleton" not in command]
        compile = [self.compile_command(shlex.split(command)) for command in commands if " -c " in command]
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            done = list(
                pool.map(lambda command: run(command, BUILD_DEADLINE_S, cwd=self.build.folder), filter(None, compile))
            )
        if any(one.returncode != 0 for one in done):
            raise DoesNotBuild("".join(one.stderr for one in done if one.returncode != 0), self.file)
        for command in commands:
            if " -c " not in command:
                self.link(command)
        return {pathlib.Path(path).name: own for path, own in self.made.items() if pathlib.Path(path).name in targets}

    def environment(self):
        folders = {str(pathlib.Path(own).parent) for own in self.made.values() if ".so" in own}
        return {
            **os.environ,
            "NETSUM_SIM_SEED": "1",
            "NETSUM_SIM_RUNS": "300",
            "LD_LIBRARY_PATH": ":".join(sorted(folders)),
        }
