"""What the fixtures of all tests (conftest.py) take away after a test that was ended in the middle."""

import os
import pathlib
import re
import subprocess
import sys

from harness import NETSUM, PATIENCE_S
from rack_harness import RackCommandTest, namespaces

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEST = """
import subprocess

def test_that_fails_with_a_rack_up():
    subprocess.run([{netsum!r}, "rack", "up", "--name", {name!r}, "--workers", "1"], check=True)
    assert "netsum-{name}-w0" in subprocess.run(["ip", "netns"], capture_output=True, text=True).stdout
    raise RuntimeError("in the middle")

def test_that_takes_its_rack_down():
    subprocess.run([{netsum!r}, "rack", "up", "--name", {name!r}, "--workers", "1"], check=True)
    subprocess.run([{netsum!r}, "rack", "down", "--name", {name!r}], check=True)
"""


class LeftoversTest(RackCommandTest):
    def test_the_rack_of_a_failed_test_is_taken_down(self):
        path = self.folder / "test_one.py"
        path.write_text(TEST.format(netsum=NETSUM, name=self.name), encoding="utf-8")
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider", path.name],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert "RuntimeError: in the middle" in run.stdout
        assert re.search("1 failed, 1 passed in", run.stdout)
        assert {n for n in namespaces() if n.startswith(f"netsum-{self.name}-")} == set()
