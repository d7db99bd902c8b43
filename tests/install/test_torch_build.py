"""The configuration of the extension beside builds of PyTorch that are not the one of this environment."""

import concurrent.futures
import importlib.util
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import zipfile

import pytest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
LIMIT_S = 120
# Enough of the project for torch/CMakeLists.txt.
PROJECT = """
cmake_minimum_required(VERSION 3.25)
project(netsum CXX)
set(CMAKE_CXX_STANDARD 20)
add_library(netsum INTERFACE)
include({source}/cmake/NetsumTargets.cmake)
add_subdirectory({source}/torch torch)
"""
# What find_package(Torch) would read: the message is that of a build for CUDA on a machine without the CUDA toolkit.
CONFIG = 'message(FATAL_ERROR "Your installed Caffe2 version uses CUDA but I cannot find the CUDA libraries")\n'


def real_torch():
    return pathlib.Path(importlib.util.find_spec("torch").submodule_search_locations[0])


def fake_torch(folder, version, include=None):
    """A package of the name torch with the headers and libraries of the real one, which has the configuration of CUDA's.

    include: the headers of another one.
    """
    torch = folder / "torch"
    for part in ("share/cmake/Torch", "share/cmake/Caffe2", "lib"):
        (torch / part).mkdir(parents=True)
    (torch / "include").symlink_to(include or real_torch() / "include")
    for library in ("libc10.so", "libtorch.so", "libtorch_cpu.so", "libtorch_python.so"):
        (torch / "lib" / library).symlink_to(real_torch() / "lib" / library)
    for library in ("libc10_cuda.so", "libtorch_cuda.so"):
        (torch / "lib" / library).touch()
    (torch / "share/cmake/Torch/TorchConfig.cmake").write_text(CONFIG, encoding="utf-8")
    (torch / "share/cmake/Caffe2/Caffe2Config.cmake").write_text(CONFIG, encoding="utf-8")
    (torch / "__init__.py").write_text("raise RuntimeError('imported: that takes seconds')\n", encoding="utf-8")
    (torch / "version.py").write_text(f"__all__ = ['__version__']\n__version__ = '{version}'\n", encoding="utf-8")
    return torch


def configured(tmp_path, torch):
    """Returns the folder of the build, and its compile commands."""
    (tmp_path / "project").mkdir()
    (tmp_path / "project/CMakeLists.txt").write_text(PROJECT.format(source=SOURCE), encoding="utf-8")
    build = tmp_path / "build"
    run = subprocess.run(
        ["cmake", "-S", tmp_path / "project", "-B", build, "-G", "Ninja", f"-DPython_EXECUTABLE={sys.executable}"]
        + ["-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"],
        env=os.environ | {"PYTHONPATH": str(torch.parent)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return build, json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))


def sources_of(compile_commands):
    """Those that are compiled alone, and those that units include."""
    text = "".join(pathlib.Path(entry["file"]).read_text(encoding="utf-8") for entry in compile_commands)
    alone = [entry["file"] for entry in compile_commands if entry["file"].startswith(f"{SOURCE}/")]
    return alone + re.findall(r'^#include "(.*\.cc)"$', text, re.MULTILINE)


@pytest.mark.parametrize(
    ("version", "minor"),
    [
        ("2.13.0+cu130", "2.13"),
        *(pytest.param(*old, marks=pytest.mark.soak) for old in (("2.12.1", "2.12"), ("2.11.0a0+git", "2.11"))),
    ],
)
def test_a_build_for_cuda_needs_no_cuda_toolkit(tmp_path, version, minor):
    torch = fake_torch(tmp_path / "packages", version)
    build, compile_commands = configured(tmp_path, torch)
    built_for = build / "torch/package/netsum/torch/_built_for.py"
    assert built_for.read_text(encoding="utf-8") == f'TORCH = "{minor}"\n'
    assert len(sources_of(compile_commands)) > 10
    for entry in compile_commands:
        assert f"{torch}/include" in entry["command"]
        assert "-D_GLIBCXX_USE_CXX11_ABI=1" in entry["command"]
    commands = subprocess.run(
        ["ninja", "-C", build, "-t", "commands", "netsum_torch"], capture_output=True, text=True, check=True
    )
    link = commands.stdout.splitlines()[-1]
    for library in ("libtorch_python.so", "libtorch_cpu.so", "libc10.so"):
        assert f"{torch}/lib/{library}" in link
    assert "cuda" not in link.replace(str(tmp_path), "")


def headers_of(version, folder):
    """The headers of the newest PyTorch of this minor version, from PyPI's wheel for macOS, the smallest one (80 MB)."""
    platforms = [word for major in (11, 12, 13, 14, 15) for word in ("--platform", f"macosx_{major}_0_arm64")]
    python = f"{sys.version_info.major}{sys.version_info.minor}"
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "--dest", folder]
    command += ["--implementation", "cp", "--abi", f"cp{python}", "--python-version", python, *platforms]
    subprocess.run([*command, f"torch=={version}.*"], check=True, timeout=600)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.startswith("torch/include/")])
    wheel.unlink()
    return folder / "torch/include"


@pytest.mark.soak
@pytest.mark.parametrize("version", ["2.11", "2.12"])
def test_the_extension_compiles_with_other_versions(tmp_path, version):
    """Without code; make test builds it with the version of scripts/requirements.txt."""
    include = headers_of(version, tmp_path)
    torch = fake_torch(tmp_path / "packages", f"{version}.0", include)
    build, compile_commands = configured(tmp_path, torch)

    def check(entry):
        # The project of this test is not where the headers of netsum are.
        words = shlex.split(entry["command"])
        command = [*words, "-fsyntax-only", "-w", f"-I{SOURCE}", f"-I{SOURCE}/include"]
        run = subprocess.run(command, cwd=entry["directory"], capture_output=True, text=True, timeout=600, check=False)
        return run.stderr if run.returncode else ""

    places = f"{SOURCE}/torch/src/", f"{build}/torch/"  # the second has those that are compiled together
    own = [entry for entry in compile_commands if entry["file"].startswith(places)]
    assert len(sources_of(own)) > 10
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
        errors = [error for error in threads.map(check, own) if error]
    assert not errors, "\n".join(errors)[:10_000]
