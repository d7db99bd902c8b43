#!/usr/bin/env python3
"""What the P4 programs need of a switch, computed from their sources: registers, memory, stages, header bits and passes.

aggregator/p4/resources.py           prints the tables, with each register
aggregator/p4/resources.py --check   compares those of docs/p4.md, the registers of v1model with those of the model, and
                                     verifies that each of these is read and written at one place
aggregator/p4/resources.py --write   writes the tables but those of the registers into docs/p4.md
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
P4 = ROOT / "aggregator/p4"
MODEL = ROOT / "aggregator/p4/model"
DOCUMENT = ROOT / "docs/p4.md"
SLOTS = 1024  # of the tables


def without_comments(text):
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)


def numbers():
    """The #defines of sizes.h that are numbers."""
    text = without_comments((ROOT / "aggregator/p4/sizes.h").read_text())
    return {name: int(value) for name, value in re.findall(r"#define (\w+) (\d+)\s*$", text, re.MULTILINE)}


def source(program):
    """Of a program, with what both have."""
    paths = sorted((P4 / "common").glob("*.p4")) + sorted((P4 / program).glob("*.p4"))
    return "\n".join(without_comments(path.read_text()) for path in paths)


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


def tna_registers(text, sizes):
    """(control, name, bits, elements, stages of the instances) in the order of the source."""
    found = []
    for control, body in controls(text).items():
        pattern = r"(?:@stage\((\d+)\) )?Register<(\w+)(?:<(\d+)>)?, bit<32>>\((\w+), [^)]*\) (\w+);"
        for stage, kind, width, size, name in re.findall(pattern, body):
            struct = re.search(rf"struct {kind} \{{(.*?)\}}", text, re.DOTALL)
            bits = int(width) if width else sum(int(w) for w in re.findall(r"bit<(\d+)>", struct[1]))
            stages = [int(s) for s in re.findall(rf"@stage\((\d+)\) {control}\(\) \w+;", text)]
            instances = max(1, len(re.findall(rf"\b{control}\(\) \w+;", text)))
            found.append((control, name, bits, sizes[size], stages or [int(stage)] * instances))
    return found


def header_bits(text):
    """Bits of each header, and of the metadata."""
    bits = {}
    for kind, name, body in re.findall(r"(header|struct) (\w+) \{(.*?)\}", text, re.DOTALL):
        if kind == "header" or name == "metadata_t":
            bits[name] = sum(int(width) for width in re.findall(r"bit<(\d+)>", body))
    return bits


def kib(bits, elements, instances, slots):
    return bits * elements * instances / 8 / 1024 * SLOTS / slots


def memory(total):
    return f"Registers: {total:g} KiB per {SLOTS} slots."


def header_rows(bits, headers, words, extra=()):
    rows = [("Ethernet, IPv4, UDP, netsum, " + headers[0], sum(bits[name] for name in headers[1]))]
    rows += [(f"lanes of a pass: {words} words", words * bits["word_t"]), *extra, ("metadata", bits["metadata_t"])]
    rows.append(("all", sum(row[1] for row in rows)))
    return ["| packet header vector | bits |", "|--|--:|", *(f"| {name} | {number} |" for name, number in rows)]


def tables(text, sizes):
    """Of the registers, and for the document."""
    table = ["| control | register | bits | elements | instances | KiB per 1024 slots |", "|--|--|--:|--:|--:|--:|"]
    total = 0
    for control, name, bits, elements, instances in registers(text, sizes):
        size = kib(bits, elements, instances, sizes["NETSUM_P4_SLOTS"])
        total += size
        table.append(f"| `{control}` | `{name}` | {bits} | {elements} | {instances} | {size:g} |")
    lines = [memory(total), ""]
    frame = ["ethernet_t", "ipv4_t", "udp_t", "netsum_t"]
    lines += header_rows(header_bits(text), ("pass", [*frame, "pass_t"]), sizes["NETSUM_P4_WORDS"])
    lines += [
        "",
        "| payload | passes of a contribution | of the last one | of a repeated RESULT | per round of 8 members |",
        "|--:|--:|--:|--:|--:|",
    ]
    for groups in range(1, sizes["NETSUM_P4_GROUPS"] + 1):
        lines.append(
            f"| {groups * sizes['NETSUM_P4_PASS_BYTES']} | {groups} | {2 * groups} | {2 * groups} | {9 * groups} |"
        )
    return "\n".join(table), "\n".join(lines)


def tna_tables(text, sizes):
    """Of the registers, and for the document."""
    table = ["| control | register | bits | elements | stages | KiB per 1024 slots |", "|--|--|--:|--:|--|--:|"]
    total = 0
    for control, name, bits, elements, stages in tna_registers(text, sizes):
        size = kib(bits, elements, len(stages), sizes["NETSUM_TNA_SLOTS"])
        total += size
        where = ", ".join(
            f"{stage}" if stages.count(stage) == 1 else f"{stages.count(stage)} in {stage}"
            for stage in sorted(set(stages))
        )
        table.append(f"| `{control}` | `{name}` | {bits} | {elements} | {where} | {size:g} |")
    frame = ["ethernet_t", "ipv4_t", "udp_t", "netsum_t"]
    words = sizes["NETSUM_TNA_WORDS"]
    rows = header_rows(
        header_bits(text),
        ("pass, bridge, answer", [*frame, "pass_t", "bridge_t", "answer_t"]),
        words,
        [("upper halves of the lanes", 32 * words)],
    )
    lines = [
        memory(total),
        "",
        *rows,
        "",
        "| formats | payload | passes of a contribution | of the last one | per round of 8 members |",
    ]
    lines.append("|--|--:|--:|--:|--:|")
    kinds = {}
    for name, last_in, last_out in re.findall(r"NETSUM_FORMAT_(\w+): lanes\((\d), (\d)\);", text):
        kinds.setdefault((int(last_in) + 1, int(last_out) + 1), []).append(name.replace("_", " "))
    for (passes_in, passes_out), names in sorted(kinds.items()):
        for payload in (128, 256, 1024):
            groups = payload // sizes["NETSUM_TNA_PASS_BYTES"]
            one, out = 1 + groups * passes_in, groups * passes_out
            lines.append(f"| {', '.join(names)} | {payload} | {one} | {one + out} | {8 * one + out} |")
    return "\n".join(table), "\n".join(lines)


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


def replaced(document, name, made):
    """The document with the tables between the comments of this name."""
    begin, end = f"<!-- resources of {name} -->", f"<!-- end of resources of {name} -->"
    before, found, rest = document.partition(begin)
    _, ends, after = rest.partition(end)
    if not found or not ends:
        raise SystemExit(f"{DOCUMENT}: no {begin}, or no {end}")
    return f"{before}{begin}\n{made}\n{end}{after}"


def main(arguments):
    sizes = numbers()
    text, tna_text = source("v1model"), source("tna")
    made = {"v1model": tables(text, sizes), "tna": tna_tables(tna_text, sizes)}
    if not arguments:
        print("\n\n".join(part for parts in made.values() for part in parts))
        return 0
    document = wanted = DOCUMENT.read_text()
    for name, (_, lines) in made.items():
        wanted = replaced(wanted, name, lines)
    if arguments == ["--write"]:
        DOCUMENT.write_text(wanted)
        return 0
    problems = check_registers(text, sizes)
    if wanted != document:
        problems.append("docs/p4.md: the tables are not those of the source: run aggregator/p4/resources.py --write")
    print("\n".join(problems) or "P4 programs, model and document: the same registers")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
