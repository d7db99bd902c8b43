"""mutation.py on a small project with a build folder of its own."""

import json
import subprocess

import mutation
import overlay
import pytest

SUM = """#include "sum.h"
namespace {
constexpr int kLeast = 3;
}
int sum(int a, int b) {
  if (a < kLeast) return 0;
  calls += 2;
  return a + b;
}
int least() { return kLeast; }
int never() { return 7; }
"""
TEST = """#include <cstdio>
#include <cstdlib>
#include "sum.h"
int calls = 0;
int main(int, char** arguments) {
  std::puts("[ RUN      ] Sum.Adds");
  std::fflush(stdout);
  if (std::getenv("UNRELATED") || sum(3, 4) != 7) {
    std::printf("[  FAILED  ] Sum.Adds (0 ms)\\n");
    return 1;
  }
  if (least() != 3) std::abort();
  std::printf("[       OK ] Sum.Adds (0 ms)\\n");
}
"""
CMAKE = """cmake_minimum_required(VERSION 3.25)
project(sums CXX)
include_directories(${CMAKE_SOURCE_DIR})
add_library(sums STATIC sum.cc)
add_executable(sum_test sum_test.cc)
target_link_libraries(sum_test sums)
add_executable(other_test other_test.cc)
enable_testing()
add_test(NAME sum_test COMMAND env A=1 $<TARGET_FILE:sum_test>)
add_test(NAME other_test COMMAND env A=1 $<TARGET_FILE:other_test>)
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("project")
    texts = {
        "CMakeLists.txt": CMAKE,
        "sum.h": "int sum(int a, int b);\nint least();\nextern int calls;\n",
        "sum.cc": SUM,
        "sum_test.cc": TEST,
        "other_test.cc": "int main() {}\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    subprocess.run(["cmake", "-G", "Ninja", "-S", folder, "-B", folder / "build"], check=True, timeout=120)
    return folder


@pytest.fixture
def mutate(project, monkeypatch, capsys):
    """Runs mutation.py on the project: its exit status, what it printed, and the outcome by line and operator."""

    def run(*arguments, tests=("other_test", "sum_test"), equivalent=(), known=()):
        tables = {
            "subjects.toml": {"subject": [{"files": ["sum.cc"], "tests": list(tests)}]},
            "equivalent.toml": {"equivalent": list(equivalent)},
            "known.toml": {"bug": list(known)},
        }
        path = project / "outcomes.json"
        path.unlink(missing_ok=True)
        for module in (mutation, overlay):
            monkeypatch.setattr(module, "ROOT", project)
        monkeypatch.setattr(mutation, "table", tables.get)
        command = ["mutation.py", "--build", str(project / "build"), "--jobs", "1", "--json", str(path), *arguments]
        monkeypatch.setattr("sys.argv", command)
        status = mutation.main()
        outcomes = json.loads(path.read_text()) if path.exists() else []
        return status, capsys.readouterr(), {(one["first_line"], one["operator"]): one for one in outcomes}

    return run


def test_outcomes(mutate):
    status, printed, found = mutate("--seed", "1")
    outcomes = {key: (one["outcome"], one["by"]) for key, one in found.items()}
    assert outcomes == {
        (3, "constant"): ("killed", "Sum.Adds (crash)"),  # alone: the compiler evaluates it
        (6, "relational"): ("killed", "Sum.Adds"),
        (6, "condition"): ("killed", "Sum.Adds"),
        (6, "constant"): ("survived", ""),
        (7, "arithmetic"): ("survived", ""),
        (7, "constant"): ("survived", ""),
        (7, "deletion"): ("survived", ""),
        (8, "arithmetic"): ("killed", "Sum.Adds"),
        (8, "return"): ("killed", "Sum.Adds"),
        (10, "return"): ("killed", "Sum.Adds (crash)"),
        (11, "constant"): ("survived", ""),
        (11, "return"): ("survived", ""),
    }
    assert status == 0
    assert "calls += 2;\n    ;" in printed.out


def test_too_few_killed(mutate):
    assert mutate("--file", "sum.cc:7", "--least", "1")[0] == 1
    assert mutate("--file", "sum.cc:8", "--least", "100")[0] == 0


def test_an_equivalent_mutant_is_not_counted(mutate):
    equivalent = {"file": "sum.cc", "line": "calls += 2;", "becomes": "calls -= 2;", "why": "nothing reads it"}
    _, printed, found = mutate("--file", "sum.cc:7", equivalent=[equivalent])
    assert found[7, "arithmetic"]["outcome"] == "equivalent"
    assert "| sum.cc | 4 | 0 | 3 | 1 | 0 |" in printed.out


def test_known_bugs(mutate):
    def bug(name, old, new):
        return {"name": name, "what": name, "file": "sum.cc", "old": old, "new": new, "test": "sum_test"}

    found = bug("found", "return a + b;\n", "return a;\n")
    missed = bug("missed", "  calls += 2;\n", "")
    gone = bug("gone", "return a * b;", "")
    status, printed, _ = mutate("--known", known=[found, missed, gone])
    assert status == 1
    assert printed.out.splitlines() == [
        "found (found): Sum.Adds",
        "missed (missed): NOT FOUND by sum_test",
        "gone: FAILED: sum.cc has the text 0 times; adapt known.toml:",
        "return a * b;",
        "3 known bugs: 1 found",
    ]
    assert mutate("--known", "found", known=[found, missed, gone])[0] == 0


def test_the_same_sample_for_the_same_seed(mutate):
    lists = [mutate("--list", "--sample", "3", "--seed", seed)[1].out for seed in ("1", "1", "2")]
    assert lists[0] == lists[1] != lists[2]
    assert lists[0].count("sum.cc:") == 3


@pytest.mark.parametrize(
    ("arguments", "more", "said"),
    [
        (["--file", "other.cc"], {}, "subjects.toml does not name other.cc"),
        ([], {"tests": ["other_test"]}, "sum.cc: none of its tests uses it"),
        ([], {"tests": ["no_test"]}, "ctest has no test no_test"),
        (["--since", "nothing"], {}, "nothing"),
        (["--known", "nothing"], {}, "known.toml has no bug nothing"),
    ],
)
def test_what_cannot_be_done(mutate, arguments, more, said):
    status, printed, _ = mutate(*arguments, **more)
    assert status == 2
    assert said in printed.err


def test_a_test_that_fails_without_a_mutant(mutate, monkeypatch):
    monkeypatch.setenv("UNRELATED", "1")
    status, printed, _ = mutate("--file", "sum.cc:8")
    assert status == 2
    assert "Sum.Adds fails without a mutant" in printed.err
