"""The wheel, installed with pip in a root that has Python, PyTorch and nothing that the build needs, and used there."""

import importlib.metadata
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile

import pytest
from clean_root import CleanRoot

SOURCE = pathlib.Path(__file__).resolve().parents[2]
LIMIT_S = 500
TORCH = ".".join(importlib.metadata.version("torch").split(".")[:2])

# The site-packages of this Python, and of these the packages that a user of torch has.
HOST, PACKAGES, PIP = "/opt/host", "/opt/packages", "/opt/pip"

SUM = """
import torch
import torch.distributed as dist
import netsum.torch

dist.init_process_group("netsum")
numbers = torch.arange(100_000, dtype=torch.int32) * (dist.get_rank() + 1)
dist.all_reduce(numbers)
assert torch.equal(numbers, torch.arange(100_000, dtype=torch.int32) * 3)
print("right:", netsum.torch.describe(), flush=True)
dist.destroy_process_group()
"""
# The daemon is the command of the wheel. The ranks use the network: shared memory would need neither gRPC nor sockets.
JOB = """
export PYTHONPATH=/opt/packages MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 WORLD_SIZE=2 NETSUM_SHARED_MEMORY=0
mkfifo /tmp/out
/venv/bin/netsum aggregator --listen 127.0.0.1:0 --cores 1 >/tmp/out &
daemon=$!
exec 3</tmp/out
while read -r line <&3; do
  case $line in *NETSUM_AGGREGATOR=*) export NETSUM_AGGREGATOR="${line#*NETSUM_AGGREGATOR=}"; break ;; esac
done
RANK=0 /venv/bin/python /tmp/sum.py & first=$!
RANK=1 /venv/bin/python /tmp/sum.py
wait "$first"
kill "$daemon"
wait "$daemon"
"""


def distributions(*names):
    """These distributions with all that they require on this machine, without extras."""
    found, left = {}, list(names)
    while left:
        name = re.split(r"[^\w.-]", left.pop())[0].lower().replace("_", "-")
        if name in found:
            continue
        try:
            found[name] = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # for another platform
        left += [need for need in found[name].requires or () if "extra ==" not in need]
    return found.values()


def top_names(distribution):
    """The entries of site-packages that are the distribution's."""
    return {file.parts[0] for file in distribution.files if file.parts[0] not in ("..", "__pycache__")}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    made = subprocess.run(
        [sys.executable, SOURCE / "scripts/make_wheel.py", folder],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    return pathlib.Path(made.stdout.strip())


@pytest.fixture(scope="module")
def root(tmp_path_factory, wheel):
    folder = tmp_path_factory.mktemp("root")
    root = CleanRoot(folder)
    root.add(["python3", "libstdc++6"])
    root.mounts[sysconfig.get_path("purelib")] = HOST
    for packages, names in ((PACKAGES, ("torch", "pip")), (PIP, ("pip",))):
        (folder / packages.lstrip("/")).mkdir(parents=True)
        for distribution in distributions(*names):
            for name in top_names(distribution):
                (folder / packages.lstrip("/") / name).symlink_to(f"{HOST}/{name}")
    root.put(wheel, f"/tmp/{wheel.name}")
    (folder / "tmp/sum.py").write_text(SUM, encoding="utf-8")
    root.run("python3", "-m", "venv", "--without-pip", "/venv")
    yield root
    shutil.rmtree(folder)


def pip_install(root, wheel, packages):
    pip = ("/venv/bin/python", "-m", "pip", "--disable-pip-version-check", "install", "--no-index")
    return root.try_to_run("env", f"PYTHONPATH={packages}", *pip, f"/tmp/{wheel.name}")


@pytest.mark.soak
@pytest.mark.timeout(1200)  # it makes the wheel
def test_name_and_metadata(wheel):
    name = re.fullmatch(r"netsum-([\d.]+)\+torch([\d.]+)-cp3\d+-cp3\d+-manylinux_2_(\d+)_\w+\.whl", wheel.name)
    assert name, wheel.name
    assert name.group(2) == TORCH
    assert int(name.group(3)) <= 36, "Debian 12 has glibc 2.36"
    with zipfile.ZipFile(wheel) as archive:
        metadata = next(file for file in archive.namelist() if file.endswith(".dist-info/METADATA"))
        assert f"Requires-Dist: torch=={TORCH}.*" in archive.read(metadata).decode().splitlines()
        licences = {file for file in archive.namelist() if file.startswith("netsum.libs/licenses/")}
        assert len([file for file in licences if "libgrpc" in file]) >= 1
        assert not [file for file in archive.namelist() if re.search(r"/libtorch|/libc10", file)]


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_installed_in_a_clean_root(root, wheel):
    refused = pip_install(root, wheel, PIP)
    assert refused.returncode != 0
    assert f"torch=={TORCH}.*" in refused.stdout, refused.stdout
    installed = pip_install(root, wheel, PACKAGES)
    assert installed.returncode == 0, installed.stdout
    assert root.run("/venv/bin/netsum", "version").startswith("netsum ")
    said = root.run_script(JOB)
    assert said.count("right: summed in the network by 1 aggregator") == 2, said


def test_the_metadata_are_of_the_pytorch_that_is_there(tmp_path):
    """So a wheel for another minor version needs no other change than another PyTorch."""
    other = tmp_path / "torch-2.12.1.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.12.1+cpu\n", encoding="utf-8")
    script = "import scikit_build_core.build as build; print(build.prepare_metadata_for_build_wheel('{}'))"
    for path, minor in (([], TORCH), ([str(tmp_path)], "2.12")):
        folder = tmp_path / minor
        folder.mkdir()
        run = subprocess.run(
            [sys.executable, "-c", script.format(folder)],
            cwd=SOURCE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path)},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        name = run.stdout.splitlines()[-1]
        assert name.endswith(f"+torch{minor}.dist-info"), name
        lines = (folder / name / "METADATA").read_text(encoding="utf-8").splitlines()
        assert [line for line in lines if line.startswith("Requires-Dist: torch=")] == [
            f"Requires-Dist: torch=={minor}.*"
        ]


def test_another_pytorch_is_refused():
    """Of the package that is installed for tests: it names both versions before it loads the extension."""
    script = "import torch; torch.__version__ = '2.99.1'; import netsum.torch"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert run.returncode != 0
    last = run.stderr.strip().splitlines()[-1]
    assert last.startswith(
        f"ImportError: this netsum was built for PyTorch {TORCH}, but PyTorch 2.99.1 is installed"
    ), last
