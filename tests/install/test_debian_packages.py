"""The Debian packages, installed by dpkg in a root that has only what they depend on, and used there."""

import os
import pathlib
import re
import shutil
import subprocess

import pytest
from clean_root import CleanRoot, output_of

pytestmark = pytest.mark.soak  # packages and services, which few changes touch

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("NETSUM_BUILD", SOURCE / "build/release"))
VERSION = re.search(r"project\(netsum VERSION ([\d.]+)", (SOURCE / "CMakeLists.txt").read_text(encoding="utf-8")).group(
    1
)
LIMIT_S = 300

# A daemon as the service starts it, and a job that verifies its sums.
SUMS = """
mkfifo /tmp/out
netsum aggregator --listen 127.0.0.1:0 --cores 1 >/tmp/out &
daemon=$!
exec 3</tmp/out
while read -r line <&3; do
  case $line in *NETSUM_AGGREGATOR=*) address=${line#*NETSUM_AGGREGATOR=}; break ;; esac
done
netsum bench allreduce --aggregator "$address" --workers 2 --bytes 256Ki --iterations 3 --json
netsum status --aggregator "$address" --once
kill "$daemon"
wait "$daemon"
"""
# Two ranks of a program that verifies its sums. The network is the root's own, so the port is free.
TWO_RANKS = """
"$1" 0 2 root 127.0.0.1:5150 & first=$!
"$1" 1 2 root 127.0.0.1:5150
wait "$first"
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """The packages of the build: file by name."""
    if shutil.which("cpack") is None or not (BUILD / "CPackConfig.cmake").exists():
        pytest.skip(f"{BUILD} does not make packages")
    folder = tmp_path_factory.mktemp("packages")
    made = subprocess.run(
        [SOURCE / "scripts/make_deb.sh", BUILD, folder], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert made.returncode == 0, made.stderr
    return {output_of("dpkg-deb", "-f", package, "Package").strip(): package for package in folder.glob("*.deb")}


@pytest.fixture(scope="module")
def root(tmp_path_factory, packages):
    folder = tmp_path_factory.mktemp("root")
    root = CleanRoot(folder)
    for package in packages.values():
        root.put(package, f"/tmp/{package.name}")
    yield root
    shutil.rmtree(folder)


def install(root, packages, *names):
    """Installs packages with dpkg, after what they depend on, but nothing else."""
    chosen = [packages[name] for name in names]
    root.add_what_is_needed_by(*chosen)
    root.run("dpkg", "--install", *(f"/tmp/{package.name}" for package in chosen))


def files_of_netsum(root):
    """Files and links in the root that have netsum in their names, or in those of their folders."""
    found = []
    for top in ("usr", "etc", "var/lib/systemd", "opt"):
        for folder, _, files in os.walk(root.path / top):
            paths = (f"{folder}/{name}".removeprefix(str(root.path)) for name in files)
            found += [path for path in paths if "netsum" in path]
    return found


def test_packages_have_what_debian_asks_for(packages):
    assert set(packages) == {"libnetsum0", "libnetsum-dev", "netsum", "netsum-openmpi", "netsum-nccl"}
    for name, package in packages.items():
        assert package.name == f"{name}_{VERSION}_{output_of('dpkg', '--print-architecture').strip()}.deb"
        listing = output_of("dpkg-deb", "-c", package)
        # Everything is root's, and only root may write it.
        for line in listing.splitlines():
            mode, owner = line.split()[:2]
            assert owner == "root/root", line
            assert mode[0] == "l" or mode[5] == mode[8] == "-", line
        for document in ("copyright", "changelog.gz"):
            assert f"./usr/share/doc/{name}/{document}\n" in listing + "\n", listing
        description = output_of("dpkg-deb", "-f", package, "Description")
        assert len(description.splitlines()) >= 2
        assert len(description.splitlines()[0]) <= 80
    for name in ("libnetsum-dev", "netsum-openmpi", "netsum-nccl"):
        assert f"libnetsum0 (= {VERSION})" in output_of("dpkg-deb", "-f", packages[name], "Depends")


def test_lintian_finds_nothing(packages):
    """But what cmake/debian/overrides explains."""
    lintian = shutil.which("lintian")
    assert lintian, "lintian is in scripts/packages.txt: run make setup"
    checked = subprocess.run(
        [lintian, "--fail-on", "error,warning", "--tag-display-limit", "0", *packages.values()],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_command_and_daemon(root, packages):
    refused = root.try_to_run("dpkg", "--install", f"/tmp/{packages['netsum'].name}")
    assert refused.returncode != 0
    assert "dependency problems" in refused.stdout, "the root has what netsum depends on before it is added"
    install(root, packages, "netsum")
    assert f"netsum {VERSION} " in root.run("netsum", "version")
    page = (SOURCE / "cmake/debian/netsum.1").read_text(encoding="utf-8")
    subcommands = root.run("netsum", "--help").partition("Subcommands:\n")[2].partition("\n\n")[0].splitlines()
    assert len(subcommands) >= 8
    for line in subcommands:
        name, what = line.split(maxsplit=1)
        assert f".TP\n.B {name}\n{what}.\n" in page, "the manual page is not what --help says"
    sums = root.run_script(SUMS)
    assert '"verified": true' in sums, sums
    unit = (root.path / "usr/lib/systemd/system/netsum-aggregator.service").read_text(encoding="utf-8")
    assert "\nExecStart=netsum aggregator " in unit, "systemd finds the command in /usr/bin"


def test_library_and_its_development_files(root, packages):
    install(root, packages, "libnetsum0", "libnetsum-dev")
    root.add(["gcc", "g++", "libc6-dev", "pkg-config"])
    for example in ("all_reduce.c", "collectives.cc"):
        root.put(SOURCE / "examples" / example, f"/tmp/{example}")
    build = "gcc -std=c99 -o /tmp/in_c /tmp/all_reduce.c $(pkg-config --cflags --libs netsum)\n"
    build += "g++ -std=c++20 -o /tmp/in_cc /tmp/collectives.cc $(pkg-config --cflags --libs netsum)"
    root.run_script(build)
    for program in ("/tmp/in_c", "/tmp/in_cc"):
        assert root.run_script(TWO_RANKS, program).count("are right") == 2


def test_component_of_open_mpi(root, packages, tmp_path):
    if "netsum-openmpi" not in packages or shutil.which("mpicc") is None:
        pytest.skip("Open MPI is not installed")
    root.add(["openmpi-bin"])
    install(root, packages, "libnetsum0", "netsum-openmpi")
    program = tmp_path / "all_reduce"
    output_of("mpicc", "-O1", "-pthread", f"-I{SOURCE}", SOURCE / "tests/mpi/all_reduce.c", "-o", program)
    root.put(program, "/tmp/mpi_program")
    flags = ["--allow-run-as-root", "--oversubscribe", "--mca", "btl", "self,vader", "--mca", "coll_netsum_enable", "1"]
    said = root.run("mpirun.openmpi", *flags, "-np", "2", "/tmp/mpi_program", "short")
    assert "netsum: MPI_COMM_WORLD (2 ranks) uses netsum" in said


def test_plug_in_of_nccl(root, packages):
    install(root, packages, "libnetsum0", "netsum-nccl")
    # Every symbol of every library that it needs is found.
    missing = [line for line in root.run("ldd", "-r", "/usr/lib/libnccl-net-netsum.so").splitlines() if "not" in line]
    assert missing == []


def test_nothing_is_left_after_removal(root, packages):
    """The last test of this module: it removes what the others installed."""
    installed = re.findall(r"^Package: (\S*netsum\S*)$", (root.path / "var/lib/dpkg/status").read_text(), re.MULTILINE)
    assert set(installed) <= set(packages)
    if not installed:
        install(root, packages, "libnetsum0", "libnetsum-dev", "netsum")
        installed = ["libnetsum0", "libnetsum-dev", "netsum"]
    assert files_of_netsum(root)
    root.run("dpkg", "--purge", *installed)
    assert files_of_netsum(root) == []
