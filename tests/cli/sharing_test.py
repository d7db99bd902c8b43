"""Several jobs at one aggregator: what becomes of those that find no room."""

import json
import re
import time

from harness import PATIENCE_S, CommandTest

ROOM_FOR_ONE = ("--slots", 512)  # a job of 256 slots takes 16 more, for scales


class SharingTest(CommandTest):
    def start_late(self, daemon, *arguments, **more):
        return self.start_bench(
            daemon, "--workers", 2, "--bytes", "64Ki", "--iterations", 3, "--json", *arguments, **more
        )

    def assert_sums(self, bench):
        assert bench.end() == 0, bench.text("err")
        report = json.loads(bench.text("out"))
        assert report["verified"]
        return report

    def states(self, daemon):
        status = self.run_command("status", "--aggregator", daemon.address, "--once", "--interval", "50ms", "--json")
        assert status.status == 0, status.text("err")
        return {job["name"]: job["state"] for job in json.loads(status.text("out"))["aggregators"][0]["jobs"]}

    def wait_for_state(self, daemon, job, state):
        deadline = time.monotonic() + PATIENCE_S
        while (states := self.states(daemon)).get(job) != state:
            assert time.monotonic() < deadline, states

    def test_a_late_job_is_refused(self):
        daemon = self.start_aggregator(*ROOM_FOR_ONE)
        self.start_long_job(daemon)
        late = self.start_late(daemon)
        assert late.end() == 3
        self.assert_all_ranks_say(late, 2, "resource_exhausted")

    def test_late_jobs_wait_for_their_turns(self):
        daemon = self.start_aggregator(*ROOM_FOR_ONE)
        first = self.start_long_job(daemon)
        late = []
        for name in ("second", "third", "fourth"):
            late.append(self.start_late(daemon, "--job", name, "--when-full", "wait"))
            self.wait_for_state(daemon, name, "queued")
        first.stop()  # dies, and its slots come back
        for bench in late:
            self.assert_sums(bench)
        order = [line for line in daemon.text("err").splitlines() if "state=running" in line][1:]
        for line, name in zip(order, ("second", "third", "fourth"), strict=True):
            assert name in line

    def test_a_wait_ends_by_its_deadline(self):
        daemon = self.start_aggregator(*ROOM_FOR_ONE)
        self.start_long_job(daemon)
        late = self.start_late(daemon, "--when-full", "wait", connect_timeout="4s")
        assert late.end() == 3
        self.assert_all_ranks_say(late, 2, "for room at the aggregator", "timeout")

    def test_a_late_job_is_summed_by_its_hosts(self):
        daemon = self.start_aggregator(*ROOM_FOR_ONE)
        first = self.start_long_job(daemon)
        report = self.assert_sums(self.start_late(daemon, "--when-full", "hosts"))
        assert "embedded shards" in report["summed_by"]
        # What the rank was told that came first, and what the other.
        assert re.search("of which 240 are free|no room for job .* when its first rank joined", report["summed_by"])
        assert first.process.poll() is None

    def test_with_room_the_aggregator_sums(self):
        daemon = self.start_aggregator(*ROOM_FOR_ONE)
        for policy in ("wait", "hosts"):
            report = self.assert_sums(self.start_late(daemon, "--when-full", policy))
            assert daemon.address in report["summed_by"]

    def test_hosts_need_a_place_to_meet(self):
        bench = self.run_command(
            "bench", "allreduce", "--rank", 0, "--world-size", 2, "--aggregator", "127.0.0.1:1", "--when-full", "hosts"
        )
        assert bench.status == 2
        bench.wait_for("--root")
