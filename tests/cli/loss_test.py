"""Losses on purpose: of a rack's links, of an aggregator, of a worker. They happen at the rate asked for, are counted,
and no sum is wrong."""

import json
import math
import os
import re
import signal
import time

from harness import NETSUM
from rack_harness import RackCommandTest


class LossTest(RackCommandTest):
    def assert_about(self, lost, packets, probability):
        """Within six standard deviations of the binomial distribution: off by chance once in 10^9 runs."""
        expected = packets * probability
        assert expected > 50, f"{packets} packets are too few to tell"
        assert abs(lost - expected) < 6 * math.sqrt(expected), f"{lost} of {packets} packets lost"

    def counters_of(self, aggregator):
        """Ends it in order."""
        self.send_signal(aggregator, signal.SIGTERM)
        line = aggregator.wait_for(" counters ")
        assert aggregator.end() == 0
        return {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", line)}

    def links(self):
        return {link["id"]: link for link in self.status()["links"]}

    def sum_and_look_at_links(self, dataplane):
        self.up("--workers", 3, "--dataplane", dataplane, "--loss", "2%")
        report = self.sum_over(3, "--bytes", "4Mi", "--iterations", 3)
        assert report["verified"]
        for link in self.links().values():
            packets = link["packets_passed"] + link["packets_lost"]
            # One frame for each packet that worker 0 sent and got, at least; not one for a whole segmented send.
            assert packets > 2 * report["ranks"][0]["gradient_bytes"] / 1500
            self.assert_about(link["packets_lost"], packets, 0.02)
        assert report["ranks"][0]["retransmissions"] > 0
        return report

    def test_links_of_a_rack_with_the_daemon(self):
        self.sum_and_look_at_links("user")
        payload = os.urandom(4 << 20)
        before = self.links()["w1"]
        self.send_between(1, 2, payload)  # TCP loses packets of the same size
        after = self.links()["w1"]
        assert after["packets_passed"] - before["packets_passed"] > len(payload) / 1500

    def test_links_of_a_rack_with_xdp(self):
        assert "xdp" in self.sum_and_look_at_links("xdp")["summed_by"]

    def test_links_between_switches_and_spine(self):
        self.up("--workers", 2, "--racks", 2, "--dataplane", "xdp", "--loss", "1%")
        assert self.sum_over(2, "--bytes", "4Mi", "--iterations", 2)["verified"]
        links = self.links()
        assert set(links) == {"w0", "w1", "up0", "up1"}
        for link in links.values():
            self.assert_about(link["packets_lost"], link["packets_passed"] + link["packets_lost"], 0.01)

    def test_links_are_changed_while_the_rack_is_up(self):
        self.up("--workers", 2, "--rate", "100mbit", "--loss", 0)
        assert self.rack("set", "--name", self.name, "1", "--loss", "3%", "--rate", "50mbit").status == 0
        assert self.sum_over(2, "--bytes", "4Mi", "--iterations", 2)["verified"]
        links = self.links()
        assert (links["w0"]["packets_lost"], links["w0"]["rate"]) == (0, "100mbit")
        assert links["w1"]["rate"] == "50mbit"
        self.assert_about(
            links["w1"]["packets_lost"], links["w1"]["packets_passed"] + links["w1"]["packets_lost"], 0.03
        )
        assert self.rack("set", "--name", self.name, "all", "--loss", "100%").status == 0
        cut = [self.start_rank(w, 2, "--connect-timeout", "2s") for w in range(2)]
        assert [rank.end() for rank in cut] == [3, 3]
        assert self.rack("set", "--name", self.name, "all", "--loss", "0").status == 0
        assert self.sum_over(2, "--bytes", "1Mi", "--iterations", 1)["verified"]

    def test_shares_leave_a_lossy_link_which_is_named(self):
        self.up("--workers", 4, "--loss", 0)
        assert self.rack("set", "--name", self.name, "1", "--loss", "5%").status == 0
        shards = ("--root", "10.77.0.1:5350", "--bytes", "2Mi", "--iterations", 40, "--json")
        ranks = [
            self.start_in(
                w,
                *("env", "-u", "NETSUM_AGGREGATOR", NETSUM, "bench", "allreduce", "--rank", w, "--world-size", 4),
                *shards,
            )
            for w in range(4)
        ]
        for report in self.reports_of(ranks):
            assert "away from bad links or slow hosts: rank 1" in report["summed_by"]

    def test_a_link_is_unplugged_and_plugged_in_again(self):
        self.up("--workers", 2, "--rate", "100mbit")
        ranks = [
            self.start_rank(
                w,
                2,
                "--bytes",
                "1Mi",
                "--iterations",
                20,
                "--timeout",
                "20s",
                "--json",
                "--report-events",
            )
            for w in range(2)
        ]
        ranks[0].wait_for('"event":"iteration"', name="out")
        assert self.rack("set", "--name", self.name, "1", "--link", "down").status == 0
        self.rack("status").wait_for("link w1", "DOWN", name="out")
        time.sleep(0.3)
        assert self.rack("set", "--name", self.name, "1", "--link", "up").status == 0
        for rank in ranks:
            assert rank.end() == 0, rank.text("err")
        assert self.links()["w1"]["up"]

    def test_what_cannot_be_set(self):
        self.up("--workers", 2)
        for arguments, words in (
            (["0", "--loss", "1%"], ["made without --loss", "--loss 0"]),
            (["0", "--rate", "1gbit"], ["made without a rate"]),
            (["7", "--link", "down"], ["'7' has no link", "all, w0, w1"]),
            (["sw", "--link", "down"], ["'sw' has no link"]),
            (["0"], ["--rate, --loss or --link"]),
            (["0", "--loss", "1.5"], ["not a probability"]),
        ):
            refused = self.rack("set", "--name", self.name, *arguments)
            assert refused.status == 2, refused.text("err")
            refused.wait_for(*words)
        assert self.rack("set", "--name", "other", "0", "--link", "up").status == 2

    def test_a_daemon_and_its_workers_drop_on_purpose(self):
        daemon = self.start_aggregator("--inject-loss", "0.02", "--inject-seed", 7)
        daemon.wait_for("FAULTS ARE INJECTED", "2 %")
        bench = self.start_bench(
            daemon, "--workers", 3, "--bytes", "4Mi", "--iterations", 4, "--warmup", 0, "--json", "--inject-loss", "1%"
        )
        assert bench.end() == 0, bench.text("err")
        report = json.loads(bench.text("out"))
        assert report["verified"]
        assert "FAULTS ARE INJECTED" in report["summed_by"]
        for rank in report["ranks"]:
            # Among the packets dropped are also results that came twice, so there is no upper bound.
            expected = 0.01 * rank["packets_received"]
            assert rank["packets_dropped"] > expected - 6 * math.sqrt(expected)
        status = self.run_command("status", "--aggregator", daemon.address, "--once", "--json")
        shown = json.loads(status.text("out"))["aggregators"][0]["counters"]
        counters = self.counters_of(daemon)
        assert shown["drop_injected"] == counters["drop_injected"]
        self.assert_about(counters["drop_injected"], counters["packets_received"] + counters["drop_injected"], 0.02)

    def test_xdp_drops_on_purpose(self):
        self.up("--workers", 2, "--loss", 0)  # whose interfaces take what XDP redirects
        address = "10.77.1.1:6151"
        aggregator = self.start_in(
            "sw",
            NETSUM,
            "aggregator",
            "--dataplane",
            "xdp",
            "--listen",
            address,
            "--interfaces",
            "w0,w1",
            "--inject-loss",
            "0.02",
        )
        aggregator.wait_for("FAULTS ARE INJECTED")
        report = self.sum_over(2, "--bytes", "4Mi", "--iterations", 3, "--aggregator", address)
        assert report["verified"]
        assert "xdp" in report["summed_by"]
        counters = self.counters_of(aggregator)
        self.assert_about(counters["drop_injected"], counters["packets_received"], 0.02)

    def test_without_the_flag_nothing_is_dropped(self):
        daemon = self.start_aggregator()
        self.assert_serves(daemon)
        assert "drop_injected" not in self.counters_of(daemon)
        refused = self.run_command("aggregator", "--inject-loss", "2")
        assert refused.status == 2
        refused.wait_for("--inject-loss", "not a probability")
