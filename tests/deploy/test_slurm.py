"""The job script for Slurm. Slurm itself is not needed: stand-ins for its two commands start the tasks on this machine."""

import os
import pathlib
import re
import subprocess
import sys

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


def test_tasks_are_ranks(tmp_path):
    program = tmp_path / "sum.py"
    program.write_text(PROGRAM, encoding="utf-8")
    job = run_job(tmp_path, sys.executable, program, "two words", "--flag")
    assert job.returncode == 0, job.stdout
    assert sorted(re.findall(r"rank \d has the sum of \d", job.stdout)) == [
        "rank 0 has the sum of 2",
        "rank 1 has the sum of 2",
    ]


def test_a_task_that_fails_fails_the_job(tmp_path):
    assert run_job(tmp_path, "sh", "-c", "exit 3").returncode == 3


def test_without_a_program_it_says_how_to_use_it(tmp_path):
    job = run_job(tmp_path)
    assert job.returncode == 2
    assert "usage: sbatch" in job.stdout
