"""The rules of deploy/prometheus-rules.yaml: of metrics that exist, and raised by an aggregator whose sums are wrong."""

import json
import re

import yaml
from harness import LONG
from metrics_harness import LABEL, NAME, MetricsTest, value
from netsum_bench.processes import free_port
from operations_test import DEPLOY

RULES = yaml.safe_load((DEPLOY / "prometheus-rules.yaml").read_text(encoding="utf-8"))
ALERTS = {rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"]}
# All forms of conditions that the rules have.
SELECTOR = rf"({NAME})(?:\{{([^}}]*)\}})?"
INCREASE = re.compile(rf"increase\({SELECTOR}\[1h\]\) > (\d+)")
LEVEL = re.compile(rf"{SELECTOR} > (\d+)")


def selected(samples, name, labels):
    """{labels: value} of the series that a selector finds."""
    wanted = dict(LABEL.findall(labels or ""))
    return {
        tuple(sorted(known.items())): number
        for known, number in samples.get(name, [])
        if wanted.items() <= known.items()
    }


def raised(samples_before, samples_now):
    """The alerts that Prometheus raises after these two scrapes."""
    names = set()
    for alert, rule in ALERTS.items():
        if match := INCREASE.fullmatch(rule["expr"]):
            name, labels, limit = match.groups()
            before = selected(samples_before, name, labels)
            # A series that was not there before has no increase.
            by = [number - before.get(key, number) for key, number in selected(samples_now, name, labels).items()]
        else:
            name, labels, limit = LEVEL.fullmatch(rule["expr"]).groups()
            by = list(selected(samples_now, name, labels).values())
        if any(number > int(limit) for number in by):
            names.add(alert)
    return names


class AlarmsTest(MetricsTest):
    def start_watched_job(self, daemon, *arguments):
        """Two ranks that sum for long; returns where rank 0 has its metrics, once it has a sum, and the commands."""
        address = f"127.0.0.1:{free_port()}"
        long = ("--world-size", 2, *LONG, "--report-events", "--job", "mine")
        ranks = [
            self.start_bench(daemon, "--rank", rank, *long, *(("--metrics", address) if rank == 0 else ()), *arguments)
            for rank in range(2)
        ]
        ranks[0].wait_for('"event":"iteration"', name="out")
        return address, ranks

    def test_the_rules_name_only_metrics_that_exist(self):
        daemon = self.start_with_metrics()
        address, _ = self.start_watched_job(daemon)
        types, samples = self.scrape(daemon.metrics)
        of_worker = self.scrape(address)
        types.update(of_worker[0])
        samples.update(of_worker[1])
        for alert, rule in ALERTS.items():
            increase = INCREASE.fullmatch(rule["expr"])
            name, labels, _ = (increase or LEVEL.fullmatch(rule["expr"])).groups()
            assert selected(samples, name, labels), f"{alert}: no such series: {rule['expr']}"
            assert (types[name] == "counter") == bool(increase), f"{alert}: a counter is only good for its increase"
            kept = {label for known, _ in samples[name] for label in known} | {"instance"}
            texts = " ".join(rule["annotations"].values())
            assert set(re.findall(r"\$labels\.(\w+)", texts)) <= kept, f"{alert}: no such label"
            assert rule["labels"]["severity"] in ("critical", "warning")
        documented = (DEPLOY.parent / "docs" / "operations.md").read_text(encoding="utf-8")
        for alert in ALERTS:
            assert f"`{alert}`" in documented, f"docs/operations.md does not explain {alert}"

    def test_a_rehearsal(self):
        daemon = self.start_with_metrics("--inject-flips", "2%", "--log-format", "json")
        daemon.wait_for("FAULTS ARE INJECTED (--inject-flips)", "2 %", "for rehearsals only")
        _, before = self.scrape(daemon.metrics)
        bench = self.start_bench(
            daemon, "--workers", 2, "--bytes", "256Ki", "--iterations", 1000, "--verify", "both", "--job", "mine"
        )
        assert bench.end() != 0
        assert "wrong_sum" in bench.text("err")
        failure = json.loads(daemon.wait_for("job failed", '"job":"mine"'))
        assert "wrong_sum" in failure["reason"]
        assert re.search(r"a sum by the aggregator at 127\.0\.0\.1:\d+ \(stripe 0, chunk \d+\)", failure["reason"])
        _, now = self.scrape(daemon.metrics)
        assert raised(before, now) == {"NetsumJobFailedByWrongSum"}
        assert value(now, "netsum_aggregator_jobs_failed_total", code="wrong_sum") == 1
        status = self.run_command("status", "--aggregator", daemon.address, "--once", "--interval", "50ms")
        assert "jobs failed since it started: 1 wrong_sum" in status.text("out")
        self.send_signal(daemon)
        assert daemon.end() == 0
        counters = json.loads(daemon.wait_for('"message":"counters"'))
        assert counters["injected_flips"] > 0

    def test_a_rehearsal_with_failover(self):
        # So rarely that the ranks have been scraped before.
        daemon = self.start_with_metrics("--inject-flips", "0.001%")
        other = self.start_aggregator()
        failover = ("--on-failure", "failover", "--fallback", other.address)
        address, ranks = self.start_watched_job(daemon, "--verify", "both", *failover)
        _, before = self.scrape(address)
        assert value(before, "netsum_worker_info", verify="both") == 1
        assert value(before, "netsum_worker_sums_refused_total", aggregator=daemon.address) == 0
        daemon.wait_for("job failed", "wrong_sum")

        of_other = f'aggregator="{other.address}"'

        def after_the_failover():
            try:
                _, samples = self.scrape(address)
            except OSError:  # between two sessions, nothing is served
                return None
            return samples if selected(samples, "netsum_worker_sums_refused_total", of_other) else None

        now = self.until("a session at the other aggregator", after_the_failover)
        assert raised(before, now) == {"NetsumSumsRefused"}
        assert value(now, "netsum_worker_sums_refused_total", aggregator=daemon.address) > 0
        assert value(now, "netsum_worker_sums_refused_total", aggregator=other.address) == 0
        for rank in ranks:
            assert rank.process.poll() is None, rank.text("err")

    def test_a_lossy_link_is_named(self):
        daemon = self.start_with_metrics()
        long = ("--world-size", 3, "--bytes", "4Mi", "--iterations", 1_000_000, "--report-events", "--job", "mine")
        ranks = [
            self.start_bench(daemon, "--rank", rank, *long, *(("--inject-loss", "2%") if rank == 1 else ()))
            for rank in range(3)
        ]
        ranks[0].wait_for('"event":"iteration"', name="out")

        def lossy():
            """(rank, direction) of the links that are named."""
            series = self.scrape(daemon.metrics)[1].get("netsum_aggregator_job_lossy_link", [])
            return {(known["rank"], known["direction"]) for known, number in series if number == 1}

        self.until("a lossy link", lossy)
        assert lossy() == {("1", "from_aggregator")}
        assert "NetsumLossyLink" in raised({}, self.scrape(daemon.metrics)[1])
        status = self.run_command("status", "--aggregator", daemon.address, "--once", "--interval", "50ms")
        assert "link of rank 1, from the aggregator: loses " in status.text("out")
        doctor = self.run_command("doctor", "--faults", "--aggregator", daemon.address)
        assert doctor.status == 1
        assert "RcvbufErrors" in doctor.text("out")
        assert "job mine: link of rank 1, from the aggregator" in doctor.text("out")

    def test_faults_of_nothing(self):
        daemon = self.start_aggregator()
        doctor = self.run_command("doctor", "--faults", "--aggregator", daemon.address)
        assert doctor.status == 0, doctor.text("out")
        assert "no jobs" in doctor.text("out")
        assert self.run_command("doctor", "--faults").status == 2
        dead = self.run_command("doctor", "--faults", "--aggregator", f"127.0.0.1:{free_port()}", "--timeout", "1s")
        assert dead.status == 1

    def test_without_wrong_sums_there_is_no_alarm(self):
        daemon = self.start_with_metrics()
        _, before = self.scrape(daemon.metrics)
        self.assert_serves(daemon, "--verify", "both")
        _, now = self.scrape(daemon.metrics)
        assert raised(before, now) == set()

    def test_bits_that_cannot_be_flipped(self):
        refused = self.run_command("aggregator", "--inject-flips", "2")
        assert refused.status == 2
        refused.wait_for("--inject-flips", "not a probability")
        other = self.run_command("aggregator", "--dataplane", "xdp", "--interfaces", "lo", "--inject-flips", "1%")
        assert other.status == 3
        other.wait_for("leave out --inject-flips")
