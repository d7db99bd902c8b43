"""Serving by collectives of small messages: rank 0 broadcasts images, every rank runs a subnet, a gather returns the scores.

Broadcasts and gathers are in a group each, so that the next image is on its way while the last one is computed: within a group,
collectives have one order. Receivers start DEPTH broadcasts in advance. If a rank is lost, the others regroup, a rank without
classes takes those of the lost one, and what was in flight is sent again; rank 0 must survive, as the others meet at its store.
"""

import collections
import concurrent.futures
import contextlib
import datetime
import queue
import sys
import threading
import time

import torch.distributed as dist

import torch

DEPTH = 16  # broadcasts in flight, the same on all ranks
BEAT_S = 0.25  # rank 0 sends something at least so often, and notices within it that a rank is lost
TIMEOUT_S = 60.0  # of one collective: much more than DEPTH beats
GATHER_S = 0.3  # rank 0 waits so long for further survivors
FRONT_S = 5.0  # the others wait so long for rank 0: a group without it would be of no use
JOIN_BYTES = 8192  # a second group of netsum joins its job with a collective of more than 4096 bytes
NOTHING, STOP = 0, -1  # in place of the number of images


class Full(RuntimeError):
    """As many images wait as may."""


class FrontLost(RuntimeError):
    """Rank 0 is lost, and with it the store where the others would meet."""


def join(backend, rank, ranks, master):
    host, _, port = master.rpartition(":")
    if backend == "netsum":
        import netsum.torch  # noqa: F401  registers the backend
    dist.init_process_group(
        backend,
        init_method=f"tcp://{host}:{port}",
        rank=rank,
        world_size=ranks,
        timeout=datetime.timedelta(seconds=TIMEOUT_S),
    )


class Member:
    """One rank. groups: the classes of each group. image: the shape of an image. run_group(group, images): their scores.

    `owner[g]` is the rank that has group g, or None.
    """

    def __init__(self, groups, image, run_group, batch=1):
        self.groups, self.run_group, self.batch, self.image = groups, run_group, batch, tuple(image)
        self.pixels = torch.Size(self.image).numel()
        self.width = max(map(len, groups))
        ranks = dist.get_world_size()
        self.owner = [group if group < ranks else None for group in range(len(groups))]
        self._begin()

    def _begin(self):
        self.rank = dist.get_rank()
        self.gathers = dist.new_group(timeout=datetime.timedelta(seconds=TIMEOUT_S))
        dist.broadcast(torch.zeros(JOIN_BYTES // 4), 0, group=self.gathers)

    def mine(self):
        return next((group for group, rank in enumerate(self.owner) if rank == self.rank), None)

    def message(self):
        return torch.zeros(1 + self.batch * self.pixels)

    def computed(self, message):
        """This rank's part of a gather: scores of batch x width."""
        part = torch.zeros(self.batch, self.width)
        group, count = self.mine(), int(message[0])
        if group is not None:
            images = message[1 : 1 + count * self.pixels].view(count, *self.image)
            part[:count, : len(self.groups[group])] = self.run_group(group, images)
        return part

    def broadcast(self, message):
        return dist.broadcast(message, 0, async_op=True)

    def gather(self, part, parts=None):
        return dist.gather(part, parts, 0, group=self.gathers, async_op=True)

    def regroup(self):
        """With the ranks that are left; spares take over. Returns the lost ranks."""
        import netsum.torch

        size = dist.get_world_size()
        try:
            members = netsum.torch.regroup(
                gather_s=GATHER_S if self.rank == 0 else FRONT_S,
                timeout_s=10.0,
                min_members=1 if size <= 2 else max(2, size // 2),
            )
        except (dist.DistNetworkError, dist.DistStoreError) as error:
            raise FrontLost(f"rank 0, which takes the requests, is lost: {error}; start all ranks again") from error
        if members[0] != 0:
            raise FrontLost("the ranks have regrouped without rank 0, which takes the requests; start all ranks again")
        owner = [members.index(rank) if rank in members else None for rank in self.owner]
        idle = [rank for rank in range(len(members)) if rank not in owner]
        self.owner = [rank if rank is not None or not idle else idle.pop(0) for rank in owner]
        self._begin()
        return [rank for rank in range(size) if rank not in members]


class Subnet(Member):
    """Every rank but 0."""

    def serve(self):
        """Returns when rank 0 stops. An error of another rank ends it only if it cannot regroup."""
        while not self._serve_until_loss():
            self.regroup()

    def _serve_until_loss(self):
        posted, sent = collections.deque(), collections.deque()
        try:
            for _ in range(DEPTH):
                self._post(posted)
            stopped = False
            while posted:
                message, work = posted.popleft()
                work.wait()
                count = int(message[0])
                stopped = stopped or count == STOP
                if not stopped:
                    self._post(posted)
                if count > 0:
                    part = self.computed(message)
                    sent.append((part, self.gather(part)))
                    if len(sent) > DEPTH:
                        sent.popleft()[1].wait()
            for _, work in sent:
                work.wait()
        except dist.DistError:
            return False
        return True

    def _post(self, posted):
        message = self.message()
        posted.append((message, self.broadcast(message)))


class Request:
    """`answer` is a future of ({class: score}, missing classes)."""

    def __init__(self, image):
        self.image, self.answer = image, concurrent.futures.Future()


class Front(Member):
    """Rank 0: submit() takes an image, from any thread."""

    def __init__(self, *arguments, waiting=256, on_failure=lambda: None, **more):
        super().__init__(*arguments, **more)
        self.counts = collections.Counter()
        self.failure, self._on_failure = None, on_failure  # an error from which there is no way back
        self._requests = queue.Queue(waiting)
        self._again = collections.deque()  # were in flight when a rank was lost
        self._works = queue.Queue()
        self._room = threading.Semaphore(DEPTH)
        self._broken, self._stopping = threading.Event(), threading.Event()
        self._threads = [threading.Thread(target=one, daemon=True) for one in (self._send, self._receive)]
        for thread in self._threads:
            thread.start()

    def submit(self, image):
        request = Request(image)
        try:
            self._requests.put_nowait(request)
        except queue.Full:
            raise Full from None
        return request

    def waiting(self):
        return self._requests.qsize()

    def missing(self, groups):
        return sorted(one for group, classes in enumerate(self.groups) if group not in groups for one in classes)

    def own_answer(self, image):
        """What this rank knows alone, for a request that cannot wait."""
        group = self.mine()
        scores = self.run_group(group, image.unsqueeze(0))[0].tolist()
        return dict(zip(self.groups[group], scores, strict=True)), self.missing([group])

    def stop(self):
        self._stopping.set()
        for thread in self._threads:
            thread.join(TIMEOUT_S)

    # --- The thread that sends

    def _send(self):
        try:
            while True:
                try:
                    self._send_until_loss()
                    return
                except dist.DistError as error:
                    self._lost(error)
                if self._stopping.is_set():
                    return
                self._recover()
        except (
            Exception
        ) as error:  # of any kind: the requests are then answered by this rank alone, until the process ends
            self.failure = error
            self._on_failure()
        finally:
            self._works.put(None)

    def _send_until_loss(self):
        last = time.monotonic()
        while not self._stopping.is_set():
            if self._broken.is_set():
                raise dist.DistError("a rank is lost")
            requests = self._next()
            if requests or time.monotonic() >= last + BEAT_S:
                self._start(requests, len(requests))
                last = time.monotonic()
        for _ in range(DEPTH):
            self._start([], STOP)

    def _next(self):
        """Up to `batch` requests, as many as wait now."""
        requests = []
        with contextlib.suppress(queue.Empty):
            while len(requests) < self.batch:
                if self._again:
                    requests.append(self._again.popleft())
                else:
                    requests.append(self._requests.get(timeout=0 if requests else BEAT_S / 10))
                if requests[-1].answer.done():  # answered for lack of time
                    requests.pop()
        return requests

    def _start(self, requests, count):
        while not self._room.acquire(timeout=BEAT_S):
            if self._broken.is_set():
                self._again.extendleft(reversed(requests))
                raise dist.DistError("a rank is lost")
        message, works, parts = self.message(), [], []
        message[0] = count
        for index, request in enumerate(requests):
            message[1 + index * self.pixels : 1 + (index + 1) * self.pixels] = request.image.reshape(-1)
        try:
            works.append(self.broadcast(message))
            if requests:
                part = self.computed(message)
                parts = [torch.zeros_like(part) for _ in range(dist.get_world_size())]
                works.append(self.gather(part, parts))
        finally:
            # Also if a call has failed: the other thread then finds out, and gives the requests back.
            self._works.put((requests, works, parts, message, len(works) == (2 if requests else 1)))

    def _lost(self, error):
        if not self._broken.is_set():
            self._broken.set()
            print(f"serving: the ranks regroup: {error}", file=sys.stderr, flush=True)

    def _recover(self):
        """After the loss of a rank: waits for the other thread, regroups, and continues."""
        self._works.join()
        self.counts["lost"] += len(self.regroup())
        self._room = threading.Semaphore(DEPTH)
        self._broken.clear()
        self.counts["regroups"] += 1

    # --- The thread that receives

    def _receive(self):
        while (item := self._works.get()) is not None:
            requests, works, parts, message, started = item
            try:
                for work in works:
                    work.wait()
                lost = not started
            except dist.DistError as error:
                self._lost(error)
                lost = True
            if lost:
                self._broken.set()
                self._again.extend(requests)
            else:
                self._room.release()
                self._answer(requests, parts)
            del message
            self._works.task_done()

    def _answer(self, requests, parts):
        groups = [group for group, rank in enumerate(self.owner) if rank is not None]
        for index, request in enumerate(requests):
            scores = {
                one: score
                for group in groups
                for one, score in zip(self.groups[group], parts[self.owner[group]][index].tolist(), strict=False)
            }
            # A request whose time is over has been answered already.
            with contextlib.suppress(concurrent.futures.InvalidStateError):
                request.answer.set_result((scores, self.missing(groups)))
