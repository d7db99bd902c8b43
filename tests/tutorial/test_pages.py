"""The parts of docs/tutorial.md do what they say: every command runs, and prints what the page shows.

A block ```sh is run by the part's bash, in the root of the repository, as by a reader who copies it. The block ```text after it
shows all that it prints. The last command of a block ends with status 0, of a block ```sh fails with another. In what is
shown, a number with a decimal point is measured, and any such number matches; a space is any number of spaces; `...` is any
text, and a line of it any lines. (byexample and prysk need marks for this that readers would see.)
"""

import difflib
import os
import pathlib
import re
import signal
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/tutorial.md"
# What `make test` runs, too: it compiles two files, and no process of it loads PyTorch.
SHORT = "3"
PART = re.compile(r"^## (\d) (.*)$", re.MULTILINE)
BLOCK = re.compile(r"^```(sh|sh fails|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MEASURED = re.compile(r"(?<![\d.])\d+\.\d+(?!\.?\d)")
END = "-- end of the block:"


def blocks_of(text):
    """Yields (line, commands, whether they succeed, what they print or None)."""
    found = list(BLOCK.finditer(text))
    for block, following in zip(found, [*found[1:], None], strict=True):
        kind, commands = block.groups()
        if kind == "text":
            continue
        between = text[block.end() : following.start()] if following else ""
        shown = following.group(2) if following and following.group(1) == "text" and not between.strip() else None
        yield text.count("\n", 0, block.start()) + 2, commands, kind == "sh", shown


def parts_of(text):
    """Yields (heading, the text before the part, the part). Each part is run by a bash of its own."""
    headings = list(PART.finditer(text))
    for heading, following in zip(headings, [*headings[1:], None], strict=True):
        yield heading, text[: heading.start()], text[heading.start() : following.start() if following else None]


def pattern_of(shown):
    """A regular expression for what may be printed."""
    lines = []
    for line in shown.splitlines():
        if line.strip() == "...":
            lines.append(r"(?:.*\n)*")
            continue
        parts = [r"\d+\.\d+".join(map(re.escape, MEASURED.split(part))) for part in line.split("...")]
        lines.append(re.sub(r"(?:\\ )+", " +", ".*".join(parts)) + r" *\n")
    return "".join(lines)


class Shell:
    """A bash that runs one block after the other, and what it started in the background until the part ends."""

    def __init__(self, folder):
        self._script = folder / "block.sh"
        kept = [name for name in os.environ if not name.startswith("NETSUM_") or name == "NETSUM_RACK_DIR"]
        environment = {name: os.environ[name] for name in kept} | {"PATH": f"{ROOT}/.venv/bin:{os.environ['PATH']}"}
        self._bash = subprocess.Popen(
            ["bash"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env=environment,
            start_new_session=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.killpg(self._bash.pid, signal.SIGTERM)
        self._bash.communicate(timeout=60)

    def run(self, commands):
        """Returns what is printed, and the status of the last command."""
        self._script.write_text(commands, encoding="utf-8")
        self._bash.stdin.write(f'. {self._script} < /dev/null; echo "{END} $?"\n')
        self._bash.stdin.flush()
        printed = ""
        for line in self._bash.stdout:
            before, ended, status = line.partition(END)
            if ended:
                return printed + before, int(status)
            printed += line
        raise AssertionError(f"the shell has ended; before: {printed}")


def run_part(text, folder, before=""):
    with Shell(folder) as shell:
        for line, commands, succeeds, shown in blocks_of(text):
            printed, status = shell.run(commands)
            where = f"{PAGE.relative_to(ROOT)}:{before.count(chr(10)) + line}: {commands}"
            print(f"{where}{printed}")  # pytest -rP shows it, for whoever updates the page
            assert (status == 0) == succeeds, f"{where}\nended with status {status}:\n{printed}"
            if shown is not None and not re.fullmatch(pattern_of(shown), printed):
                difference = difflib.ndiff(shown.splitlines(), printed.splitlines())
                pytest.fail(f"{where}\nshown (-) and printed (+):\n" + "\n".join(difference), pytrace=False)


def test_what_matches():
    shown = "step  loss\n1 2.31\n...\nfrom 127.0.0.1:5151 after ... s\n"
    assert re.fullmatch(pattern_of(shown), "step   loss\n1    2.4\n2 x\n3 y\nfrom 127.0.0.1:5151 after 3 s\n")
    assert not re.fullmatch(pattern_of(shown), "step loss\n2 2.4\nfrom 127.0.0.1:5151 after 3 s\n")
    assert not re.fullmatch(pattern_of(shown), "step loss\n1 2.4\nfrom 127.0.0.2:5151 after 3 s\n")
    assert not re.fullmatch(pattern_of(shown), "step loss\n1 24\nfrom 127.0.0.1:5151 after 3 s\n")


def test_a_part_that_is_wrong_fails(tmp_path):
    run_part("```sh\nname=world\n```\n\n```sh\necho hello $name\n```\n\n```text\nhello world\n```\n", tmp_path)
    for wrong in ("```sh\nfalse\n```\n", "```sh fails\ntrue\n```\n", "```sh\necho 3\n```\n```text\n4\n```\n"):
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            run_part(wrong, tmp_path)


def test_all_blocks_are_in_a_part():
    text = PAGE.read_text(encoding="utf-8")
    parts = list(parts_of(text))
    assert [heading.group(1) for heading, _, _ in parts] == list("123456")
    assert sum(len(list(blocks_of(part))) for _, _, part in parts) == len(list(blocks_of(text))) > len(parts)


CLUSTER = "printf 'SwitchName=leaf0 Nodes=n[0-7]' > $TMP/cluster.conf; netsum place $TMP/cluster.conf --rates 100M"
MISTAKES = {  # of each part the likeliest, and what the message must say
    "1: without torchrun": (
        "python docs/tutorial/train.py --backend gloo",
        "RANK is not set: .* by torchrun --standalone",
    ),
    "1: no folder for the curve": ("python docs/tutorial/train.py --curve $TMP/no/a.txt", "mkdir -p .*/no"),
    "1: no curve": ("python docs/tutorial/compare.py $TMP/a $TMP/b", "train with --curve first"),
    "2: another name": ("netsum rack exec --name tutoral 0 -- true", "`netsum rack up` with --name tutoral"),
    "2: a rate without unit": ("netsum rack up --name tutoral --rate 100", "expected e.g. 100mbit"),
    "4: without the rack": ("docs/tutorial/on_workers.sh tutoral true", "`netsum rack up` with --name tutoral"),
    "4: without the workers": (
        "python docs/tutorial/density.py 1",
        "RANK is not set: .* by docs/tutorial/on_workers.sh",
    ),
    "5: another file": ("RANK=0 python docs/tutorial/train.py --compress no.py:TopK8", "FILE is a path from"),
    "6: no topology": ("netsum plan no.yaml", "give the path of a topology file"),
    "6: too many ranks": (f"{CLUSTER} --ranks 9 --gradient 1MB", "free some, or use fewer ranks"),
    "6: no size": (f"{CLUSTER} --ranks 6 --gradient 1.2XB", "expected a number with K, M, G"),
}


@pytest.mark.parametrize(
    "mistake",
    # Those that load PyTorch take seconds.
    [
        pytest.param(name, marks=[pytest.mark.soak] * ("train.py" in of[0] or "density.py" in of[0]))
        for name, of in MISTAKES.items()
    ],
)
def test_a_mistake_gets_an_error_that_names_the_cure(mistake, tmp_path):
    command, cure = MISTAKES[mistake]
    if "netsum rack" in command + cure and os.geteuid() != 0:
        pytest.skip("virtual racks need root")
    with Shell(tmp_path) as shell:
        printed, status = shell.run(f"TMP={tmp_path}; {command}")
    assert status == 2, printed
    assert re.search(cure, printed), printed
    assert "Traceback" not in printed


@pytest.mark.parametrize(
    ("before", "part"),
    [
        pytest.param(
            before,
            part,
            id=re.sub(r"\W+", "-", heading.group(2).lower()),
            marks=[] if heading.group(1) == SHORT else [pytest.mark.soak],
        )
        for heading, before, part in parts_of(PAGE.read_text(encoding="utf-8"))
    ],
)
def test_part(before, part, tmp_path):
    if ("netsum rack" in part or "netsum emulate" in part) and os.geteuid() != 0:
        pytest.skip("virtual racks need root")
    run_part(part, tmp_path, before)
