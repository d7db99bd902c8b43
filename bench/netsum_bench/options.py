"""Options that the benchmarks share."""

import argparse
import os
import pathlib
import re
import time

from netsum_bench.machine import ROOT
from netsum_bench.records import append_to

SUFFIX = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}


def parse_size(text):
    for suffix, factor in SUFFIX.items():
        if text.endswith(suffix):
            return int(text[: -len(suffix)]) * factor
    return int(text)


def parse_rate(text):
    if not re.fullmatch(r"none|\d+(\.\d+)?[kmg]bit", text):
        raise argparse.ArgumentTypeError(f"'{text}' is no rate: use e.g. 100mbit, 1gbit, or none")
    return text


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


def make_parser(description, netsum=True, budget=False):
    """A parser with the options that all have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if netsum:
        parser.add_argument(
            "--netsum",
            type=pathlib.Path,
            default=ROOT / "build/release/tools/netsum/netsum",
            help="the command to measure",
        )
    if budget:
        parser.add_argument("--budget", type=float, help="minutes after which no further measurement begins")
    parser.add_argument("--output", type=pathlib.Path, help="file to append the records to")
    return parser


def add_choice(parser, option, known, note=""):
    """An option that takes some of these names, and all of them by default. `note` goes before them in its help."""
    names = list(known)
    text = f"{note}some of {','.join(names)}; default all".replace("%", "%%")  # argparse formats it
    parser.add_argument(option, type=names_of(names), default=names, help=text)


def new_output(name):
    """A file for the records of a run that names none."""
    return ROOT / "build/bench" / time.strftime(f"{name}-%Y%m%d-%H%M%S.jsonl")


def need_root(parser):
    if os.geteuid() != 0:
        parser.exit(3, f"{parser.prog}: virtual racks need root: run it with sudo\n")


def need_netsum(parser, options):
    if not options.netsum.exists():
        parser.exit(3, f"{parser.prog}: there is no {options.netsum}: run make build, or name it by --netsum\n")


def ready(parser, options, name):
    """Ends the program unless there is the command; without --output the records go to a new file of this name. Returns `options`."""
    need_netsum(parser, options)
    if options.output is None:
        options.output = new_output(name)
    return options


def ready_for_racks(parser, options, name):
    """As ready(), and ends the program unless racks can be made."""
    need_root(parser)
    return ready(parser, options, name)


class BenchmarkRun:
    """A run of a benchmark: its records go to the output, its failures are kept, and its budget may be spent."""

    def __init__(self, options):
        self._begun = time.monotonic()
        self._budget = getattr(options, "budget", None)
        self._append = append_to(options.output)
        self.failures = []

    def seconds(self):
        return time.monotonic() - self._begun

    def expired(self):
        return not self.fits(0)

    def fits(self, seconds):
        """Whether the budget lasts for so long from now on."""
        return self._budget is None or self.seconds() + seconds <= 60 * self._budget

    def keep(self, record):
        self._append(record)
        if "failed" in record or record.get("wrong"):
            self.failures.append(record)


def say(text):
    print(text, flush=True)
