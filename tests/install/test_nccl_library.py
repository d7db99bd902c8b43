"""The plug-in of NCCL in NCCL's own library, from PyPI, as far as it goes without a GPU: it is found, loaded, initialised and
assigned to a communicator by NCCL's code.

ncclCommInitRank() ends before that where there is no GPU. So the functions that it calls then are called themselves, by their
addresses in the library's symbol table, with a communicator that is all zeros, and NCCL's log tells what they do.
"""

import mmap
import os
import pathlib
import re
import subprocess
import sys
import zipfile

import pytest

BUILD = pathlib.Path(os.environ.get("NETSUM_BUILD", pathlib.Path(__file__).resolve().parents[2] / "build/release"))
# By default those with the oldest and the newest tables, and one that is too old. Each is 150 to 350 MB to download.
VERSIONS = os.environ.get("NETSUM_TEST_NCCL", "2.19.3,2.20.5,2.32.3").split(",")
OLDEST = (2, 20)
DOWNLOAD_LIMIT_S, LIMIT_S = 400, 60

# Arguments: the library, the addresses of the functions that load plug-ins. NCCL's log goes to standard output, too.
LOAD = """
import ctypes, os, sys

library = os.path.realpath(sys.argv[1])
nccl = ctypes.CDLL(library)
version = ctypes.c_int()
assert nccl.ncclGetVersion(ctypes.byref(version)) == 0
print("version", version.value, flush=True)
assert nccl.ncclGetUniqueId(ctypes.create_string_buffer(128)) == 0
with open("/proc/self/maps", encoding="ascii") as maps:
    base = min(int(line.split("-")[0], 16) for line in maps if library in line)
comm = ctypes.create_string_buffer(64 << 20)
for address in sys.argv[2:]:
    result = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(base + int(address, 16))(ctypes.addressof(comm))
    print("result", result, flush=True)
os._exit(0)
"""


@pytest.fixture(scope="module", params=VERSIONS)
def nccl(request, tmp_path_factory):
    """The version, and the path of its library."""
    folder = tmp_path_factory.mktemp("nccl")
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "-d",
            folder,
            f"nvidia-nccl-cu12=={request.param}",
        ],
        check=True,
        timeout=DOWNLOAD_LIMIT_S,
    )
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as content:
        path = pathlib.Path(content.extract("nvidia/nccl/lib/libnccl.so.2", folder))
    wheel.unlink()
    yield tuple(map(int, request.param.split("."))), path
    path.unlink()


def tables(text, kind):
    """The versions of the tables of this kind that a text names."""
    return {int(number) for number in re.findall(rb"\bnccl%bPlugin_v(\d+)\b" % kind.encode(), text)}


def symbols(library, *options):
    listed = subprocess.run(["nm", *options, library], capture_output=True, text=True, check=True, timeout=LIMIT_S)
    fields = [line.split() for line in listed.stdout.splitlines()]
    return {field[-1]: field[0] for field in fields if len(field) == 3}


def load(library, names):
    """NCCL's log while these functions of the library load plug-ins."""
    environment = os.environ | {
        "NCCL_DEBUG": "INFO",
        "NCCL_NET_PLUGIN": "netsum",
        "NCCL_COLLNET_ENABLE": "1",
        "NCCL_SOCKET_IFNAME": "lo",
        "LD_LIBRARY_PATH": f"{BUILD}/nccl:{BUILD}/collective",
    }
    known = symbols(library)
    run = subprocess.run(
        [sys.executable, "-c", LOAD, library, *(known[name] for name in names if name in known)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    log = run.stdout + run.stderr
    assert run.returncode == 0, log
    assert set(re.findall(r"^result (\d+)", log, re.MULTILINE)) == {"0"}, log
    return log


@pytest.mark.soak
def test_nccl_loads_the_plug_in(nccl):
    version, library = nccl
    plugin = next(BUILD.glob("nccl/libnccl-net-netsum.so"))
    own = " ".join(symbols(plugin, "-D")).encode()
    # The last loads tuners, which come with the plug-in of the network, too. Versions differ in which of them there are.
    log = load(
        library,
        ["_Z17ncclNetPluginLoadP8ncclComm", "_Z11ncclNetInitP8ncclComm", "_Z19ncclTunerPluginLoadP8ncclComm"],
    )
    major, minor, patch = version
    assert f"version {major * 10000 + minor * 100 + patch}\n" in log
    if version < OLDEST:
        assert re.search(r"WARN netsum: this NCCL is older than 2.20, .* NCCL uses its own network", log), log
        assert "Using netsum" not in log and "netsum: version" not in log
        return
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as content:
        newest = {kind: max(tables(content, kind)) for kind in ("Net", "CollNet")}
    assert tables(own, "Net") >= {newest["Net"]} and tables(own, "CollNet") >= {newest["CollNet"]}
    # Both tables are initialised, each with its line.
    assert len(re.findall(r"NCCL INFO netsum: version \S+, interface lo \(127\.0\.0\.1\)", log)) == 2, log

    if version >= (2, 25):  # which name them
        assert f"Loaded net plugin netsum (v{newest['Net']})" in log, log
        assert f"Loaded collnet plugin netsum (v{newest['CollNet']})" in log, log
    if version >= (2, 28):
        assert "Assigned NET plugin netsum to comm" in log, log
    if version >= (2, 30):
        assert "TUNER/Plugin: Using netsum (v6)" in log, log
