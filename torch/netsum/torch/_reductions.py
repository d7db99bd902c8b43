"""What the communication hooks have in common: averages of a bucket's tensors, and the future that DDP waits for."""

import torch.distributed as dist
from torch.futures import Future, collect_all

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


def future_of(works, bucket, finish=lambda: None, executor=None):
    """Returns a future of the bucket's buffer: when all works have ended and finish() was called, or with what went wrong.

    finish() runs on the group's completion thread, or on that of a concurrent.futures.Executor.
    """

    def end(done):
        for one in done.value():
            one.value()  # raises what went wrong
        finish()
        return bucket.buffer()

    ended = collect_all([work.get_future() for work in works])
    if executor is None:
        return ended.then(end)
    # Who completes a future runs what follows, or who adds it later.
    turn = Future()
    result = turn.then(lambda _: end(ended))
    ended.add_done_callback(lambda _: executor.submit(turn.set_result, None))
    return result
