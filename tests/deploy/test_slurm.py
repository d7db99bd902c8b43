"""The job script for Slurm: run by Debian's Slurm on a cluster of one node, and with stand-ins for Slurm's commands as on two."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.soak  # packages and services, which few changes touch

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "deploy/slurm.sbatch"
LIMIT_S = 300
SCONTROL = """#!/bin/sh
[ "$*" = "show hostnames node[1-2]" ] || exit 9
printf '127.0.0.1\\nnode2\\n'
"""
# Starts a command in every task, as srun does, and ends with the status of one that fails.
SRUN = """#!/bin/sh
[ "$1" = --kill-on-bad-exit=1 ] || exit 9
shift
SLURM_PROCID=0 SLURM_LOCALID=0 "$@" & first=$!
SLURM_PROCID=1 SLURM_LOCALID=0 "$@" || exit
wait "$first"
"""
PROGRAM = """
import sys
import torch
import torch.distributed as dist
import netsum.torch

assert sys.argv[1:] == ["two words", "--flag"], sys.argv
dist.init_process_group("netsum")
ones = torch.ones(1000, dtype=torch.int32)
dist.all_reduce(ones)
assert torch.all(ones == 2)
print(f"rank {dist.get_rank()} has the sum of {dist.get_world_size()}", flush=True)  # one write: the pipe is shared
dist.destroy_process_group()
"""

# Runs in new namespaces, as a machine of its own with the name node1: $1 is an empty folder, then come arguments of sbatch.
# Everything ends with the namespace of the processes.
CLUSTER = """
cd "$1"
shift
hostname node1
ip link set lo up
ip link add eth0 type veth peer name eth1  # without an address besides 127.0.0.1, Slurm resolves no name
ip address add 10.0.0.1/24 dev eth0
ip link set eth0 up
ip link set eth1 up
printf '127.0.0.1 localhost\\n10.0.0.1 node1\\n' > hosts
mount --bind hosts /etc/hosts
mkdir state spool
cat > slurm.conf <<CONF
ClusterName=test
SlurmctldHost=node1(10.0.0.1)
AuthType=auth/none
CredType=cred/none
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$PWD/state
SlurmdSpoolDir=$PWD/spool
SlurmctldPidFile=$PWD/slurmctld.pid
SlurmdPidFile=$PWD/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
NodeName=node1 NodeAddr=10.0.0.1 CPUs=2
PartitionName=all Nodes=ALL Default=YES
CONF
export SLURM_CONF=$PWD/slurm.conf
slurmctld -D -i > slurmctld.log 2>&1 &
slurmd -D > slurmd.log 2>&1 &
tries=0
until sinfo --noheader --format %t 2> sinfo.log | grep -q idle; do
  tries=$((tries + 1))
  if [ "$tries" -gt 300 ]; then
    tail -n 20 ./*.log
    exit 99
  fi
  sleep 0.2
done
status=0
sbatch --wait --output out --error out "$@" || status=$?
cat out
exit "$status"
"""


def run_by_slurm(folder, *program):
    """Runs the script by Slurm, with two tasks; returns the finished process."""
    if os.geteuid() != 0:
        pytest.skip("a machine in namespaces needs root")
    missing = [name for name in ("slurmctld", "slurmd", "sbatch") if shutil.which(name) is None]
    assert not missing, f"{', '.join(missing)} of scripts/packages.txt: run make setup"
    cluster = folder / "cluster"
    cluster.mkdir()
    enter = ["unshare", "--net", "--uts", "--mount", "--pid", "--mount-proc", "--fork", "--kill-child"]
    job = [SCRIPT, *program]
    return subprocess.run(
        [*enter, "sh", "-euc", CLUSTER, "cluster", cluster, "--nodes", "1", "--ntasks-per-node", "2", *job],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def run_job(folder, *program, tasks=2):
    """Runs the script as sbatch does on the first node; returns the finished process."""
    for name, text in (("scontrol", SCONTROL), ("srun", SRUN)):
        (folder / name).write_text(text, encoding="ascii")
        (folder / name).chmod(0o755)
    slurm = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_NTASKS": str(tasks)}
    return subprocess.run(
        ["sh", SCRIPT, *program],
        env={**os.environ, **slurm, "PATH": f"{folder}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


@pytest.mark.parametrize("run", [run_by_slurm, run_job], ids=["slurm", "two_nodes"])
def test_tasks_are_ranks(tmp_path, run):
    program = tmp_path / "sum.py"
    program.write_text(PROGRAM, encoding="utf-8")
    job = run(tmp_path, sys.executable, program, "two words", "--flag")
    assert job.returncode == 0, job.stdout
    assert sorted(re.findall(r"rank \d has the sum of \d", job.stdout)) == [
        "rank 0 has the sum of 2",
        "rank 1 has the sum of 2",
    ]


def test_a_task_that_fails_fails_the_job(tmp_path):
    assert run_job(tmp_path, "sh", "-c", "exit 3").returncode == 3


def test_a_task_that_fails_ends_the_others(tmp_path):
    job = run_by_slurm(tmp_path, "sh", "-c", '[ "$RANK" = 0 ] || exit 3; sleep 600')
    assert job.returncode != 0
    assert "task 1: Exited with exit code 3" in job.stdout, job.stdout


def test_without_a_program_it_says_how_to_use_it(tmp_path):
    job = run_job(tmp_path)
    assert job.returncode == 2
    assert "usage: sbatch" in job.stdout
