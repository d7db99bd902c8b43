"""summarize_tests.py: what did not run, or cannot be read, is a failure."""

import json
import subprocess
import sys

import pytest
import summarize_tests

PASSED = '<testcase classname="{0}" name="{0}" status="run"/>'
FAILED = '<testcase classname="{0}" name="{0}" status="fail"><failure message=""/></testcase>'
SKIPPED = '<testcase classname="{0}" name="{0}" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/></testcase>'
NOT_FOUND = (
    '<testcase classname="{0}" name="{0}" status="notrun"><skipped message="Unable to find executable"/></testcase>'
)
GTEST_PASSED = '<testcase name="{0}" status="run" result="completed" classname="Suite"/>'
GTEST_SKIPPED = (
    '<testcase name="{0}" status="run" result="skipped" classname="Suite">'
    '<skipped message="a_test.cc:7&#x0A;needs root"/></testcase>'
)
GTEST_DISABLED = '<testcase name="{0}" status="notrun" result="suppressed" classname="Suite"/>'
GTEST_FAILED = (
    '<testcase name="{0}" status="run" result="completed" classname="Suite">'
    '<failure message="a_test.cc:9&#x0A;  1 is not 2"/></testcase>'
)
PYTEST_ERROR = '<testcase classname="tests.a_test" name="{0}"><error message="failed on setup"/></testcase>'


def junit(*cases):
    return f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>"


class Results:
    """A folder of results: at first of one pytest that passed and of a ctest that ran a binary and a script."""

    def __init__(self, folder):
        self.folder = folder
        self.write("pytest.xml", junit('<testcase classname="tests.a_test" name="test_a"/>'))
        self.write("pytest.exit", "0\n")
        self.write_ctest(PASSED.format("a_test"), PASSED.format("b.script"))
        self.write_gtest(GTEST_PASSED.format("One"), GTEST_PASSED.format("Two"))

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def write_ctest(self, *cases, status=0, listed=("a_test", "b.script")):
        self.write("ctest.xml", junit(*cases))
        self.write("ctest.exit", str(status))
        labels = {"a_test": ["gtest", "unit"], "b.script": ["lint"]}
        self.write(
            "ctest.json",
            json.dumps(
                {
                    "tests": [
                        {"name": name, "properties": [{"name": "LABELS", "value": labels.get(name, [])}]}
                        for name in listed
                    ]
                }
            ),
        )

    def write_gtest(self, *cases):
        self.write("gtest/a_test.xml", junit(*cases))

    def counts(self):
        outcomes = [case.outcome for case in summarize_tests.collect(self.folder, ["ctest", "pytest"])]
        return tuple(outcomes.count(outcome) for outcome in ("passed", "failed", "skipped"))

    def failures(self):
        return {
            case.name: case.reason
            for case in summarize_tests.collect(self.folder, ["ctest", "pytest"])
            if case.outcome == "failed"
        }


@pytest.fixture(name="results")
def fixture_results(tmp_path):
    return Results(tmp_path)


def test_everything_ran(results, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["summarize_tests.py", str(results.folder), "ctest", "pytest"])
    assert summarize_tests.main() == 0
    assert capsys.readouterr().out.splitlines()[-1] == "4 passed, 0 failed, 0 skipped"


def test_what_is_skipped_is_counted_with_its_reason(results, monkeypatch, capsys):
    results.write_ctest(PASSED.format("a_test"), SKIPPED.format("b.script"))
    results.write_gtest(GTEST_PASSED.format("One"), GTEST_SKIPPED.format("Two"), GTEST_DISABLED.format("Three"))
    results.write("pytest.xml", junit('<testcase classname="t" name="a"><skipped message="needs root"/></testcase>'))
    monkeypatch.setattr(sys, "argv", ["summarize_tests.py", str(results.folder), "ctest", "pytest"])
    assert summarize_tests.main() == 0
    assert capsys.readouterr().out.splitlines()[-4:] == [
        "skipped 2: needs root",
        "skipped 1: disabled",
        "skipped 1: SKIP_RETURN_CODE=77",
        "1 passed, 0 failed, 4 skipped",
    ]


def test_nothing_but_skipped_tests_is_not_a_success(results, monkeypatch, capsys):
    results.write("pytest.xml", junit('<testcase classname="t" name="a"><skipped message="needs root"/></testcase>'))
    monkeypatch.setattr(sys, "argv", ["summarize_tests.py", str(results.folder), "pytest"])
    assert summarize_tests.main() == 1
    assert capsys.readouterr().out.splitlines()[-1] == "0 passed, 0 failed, 1 skipped"


def test_failures_are_named(results, monkeypatch, capsys):
    results.write_ctest(FAILED.format("a_test"), PASSED.format("b.script"), status=8)
    results.write_gtest(GTEST_PASSED.format("One"), GTEST_FAILED.format("Two"))
    results.write("pytest.xml", junit(PYTEST_ERROR.format("test_a")))
    results.write("pytest.exit", "1")
    monkeypatch.setattr(sys, "argv", ["summarize_tests.py", str(results.folder), "ctest", "pytest"])
    assert summarize_tests.main() == 1
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "failed: a_test: Suite.Two: 1 is not 2",
        "failed: tests.a_test.test_a: failed on setup",
        "2 passed, 2 failed, 0 skipped",
    ]


@pytest.mark.parametrize("name", ["ctest.xml", "ctest.json", "ctest.exit", "pytest.xml", "pytest.exit"])
def test_a_missing_file_is_a_failure(results, name):
    (results.folder / name).unlink()
    runner = name.split(".", maxsplit=1)[0]
    assert name in results.failures()[runner]


@pytest.mark.parametrize("name", ["ctest.xml", "ctest.json", "pytest.xml"])
def test_a_truncated_file_is_a_failure(results, name):
    text = (results.folder / name).read_text(encoding="utf-8")
    results.write(name, text[: len(text) // 2])
    runner = name.split(".", maxsplit=1)[0]
    assert name in results.failures()[runner]
    results.write(name, "")
    assert name in results.failures()[runner]


@pytest.mark.parametrize("name", ["ctest.xml", "pytest.xml"])
def test_no_tests_are_a_failure(results, name):
    results.write(name, junit())
    assert results.failures() == {name.split(".", maxsplit=1)[0]: f"{name} holds no test"}


def test_a_runner_that_ends_in_error_is_a_failure(results):
    results.write("pytest.exit", "3")
    assert results.failures() == {"pytest": "ended with exit status 3"}
    results.write("pytest.exit", "139")
    assert results.failures() == {"pytest": "ended with exit status 139"}


def test_a_crashed_binary_is_a_failure(results):
    # It leaves no file of its own: GoogleTest writes it at the end.
    results.write_ctest(FAILED.format("a_test"), PASSED.format("b.script"), status=8)
    (results.folder / "gtest/a_test.xml").unlink()
    assert results.counts() == (2, 1, 0)
    assert results.failures() == {"a_test": "there is no a_test.xml"}


def test_a_binary_that_crashes_after_its_cases_is_a_failure(results):
    results.write_ctest(FAILED.format("a_test"), PASSED.format("b.script"), status=8)
    assert results.failures() == {"a_test": "the binary failed, its cases did not"}


@pytest.mark.parametrize(
    "cases", ["", junit(), junit(GTEST_PASSED.format("One"))[:-20]], ids=["empty", "no_cases", "truncated"]
)
def test_a_binary_without_results_is_a_failure_even_if_ctest_saw_it_pass(results, cases):
    results.write("gtest/a_test.xml", cases)
    assert list(results.failures()) == ["a_test"]
    (results.folder / "gtest/a_test.xml").unlink()
    assert list(results.failures()) == ["a_test"]


def test_a_missing_binary_is_a_failure(results):
    # ctest calls this "skipped".
    results.write_ctest(NOT_FOUND.format("a_test"), NOT_FOUND.format("b.script"), status=8)
    (results.folder / "gtest/a_test.xml").unlink()
    assert results.failures() == dict.fromkeys(("a_test", "b.script"), "its executable is missing")


def test_a_test_that_ctest_did_not_reach_is_a_failure(results):
    results.write_ctest(PASSED.format("a_test"))
    assert results.failures() == {"b.script": "has no result"}


def test_a_result_that_nobody_asked_for_is_a_failure(results):
    results.write_ctest(PASSED.format("a_test"), PASSED.format("b.script"), listed=["a_test"])
    assert results.failures() == {"b.script": "was not asked for"}


def test_a_name_that_comes_twice_is_a_failure(results):
    results.write_gtest(GTEST_PASSED.format("One"), GTEST_PASSED.format("One"))
    assert results.failures() == {"a_test: Suite.One": "has 2 results"}
    results.write_gtest(GTEST_PASSED.format("One"))
    results.write_ctest(PASSED.format("a_test"), PASSED.format("b.script"), PASSED.format("b.script"))
    assert results.failures() == {"b.script": "has 2 results"}


def test_the_slowest_and_processor_seconds(results, monkeypatch, capsys, tmp_path):
    results.write_ctest(
        PASSED.format("a_test").replace("status", 'time="3.25" status'),
        PASSED.format("b.script").replace("status", 'time="61" status'),
    )
    results.write("cpu/a_test", "0m1.500s 0m0.250s\n")
    results.write("cpu/b.script", "1m2.000s 0m0.000s\n")
    results.write("pytest.cpu", "0m4.000s 0m1.000s\n")
    results.write("budgets", "# seconds\nunit 2\nlint 60\npytest 5\n")
    arguments = ["summarize_tests.py", "--budgets", str(tmp_path / "budgets"), str(results.folder), "ctest", "pytest"]
    monkeypatch.setattr(sys, "argv", arguments)
    assert summarize_tests.main() == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[:2]] == [["61.0", "s", "b.script"], ["3.2", "s", "a_test"]]
    assert lines[3:] == [
        "processor seconds: lint 62, pytest 5, unit 2",
        "failed: budget of lint: 62 processor seconds, 60 allowed by budgets",
        "4 passed, 1 failed, 0 skipped",
    ]


def test_processor_seconds_are_those_of_the_command(tmp_path):
    script = summarize_tests.pathlib.Path(summarize_tests.__file__).with_name("cpu_seconds.sh")
    busy = "import time\nwhile time.process_time() < 0.2: pass"
    done = subprocess.run(
        [script, tmp_path / "cpu/a", sys.executable, "-c", f"{busy}\nraise SystemExit(3)"], check=False
    )
    assert done.returncode == 3
    assert summarize_tests.cpu_seconds(tmp_path / "cpu/a") >= 0.2
    assert [path.name for path in (tmp_path / "cpu").iterdir()] == ["a"]
