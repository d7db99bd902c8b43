#!/usr/bin/env python3
"""Checks that the tree stays small enough to carry: pages, words, phrases, named types.

The numbers in CEILINGS may be lowered by any commit. One that raises a number says in its message what is worth it. Run from
anywhere; prints one line per offence and exits with 1 if there is any. `check_budget.py --counts` prints what there is.
"""

import pathlib
import re
import subprocess
import sys

import check_main

CEILINGS = {
    "lines of README.md": 84,
    "pages of Markdown": 22,
    "words in Markdown": 60_000,
    "phrases to avoid, per 1000 words of Markdown": 1.0,
    "named types in production": 865,
}
PAGE_LINES = 250
# Longer: the protocol; commands, settings and methods that are looked up; the tutorial with all that it prints; tables that programs write.
LONG_PAGES = {
    "docs/command.md": 252,
    "docs/pytorch.md": 374,
    "docs/results.md": 467,
    "docs/tutorial.md": 554,
    "wire/PROTOCOL.md": 401,
}
# Words of German sentences in English, and metaphors (CONTRIBUTING.md, Prose).
PHRASES = re.compile(
    r"\b(?:of which|of them|of those|so many|so much|of its own|of their own|of one's own|is told|are told|says|tells|hears|"
    r"nobody|whoever|whatever|all that|and no other|one behind the other|in the midst|by itself|by themselves)\b|, too[.,]",
    re.IGNORECASE,
)
RECORDS = (".svg", ".jsonl")
PRODUCTION = (
    "include/",
    "src/",
    "wire/",
    "aggregator/",
    "engine/",
    "session/",
    "api/",
    "torch/src/",
    "mpi/",
    "nccl/",
    "tools/",
)
NOT_PRODUCTION = re.compile(r"_test\.|testing|test_|scripted_|fake_")
TYPE = re.compile(
    r"^(?:template <[^>]*> *)?(?:class|struct|enum class|enum) (?:\[\[\w+\]\] )?(\w+)(?: final)?(?: : [^;]*)? \{",
    re.MULTILINE,
)


def tracked(root):
    listed = subprocess.run(["git", "-C", root, "ls-files"], capture_output=True, text=True, check=True).stdout
    return [name for name in listed.splitlines() if (root / name).is_file()]


def counts_of(root):
    files = tracked(root)
    pages = {name: (root / name).read_text(encoding="utf-8") for name in files if name.endswith(".md")}
    words = sum(len(text.split()) for text in pages.values())
    sources = [
        name
        for name in files
        if name.endswith((".h", ".cc")) and name.startswith(PRODUCTION) and not NOT_PRODUCTION.search(name)
    ]
    return {
        "lines of README.md": pages["README.md"].count("\n") if "README.md" in pages else 0,
        "pages of Markdown": len(pages),
        "words in Markdown": words,
        "phrases to avoid, per 1000 words of Markdown": round(
            1000 * sum(len(PHRASES.findall(text)) for text in pages.values()) / max(words, 1), 1
        ),
        "named types in production": sum(
            len(TYPE.findall((root / name).read_text(encoding="utf-8"))) for name in sources
        ),
    }


def check(root):
    offences = [
        f"{what}: {count}, at most {CEILINGS[what]}"
        for what, count in counts_of(root).items()
        if count > CEILINGS[what]
    ]
    for name in tracked(root):
        if name.endswith(RECORDS):
            offences.append(f"{name}: records and plots are made by `make results`, in build/")
        if name.endswith(".md"):
            lines, most = (root / name).read_text(encoding="utf-8").count("\n"), LONG_PAGES.get(name, PAGE_LINES)
            if lines > most:
                offences.append(f"{name}: {lines} lines, at most {most}")
    return offences


if __name__ == "__main__":
    if sys.argv[1:] == ["--counts"]:
        print(*(f"{what}: {count}" for what, count in counts_of(pathlib.Path(__file__).parents[1]).items()), sep="\n")
        sys.exit(0)
    sys.exit(check_main.main(__doc__, check, "pages, words, phrases and types: within their budgets"))
