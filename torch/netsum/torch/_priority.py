"""Buckets of DistributedDataParallel in the order of their use in the next forward pass, not in that of the backward pass."""

import collections
import datetime
import threading
import zlib

import torch.distributed as dist
from torch.futures import Future

import torch
from netsum.torch import _group, _overlap, _reductions

WINDOW = 32  # operations that one agreement can add
TURNS = 8  # of so many batches, one begins with the oldest operation
CREDIT_BATCHES = 4
_CALM = 16  # agreements
_LEAST_BATCH, _FIRST_BATCH, _MOST_BATCH = 1 << 17, 1 << 19, 1 << 22


class Order:
    """In which order the ranks of a group sum operations, the same on all ranks. Without I/O.

    For backends other than netsum, which has such an order inside, of pieces of operations (src/priority/order.h).

    All ranks add the same operations in the same order, but at different times. So they agree on how many are everywhere,
    by a sum of small integers, and only these take part. The steps of all ranks are one sequence: an agreement, a batch of
    operations, an agreement, and so on. It depends on what the ranks have agreed on alone, never on when something ends.

    Urgency: from the moment when all ranks have added an operation, less urgent ones delay it by CREDIT_BATCHES batches at
    most: two in flight, that which the agreement in flight selects, and one of the oldest operation; while it waits for more
    urgent ones, the oldest has one of TURNS batches. A batch has `batch_bytes` at most, or one operation.

    Starvation: one of TURNS batches begins with the oldest operation, so an operation before which B bytes were added begins
    after TURNS * (B / batch_bytes + 1) batches at most, if each of the older operations is smaller than a batch.

    The credit follows the network. A rank whose agreement ends when nothing is in flight reports it with its next one: the
    network was idle. Batches then double on all ranks. After _CALM agreements without a report they shrink.
    """

    def __init__(self, ranks):
        self.batch_bytes = _FIRST_BATCH
        self._ranks = ranks
        self._operations = {}  # by number, from 0, until they have ended: (priority, bytes)
        self._added = 0
        self._agreed = 0  # operations below this number are everywhere
        self._waiting = set()  # those of them that have not begun
        self._agreeing = False
        self._batches = 0
        self._batch = []  # numbers of operations to begin
        self._batch_is_new = False
        self._in_flight = collections.deque()  # of each batch that has begun, the numbers that have not ended
        self._calm = 0
        self._was_idle = False

    def add(self, priority, size):
        self._operations[self._added] = (priority, size)
        self._added += 1
        return self._added - 1

    def next(self):
        """("agree", values to sum), ("begin", number of an operation), or None: nothing can begin now."""
        if self._agreeing:
            return None
        if self._batch:
            return self._begin()
        if not self._waiting and self._agreed == self._added:
            return None
        self._agreeing = True
        values = [int(self._was_idle)]
        self._was_idle = False
        for number in range(self._agreed, min(self._added, self._agreed + WINDOW)):
            priority, size = self._operations[number]
            what = zlib.crc32(f"{priority} {size}".encode()) >> 12
            values += [1, what, what * what]
        return "agree", values + [0] * (1 + 3 * WINDOW - len(values))

    def _begin(self):
        if self._batch_is_new:
            if len(self._in_flight) == 2:
                return None
            self._in_flight.append(set())
            self._batch_is_new = False
        number = self._batch.pop(0)
        self._in_flight[-1].add(number)
        return "begin", number

    def agreed(self, values):
        """The sum of the values of all ranks. Raises ValueError, on all ranks, if they differ in an operation."""
        self._agreeing = False
        # The first batch after a pause waits for its agreement in any case.
        self._was_idle = bool(self._waiting) and not self._in_flight
        self._follow_network(values[0])
        for i in range(1, len(values), 3):
            if values[i] < self._ranks:
                break
            if values[i + 2] * self._ranks != values[i + 1] ** 2:  # equal only if all of them are (Cauchy and Schwarz)
                raise ValueError(
                    f"the ranks differ in the priority or the size of bucket #{self._agreed}: the model must use its modules in "
                    "the same order on all ranks"
                )
            self._waiting.add(self._agreed)
            self._agreed += 1
        self._select()

    def _follow_network(self, idle_ranks):
        self._calm = 0 if idle_ranks else self._calm + 1
        if idle_ranks:
            self.batch_bytes = min(2 * self.batch_bytes, _MOST_BATCH)
        elif self._calm == _CALM:
            self.batch_bytes = max(self.batch_bytes // 8 * 7, _LEAST_BATCH)
            self._calm = 0

    def _select(self):
        room = self.batch_bytes
        self._batches += 1
        self._batch_is_new = True
        by_urgency = sorted(self._waiting, key=lambda number: (-self._operations[number][0], number))
        if self._batches % TURNS == 0:
            oldest = min(self._waiting)
            by_urgency.remove(oldest)
            by_urgency.insert(0, oldest)
        for number in by_urgency:
            room -= self._operations[number][1]
            if self._batch and room < 0:
                break
            self._batch.append(number)
            self._waiting.remove(number)

    def ended(self, number):
        del self._operations[number]
        for batch in self._in_flight:
            batch.discard(number)
        while self._in_flight and not self._in_flight[0] and (len(self._in_flight) > 1 or not self._batch):
            self._in_flight.popleft()


class Priorities:
    """State of priority_hook(): ``model.register_comm_hook(netsum.torch.Priorities(model), netsum.torch.priority_hook)``.

    Create it on every rank of the default group, before the first forward pass: it makes a process group of the model's ranks,
    in which nothing but its sums runs. The first forward pass shows in which order modules are used.
    """

    def __init__(self, model):
        _reductions.check_ddp(model, "Priorities")
        ranks = dist.get_process_group_ranks(model.process_group)
        self._group = dist.new_group(
            ranks, timeout=datetime.timedelta(seconds=_overlap.timeout_of(model.process_group))
        )
        try:
            self._backend = _group.backend_of(self._group)
        except ValueError:
            self._backend = None
        self._factor = 1.0 / len(ranks)  # as DDP without a hook: the same bits
        self._order = Order(len(ranks))
        self._lock = threading.RLock()
        self._is_driving = False
        self._events = collections.deque()  # steps that have ended: (kind, number or values, future)
        self._buckets = {}  # by number: buffer, and the future of the caller
        self._error = None
        self._uses = {p: i for i, p in enumerate(model.module.parameters())}
        self._seen = {}
        self._handles = [
            module.register_forward_pre_hook(
                lambda module, _: self._seen.update(dict.fromkeys(module.parameters(recurse=False)))
            )
            for module in model.module.modules()
        ]

    def _priority_of(self, bucket):
        if self._handles:  # the first backward pass: the forward pass has been seen
            for handle in self._handles:
                handle.remove()
            self._handles = []
            unused = [p for p in self._uses if p not in self._seen]
            self._uses = {p: i for i, p in enumerate([*self._seen, *unused])}
            self._seen = {}
        return len(self._uses) - min(self._uses[p] for p in bucket.parameters())

    def _start(self, bucket):
        if bucket.buffer().is_sparse:
            raise ValueError("priority_hook: gradients of sparse=True embeddings are not supported; use sparse=False")
        if self._backend is not None:
            buffer = bucket.buffer().mul_(self._factor)
            options = _reductions.coalesced_options_of(dist.ReduceOp.SUM)
            work = self._backend.allreduce_identified([buffer], [], options, priority=self._priority_of(bucket))
            return _reductions.future_of([work], bucket)
        future = Future()
        with self._lock:
            if self._error is not None:
                future.set_exception(self._error)
                return future
            buffer = bucket.buffer().mul_(self._factor)
            number = self._order.add(self._priority_of(bucket), buffer.nbytes)
            self._buckets[number] = (buffer, future)
        self._drive()
        return future

    def _drive(self):
        """Handles what has ended, and begins what can begin. A call inside of it, by a callback of its thread, leaves it to it."""
        results, failed = [], {}
        with self._lock:
            if self._is_driving:
                return
            self._is_driving = True
            try:
                while self._error is None:
                    if self._events:
                        self._handle(*self._events.popleft(), results)
                    elif not self._begin_next():
                        break
            except Exception as error:
                self._error = error
            finally:
                self._is_driving = False
            if self._error is not None:
                failed, self._buckets = self._buckets, {}
                self._events.clear()
        for future, buffer in results:
            future.set_result(buffer)
        for _, future in failed.values():
            future.set_exception(self._error)

    def _handle(self, kind, what, future, results):
        future.value()  # raises what went wrong
        if kind == "agree":
            self._order.agreed(what.tolist())
        else:
            self._order.ended(what)
            buffer, outer = self._buckets.pop(what)
            results.append((outer, buffer))

    def _begin_next(self):
        step = self._order.next()
        if step is None:
            return False
        kind, what = step
        if kind == "agree":
            what = tensor = torch.tensor(what)
        else:
            tensor = self._buckets[what][0]
        work = dist.all_reduce(tensor, group=self._group, async_op=True)
        work.get_future().add_done_callback(lambda future: self._on_end(kind, what, future))
        return True

    def _on_end(self, kind, what, future):
        self._events.append((kind, what, future))
        self._drive()


def priority_hook(state, bucket):
    """Averages a bucket of gradients, those first that the next forward pass uses first. `state` is a Priorities.

    Returns a future of the bucket's buffer, whose bits are those of DDP without a hook.
    """
    return state._start(bucket)


def prioritise(model):
    """Gives the buckets of a DistributedDataParallel the priority of their use in the next forward pass.

    DDP still waits for all of them in backward(), so this saves no time without OverlappedOptimizer: pass
    ``hook=(netsum.torch.Priorities(model), netsum.torch.priority_hook)`` to that instead. A bucket is summed whole: create the
    DistributedDataParallel with ``bucket_cap_mb=1`` or less.
    """
    state = Priorities(model)
    model.register_comm_hook(state, priority_hook)
    return state
