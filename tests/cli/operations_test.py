"""What monitoring sees: metrics, probes, live status, the log, the dashboard and the service file."""

import json
import pathlib
import re
import shutil
import signal
import subprocess

import pytest
from harness import LONG, PATIENCE_S
from metrics_harness import MetricsTest, get, value
from netsum_bench.processes import free_port

DEPLOY = pathlib.Path(__file__).resolve().parents[2] / "deploy"


class OperationsTest(MetricsTest):
    def test_metrics_of_the_daemon(self):
        daemon = self.start_with_metrics()
        self.start_long_job(daemon, "--job", "mine")
        self.until("a sum", lambda: value(self.scrape(daemon.metrics)[1], "netsum_aggregator_sums_total") > 0)
        types, first = self.scrape(daemon.metrics)
        assert types["netsum_aggregator_packets_received_total"] == "counter"
        assert types["netsum_aggregator_slots_in_use"] == "gauge"
        assert value(first, "netsum_aggregator_job_members", job_name="mine") == 2
        assert value(first, "netsum_aggregator_job_running", job_name="mine") == 1
        assert value(first, "netsum_aggregator_slots_in_use") == value(
            first, "netsum_aggregator_job_slots", job_name="mine"
        )
        assert {labels["rank"] for labels, _ in first["netsum_aggregator_job_waited_seconds_total"]} == {"0", "1"}
        for name in ("packets_received_total", "bytes_sent_total", "sums_total", "contributions_total"):
            self.until(
                f"more {name}",
                lambda metric="netsum_aggregator_" + name: (
                    value(self.scrape(daemon.metrics)[1], metric) > value(first, metric)
                ),
            )
        # Each reason for a refusal has its series from the start, so that its first increase is seen.
        reasons = {labels["reason"] for labels, _ in first["netsum_aggregator_packets_dropped_total"]}
        assert {"bad_check", "duplicate", "stale_round", "unknown_job"} <= reasons

    def test_who_is_late(self):
        daemon = self.start_with_metrics()
        ranks = self.start_running_ranks(daemon, 3)
        self.send_signal(ranks[1], signal.SIGSTOP)
        self.cleanup.callback(self.send_signal, ranks[1], signal.SIGKILL)

        def waits_for_rank_1():
            samples = self.scrape(daemon.metrics)[1]
            waits = {labels["rank"]: number for labels, number in samples["netsum_aggregator_job_waiting_seconds"]}
            return waits["1"] > 0.3 and waits["0"] == 0 and waits["2"] == 0

        self.until("a wait for rank 1 alone", waits_for_rank_1)
        assert value(self.scrape(daemon.metrics)[1], "netsum_aggregator_job_waited_seconds_total", rank="1") > 0.1
        status = self.run_command("status", "--aggregator", daemon.address, "--once", "--interval", "200ms", "--json")
        job = json.loads(status.text("out"))["aggregators"][0]["jobs"][0]
        assert job["waiting_for"] == [1]
        assert job["late"][0]["rank"] == 1
        view = self.run_command("status", "--aggregator", daemon.address, "--once", "--interval", "200ms")
        assert "waits for rank 1" in view.text("out")
        daemon.wait_for("job waits", "ranks=1")
        self.send_signal(ranks[1], signal.SIGCONT)
        daemon.wait_for("job goes on")

    def test_missing_ranks_while_joining(self):
        daemon = self.start_with_metrics()
        self.start_bench(daemon, "--rank", 1, "--world-size", 3, "--bytes", "4Ki", "--job", "half")
        daemon.wait_for("member joined", "job=half", "rank=1", "host=127.0.0.1")
        samples = self.scrape(daemon.metrics)[1]
        assert value(samples, "netsum_aggregator_job_running", job_name="half") == 0
        self.until(
            "a wait for rank 0",
            lambda: value(self.scrape(daemon.metrics)[1], "netsum_aggregator_job_waiting_seconds", rank="0") > 0,
        )
        assert value(samples, "netsum_aggregator_job_waiting_seconds", rank="1") == 0
        view = self.run_command("status", "--aggregator", daemon.address, "--once", "--interval", "50ms")
        assert "waits for ranks 0, 2" in view.text("out")
        assert "1=127.0.0.1" in view.text("out")

    def test_health_and_readiness(self):
        daemon = self.start_with_metrics("--drain-timeout", "60s")
        bench = self.start_long_job(daemon)
        assert get(daemon.metrics, "/healthz") == (200, "ok\n")
        assert get(daemon.metrics, "/readyz") == (200, "ready\n")
        assert get(daemon.metrics, "/secrets")[0] == 404
        self.send_signal(daemon)
        self.until("not ready", lambda: get(daemon.metrics, "/readyz") == (503, "draining\n"))
        assert get(daemon.metrics, "/healthz")[0] == 200, "draining is healthy"
        assert value(self.scrape(daemon.metrics)[1], "netsum_aggregator_draining") == 1
        bench.stop()
        assert daemon.end() == 0

    def test_metrics_address_in_use(self):
        daemon = self.start_with_metrics()
        second = self.run_command("aggregator", "--listen", "127.0.0.1:0", "--cores", 1, "--metrics", daemon.metrics)
        assert second.status == 3
        assert f"--metrics {daemon.metrics}" in second.text("err")
        assert "another process" in second.text("err")
        wrong = self.run_command("aggregator", "--metrics", "nonsense")
        assert wrong.status == 2

    def start_watched_ranks(self, daemon, count, *arguments):
        """A long job whose rank 0 serves metrics; returns its address once it has got a sum."""
        address = f"127.0.0.1:{free_port()}"
        rank_0 = self.start_bench(
            daemon,
            "--rank",
            0,
            "--world-size",
            count,
            *LONG,
            "--report-events",
            "--metrics",
            address,
            "--job",
            "mine",
            *arguments,
        )
        others = [
            self.start_bench(
                daemon,
                "--rank",
                rank,
                "--world-size",
                count,
                *LONG,
                "--report-events",
                "--job",
                "mine",
            )
            for rank in range(1, count)
        ]
        rank_0.wait_for('"event":"iteration"', name="out")
        return address, rank_0, others

    def test_metrics_of_a_worker(self):
        daemon = self.start_aggregator()
        address, _, _ = self.start_watched_ranks(daemon, 2)
        types, first = self.scrape(address)
        assert types["netsum_worker_round_trip_seconds"] == "histogram"
        assert value(first, "netsum_worker_ready", job_name="mine", rank="0") == 1
        assert get(address, "/readyz") == (200, "ready\n")
        for name in ("netsum_worker_round_trip_seconds", "netsum_worker_operation_seconds"):
            labels = {"outcome": "ok"} if "operation" in name else {}
            buckets = [number for known, number in first[name + "_bucket"] if labels.items() <= known.items()]
            assert buckets == sorted(buckets), "cumulative"
            assert buckets[-1] == value(first, name + "_count", **labels), "the last bucket has all"
            assert buckets[-1] > 0
            assert value(first, name + "_sum", **labels) > 0
        assert value(first, "netsum_worker_operation_seconds_count", outcome="failed") == 0
        assert value(first, "netsum_worker_operations_total", outcome="failed") == 0
        assert value(first, "netsum_worker_operations_total", outcome="ok") > 0
        assert value(first, "netsum_worker_operations_submitted_total") > 0
        for name in ("gradient_bytes_total", "bytes_sent_total", "packets_received_total", "round_trip_seconds_count"):
            self.until(
                f"more {name}",
                lambda metric="netsum_worker_" + name: value(self.scrape(address)[1], metric) > value(first, metric),
            )

    def test_a_worker_says_whom_it_waits_for(self):
        daemon = self.start_aggregator()
        address = f"127.0.0.1:{free_port()}"
        early = self.start_bench(
            daemon,
            "--rank",
            0,
            "--world-size",
            2,
            *LONG,
            "--report-events",
            "--metrics",
            address,
            "--job",
            "mine",
        )
        daemon.wait_for("member joined", "rank=0")
        self.until(
            "the missing rank", lambda: get(address, "/readyz") == (503, "rank 0 of mine: waiting for rank 1 to join\n")
        )
        samples = self.scrape(address)[1]
        assert value(samples, "netsum_worker_waiting_for", peer="1") == 1
        assert value(samples, "netsum_worker_ready") == 0
        late = self.start_bench(
            daemon,
            "--rank",
            1,
            "--world-size",
            2,
            *LONG,
            "--report-events",
            "--job",
            "mine",
        )
        early.wait_for('"event":"iteration"', name="out")
        assert get(address, "/readyz")[0] == 200
        self.send_signal(late, signal.SIGSTOP)
        self.cleanup.callback(self.send_signal, late, signal.SIGKILL)
        self.until(
            "a wait for rank 1", lambda: value(self.scrape(address)[1], "netsum_worker_waiting_for", peer="1") == 1
        )
        assert value(self.scrape(address)[1], "netsum_worker_waiting_for", peer="0") == 0

    def test_the_dashboard_names_only_metrics_that_exist(self):
        daemon = self.start_with_metrics("--link-rate", "1gbit")
        address, _, _ = self.start_watched_ranks(daemon, 2)
        known, labels = {}, {}
        for types, samples in (self.scrape(daemon.metrics), self.scrape(address)):
            known.update(types)
            for name, found in samples.items():
                labels[name] = {label for pairs, _ in found for label in pairs} | {"instance"}
        dashboard = json.loads((DEPLOY / "grafana-dashboard.json").read_text(encoding="utf-8"))
        queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
        queries += [variable["query"] for variable in dashboard["templating"]["list"]]
        used = set()
        for query in queries:
            for name, chosen in re.findall(r"(netsum_\w+)(?:\{([^}]*)\})?", query):
                assert name in labels, f"no such metric: {query}"
                used.add(name)
                for label in re.findall(r"(\w+)\s*=", chosen or ""):
                    assert label in labels[name], f"no such label: {query}"
                if name.endswith("_total"):
                    assert re.search(rf"rate\({name}", query), "a counter is only good for its rate"
        assert len(used) > 15
        documented = (DEPLOY.parent / "docs" / "operations.md").read_text(encoding="utf-8")
        for family in known:
            assert f"`{family}`" in documented, f"docs/operations.md does not explain {family}"

    def test_trace_of_a_bench(self):
        trace = self.write_file("")
        bench = self.run_command(
            "bench",
            "allreduce",
            "--workers",
            2,
            "--with-aggregator",
            "--bytes",
            "1Mi",
            "--iterations",
            3,
            "--warmup",
            1,
            "--trace",
            trace,
            "--json",
        )
        assert bench.status == 0, bench.text("err")
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
        assert {event["pid"] for event in events} == {0, 1}, "both ranks"
        names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
        assert names[1].startswith("rank 1 of ")
        for rank in range(2):
            open_spans, sums = {}, 0
            for event in events:
                if event["pid"] != rank or event["ph"] not in "be":
                    continue
                key = (event["id2"]["local"], event["name"])
                if event["ph"] == "b":
                    assert key not in open_spans
                    open_spans[key] = event["ts"]
                    sums += event["name"].endswith("float32[262144]")
                else:
                    assert open_spans.pop(key) <= event["ts"]
            assert open_spans == {}, "each span ends"
            assert sums == 1 + 3
        assert [path.name for path in trace.parent.iterdir()] == [trace.name], "no parts are left"

    def test_a_trace_that_cannot_be_written(self):
        bench = self.run_command("bench", "allreduce", "--workers", 2, "--bytes", "4Ki", "--trace", "no/such/folder/t")
        assert bench.status == 3
        assert "no/such/folder/t" in bench.text("err")

    def test_status_of_an_aggregator(self):
        daemon = self.start_aggregator()
        idle = self.run_command("status", "--aggregator", daemon.address, "--once", "--interval", "50ms")
        assert idle.status == 0, idle.text("err")
        assert "no jobs" in idle.text("out")
        self.start_long_job(daemon, "--job", "mine")

        def rates():
            status = self.run_command(
                "status", "--aggregator", daemon.address, "--once", "--interval", "300ms", "--json"
            )
            report = json.loads(status.text("out"))["aggregators"][0]
            job = report["jobs"][0]
            return report if job["sums_per_s"] > 0 and report["packets_received_per_s"] > 0 else None

        report = self.until("a job that gets on", rates)
        assert report["jobs"][0]["name"] == "mine"
        assert [member["rank"] for member in report["jobs"][0]["members"]] == [0, 1]
        assert report["received_gbits_per_s"] > 0
        assert report["slots_in_use"] > 0

    def test_status_live(self):
        daemon = self.start_aggregator()
        live = self.start("status", "--aggregator", daemon.address, "--interval", "100ms", "--json")
        self.until("three reports", lambda: len(live.lines["out"]) >= 3)
        for line in live.lines["out"][:3]:
            assert json.loads(line)["aggregators"][0]["ok"]
        # An aggregator that goes away ends no live view: it may come back.
        daemon.stop()
        self.until("a failure", lambda: not json.loads(live.lines["out"][-1])["aggregators"][0]["ok"])
        self.send_signal(live, signal.SIGINT)
        assert live.end() == 0

    def test_status_without_an_answer(self):
        nobody = self.run_command(
            "status", "--aggregator", "127.0.0.1:1", "--once", "--interval", "50ms", "--timeout", "1s"
        )
        assert nobody.status == 3
        assert "127.0.0.1:1" in nobody.text("out")
        nowhere = self.run_command("status", "--once")
        assert nowhere.status == 2
        assert "NETSUM_AGGREGATOR" in nowhere.text("err")

    def test_events_in_the_log(self):
        token = self.write_file("ours\n")
        daemon = self.start_aggregator("--log-format", "json")
        first = self.start_bench(
            daemon, "--rank", 0, "--world-size", 2, "--bytes", "4Ki", "--job", "mine", "--token-file", token
        )
        daemon.wait_for("member joined")
        self.start_bench(
            daemon, "--rank", 0, "--world-size", 2, "--bytes", "4Ki", "--job", "mine", "--token-file", token
        ).end()
        self.start_bench(
            daemon, "--rank", 1, "--world-size", 2, "--bytes", "4Ki", "--job", "mine", "--token-file", token
        ).end()
        first.end()
        daemon.wait_for("job ended")
        self.send_signal(daemon)
        daemon.end()
        events = [json.loads(line) for line in daemon.lines["err"]]
        story = [(event["message"], event.get("rank")) for event in events if event.get("job") == "mine"]
        assert story[:5] == [
            ("job began", None),
            ("member joined", 0),
            ("join refused", 0),
            ("member joined", 1),
            ("job running", None),
        ]
        assert sorted(story[5:], key=str) == [("job ended", None), ("member left", 0), ("member left", 1)]
        refusal = next(event for event in events if event["message"] == "join refused")
        assert "already taken" in refusal["reason"]
        assert refusal["level"] == "warning"
        assert "ours" not in daemon.text("err"), "tokens are secret"

    def test_the_service_file_is_in_order(self):
        if shutil.which("systemd-analyze") is None:
            pytest.skip("systemd-analyze is not installed")
        # With a command that exists: systemd searches /usr/local/bin and /usr/bin for netsum.
        text = (DEPLOY / "netsum-aggregator.service").read_text(encoding="utf-8")
        folder = self.write_file("").parent
        service = folder / "netsum-aggregator.service"
        command = f"ExecStart={shutil.which('true')} "
        service.write_text(text.replace("ExecStart=netsum ", command), encoding="utf-8")
        verify = subprocess.run(
            ["systemd-analyze", "verify", str(service)], capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert (verify.returncode, verify.stderr) == (0, "")
        security = subprocess.run(
            ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(service)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert security.returncode == 0, security.stdout
        # The command line in it is one that the command takes, up to an address of another host.
        command = re.search(r"^ExecStart=\S+ (.*)$", text, re.MULTILINE).group(1)
        flags = re.search(r'^Environment="NETSUM_FLAGS=(.*)"$', text, re.MULTILINE).group(1)
        arguments = command.replace("$NETSUM_FLAGS", flags.replace("0.0.0.0:5151", "192.0.2.1:5151")).split()
        started = self.run_command(*arguments)
        assert "192.0.2.1" in started.text("err")
        assert "no such address" in started.text("err")
