"""Programs of MPI, run by mpirun with the component of Open MPI."""

import re
import shutil
import subprocess

import pytest
from harness import BUILD, clean_environment

COMPONENT = BUILD / "mpi/mca_coll_netsum.so"
# Where Open MPI looks for components: in its own folder, and in that of the component of this build.
COMPONENT_PATH = f"SYS_DEFAULT:{COMPONENT.parent}"
LIMIT_S = 120


def need_open_mpi(*commands):
    """Skips the test without the component, or without these commands."""
    if not COMPONENT.exists():
        pytest.skip(f"the component of Open MPI was not built: there is no {COMPONENT}")
    if not all(shutil.which(command) for command in ("mpirun", *commands)):
        pytest.skip("mpirun and mpicc are not installed: apt-get install openmpi-bin libopenmpi-dev")


def mpirun(ranks, *program, flags=(), enable=1, btl="self,vader", inside=(), limit_s=LIMIT_S, **variables):
    """Runs the program with the component; returns the finished process."""
    command = [
        *inside,
        "mpirun",
        "--allow-run-as-root",
        "--oversubscribe",
        *("--mca", "mca_base_component_path", COMPONENT_PATH),
        *("--mca", "btl", btl),
        *("--mca", "coll_netsum_enable", enable),
        *("--mca", "coll_netsum_verbose", "2"),
        *("--mca", "mpi_yield_when_idle", "1", "--bind-to", "none"),
        *flags,
        *("-np", ranks),
        *program,
    ]
    return subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
        # The tests are about what communicators do that have joined.
        env=clean_environment(**{"OMPI_MCA_coll_netsum_join_after_calls": "0"} | variables),
    )


def calls(run, name="MPI_COMM_WORLD"):
    """(in the network, by Open MPI): how many collectives of the communicator went where."""
    found = re.search(rf"netsum: {name} ends after (\d+) collectives by netsum and (\d+) by Open MPI", run.stderr)
    assert found, run.stderr
    return int(found[1]), int(found[2])
