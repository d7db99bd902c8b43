"""What the communication hooks have in common: averages of a bucket's tensors, and the future that DDP waits for."""

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from netsum.torch import _C

AVG = dist.ReduceOp.AVG


def check_ddp(model, caller):
    if not isinstance(model, DistributedDataParallel):
        raise TypeError(f"{caller}: the model is a {type(model).__name__}, not a DistributedDataParallel")


def options_of(operator=AVG):
    """Of one tensor."""
    options = dist.AllreduceOptions()
    options.reduceOp = operator
    return options


def coalesced_options_of(operator=AVG):
    """Of several tensors at once."""
    options = dist.AllreduceCoalescedOptions()
    options.reduceOp = operator
    return options


def future_of(works, bucket):
    """Returns a future of the bucket's buffer: when all works have ended, or with what went wrong, such as a netsum.torch.Error."""
    return _C.when_all_end([work.get_future() for work in works], bucket.buffer())
