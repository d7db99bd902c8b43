#!/usr/bin/env python3
"""Checks that the documents name only files that exist: in links, and in paths that are written as code.

A link to a heading must name a heading of its file. Code is a path if it begins with a folder of this repository; it
may contain `*`, and a component in capitals (`corpus/TARGET`) stands for any. A source file without its folder
(`slot.h`) must be the name of some file. Blocks of code are not checked. Run from anywhere; prints one line per
offence and exits with 1 if there is any.
"""

import collections
import fnmatch
import pathlib
import posixpath
import re
import sys

import check_main
from check_includes import SOURCES, files_of

FENCE = re.compile(r"^( *)(```+).*?^\1\2`* *$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ +(.*?) *$", re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^()\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"[\w.*+-]+(?:/[\w.*+-]+)*/?")
PLACEHOLDER = re.compile(r"(?<=/)[A-Z]+(?=/|$)")
EXAMPLE = "foo"  # `foo_test.cc`


def without_blocks(text):
    """The text with its blocks of code left empty, so that lines keep their numbers."""
    return FENCE.sub(lambda block: "\n" * block.group(0).count("\n"), text)


def anchors_of(text):
    """The names of the headings in links, as GitHub forms them."""
    anchors, seen = set(), collections.Counter()
    for heading in HEADING.findall(without_blocks(text)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        anchors.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return anchors


class Tree:
    """The files of the repository, their folders, and the headings of its documents."""

    def __init__(self, root):
        files = [pathlib.PurePosixPath(name) for name in files_of(root)]
        self.paths = {path.as_posix() for file in files for path in (file, *file.parents)}
        self.names = {file.name for file in files}
        self.top = {file.parts[0] for file in files if len(file.parts) > 1}
        self.texts = {
            file.as_posix(): (root / file).read_text(encoding="utf-8") for file in files if file.suffix == ".md"
        }
        self.anchors = {path: anchors_of(text) for path, text in self.texts.items()}

    def has(self, path):
        pattern = PLACEHOLDER.sub("*", path.rstrip("/"))
        return path.rstrip("/") in self.paths or ("*" in pattern and bool(fnmatch.filter(self.paths, pattern)))

    def fault_of_link(self, document, link):
        """Why this link leads nowhere, or None."""
        path, _, anchor = link.partition("#")
        target = posixpath.normpath(posixpath.join(posixpath.dirname(document), path)) if path else document
        if "://" in link:
            return None
        if target not in self.paths:
            return f"there is no {target}"
        if anchor and anchor not in self.anchors.get(target, ()):
            return f"{target} has no heading #{anchor}"
        return None

    def fault_of_code(self, code):
        """Why this names no file although it looks like one, or None."""
        if not PATH.fullmatch(code) or code.startswith(EXAMPLE):
            return None
        suffix = pathlib.PurePosixPath(code).suffix
        is_ours = code.split("/")[0] in self.top if "/" in code else suffix in SOURCES | {".py", ".sh"}
        return f"there is no {code}" if is_ours and not self.has(code) and code not in self.names else None


def check(root):
    tree = Tree(root)
    offences = []
    for document in tree.texts:
        text = without_blocks(tree.texts[document])
        faults = [(link.start(), tree.fault_of_link(document, link.group(1))) for link in LINK.finditer(text)]
        faults += [(code.start(), tree.fault_of_code(code.group(1))) for code in CODE.finditer(text)]
        for position, fault in sorted(fault for fault in faults if fault[1]):
            offences.append(f"{document}:{text.count(chr(10), 0, position) + 1}: {fault}")
    return offences


if __name__ == "__main__":
    sys.exit(check_main.main(__doc__, check, "files and headings that documents name: in order"))
