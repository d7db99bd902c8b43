#!/usr/bin/env python3
"""Checks and measures netsum's backend on the GPU of this machine, in at most five minutes; writes the figures as JSON.

    python3 scripts/gpu_check.py --out gpu.json                   # torch.accelerator
    .venv/bin/python scripts/gpu_check.py --device mock           # the tests' accelerator, for a check of this script

It builds nothing: netsum's Python package must be installed, or be on PYTHONPATH. Two or four ranks share the GPU and sum over loopback
by embedded shards, each section in processes of its own. The results of collectives are compared with those of CPU tensors, bit for bit,
sums by NCCL with exact ones, and losses of DistributedDataParallel over NCCL's sockets, its plug-in and netsum with each other.
What could not be measured is printed, with its reason. Exits with 1 if anything failed.
"""

import argparse
import datetime
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time

RANKS = 2
ROOT = pathlib.Path(__file__).resolve().parents[1]
SIZES_MIB = (1, 4, 16, 64, 256)
MOCK_SIZES_MIB = (1, 4)
GROUP_TIMEOUT_S = 60
# Sections: the backend, and the environment of its ranks. NCCL takes ranks with different ids for hosts of their own, which may share a
# GPU.
OVER_LOOPBACK = {"NETSUM_SHARED_MEMORY": "0"}
BY_SOCKETS = {"NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo"}
BY_PLUG_IN = {
    "NCCL_NET_PLUGIN": "netsum",
    "NCCL_COLLNET_ENABLE": "1",
    "NCCL_ALGO": "allreduce:collnetchain",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_DEBUG": "INFO",
}
SECTIONS = {
    "collectives": ("netsum", OVER_LOOPBACK),
    "training": ("netsum", OVER_LOOPBACK),
    "sparse and compressed": ("netsum", OVER_LOOPBACK),
    "sums: netsum, 4 hosts": ("netsum", OVER_LOOPBACK),
    "sums: NCCL, netsum's plug-in, 2 hosts": ("nccl", BY_PLUG_IN),
    "sums: NCCL, netsum's plug-in, 4 hosts": ("nccl", BY_PLUG_IN),
    "losses: netsum, 2 hosts": ("netsum", OVER_LOOPBACK),
    "losses: NCCL, sockets, 2 hosts": ("nccl", BY_SOCKETS),
    "losses: NCCL, netsum's plug-in, 2 hosts": ("nccl", BY_PLUG_IN),
    "rates: netsum, CPU tensors": ("netsum", OVER_LOOPBACK),
    "rates: netsum, segments": ("netsum", OVER_LOOPBACK),
    "rates: netsum, whole tensors": ("netsum", {**OVER_LOOPBACK, "NETSUM_STAGING_SEGMENT_KIB": "0"}),
    "rates: Gloo": ("gloo", {}),
    "rates: NCCL, sockets": ("nccl", BY_SOCKETS),
    "rates: NCCL, netsum's plug-in": ("nccl", BY_PLUG_IN),
}
PLUGIN = "libnccl-net-netsum.so"


def ranks_of(section):
    return 4 if section.endswith("4 hosts") else RANKS


# --- In a rank


def collectives(torch, dist, rank, device):
    """Returns how many results were compared."""

    def values(dtype, count, seed):
        numbers = (torch.arange(count) * 7 + seed * 13) % 50 - 20
        return (numbers / 7 if dtype.is_floating_point else numbers).to(dtype)

    def calls(dtype, count, where):
        made = values(dtype, count, rank).to(where)
        whole = values(dtype, RANKS * count, rank).to(where)
        part, gathered = torch.zeros_like(made), torch.zeros_like(whole)
        lists = [torch.zeros_like(made) for _ in range(RANKS)]
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.AVG):
            summed = made.clone()
            dist.all_reduce(summed, op)
            yield f"all_reduce {op}", summed
        dist.reduce_scatter_tensor(part, whole)
        yield "reduce_scatter_tensor", part
        dist.all_gather_into_tensor(gathered, made)
        yield "all_gather_into_tensor", gathered
        dist.all_gather(lists, made)
        yield "all_gather", torch.cat(lists)
        sent = made.clone()
        dist.broadcast(sent, 1)
        yield "broadcast", sent
        dist.reduce(sent, 0)
        yield "reduce", sent if rank == 0 else part

    compared = 0
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.int64):
        for count in (1000, 600_001):  # in one piece, and by segments
            pairs = zip(calls(dtype, count, "cpu"), calls(dtype, count, device), strict=True)
            for (name, want), (_, got) in pairs:
                if not torch.equal(want.view(torch.uint8), got.cpu().view(torch.uint8)):
                    raise AssertionError(f"{name} of {count} x {dtype}: other bits than those of CPU tensors")
                compared += 1
    return {"compared": compared}


def sums(torch, dist, rank, device):
    """All types and sizes, sums and maxima that are exact whatever the order. Returns how many results were compared."""
    compared = 0
    ranks = range(dist.get_world_size())
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.int64):
        for count in (1, 5, 1000, 4096, 600_001, *([4 << 20] if dtype is torch.float32 else ())):
            inputs = [((torch.arange(count) * 7 + one * 13) % 50 - 20).to(dtype) for one in ranks]
            for op, want in ((dist.ReduceOp.SUM, sum(inputs)), (dist.ReduceOp.MAX, torch.stack(inputs).amax(0))):
                got = inputs[rank].to(device)
                dist.all_reduce(got, op)
                if not torch.equal(got.cpu(), want):
                    raise AssertionError(f"all_reduce {op} of {count} x {dtype} is wrong")
                compared += 1
    return {"compared": compared}


def losses_of(torch, wrap, rank, device):
    torch.manual_seed(1)
    layers = [torch.nn.Linear(256, 1024), torch.nn.Tanh(), torch.nn.Linear(1024, 16)]
    model = wrap(torch.nn.Sequential(*layers).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    found = []
    for _ in range(10):
        x = torch.randn(64, 256, generator=generator).to(device)
        loss = (model(x) - x[:, :16]).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


def losses(torch, dist, rank, device):
    """Of DistributedDataParallel. It halves gradients before their sum, so two ranks have the same bits whoever sums."""
    return {"losses": losses_of(torch, torch.nn.parallel.DistributedDataParallel, rank, device)}


def training(torch, dist, rank, device):
    """DistributedDataParallel, and the same with a hook that sums copies on the CPU: equal losses; FSDP2 learns."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    def on_cpu(_, bucket):
        summed = bucket.buffer().cpu()
        dist.all_reduce(summed, dist.ReduceOp.AVG)
        future = torch.futures.Future()
        future.set_result(bucket.buffer().copy_(summed))
        return future

    def averaged(_, bucket):
        work = dist.all_reduce(bucket.buffer(), dist.ReduceOp.AVG, async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    def hooked(hook):
        def wrap(model):
            model = torch.nn.parallel.DistributedDataParallel(model)
            model.register_comm_hook(None, hook)
            return model

        return wrap

    mesh = init_device_mesh(torch.device(device).type, (RANKS,))
    staged, copied = (losses_of(torch, hooked(hook), rank, device) for hook in (averaged, on_cpu))
    sharded = losses_of(torch, lambda model: fully_shard(model, mesh=mesh), rank, device)
    if staged != copied:
        raise AssertionError(f"losses of DistributedDataParallel are {staged}, and {copied} with sums of CPU tensors")
    if not sharded[-1] < sharded[0]:
        raise AssertionError(f"FSDP2 has learned nothing: {sharded}")
    return {"DDP": staged, "FSDP2": sharded}


def sparse_and_compressed(torch, dist, rank, device):
    """All-reduces of sparse tensors, and compressed gradients of DistributedDataParallel: the bits of tensors of the CPU."""
    import netsum.torch

    def summed(where, call):
        generator = torch.Generator().manual_seed(rank)
        indices = torch.randint(0, 1000, (2, 500), generator=generator)
        numbers = torch.randn(500, 8, generator=generator)
        tensor = torch.sparse_coo_tensor(indices.to(where), numbers.to(where), (1000, 1000, 8))
        call(tensor)
        return [tensor._indices().cpu(), tensor._values().cpu()]

    def averaged(where, method):
        class Times(torch.nn.Module):  # the gradient is its input
            def __init__(self):
                super().__init__()
                self.weight = torch.nn.Parameter(torch.zeros(512, 512))

            def forward(self, gradient):
                return self.weight * gradient

        model = Times()
        wrapped = torch.nn.parallel.DistributedDataParallel(model.to(where))
        netsum.torch.compress(wrapped, method)
        found = []
        for step in range(3):
            gradient = torch.randn(512, 512, generator=torch.Generator().manual_seed(10 * step + rank))
            model.zero_grad()
            wrapped(gradient.to(where)).sum().backward()
            found.append(model.weight.grad.cpu())
        return found

    calls = {"sparse_all_reduce": (summed, netsum.torch.sparse_all_reduce)}
    if torch.device(device).type == "cuda":  # PyTorch passes on no other sparse tensors
        calls["all_reduce of a sparse tensor"] = (summed, dist.all_reduce)
    for method in ("bf16", "int8", "topk"):
        calls[f"DDP with {method}"] = (averaged, method)
    for name, (function, what) in calls.items():
        for want, got in zip(function("cpu", what), function(device, what), strict=True):
            if not torch.equal(want, got):
                raise AssertionError(f"{name}: other bits than those of CPU tensors")
    return {"compared": len(calls)}


def rates(torch, dist, rank, device, sizes_mib):
    """Milliseconds of each all-reduce, until its result is on the device."""
    found = {}
    for mib in sizes_mib:
        tensor = torch.ones(mib << 18, device=device)
        times = []
        for _ in range(7):
            tensor.fill_(1)
            torch.accelerator.synchronize()
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(tensor)
            torch.accelerator.synchronize()
            times.append(1e3 * (time.perf_counter() - start))
        if not bool((tensor.cpu() == RANKS).all()):
            raise AssertionError(f"wrong sums of {mib} MiB")
        found[f"{mib} MiB"] = {"median_ms": sorted(times[1:])[3], "least_ms": min(times), "most_ms": max(times[1:])}
    return found


def run_rank(options):
    import torch.distributed as dist

    import torch

    device = "cpu"
    if options.device == "mock":
        sys.path.append(str(ROOT / "tests/torch"))
        import accelerator

        accelerator.load()
    if "CPU tensors" not in options.section:
        device = f"{options.device}:0"
    backend = SECTIONS[options.section][0]
    if backend == "netsum":
        import netsum.torch  # noqa: F401  registers the backend
    dist.init_process_group(
        backend,
        init_method=f"tcp://127.0.0.1:{options.port}",
        rank=options.rank,
        world_size=ranks_of(options.section),
        timeout=datetime.timedelta(seconds=GROUP_TIMEOUT_S),
    )
    name = options.section.split(":")[0]
    if name == "rates":
        sizes = MOCK_SIZES_MIB if options.device == "mock" else SIZES_MIB
        found = rates(torch, dist, options.rank, device, sizes)
    else:
        functions = {
            "collectives": collectives,
            "training": training,
            "sparse and compressed": sparse_and_compressed,
            "sums": sums,
            "losses": losses,
        }
        found = functions[name](torch, dist, options.rank, device)
    print(json.dumps(found), flush=True)
    dist.destroy_process_group()


# --- Outside


def reason_not_to(section, device, torch):
    """Why the section cannot run here, or None."""
    backend = SECTIONS[section][0]
    if backend == "gloo" and device != "cuda":
        return f"Gloo takes no tensors of {device}"
    if backend == "nccl" and (device != "cuda" or not torch.distributed.is_nccl_available()):
        return "there is no CUDA here, or PyTorch is built without NCCL"
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    if "plug-in" in section and not any(pathlib.Path(folder or ".", PLUGIN).exists() for folder in folders):
        return f"{PLUGIN} is in no folder of LD_LIBRARY_PATH"
    return None


def run_section(section, options, seconds):
    """What rank 0 has measured. Raises RuntimeError with the last words of a rank that failed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = []
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(ranks_of(section)):
            command = [sys.executable, __file__, "--device", options.device, "--section", section]
            command += ["--rank", str(rank), "--port", str(port)]
            environment = {**os.environ, **SECTIONS[section][1], "OMP_NUM_THREADS": "1"}
            environment |= {"NCCL_HOSTID": f"gpu-check-{rank}", "NCCL_DEBUG_FILE": f"{folder}/nccl-{rank}"}
            with open(f"{folder}/{rank}", "w", encoding="utf-8") as said:
                ranks.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=said, text=True))
        end = time.monotonic() + seconds
        try:
            answers = [process.communicate(timeout=max(0.1, end - time.monotonic()))[0] for process in ranks]
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"it had not ended after {seconds:.0f} s") from None
        finally:
            for process in ranks:
                process.kill()
                process.wait()
        for rank, process in enumerate(ranks):
            if process.returncode != 0:
                words = pathlib.Path(f"{folder}/{rank}").read_text(encoding="utf-8").strip()[-2000:]
                raise RuntimeError(f"rank {rank} ended with {process.returncode}: {words}")
        found = json.loads(answers[0].splitlines()[-1])
        log = pathlib.Path(f"{folder}/nccl-0")
        if log.exists():  # what proves that CollNet was used
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
            found["log"] = [line for line in lines if "collnet" in line.lower()][:20]
    return found


def check(parser, options):
    """What would otherwise be found when all has been measured."""
    if not options.seconds > 0:
        parser.error("--seconds must be positive")
    for section in options.only or ():
        if section not in SECTIONS:
            parser.error(f"--only: there is no section {section!r}; choose from: {'; '.join(SECTIONS)}")
    if options.out:
        try:
            options.out.touch()
        except OSError as error:
            parser.error(f"--out: {error}")


def type_of_accelerator(torch):
    """Of the devices that are there; None if none are."""
    return torch.accelerator.current_accelerator().type if torch.accelerator.is_available() else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", help="its type; default: that of torch.accelerator")
    parser.add_argument("--out", type=pathlib.Path, help="file for the figures (default: standard output)")
    parser.add_argument("--seconds", type=float, default=280, help="for all sections together (default %(default)s)")
    names = "; ".join(SECTIONS).replace("%", "%%")
    parser.add_argument("--only", metavar="SECTION", action="append", help=f"may be repeated; one of: {names}")
    for name, kind in (("section", str), ("rank", int), ("port", int)):  # of a rank
        parser.add_argument(f"--{name}", type=kind, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.section:
        return run_rank(options)
    check(parser, options)
    import torch

    if options.device is None:
        options.device = type_of_accelerator(torch)
        if options.device is None:
            parser.error("torch.accelerator has no device here: name the tests' one by --device mock")
    elif options.device != "mock" and options.device != type_of_accelerator(torch):
        parser.error(
            f"--device: torch.accelerator has no {options.device!r} here; it is a type without a number, such as cuda"
        )
    figures = {"device": options.device, "torch": torch.__version__, "cuda": torch.version.cuda, "ranks": RANKS}
    if options.device == "cuda":
        figures["name"] = torch.cuda.get_device_name(0)
    figures |= {"measured": {}, "failed": {}, "not_measured": {}}
    end = time.monotonic() + options.seconds
    for section in options.only or SECTIONS:
        left = end - time.monotonic()
        why = reason_not_to(section, options.device, torch) or ("no time was left" if left < 5 else None)
        if why:
            figures["not_measured"][section] = why
            continue
        try:
            figures["measured"][section] = run_section(section, options, left)
        except RuntimeError as error:
            figures["failed"][section] = str(error)
    found = {name: one["losses"] for name, one in figures["measured"].items() if name.startswith("losses")}
    if len({tuple(one) for one in found.values()}) > 1:
        figures["failed"]["losses"] = f"they differ: {found}"
    text = json.dumps(figures, indent=1)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")
    else:
        print(text)
    for kind in ("failed", "not_measured"):
        for section, why in figures[kind].items():
            print(f"{kind.replace('_', ' ')}: {section}: {why}", file=sys.stderr)
    return 1 if figures["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
