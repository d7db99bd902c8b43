#!/usr/bin/env python3
"""Builds the fuzzers by the CMake preset `fuzz` (clang 14's libFuzzer, AddressSanitizer and UBSan), and runs them.

  fuzz.py [--seconds N] [TARGET...]     all targets, N seconds each (default 10)

Each starts from its corpus in tests/fuzz/corpus and keeps what it finds in build/fuzz/corpus. An input that breaks something
stays in build/fuzz as crash-*; `build/fuzz/tests/fuzz/TARGET FILE` runs it again. Exits with 1 if there is one.
"""

import argparse
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = ROOT / "build" / "fuzz"
# The longest input of each target.
TARGETS = dict(re.findall(r"netsum_fuzzer\((\w+) LONGEST (\d+)", (ROOT / "tests/fuzz/CMakeLists.txt").read_text()))


def build(targets):
    for command in (["cmake", "--preset", "fuzz"], ["cmake", "--build", "--preset", "fuzz", "--target", *targets]):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False)
        if done.returncode != 0:
            sys.exit(
                f"fuzz.py: {' '.join(command)} failed; it needs the packages of scripts/packages.txt\n{done.stdout}{done.stderr}"
            )


def fuzz(target, seconds):
    found = OUT / "corpus" / target
    found.mkdir(parents=True, exist_ok=True)
    command = [
        str(OUT / "tests/fuzz" / target),
        f"-max_total_time={seconds}",
        f"-max_len={TARGETS[target]}",
        "-timeout=20",
        "-rss_limit_mb=1024",
        "-print_final_stats=1",
        f"-artifact_prefix={OUT}/",
        str(found),
        str(ROOT / "tests" / "fuzz" / "corpus" / target),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 300, check=False)
    except subprocess.TimeoutExpired:
        print(f"FAIL {target}: has not ended {300} s after its time")
        return False
    runs = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    covered = re.findall(r"cov: (\d+)", done.stderr)
    if done.returncode != 0:
        print(f"FAIL {target}: {done.stderr[-3000:]}")
        return False
    print(
        f"ok   {target}: {runs.group(1) if runs else '?'} inputs in {seconds} s, "
        f"{covered[-1] if covered else '?'} edges covered",
        flush=True,
    )
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET")
    parser.add_argument("--seconds", type=int, default=10, help="for each target")
    arguments = parser.parse_args()
    unknown = [target for target in arguments.targets if target not in TARGETS]
    if unknown:
        parser.error(f"there is no target '{unknown[0]}'; there are {', '.join(TARGETS)}")
    targets = arguments.targets or list(TARGETS)
    build(targets)
    return 1 if sum(not fuzz(target, arguments.seconds) for target in targets) else 0


if __name__ == "__main__":
    sys.exit(main())
