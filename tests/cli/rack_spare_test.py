"""netsum rack with spare hosts, several ports and unequal rates. Real namespaces, links and packets."""

import json
import subprocess

import pytest
from rack_harness import RackCommandTest


class RackSpareTest(RackCommandTest):
    def bucket_bytes(self, node):
        """Bytes that have left each token bucket of the node."""
        shown = subprocess.run(
            ["tc", "-n", f"netsum-{self.name}-{node}", "-s", "-j", "qdisc", "show"], capture_output=True, check=True
        )
        return {one["dev"]: one["bytes"] for one in json.loads(shown.stdout) if one["kind"] == "tbf"}

    def rates(self):
        return {link["id"]: link["rate"] for link in self.status()["links"]}

    def test_spare_hosts_sum_on_all_ports(self):
        self.up("--workers", 2, "--rate", "100mbit", "--spare", 2, "--ports", 2, "--spare-rate", "200mbit")
        status = self.status()
        assert [node["id"] for node in status["nodes"]] == ["sw", "s0", "s1", "w0", "w1"]
        places = [one["address"] for one in status["aggregators"]]
        assert places == ["10.77.1.1:5151", "10.77.100.1:5151", "10.77.101.1:5151"]
        assert all(one["serves"] for one in status["aggregators"])
        inside = self.run_in(1, "sh", "-c", "echo $NETSUM_AGGREGATOR")
        assert inside.text("out") == status["aggregator"] == ",".join(places)
        # Each port of a spare host carries its share, both ways, and no other port's.
        flags = ("--aggregator", ",".join(places[1:]), "--bytes", "1Mi", "--iterations", 3, "--warmup", 0)
        report = self.sum_over(2, *flags)
        assert report["verified"]
        share = 2 * 3 * (1 << 20) / 4
        for host in ("s0", "s1"):
            carried = self.bucket_bytes(host)
            assert set(carried) == {"eth0", "eth1", "ifb-eth0", "ifb-eth1"}
            for device, count in carried.items():
                assert share < count < 1.5 * share, (host, device, carried)
        assert self.rack("down", "--name", self.name).status == 0
        self.assert_nothing_left()

    def test_the_switch_only_forwards(self):
        self.up("--workers", 2, "--spare", 1, "--no-switch-aggregator", "--multicast")
        assert self.status()["aggregator"] == "10.77.100.1:5151"
        report = self.sum_over(2, "--bytes", "256Ki", "--iterations", 2)
        assert report["verified"] and "multicast" in report["summed_by"]
        # Without any aggregator, the variable must not name one that runs elsewhere.
        self.rack("down", "--name", self.name)
        self.environment["NETSUM_AGGREGATOR"] = "192.0.2.1:5151"
        self.up("--workers", 1, "--no-switch-aggregator")
        assert self.run_in(0, "sh", "-c", "echo ${NETSUM_AGGREGATOR-unset}").text("out") == "unset"
        self.rack("status").wait_for("no aggregator", name="out")

    def test_rates_of_workers_spare_hosts_and_the_switch(self):
        self.up(
            *("--workers", 4, "--rate", "100mbit", "--worker-rate", "1=20mbit,2-3=50mbit"),
            *("--spare", 1, "--spare-rate", "400mbit", "--switch-rate", "30mbit"),
        )
        assert self.rates() == {"s0": "400mbit", "w0": "100mbit", "w1": "20mbit", "w2": "50mbit", "w3": "50mbit"}
        assert self.sum_over(4, "--bytes", "256Ki", "--iterations", 1)["verified"]
        # What the switch's aggregator receives and sends passes the buckets at br0.
        assert min(self.bucket_bytes("sw").values()) > 4 * (256 << 10) / 2
        assert self.rack("set", "--name", self.name, "s0", "--rate", "200mbit").status == 0
        assert self.rates()["s0"] == "200mbit"

    def test_unequal_workers_without_an_aggregator(self):
        """Only the workers with fast links embed shards; the others' links carry the gradient once."""
        self.up(
            *("--workers", 4, "--rate", "100mbit", "--worker-rate", "2-3=50mbit", "--no-switch-aggregator"),
        )
        flags = ("--root", "10.77.0.1:5350", "--bytes", "1Mi", "--iterations", 3, "--warmup", 0)
        report = self.sum_over(4, *flags)
        assert report["verified"]
        assert "summed by 2 embedded shards" in report["summed_by"], report["summed_by"]
        assert "planned shares" in report["summed_by"] and "1.50 times as fast as a ring" in report["summed_by"]
        for worker, units in ((0, 2), (1, 2), (2, 1), (3, 1)):  # 1 + (N - 2) g
            for count in self.bucket_bytes(f"w{worker}").values():
                assert units < count / (3 << 20) < 1.2 * units, (worker, count)

    def test_one_port_of_several(self):
        self.up("--workers", 1, "--rate", "100mbit", "--worker-rate", "0=none", "--spare", 1, "--ports", 2)
        assert self.rack("set", "--name", self.name, "s0-p1", "--rate", "10mbit").status == 0
        assert self.rates() == {"s0-p0": "100mbit", "s0-p1": "10mbit", "w0": "none"}
        refused = self.rack("set", "--name", self.name, "0", "--rate", "10mbit")
        assert refused.status == 2
        refused.wait_for("the link of w0", "made without a rate")
        refused = self.rack("set", "--name", self.name, "s1", "--rate", "10mbit")
        assert refused.status == 2
        refused.wait_for("'s1' has no link", "s0-p0, s0-p1, w0")

    def test_the_plan_of_a_rack(self):
        self.up(
            *("--workers", 8, "--rate", "100mbit", "--spare", 1, "--ports", 4, "--switch-rate", "25mbit"),
        )
        plan = json.loads(
            self.run_command("plan", "--rack", self.name, "--json", environment=self.environment).text("out")
        )
        seconds = {case["name"]: case["s_per_gigabyte"] for case in plan["cases"]}
        assert abs(plan["ring_s_per_gigabyte"] - 140) < 0.1
        assert abs(seconds["1 spare host and shards"] - 101.8) < 1  # 2 * 7 / (6 * 50 + 800) seconds for 8 Gbit
        assert abs(seconds["sw alone"] - 320) < 1
        self.rack("set", "--name", self.name, "all", "--rate", "50mbit")
        plan = json.loads(
            self.run_command("plan", "--rack", self.name, "--json", environment=self.environment).text("out")
        )
        assert abs(plan["ring_s_per_gigabyte"] - 280) < 0.1, "the rates of now"
        self.rack("down", "--name", self.name)
        for flags, words in ((["--rate", "1gbit", "--worker-rate", "1=none"], "that of w1"),):
            self.up("--workers", 2, *flags)
            refused = self.run_command("plan", "--rack", self.name, environment=self.environment)
            assert refused.status == 2
            refused.wait_for(words)
            self.rack("down", "--name", self.name)
        for arguments, words in (
            (["--rack", self.name], "is not up"),
            ([], "give a topology file, --rack"),
            (["a.yaml", "--rack", "b"], "give a topology file, --rack"),
        ):
            refused = self.run_command("plan", *arguments, environment=self.environment)
            assert refused.status == 2
            refused.wait_for(words)

    def test_the_plan_of_a_hierarchy(self):
        self.up("--workers", 4, "--racks", 2, "--rate", "100mbit")
        report = self.sum_over(4, "--bytes", "256Ki", "--iterations", 1)
        assert report["verified"]
        assert "planned shares: aggregator 10.77.2.1:5151 (and 2 below it) 100 %" in report["summed_by"]
        assert "1.50 times as fast as a ring" in report["summed_by"], report["summed_by"]
        refused = self.rack("set", "--name", self.name, "up1", "--rate", "10mbit")
        assert refused.status == 0
        refused.wait_for("sw1 still declares 100mbit")
        plan = json.loads(
            self.run_command("plan", "--rack", self.name, "--json", environment=self.environment).text("out")
        )
        best = plan["cases"][-1]
        assert best["bottleneck"].startswith("uplink of sw1, ")
        assert abs(best["s_per_gigabyte"] - 800) < 1, "8 Gbit at 10 Mbit/s, once for the whole rack"
        assert "because of uplink of sw1" in plan["warning"]

    @pytest.mark.measures
    def test_a_wrong_rate_is_corrected(self):
        """The spare host declares 200 Mbit/s, and its link has 50: its share of one half holds back the shards."""
        self.up("--workers", 2, "--rate", "200mbit", "--spare", 1, "--no-switch-aggregator")
        assert self.rack("set", "--name", self.name, "s0", "--rate", "50mbit").status == 0
        flags = ("--bytes", "4Mi", "--warmup", 0)
        report = self.sum_over(2, *flags, "--iterations", 24)
        assert report["verified"]
        assert report["ranks"][0]["share_changes"] >= 1, report["ranks"][0]
        report = self.sum_over(2, *flags, "--iterations", 6, "--shares", "planned")
        assert report["verified"]
        assert report["ranks"][0]["share_changes"] == 0

    def test_up_again_names_the_differences(self):
        self.up("--workers", 2, "--spare", 1)
        other = self.rack("up", "--name", self.name, "--workers", 2, "--spare", 2, "--worker-rate", "1=5mbit")
        assert other.status == 2
        other.wait_for("worker rates none, not 1=5mbit; spare hosts 1, not 2")

    def test_flags_that_do_not_fit(self):
        for flags, words in (
            (["--worker-rate", "4-7"], ["4-7", "4-7=50mbit"]),
            (["--worker-rate", "3-1=5mbit"], ["3-1=5mbit", "FIRST-LAST=RATE"]),
            (["--worker-rate", "1=fast"], ["fast"]),
            (["--workers", 4, "--worker-rate", "2-4=5mbit"], ["worker 4", "0 to 3"]),
            (["--spare", 65], ["--spare"]),
            (["--ports", 2], ["give --spare"]),
            (["--spare-rate", "1gbit"], ["give --spare"]),
            (["--racks", 2, "--spare", 1], ["leave out --racks"]),
            (["--switch-rate", "1gbit", "--dataplane", "xdp"], ["user space"]),
            (["--switch-rate", "1gbit", "--no-switch-aggregator"], ["--no-switch-aggregator"]),
        ):
            refused = self.rack("up", "--name", self.name, *flags)
            assert refused.status == 2, flags
            refused.wait_for(*words)
        self.assert_nothing_left()
