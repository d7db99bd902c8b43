"""test.sh with stand-ins for the build, ctest and Python: it must end with the reason of what fails in itself."""

import os
import pathlib
import shutil
import stat
import subprocess

import pytest

SCRIPTS = pathlib.Path(__file__).resolve().parent
CTEST = "echo '  Test  #1: sim_test.soak'"
COLLECTED = "echo 'tests/torch/test_a.py::test_b[x]'"


@pytest.fixture
def soak(tmp_path):
    """Runs `test.sh soak` in a tree where ctest and Python are the given shell commands."""

    def run(ctest=CTEST, python=COLLECTED, only="."):
        commands = {
            "scripts/build.sh": ":",
            "scripts/install_wheel.sh": ":",
            "bin/ctest": ctest,
            ".venv/bin/python": python,
        }
        for path, command in commands.items():
            program = tmp_path / path
            program.parent.mkdir(parents=True, exist_ok=True)
            program.write_text(f"#!/bin/sh\n{command}\n", encoding="utf-8")
            program.chmod(program.stat().st_mode | stat.S_IXUSR)
        for script in ("test.sh", "summarize_tests.py"):
            shutil.copy(SCRIPTS / script, tmp_path / "scripts")
        path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
        return subprocess.run(
            [tmp_path / "scripts/test.sh", "soak"],
            env={**os.environ, "PATH": path, "NETSUM_SOAK_ONLY": only},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_soak_says_why_pytest_cannot_collect(soak):
    done = soak(python="echo 'ERROR collecting tests/torch/test_a.py: No module named x'; exit 2")
    assert done.returncode != 0
    assert "test.sh: pytest cannot collect the soak tests (exit status 2)" in done.stderr
    assert "No module named x" in done.stderr


def test_soak_collects_files_of_the_same_name(soak):
    one_pytest_refuses = 'case "$*" in *tests/torch*bench*) exit 2 ;; esac; '
    done = soak(python=one_pytest_refuses + COLLECTED)
    assert "cannot collect" not in done.stderr
    assert done.stdout.splitlines()[-1] == "0 passed, 2 failed, 0 skipped"


def test_soak_says_why_ctest_cannot_list(soak):
    done = soak(ctest="echo 'CMake Error: no such preset' >&2; exit 1")
    assert done.returncode != 0
    assert "no such preset" in done.stderr


def test_soak_says_that_no_name_matches(soak):
    done = soak(only="no_such_test")
    assert done.returncode != 0
    assert "no soak test has a name that matches 'no_such_test'" in done.stderr


def test_soak_fails_if_a_runner_leaves_no_results(soak):
    done = soak()
    assert done.returncode != 0
    assert done.stdout.splitlines()[-1] == "0 passed, 2 failed, 0 skipped"
