"""Where and how a figure was taken: machine, commit, command."""

import os
import pathlib
import platform
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def processor():
    lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def machine():
    return f"{processor()}; {os.cpu_count()} cores; Linux {platform.release()}"


def version():
    """Of netsum in this tree."""
    return re.search(r"project\(netsum VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text(encoding="utf-8"))[1]


def git(*arguments):
    """What git prints; nothing where it fails."""
    done = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def command_line():
    """Of this process, as one types it in the root of the repository."""
    module = sys.modules["__main__"].__spec__
    program = ["-m", module.name.removesuffix(".__main__")] if module else [os.path.relpath(sys.argv[0], ROOT)]
    return shlex.join(["python", *program, *sys.argv[1:]])
