"""Runs tests that PyTorch has written for GPUs on tensors of the CPU."""

import contextlib
from unittest import mock

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode
from torch.testing._internal import common_distributed

import torch

CPU = torch.device("cpu")
GPUS = 8  # as many as the tests may ask for


class _Devices(TorchFunctionMode):
    """Puts on the CPU what would go to a GPU."""

    def __torch_function__(self, function, _types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if function is torch.Tensor.cuda:
            return args[0].clone()
        if function is torch.Tensor.to:
            args = (args[0], *map(_on_cpu, args[1:]))
        if "device" in kwargs:
            kwargs["device"] = _on_cpu(kwargs["device"])
        return function(*args, **kwargs)


def _on_cpu(device):
    """A number is that of a GPU."""
    is_gpu = (
        type(device) is int
        or (isinstance(device, torch.device) and device.type == "cuda")
        or (isinstance(device, str) and device.startswith("cuda"))
    )
    return CPU if is_gpu else device


def _to_cpu(to):
    return lambda self, *args, **kwargs: to(self, *map(_on_cpu, args), **kwargs)


def _without_device_ids(init):
    def without(self, module, device_ids=None, output_device=None, **more):
        init(self, module, **more)

    return without


def _of_the_same_backend(new_group):
    def without_nccl(*args, backend=None, **more):
        return new_group(*args, backend=None if backend == "nccl" else backend, **more)

    return without_nccl


@contextlib.contextmanager
def instead_of_gpus(rank):
    """Here, tensors are on the CPU wherever a test puts them, and DistributedDataParallel works on the CPU's."""
    cuda = {
        "is_available": lambda: True,
        "device_count": lambda: GPUS,
        "current_device": lambda: rank,
        "set_device": lambda _device: None,
        "synchronize": lambda device=None: None,
        "manual_seed_all": lambda _seed: None,
        "device": lambda _device: contextlib.nullcontext(),
    }
    with contextlib.ExitStack() as stack:
        for name, replacement in cuda.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, replacement))
        stack.enter_context(mock.patch.object(common_distributed, "TEST_CUDA", True))
        stack.enter_context(mock.patch.object(torch.nn.Module, "to", _to_cpu(torch.nn.Module.to)))
        stack.enter_context(mock.patch.object(torch.accelerator, "current_stream"))
        init = _without_device_ids(DistributedDataParallel.__init__)
        stack.enter_context(mock.patch.object(DistributedDataParallel, "__init__", init))
        stack.enter_context(mock.patch.object(dist, "new_group", _of_the_same_backend(dist.new_group)))
        stack.enter_context(_Devices())
        yield
