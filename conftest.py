"""For all tests in Python."""

import os
import pathlib
import subprocess
import tempfile

import pytest

pytest.register_assert_rewrite(
    "harness", "hosts_harness", "metrics_harness", "rack_harness"
)  # whose assertions explain themselves, too

ROOT = pathlib.Path(__file__).resolve().parent
NETSUM = pathlib.Path(os.environ.get("NETSUM_BUILD", ROOT / "build/release")) / "tools/netsum/netsum"


def pytest_configure(config):
    """PyTorch, torchrun and killed processes leave temporary files behind: they go with this run. `tmp_path` stays."""
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    folder = tempfile.TemporaryDirectory(prefix="netsum-", ignore_cleanup_errors=True)
    config.add_cleanup(folder.cleanup)
    os.environ["TMPDIR"] = folder.name
    tempfile.tempdir = None  # is read from the environment again


@pytest.fixture(autouse=True)
def own_racks(tmp_path_factory, monkeypatch):
    """Virtual racks are the test's own, and are taken down after it even if what made them was killed."""
    folder = tmp_path_factory.mktemp("racks")
    monkeypatch.setenv("NETSUM_RACK_DIR", str(folder))
    yield
    if folder.exists() and any(folder.iterdir()):  # `rack down` removes an empty folder
        subprocess.run([NETSUM, "rack", "down", "--all"], timeout=60, check=True)
