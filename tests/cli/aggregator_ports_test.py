"""netsum aggregator at several addresses: every port sums its share, and what cannot be is refused."""

import json
import re
import urllib.request

import pytest
from harness import NETSUM, CommandTest
from netsum_bench.processes import free_port
from rack_harness import RackCommandTest

TENSOR_BYTES = 1 << 20


class AggregatorPortsTest(CommandTest):
    def start_ports(self, *flags, listen="127.0.0.1:0,127.0.0.2,127.0.0.3"):
        daemon = self.start("aggregator", "--listen", listen, *flags)
        daemon.address = daemon.wait_for("NETSUM_AGGREGATOR=", name="out").split("=")[1]
        daemon.ready = daemon.wait_for("ready:", name="out")
        return daemon

    def stripes_by_port(self, daemon):
        return re.findall(r"(\d+\.\d+\.\d+\.\d+):\d+", daemon.ready.split("data ")[1])

    def status(self, daemon):
        flags = ("--aggregator", daemon.address, "--once", "--interval", "50ms", "--json")
        return json.loads(self.run_command("status", *flags).text("out"))["aggregators"][0]

    def sum_once(self, daemon, *flags):
        """Every stripe has an equal share."""
        sizes = ("--workers", 2, "--bytes", "1Mi", "--iterations", 2, "--shares", "off")
        bench = self.start_bench(daemon, *sizes, "--json", *flags)
        assert bench.end() == 0, bench.text("err")
        assert json.loads(bench.text("out"))["verified"]

    # More ports than cores, as many, and fewer.
    @pytest.mark.parametrize(
        ("cores", "stripes"),
        [
            (1, ["127.0.0.1", "127.0.0.2", "127.0.0.3"]),
            (3, ["127.0.0.1", "127.0.0.2", "127.0.0.3"]),
            (5, ["127.0.0.1", "127.0.0.2", "127.0.0.2", "127.0.0.2", "127.0.0.3"]),
        ],
    )
    def test_every_port_sums_its_share(self, cores, stripes):
        metrics = f"127.0.0.1:{free_port()}"
        daemon = self.start_ports("--cores", cores, "--link-rate", "1gbit,4gbit,1gbit", "--metrics", metrics)
        assert self.stripes_by_port(daemon) == stripes
        daemon.wait_for("port: 127.0.0.2, link rate 4gbit", name="out")
        self.sum_once(daemon)
        self.sum_once(daemon, "--dtype", "bfloat16")
        report = self.status(daemon)
        ports = {port["address"]: port for port in report["ports"]}
        assert {address: port["link_gbits_per_s"] for address, port in ports.items()} == {
            "127.0.0.1": 1,
            "127.0.0.2": 4,
            "127.0.0.3": 1,
        }
        for direction in ("bytes_received", "bytes_sent"):
            total = sum(port[direction] for port in ports.values())
            assert total == report["counters"][direction]
            for address, port in ports.items():
                share = stripes.count(address) / len(stripes)
                assert port[direction] / total == pytest.approx(share, abs=0.05), ports
        with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=10) as page:
            text = page.read().decode()
        for line in (
            'netsum_aggregator_port_link_rate_bits_per_second{port="127.0.0.2"} 4000000000',
            f'netsum_aggregator_port_bytes_received_total{{port="127.0.0.2"}} {ports["127.0.0.2"]["bytes_received"]}',
        ):
            assert line in text, text

    def test_bursts_of_every_port(self):
        daemon = self.start_ports("--cores", 3, "--link-rate", "1gbit,4gbit,1gbit")
        self.sum_once(daemon)
        for port in self.status(daemon)["ports"]:
            for direction, bursts in (("received", port["received"]), ("sent", port["sent"])):
                # Around each datagram there are 42 bytes.
                assert port[f"bytes_{direction}"] < bursts["bytes"] < 1.5 * port[f"bytes_{direction}"]
                assert 1500 <= bursts["largest_ms_bytes"] <= bursts["largest_10ms_bytes"] <= bursts["bytes"]
                assert sum(bursts["milliseconds"]) > 0
                queues = bursts["backlog_bytes"]
                assert len(queues) == 16
                assert queues == sorted(queues, reverse=True)
                assert all(100 < queue <= bursts["bytes"] for queue in queues)
        live = self.run_command("bursts", "--live", "--aggregator", daemon.address)
        assert live.status == 0, live.text("err")
        for words in ("127.0.0.2 in", "127.0.0.3 out", "backlog in bytes", "4gbit"):
            assert words in live.text("out")
        live = json.loads(self.run_command("bursts", "--live", "--aggregator", daemon.address, "--json").text("out"))
        assert live["ports"][1]["received"]["bytes"] > 1 << 20
        plain = self.start_aggregator()
        live = self.run_command("bursts", "--live", "--aggregator", plain.address)
        assert "rate of the link is unknown" in live.text("out")
        assert self.run_command("bursts").status == 2
        assert self.run_command("bursts", "--live").status == 2
        assert self.run_command("bursts", "--live", "packets").status == 2
        dead = self.run_command("bursts", "--live", "--aggregator", f"127.0.0.1:{free_port()}", "--timeout", "1s")
        assert dead.status == 3

    def test_multicast_from_every_port(self):
        daemon = self.start_ports("--multicast", "239.7.8.0/24", "--cores", 3)
        self.sum_once(daemon)
        report = self.status(daemon)
        assert report["counters"]["multicast_packets_sent"] > 0
        for port in report["ports"]:
            assert port["bytes_sent"] < port["bytes_received"], "a result leaves each port once"

    def test_data_ports_are_consecutive(self):
        first = free_port()
        daemon = self.start_ports("--data-port", first, "--cores", 3)
        numbers = [int(number) for number in re.findall(r"127\.0\.0\.\d:(\d+)", daemon.ready.split("data ")[1])]
        assert numbers == [first, first + 1, first + 2]

    @pytest.mark.parametrize(
        ("flags", "words"),
        [
            (["--listen", "127.0.0.1:0,127.0.0.2:7"], ["127.0.0.2:7", "only the first"]),
            (["--listen", "127.0.0.1"], ["--listen", "port"]),
            (["--listen", "127.0.0.1:0,127.0.0.1"], ["127.0.0.1", "twice"]),
            (["--listen", "0.0.0.0:0,127.0.0.2"], ["0.0.0.0", "all addresses of this host"]),
            (["--listen", "127.0.0.1:0,::1"], ["IPv4 or all IPv6"]),
            (["--listen", "127.0.0.1:0,192.0.2.77"], ["192.0.2.77"]),
            (["--link-rate", "fast"], ["fast", "is no rate"]),
            (["--link-rate", "0"], ["no rate"]),
            (["--listen", "127.0.0.1:0,127.0.0.2,127.0.0.3", "--link-rate", "1G,2G"], ["2 rates for 3 addresses"]),
            (["--listen", "127.0.0.1:0,127.0.0.2", "--data-port", "65535"], ["fewer than 2 UDP ports from 65535"]),
            (
                ["--listen", "127.0.0.1:0,127.0.0.2", "--dataplane", "xdp", "--interfaces", "lo"],
                ["user-space dataplane", "name the interfaces"],
            ),
        ],
    )
    def test_what_cannot_be(self, flags, words):
        command = self.run_command("aggregator", "--cores", 1, *flags)
        assert command.status in (2, 3), command.text("out")
        assert command.text("out") == ""
        for word in words:
            assert word in command.text("err"), command.text("err")


class AggregatorPortsInARackTest(RackCommandTest):
    def link_bytes(self, where, interface):
        shown = json.loads(self.run_in(where, "ip", "-j", "-s", "link", "show", "dev", interface).text("out"))
        return [shown[0]["stats64"][way]["bytes"] for way in ("rx", "tx")]

    def test_a_plan_divides_by_the_rates_of_the_links(self):
        """Jobs that plan their shares give a link of half the rate half the bytes. The rack's own aggregator declares the
        rates that the links were made with."""
        self.up("--workers", 4, "--rate", "100mbit", "--spare", 1, "--ports", 2, "--no-switch-aggregator")
        assert self.rack("set", "--name", self.name, "s0-p1", "--rate", "50mbit").status == 0
        listen = ("--listen", "10.77.100.1:6000,10.77.100.2", "--cores", 2, "--link-rate", "100mbit,50mbit")
        self.start_in("s0", NETSUM, "aggregator", *listen).wait_for("ready:", name="out")
        before = [self.link_bytes("s0", f"eth{port}") for port in range(2)]
        flags = ("--aggregator", "10.77.100.1:6000", "--bytes", 4 * TENSOR_BYTES, "--iterations", 2, "--warmup", 0)
        assert self.sum_over(4, "--shares", "auto", "--link-rate", "100mbit", *flags)["verified"]
        after = [self.link_bytes("s0", f"eth{port}") for port in range(2)]
        for way in range(2):
            fast, slow = (now[way] - was[way] for was, now in zip(before, after, strict=True))
            assert slow > TENSOR_BYTES / 10, (before, after)
            assert 1.7 < fast / slow < 2.3, (before, after)
