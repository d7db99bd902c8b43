#!/usr/bin/env python3
"""Checks that documents and code agree on numbers and names that stand in both.

wire/ids.h against the tables of wire/PROTOCOL.md: packet types, lane types, arithmetic, formats, reasons to drop. The subcommands of
`netsum` against docs/command.md. The texts of tests/mutation/known.toml against the sources. Run from anywhere; prints one line
per offence and exits with 1 if there is any.
"""

import re
import sys

import check_main
import tomllib


def defines(text, prefix):
    """{name: number} of `#define PREFIX_NAME number`."""
    joined = text.replace("\\\n", "")
    return {name: int(n, 0) for name, n in re.findall(rf"#define {prefix}_(\w+) +(0x[0-9A-Fa-f]+|\d+)\b", joined)}


def formats(text):
    """{number: (operation, lane)} of the formats of lanes."""
    ops, lanes = defines(text, "NETSUM_OP"), defines(text, "NETSUM_LANE")
    pairs = re.findall(r"NETSUM_FORMAT\(NETSUM_OP_(\w+), NETSUM_LANE_(\w+)\)", text)
    return {ops[op] * 16 + lanes[lane]: (op, lane) for op, lane in pairs}


def wire_offences(ids, protocol):
    header = next(line for line in protocol.splitlines() if "`format` |" in line)
    arithmetic, lane_types = re.search(r"arithmetic \((.*?)\).*?lane type \((.*?)\)", header).groups()
    says = {
        "the lane types of section 2": (lane_types, defines(ids, "NETSUM_LANE")),
        "the arithmetic of section 2": (
            re.sub(r"(SUM|AVG) of (values|floats)", r"\1_\2", arithmetic),
            defines(ids, "NETSUM_OP"),
        ),
    }
    for what, (text, numbers) in says.items():
        listed = {name.upper(): int(n) for n, name in re.findall(r"(\d+) (\w+)", text)}
        if listed != numbers:
            yield f"wire/PROTOCOL.md: {what} are {listed}, in wire/ids.h {numbers}"
    rows = {cells[0]: cells[1] for cells in table_rows(protocol) if len(cells) > 1}
    in_table = {
        int(number, 16) for cell in rows.values() for number in re.findall(r"0x[0-9A-F]{2}\b", cell) if "to" not in cell
    }
    missing = {n: pair for n, pair in formats(ids).items() if n not in in_table}
    if missing:
        yield f"wire/PROTOCOL.md: the table of formats lacks {missing}"
    for prefix, lower in (("NETSUM_DROP", True), ("NETSUM_TYPE", False)):
        numbers = defines(ids, prefix)
        numbers.pop("COUNT", None)
        numbers.pop("NONE", None)
        listed = {
            cells[1].strip("`").upper(): int(cells[0])
            for cells in table_rows(protocol)
            if len(cells) > 1 and cells[0].isdigit() and (cells[1].startswith("`") == lower)
        }
        wrong = {name: number for name, number in numbers.items() if listed.get(name) != number}
        if wrong:
            yield f"wire/PROTOCOL.md: its tables lack {wrong} of {prefix}_* in wire/ids.h"


def table_rows(text):
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line.startswith("|")
    ]


def command_offences(root):
    names = set()
    for source in (root / "tools/netsum").glob("*.cc"):
        names |= set(re.findall(r'root\.add_subcommand\(\s*"(\w+)"', source.read_text(encoding="utf-8")))
    page = (root / "docs/command.md").read_text(encoding="utf-8")
    for name in sorted(names):
        if f"`netsum {name}" not in page and f"## netsum {name}" not in page:
            yield f"docs/command.md: nothing about `netsum {name}`"


def known_bug_offences(root):
    for bug in tomllib.loads((root / "tests/mutation/known.toml").read_text(encoding="utf-8"))["bug"]:
        times = (root / bug["file"]).read_text(encoding="utf-8").count(bug["old"])
        if times != 1:
            yield f"tests/mutation/known.toml: {bug['file']} has the text of {bug['name']} {times} times"


def check(root):
    ids = (root / "wire/ids.h").read_text(encoding="utf-8")
    protocol = (root / "wire/PROTOCOL.md").read_text(encoding="utf-8")
    return [*wire_offences(ids, protocol), *command_offences(root), *known_bug_offences(root)]


if __name__ == "__main__":
    sys.exit(check_main.main(__doc__, check, "contracts: documents and code agree"))
