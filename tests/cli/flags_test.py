"""The command line: help, versions, and clear errors for what cannot be served."""

import json
import re
import subprocess

from harness import NETSUM, CommandTest, clean_environment


class FlagsTest(CommandTest):
    def assert_usage_error(self, arguments, *words, **more):
        command = self.run_command(*arguments, **more)
        assert command.status == 2, command.text("err")
        for word in words:
            assert word in command.text("err")
        assert "--help" in command.text("err"), "says where to read on"
        assert command.text("out") == ""

    def test_every_help_has_examples(self):
        commands = [["aggregator"], ["bench"], ["doctor"], ["rack"], ["simulate"], ["status"]]
        commands += [["bench", collective] for collective in ("allreduce", "broadcast", "reducescatter")]
        commands += [["rack", verb] for verb in ("up", "status", "set", "exec", "down")]
        for arguments in ([], ["version"], *commands):
            command = self.run_command(*arguments, "--help")
            assert command.status == 0
            assert "Examples:" in command.text("out")
            assert " ".join(["netsum", *arguments]) in command.text("out").split("Examples:")[1]

    def test_the_exit_statuses_are_in_the_help(self):
        for arguments in ([], ["aggregator"], ["bench", "allreduce"], ["doctor"], ["rack"], ["simulate"], ["status"]):
            assert "Exit status: 0" in self.run_command(*arguments, "--help").text("out"), arguments

    def test_a_liveness_timeout_of_zero_is_accepted(self):
        flags = ["bench", "allreduce", "--workers", "1", "--bytes", "4Ki", "--iterations", "1"]
        command = self.run_command(*flags, "--liveness-timeout", "0ms")
        assert command.status == 0, command.text("err")
        self.assert_usage_error([*flags, "--timeout", "0ms"], "--timeout", "'0ms'", "1ms or more")

    def test_the_spellings_of_a_size(self):
        flags = ["bench", "allreduce", "--workers", "1", "--iterations", "1", "--json"]
        for text, size in (("1.5Ki", 1536), ("4kB", 4000), ("64KiB", 65536)):
            command = self.run_command(*flags, "--bytes", text)
            assert command.status == 0, command.text("err")
            assert json.loads(command.text("out"))["bytes"] == size

    def test_version(self):
        command = self.run_command("version", "--json")
        assert command.status == 0
        facts = json.loads(command.text("out"))
        assert re.search(r"^\d+\.\d+\.\d+$", facts["version"])
        assert facts["protocol_version"] >= 1
        assert re.search(r"^\d+\.\d+", facts["grpc"])
        assert facts["version"] in self.run_command("version").text("out")

    def test_unknown_flag(self):
        for arguments in (["aggregator"], ["bench", "allreduce"], ["doctor"], ["version"]):
            self.assert_usage_error(
                [*arguments, "--frobnicate"], "unknown", "--frobnicate", "netsum " + " ".join(arguments) + " --help"
            )

    def test_no_or_unknown_subcommand(self):
        self.assert_usage_error([], "subcommand")
        self.assert_usage_error(["aggregate"], "unknown", "aggregate")
        self.assert_usage_error(["bench", "alltoall"], "unknown", "alltoall", "netsum bench --help")

    def test_bad_address(self):
        for text in ("nonsense", "127.0.0.1", "127.0.0.1:99999", "127.0.0.1:x"):
            self.assert_usage_error(["aggregator", "--listen", text], "--listen", text, "host:port")
        self.assert_usage_error(
            ["bench", "allreduce", "--aggregator", "127.0.0.1:1,nonsense"], "--aggregator", "nonsense", "host:port"
        )
        self.assert_usage_error(["doctor", "--peer", "nonsense"], "--peer", "host:port")

    def test_bad_address_in_the_environment(self):
        self.assert_usage_error(
            ["doctor"], "nonsense", "host:port", environment=clean_environment(NETSUM_AGGREGATOR="nonsense")
        )

    def test_bad_values(self):
        bench = ["bench", "allreduce"]
        for arguments, words in [
            (["aggregator", "--slots", "1000"], ["--slots", "power of two"]),
            (["aggregator", "--slots", "131072"], ["--slots", "65536"]),
            (["aggregator", "--cores", "0"], ["--cores", "range"]),
            (["aggregator", "--mtu", "100"], ["--mtu", "576"]),
            (["aggregator", "--data-port", "70000"], ["--data-port", "65535"]),
            (["aggregator", "--log-level", "loud"], ["--log-level", "loud", "debug"]),
            (["aggregator", "--drain-timeout", "soon"], ["--drain-timeout", "soon", "30s"]),
            (bench + ["--bytes", "12X"], ["--bytes", "12X", "64Mi"]),
            (bench + ["--bytes", "7"], ["--bytes", "7", "multiple"]),
            (bench + ["--dtype", "float64"], ["--dtype", "float64", "bfloat16"]),
            (bench + ["--dtype", "int32", "--op", "avg"], ["--op avg", "--op sum"]),
            (bench + ["--rank", "0"], ["--rank", "--world-size"]),
            (bench + ["--rank", "2", "--world-size", "2", "--root", "127.0.0.1:1"], ["--rank 2", "below"]),
            (bench + ["--rank", "0", "--world-size", "2"], ["--rank", "--aggregator", "--root"]),
        ]:
            self.assert_usage_error(arguments, *words)

    def test_world_size_over_the_limit(self):
        self.assert_usage_error(["bench", "allreduce", "--workers", "513"], "--workers", "513", "512")
        self.assert_usage_error(
            ["bench", "allreduce", "--rank", "0", "--world-size", "513", "--root", "127.0.0.1:1"],
            "--world-size",
            "513",
            "512",
        )

    def test_files_that_cannot_be_read(self):
        self.assert_usage_error(["aggregator", "--token-file", "no/such/file"], "--token-file", "no/such/file")
        self.assert_usage_error(["aggregator", "--tls-cert", "no/such/file"], "--tls-cert", "--tls-key")
        path = self.write_file("no certificate")
        self.assert_usage_error(["aggregator", "--tls-cert", path, "--tls-key", path], "--tls-cert", "PEM")
        empty = self.write_file("\n")
        self.assert_usage_error(["aggregator", "--token-file", empty], "--token-file", "empty")

    def test_output_that_is_lost_is_a_failure(self):
        with open("/dev/full", "wb") as full:
            command = subprocess.run([NETSUM, "version"], stdout=full, stderr=subprocess.PIPE, timeout=60, check=False)
        assert command.returncode == 3
        assert b"cannot write to standard output" in command.stderr
