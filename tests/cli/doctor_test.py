"""netsum doctor: what it finds, and that it says what to change."""

import json
import os
import pathlib
import re
import socket
import sys

import pytest
from harness import NETSUM, CommandTest


class DoctorTest(CommandTest):
    def doctor(self, *arguments, status=0):
        command = self.run_command("doctor", "--json", *arguments)
        assert command.status == status, command.text("out") + command.text("err")
        report = json.loads(command.text("out"))
        assert report["ok"] == (status == 0)
        return {finding["subject"]: finding for finding in report["findings"]}

    def test_the_machine(self):
        findings = self.doctor()
        for subject in (
            "kernel",
            "UDP GRO",
            "AF_XDP",
            "net.core.rmem_max",
            "net.core.wmem_max",
            "CPU",
            "cores",
            "clock source",
            "clock synchronisation",
            "interface lo",
            "open files",
            "locked memory",
        ):
            assert subject in findings
        for finding in findings.values():
            assert finding["grade"] in ("ok", "warn")
            assert finding["found"]
            if finding["grade"] == "warn":
                assert finding["advice"], finding

    def test_the_rate_that_an_interface_reports(self):
        # The speed of t0 is nominal, as of any tap; m0 stands for an interface of hardware.
        made = "ip tuntap add t0 mode tap && ethtool -s t0 speed 2500 duplex full && "
        made += 'ip link add m0 link t0 type macvlan && exec "$@"'
        command = self.start("--net", "sh", "-c", made, "sh", NETSUM, "doctor", "--json", program="unshare")
        if command.end() != 0:
            pytest.skip(f"no tap and macvlan in a network namespace here: {command.text('err')}")
        findings = {finding["subject"]: finding for finding in json.loads(command.text("out"))["findings"]}
        assert findings["interface m0"]["found"].endswith("2.5gbit")
        assert "gbit" not in findings["interface t0"]["found"]

    def test_as_text(self):
        command = self.run_command("doctor")
        assert command.status == 0
        assert re.search(r"(?m)^(ok|warn) +kernel: Linux", command.text("out"))

    def devices(self, script, status=0):
        """The findings with an interpreter that runs `script` in place of netsum's package."""
        python = self.write_file(f"#!/bin/sh\n{script}\n")
        os.chmod(python, 0o755)
        return self.doctor("--devices", "--python", python, status=status)

    def test_devices(self):
        lines = json.dumps([{"grade": "ok", "subject": "cuda:0", "found": "a GPU", "advice": ""}])
        assert self.devices(f"test \"$*\" = '-m netsum._doctor' && echo '{lines}'")["cuda:0"]["grade"] == "ok"

    @pytest.mark.parametrize(
        ("script", "found"),
        [
            ("echo no JSON", "parse error"),
            ("echo Traceback >&2; echo 'No module named netsum' >&2; exit 1", "exit status 1: No module named netsum"),
            ("kill -9 $$", "signal 9"),
        ],
    )
    def test_an_interpreter_without_the_package(self, script, found):
        finding = self.devices(script, status=1)["devices"]
        assert found in finding["found"]
        assert "--python" in finding["advice"]

    def test_devices_without_pytorch(self):
        """Of the package's sources, by an interpreter that has nothing else."""
        package = pathlib.Path(__file__).resolve().parents[2] / "torch"
        finding = self.devices(f'PYTHONPATH={package} exec {sys._base_executable} -S "$@"')["PyTorch"]
        assert finding["grade"] == "warn"
        assert "not installed for" in finding["found"]
        assert "netsum doctor --devices --python" in finding["advice"]

    def test_an_aggregator(self):
        address = self.start_aggregator().address
        findings = self.doctor("--aggregator", address)
        for what in ("control", "version", "clock", "data path"):
            assert findings[f"{address} {what}"]["grade"] == "ok", findings
        # However busy the host is.
        assert "no difference to this one's" in findings[f"{address} clock"]["found"]

    def test_af_xdp_is_not_for_loopback(self):
        address = self.start_aggregator().address
        finding = self.doctor("--aggregator", address, "--packet-io", "af_xdp")[f"{address} AF_XDP"]
        assert finding["grade"] == "warn"
        assert "on this host" in finding["found"]
        assert "UDP" in finding["advice"]

    @pytest.mark.parametrize("mode", ["packet", "both", "sum"])
    def test_sums_of_an_aggregator(self, mode):
        address = self.start_aggregator().address
        findings = self.doctor("--aggregator", address, "--verify", mode)
        assert "--verify packet, both, sum" in findings[f"{address} control"]["found"]
        finding = findings[f"{address} sums"]
        assert finding["grade"] == "ok", finding
        assert f"20 sums of two ranks were right with verify '{mode}'" in finding["found"]
        assert ("verified by their tags" in finding["found"]) == (mode != "packet")

    @pytest.mark.parametrize("mode", ["packet", "both", "sum"])
    def test_an_aggregator_whose_sums_are_wrong(self, mode):
        daemon = self.start_aggregator("--inject-flips", "1%")
        finding = self.doctor("--aggregator", daemon.address, "--verify", mode, status=1)[f"{daemon.address} sums"]
        assert finding["grade"] == "fail"
        assert "out of service" in finding["advice"]
        if mode == "packet":
            assert "nothing has told" in finding["found"]
        else:
            assert re.search(r"wrong_sum: .*by the aggregator at 127\.0\.0\.1:\d+ \(stripe 0", finding["found"])
            daemon.wait_for("job failed", "wrong_sum")

    def test_a_pace_is_recommended_only_if_it_gains(self):
        address = self.start_aggregator().address
        finding = self.doctor("--aggregator", address, "--pace", "200mbit")[f"{address} pace"]
        # On loopback, a sum of 256 KiB takes far less than the 10 ms that the pace costs.
        assert re.search(r"without: [\d.]+ ms a sum, \d+ of \d{4,} packets .*; at 200mbit: ", finding["found"]), finding
        assert finding["grade"] == "ok", finding
        assert finding["found"].endswith("% more time here")
        # A sum would take 2 s, longer than --timeout: none is made.
        slow = self.doctor("--aggregator", address, "--pace", "1mbit", "--timeout", "500ms")[f"{address} pace"]
        assert re.search(r"at 1mbit: at least \d+\.\d\d ms; pacing costs \d+ % more time here$", slow["found"]), slow

        for flags in (("--aggregator", address, "--faults"), ()):
            refused = self.run_command("doctor", "--pace", "1mbit", *flags)
            assert refused.status == 2
            refused.wait_for("--pace: give --aggregator")

    def test_sums_that_nobody_makes(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            findings = self.doctor("--aggregator", address, "--timeout", "2s", "--verify", "both", status=1)
        assert f"{address} sums" not in findings, "nothing is tried without a control connection"
        refused = self.run_command("doctor", "--verify", "all")
        assert refused.status == 2
        refused.wait_for("--verify", "both, packet, sum")

    def test_packets_larger_than_the_aggregator_takes(self):
        address = self.start_aggregator("--mtu", "1500").address
        finding = self.doctor("--aggregator", address, "--mtu", 9000, status=1)[f"{address} data path"]
        assert finding["grade"] == "fail"
        assert finding["advice"]

    def test_nobody_there(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            finding = self.doctor("--aggregator", address, "--timeout", "2s", status=1)[f"{address} control"]
        assert finding["grade"] == "fail"
        assert "netsum aggregator" in finding["advice"]

    def test_wrong_token(self):
        address = self.start_aggregator("--token-file", self.write_file("secret\n")).address
        finding = self.doctor("--aggregator", address, status=1)[f"{address} control"]
        assert "--token-file" in finding["advice"]
        self.doctor("--aggregator", address, "--token-file", self.write_file("secret\n"))

    def test_a_peer(self):
        peer = self.start("doctor", "--serve", "127.0.0.1:0")
        address = peer.wait_for("--peer", name="out").split()[-1]
        findings = self.doctor("--peer", address)
        assert findings[f"{address} data path"]["grade"] == "ok"
        self.send_signal(peer)
        assert peer.end() == 0
