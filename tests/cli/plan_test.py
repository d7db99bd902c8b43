"""netsum plan: placements compared, and topology files that are wrong. The planner itself: src/plan."""

import html.parser
import json
import pathlib
import re

import pytest
from harness import LONG, CommandTest

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples/topology.yaml"
WORKERS = "hosts:\n  - {name: worker, count: 8, link: 100Mbit/s}\n"

BAD_FILES = [
    ("", 1, ["hosts:"]),
    ("hosts: [", 1, ["not YAML"]),
    ("places: []\n", 1, ["'hosts:' is missing"]),
    ("hosts:\n  - name: a\n", 2, ["'a'", "no 'link:'", "100Mbit/s"]),
    ("hosts:\n  - link: 1G\n", 2, ["'name:' is missing"]),
    ("hosts:\n  - {name: a, link: 1G, speed: 3}\n", 2, ["unknown key 'speed'", "count"]),
    ("hostz: []\n", 1, ["unknown key 'hostz'", "hosts"]),
    ("hosts:\n  - name: a\n    link: 1G\n    link: 2G\n", 4, ["'link' is given twice", "line 3"]),
    ("hosts:\n  - {name: a, link: 1G}\n  - {name: a, link: 1G}\n", 3, ["'a' is given twice", "line 2", "rename"]),
    ("hosts:\n  - {name: a, link: fast}\n", 2, ["'fast' is no rate", "100Mbit/s"]),
    ("hosts:\n  - {name: a, link: 10GB/s}\n", 2, ["'10GB/s' is no rate", "bits per second"]),
    ("hosts:\n  - {name: a, link: -1G}\n", 2, ["'-1G' is no rate", "from 1 kbit/s"]),
    ("hosts:\n  - {name: a, link: 0G}\n", 2, ["'0G'"]),
    ("hosts:\n  - {name: a, link: nanG}\n", 2, ["'nanG'"]),
    ("hosts:\n  - {name: a, link: 900T}\n", 2, ["'900T'", "100 Tbit/s"]),
    ("hosts:\n  - {name: a, link: {in: 1G}}\n", 2, ["both 'in' and 'out'"]),
    ("hosts:\n  - {name: a, link: [1G]}\n", 2, ["'link' takes one value"]),
    ("hosts:\n  - {name: a, link: 1G, rack: r}\n", 2, ["no rack 'r'", "racks:"]),
    ("hosts:\n  - {name: a, link: 1G, shard: maybe}\n", 2, ["'shard: maybe'", "true or false"]),
    ("hosts:\n  - {name: a, link: 1G, count: 2.5}\n", 2, ["'count: 2.5'", "whole number"]),
    ("hosts:\n  - {name: a, link: 1G, count: 513}\n", 2, ["1 to 512"]),
    ("hosts:\n  - {name: '<b>', link: 1G}\n", 2, ["'<b>' is no name"]),
    ("hosts: {name: a}\n", 1, ["takes a list"]),
    ("hosts:\n  - {name: a, link: 1G, shard: false}\n", None, ["no place can sum", "allow shards"]),
    ("hosts: []\n", None, ["no rank"]),
    (WORKERS + "places:\n  - name: s\n", 4, ["'s'", "no rank can reach it", "kind: switch"]),
    (WORKERS + "places:\n  - {name: s, kind: oven}\n", 4, ["'kind: oven'", "spare or switch"]),
    (WORKERS + "places:\n  - {name: s, kind: switch, link: 1G}\n", 4, ["switch has no 'link:'"]),
    (WORKERS + "places:\n  - {name: s, link: 1G, links: [1G]}\n", 4, ["not both"]),
    (WORKERS + "places:\n  - {name: s, links: []}\n", 4, ["'links:' is empty"]),
    (WORKERS + "places:\n  - {name: s, link: 1G, slots: {count: 5}}\n", 4, ["'slots:' needs 'bytes:'"]),
    (WORKERS + "places:\n  - {name: s, link: 1G, adds: 0}\n", 4, ["'adds: 0'", "above 0"]),
    (
        WORKERS + "places:\n  - {name: s, link: 1G, adds: 1e-300}\n",
        None,
        ["'s'", "additions per second is 1e-300", "0 for no limit"],
    ),
    (WORKERS + "racks:\n  - {name: r}\n", 4, ["'r'", "no 'uplink:'"]),
    (
        WORKERS + "racks:\n  - {name: a, uplink: 1G, inside: b}\n  - {name: b, uplink: 1G, inside: a}\n",
        4,
        ["'a' is inside itself", "leave out"],
    ),
    ("a: &a\n  - *b\n", 2, ["not YAML"]),
    ("- " * 3000, 1, []),
]


TWO_JOBS = """
jobs:
  - {name: bert, period: 100ms, busy: 40ms, links: [uplink]}
  - {name: gpt, period: 0.1s, busy: 40000us, links: [uplink]}
"""
BAD_JOBS = [
    ("jobs: [", 1, ["not YAML"]),
    ("links: []\n", 1, ["'jobs:' is missing"]),
    ("jobs:\n  - {period: 1ms, busy: 1ms, links: [l]}\n", 2, ["'name:' is missing"]),
    ("jobs:\n  - {name: a, busy: 1ms, links: [l]}\n", 2, ["'a' has no 'period:'", "40ms"]),
    ("jobs:\n  - {name: a, period: 1ms, links: [l]}\n", 2, ["'a' has no 'busy:'"]),
    ("jobs:\n  - {name: a, period: 1ms, busy: 1ms}\n", 2, ["'a' has no 'links:'"]),
    ("jobs:\n  - {name: a, period: 0ms, busy: 1ms, links: [l]}\n", 2, ["'period: 0ms' is no time"]),
    ("jobs:\n  - {name: a, period: 1.5us, busy: 1us, links: [l]}\n", 2, ["whole number of microseconds"]),
    ("jobs:\n  - {name: a, period: 10, busy: 1us, links: [l]}\n", 2, ["'period: 10' is no time", "40ms"]),
    (TWO_JOBS + "  - {name: c, period: 1ms, busy: 2ms, links: [uplink]}\n", 5, ["'c' is busy", "at most its period"]),
    (TWO_JOBS + "  - {name: bert, period: 1ms, busy: 1ms, links: [l]}\n", 5, ["'bert' is given twice", "line 3"]),
    (TWO_JOBS + "  - {name: c, period: 1ms, busy: 1ms, links: [l, l]}\n", 5, ["names link 'l' twice"]),
    (TWO_JOBS + "  - {name: c, period: 1ms, busy: 1ms, links: [l], rate: 1G}\n", 5, ["link 'l' none", "'links:'"]),
    (TWO_JOBS + "  - {name: c, period: 1ms, busy: 1ms, links: [l], work: 3}\n", 5, ["for some jobs only"]),
    (TWO_JOBS + "  - {name: c, period: 1ms, busy: 1ms, links: [l], colour: 3}\n", 5, ["unknown key 'colour'"]),
    (
        "links:\n  - {name: l, rate: 1G}\njobs:\n  - {name: a, period: 1ms, busy: 1ms, links: [l], rate: 2G}\n",
        4,
        ["'a' sends faster than one of its links"],
    ),
    ("links:\n  - {name: l}\njobs: []\n", 2, ["'l' has no 'rate:'"]),
    (
        TWO_JOBS.replace("100ms", "999999937us") + "  - {name: c, period: 999999929us, busy: 1us, links: [uplink]}\n",
        None,
        ["'bert', 'gpt' and 1 more have no common multiple", "round them"],
    ),
    ("# " + "x" * (1 << 20), None, ["larger than 1 MiB"]),
]


class PlanJobsTest(CommandTest):
    def plan(self, folder, text, *flags):
        file = folder / "jobs.yaml"
        file.write_text(text)
        return self.run_command("plan", "--jobs", str(file), *flags)

    def report(self, folder, text):
        command = self.plan(folder, text, "--json")
        assert command.status == 0, command.text("err")
        return json.loads(command.text("out"))

    def test_offsets_for_two_jobs(self, tmp_path):
        report = self.report(tmp_path, TWO_JOBS)
        assert report["offsets_pay"]
        assert report["links"] == [
            {
                "name": "uplink",
                "jobs": 2,
                "before": 0.6,
                "before_exact": "3/5",
                "after": 1,
                "after_exact": "1",
                "optimal": True,
            }
        ]
        assert [job["phase"] for job in report["jobs"]] == ["100ms,0ms", "100ms,50ms"]
        assert [job["priority"] for job in report["jobs"]] == [1, 2]
        assert all(job["intensity"] == 1.5 for job in report["jobs"])
        text = self.plan(tmp_path, TWO_JOBS).text("out")
        assert re.search(r"^uplink +2 +0\.600 +1\.000 +no offsets give more$", text, re.MULTILINE)
        assert re.search(r"^gpt +100ms +40ms +2 +1\.5 +NETSUM_PHASE=100ms,50ms$", text, re.MULTILINE)

    def test_offsets_that_do_not_pay(self, tmp_path):
        jobs = "jobs:\n  - {name: a, period: 40ms, busy: 20ms, links: [l]}\n"
        jobs += "  - {name: b, period: 60ms, busy: 30ms, links: [l]}\n"
        report = self.report(tmp_path, jobs)
        assert not report["offsets_pay"]
        assert report["links"][0]["before"] == report["links"][0]["after"] == 0.75
        text = self.plan(tmp_path, jobs).text("out")
        assert "a and b meet on l with all offsets" in text
        assert "Offsets do not pay" in text
        assert "NETSUM_PHASE" not in text

    def test_rates_and_work(self, tmp_path):
        jobs = TWO_JOBS.replace("links: [uplink]", "links: [uplink], rate: 10G, work: 7", 1)
        jobs = jobs.replace("links: [uplink]}", "links: [uplink], rate: 15G, work: 9}")
        report = self.report(tmp_path, jobs + "links:\n  - {name: uplink, rate: 20G}\n")
        assert report["links"][0]["before_exact"] == "9/10"  # 5 of 20 Gbit/s too much, for 40 %
        assert report["links"][0]["after_exact"] == "1"
        assert [job["name"] for job in report["jobs"]] == ["gpt", "bert"]

    @pytest.mark.parametrize(("text", "line", "words"), BAD_JOBS)
    def test_a_wrong_file(self, tmp_path, text, line, words):
        self.assert_refuses_file(self.plan(tmp_path, text), "jobs.yaml", line, words)

    def test_other_flags(self, tmp_path):
        command = self.plan(tmp_path, TWO_JOBS, "--bound")
        assert command.status == 2
        assert "no other flag" in command.text("err")
        assert self.run_command("plan", "--jobs", str(tmp_path / "none.yaml")).status == 2


class PlanTest(CommandTest):
    def plan(self, folder, text, *flags):
        file = folder / "topology.yaml"
        file.write_text(text)
        return self.run_command("plan", str(file), *flags)

    def report(self, folder, text):
        command = self.plan(folder, text, "--json")
        assert command.status == 0, command.text("err")
        report = json.loads(command.text("out"))
        return report, {case["name"]: case for case in report["cases"]}

    def test_the_example(self):
        command = self.run_command("plan", str(EXAMPLE))
        assert command.status == 0, command.text("err")
        out = command.text("out")
        assert re.search(r"^ring +140 +1\.00", out, re.MULTILINE)
        assert re.search(r"^embedded shards +140 +1\.00", out, re.MULTILINE)
        assert re.search(r"^spare alone +640 +0\.22 +spare, (in|out)", out, re.MULTILINE)
        assert re.search(r"^big alone +160 +0\.88", out, re.MULTILINE)
        assert re.search(r"^best mix +\d+\.?\d* +1\.7", out, re.MULTILINE)
        assert re.search(r"big port 3 core 3 +\d+ +\d", out)
        assert "bytes per link" in out

    # The ratios of the formula: 2 (N - 1) / N over 2 (N - 1) / ((N - 2) k / N + N).
    def test_spare_hosts_make_it_faster_each(self, tmp_path):
        report, cases = self.report(tmp_path, WORKERS + "places:\n  - {name: spare, count: 8, link: 100Mbit/s}\n")
        assert report["ring_s_per_gigabyte"] == pytest.approx(140)
        assert report["warning"] == ""
        for count, ratio in [(1, 1.09), (2, 1.19), (4, 1.38), (8, 1.75)]:
            case = cases[f"{count} spare host{'s' if count > 1 else ''} and shards"]
            assert case["speed_up"] == pytest.approx(ratio, abs=0.012), count
        assert cases["spare0 alone"]["speed_up"] == pytest.approx(1.75 / 8)
        assert "spare1 alone" not in cases, "it is like the first"
        assert cases["8 spare hosts alone"]["speed_up"] == pytest.approx(1.75)

    def test_bytes_per_link(self, tmp_path):
        _, cases = self.report(tmp_path, WORKERS + "places:\n  - {name: spare, link: 100Mbit/s, multicast: true}\n")
        links = {link["name"]: link for link in cases["spare alone"]["links"]}
        assert links["spare, in"]["bytes_per_gigabyte"] == pytest.approx(8e9)
        assert links["spare, out"]["bytes_per_gigabyte"] == pytest.approx(1e9)
        assert links["worker3, in"]["bytes_per_gigabyte"] == pytest.approx(1e9)
        assert cases["spare alone"]["bottleneck"] == "spare, in"
        shares = cases["embedded shards"]["weights"]
        assert [share["weight"] for share in shares] == [1] * 8

    def test_a_slow_uplink_is_a_warning(self, tmp_path):
        text = "racks:\n  - {name: a, uplink: 50Mbit/s}\n  - {name: b, uplink: 50Mbit/s}\nhosts:\n"
        text += "".join(f"  - {{name: {rack}, count: 4, link: 100Mbit/s, rack: {rack[0]}}}\n" for rack in ("a-", "b-"))
        report, _ = self.report(tmp_path, text)
        assert "ring would be faster" in report["warning"]
        assert "uplink of a" in report["warning"]
        assert "--parent" in report["warning"]
        assert report["warning"] in self.plan(tmp_path, text).text("out")

    def test_the_picture_needs_nothing_else(self, tmp_path):
        target = tmp_path / "plan.html"
        command = self.run_command("plan", str(EXAMPLE), "--html", str(target))
        assert command.status == 0, command.text("err")
        text = target.read_text()
        opened = []

        class Tags(html.parser.HTMLParser):
            def handle_starttag(self, tag, attributes):
                assert not {"src", "href"} & dict(attributes).keys()
                opened.append(tag)

        Tags().feed(text)
        assert opened.count("svg") == 2
        assert "script" not in opened
        for words in ("best mix", "embedded shards", "worker7, in", "big port 2, out"):
            assert words in text

    def test_a_picture_that_cannot_be_written(self, tmp_path):
        command = self.run_command("plan", str(EXAMPLE), "--html", str(tmp_path / "none" / "plan.html"))
        assert command.status == 3
        assert "cannot be written" in command.text("err")

    @pytest.mark.parametrize(("text", "line", "words"), BAD_FILES)
    def test_a_wrong_file(self, tmp_path, text, line, words):
        self.assert_refuses_file(self.plan(tmp_path, text), "topology.yaml", line, words)

    def test_no_file(self, tmp_path):
        command = self.run_command("plan", str(tmp_path / "none.yaml"))
        assert command.status == 2
        assert "cannot be opened" in command.text("err")
        assert self.run_command("plan").status == 2
        assert self.run_command("plan", str(tmp_path)).status == 2

    def test_help(self):
        command = self.run_command("plan", "--help")
        assert command.status == 0
        assert "Examples:" in command.text("out")
        assert "netsum plan" in command.text("out")


class PlanOfAJobTest(CommandTest):
    """The rates are those that the job was planned with."""

    def start_spare_host(self, *flags):
        daemon = self.start("aggregator", "--listen", "127.0.0.1:0", "--cores", 1, "--link-rate", "200mbit", *flags)
        daemon.address = daemon.wait_for("NETSUM_AGGREGATOR=", name="out").split("=")[1]
        daemon.wait_for("ready:", name="out")
        return daemon

    def plan(self, daemon, *flags):
        return self.run_command("plan", "--aggregator", daemon.address, *flags)

    def refused(self, daemon, *flags, status=2):
        command = self.plan(daemon, *flags)
        assert command.status == status, command.text("out") + command.text("err")
        return command.text("err")

    def test_a_running_job(self):
        first, second = self.start_spare_host(), self.start_spare_host()
        assert "no job is running" in self.refused(first)
        both = f"{first.address},{second.address}"
        flags = ("--workers", 4, *LONG, "--link-rate", "100mbit")
        self.start("bench", "allreduce", "--aggregator", both, "--job", "train", *flags)
        first.wait_for("job", "state=running")
        second.wait_for("job", "state=running")
        report = json.loads(self.plan(first, "--json").text("out"))
        # 2 (N - 1) M / ((N - 2) k Bc / N + N B), for two spare hosts of 200 Mbit/s, and 8 Gbit.
        assert report["ring_s_per_gigabyte"] == pytest.approx(120)
        assert report["cases"][-1]["s_per_gigabyte"] == pytest.approx(6 * 8000 / (2 * 2 * 200 / 4 + 400), rel=0.01)
        assert f"aggregator {first.address} alone" in {case["name"] for case in report["cases"]}
        assert len(report["cases"][-1]["weights"]) == 2 + 4
        status = ("status", "--aggregator", first.address, "--once", "--interval", "50ms", "--json")
        job = json.loads(self.run_command(*status).text("out"))["aggregators"][0]["jobs"][0]
        assert report["job"] == {"name": "train", "plan": job["plan"]}
        text = self.plan(first, "--job", "train").text("out")
        assert text.startswith("job 'train' runs with planned shares: ") and "best mix" in text
        assert "has no plan here" in self.refused(second, status=3)

        other = ("bench", "allreduce", "--aggregator", first.address, "--workers", 2, *LONG)
        self.start(*other, "--job", "other")
        first.wait_for("job=other", "state=running")
        assert "several jobs are running (" in self.refused(first)
        assert "no job 'third' is running" in self.refused(first, "--job", "third")
        assert json.loads(self.plan(first, "--job", "other", "--json").text("out"))["job"]["name"] == "other"

    def test_who_does_not_answer(self):
        daemon = self.start_spare_host()
        daemon.stop()
        assert daemon.address in self.refused(daemon, "--timeout", "1s", status=3)

    def test_flags_that_do_not_fit(self):
        for flags in (["--aggregator", "127.0.0.1:1", "--rack", "a"], ["--aggregator", "127.0.0.1:1", str(EXAMPLE)]):
            command = self.run_command("plan", *flags)
            assert command.status == 2
            command.wait_for("give a topology file, --rack NAME, --aggregator")
        assert self.run_command("plan", str(EXAMPLE), "--job", "train").status == 2

    def test_below_a_parent(self):
        parent = self.start_spare_host()
        child = self.start_spare_host("--parent", parent.address)
        assert f"ask the one at {parent.address}" in self.refused(child, status=3)
        flags = ("--workers", 4, *LONG, "--link-rate", "100mbit")
        self.start("bench", "allreduce", "--aggregator", child.address, *flags)
        parent.wait_for("job", "state=running")
        report = json.loads(self.plan(parent, "--json").text("out"))
        # The child's link carries the contributions of four ranks, and its sum: five times 8 Gbit at 200 Mbit/s.
        best = report["cases"][-1]
        assert best["s_per_gigabyte"] == pytest.approx(5 * 8000 / 200)
        assert best["bottleneck"].startswith(f"aggregator {child.address}, ")
        assert len(best["weights"]) == 1
        assert "(and 1 below it) 100 %" in report["job"]["plan"]
        assert "put its aggregator into a switch" in report["warning"]
