#!/usr/bin/env python3
"""Runs test files by pytest, each in a process of its own, several at a time.

  run_pytest.py RESULTS [--marks EXPRESSION] [--jobs N] [--after FILE --then N] LABEL=PATH ...

A path is a file or a folder; the files that take longest start first. Each file leaves RESULTS/LABEL-FILE.xml (JUnit), .exit and .log;
all files of a label add their processor seconds to RESULTS/LABEL.cpu. RESULTS/pytest.runners names the files of which a test has run.
--then replaces --jobs as soon as the file of --after exists. The exit status is 0 if all files have run, whether tests failed or not.

The processes are forked from this one, which has imported what takes seconds to import: PyTorch, if a label is torch. A test may fork
ranks, which is not safe in a process with threads, such as a worker of pytest-xdist.
"""

import argparse
import atexit
import contextlib
import gc
import io
import os
import pathlib
import re
import signal
import sys
import time
import types

NO_PLUGINS = "PYTEST_DISABLE_PLUGIN_AUTOLOAD"
# Those that take long, longest first: some compute, some wait. The others follow by name.
LONG = [
    "tests/torch/test_store.py",
    "tests/torch/test_errors.py",
    "tests/torch/test_pytorch_suite.py",
    "tests/torch/test_exit.py",
    "tests/torch/test_compress_sharded.py",
    "tests/torch/test_sharded_training.py",
    "tests/chaos/test_chaos.py",
    "tests/torch/test_failures.py",
    "tests/torch/test_device_compression.py",
    "tests/cli/mpi_test.py",
    "tests/cli/aggregator_test.py",
    "tests/cli/loss_test.py",
    "tests/cli/multicast_test.py",
    "tests/cli/rack_test.py",
    "tests/cli/plan_graph_test.py",
    "tests/torch/test_operations.py",
    "tests/torch/test_accelerator.py",
    "tests/cli/bench_test.py",
    "bench/tests/test_places.py",
    "tests/cli/icmp_test.py",
    "tests/cli/xdp_traffic_test.py",
    "tests/torch/test_compress_failures.py",
    "tests/torch/test_late_join.py",
    "tests/torch/test_gpu_check.py",
    "tests/torch/test_emulation.py",
    "tests/torch/test_compress.py",
    "tests/cli/memcheck_test.py",
    "tests/cli/emulate_test.py",
    "tests/torch/test_control.py",
    "tests/torch/test_interruption.py",
    "tests/torch/test_sparse.py",
    "bench/tests/test_demo.py",
    "tests/torch/test_collectives.py",
    "tests/cli/rack_spare_test.py",
    "tests/torch/test_device_calls.py",
    "tests/deploy/test_serving.py",
    "bench/tests/test_tables.py",
    "tests/torch/test_overlap.py",
    "bench/tests/test_runs.py",
    "tests/cli/hierarchy_test.py",
    "tests/cli/place_test.py",
    "tests/cli/bursts_test.py",
    "tests/torch/test_segments.py",
    "tests/cli/plan_test.py",
    "tests/torch/test_training.py",
    "tests/torch/test_waves.py",
    "tests/cli/rack_topology_test.py",
]


def files_of(path):
    if path.is_file():
        return [path]
    return [file for file in path.rglob("*.py") if file.name.startswith("test_") or file.stem.endswith("_test")]


def in_order(places):
    """(label, file) of all LABEL=PATH; a file is of the first label that has it."""
    label_of = {}
    for place in places:
        label, path = place.split("=", 1)
        for file in files_of(pathlib.Path(path)):
            label_of.setdefault(str(file), label)
    rank = {name: number for number, name in enumerate(LONG)}
    return [(label_of[file], file) for file in sorted(label_of, key=lambda file: (rank.get(file, len(LONG)), file))]


def import_for(labels):
    """No collection of garbage searches what is imported here: that takes a second, and in each process again."""
    gc.disable()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        run_pytest("--version")  # imports the plugins
    if "torch" in labels:
        os.environ["OMP_NUM_THREADS"] = "1"  # read by PyTorch when it is imported
        import netsum.torch  # noqa: F401
        import torch._dynamo
        import torch.distributed  # noqa: F401

        del os.environ["OMP_NUM_THREADS"]
    gc.freeze()
    gc.enable()


def run_pytest(*arguments):
    import pytest

    os.environ[NO_PLUGINS] = "1"  # others take half a second, and are for tests of other packages
    # What tests start has plug-ins again.
    undo = types.SimpleNamespace(pytest_configure=lambda: os.environ.pop(NO_PLUGINS, None))
    return int(pytest.main(["-p", "pytest_timeout", *arguments], plugins=[undo]))


def run_file(file, marks, results, name):
    """Of the new process; does not return."""
    status = 3
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell lets background processes ignore
        log = os.open(results / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        status = run_pytest(
            "-q", "-p", "no:cacheprovider", "-m", marks, "--junitxml", str(results / f"{name}.xml"), file
        )
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def add_cpu(path, used):
    """As cpu_seconds.sh writes it."""
    with path.open("a", encoding="ascii") as file:
        file.write(f"0m{used.ru_utime:.3f}s 0m{used.ru_stime:.3f}s\n")


def show(log):
    """All but the lines of dots."""
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        if line and not re.fullmatch(r"[.sxXFE]* *\[ *\d+%\]", line):
            print(f"  {line}")


class Pool:
    def __init__(self, results, marks):
        self.results = results
        self.marks = marks
        self.running = {}  # label, name and start by process
        self.ran = []

    def start(self, label, file):
        name = f"{label}-{pathlib.Path(file).stem}"
        process = os.fork()
        if process == 0:
            run_file(file, self.marks, self.results, name)
        self.running[process] = label, name, time.monotonic()

    def wait(self):
        process, status, used = os.wait4(-1, 0)
        label, name, started = self.running.pop(process)
        add_cpu(self.results / f"{label}.cpu", used)
        code = os.waitstatus_to_exitcode(status)
        if code == 5:  # no test has these marks
            (self.results / f"{name}.xml").unlink(missing_ok=True)
            return
        self.ran.append(name)
        (self.results / f"{name}.exit").write_text(f"{code}\n", encoding="ascii")
        cpu = used.ru_utime + used.ru_stime
        print(f"{name}: {time.monotonic() - started:.0f} s, {cpu:.1f} s of processor time")
        show(self.results / f"{name}.log")
        sys.stdout.flush()

    def run(self, files, most):
        try:
            for label, file in files:
                while len(self.running) >= most():
                    self.wait()
                self.start(label, file)
            while self.running:
                self.wait()
        finally:  # a test takes away what it has made when it is interrupted
            for process in self.running:
                os.kill(process, signal.SIGINT)
            while self.running:
                self.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("places", nargs="+", metavar="LABEL=PATH")
    parser.add_argument("--marks", default="not soak")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--after", type=pathlib.Path)
    parser.add_argument("--then", type=int)
    arguments = parser.parse_args()
    files = in_order(arguments.places)
    import_for({label for label, _ in files})
    pool = Pool(arguments.results.resolve(), arguments.marks)

    def most():
        return arguments.then if arguments.after and arguments.after.exists() else arguments.jobs

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    pool.run(files, most)
    with open(arguments.results / "pytest.runners", "a", encoding="utf-8") as file:
        file.writelines(f"{name}\n" for name in pool.ran)


if __name__ == "__main__":
    main()
