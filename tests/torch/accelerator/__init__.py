"""An accelerator for tests, "mock": its memory cannot be reached from the host, and its streams are asynchronous (accelerator.cc).

Its environment variables:
    NETSUM_ACCELERATOR_SEED         of the random delays
    NETSUM_ACCELERATOR_DELAY_US     each operation waits for up to so long, or not at all
    NETSUM_ACCELERATOR_BYTES_PER_S  the rate of copies from the host, and of those to it, in all streams; 0: as fast
                                    as they are
    NETSUM_ACCELERATOR_PINNED       0: no memory of the host can be pinned
    NETSUM_ACCELERATOR_OMIT         a synchronisation that it leaves out, which a test must find (device.cc)
"""

import glob
import importlib.util
import os
import pathlib
import sys
import types

import torch

NAME = "mock"
_ROOT = pathlib.Path(__file__).resolve().parents[3]
# Where scripts/install_wheel.sh builds it.
_FOLDER = os.environ.get("NETSUM_ACCELERATOR", str(_ROOT / "build/wheel/torch/accelerator"))


def load():
    """Makes the device known to PyTorch in this process; returns the extension.

    In a rank alone: the process that ranks are forked from must have no threads, and other tests no accelerator.
    """
    name = "netsum_test_accelerator"
    if name in sys.modules:
        return sys.modules[name]
    (path,) = glob.glob(f"{_FOLDER}/{name}*.so")
    spec = importlib.util.spec_from_file_location(name, path)
    extension = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(extension)
    sys.modules[name] = extension
    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, _device_module())
    torch.utils.generate_methods_for_privateuse1_backend()
    return extension


def _device_module():
    """What PyTorch looks for in torch.mock."""
    module = types.ModuleType(f"torch.{NAME}")
    module.is_available = lambda: True
    module.is_initialized = lambda: True
    module.device_count = lambda: 2  # as device.h; torch.accelerator asks this module
    module.current_device = torch.accelerator.current_device_index
    module.set_device = torch.accelerator.set_device_index
    module.current_stream = torch.accelerator.current_stream
    module.synchronize = torch.accelerator.synchronize
    module.stream = lambda stream: stream
    module.Stream = lambda *_, **options: torch.Stream(device=NAME, **options)
    module.Event = lambda *_, **options: torch.Event(device=NAME, **options)
    module.device = torch.device
    module._is_in_bad_fork = lambda: False
    module.manual_seed_all = lambda _: None
    module.get_amp_supported_dtype = lambda: [torch.bfloat16]
    return module
