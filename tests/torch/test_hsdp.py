"""examples/training/hsdp.py: another backend within hosts, netsum between them. Here ranks 0 and 1 are a host, 2 and 3 another."""

import pathlib
import runpy

import ranks
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import torch

EXAMPLE = runpy.run_path(str(pathlib.Path(__file__).resolve().parents[2] / "examples/training/hsdp.py"))


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
