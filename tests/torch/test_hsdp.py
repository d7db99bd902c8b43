"""examples/training/hsdp.py: another backend within hosts, netsum between them. Here ranks 0 and 1 are a host, 2 and 3 another."""

import contextlib
import io
import os
import pathlib
import re
import runpy
import sys

import pytest
import ranks
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import torch

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "examples/training/hsdp.py"
EXAMPLE = runpy.run_path(str(SCRIPT))
ARGUMENTS = ("--per-host", "2", "--device", "cpu", "--steps", "20")


def losses(rank, wrap):
    return EXAMPLE["train"](wrap(EXAMPLE["make_model"]()), torch.device("cpu"), steps=8, seed=rank)


def hooked(model, mesh):
    wrapped = DistributedDataParallel(model, bucket_cap_mb=0.004)
    hook = EXAMPLE["WithinAndBetweenHosts"]
    wrapped.register_comm_hook(hook(mesh), hook.hook)
    return wrapped


def test_hosts_are_joined_by_netsum():
    def on_rank(rank):
        mesh = EXAMPLE["make_mesh"]("cpu", 2)
        within, hosts = (mesh.get_group(name) for name in ("within", "hosts"))
        assert (dist.get_backend(within), dist.get_backend(hosts)) == ("gloo", "netsum")
        plain = losses(rank, DistributedDataParallel)
        sharded = losses(rank, lambda model: EXAMPLE["shard"](model, mesh))
        before = ranks.calls(group=hosts).get("all_reduce", 0)
        by_hook = losses(rank, lambda model: hooked(model, mesh))
        assert before > 0
        assert ranks.calls(group=hosts)["all_reduce"] - before > 8  # several buckets
        return plain, sharded, by_hook

    for plain, sharded, by_hook in ranks.run(on_rank):
        assert plain[-1] < plain[0]
        torch.testing.assert_close(sharded, plain)
        torch.testing.assert_close(by_hook, plain)


def check_output(text):
    first, last = map(float, re.search(r"loss ([0-9.]+) -> ([0-9.]+)", text).groups())
    assert last < first
    assert "between hosts: summed by 2 embedded shards" in text


def test_the_program(store_port):
    def on_rank(rank):
        dist.destroy_process_group()  # the program makes its own
        os.environ.update(RANK=str(rank), WORLD_SIZE="4", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(store_port))
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # the store is there, as torchrun's
        sys.argv = [str(SCRIPT), *ARGUMENTS]
        with contextlib.redirect_stdout(io.StringIO()) as output:
            runpy.run_path(str(SCRIPT), run_name="__main__")
        return output.getvalue()

    check_output(ranks.run(on_rank)[0])


@pytest.mark.soak
def test_the_program_by_torchrun():
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "4")
    ended = ranks.run_script(SCRIPT.read_text(encoding="utf-8"), *ARGUMENTS, launcher=launcher)
    assert ended.returncode == 0, ended.stderr
    check_output(ended.stdout)
