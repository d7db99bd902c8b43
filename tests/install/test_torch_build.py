"""The configuration of the extension beside builds of PyTorch that are not the one of this environment."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
LIMIT_S = 120
# Enough of the project for torch/CMakeLists.txt.
PROJECT = """
cmake_minimum_required(VERSION 3.25)
project(netsum CXX)
add_library(netsum INTERFACE)
include({source}/cmake/NetsumTargets.cmake)
add_subdirectory({source}/torch torch)
"""
# What find_package(Torch) would read: the message is that of a build for CUDA on a machine without the CUDA toolkit.
CONFIG = 'message(FATAL_ERROR "Your installed Caffe2 version uses CUDA but I cannot find the CUDA libraries")\n'


def real_torch():
    return pathlib.Path(importlib.util.find_spec("torch").submodule_search_locations[0])


def fake_torch(folder, version):
    """A package of the name torch with the headers and libraries of the real one, which has the configuration of CUDA's."""
    torch = folder / "torch"
    for part in ("share/cmake/Torch", "share/cmake/Caffe2", "lib"):
        (torch / part).mkdir(parents=True)
    (torch / "include").symlink_to(real_torch() / "include")
    for library in ("libc10.so", "libtorch.so", "libtorch_cpu.so", "libtorch_python.so"):
        (torch / "lib" / library).symlink_to(real_torch() / "lib" / library)
    for library in ("libc10_cuda.so", "libtorch_cuda.so"):
        (torch / "lib" / library).touch()
    (torch / "share/cmake/Torch/TorchConfig.cmake").write_text(CONFIG, encoding="utf-8")
    (torch / "share/cmake/Caffe2/Caffe2Config.cmake").write_text(CONFIG, encoding="utf-8")
    (torch / "__init__.py").write_text("raise RuntimeError('imported: that takes seconds')\n", encoding="utf-8")
    (torch / "version.py").write_text(f"__all__ = ['__version__']\n__version__ = '{version}'\n", encoding="utf-8")
    return torch


@pytest.mark.parametrize(("version", "minor"), [("2.13.0+cu130", "2.13"), ("2.12.1", "2.12"), ("2.11.0a0+git", "2.11")])
def test_a_build_for_cuda_needs_no_cuda_toolkit(tmp_path, version, minor):
    torch = fake_torch(tmp_path / "packages", version)
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
    built_for = build / "torch/package/netsum/torch/_built_for.py"
    assert built_for.read_text(encoding="utf-8") == f'TORCH = "{minor}"\n'
    compile_commands = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    assert len(compile_commands) > 10
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
