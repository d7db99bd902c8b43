"""netsum: in-network summation of gradients.

``import netsum.torch`` makes the PyTorch backend "netsum" known to ``torch.distributed``.
"""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("netsum")
except PackageNotFoundError:  # run from a build tree
    __version__ = "unknown"
