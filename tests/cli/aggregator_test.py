"""The daemon and its jobs under bad input, deaths and signals."""

import contextlib
import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess

from harness import BUILD, LONG, NETSUM, PATIENCE_S, CommandTest, clean_environment


class AggregatorTest(CommandTest):
    def test_announces_itself_and_serves(self):
        daemon = self.start_aggregator()
        assert "control " + daemon.address in daemon.ready
        bench = self.start_long_job(daemon, "--job", "mine")
        daemon.wait_for("job began", "job=mine", "world_size=2")
        bench.stop()
        daemon.wait_for("job ended", "job=mine")
        self.assert_serves(daemon)

    def test_a_second_start_on_the_port_says_so(self):
        daemon = self.start_aggregator()
        port = daemon.address.split(":")[1]
        second = self.run_command("aggregator", "--listen", daemon.address, "--cores", 1)
        assert second.status == 3
        assert f"port {port} is in use by another process: stop it or choose another with --listen" in second.text(
            "err"
        )
        self.assert_serves(daemon)

    def test_data_port_in_use(self):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
            other.bind(("127.0.0.1", 0))
            port = other.getsockname()[1]
            second = self.run_command("aggregator", "--listen", "127.0.0.1:0", "--cores", 1, "--data-port", port)
        assert second.status == 3
        assert str(port) in second.text("err")
        assert "--data-port" in second.text("err")

    def test_pinned_threads_have_a_processor_each(self):
        usable = sorted(os.sched_getaffinity(0))
        daemon = self.start_aggregator("--pin", cores=len(usable))
        threads = pathlib.Path(f"/proc/{daemon.process.pid}/task").glob("*/status")
        allowed = [re.search(r"^Cpus_allowed_list:\s*(\S+)$", path.read_text(), re.MULTILINE)[1] for path in threads]
        pinned = [which for which in allowed if which.isdigit()]
        # On a machine with one processor every thread may use that one only.
        assert sorted(pinned) == [str(processor) for processor in usable] or len(usable) == 1, allowed
        self.assert_serves(daemon)

    def test_pinning_needs_a_processor_for_each_thread(self):
        here = min(os.sched_getaffinity(0))
        listen = ("--listen", "127.0.0.1:0", "--cores", 3)
        refused = self.run_command("-c", here, NETSUM, "aggregator", *listen, "--pin", program="taskset")
        assert refused.status == 2
        assert "cannot pin 3 data-path threads: this process may use 1 processor core;" in refused.text("err")
        shared = self.start("-c", here, NETSUM, "aggregator", *listen, program="taskset")
        shared.wait_for("3 data-path threads (--cores) share 1 processor core")

    def test_pinning_is_for_threads(self):
        refused = self.run_command("aggregator", "--listen", "127.0.0.1:0", "--dataplane", "xdp", "--pin")
        assert refused.status == 2
        assert "packets are summed on the CPU that receives them" in refused.text("err")

    def test_wrong_aggregator_token(self):
        token, other = self.write_file("secret\n"), self.write_file("guess\n")
        daemon = self.start_aggregator("--token-file", token)
        for more in ([], ["--aggregator-token-file", other]):
            bench = self.start_bench(daemon, "--workers", 2, "--bytes", "4Ki", *more)
            assert bench.end() == 3
            self.assert_all_ranks_say(bench, 2, "permission_denied")
        self.assert_serves(daemon, "--aggregator-token-file", token)

    def test_the_token_from_the_environment(self):
        secret = clean_environment(NETSUM_AGGREGATOR_TOKEN="secret")
        daemon = self.start_aggregator(environment=secret)
        bench = self.start_bench(daemon, "--workers", 2, "--bytes", "4Ki", environment=secret)
        assert bench.end() == 0, bench.text("err")

    def test_wrong_job_token(self):
        daemon = self.start_aggregator()
        tokens = [self.write_file("ours\n"), self.write_file("theirs\n")]
        first = self.start_bench(daemon, "--rank", 0, "--world-size", 2, "--bytes", "4Ki", "--token-file", tokens[0])
        daemon.wait_for("job began")
        second = self.start_bench(
            daemon, "--rank", 1, "--world-size", 2, "--bytes", "4Ki", "--token-file", tokens[1], connect_timeout="2s"
        )
        assert second.end() == 3
        assert "set the same token on all ranks" in second.text("err")
        # The stranger did the job no harm: the right rank still completes it.
        third = self.start_bench(daemon, "--rank", 1, "--world-size", 2, "--bytes", "4Ki", "--token-file", tokens[0])
        assert third.end() == 0, third.text("err")
        assert first.end() == 0, first.text("err")

    def certified(self, folder, name, authority):
        """A key NAME.key and a certificate NAME.pem for this host, signed by the authority."""

        def openssl(*arguments):
            subprocess.run(["openssl", *arguments], cwd=folder, capture_output=True, check=True, timeout=PATIENCE_S)

        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", f"{name}.key"]
        if name == authority:
            openssl("req", "-x509", *key, "-out", f"{name}.pem", "-subj", f"/CN={name}", "-days", "1")
            return
        (folder / "san").write_text("subjectAltName=IP:127.0.0.1\n", encoding="ascii")
        openssl("req", *key, "-out", f"{name}.csr", "-subj", f"/CN={name}")
        openssl(
            "x509",
            "-req",
            "-in",
            f"{name}.csr",
            "-CA",
            f"{authority}.pem",
            "-CAkey",
            f"{authority}.key",
            "-CAcreateserial",
            "-out",
            f"{name}.pem",
            "-days",
            "1",
            "-extfile",
            "san",
        )

    def test_mutual_tls(self):
        folder = self.write_file("").parent
        for name, authority in (("ca", "ca"), ("agg", "ca"), ("rank", "ca"), ("other", "other"), ("stranger", "other")):
            self.certified(folder, name, authority)

        def tls(name, authority="ca"):
            return [
                "--tls-ca",
                folder / f"{authority}.pem",
                "--tls-cert",
                folder / f"{name}.pem",
                "--tls-key",
                folder / f"{name}.key",
            ]

        daemon = self.start_aggregator(*tls("agg"), "--require-client-cert")
        for flags in ([], ["--tls-ca", folder / "ca.pem"], tls("stranger"), tls("rank", "other")):
            bench = self.start_bench(daemon, "--workers", 2, "--bytes", "4Ki", *flags, connect_timeout="3s")
            assert bench.end() == 3, flags
        self.assert_serves(daemon, *tls("rank"))

    def test_quota_of_slots(self):
        daemon = self.start_aggregator("--job-slots", 100)
        bench = self.start_bench(daemon, "--workers", 2, "--bytes", "4Ki")
        assert bench.end() == 3
        bench.wait_for("resource_exhausted", "quota of slots for a job is 100")
        self.assert_serves(daemon, "--slots", 64)

    def test_quota_of_memory(self):
        daemon = self.start_aggregator("--job-memory", "600Ki")
        bench = self.start_bench(daemon, "--workers", 2, "--bytes", "4Ki")
        assert bench.end() == 3
        bench.wait_for("resource_exhausted", "quota of memory for a job is 614400 bytes")
        self.assert_serves(daemon, "--slots", 64)
        too_small = self.run_command("aggregator", "--listen", "127.0.0.1:0", "--job-memory", "10Ki")
        assert too_small.status == 2
        assert "job_memory_bytes 10240 holds 3 slots" in too_small.text("err")

    def test_quota_of_packets(self):
        daemon = self.start_aggregator("--job-packet-rate", 1000)
        # 1460 packets: more than are saved up, so some are refused, and the job slows down instead of failing.
        bench = self.start_bench(daemon, "--workers", 2, "--bytes", "1Mi", "--iterations", 1, "--warmup", 0, "--json")
        assert bench.end() == 0, bench.text("err")
        assert json.loads(bench.text("out"))["verified"]
        self.send_signal(daemon)
        assert daemon.end() == 0
        refused = int(re.search(r"drop_over_rate=(\d+)", daemon.wait_for("counters")).group(1))
        assert refused > 0

    def test_wildcard_address_answers_from_the_address_asked(self):
        daemon = self.start("aggregator", "--listen", "0.0.0.0:0", "--cores", 2)
        address = daemon.wait_for("NETSUM_AGGREGATOR=", name="out").split("=")[1]
        for host in ("127.0.0.1", "127.0.0.2", "127.99.0.1"):
            daemon.address = f"{host}:{address.rsplit(':', 1)[1]}"
            self.assert_serves(daemon)

    def test_wrong_version(self):
        daemon = self.start_aggregator()
        answer = subprocess.run(
            [BUILD / "tests/cli/join_as_version", daemon.address, "999"],
            text=True,
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert answer.returncode == 0, answer.stderr
        assert "999" in answer.stdout
        assert "protocol version" in answer.stdout
        self.assert_serves(daemon)

    def test_more_slots_than_exist(self):
        daemon = self.start_aggregator("--slots", 64)
        bench = self.start_bench(daemon, "--workers", 2, "--bytes", "4Ki", "--slots", 1024)
        assert bench.end() == 3
        self.assert_all_ranks_say(bench, 2, "resource_exhausted")
        self.assert_serves(daemon, "--slots", 16)

    def test_a_job_name_in_use(self):
        daemon = self.start_aggregator()
        token = self.write_file("ours\n")
        self.start_long_job(daemon, "--job", "mine", "--token-file", token)
        other = self.start_bench(daemon, "--workers", 2, "--bytes", "4Ki", "--job", "mine", "--token-file", token)
        assert other.end() == 3
        self.assert_all_ranks_say(other, 2, "mine", "rank")
        # Others who call theirs the same have another token, and are not in the way.
        stranger = self.start_bench(daemon, "--workers", 2, "--bytes", "4Ki", "--job", "mine")
        assert stranger.end() == 0, stranger.text("err")
        self.assert_serves(daemon)

    def test_aggregator_not_there(self):
        with socket.socket() as taken:
            # Bound but not listening: nobody else can take the port, and connections are refused.
            taken.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            bench = self.run_command(
                "bench",
                "allreduce",
                "--workers",
                2,
                "--aggregator",
                address,
                "--connect-timeout",
                "2s",
                "--bytes",
                "4Ki",
            )
        assert bench.status == 3
        assert bench.text("out") == ""
        for rank in range(2):
            assert address in bench.wait_for(f"rank {rank}:", "unreachable")

    def test_aggregator_killed_in_the_middle(self):
        daemon = self.start_aggregator()
        ranks = self.start_running_ranks(daemon, 3)
        self.send_signal(daemon, signal.SIGKILL)
        for rank in ranks:
            assert rank.end() == 3
            rank.wait_for('"event":"error"', '"code":"aggregator_lost"', name="out")

    def test_worker_killed_in_the_middle(self):
        daemon = self.start_aggregator()
        ranks = self.start_running_ranks(daemon, 3)
        self.send_signal(ranks[1], signal.SIGKILL)
        for survivor in (ranks[0], ranks[2]):
            assert survivor.end() == 3
            survivor.wait_for('"code":"peer_lost"', "rank 1", '"rank":1', name="out")
        daemon.wait_for("job ended")
        self.assert_serves(daemon)

    def test_random_bytes_to_every_port_while_a_job_runs(self):
        daemon = self.start_aggregator()
        bench = self.start_bench(daemon, "--workers", 2, "--bytes", "1Mi", "--iterations", 20, "--json")
        daemon.wait_for("job", "state=running")
        ports = [int(port) for port in re.findall(r":(\d+)", daemon.ready.split("data")[1])]
        generator = random.Random(1)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            for _ in range(2000):
                noise = generator.randbytes(generator.randrange(1, 1473))
                # Half of them start like ours, so that they get past the first check.
                if generator.random() < 0.5:
                    noise = b"\xa5" + noise[1:]
                udp.sendto(noise, ("127.0.0.1", generator.choice(ports)))
        host, port = daemon.address.split(":")
        for _ in range(20):
            tcp = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
            with tcp, contextlib.suppress(OSError):  # the daemon may close the connection at the first bytes
                tcp.sendall(generator.randbytes(generator.randrange(1, 5000)))
        assert bench.end() == 0, bench.text("err")
        assert json.loads(bench.text("out"))["verified"]
        self.assert_serves(daemon)
        # The noise was counted under the names of the rules that it broke.
        self.send_signal(daemon)
        assert daemon.end() == 0
        assert re.search(r"drop_\w+=\d+", daemon.wait_for("counters"))

    def test_sigterm_drains(self):
        daemon = self.start_aggregator()
        bench = self.start_bench(daemon, "--workers", 2, "--bytes", "256Ki", "--iterations", 300, "--job", "last")
        daemon.wait_for("job", "state=running")
        self.send_signal(daemon)
        daemon.wait_for("draining: waiting", "last")
        late = self.start_bench(daemon, "--workers", 2, "--bytes", "4Ki", connect_timeout="2s")
        assert late.end() == 3, "new jobs are refused"
        assert bench.end() == 0, bench.text("err")
        assert daemon.end() == 0, daemon.text("err")
        daemon.wait_for("drained: every job had left")

    def test_drain_gives_up_after_its_timeout(self):
        daemon = self.start_aggregator("--drain-timeout", "500ms")
        bench = self.start_long_job(daemon)
        self.send_signal(daemon, signal.SIGINT)
        assert daemon.end() == 4, daemon.text("err")
        daemon.wait_for("jobs still running")
        assert bench.end() == 3

    def test_a_second_signal_stops_at_once(self):
        daemon = self.start_aggregator("--drain-timeout", "10m")
        bench = self.start_long_job(daemon)
        self.send_signal(daemon)
        daemon.wait_for("draining: waiting")
        self.send_signal(daemon)
        assert daemon.end() == 4
        daemon.wait_for("stopping at once")
        assert bench.end() == 3

    def test_the_log_as_json(self):
        daemon = self.start_aggregator("--log-format", "json")
        bench = self.start_bench(daemon, "--workers", 2, *LONG, "--job", 'quo"te')
        daemon.wait_for('"running"')
        bench.stop()
        daemon.wait_for("job ended")
        self.send_signal(daemon)
        assert daemon.end() == 0
        lines = [json.loads(line) for line in daemon.lines["err"]]
        assert 'quo"te' in [line.get("job") for line in lines]
        for line in lines:
            assert {"time", "level", "message"} <= set(line)
