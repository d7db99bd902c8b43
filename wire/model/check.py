#!/usr/bin/env python3
"""Checks the protocol's models with spin: every state that they can reach.

  check.py              all cases
  check.py NAME...      these
  check.py --list       their names

Needs spin and a C compiler. Prints one line per case and exits with 1 if one does not come out as it should: the
protocol without any error, the rules that are known to be wrong with the error that they are known for.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
DEADLINE_S = 500
WRONG_SUM = "assertion violated"
STUCK = "acceptance cycle"

# name: model, definitions, whether progress is checked (else assertions and dead ends), error to be found
CASES = {
    # No wrong sum, no deadlock, no packet ahead of its round; with progress, all members get all results if their probes pass.
    "slot": ("slot.pml", ["-DN=4", "-DR=6"], False, None),
    "slot_progress": ("slot.pml", ["-DN=3", "-DR=4"], True, None),
    # Without the result of the previous round, a member waits for ever.
    "slot_that_forgets_is_caught": ("slot.pml", ["-DN=2", "-DR=3", "-DFORGETS"], True, STUCK),
    # SwitchML's rule (two sets, an alternating bit, no round numbers) adds stale packets, except on a network that keeps order.
    "switchml_in_order": ("slot.pml", ["-DN=3", "-DR=4", "-DSWITCHML", "-DIN_ORDER"], False, None),
    "switchml_is_caught": ("slot.pml", ["-DN=2", "-DR=4", "-DSWITCHML"], False, WRONG_SUM),
    # Crashes or missed deadlines, of workers or the aggregator: no contribution and no result crosses epochs; all complete.
    "membership": ("membership.pml", ["-DR=3", "-DFAILURES=2"], False, None),
    "membership_progress": ("membership.pml", ["-DR=2", "-DFAILURES=1"], True, None),
    # Without epochs in packets, or without new slots in each epoch, sums are wrong.
    "no_epoch_is_caught": ("membership.pml", ["-DNO_EPOCH"], False, WRONG_SUM),
    "old_slots_are_caught": ("membership.pml", ["-DOLD_SLOTS"], False, WRONG_SUM),
}


class Unusable(Exception):
    """The tools are missing, or do not take the model."""


def run(command, folder):
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    except FileNotFoundError as error:
        raise Unusable(f"{error.filename} is missing; install it (scripts/packages.txt)") from error
    except subprocess.TimeoutExpired as error:
        raise Unusable(f"{command[0]} has not ended after {DEADLINE_S} s") from error
    if done.returncode != 0:
        raise Unusable(f"{' '.join(command)}: {(done.stdout + done.stderr).strip()[-2000:]}")
    return done.stdout


def explore(model, definitions, progress):
    """What the verifier says of the model."""
    with tempfile.TemporaryDirectory(prefix="netsum-model-") as folder:
        run(["spin", "-a", *definitions, str(HERE / model)], folder)
        # Weak fairness: whoever can go on all the time does so some time. Optimised, it would take longer to compile than to run.
        switches = ["-DNFAIR=3"] if progress else ["-DSAFETY", "-DNOCLAIM"]
        run(["cc", "-O0", "-w", *switches, "-o", "pan", "pan.c"], folder)
        return run(["./pan", "-m1000000", *(["-a", "-f"] if progress else [])], folder)


def check(name):
    model, definitions, progress, expected = CASES[name]
    started = time.monotonic()
    output = explore(model, definitions, progress)
    errors = int(re.search(r"errors: (\d+)", output).group(1))
    states = re.search(r"(\d+) states, stored", output).group(1)
    found = re.search(r"^pan:\d+: (.*?)( \(at depth \d+\))?$", output, re.MULTILINE)
    said = found.group(1) if found else "no error"
    if "max search depth too small" in output:
        said = "the search was cut off"
        right = False
    elif expected is None:
        right = errors == 0 and not found
    else:
        right = errors == 1 and expected in said
    verdict = "ok  " if right else "FAIL"
    print(f"{verdict} {name}: {said}; {states} states, {time.monotonic() - started:.1f} s", flush=True)
    return right


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in CASES]
    if unknown:
        parser.error(f"there is no case '{unknown[0]}'; there are {', '.join(CASES)}")
    if arguments.list:
        print("\n".join(CASES))
        return 0
    try:
        return 0 if all([check(name) for name in arguments.names or CASES]) else 1  # noqa: C419  (all are checked)
    except Unusable as error:
        print(f"check.py: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
