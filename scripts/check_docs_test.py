"""check_docs.py must find what it is there for: each test writes a small tree."""

import check_docs
import pytest


@pytest.fixture
def faults(tmp_path):
    """Writes `text` as docs/page.md beside a few other files, and returns what is wrong with it."""
    files = {"src/net/udp.cc": "", "docs/other.md": "# A `b`: the *c*\n## Twice\n## Twice\n", "docs/data/a.jsonl": ""}

    def check(text):
        for name, content in {**files, "docs/page.md": text}.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(content, encoding="utf-8")
        return check_docs.check(tmp_path)

    return check


@pytest.mark.parametrize(
    "text",
    [
        "`src/net/udp.cc`, `src/net/`, `src/net`, `udp.cc`, `docs/data/*.jsonl`, `src/NAME/udp.cc`",
        "[a](other.md), [b](../src/net), [c](other.md#a-b-the-c), [d](#here), [e](https://example.org/no.md#x)\n# Here",
        "[twice](other.md#twice) [twice](other.md#twice-1)",
        "`foo_test.cc`, `netsum_test(a)`, `10.0.0.9:5151`, `application/json`, `make test`, `build/release`",
        "```\nsrc/net/gone.cc [a](gone.md) `src/gone`\n```\n",
    ],
)
def test_what_exists_passes(faults, text):
    assert faults(text) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("`src/net/gone.cc`", "there is no src/net/gone.cc"),
        ("the folder `src/gone/`", "there is no src/gone/"),
        ("`gone.h`", "there is no gone.h"),
        ("`src/*/gone*.cc`", "there is no src/*/gone*.cc"),
        ("[a](gone.md)", "there is no docs/gone.md"),
        ("[a](../gone.md#b)", "there is no gone.md"),
        ("[a](other.md#gone)", "docs/other.md has no heading #gone"),
        ("[a](other.md#twice-2)", "docs/other.md has no heading #twice-2"),
        ("[a](#gone)", "docs/page.md has no heading #gone"),
    ],
)
def test_what_does_not_exist_is_found(faults, text, fault):
    assert faults(f"# Page\n\n```\n[x](y)\n```\n\n{text}\n") == [f"docs/page.md:7: {fault}"]
