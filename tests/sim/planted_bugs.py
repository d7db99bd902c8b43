#!/usr/bin/env python3
"""Plants known bugs, one at a time, and counts the random runs until the simulator finds each.

  planted_bugs.py [--runs N] [--list] [NAME...]      all by default, each in up to 20000 runs

Copies the sources to a build folder of its own (build/planted), replaces one piece of text there, builds the
simulation test and runs it. The sources of the project are not touched, and carry no switches for this. Prints a table
and exits with 1 if a bug was not found, or if its text is not in the sources any more.
"""
import argparse
import os
import pathlib
import re
import subprocess
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[2]
COPY = ROOT / "build" / "planted" / "source"
BUILD = ROOT / "build" / "planted" / "build"
BUILD_DEADLINE_S = 1800
RUN_DEADLINE_S = 1800

# name: what it does, file, text, replacement
BUGS = {
    "no_generation": (
        "the slot compares rounds by their last bit", "aggregator/slot/slot.h",
        "  const uint32_t bank = f->round & 1;\n  struct netsum_round* round = &slot->rounds[bank];\n\n"
        "  if (ahead == 1) { /* opens",
        "  const uint32_t bank = f->round & 1;\n  struct netsum_round* round = &slot->rounds[bank];\n\n"
        "  if (ahead & 1) { /* opens"),
    "duplicate_added": (
        "a contribution that comes twice is added twice", "aggregator/slot/slot.h",
        "  if (round->seen & bit) {", "  if ((round->seen & bit) && round->state == NETSUM_ROUND_COMPLETE) {"),
    "lost_duplicate": (
        "a member that asks again for a finished sum gets no answer", "aggregator/slot/slot.h",
        "    if (round->state == NETSUM_ROUND_COMPLETE && netsum_agrees(round, f)) {",
        "    if (0 && round->state == NETSUM_ROUND_COMPLETE && netsum_agrees(round, f)) {"),
    "result_not_kept": (
        "the previous round's result is forgotten when the next round opens", "aggregator/slot/slot.h",
        "  return netsum_act(NETSUM_ACT_REPLY_RESULT, bank, 0);\n}\n\n/* A contribution may",
        "  return netsum_dropped(NETSUM_DROP_STALE_ROUND);\n}\n\n/* A contribution may"),
    "early_completion": (
        "a round counts as complete without the last member", "aggregator/slot/slot.h",
        "  if (round->seen != netsum_all_members(rules->members)) return 0;",
        "  if (round->seen != netsum_all_members(rules->members) && (rules->members < 3 ||\n"
        "      round->seen != netsum_all_members(rules->members - 1))) return 0;"),
    "no_epoch": (
        "the aggregator does not look at the epoch", "aggregator/slot/slot.h",
        "  if (f->epoch != rules->epoch) return NETSUM_DROP_STALE_EPOCH;\n", ""),
    "old_slots": (
        "a new job finds the slots of the old one as they were", "aggregator/server/core.cc",
        "  std::fill_n(slots_.begin() + first.value(), wanted, netsum_slot{});\n", ""),
    "slot_leak": (
        "a job that ends gives back one slot too few", "aggregator/server/core.cc",
        "ranges_.give_back(job.first_slot, job.rules.slots);",
        "ranges_.give_back(job.first_slot, job.rules.slots - 1);"),
    "other_bank": (
        "a repeated result is taken from the other round", "aggregator/server/core.cc",
        "return reply(frame_of(index, verdict.bank), NETSUM_HEADER_BYTES",
        "return reply(frame_of(index, verdict.bank ^ 1u), NETSUM_HEADER_BYTES"),
    "to_another_job": (
        "results go to the members of the neighbouring job", "aggregator/server/core.cc",
        "    const Job& job = jobs_[broadcasts_[begin].job];",
        "    const Job& job = jobs_[broadcasts_[begin].job ^ (jobs_[broadcasts_[begin].job ^ 1].rules.members > 0)];"),
    "stale_result": (
        "a worker takes the result of any round of its slot", "src/worker/stripe_receive.cc",
        "if (!slot.waiting || fields.round != slot.round) {", "if (!slot.waiting) {"),
    "window_off_by_one": (
        "a worker sends one step more than there are slots", "src/worker/stripe_send.cc",
        "next_sequence_ - lowest_waiting_ >= options_.data_slots",
        "next_sequence_ - lowest_waiting_ > options_.data_slots"),
    "never_asks_again": (
        "a worker probes once and no more", "src/worker/stripe_send.cc",
        "  slot.probe_at_us = now_us + wait_us;\n  schedule(slot.probe_at_us);",
        "  slot.probe_at_us = INT64_MAX;\n  (void)wait_us;"),
    "early_end": (
        "an operation ends one group of chunks early", "src/worker/worker_core.cc",
        "if (it->operation->groups_left > 0) {", "if (it->operation->groups_left > 1) {"),
    "unchecked": (
        "a worker does not verify the integrity check", "src/worker/worker_core.cc",
        "  if (!wire::check_is_right(packet.data, fields, stripe->key(),\n"
        "                            kernels::nh(payload, fields.payload_bytes, stripe->key().table()))) {",
        "  if (false) {"),
    "late_deadline": (
        "deadlines are looked at a tenth of a second late", "src/worker/worker_core.cc",
        "if (now_us >= pending.operation->deadline_us())",
        "if (now_us >= pending.operation->deadline_us() + 100'000)"),
}


class Failure(Exception):
    """Something that keeps a bug from being tried."""


def run(command, deadline_s, **more):
    return subprocess.run(command, capture_output=True, text=True, timeout=deadline_s, check=False, **more)


def copy_sources():
    """Only what has changed, with the time of now, so that a second call builds little."""
    folders = ("include", "src", "wire", "aggregator", "emulate", "tests", "cmake")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    for path in [*files, ROOT / "CMakeLists.txt"]:
        copy = COPY / path.relative_to(ROOT)
        content = path.read_bytes()
        if copy.exists() and copy.read_bytes() == content:
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(content)


def build():
    if not (BUILD / "build.ninja").exists():
        done = run(["cmake", "-G", "Ninja", "-S", str(COPY), "-B", str(BUILD), "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
                    "-DNETSUM_BUILD_TOOLS=OFF"], BUILD_DEADLINE_S)
        if done.returncode != 0:
            raise Failure("cmake: " + done.stderr[-1500:])
    done = run(["ninja", "-C", str(BUILD), "sim_test"], BUILD_DEADLINE_S)
    if done.returncode != 0:
        raise Failure("the build failed: " + done.stdout[-1500:])


def simulate(runs):
    """What was found, and after how many runs; None if nothing was."""
    environment = {**os.environ, "NETSUM_SIM_RUNS": str(runs), "NETSUM_SIM_SEED": "1"}
    done = run([str(BUILD / "tests" / "sim" / "sim_test"), "--gtest_filter=*NothingIsWrong*"], RUN_DEADLINE_S,
               env=environment)
    output = done.stdout + done.stderr
    count = re.search(r"(\d+) runs done", output)
    if count:
        said = re.search(r"Expected: true\n(.*)", output)
        return int(count.group(1)), textwrap.shorten(said.group(1), 90, placeholder=" ...") if said else ""
    aborted = re.search(r"rerun: netsum simulate --seed (\d+)", output)
    if aborted:
        return int(aborted.group(1)), "an assertion of the engine"
    if done.returncode != 0:
        raise Failure(output[-1500:])
    return None


def plant(name, runs):
    what, path, text, replacement = BUGS[name]
    original = (ROOT / path).read_text(encoding="utf-8")
    if original.count(text) != 1:
        raise Failure(f"{path} has the text {original.count(text)} times; adapt the bug to the sources")
    planted = COPY / path
    planted.write_text(original.replace(text, replacement), encoding="utf-8")
    try:
        build()
        found = simulate(runs)
    finally:
        planted.write_text(original, encoding="utf-8")
    if found is None:
        print(f"| `{name}` | {what} | NOT FOUND in {runs} | |", flush=True)
    else:
        print(f"| `{name}` | {what} | {found[0]} | {found[1]} |", flush=True)
    return found is not None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--runs", type=int, default=20000, help="give up on a bug after so many runs")
    parser.add_argument("--list", action="store_true", help="print the names of the bugs")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in BUGS]
    if unknown:
        parser.error(f"there is no bug '{unknown[0]}'; there are {', '.join(BUGS)}")
    if arguments.list:
        print("\n".join(f"{name}: {bug[0]}" for name, bug in BUGS.items()))
        return 0
    copy_sources()
    print("| bug | what | found after runs | by |\n|--|--|--:|--|", flush=True)
    all_found = True
    for name in arguments.names or BUGS:
        try:
            all_found &= plant(name, arguments.runs)
        except (Failure, subprocess.TimeoutExpired) as error:
            print(f"planted_bugs.py: {name}: {error}", file=sys.stderr)
            all_found = False
    return 0 if all_found else 1


if __name__ == "__main__":
    sys.exit(main())
