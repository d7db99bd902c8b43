"""Installs netsum into an empty prefix, builds the examples against it in both documented ways (find_package
and pkg-config), moves the prefix, and runs every program with two ranks. The programs check their own sums."""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
from netsum_bench.processes import free_port, running

BUILD_LIMIT_S = 240
RUN_LIMIT_S = 60


def run(command, **more):
    result = subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=BUILD_LIMIT_S,
        **more,
    )
    if result.returncode != 0:
        sys.exit(f"failed: {' '.join(map(str, command))}\n{result.stdout}")
    return result.stdout


def run_ranks(program, where, environment):
    """Two ranks of `program`; both must end well and say that their results are right."""
    ranks = [
        subprocess.Popen(
            [program, str(rank), "2", *where],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=RUN_LIMIT_S)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    for number, (rank, output) in enumerate(zip(ranks, outputs, strict=True)):
        if rank.returncode != 0 or "are right" not in output:
            sys.exit(f"failed: {program.name} {' '.join(where)}, rank {number}, status {rank.returncode}:\n{output}")
    print(f"ran {program.name} {' '.join(where)}")


def with_aggregator(prefix, programs, environment):
    command = [prefix / "bin/netsum", "aggregator", "--listen", "127.0.0.1:0", "--cores", "1"]
    with running(command, "ready: control ", "the installed aggregator", environment, end_s=RUN_LIMIT_S) as daemon:
        for program in programs:
            run_ranks(program, ["aggregator", daemon.first_line.split()[2].rstrip(",")], environment)
    if daemon.returncode != 0:
        sys.exit(f"failed: the aggregator ended with {daemon.returncode}")


def build_with_cmake(options, folder, prefix):
    # CMake splits flags at spaces and lists at semicolons; sanitizers' commas pass unharmed.
    run(
        [
            "cmake",
            "-S",
            options.source / "examples",
            "-B",
            folder,
            "-G",
            "Ninja",
            f"-DCMAKE_PREFIX_PATH={prefix}",
            f"-DCMAKE_CXX_COMPILER={options.cxx}",
            f"-DCMAKE_C_COMPILER={options.cc}",
            f"-DCMAKE_CXX_FLAGS={options.flags}",
            f"-DCMAKE_C_FLAGS={options.flags}",
        ]
    )
    run(["cmake", "--build", folder])
    return [
        folder / name for name in ("all_reduce_cc", "all_reduce_c", "collectives_cc", "collectives_c", "compressor_cc")
    ]


def build_with_pkg_config(options, folder, prefix):
    environment = dict(os.environ, PKG_CONFIG_PATH=str(next(prefix.rglob("pkgconfig"))))
    flags = run(["pkg-config", "--cflags", "--libs", "netsum"], env=environment).split()
    extra = options.flags.split()
    folder.mkdir()
    cxx = [options.cxx, "-std=c++20", *extra]
    cc = [options.cc, "-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror", *extra]
    programs = []
    for example in ("all_reduce", "collectives"):
        for compiler, suffix in ((cxx, "cc"), (cc, "c")):
            programs.append(folder / f"{example}_{suffix}")
            run([*compiler, "-o", programs[-1], options.source / f"examples/{example}.{suffix}", *flags])
    return programs


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--source", type=pathlib.Path, required=True)
    parser.add_argument("--cxx", required=True)
    parser.add_argument("--cc", required=True)
    parser.add_argument("--flags", default="")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        run(["cmake", "--install", options.build, "--prefix", root / "first"])
        # Nothing may depend on where it was first put.
        prefix = (root / "first").rename(root / "moved")
        by_cmake = build_with_cmake(options, root / "cmake", prefix)
        programs = by_cmake + build_with_pkg_config(options, root / "pkgconfig", prefix)
        library = next(prefix.rglob("libnetsum.so")).parent
        environment = dict(os.environ, LD_LIBRARY_PATH=str(library))
        for program in programs:
            run_ranks(program, ["root", f"127.0.0.1:{free_port()}"], environment)
        # What other programs load, and the command, find the library by themselves.
        for plugin in [*prefix.rglob("mca_coll_netsum.so"), *prefix.rglob("libnccl-net-netsum.so")]:
            if "not found" in run(["ldd", plugin]):
                sys.exit(f"failed: {plugin} does not find its libraries")
            print(f"checked {plugin.name}")
        environment.pop("LD_LIBRARY_PATH")
        print(run([prefix / "bin/netsum", "version"], env=environment).splitlines()[0])
        with_aggregator(prefix, by_cmake, dict(os.environ, LD_LIBRARY_PATH=str(library)))
    print("passed")


if __name__ == "__main__":
    main()
