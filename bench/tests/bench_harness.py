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


def run_module(module, *arguments, limit_s=400):
    """Runs netsum_bench.<module>; returns the finished process."""
    return subprocess.run(
        [sys.executable, "-m", f"netsum_bench.{module}", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
