"""Runs a command and adds what it printed as a record: for pieces of `make results` whose report is their figures.

python -m netsum_bench.capture --output FILE -- COMMAND...
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys

from netsum_bench.machine import ROOT
from netsum_bench.records import append_to

REPORT_BEGINS = re.compile(r"^\d+ runs in |; \d+ cores; Linux")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="+")
    parser.add_argument("--output", type=pathlib.Path, required=True, help="file to append the record to")
    options = parser.parse_args()
    lines = []
    process = subprocess.Popen(options.command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line.rstrip().replace(str(ROOT) + os.sep, ""))
    finally:
        status = process.wait()
    # Before the report, lines of progress.
    first = max((n for n, line in enumerate(lines) if REPORT_BEGINS.search(line)), default=0)
    if status == 0:
        append_to(options.output)(
            {
                "what": "said",
                "command": " ".join(options.command),
                "lines": [line for line in lines[first:] if not line.startswith("report:")],
            }
        )
    return status


if __name__ == "__main__":
    sys.exit(main())
