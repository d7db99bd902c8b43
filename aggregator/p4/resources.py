#!/usr/bin/env python3
"""What the P4 program needs of a switch, computed from its source: registers, memory, header bits and passes.

aggregator/p4/resources.py           prints the tables
aggregator/p4/resources.py --check   compares them with those in docs/p4.md, the registers with those of the model, and
                                     verifies that each register is read and written at one place
aggregator/p4/resources.py --write   writes them into docs/p4.md
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
P4 = ROOT / "aggregator/p4/v1model"
MODEL = ROOT / "aggregator/p4/model"
DOCUMENT = ROOT / "docs/p4.md"
BEGIN, END = "<!-- resources of the P4 program -->", "<!-- end of resources -->"
SLOTS = 1024  # of the tables


def without_comments(text):
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)


def numbers():
    """The #defines of sizes.h that are numbers."""
    text = without_comments((ROOT / "aggregator/p4/sizes.h").read_text())
    return {name: int(value) for name, value in re.findall(r"#define (\w+) (\d+)\s*$", text, re.MULTILINE)}


def source():
    return "\n".join(without_comments(path.read_text()) for path in sorted(P4.glob("*.p4")))


def controls(text):
    """By name, the text of each control."""
    starts = [(m.start(), m[1]) for m in re.finditer(r"^control (\w+)\(", text, re.MULTILINE)]
    ends = [start for start, _ in starts[1:]] + [len(text)]
    return {name: text[start:end] for (start, name), end in zip(starts, ends, strict=True)}


def registers(text, sizes):
    """(control, name, bits, elements, instances) in the order of the source."""
    found = []
    for control, body in controls(text).items():
        instances = max(1, len(re.findall(rf"\b{control}\(\) \w+;", text)))
        for bits, size, name in re.findall(r"register<bit<(\d+)>, bit<32>>\((\w+)\) (\w+);", body):
            found.append((control, name, int(bits), sizes[size], instances))
    return found


def header_bits(text):
    """Bits of each header, and of the metadata."""
    bits = {}
    for kind, name, body in re.findall(r"(header|struct) (\w+) \{(.*?)\}", text, re.DOTALL):
        if kind == "header" or name == "metadata_t":
            bits[name] = sum(int(width) for width in re.findall(r"bit<(\d+)>", body))
    return bits


def tables(text, sizes):
    lines = ["| control | register | bits | elements | instances | KiB per 1024 slots |", "|--|--|--:|--:|--:|--:|"]
    total = 0
    for control, name, bits, elements, instances in registers(text, sizes):
        kib = bits * elements * instances / 8 / 1024 * SLOTS / sizes["NETSUM_P4_SLOTS"]
        total += kib
        lines.append(f"| `{control}` | `{name}` | {bits} | {elements} | {instances} | {kib:g} |")
    lines.append(f"| all | | | | | {total:g} |")

    bits = header_bits(text)
    words = sizes["NETSUM_P4_WORDS"]
    wire = sum(bits[name] for name in ("ethernet_t", "ipv4_t", "udp_t", "netsum_t", "pass_t"))
    lanes = words * bits["word_t"]
    lines += [
        "",
        "| packet header vector | bits |",
        "|--|--:|",
        f"| Ethernet, IPv4, UDP, netsum, pass | {wire} |",
        f"| lanes of a pass: {words} words | {lanes} |",
        f"| metadata | {bits['metadata_t']} |",
        f"| all | {wire + lanes + bits['metadata_t']} |",
        "",
        "| payload | passes of a contribution | of the last one | of a repeated RESULT | per round of 8 members |",
        "|--:|--:|--:|--:|--:|",
    ]
    for groups in range(1, sizes["NETSUM_P4_GROUPS"] + 1):
        lines.append(
            f"| {groups * sizes['NETSUM_P4_PASS_BYTES']} | {groups} | {2 * groups} | {2 * groups} | {9 * groups} |"
        )
    return "\n".join(lines)


def check_registers(text, sizes):
    """Each register is read and written once in its control, and the model has the same ones."""
    problems = []
    for control, name, *_ in registers(text, sizes):
        body = controls(text)[control]
        for access in ("read", "write"):
            count = len(re.findall(rf"\b{name}\.{access}\(", body))
            if count != 1:
                problems.append(f"{control}: register {name} has {count} times {access}(), not once")
    header, code = (without_comments((MODEL / name).read_text()) for name in ("pipeline.h", "pipeline.cc"))
    declared = {}
    for bits, names in re.findall(r"\bRegister<uint(\d+)_t>>? (\w+_(?:, \w+_)*);", header):
        declared.update(dict.fromkeys(names.split(", "), int(bits)))
    model = {}
    for name, bits in declared.items():
        size = re.search(rf"\b{name}\((?:NETSUM_P4_WORDS, Register<uint64_t>\()?k\w+, (\w+)\)", code)
        model[name.rstrip("_")] = (bits, sizes[size[1]] if size else 0)
    program = {"lanes" if name == "sums" else name: (bits, n) for _, name, bits, n, _ in registers(text, sizes)}
    for name in sorted(model.keys() | program.keys()):
        if model.get(name) != program.get(name):
            problems.append(
                f"register {name}: (bits, elements) are {program.get(name)}, in the model {model.get(name)}"
            )
    return problems


def main(arguments):
    text, sizes = source(), numbers()
    made = tables(text, sizes)
    if not arguments:
        print(made)
        return 0
    document = DOCUMENT.read_text()
    before, _, rest = document.partition(BEGIN)
    _, _, after = rest.partition(END)
    wanted = f"{before}{BEGIN}\n{made}\n{END}{after}"
    if arguments == ["--write"]:
        DOCUMENT.write_text(wanted)
        return 0
    problems = check_registers(text, sizes)
    if wanted != document:
        problems.append("docs/p4.md: the tables are not those of the source: run aggregator/p4/resources.py --write")
    print("\n".join(problems) or "P4 program, model and document: the same registers")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
