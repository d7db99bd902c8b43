#!/usr/bin/env python3
"""Builds the fuzzers with clang 14's libFuzzer, AddressSanitizer and UBSan, and runs them.

  fuzz.py [--seconds N] [TARGET...]     all targets, N seconds each (default 10)

Each starts from its corpus in tests/fuzz/corpus and keeps what it finds in build/fuzz. An input that breaks something
stays in build/fuzz as crash-*; `build/fuzz/TARGET FILE` runs it again. Exits with 1 if there is one.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = pathlib.Path(os.environ.get("NETSUM_FUZZ_DIR", ROOT / "build" / "fuzz"))
COMPILER = "clang++-14"
FLAGS = [
    "-std=c++20",
    "-g",
    "-O1",
    "-Wall",
    "-Wextra",
    "-Wno-missing-field-initializers",
    "-fno-sanitize-recover=all",
    "-fsanitize=fuzzer,address,undefined",
    f"-I{ROOT}",
    f"-I{ROOT / 'include'}",
]
BUILD_DEADLINE_S = 500

# target: folders whose sources it uses, and the longest input
TARGETS = {
    "packet_fuzz": (["wire"], 9100),
    "slot_fuzz": ([], 602),
    "address_fuzz": (["src/net", "src/base"], 120),
    "control_fuzz": (
        [
            "aggregator/control",
            "aggregator/dataplane",
            "src/base",
            "src/control",
            "src/job",
            "src/net",
            "src/plan",
            "wire",
        ],
        4096,
    ),
}
# Messages and services that targets need.
PROTOS = ["src/job/job.proto", "src/control/control.proto"]
WITH_PROTO = {"control_fuzz"}


def run(command):
    """What a command of the build says; ends the program if it fails or is missing."""
    try:
        done = subprocess.run(
            list(map(str, command)), capture_output=True, text=True, timeout=BUILD_DEADLINE_S, check=False
        )
    except FileNotFoundError:
        sys.exit(f"fuzz.py: {command[0]} is missing; install the packages of scripts/packages.txt")
    if "libclang_rt" in done.stderr and done.returncode != 0:
        sys.exit(
            "fuzz.py: clang's runtime is missing; install libclang-rt-14-dev (scripts/packages.txt)\n" + done.stderr
        )
    if done.returncode != 0:
        sys.exit(f"fuzz.py: {' '.join(map(str, command[:3]))} ... has failed\n{done.stderr}")


def sources_of(folder):
    """Production code, without that of subfolders."""
    return [path for path in sorted((ROOT / folder).glob("*.cc")) if not path.stem.endswith(("_test", "testing"))]


def generate():
    """The code of the protocol's messages and services: sources and flags."""
    generated = OUT / "generated"
    generated.mkdir(exist_ok=True)
    plugin = shutil.which("grpc_cpp_plugin")
    run(
        [
            *("protoc", "-I", ROOT, f"--cpp_out={generated}", f"--grpc_out={generated}"),
            *(f"--plugin=protoc-gen-grpc={plugin}", *(ROOT / proto for proto in PROTOS)),
        ]
    )
    return sorted(generated.rglob("*.pb.cc")), ["-isystem", generated, "-DGRPC_USE_PROTO_LITE"]


def build(target):
    """Compiles whole folders to an archive, of which the linker takes what the target needs."""
    sources = [path for folder in TARGETS[target][0] for path in sources_of(folder)]
    flags, libraries = list(FLAGS), []
    if target in WITH_PROTO:
        generated, more_flags = generate()
        sources += generated
        flags += more_flags
        libraries += ["-lgrpc++", "-lgrpc", "-lprotobuf"]
    main = ROOT / "tests" / "fuzz" / f"{target}.cc"
    objects = {
        source: OUT / "objects" / target / source.parent.name / f"{source.name}.o" for source in [main, *sources]
    }
    for path in objects.values():
        path.parent.mkdir(parents=True, exist_ok=True)
    launcher = ["ccache"] if shutil.which("ccache") else []
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(
            lambda pair: run([*launcher, COMPILER, *flags, "-c", pair[0], "-o", pair[1]]), objects.items()
        ):
            pass
    archive = OUT / "objects" / target / "folders.a"
    archive.unlink(missing_ok=True)
    run(["ar", "rcs", archive, *(objects[source] for source in sources)])
    run([COMPILER, *flags, objects[main], archive, *libraries, "-o", OUT / target])


def fuzz(target, seconds):
    found = OUT / "corpus" / target
    found.mkdir(parents=True, exist_ok=True)
    command = [
        str(OUT / target),
        f"-max_total_time={seconds}",
        f"-max_len={TARGETS[target][1]}",
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
    OUT.mkdir(parents=True, exist_ok=True)
    right = True
    for target in arguments.targets or TARGETS:
        build(target)
        right &= fuzz(target, arguments.seconds)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
