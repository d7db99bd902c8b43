"""What the tests of the benchmarks share: they run them as their user would."""

import importlib.util
import os
import subprocess
import sys

import pytest

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="virtual racks need root")
needs_package = pytest.mark.skipif(
    importlib.util.find_spec("netsum") is None, reason="the Python package is not installed: scripts/install_wheel.sh"
)


def run_bench(*arguments, limit_s=500):
    """Runs netsum_bench; returns the finished process."""
    return subprocess.run(
        [sys.executable, "-m", "netsum_bench", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )


def namespaces():
    return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout


def cells(line):
    """Of a line of a table in Markdown."""
    return [cell.strip() for cell in line.split("|")][1:-1]


def rows_of(table):
    """The rows of a table, each by its headings; of tables with the same heading twice, the last of these."""
    headings, _, *lines = [line for line in table.splitlines() if line.startswith("|")]
    return [dict(zip(cells(headings), cells(line), strict=True)) for line in lines]
