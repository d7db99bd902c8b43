"""Nothing uninitialised goes on the wire: the daemon and its workers under valgrind's memcheck, which looks at every byte
that is given to the kernel to be sent."""

import pathlib
import re
import shutil
import tempfile
import time

import pytest
from harness import BUILD, NETSUM, CommandTest, Running
from netsum_bench.processes import free_port

PATIENCE_S = 240  # valgrind takes seconds where netsum takes milliseconds, and one thread runs at a time
FOUND = 97  # exit status of a program in which memcheck has found something


class MemcheckTest(CommandTest):
    def set_up(self):
        if shutil.which("valgrind") is None:
            pytest.skip("valgrind is not installed")
        binary = pathlib.Path(NETSUM).read_bytes()
        if b"__asan_init" in binary or b"__tsan_init" in binary:
            pytest.skip("sanitizers and valgrind exclude each other")
        folder = tempfile.TemporaryDirectory()
        self.cleanup.callback(folder.cleanup)
        self.reports = pathlib.Path(folder.name)

    def start_checked(self, *command):
        running = Running(
            "--quiet",
            f"--error-exitcode={FOUND}",
            "--fair-sched=yes",
            f"--log-file={self.reports}/%p",
            *command,
            program="valgrind",
            patience_s=PATIENCE_S,
        )
        self.cleanup.callback(running.stop)
        return running

    def start_rank(self, rank, checked, *arguments):
        sizes = ["--world-size", 2, "--iterations", 1, "--warmup", 0, "--slots", 64]
        patience = ["--timeout", f"{PATIENCE_S}s", "--connect-timeout", f"{PATIENCE_S}s", "--liveness-timeout", 0]
        start = self.start_checked if checked else self.start
        program = (NETSUM,) if checked else ()
        return start(*program, "bench", "allreduce", "--rank", rank, *sizes, *patience, *arguments)

    def sum_checked(self, *arguments, checked=(0, 1)):
        """Two ranks, those of `checked` under valgrind; one sum of a tensor that does not fill its last packet."""
        ranks = [self.start_rank(rank, rank in checked, *arguments) for rank in range(2)]
        end = time.monotonic() + PATIENCE_S
        while any(rank.process.poll() is None for rank in ranks) and not any(rank.process.poll() for rank in ranks):
            assert time.monotonic() < end, [rank.text("err") for rank in ranks]
            time.sleep(0.1)
        for rank in ranks:
            rank.process.kill()  # if the other one has failed: it would wait in vain
        ends = [rank.end() for rank in ranks]
        texts = [rank.text("err") for rank in ranks]
        assert ends == [0, 0], texts

    def assert_clean(self):
        for report in self.reports.iterdir():
            # Lines of "--PID--" are of valgrind itself: system calls that it does not know.
            lines = report.read_text(encoding="utf-8").splitlines(keepends=True)
            text = "".join(line for line in lines if not line.startswith("--"))
            assert text == "", f"memcheck says:\n{text[:4000]}"

    def test_an_uninitialised_byte_in_a_packet_is_seen(self):
        assert self.start_checked(BUILD / "tests/cli/send_uninitialised").end() == FOUND
        (report,) = self.reports.iterdir()
        assert re.search(r"Syscall param sendm?msg\(.*uninitialised byte", report.read_text(encoding="utf-8"))

    @pytest.mark.soak  # a minute of processor time; embedded shards have the same dataplane
    def test_a_job_and_its_aggregator(self):
        daemon = self.start_checked(NETSUM, "aggregator", "--listen", "127.0.0.1:0", "--cores", 1, "--slots", 128)
        address = daemon.wait_for("NETSUM_AGGREGATOR=", name="out").split("=")[1]
        for dtype, size in (("float32", 4 * 1237), ("bfloat16", 2 * 999), ("int64", 8 * 501)):
            self.sum_checked("--aggregator", address, "--bytes", size, "--dtype", dtype)
        self.send_signal(daemon)
        assert daemon.end() == 0, daemon.text("err")
        assert re.search(r"rounds_completed=[1-9]", daemon.text("err"))
        self.assert_clean()

    # Rank 0 does all that rank 1 does, and serves the job's control connections.
    @pytest.mark.parametrize("checked", [(0,), pytest.param((0, 1), marks=pytest.mark.soak)])
    def test_embedded_shards(self, checked):
        self.sum_checked("--root", f"127.0.0.1:{free_port()}", "--bytes", 4 * 1237, checked=checked)
        assert any(self.reports.iterdir()), "memcheck has written no report"
        self.assert_clean()
