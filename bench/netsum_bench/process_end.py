"""How a process that trains or measures with PyTorch ends."""

import os
import sys

import torch.distributed as dist


def end_worker():
    """Leaves the process group and ends the process, which has written its results, with status 0.

    With Gloo, Python's shutdown rarely ends in an abort ("terminate called without an active exception"), so it is left out.
    """
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
