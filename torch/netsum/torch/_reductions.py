"""What the communication hooks have in common: averages of a bucket's tensors, and the future that DDP waits for."""

import torch.distributed as dist
from torch.futures import collect_all

AVG = dist.ReduceOp.AVG


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
    """Returns a future of the bucket's buffer: when all works have ended, or with what went wrong."""

    def end(done):
        for one in done.value():
            one.value()  # raises what went wrong
        return bucket.buffer()

    return collect_all([work.get_future() for work in works]).then(end)
