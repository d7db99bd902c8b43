"""netsum doctor --rates: links of a virtual rack, and measurements that do not reach their end."""

import json
import signal

import pytest
from harness import NETSUM, CommandTest
from netsum_bench.processes import free_port
from rack_harness import RackCommandTest

PORT = 5150


def bits(text):
    number, unit = text[:-6], text[-6]
    return float(number) * {"k": 1e3, "M": 1e6, "G": 1e9}[unit]


@pytest.mark.measures
class DoctorRatesInARackTest(RackCommandTest):
    def start_agents(self, count):
        addresses = []
        for worker in range(count):
            address = f"10.77.0.{worker + 1}:{PORT}"
            agent = self.start_in(worker, NETSUM, "doctor", "--serve-rates", address)
            agent.wait_for("ready:", name="out")
            addresses.append(address)
        return addresses

    def test_the_rates_of_links_and_a_plan_of_them(self):
        self.up("--workers", 4, "--rate", "40mbit")
        assert self.rack("set", "--name", self.name, "1", "--rate", "8mbit").status == 0
        hosts = self.start_agents(4)
        measured = self.run_in(
            0,
            *(NETSUM, "doctor", "--rates", ",".join(hosts[:3]), "--spare-hosts", hosts[3]),
            *("--measure-time", "400ms", "--json"),
        )
        assert measured.status == 0, measured.text("err")
        report = json.loads(measured.text("out"))
        rates = {host["name"]: host["link"] for host in report["hosts"] + report["places"]}
        assert list(rates) == [host.split(":")[0] for host in hosts]
        # Wide enough for a machine that is busy; a share or a sum of rates would be outside.
        for name, link in rates.items():
            expected = 8e6 if name == "10.77.0.2" else 40e6
            for direction in ("in", "out"):
                assert expected / 1.8 < bits(link[direction]) < expected * 1.25, report
        for pair in report["measured"]["pairs"]:
            slow = "10.77.0.2" in (pair["from"], pair["to"])
            assert pair["bits_per_second"] < (8e6 if slow else 40e6) * 1.25, pair
            assert 0 <= pair["lost"] < 1
        assert len(report["measured"]["pairs"]) == 12
        assert len(report["measured"]["fans"]) == 4

        plan = self.run_command("plan", str(self.write_file(measured.text("out"))), "--json")
        assert plan.status == 0, plan.text("err")
        assert "10.77.0.2" in plan.text("out")

    def test_hosts_between_which_nothing_passes(self):
        self.up("--workers", 2, "--rate", "40mbit")
        hosts = self.start_agents(2)
        closed = self.run_in(
            1, "sh", "-c", "ip route add blackhole 10.77.0.1/32 table 99 && ip rule add ipproto udp table 99"
        )
        assert closed.status == 0, closed.text("err")
        measured = self.run_in(0, NETSUM, "doctor", "--rates", ",".join(hosts))
        assert measured.status == 3
        assert measured.text("out") == ""
        assert "unreachable" in measured.text("err")
        assert "open UDP in firewalls" in measured.text("err")


class DoctorRatesTest(CommandTest):
    def start_agent(self, *flags, **more):
        agent = self.start("doctor", "--serve-rates", "127.0.0.1:0", *flags, **more)
        agent.address = agent.wait_for("ready:", name="out").split("--rates ")[1].split(",")[0]
        return agent

    def measure(self, *addresses, flags=(), each="500ms"):
        return self.start("doctor", "--rates", ",".join(addresses), "--measure-time", each, *flags)

    def assert_fails(self, command, *words, status=3):
        assert command.end() == status, command.text("out")
        assert command.text("out") == ""
        for word in words:
            assert word in command.text("err"), command.text("err")

    def assert_measures(self, *agents):
        """Nothing of an earlier measurement is in the way."""
        command = self.measure(*(agent.address for agent in agents), flags=["--json"])
        assert command.end() == 0, command.text("err")
        assert len(json.loads(command.text("out"))["hosts"]) == len(agents)

    def test_as_text(self):
        agents = [self.start_agent() for _ in range(3)]
        command = self.measure(*(agent.address for agent in agents))
        assert command.end() == 0, command.text("err")
        assert "8 measurements of 0.5 s" in command.text("err")
        rows = command.text("out").splitlines()
        assert rows[0].split() == ["HOST", "IN", "OUT", "ROLE"]
        for agent, row in zip(agents, rows[1:4], strict=True):
            assert row.split()[0] == agent.address.replace(":", "-")
            assert bits(row.split()[1]) > 0

    def test_an_agent_that_ends_meanwhile(self):
        agents = [self.start_agent() for _ in range(3)]
        command = self.measure(*(agent.address for agent in agents), each="10s")
        command.wait_for("8 measurements of 10 s")
        agents[1].stop()
        self.assert_fails(command, agents[1].address)
        # What its own calls say, or gRPC's next attempt to connect.
        assert any(word in command.text("err") for word in ("peer_lost", "unreachable"))
        self.assert_measures(agents[0], agents[2])

    def test_interrupted(self):
        agents = [self.start_agent() for _ in range(2)]
        command = self.measure(*(agent.address for agent in agents), each="10s")
        command.wait_for("1 measurements of 10 s")
        self.send_signal(command, signal.SIGINT)
        self.assert_fails(command, "interrupted", "run it again")
        self.wait_until_idle(agents)

    def wait_until_idle(self, agents):
        """The agents see the end of the caller's connection a moment later."""
        for _ in range(100):
            command = self.measure(*(agent.address for agent in agents))
            if command.end() == 0:
                return
            assert "another measurement" in command.text("err"), command.text("err")
        raise AssertionError("the agents still measure")

    def test_one_measurement_at_a_time(self):
        agents = [self.start_agent() for _ in range(3)]
        first = self.measure(agents[0].address, agents[1].address, each="10s")
        first.wait_for("1 measurements of 10 s")
        # The first one may be about to start: until it has, others succeed.
        for _ in range(100):
            second = self.measure(agents[1].address, agents[2].address)
            if second.end() != 0:
                break
        assert "resource_exhausted" in second.text("err")
        assert agents[1].address in second.text("err")

    def test_the_token(self, tmp_path):
        secret = tmp_path / "token"
        secret.write_text("secret\n")
        agents = [self.start_agent("--token-file", secret) for _ in range(2)]
        addresses = [agent.address for agent in agents]
        self.assert_fails(self.measure(*addresses), "permission_denied", addresses[0])
        assert self.measure(*addresses, flags=["--token-file", secret]).end() == 0

    def test_nobody_there(self):
        address = f"127.0.0.1:{free_port()}"
        command = self.measure(self.start_agent().address, address, flags=["--timeout", "1s"])
        self.assert_fails(command, address, "unreachable", "--serve-rates")

    def test_an_aggregator_is_no_agent(self):
        address = self.start_aggregator().address
        self.assert_fails(self.measure(address, self.start_agent().address), address, "does not measure rates")

    @pytest.mark.parametrize(
        ("flags", "words"),
        [
            (["--rates", "a:1"], ["at least two"]),
            (["--rates", "a:1,a:1"], ["'a:1' is listed twice"]),
            (["--rates", "a:1,b:1", "--spare-hosts", "a:1"], ["'a:1' is listed twice"]),
            (["--rates", ",".join(f"h{i}:1" for i in range(65))], ["at most 64 hosts", "in groups"]),
            (["--rates", "a:1,b:1,c:1", "--deadline", "2s"], ["8 measurements of 1 s", "--deadline 2 s", "raise it"]),
            (["--rates", "a:1,b:1", "--measure-time", "11s"], ["--measure-time", "100 ms to 10 s"]),
            (["--rates", "a,b"], ["--rates", "port"]),
            (["--spare-hosts", "a:1"], ["--rates"]),
            (["--rates", "a:1,b:1", "--serve-rates", "c:1"], ["--serve-rates"]),
        ],
    )
    def test_bad_flags(self, flags, words):
        self.assert_fails(self.start("doctor", *flags), *words, status=2)

    def test_help(self):
        command = self.run_command("doctor", "--help")
        for words in ("--serve-rates", "--rates", "--spare-hosts", "netsum plan"):
            assert words in command.text("out")

    def test_an_address_in_use(self):
        agent = self.start_agent()
        self.assert_fails(self.start("doctor", "--serve-rates", agent.address), "address_in_use", agent.address)
