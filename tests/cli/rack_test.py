"""netsum rack, and the XDP dataplane in it. Real namespaces, links and packets; everything is taken away again."""

import contextlib
import fcntl
import json
import os
import platform
import re
import signal
import subprocess
import time

import pytest
from harness import NETSUM, PATIENCE_S, rights_of
from rack_harness import RackCommandTest, namespaces


class RackTest(RackCommandTest):
    def test_up_exec_status_down(self):
        self.up("--workers", 3, "--rate", "100mbit")
        status = self.status()
        assert status["whole"]
        assert [node["id"] for node in status["nodes"]] == ["sw", "w0", "w1", "w2"]
        inside = self.run_in(2, "sh", "-c", "echo $NETSUM_AGGREGATOR $NETSUM_WORKER; exit 7")
        assert inside.status == 7
        assert inside.text("out") == f"{status['aggregator']} 2"
        self.send_between(0, 2, os.urandom(1 << 20))
        for where, words in (("9", "which has sw, w0, w1, w2"), ("spine", "not in rack")):
            nobody = self.run_in(where, "true")
            assert nobody.status == 2
            nobody.wait_for(words)
        assert self.run_in(0, "no-such-command").status == 127
        down = self.rack("down", "--name", self.name)
        assert down.status == 0, down.text("err")
        self.assert_nothing_left()
        again = self.rack("down", "--name", self.name)
        assert again.status == 0
        again.wait_for("is not up", name="out")
        assert self.run_in(0, "true").status == 2

    def test_the_daemon_sums(self):
        self.up("--workers", 3)
        report = self.sum_over(3, "--bytes", "1Mi", "--iterations", 3)
        assert report["verified"]
        assert "user-space" in report["summed_by"]

    def test_xdp_sums_and_other_traffic_is_unharmed(self):
        self.up("--workers", 4, "--dataplane", "xdp")
        ranks = [
            self.start_rank(
                w,
                4,
                "--bytes",
                "1Mi",
                "--iterations",
                30,
                "--json",
                "--timeout",
                "20s",
            )
            for w in range(4)
        ]
        for _ in range(3):
            self.send_between(1, 2, os.urandom(4 << 20))
        for rank in ranks:
            assert rank.end() == 0, rank.text("err")
            report = json.loads(rank.text("out"))
            assert report["verified"]
        assert "xdp" in report["summed_by"]
        for dtype in ("bfloat16", "int64"):
            assert self.sum_over(4, "--bytes", "100k", "--iterations", 2, "--dtype", dtype)["verified"]

    def test_xdp_without_privilege(self):
        self.up("--workers", 2, "--dataplane", "xdp")
        release = tuple(int(part) for part in re.match(r"(\d+)\.(\d+)", platform.release()).groups())
        kept = 0 if release >= (5, 19) else 1 << 39  # CAP_BPF
        assert set(rights_of(self.switch()["pid"])) == {(kept, kept, 0, 1)}
        # Jobs come and go: what that takes is there.
        for _ in range(3):
            assert self.sum_over(2, "--bytes", "100k", "--iterations", 2)["verified"]

    def test_xdp_over_shaped_links_and_jumbo_frames(self):
        self.up("--workers", 2, "--dataplane", "xdp", "--rate", "200mbit", "--mtu", 3400)
        assert self.sum_over(2, "--bytes", "1Mi", "--iterations", 2, "--mtu", 3400)["verified"]

    def test_an_mtu_too_small_for_ipv6(self):
        self.up("--workers", 2, "--mtu", 600)
        assert self.sum_over(2, "--bytes", "100k", "--iterations", 2, "--mtu", 600)["verified"]

    def test_two_racks_under_a_spine(self):
        self.up("--workers", 4, "--racks", 2, "--dataplane", "xdp", "--rate", "1gbit")
        assert [node["id"] for node in self.status()["nodes"]][:3] == ["spine", "sw0", "sw1"]
        assert self.sum_over(4, "--bytes", "256Ki", "--iterations", 2)["verified"]
        self.send_between(0, 3, os.urandom(1 << 18))

    def test_up_twice(self):
        self.up("--workers", 2)
        self.up("--workers", 2).wait_for("is up already", name="out")
        other = self.rack("up", "--name", self.name, "--workers", 3, "--mtu", 9000)
        assert other.status == 2
        other.wait_for("workers 2, not 3; mtu 1500, not 9000", f"netsum rack down --name {self.name}")
        assert self.status()["whole"]

    def test_what_set_changes_it_reads_when_nobody_else_can_change_it(self):
        self.up("--workers", 2, "--rate", "100mbit")
        note, lock = self.folder / self.name / "rack.json", self.folder / self.name / "lock"
        text = note.read_text(encoding="utf-8")
        note.unlink()
        os.mkfifo(note)
        self.cleanup.callback(lambda: note.is_fifo() and (note.unlink(), note.write_text(text, encoding="utf-8")))
        setting = self.start(
            *("rack", "set", "--name", self.name, "1", "--rate", "50mbit"), environment=self.environment
        )
        deadline = time.monotonic() + PATIENCE_S
        pipe = -1
        while pipe < 0:
            with contextlib.suppress(OSError):  # nobody reads it yet
                pipe = os.open(note, os.O_WRONLY | os.O_NONBLOCK)
            assert time.monotonic() < deadline
        with lock.open("r+") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(pipe, text.encode())
        os.close(pipe)
        assert setting.end() == 0, setting.text("err")
        assert json.loads(note.read_text(encoding="utf-8"))["links"]["w1"]["rate_bits"] == 50_000_000

    def test_a_namespace_of_somebody_else_is_named_and_left_alone(self):
        theirs = f"netsum-{self.name}-w1"
        subprocess.run(["ip", "netns", "add", theirs], check=True)
        self.cleanup.callback(subprocess.run, ["ip", "netns", "del", theirs], check=False)
        refused = self.rack("up", "--name", self.name, "--workers", 2)
        assert refused.status == 3
        refused.wait_for(theirs, "choose another --name")
        self.rack("down", "--all")
        assert theirs in namespaces()

    def test_what_a_killed_run_leaves_is_taken_away(self):
        for way in ("up", "down"):
            making = self.start("rack", "up", "--name", self.name, "--workers", 30, environment=self.environment)
            deadline = time.monotonic() + PATIENCE_S
            while f"netsum-{self.name}-w29" not in namespaces():
                assert time.monotonic() < deadline
                time.sleep(0.002)
            self.send_signal(making, signal.SIGKILL)
            making.end()
            if way == "up":
                self.up("--workers", 2).wait_for("taking away what is left")
                assert self.run_in(1, "true").status == 0
            assert self.rack("down", "--all").status == 0
            self.assert_nothing_left()

    def test_a_dead_aggregator_shows_and_up_mends_it(self):
        self.up("--workers", 2)
        switch = self.switch()
        os.kill(switch["pid"], signal.SIGKILL)
        deadline = time.monotonic() + PATIENCE_S
        while self.status()["whole"]:
            assert time.monotonic() < deadline
        self.rack("status").wait_for("NOT WHOLE", name="out")
        self.up("--workers", 2)
        assert self.status()["whole"]

    def test_down_ends_what_runs_inside(self):
        self.up("--workers", 1)
        sleeper = self.start_in(0, "sleep", "1000")
        deadline = time.monotonic() + PATIENCE_S
        while (
            str(sleeper.process.pid)
            not in subprocess.run(
                ["ip", "netns", "pids", f"netsum-{self.name}-w0"], capture_output=True, text=True, check=True
            ).stdout
        ):
            assert time.monotonic() < deadline
        self.rack("down", "--name", self.name)
        assert sleeper.end() != 0
        self.assert_nothing_left()

    def test_an_aggregator_that_cannot_start(self):
        failed = self.rack("up", "--name", self.name, "--workers", 2, "--dataplane", "xdp", "--mtu", 9000)
        assert failed.status == 3
        failed.wait_for("--mtu can be 3484 at most")
        self.assert_nothing_left()

    def test_without_privilege(self):
        # A copy that everybody may execute, wherever the build lies.
        refused = subprocess.run(
            ["setpriv", "--bounding-set", "-net_admin,-sys_admin", NETSUM, "rack", "up", "--name", self.name],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert refused.returncode == 3
        assert "CAP_NET_ADMIN" in refused.stderr
        assert "sudo" in refused.stderr

    def test_xdp_where_it_cannot_be(self):
        self.up("--workers", 1)
        for flags, words in (
            (["--listen", "0.0.0.0:0", "--interfaces", "w0"], ["the IPv4 address", "--listen"]),
            (["--listen", "10.77.1.1:0", "--interfaces", "nope"], ["no interface 'nope'", "ip link"]),
            (["--listen", "10.77.1.1:0"], ["--interfaces"]),
            (["--listen", "10.77.1.1:0", "--interfaces", "w0,w0"], ["has an XDP program already"]),
        ):
            refused = self.run_in("sw", NETSUM, "aggregator", "--dataplane", "xdp", *flags)
            assert refused.status in (2, 3)
            refused.wait_for(*words)
