"""PyTorch's own tests of a c10d backend, made to run against netsum.

The tests are those of torch.testing._internal.distributed.distributed_test, which every PyTorch wheel contains.
Chosen by the environment:

- NETSUM_TEST_BACKEND: netsum (default), or another to compare with, such as gloo.
- NETSUM_TEST_WORLD_SIZE: 4 (default) or 8.
- NETSUM_TEST_WHERE: by what netsum sums, "shards" in the ranks (default) or a "daemon".
- NETSUM_TEST_SUITE: "all", or only those tests that use netsum's collectives ("ours", the default).

Two things differ from how PyTorch runs them:

- Many of them ask for the backend's name and skip themselves unless it is "gloo". netsum claims all that Gloo can
  do, so they are gated as for Gloo, and then run on netsum.
- PyTorch starts four new Pythons per test, each of which imports torch for seconds. Here they are forked from one
  that has imported everything and has not yet started a thread.
"""

import contextlib
import inspect
import itertools
import os
import pathlib
import tempfile
import types

WORLD_SIZE = int(os.environ.get("NETSUM_TEST_WORLD_SIZE", "4"))
WHERE = os.environ.get("NETSUM_TEST_WHERE", "shards")
ONLY_OURS = os.environ.get("NETSUM_TEST_SUITE", "ours") == "ours"
TEST_TIMEOUT_S = 120

# distributed_test reads these when it is imported.
os.environ["BACKEND"] = "gloo"
os.environ["WORLD_SIZE"] = str(WORLD_SIZE)
os.environ["CUDA_VISIBLE_DEVICES"] = ""  # with fewer GPUs than ranks the suite skips everything
os.environ["DISTRIBUTED_TESTS_DEFAULT_TIMEOUT"] = str(TEST_TIMEOUT_S)
os.environ.setdefault("TEMP_DIR", tempfile.mkdtemp(prefix="netsum-pytorch-suite-"))
# For the tests that make their group a second time; the others get a file of their own.
os.environ.setdefault("INIT_METHOD", f"file://{os.environ['TEMP_DIR']}/store")

import excluded  # noqa: E402
import netsum.torch  # noqa: E402, F401
import on_cpu  # noqa: E402
import torch.multiprocessing  # noqa: E402
from netsum.torch import _group  # noqa: E402
from torch.testing._internal.common_distributed import DistTestCases  # noqa: E402

import torch  # noqa: E402

for _feature in ("ddp", "subgroup", "plugin"):
    DistTestCases.backend_feature[_feature].add("netsum")

from torch.testing._internal.distributed import distributed_test  # noqa: E402

DistributedTest = distributed_test.DistributedTest


def backend():
    """The backend that the tests run on: netsum, or another to compare with."""
    return os.environ.get("NETSUM_TEST_BACKEND", "netsum")


# While they run, these ask for the backend's name once more, to know whether to use the CPU.
CHOOSE_DEVICE_BY_NAME = "test_accumulate_gradients_"


# --- Which of the tests use netsum's collectives ------------------------------------------------------------------

_CALLS = pathlib.Path(tempfile.mkdtemp(prefix="netsum-pytorch-suite-")) / "calls"
_backends = []  # of all groups that this process has made; each rank of each test is a process
_make_backend = _group._make


def _make_and_remember(*arguments, **more):
    backend = _make_backend(*arguments, **more)
    _backends.append(backend)
    return backend


_group._make = _make_and_remember


def _note_calls(test_name):
    # Without barriers, which PyTorch's own code around a test calls, too.
    per_name = [backend.stats()["netsum_calls"].items() for backend in _backends]
    calls = sum(count for name, count in itertools.chain(*per_name) if name != "barrier")
    with _CALLS.open("a", encoding="utf-8") as file:
        file.write(f"{test_name} {calls}\n")


def calls_by_test():
    """Collectives that netsum has run, on all ranks together, by the name of the test, of those that have run."""
    calls = {}
    if _CALLS.exists():
        for line in _CALLS.read_text(encoding="utf-8").splitlines():
            name, count = line.split()
            calls[name] = calls.get(name, 0) + int(count)
    return calls


class ForkingTestCase(distributed_test.TestDistBackend):
    """Runs each test in WORLD_SIZE processes forked from this one."""

    def setUp(self):
        super().setUp()
        distributed_test.BACKEND = backend()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)

    def run_test(self, test_name, parent_pipe):
        if test_name.startswith(CHOOSE_DEVICE_BY_NAME):
            distributed_test.BACKEND = "gloo"
        where = on_cpu.instead_of_gpus(self.rank) if test_name in excluded.ON_CPU else contextlib.nullcontext()
        try:
            with where:
                super().run_test(test_name, parent_pipe)
        finally:
            _note_calls(test_name)


def skipped_by_pytorch():
    """PyTorch's tests by name, each with PyTorch's own reason for skipping it here, or None where it would run."""
    return {
        name: _reason(getattr(DistributedTest._DistTestBase, name))
        for name in dir(DistributedTest._DistTestBase)
        if name.startswith("test_")
    }


# In the place of an inherited test that is not to run. Not callable, hence no test; PyTorch's set-up looks at the
# attribute of one of them.
_NO_TEST = types.SimpleNamespace(__wrapped__=None)


# PyTorch keeps these for MPI, from the time when Gloo could not do it. It can, and so can netsum.
KEPT_FOR_MPI = "Only MPI supports CPU all_to_all_single"


def choose_tests(test_class, excluded, only=None):
    """Takes away from the class the tests that are not to run, and gives back those that are KEPT_FOR_MPI.

    `only`: of those to run, these alone; None: all.
    """
    for name, reason in skipped_by_pytorch().items():
        if name in excluded or (only is not None and name not in only):
            setattr(test_class, name, _NO_TEST)
        elif reason == KEPT_FOR_MPI:
            setattr(test_class, name, _without_marks(inspect.unwrap(getattr(test_class, name))))
        elif reason:
            setattr(test_class, name, _NO_TEST)


def _without_marks(test):
    def run(self):
        test(self)

    return run


def _reason(test):
    if not getattr(test, "__unittest_skip__", False):
        return None
    return getattr(test, "__unittest_skip_why__", "") or "no reason given"
