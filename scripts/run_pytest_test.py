"""run_pytest.py on small files: what it leaves of tests that pass, fail, are left out, and end the process."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
import run_pytest

SCRIPT = pathlib.Path(__file__).with_name("run_pytest.py")
FILES = {
    "test_good.py": "def test_it(): pass",
    "bad_test.py": "def test_it(): assert False, 'as it should'",
    "test_soak.py": "import pytest\n@pytest.mark.soak\ndef test_it(): pass",
    "test_end.py": "import os\ndef test_it(): os.kill(os.getpid(), 9)",
    "helper.py": "assert False",
}
UNDONE = """
import time
import pytest
import run_pytest

@pytest.fixture
def made(tmp_path):
    print("made", flush=True)
    yield
    open({path!r}, "w").close()

def test_it(made):
    open({started!r}, "w").close()
    time.sleep(60)
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = soak\n")
    (tmp_path / "results").mkdir()
    (tmp_path / "tests").mkdir()
    return tmp_path


def start(folder, *arguments):
    return subprocess.Popen(
        [sys.executable, SCRIPT, "results", *arguments], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def test_what_it_leaves(folder):
    for name, text in FILES.items():
        (folder / "tests" / name).write_text(text)
    run = start(folder, "--jobs", "2", "first=tests/test_good.py", "other=tests")
    said = run.communicate(timeout=100)[0].decode()
    assert run.returncode == 0, said
    results = folder / "results"
    assert sorted((results / "pytest.runners").read_text().split()) == [
        "first-test_good",
        "other-bad_test",
        "other-test_end",
    ]
    codes = {name: (results / f"{name}.exit").read_text().strip() for name in ("first-test_good", "other-bad_test")}
    assert codes == {"first-test_good": "0", "other-bad_test": "1"}
    assert (results / "other-test_end.exit").read_text().strip() == "-9"
    assert not (results / "other-test_end.xml").exists()
    assert not (results / "other-test_soak.xml").exists()
    assert len((results / "other.cpu").read_text().splitlines()) == 3
    assert "as it should" in said


def test_what_tests_have_made_is_taken_away_when_it_is_ended(folder):
    path, started = folder / "undone", folder / "started"
    (folder / "tests/test_long.py").write_text(UNDONE.format(path=str(path), started=str(started)))
    run = start(folder, "label=tests")
    end = time.monotonic() + 60
    while not started.exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    run.terminate()
    run.communicate(timeout=50)
    assert run.returncode == 1
    assert path.exists()
    assert not (folder / "results/pytest.runners").exists()


def test_more_files_at_a_time_after_the_other_runner(folder):
    """Both wait for each other: one at a time would never end."""
    wait = "import os, time\ndef test_it():\n    open('{me}', 'w').close()\n    while not os.path.exists('{other}'): time.sleep(0.01)\n"
    (folder / "tests/test_a.py").write_text(wait.format(me="a", other="b"))
    (folder / "tests/test_b.py").write_text(wait.format(me="b", other="a"))
    (folder / "there").write_text("")
    run = start(folder, "--jobs", "1", "--after", "there", "--then", "2", "label=tests")
    try:
        assert run.wait(60) == 0
    finally:
        os.kill(run.pid, signal.SIGTERM) if run.poll() is None else None
        run.stdout.close()


def test_the_long_files_are_there():
    root = SCRIPT.parents[1]
    assert [name for name in run_pytest.LONG if not (root / name).exists()] == []
