"""record_soak.py: a run of some soak tests changes their rows and no others."""

import json

import pytest
import record_soak

FACTS = {"date": "2026-01-02 03:04 UTC", "commit": "abc", "seed": "7", "machine": "2 x CPU"}
LATER = {**FACTS, "date": "2026-02-03 04:05 UTC", "commit": "def"}


@pytest.fixture(name="docs")
def make_docs(tmp_path):
    (tmp_path / "docs/data").mkdir(parents=True)
    return tmp_path / "docs"


def results(folder, names, ctest=(), gtest=(), pytest_cases=()):
    """A folder as test.sh leaves it: `ctest` are (name, status, seconds)."""
    folder.mkdir()
    (folder / "gtest").mkdir()
    (folder / "soak-tests.txt").write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    cases = "".join(
        f'<testcase classname="{name}" name="{name}" status="{status}" time="{seconds}">'
        f"{'<failure/>' if status == 'fail' else ''}</testcase>"
        for name, status, seconds in ctest
    )
    (folder / "ctest.xml").write_text(f"<testsuite>{cases}</testsuite>", encoding="utf-8")
    (folder / "ctest.exit").write_text("8" if "fail" in str(ctest) else "0", encoding="ascii")
    labels = {name: ["gtest"] if gtest and name == "sim.soak" else [] for name, _, _ in ctest}
    (folder / "ctest.json").write_text(
        json.dumps(
            {
                "tests": [
                    {"name": name, "properties": [{"name": "LABELS", "value": label}]} for name, label in labels.items()
                ]
            }
        ),
        encoding="utf-8",
    )
    if gtest:
        (folder / "gtest/sim.soak.xml").write_text(f"<testsuite>{''.join(gtest)}</testsuite>", encoding="utf-8")
    (folder / "package.xml").write_text(f"<testsuite>{''.join(pytest_cases)}</testsuite>", encoding="utf-8")
    (folder / "package.exit").write_text("0", encoding="ascii")
    return folder


def rows(docs):
    table = [line for line in (docs / "soak.md").read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    assert all(len(line) == 7 for line in cells)
    return {line[0].strip("`"): line[1:] for line in cells}


GTEST = [
    '<testcase classname="S" name="A" status="run" result="completed"/>',
    '<testcase classname="S" name="B" status="run" result="completed"/>',
    '<testcase classname="S" name="C" status="run" result="skipped"><skipped message="root"/></testcase>',
]
PYTEST = ['<testcase classname="tests.t.test_x" name="test_y[long]" time="61.7"/>']


def test_a_row_for_every_test_that_ran_and_never_run_for_the_others(tmp_path, docs):
    folder = results(
        tmp_path / "r",
        ["sim.soak", "fuzz.soak", "tests.t.test_x.test_y[long]", "other"],
        [("sim.soak", "run", "12.4"), ("fuzz.soak", "fail", "3")],
        GTEST,
        PYTEST,
    )
    record_soak.record(folder, ["ctest", "package"], docs, FACTS)
    shared = ["2026-01-02 03:04 UTC", "abc", "7", "2 x CPU"]
    assert rows(docs) == {
        "fuzz.soak": ["1 failed", "3", *shared],
        "other": ["never run", "", "", "", "", ""],
        "sim.soak": ["2 passed, 1 skipped", "12", *shared],
        "tests.t.test_x.test_y[long]": ["1 passed", "62", *shared],
    }


def test_a_run_of_some_tests_leaves_the_others_as_they_were(tmp_path, docs):
    names = ["sim.soak", "fuzz.soak"]
    both = [("sim.soak", "run", "1"), ("fuzz.soak", "fail", "2")]
    record_soak.record(results(tmp_path / "first", names, both), ["ctest"], docs, FACTS)
    record_soak.record(results(tmp_path / "second", names, [("fuzz.soak", "run", "5")]), ["ctest"], docs, LATER)
    assert rows(docs)["sim.soak"][:4] == ["1 passed", "1", "2026-01-02 03:04 UTC", "abc"]
    assert rows(docs)["fuzz.soak"][:4] == ["1 passed", "5", "2026-02-03 04:05 UTC", "def"]


def test_a_test_that_is_gone_loses_its_row(tmp_path, docs):
    record_soak.record(results(tmp_path / "first", ["old", "new"], [("old", "run", "1")]), ["ctest"], docs, FACTS)
    record_soak.record(results(tmp_path / "second", ["new"], [("new", "run", "1")]), ["ctest"], docs, FACTS)
    assert list(rows(docs)) == ["new"]
    assert "old" not in (docs / "data/soak.jsonl").read_text(encoding="utf-8")


def test_a_runner_without_results_changes_no_row(tmp_path, docs):
    names = ["sim.soak"]
    record_soak.record(results(tmp_path / "first", names, [("sim.soak", "run", "1")]), ["ctest"], docs, FACTS)
    second = results(tmp_path / "second", names, [("sim.soak", "run", "1")])
    (second / "ctest.xml").unlink()
    record_soak.record(second, ["ctest"], docs, LATER)
    assert rows(docs)["sim.soak"][2] == FACTS["date"]


def test_a_test_without_a_result_has_failed(tmp_path, docs):
    folder = results(tmp_path / "r", ["a", "b"], [("a", "run", "1"), ("b", "run", "1")])
    (folder / "ctest.xml").write_text(
        '<testsuite><testcase classname="a" name="a" status="run" time="1"/></testsuite>', encoding="utf-8"
    )
    record_soak.record(folder, ["ctest"], docs, FACTS)
    assert rows(docs)["b"][0] == "1 failed"
