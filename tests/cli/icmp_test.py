"""ICMP messages that anybody can send, against a running job; and what a path that is truly too small leads to."""

import json
import re
import time

import pytest
from harness import LONG, NETSUM, PATIENCE_S
from hosts_harness import HostsTest, ip
from metrics_harness import parse, value

# Sends, from the host that it runs on, every kind of ICMP message to `target`, about packets from its port to `peer`.
# Arguments: family, target, peer, then protocol:port:peer's port ...
FORGE = """
import socket, struct, sys
family, target, peer = int(sys.argv[1]), sys.argv[2], sys.argv[3]
def checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total >> 16) + (total & 0xFFFF)
    return ~(total + (total >> 16)) & 0xFFFF
if family == 4:
    out = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    kinds = [(3, code, struct.pack("!HH", 0, mtu)) for code in range(16) for mtu in ((0, 68, 600) if code == 4 else (0,))]
    kinds += [(4, 0, bytes(4)), (11, 0, bytes(4)), (11, 1, bytes(4)), (12, 0, bytes(4))]
    kinds += [(5, code, socket.inet_aton(peer)) for code in range(4)]
else:
    out = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
    out.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, 255)
    kinds = [(1, code, bytes(4)) for code in range(8)] + [(2, 0, struct.pack("!I", mtu)) for mtu in (0, 600, 1280)]
    kinds += [(3, 0, bytes(4)), (3, 1, bytes(4))] + [(4, code, bytes(4)) for code in range(3)]
for flow in sys.argv[4:]:
    protocol, port, peer_port = map(int, flow.split(":"))
    transport = struct.pack("!HHI", port, peer_port, 1480 << 16 if protocol == 17 else 0)
    if family == 4:
        addresses = socket.inet_aton(target) + socket.inet_aton(peer)
        packet = struct.pack("!BBHHHBBH", 0x45, 0, 1500, 0, 0x4000, 64, protocol, 0) + addresses + transport
    else:
        addresses = socket.inet_pton(socket.AF_INET6, target) + socket.inet_pton(socket.AF_INET6, peer)
        packet = struct.pack("!IHBB", 6 << 28, 1460, protocol, 64) + addresses + transport
    for kind, code, rest in kinds:
        body = rest + packet
        sum_of = checksum(struct.pack("!BBH", kind, code, 0) + body) if family == 4 else 0  # of IPv6 by the kernel
        out.sendto(struct.pack("!BBH", kind, code, sum_of) + body, (target, 0))
    if family == 6:
        to = socket.inet_pton(socket.AF_INET6, peer)
        out.sendto(struct.pack("!BBHI", 137, 0, 0, 0) + to + to, (target, 0))
print("sent", flush=True)
"""
ITERATION = '"event":"iteration"'


class IcmpTest(HostsTest):
    """Host 0 has the aggregator, hosts 1 and 2 a rank each; host 3 is the attacker's."""

    def start_aggregator_in(self, host, family, *arguments):
        at = f"10.78.0.{host + 1}:5151" if family == 4 else f"[fd78::{host + 1}]:5151"
        daemon = self.start_in(host, NETSUM, "aggregator", "--listen", at, "--in-switch", *arguments)
        daemon.address = daemon.wait_for("NETSUM_AGGREGATOR=", name="out").split("=")[1]
        return daemon

    def start_ranks(self, daemon, *arguments, timeout="8s"):
        return [
            self.start_in(
                rank + 1,
                *(NETSUM, "bench", "allreduce", "--rank", rank, "--world-size", 2, "--aggregator", daemon.address),
                *("--timeout", timeout, *arguments),
            )
            for rank in range(2)
        ]

    def wait_for_sums(self, ranks, count=5):
        """Each rank makes so many more iterations."""
        done = [rank.text("out").count(ITERATION) for rank in ranks]
        deadline = time.monotonic() + PATIENCE_S
        for rank, before in zip(ranks, done, strict=True):
            while rank.text("out").count(ITERATION) < before + count:
                assert rank.process.poll() is None, rank.text("err")
                assert time.monotonic() < deadline, "the job stands still"
                time.sleep(0.02)

    def ports_of(self, host):
        """The ports of all UDP sockets of the host."""
        table = self.read_in(host, "cat", "/proc/net/udp", "/proc/net/udp6")
        return sorted({int(port, 16) for port in re.findall(r"^ *\d+: [0-9A-F]+:([0-9A-F]{4})", table, re.MULTILINE)})

    def connections_of(self, host):
        listed = self.read_in(host, "ss", "-Htn", "state", "established")
        return re.findall(r":(\d+) +\S+:(\d+)\s*$", listed, re.MULTILINE)

    def attack(self, family, target, peer):
        flows = [f"17:{port}:{other}" for port in self.ports_of(target) for other in self.ports_of(peer)]
        flows += [f"6:{port}:{other}" for port, other in self.connections_of(target)]
        assert flows
        addresses = (self.address(target, family), self.address(peer, family))
        attacker = self.run_in(3, "python3", "-c", FORGE, family, *addresses, *flows)
        assert attacker.status == 0, attacker.text("err")
        # The kernel has believed it: every socket that asks for the path's MTU is limited by it.
        route = ip("route", "get", addresses[1], namespace=self.hosts[target])
        assert re.search(r"mtu (lock )?(552|600|1280)\b", route), route

    @pytest.mark.parametrize("family", [4, 6])
    def test_forged_messages_change_nothing(self, family):
        self.make_hosts(4)
        daemon = self.start_aggregator_in(0, family)
        ranks = self.start_ranks(daemon, *LONG, "--report-events")
        self.wait_for_sums(ranks)
        for target, peer in ((0, 1), (0, 2), (1, 0), (2, 0)):
            self.attack(family, target, peer)
            self.wait_for_sums(ranks)
        for rank in ranks:
            rank.stop()
        for rank in self.start_ranks(daemon, "--job", "next", "--bytes", "256Ki", "--iterations", 3, "--json"):
            assert rank.end() == 0, rank.text("err")
            assert json.loads(rank.text("out"))["verified"]

    def test_a_path_that_is_too_small_is_named(self):
        self.make_hosts(2)
        daemon = self.start_aggregator_in(0, 4)
        ip("link", "set", "p1", "mtu", 1300, namespace=self.bridge)
        for host in self.hosts[:2]:  # TCP gets through, as behind routers that clamp its segments
            ip("route", "change", "10.78.0.0/24", "dev", "eth0", "advmss", 1200, namespace=host)
        rank = self.run_in(
            1,
            *(NETSUM, "bench", "allreduce", "--rank", 0, "--world-size", 1, "--aggregator", daemon.address),
            *("--connect-timeout", "2s"),
        )
        assert rank.status == 3
        rank.wait_for("answers small packets but not those of 1472 bytes")
        doctor = self.run_in(1, NETSUM, "doctor", "--aggregator", daemon.address, "--timeout", "5s")
        assert doctor.status == 1
        doctor.wait_for("packets of 1500 bytes are lost, those of 1280 pass", name="out")
        doctor.wait_for("use --mtu 1280", name="out")

    def metrics_in(self, host, port):
        script = f"import urllib.request as u; print(u.urlopen('http://127.0.0.1:{port}/metrics').read().decode())"
        return parse(self.read_in(host, "python3", "-c", script).strip())[1]

    def test_what_the_kernel_refuses_is_counted_and_not_as_sent(self):
        self.make_hosts(3)
        daemon = self.start_aggregator_in(0, 4, "--metrics", "127.0.0.1:9464")
        ranks = self.start_ranks(daemon, *LONG, "--report-events", "--metrics", "127.0.0.1:9464", timeout="60s")
        self.wait_for_sums(ranks)
        names = {0: "netsum_aggregator", 1: "netsum_worker"}
        for host, name in names.items():
            assert value(self.metrics_in(host, 9464), f"{name}_sends_refused_total") == 0
            ip("rule", "add", "pref", 10, "ipproto", "udp", "unreachable", namespace=self.hosts[host])
            deadline = time.monotonic() + PATIENCE_S
            while (first := value(self.metrics_in(host, 9464), f"{name}_sends_refused_total")) == 0:
                assert time.monotonic() < deadline
            sent = value(self.metrics_in(host, 9464), "netsum_aggregator_packets_sent_total") if host == 0 else 0
            while value(self.metrics_in(host, 9464), f"{name}_sends_refused_total") == first:
                assert time.monotonic() < deadline
            if host == 0:
                assert value(self.metrics_in(host, 9464), "netsum_aggregator_packets_sent_total") == sent
            ip("rule", "del", "pref", 10, namespace=self.hosts[host])
            self.wait_for_sums(ranks)
