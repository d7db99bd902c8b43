"""The options of a case: one for each axis."""

import argparse
import importlib.util
import inspect
import os
import pathlib
import re
import shutil

from netsum_bench.machine import ROOT

SUFFIX = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
NETSUM = ROOT / "build/release/tools/netsum/netsum"


def parse_size(text):
    for suffix, factor in SUFFIX.items():
        if text.endswith(suffix):
            return int(text[: -len(suffix)]) * factor
    return int(text)


def parse_rate(text):
    if not re.fullmatch(r"none|\d+(\.\d+)?[kmg]bit", text):
        raise argparse.ArgumentTypeError(f"'{text}' is no rate: use e.g. 100mbit, 1gbit, or none")
    return text


def parse_share(text):
    """A number from 0 to 1, also in percent."""
    value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not from 0 to 1: use e.g. 0.01 or 1%")
    return value


def number_from(least, most):
    """Parses a number in this range."""

    def parse(text):
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"'{text}' is not a number from {least} to {most}")
        return int(text)

    return parse


def names_of(known):
    """Parses a comma-separated list of these names."""

    def parse(text):
        for name in text.split(","):
            if name not in known:
                raise argparse.ArgumentTypeError(f"'{name}' is none of {', '.join(known)}")
        return list(dict.fromkeys(text.split(",")))

    return parse


# What axes mean wherever they occur, and how one value of them is parsed.
FIELDS = {
    "workers": (number_from(2, 64), "ranks"),
    "rate": (parse_rate, "of all links, such as 100mbit, or none"),
    "bytes": (parse_size, "of a tensor as float32, such as 16Mi"),
    "count": (parse_size, "elements of a tensor"),
    "copies": (parse_rate, "rate of the simulated bus of an accelerator, each way"),
    "loss": (parse_share, "on every link, each way, such as 1%%"),
    "density": (parse_share, "of elements that are not zero"),
    "steps": (number_from(1, 10**6), "of a training"),
    "seed": (number_from(0, 2**63), "of random numbers"),
    "mtu": (number_from(576, 9216), "of the links"),
    "trace": (str, ""),
    "dataplane": (None, "of the switch"),
    "system": (None, "what is compared"),
}
ALIASES = {"bytes": "--size"}


def parser_of(case, field, values):
    """Of a comma-separated list for this axis."""
    parse = FIELDS.get(field, (None,))[0]
    if field in case.known or (parse is None and isinstance(values[0], str)):
        return names_of(list(case.known.get(field, values)))
    parse = parse or (parse_share if isinstance(values[0], float) else number_from(0, 10**9))
    return lambda text: [parse(part) for part in text.split(",")]


def text_of(value):
    if isinstance(value, int) and not isinstance(value, bool) and value and value % 1024 == 0:
        suffix, factor = max((one for one in SUFFIX.items() if value % one[1] == 0), key=lambda one: one[1])
        return f"{value // factor}{suffix}"
    return f"{value:g}" if isinstance(value, float) else str(int(value) if isinstance(value, bool) else value)


def add_case(commands, case):
    """The case's own command line."""
    parser = commands.add_parser(
        case.name,
        help=case.question.replace("%", "%%"),
        description=f"{case.question}\n\n{inspect.cleandoc(case.lab.__doc__)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for field, values in case.axes.items():
        if field == "round":
            continue
        text = case.help.get(field) or FIELDS.get(field, (None, ""))[1]
        known = case.known.get(field)
        of = f"; of {','.join(map(text_of, known))}".replace("%", "%%") if known else ""
        default = ",".join(map(text_of, values)).replace("%", "%%")
        parser.add_argument(
            *dict.fromkeys((f"--{field}", ALIASES.get(field, f"--{field}"))),
            dest=f"axis_{field}",
            type=parser_of(case, field, values),
            metavar="LIST" if len(values) > 1 or known else "VALUE",
            help=f"{text}{of} (default {default})",
        )
    if "round" in case.axes:
        count = len(case.axes["round"])
        parser.add_argument("--rounds", type=number_from(1, 1000), help=f"turns of every system (default {count})")
    if case.quick:
        parser.add_argument("--quick", action="store_true", help=f"a look: {case.quick}".replace("%", "%%"))
    if case.full:
        parser.add_argument("--full", action="store_true", help=f"also what takes long: {case.full}".replace("%", "%%"))
    parser.add_argument("--netsum", type=pathlib.Path, default=NETSUM, help="the command to measure")
    parser.add_argument("--budget", type=float, metavar="MIN", help="minutes after which no further measurement begins")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="file to append the records to")
    return parser


def axes_of(case, options):
    """The axes of a run with these options."""
    axes = dict(case.axes)
    for wanted, changes in (("full", case.full), ("quick", case.quick)):
        if getattr(options, wanted, False):
            axes.update(changes)
    given = {field: getattr(options, f"axis_{field}", None) for field in axes}
    axes.update({field: values for field, values in given.items() if values is not None})
    if getattr(options, "rounds", None) is not None:
        axes["round"] = list(range(options.rounds))
    return axes


# What a case may need: whether it is there, and what to do if it is not.
NEEDS = {
    "root": (lambda options: os.geteuid() == 0, "virtual racks need root: run it with sudo"),
    "netsum": (lambda options: options.netsum.exists(), "there is no {netsum}: run make build, or name it by --netsum"),
    "package": (
        lambda options: importlib.util.find_spec("netsum") is not None,
        "the Python package is not installed: scripts/install_wheel.sh",
    ),
    "perf": (lambda options: shutil.which("perf") is not None, "there is no perf: apt install linux-perf"),
}


def problem_of(case, options):
    """What the case lacks here, or None."""
    missing = [text for has, text in (NEEDS[need] for need in case.needs) if not has(options)]
    return missing[0].format(netsum=options.netsum) if missing else None
