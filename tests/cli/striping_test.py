"""Chunks striped over several aggregators: what each link carries is what theory says, byte for byte but a few percent."""

import json

from harness import NETSUM
from rack_harness import RackCommandTest

TENSOR_BYTES = 4 << 20
ITERATIONS = 2
# Ethernet, IPv4, UDP and netsum's headers around 1440 bytes, and a scale packet per 720.
PER_GRADIENT_BYTE = (1440 + 32 + 28 + 14) / 1440 * (1 + 1 / 720)


class StripingRackTest(RackCommandTest):
    def link_bytes(self, worker):
        shown = json.loads(self.run_in(worker, "ip", "-j", "-s", "link", "show", "dev", "eth0").text("out"))
        return [shown[0]["stats64"][way]["bytes"] for way in ("tx", "rx")]

    def up_without_offloads(self, hosts):
        """Otherwise the links carry many packets with one set of headers, as no cable does."""
        self.up("--workers", hosts)
        for host in range(hosts):
            assert self.run_in(host, "ethtool", "-K", "eth0", "gso", "off", "tx-udp-segmentation", "off").status == 0

    def sum_and_measure(self, ranks, hosts, *where):
        """Link bytes per gradient byte of one rank, by host: (sent, received)."""
        before = [self.link_bytes(host) for host in range(hosts)]
        running = [
            self.start_in(
                rank,
                "env",
                "-u",
                "NETSUM_AGGREGATOR",
                NETSUM,
                "bench",
                "allreduce",
                "--rank",
                rank,
                "--world-size",
                ranks,
                "--bytes",
                TENSOR_BYTES,
                "--iterations",
                ITERATIONS,
                "--warmup",
                0,
                "--json",
                *where,
            )
            for rank in range(ranks)
        ]
        for rank in running:
            assert rank.end() == 0, rank.text("err")
            assert json.loads(rank.text("out"))["verified"]
        after = [self.link_bytes(host) for host in range(hosts)]
        return [
            [(now - was) / (TENSOR_BYTES * ITERATIONS) for was, now in zip(*pair, strict=True)]
            for pair in zip(before, after, strict=False)
        ]

    def assert_carries(self, measured, theory):
        for way in measured:
            # Control traffic and the first, tiny operation come on top; a lost packet now and then, too.
            assert way > theory * PER_GRADIENT_BYTE * 0.999
            assert way < theory * PER_GRADIENT_BYTE * 1.05

    def test_two_spare_servers(self):
        ranks, spares = 3, 2
        self.up_without_offloads(ranks + spares)
        addresses = [f"10.77.0.{ranks + spare + 1}:5151" for spare in range(spares)]
        for spare, address in enumerate(addresses):
            self.start_in(ranks + spare, NETSUM, "aggregator", "--listen", address, "--cores", 1).wait_for(
                "ready", name="out"
            )
        where = ["--aggregator", ",".join(addresses)]
        links = self.sum_and_measure(ranks, ranks + spares, *where, "--shares", "off")
        for rank in range(ranks):
            self.assert_carries(links[rank], 1)  # once, whatever the number of ranks and aggregators
        for spare in range(spares):
            self.assert_carries(links[ranks + spare], ranks / spares)
        # Planned, by the formula of docs/placement.md: each spare host sums 4/11, each rank 1/11.
        links = self.sum_and_measure(ranks, ranks + spares, *where)
        for host in range(ranks + spares):
            self.assert_carries(links[host], 12 / 11)

    def test_shards_embedded_in_the_ranks(self):
        ranks = 4
        self.up_without_offloads(ranks)
        links = self.sum_and_measure(ranks, ranks, "--root", "10.77.0.1:6000")
        for rank in range(ranks):
            self.assert_carries(links[rank], 2 * (ranks - 1) / ranks)  # as a ring, in one round trip
