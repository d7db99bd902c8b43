"""check_budget.py must count what there is: each test writes a small repository."""

import subprocess

import check_budget
import pytest

NAMES = dict(zip(("lines", "pages", "words", "phrases", "types"), check_budget.CEILINGS, strict=True))


@pytest.fixture
def tree(tmp_path):
    """Writes files, as part of a repository, and returns its folder."""
    subprocess.run(["git", "init", "-q", tmp_path], check=True)

    def write(files):
        for name, content in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(content, encoding="utf-8")
        subprocess.run(["git", "-C", tmp_path, "add", "."], check=True)
        return tmp_path

    return write


def test_counts(tree):
    types = "struct A {\n  class B {\n};\nenum class C : int {\nclass D;\n"
    files = {
        "README.md": "one two\nthree\n",
        "docs/a.md": "The ring says so.\n",
        "src/a.h": types,
        "src/a_test.cc": types,
    }
    counts = check_budget.counts_of(tree(files))
    expected = {"lines": 2, "pages": 2, "words": 7, "phrases": round(1000 / 7, 1), "types": 2}
    assert counts == {NAMES[name]: count for name, count in expected.items()}


@pytest.mark.parametrize(
    ("files", "fault"),
    [
        ({"README.md": "\n" * 200}, NAMES["lines"]),
        ({f"docs/{i}.md": "" for i in range(1000)}, NAMES["pages"]),
        ({"docs/a.md": "word " * 1_000_000}, NAMES["words"]),
        ({"docs/a.md": "a ring says b"}, NAMES["phrases"]),
        ({"src/a.h": "".join(f"struct A{i} {{\n" for i in range(10_000))}, NAMES["types"]),
        ({"docs/a.svg": ""}, "docs/a.svg: records and plots"),
        ({"docs/a.md": "\n" * 300}, "docs/a.md: 300 lines"),
    ],
)
def test_what_is_too_much_is_found(tree, files, fault):
    (found,) = check_budget.check(tree(files))
    assert found.startswith(fault)
