"""The benchmarks: measures one case, prints its tables, and keeps its records.

examples:
  python -m netsum_bench --list                                      what can be measured
  python -m netsum_bench rack --quick                                a look, under three minutes
  python -m netsum_bench rack --workers 8 --rate 100mbit --size 16Mi,64Mi
  python -m netsum_bench loss --loss 0,1% --system netsum-user,gloo --rounds 1
  python -m netsum_bench sparse --budget 5 --json sparse.jsonl       what fits into five minutes
  python -m netsum_bench one-host --help                             the options of a case
"""

import argparse
import sys
import time

from netsum_bench import options as of
from netsum_bench import report
from netsum_bench.cases import CASES
from netsum_bench.machine import ROOT, machine
from netsum_bench.processes import end_in_order, forget_settings_of_peers
from netsum_bench.runner import Run


def make_parser():
    line, _, examples = __doc__.partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m netsum_bench",
        description=line,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--list", action="store_true", help="print the cases, and end")
    commands = parser.add_subparsers(metavar="CASE", dest="case")
    for case in CASES.values():
        of.add_case(commands, case)
    return parser, commands


def main(arguments=None):
    parser, commands = make_parser()
    options = parser.parse_args(arguments)
    if options.list:
        for case in CASES.values():
            print(f"{case.name:18} {case.minutes:5g} min  {case.question}")
        return 0
    if options.case is None:
        parser.error("name a case; --list has all")
    case = CASES[options.case]
    axes = of.axes_of(case, options)
    path = options.json or ROOT / "build/bench" / time.strftime(f"{case.name}-%Y%m%d-%H%M%S.jsonl")
    if problem := of.problem_of(case, options):
        commands.choices[case.name].exit(3, f"netsum_bench {case.name}: {problem}\n")
    try:
        run = Run(case, axes, options.netsum, path, options.budget)
    except ValueError as bad:
        commands.choices[case.name].error(str(bad))
    forget_settings_of_peers()
    run.say(f"{case.name}: {case.question}\n{machine()}")
    run.measure_all()
    records = run.records()
    if records:
        page = path.with_suffix(".html")
        report.write_page(case, records, page)
        run.say(f"\n{report.text_of(case, records)}\n\n{run.seconds():.0f} s; records: {path}; page: {page}")
    return 0 if run.well() else 1


if __name__ == "__main__":
    end_in_order()
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("netsum_bench: stopped; what was started has been ended")
