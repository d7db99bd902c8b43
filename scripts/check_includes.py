#!/usr/bin/env python3
"""Checks that includes go only through the doors between folders, and that no file names a path of one machine.

The table below is the architecture: a folder may include from itself and from the folders listed with it. A folder
listed stands for itself alone if it has an entry of its own, and otherwise ("src") for all folders below it.
The table has no cycles, neither between its folders nor between the top-level folders that they lie in.
Tests beside a source (*_test.cc) may besides use what TESTS_ALSO lists. Run from anywhere; prints one line per
offence and exits with 1 if there is any.
"""

import graphlib
import pathlib
import re
import subprocess
import sys

import check_main

API = "include/netsum"
DOORS = {
    API: [],
    "src/base": [API],
    "src/bursts": [API, "src/base"],
    "src/faults": ["src/base", "wire"],
    "src/priority": ["src/base"],
    "wire": [API],
    "src/kernels": [API, "src/base", "wire"],
    "src/sparse": [API, "src/base", "src/kernels"],
    "src/compress": [API, "src/base", "src/kernels"],
    "src/compress/methods": [API, "src/base", "src/kernels", "src/compress"],
    "src/compress/control": [API, "src/base"],
    # What packets come and go as, and what decorates any driver. The drivers are folders of their own.
    "src/net": [API, "src/base"],
    "src/net/udp": [API, "src/base", "src/net"],
    "src/net/af_xdp": [API, "src/base", "src/net", "src/net/udp"],
    "src/telemetry": [API, "src/base", "src/net"],
    "src/options": [API, "src/base"],
    "src/job": [API, "src/base", "wire"],
    "src/control": [API, "src/base", "src/net", "src/job", "wire"],
    "src/encoding": [API, "src/base", "src/kernels", "wire"],
    "src/verify": [API, "src/base", "src/kernels", "wire"],
    # Decides when a packet is sent, not what it contains.
    "src/worker/slots": ["src/base", "wire"],
    "src/worker": [
        API,
        "src/base",
        "src/faults",
        "src/kernels",
        "src/encoding",
        "src/verify",
        "src/net",
        "src/worker/slots",
        "wire",
    ],
    "src/host": [API, "src/base", "src/kernels", "src/encoding", "src/worker", "wire"],
    # Of the worker the limits of the weights that the planner makes.
    "src/plan": [API, "src/base", "src/job", "src/worker"],
    "src/program": [API, "src/base"],
    "aggregator/slot": ["wire"],
    "aggregator/dataplane": [API, "src/base", "src/faults", "src/net", "src/job", "wire"],
    "aggregator/user": [
        API,
        "src/base",
        "src/bursts",
        "src/faults",
        "src/kernels",
        "src/net",
        "src/net/udp",
        "wire",
        "aggregator/slot",
        "aggregator/dataplane",
    ],
    "aggregator/xdp": [API, "src/base", "src/net", "src/net/udp", "wire", "aggregator/slot", "aggregator/dataplane"],
    "aggregator/p4": [API, "src/base", "src/net", "wire", "aggregator/dataplane"],
    "aggregator/control": [
        API,
        "src/base",
        "src/faults",
        "src/net",
        "src/job",
        "src/control",
        "src/plan",
        "wire",
        "aggregator/dataplane",
    ],
    "engine": [
        API,
        "src/base",
        "src/bursts",
        "src/net",
        "src/net/udp",
        "src/net/af_xdp",
        "src/worker",
        "src/host",
        "src/telemetry",
        "wire",
    ],
    "session": [
        API,
        "src/base",
        "src/bursts",
        "src/net",
        "src/net/udp",
        "src/verify",
        "src/worker",
        "src/host",
        "src/job",
        "src/control",
        "src/telemetry",
        "wire",
        "aggregator/dataplane",
        "aggregator/user",
        "aggregator/control",
        "engine",
    ],
    "api": [
        API,
        "src/base",
        "src/kernels",
        "src/net",
        "src/worker",
        "src/priority",
        "src/sparse",
        "src/host",
        "src/job",
        "src/plan",
        "src/telemetry",
        "wire",
        "aggregator/user",
        "aggregator/xdp",
        "aggregator/p4/driver",
        "aggregator/control",
        "engine",
        "session",
    ],
    "src/rendezvous": [API],
    "mpi": [API, "src/rendezvous"],
    "nccl": [API, "src/rendezvous"],
    "tools/measure": [API, "src/base"],
    "tools/netsum": [
        API,
        "src/base",
        "src/bursts",
        "src/faults",
        "src/net",
        "src/net/udp",
        "src/net/af_xdp",
        "src/compress",
        "src/control",
        "src/kernels",
        "src/plan",
        "src/program",
        "src/telemetry",
        "wire",
        "aggregator/p4",
        "emulate",
        "emulate/ghost",
        "tools/measure",
    ],
    "torch": [API, "src/program"],
    "examples": [API],
    "emulate/ghost": [
        API,
        "src/base",
        "src/encoding",
        "src/net",
        "src/net/udp",
        "src/worker",
        "src/program",
        "wire",
        "session",
    ],
    "emulate": [
        API,
        "src/base",
        "src/faults",
        "src/kernels",
        "src/net",
        "src/verify",
        "src/worker",
        "wire",
        "aggregator/user",
        "aggregator/dataplane",
        "aggregator/p4/driver",
        "aggregator/p4/model",
    ],
    # Benchmarks drive a dataplane as its conformance test does, the plug-in of NCCL as its test does, and an engine.
    "bench": [API, "src", "wire", "aggregator", "engine", "nccl", "tests/conformance", "tools/measure"],
    "tests": [API, "src", "wire", "aggregator", "emulate", "tools", "tests"],
}
TESTS_ALSO = ["src/base", "src/bursts", "src/kernels", "wire"]

# Libraries whose headers are quoted by custom; all others are written <...>.
QUOTED_LIBRARIES = ("hwy/",)

SOURCES = {".h", ".c", ".cc", ".cpp", ".p4"}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
# Written in pieces so that this file does not catch itself.
MACHINE_PATH = re.compile(r"(?<![\w.:/-])/(?:" + "|".join(["home", "Users", "root", "work"]) + r")/[\w.-]+")
TEXT = SOURCES | {".py", ".sh", ".md", ".txt", ".cmake", ".in", ".json", ".toml", ".proto", ".yml", ".yaml", ""}


def files_of(root):
    """Tracked and new files, or every file where there is no git (a source archive)."""
    listing = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-co", "--exclude-standard", "-z"], capture_output=True, check=False
    )
    if listing.returncode == 0:
        names = sorted(name for name in listing.stdout.decode().split("\0") if name)
        return [name for name in names if (root / name).is_file()]
    skipped = ("build/", ".venv/", ".git/")
    names = (path.relative_to(root).as_posix() for path in sorted(root.rglob("*")) if path.is_file())
    return [name for name in names if not name.startswith(skipped)]


def is_within(path, folder):
    return path == folder or path.startswith(folder + "/")


def room_of(path):
    """The most specific folder of the table that holds `path`."""
    rooms = [folder for folder in DOORS if is_within(path, folder)]
    return max(rooms, key=len) if rooms else None


def may_include(target, folder):
    return room_of(target) == folder if folder in DOORS else is_within(target, folder)


def target_of(include):
    """The path in the repository that an include names, or None if it is not ours."""
    if include.startswith("netsum/"):
        return "include/" + include
    first = include.split("/")[0]
    return include if first in {folder.split("/")[0] for folder in DOORS} else None


def check_includes(path, text):
    room = room_of(path)
    if room is None:
        yield f"{path}: lies in no folder that scripts/check_includes.py knows; add the folder to its table"
        return
    allowed = [room] + DOORS[room] + (TESTS_ALSO if "_test." in path else [])
    for match in INCLUDE.finditer(text):
        if match.group(1).startswith(QUOTED_LIBRARIES):
            continue
        if room == "examples" and "/" not in match.group(1):  # programs that are copied out of this repository
            continue
        target = target_of(match.group(1))
        line = text.count("\n", 0, match.start(1)) + 1
        if target is None:
            yield (
                f'{path}:{line}: "{match.group(1)}" is not written from the repository root; '
                "use the full path, or <...> for a system header"
            )
        elif not any(may_include(target, folder) for folder in allowed):
            yield (
                f'{path}:{line}: {room} may not include "{match.group(1)}"; '
                f"it may use {', '.join(allowed[1:]) or 'nothing else'}"
            )


def check_cycles(doors):
    """Offences of the table itself: folders that include each other, and top-level folders that do."""
    top_level = {}
    for folder, uses in doors.items():
        top = folder.split("/")[0]
        top_level.setdefault(top, set()).update({use.split("/")[0] for use in uses} - {top})
    for graph in (doors, top_level):
        try:
            graphlib.TopologicalSorter({folder: set(uses) - {folder} for folder, uses in graph.items()}).prepare()
        except graphlib.CycleError as error:
            yield "scripts/check_includes.py: these folders include each other: " + " <- ".join(error.args[1])


def check_paths(path, text):
    for match in MACHINE_PATH.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        yield f"{path}:{line}: '{match.group(0)}' is a path of one machine; write it relative to the repository"


def check(root):
    offences = list(check_cycles(DOORS))
    for path in files_of(root):
        suffix = pathlib.PurePosixPath(path).suffix
        if suffix not in TEXT:
            continue
        try:
            text = (root / path).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if suffix in SOURCES:
            offences += check_includes(path, text)
        offences += check_paths(path, text)
    return offences


if __name__ == "__main__":
    sys.exit(check_main.main(__doc__, check, "include directions and paths: in order"))
