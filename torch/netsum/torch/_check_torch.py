"""Refuses another PyTorch than the one that the extension was built for, before the extension is loaded."""

import torch
from netsum.torch._built_for import TORCH

if torch.__version__.split(".")[:2] != TORCH.split("."):
    raise ImportError(
        f"this netsum was built for PyTorch {TORCH}, but PyTorch {torch.__version__} is installed. c10d's C++ classes "
        f"differ between minor versions. Install torch=={TORCH}.*, or the netsum that was built for your PyTorch"
    )
