"""What PyTorch sees of accelerators, and how their tensors would be staged: ``netsum doctor --devices`` runs it, and prints its lines.

PyTorch is imported only if it is there: this is no part of netsum.torch.
"""

import glob
import importlib.util
import json
import sys

# Of the drivers of accelerators, and the builds of PyTorch that use them.
_DRIVERS = {"/dev/nvidia[0-9]*": "CUDA", "/dev/kfd": "ROCm"}


def _finding(grade, subject, found, advice=""):
    return {"grade": grade, "subject": subject, "found": found, "advice": advice}


def findings():
    """Returns a list of dicts of grade ("ok", "warn" or "fail"), subject, found and advice."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:  # a folder of this name is no PyTorch
        return [
            _finding(
                "warn",
                "PyTorch",
                f"not installed for {sys.executable}",
                "pass the interpreter of the environment that trains: netsum doctor --devices --python .venv/bin/python",
            )
        ]
    import torch

    build = (torch.version.cuda and f"CUDA {torch.version.cuda}") or (torch.version.hip and f"ROCm {torch.version.hip}")
    found = [_finding("ok", "PyTorch", f"{torch.__version__}, built for {build or 'processors'}")]
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    limits = _staging_limits()
    if accelerator is None:
        found.append(_no_accelerator(build))
    else:
        found += _devices(torch, accelerator.type)
    if isinstance(limits, dict):
        found.append(limits)
    elif accelerator is not None:
        found += [_pinned(torch, limits[0]), _staging(*limits)]
    if accelerator is not None:
        found.append(_nccl(torch))
    return found


def _no_accelerator(build):
    there = [name for pattern, name in _DRIVERS.items() if glob.glob(pattern)]
    if not there:
        return _finding("ok", "accelerators", "none: tensors of the CPU are not staged")
    advice = (
        "look for the reason with torch.empty(1, device=...)" if build else f"install a build of PyTorch for {there[0]}"
    )
    return _finding(
        "warn", "accelerators", f"PyTorch uses none, but there is a driver of {' and '.join(there)}", advice
    )


def _devices(torch, kind):
    name_of = getattr(torch.get_device_module(kind), "get_device_name", lambda _: "")
    count = torch.accelerator.device_count()
    names = [f"{kind}:{index}" for index in range(count)]
    return [
        _finding("ok", name, name_of(index) or f"an accelerator of type {kind}") for index, name in enumerate(names)
    ]


def _staging_limits():
    """In bytes, or what is wrong."""
    try:
        from netsum.torch._settings import staging_limits

        return staging_limits()
    except ImportError as error:
        return _finding(
            "fail", "netsum.torch", f"cannot be imported: {error}", "install the netsum that was built for this PyTorch"
        )
    except ValueError as error:
        return _finding("fail", "staging", str(error), "correct the environment variable, or unset it")


def _pinned(torch, size):
    try:
        torch.empty(size, dtype=torch.uint8, pin_memory=True)
    except RuntimeError as error:
        return _finding(
            "warn",
            "pinned memory",
            f"{size >> 20} MiB cannot be pinned: {str(error).splitlines()[0]}",
            "tensors are staged in pageable memory, which is slower: raise the limit of locked memory (ulimit -l; in a container, "
            "--ulimit memlock=-1), or set NETSUM_STAGING_MIB to less",
        )
    return _finding("ok", "pinned memory", f"{size >> 20} MiB can be pinned (NETSUM_STAGING_MIB)")


def _staging(pool, segment):
    by = f"by segments of {segment >> 10} KiB" if segment else "as a whole"
    return _finding("ok", "staging", f"calls in flight have {pool >> 20} MiB per group and device, and are copied {by}")


def _nccl(torch):
    if not torch.distributed.is_available() or not torch.distributed.is_nccl_available():
        return _finding("ok", "NCCL", "not in this build of PyTorch")
    version = ".".join(map(str, torch.cuda.nccl.version()))
    return _finding("ok", "NCCL", f"{version}; within a host it is faster (examples/training/hsdp.py)")


if __name__ == "__main__":
    print(json.dumps(findings()))
