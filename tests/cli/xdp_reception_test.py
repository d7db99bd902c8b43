"""An XDP aggregator redirects results to links whose other ends may drop such frames."""

from harness import NETSUM
from hosts_harness import HostsTest

AGGREGATOR = "10.78.0.254:5151"
CAUSE = ("interface eth0 is a veth without GRO", "ethtool -K eth0 gro on")


class XdpReceptionTest(HostsTest):
    def set_up(self):
        super().set_up()
        self.make_hosts(2)
        where = ("--listen", AGGREGATOR, "--dataplane", "xdp", "--interfaces", "p0,p1")
        self.start_in("bridge", NETSUM, "aggregator", *where).wait_for("ready:", name="out")

    def gro(self, host, state):
        self.read_in(host, "ethtool", "-K", "eth0", "gro", state)

    def start_ranks(self):
        return [
            self.start_in(
                rank,
                *(NETSUM, "bench", "allreduce", "--rank", rank, "--world-size", 2, "--aggregator", AGGREGATOR),
                *("--bytes", "256Ki", "--iterations", 2, "--connect-timeout", "8s"),
            )
            for rank in range(2)
        ]

    def test_a_veth_without_gro_is_named_when_the_job_is_joined(self):
        self.gro(0, "on")
        self.gro(1, "off")
        ranks = self.start_ranks()
        assert [rank.end() for rank in ranks] == [3, 3]
        for rank in ranks:
            rank.wait_for(*CAUSE)
        for host, right in ((0, True), (1, False)):
            doctor = self.run_in(host, NETSUM, "doctor", "--aggregator", AGGREGATOR, "--timeout", "2s")
            assert doctor.status == (0 if right else 1), doctor.text("out")
            assert right or doctor.wait_for("data path", *CAUSE, name="out")
        # The cure is one.
        self.gro(1, "on")
        ranks = self.start_ranks()
        assert [rank.end() for rank in ranks] == [0, 0], ranks[0].text("err")

    def test_an_xdp_program_is_as_good_as_gro(self):
        for host in range(2):
            self.gro(host, "off")
        ranks = [
            self.start_in(
                rank,
                *(NETSUM, "bench", "allreduce", "--rank", rank, "--world-size", 2, "--aggregator", AGGREGATOR),
                *("--bytes", "256Ki", "--iterations", 2, "--packet-io", "af_xdp", "--connect-timeout", "8s"),
            )
            for rank in range(2)
        ]
        assert [rank.end() for rank in ranks] == [0, 0], ranks[0].text("err")
