"""mpi4py's own tests, run with the component of Open MPI. Those that fail without it, too, are left out."""

import importlib.util
import pathlib
import re
import sys
import tarfile
import tempfile

import pytest
from harness import CommandTest
from mpi_harness import mpirun, need_open_mpi

# The source package, which has the tests; scripts/bootstrap.sh puts it there.
SOURCES = pathlib.Path(sys.prefix) / "sources"
LIMIT_S, SOAK_LIMIT_S = 400, 1800
# These need more processes than ranks, or MPI 4; the last one computes for minutes and communicates nothing.
NOT_COLLECTIVE = ("spawn", "dynproc", "util_pool", "ulfm", "session", "util_dtlib")


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    """The script that runs mpi4py's tests."""
    need_open_mpi()
    packages = list(SOURCES.glob("mpi4py-*.tar.gz"))
    if not packages or importlib.util.find_spec("mpi4py") is None:
        pytest.skip(f"mpi4py or its source package in {SOURCES} is missing: run scripts/bootstrap.sh")
    folder = tmp_path_factory.mktemp("mpi4py")
    with tarfile.open(packages[0]) as package:
        package.extractall(folder, filter="data")
    [script] = folder.glob("mpi4py-*/test/main.py")
    return script


class TestMpi4py(CommandTest):
    def run_suite(self, suite, ranks, *selection, limit_s, **variables):
        """(tests that each rank ran, collectives by netsum). What each rank wrote is read from its own file:
        mpirun mixes the lines of the ranks."""
        program = [sys.executable, suite, "--no-builddir", "-f", *selection]
        with tempfile.TemporaryDirectory(prefix="netsum-test-") as folder:
            flags = ("--output-filename", folder)
            run = mpirun(ranks, *program, flags=flags, limit_s=limit_s, **variables)
            texts = [path.read_text(encoding="utf-8") for path in sorted(pathlib.Path(folder).rglob("stderr"))]
        assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-8000:]
        counts = [int(count) for text in texts for count in re.findall(r"^Ran (\d+) tests", text, re.MULTILINE)]
        assert len(counts) == ranks, texts
        taken = sum(int(count) for text in texts for count in re.findall(r"ends after (\d+) collectives by", text))
        return min(counts), taken

    @pytest.mark.soak  # mpi_test.py has the same collectives in C; three Pythons poll meanwhile
    def test_collectives(self, suite):
        """On one host, blocking ones of buffers."""
        tests, taken = self.run_suite(suite, 3, "-i", r"cco_buf\.py", limit_s=LIMIT_S)
        assert tests > 30
        assert taken > 300

    @pytest.mark.soak
    @pytest.mark.timeout(SOAK_LIMIT_S)
    @pytest.mark.parametrize("ranks", [2, 4])
    def test_all(self, suite, ranks):
        """All that one job runs, over the network."""
        daemon = self.start_aggregator()
        left_out = [part for name in NOT_COLLECTIVE for part in ("-e", name)]
        tests, taken = self.run_suite(
            suite,
            ranks,
            *left_out,
            limit_s=SOAK_LIMIT_S,
            NETSUM_AGGREGATOR=daemon.address,
            NETSUM_SHARED_MEMORY="0",
        )
        assert tests > 1000
        assert taken > 1000
