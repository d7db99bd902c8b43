"""Communication hooks for DistributedDataParallel."""

import torch.distributed as dist


def ddp_hook(group, bucket):
    """Averages a bucket of gradients. Register it with ``model.register_comm_hook(None, netsum.torch.ddp_hook)``.

    It does what DDP does without a hook, but passes the gradient of each parameter as a separate tensor, so that each
    has its own scales: small gradients keep their precision beside large ones of another parameter
    (docs/numerics.md). `group` is the process group of the model, or None for the default group. Returns a future of
    the bucket's buffer.
    """
    group = group if group is not None else dist.group.WORLD
    options = dist.AllreduceCoalescedOptions()
    options.reduceOp = dist.ReduceOp.AVG
    work = group.allreduce_coalesced(bucket.gradients(), options)
    return work.get_future().then(lambda done: _sum_in(done, bucket))


def _sum_in(done, bucket):
    done.value()  # raises what went wrong
    return bucket.buffer()
