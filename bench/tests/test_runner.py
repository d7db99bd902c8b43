"""The runner with labs that only pretend, the command line of every case, and what `make results` makes of records."""

import contextlib
import os
import sys

import pytest
from netsum_bench import __main__ as command
from netsum_bench import machine, options, records, report, results, runner
from netsum_bench.cases import CASES, RACK
from netsum_bench.processes import Failed
from netsum_bench.runner import Case, Run


class Lab:
    """Notes what it is asked for. `answers`: by system, the result or what is raised."""

    def __init__(self, **answers):
        self.answers, self.opened, self.asked = answers, [], []

    @contextlib.contextmanager
    def __call__(self, run, place, turns):
        self.opened.append(place)
        if place.get("rate") == "broken":
            raise Failed("no such rack")

        def measure(turn):
            self.asked.append(turn)
            answer = self.answers.get(turn.get("system"), {"times_ms": [1.0], "wrong": 0})
            if isinstance(answer, Exception):
                raise answer
            return answer

        yield measure


AXES = {"rate": ["1gbit", "100mbit"], "round": [0, 1], "system": ["a", "b", "c"]}


def run_of(tmp_path, lab, axes=AXES, budget=None, **more):
    said = []
    case = Case("test", "Does it run?", lab, axes, place=("rate",), **more)
    run = Run(case, axes, None, tmp_path / "test.jsonl", budget, lambda text, flush: said.append(text))
    run.measure_all()
    return run, said


def test_systems_take_turns_and_another_one_is_first_in_each_round(tmp_path):
    lab = Lab()
    run, said = run_of(tmp_path, lab)
    assert lab.opened == [{"rate": "1gbit"}, {"rate": "100mbit"}]
    assert [turn["system"] for turn in lab.asked] == ["a", "b", "c", "b", "c", "a"] * 2
    assert [turn["rate"] for turn in lab.asked] == ["1gbit"] * 6 + ["100mbit"] * 6
    assert len(run.records()) == 12 and run.well()
    assert said[-1].endswith("links of 100 Mbit/s, round 2, a: 1.00 ms")


def test_a_failure_costs_one_turn(tmp_path):
    lab = Lab(b=Failed("it hung"))
    run, said = run_of(tmp_path, lab)
    assert len(lab.asked) == 12 and not run.well()
    assert [r["failed"] for r in run.records() if r["system"] == "b"] == ["it hung"] * 4
    assert sum("FAILED: it hung" in line for line in said) == 4
    tolerant, _ = run_of(tmp_path / "more", Lab(b=Failed("it hung")), tolerates=("b",))
    assert tolerant.well()


def test_a_place_that_cannot_be_made_costs_this_place(tmp_path):
    lab = Lab()
    run, _ = run_of(tmp_path, lab, {**AXES, "rate": ["broken", "100mbit"]})
    assert {turn["rate"] for turn in lab.asked} == {"100mbit"} and not run.well()
    assert {"rate": "broken", "failed": "no such rack"}.items() <= run.records()[0].items()


def test_wrong_results_are_failures(tmp_path):
    run, said = run_of(tmp_path, Lab(a={"times_ms": [1.0], "wrong": 3}), tolerates=("a",))
    assert not run.well() and "1.00 ms, 3 WRONG" in said[1]


def test_what_a_spent_budget_leaves_out_is_a_record(tmp_path):
    lab = Lab()
    run, said = run_of(tmp_path, lab, budget=0)
    assert lab.opened == [] and said == ["the budget of 0 minutes is spent: 12 of 12 left out"]
    [record] = run.records()
    assert len(record["left_out"]) == 12 and run.well()


def test_a_turn_gives_a_record_several_or_none(tmp_path):
    lab = Lab(a=[{"times_ms": [1.0], "part": 1}, {"times_ms": [2.0], "part": 2}], b=None)
    run, _ = run_of(tmp_path, lab, {"rate": ["1gbit"], "round": [0], "system": ["a", "b"]}, key=("system", "part"))
    assert [(r["system"], r["part"]) for r in run.records()] == [("a", 1), ("a", 2)]


def test_joint_axes_are_measured_in_one_turn():
    axes = {"rate": ["1gbit"], "system": ["a", "b"]}
    case = Case("test", "", Lab(), axes, joint=("system",))
    assert runner.turns_of(case, axes) == [{"rate": "1gbit", "system": ["a", "b"]}]


def test_adapted_turns_are_measured_once():
    adapt = lambda turn: None if turn["system"] == "c" else {**turn, "round": 0}
    turns = runner.turns_of(Case("test", "", None, AXES, adapt=adapt), AXES)
    assert [(turn["rate"], turn["system"]) for turn in turns] == [
        ("1gbit", "a"),
        ("1gbit", "b"),
        ("100mbit", "a"),
        ("100mbit", "b"),
    ]
    with pytest.raises(ValueError, match="nothing to measure"):
        runner.turns_of(Case("test", "", None, AXES, adapt=lambda turn: None), AXES)


def test_complaints_about_the_records_are_failures(tmp_path):
    run, _ = run_of(tmp_path, Lab(), check=lambda records: ["a and b differ"] if len(records) == 12 else [])
    assert not run.well()


# --- The command line


def parse(*arguments):
    parser, _ = command.make_parser()
    parsed = parser.parse_args(arguments)
    return CASES[parsed.case], options.axes_of(CASES[parsed.case], parsed)


@pytest.mark.parametrize("name", list(CASES))
def test_every_case_has_turns_tables_and_help(name, capsys):
    """argparse formats the help, so a per cent sign in a name must be escaped."""
    case = CASES[name]
    with pytest.raises(SystemExit) as end:
        command.main([name, "--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert "--json" in shown and case.question in shown
    for axes in (case.axes, {**case.axes, **case.quick}, {**case.axes, **case.full}):
        turns = runner.turns_of(case, axes)
        assert all(set(case.place) <= set(turn) for turn in turns)
    assert case.tables and all(name == table or table.startswith(f"{name}:") for table in case.tables)
    assert set(case.quick) | set(case.full) <= set(case.axes)


def test_axes_are_options():
    case, axes = parse("loss", "--loss", "0,1%", "--size", "2Mi", "--system", "gloo", "--rounds", "2")
    assert case.name == "loss" and axes["loss"] == [0, 0.01] and axes["bytes"] == [2 << 20]
    assert axes["system"] == ["gloo"] and axes["round"] == [0, 1] and axes["workers"] == [8]
    _, axes = parse("rack", "--quick", "--workers", "2")
    assert axes["workers"] == [2] and axes["bytes"] == [4 << 10, 1 << 20] and len(axes["round"]) == 1
    assert parse("predict", "--predict", "1")[1]["predict"] == [1]
    assert parse("profile", "--case", "daemon,xdp")[1]["case"] == ["daemon", "xdp"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["rack", "--system", "nccl"], "'nccl' is none of"),
        (["loss", "--loss", "2"], "'2' is not from 0 to 1"),
        (["rack", "--rate", "100"], "'100' is no rate"),
        (["sparse", "--workers", "1"], "not a number from 2"),
        (["sparse", "--count", "1000"], "multiple of 256"),
        (["compression", "--system", "gloo,netsum"], "must begin with netsum"),
        (["shares", "--rate", "none"], "nothing to plan"),
        (["nothing"], "invalid choice"),
        ([], "name a case"),
    ],
)
def test_bad_arguments(arguments, complaint, capsys, monkeypatch):
    monkeypatch.setattr(options, "NEEDS", dict.fromkeys(options.NEEDS, (lambda options: True, "")))
    with pytest.raises(SystemExit) as end:
        command.main(arguments)
    assert end.value.code == 2 and complaint in capsys.readouterr().err


def test_what_is_missing_is_said(capsys):
    with pytest.raises(SystemExit) as end:
        command.main(["one-host", "--netsum", "/nonexistent"])
    assert end.value.code == 3 and "make build" in capsys.readouterr().err


def test_the_list_has_every_case(capsys):
    assert command.main(["--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(CASES)


def test_settings_of_peers_in_the_shell_have_no_effect(monkeypatch, tmp_path):
    names = ["GLOO_SOCKET_IFNAME", "NCCL_ALGO", "OMPI_MCA_coll", "PMIX_MCA_gds"]
    for name in names:
        monkeypatch.setenv(name, "basic")
    seen = {}
    monkeypatch.setattr(command.Run, "measure_all", lambda _run: seen.update(os.environ))
    command.main(["one-host", "--netsum", sys.executable, "--json", str(tmp_path / "records.jsonl")])
    assert "PATH" in seen and not set(names) & set(seen)


# --- Records, pages and published tables


def test_records_stay_and_the_last_run_counts(tmp_path):
    path = tmp_path / "data" / "x.jsonl"
    first = records.append_to(path)
    first({"rate": "a", "round": 0})
    first({"rate": "b", "round": 0})
    records.append_to(path)({"rate": "a", "round": 7})
    found = records.latest(records.load(path), "rate")
    assert [(r["rate"], r["round"]) for r in found] == [("b", 0), ("a", 7)]
    records.compact(path, "rate")
    assert [(r["rate"], r["round"]) for r in records.load(path)] == [("b", 0), ("a", 7)]
    assert all(r["run"]["machine"] and r["run"]["command"] for r in found)


def rack_record(system, times, **more):
    place = {"system": system, "workers": 8, "rate": "100mbit", "bytes": 1 << 20, "round": 0}
    return {**place, "times_ms": times, "wrong": 0, "link_up": 1 << 20, "link_down": 1 << 20, **more}


def test_a_page_has_the_tables_and_the_plots(tmp_path):
    out = records.append_to(tmp_path / "rack.jsonl")
    out(rack_record("netsum-user", [100.0] * 7))
    out(rack_record("gloo", [200.0] * 7, setting="all_reduce"))
    report.write_page(RACK, records.load(tmp_path / "rack.jsonl"), tmp_path / "rack.html")
    page = (tmp_path / "rack.html").read_text()
    assert list(report.blocks(report.narrow(["a", ""], [["*b*", "c"], ["", ""]]))) == [
        ("table", [["a", ""], ["--", "--:"], ["b", "c"], ["", ""]])
    ]
    assert page.count("<svg") == 1 and "<td>100 [100 - 100]</td>" in page and "Gloo: all_reduce" in page
    assert "<h2>rack:headline</h2>" in page and "|" not in page.partition("<h2>")[2].replace("|   ", "")


def test_published_tables_have_marks_and_functions():
    for page in results.PUBLISHED:
        text = page.read_text(encoding="utf-8")
        names = [found[2] for found in results.MARKS.finditer(text)]
        assert text.count("<!-- figures ") == len(names) > 0, "every start has its end"
        assert set(names) <= set(results.TABLES)


def test_publishing_writes_the_tables_that_have_records(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- figures rack:systems -->\nold\n<!-- end rack:systems -->\n<!-- figures loss -->\nkept\n<!-- end loss -->\n"
    )
    monkeypatch.setattr(results, "PUBLISHED", [page])
    records.append_to(tmp_path / "rack.jsonl")(rack_record("netsum-user", [100.0] * 7))
    results.write_page()
    results.publish()
    text = page.read_text()
    assert f"netsum {machine.version()}, `make results ONLY=rack`" in text and "old" not in text and "kept" in text
    assert "100 [100 - 100]" in text and "100 [100 - 100]" in (tmp_path / "results.md").read_text()


@pytest.mark.parametrize(
    ("name", "full", "minutes", "flags"),
    [
        ("rack", False, None, []),
        ("rack", True, 2.0, ["--full", "--budget", "2.0"]),
        ("compression", False, None, ["--budget", "30.0"]),
        ("compression", True, None, ["--budget", "600.0"]),
        ("failures", True, None, []),
    ],
)
def test_results_runs_the_cases(name, full, minutes, flags, monkeypatch):
    commands = []

    class Process:
        def __init__(self, command, cwd):
            commands.append(command)

        def wait(self, seconds):
            assert (seconds is None) == ("--budget" not in flags)
            return 0

    monkeypatch.setattr(results.subprocess, "Popen", Process)
    assert results.measure(CASES[name], full, minutes)
    assert commands == [
        [".venv/bin/python", "-m", "netsum_bench", name, "--json", f"build/results/{name}.jsonl", *flags]
    ]
