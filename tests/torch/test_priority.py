"""The order of buckets with priorities: one on all ranks, no inversion beyond the credit, the bits of DDP."""

import os
import random

import pytest
import ranks
import test_overlap
import torch.distributed as dist
from netsum.torch import OverlappedOptimizer, Priorities, _priority, prioritise, priority_hook
from netsum.torch._priority import Order
from torch.nn.parallel import DistributedDataParallel

import torch
from torch import nn

SEED = int(os.environ.get("NETSUM_SIM_SEED", random.SystemRandom().randrange(1 << 32)))


class Job:
    """Ranks that add operations at different times. A step ends in the network when all ranks have begun it."""

    def __init__(self, rng):
        self.rng = rng
        self.orders = [Order(count) for count in [rng.randint(1, 3)] for _ in range(count)]
        sizes = [1 << 12, 1 << 20] if rng.random() < 0.5 else [1 << 18, 1 << 21]
        self.operations = [(rng.randint(-3, 3), rng.choice(sizes)) for _ in range(rng.randint(1, 40))]
        self.begun = [[] for _ in self.orders]  # by rank: steps
        self.untold = [[] for _ in self.orders]  # by rank: indices of steps that it does not know to have ended
        self.added = [0 for _ in self.orders]
        self.sequence, self.sums, self.transferred = [], [], []
        self.first = set()  # operations that have begun on some rank
        self.everywhere = 0
        self.batches = []  # of each step, the batch
        self.passed = []  # by operation that is everywhere: the batches with less urgent ones before it
        self.slowness, self.haste = rng.choice([0.1, 0.9]), rng.choice([0.1, 0.6])

    def run(self):
        idle = 0
        while not all(a == len(self.operations) for a in self.added) or any(self.untold) or any(self._can_begin()):
            idle = 0 if self._act() else idle + 1
            assert idle < 10_000, "no step can begin: a deadlock"
        begun = [number for kind, number in self.sequence if kind == "begin"]
        assert sorted(begun) == list(range(len(self.operations)))

    def _can_begin(self):
        return [o._waiting or o._batch or o._agreeing or o._agreed < o._added for o in self.orders]

    def _act(self):
        rank = self.rng.randrange(len(self.orders))
        return self.rng.choice([self._add, self._begin, self._transfer, self._tell])(rank)

    def _add(self, rank):
        if self.added[rank] == len(self.operations) or self.rng.random() > self.haste:
            return False
        self.orders[rank].add(*self.operations[self.added[rank]])
        self.added[rank] += 1
        for operation in range(self.everywhere, min(self.added)):
            self.passed.append(set())
            for index, done in enumerate(self.transferred):
                if not done:
                    self._note_passed(index, operation)
        self.everywhere = min(self.added)
        return True

    def _begin(self, rank):
        step = self.orders[rank].next()
        if step is None:
            return False
        index = len(self.begun[rank])
        self.begun[rank].append(step)
        self.untold[rank].append(index)
        kind, what = step
        if index == len(self.sequence):
            self.sequence.append((kind, None if kind == "agree" else what))
            self.sums.append([0] * (1 + 3 * _priority.WINDOW))
            self.transferred.append(False)
            self.batches.append(self.orders[rank]._batches)
            self.first.add(what if kind == "begin" else None)
            for operation in range(self.everywhere):
                if operation not in self.first:
                    self._note_passed(index, operation)
        assert self.sequence[index] == (kind, None if kind == "agree" else what), "the ranks have different orders"
        if kind == "agree":
            self.sums[index] = [a + b for a, b in zip(self.sums[index], what, strict=True)]
        return True

    def _note_passed(self, index, operation):
        kind, number = self.sequence[index]
        if kind == "agree" or self.operations[number][0] >= self.operations[operation][0]:
            return
        passed = self.passed[operation]
        passed.add(self.batches[index])
        turns = (self.batches[index] - min(passed)) // _priority.TURNS
        assert len(passed) <= _priority.CREDIT_BATCHES + turns, "less urgent operations delay one beyond the credit"

    def _transfer(self, _rank):
        first = True
        for index, done in enumerate(self.transferred):
            if done:
                continue
            if any(len(begun) <= index for begun in self.begun):
                return False
            # Agreements are so small that they overtake.
            if self.sequence[index][0] == "agree" or (first and self.rng.random() > self.slowness):
                self.transferred[index] = True
                return True
            first = False
        return False

    def _tell(self, rank):
        for index in self.untold[rank]:
            if self.transferred[index] and self.rng.random() < 0.7:
                self.untold[rank].remove(index)
                kind, what = self.begun[rank][index]
                self.orders[rank].agreed(self.sums[index]) if kind == "agree" else self.orders[rank].ended(what)
                return True
        return False


@pytest.mark.parametrize("schedules", [50, pytest.param(20_000, marks=pytest.mark.soak)])
def test_random_schedules_have_one_order_and_no_inversion_beyond_the_credit(schedules):
    for schedule in range(schedules):
        try:
            Job(random.Random(f"{SEED} {schedule}")).run()
        except Exception as error:
            error.add_note(f"schedule {schedule}, NETSUM_SIM_SEED={SEED}")
            raise


def run_alone(order, steps):
    """One rank, whose operations end at once. Returns which began."""
    begun = []
    for _ in range(steps):
        step = order.next()
        if step is None:
            break
        kind, what = step
        if kind == "agree":
            order.agreed(what)
        else:
            begun.append(what)
            order.ended(what)
    return begun


def test_the_oldest_is_not_starved():
    order = Order(1)
    for _ in range(10):
        order.add(0, 1 << 22)
    for _ in range(1000):
        order.add(1, 1 << 22)
    begun = run_alone(order, 2 * _priority.TURNS * 12)
    assert len(order._operations) == 1010 - len(begun)  # it forgets what has ended
    assert set(range(10)) <= set(begun)
    assert sum(number < 10 for number in begun[: _priority.TURNS * 8]) <= 8


def test_two_batches_are_in_flight_and_batches_follow_the_network():
    order = Order(1)
    for _ in range(600):
        order.add(0, 1 << 22)
    run_alone(order, 20)  # each agreement ends when nothing is in flight
    assert order.batch_bytes == _priority._MOST_BATCH
    running = []
    for _ in range(1600):
        step = order.next()
        if step is None:
            assert len(running) == 2
            order.ended(running.pop(0))
        elif step[0] == "agree":
            order.agreed(step[1])
        else:
            running.append(step[1])
    assert order.batch_bytes == _priority._LEAST_BATCH


@pytest.mark.parametrize("backend", ["netsum", "gloo"])
def test_same_bits_as_ddp_in_the_order_of_use(backend):
    def on_rank(rank):
        plain = test_overlap.train(rank, False)
        hooks = []

        def make_hook(model):
            hooks.append(Priorities(model))
            return hooks[-1], priority_hook

        prioritised = test_overlap.train(rank, "late", make_hook=make_hook)
        assert prioritised[0] == plain[0]
        assert torch.equal(prioritised[1], plain[1])
        uses = hooks[0]._uses
        return [list(p.shape) for p in sorted(uses, key=uses.get)]

    orders = ranks.run(on_rank, world_size=3, backend=backend)
    assert orders[0][0] == [32, 16]  # the first layer
    assert orders[0] == orders[1] == orders[2]


@pytest.mark.parametrize(("backend", "message"), [("netsum", "mismatch: "), ("gloo", "differ in the priority")])
def test_ranks_that_differ_in_priorities_are_told_at_once(backend, message):
    class Either(nn.Module):
        def __init__(self, first):
            super().__init__()
            self.a, self.b, self.first = nn.Linear(64, 64), nn.Linear(64, 64), first

        def forward(self, x):
            return self.b(self.a(x)) if self.first == 0 else self.a(self.b(x))

    def on_rank(rank):
        model = DistributedDataParallel(Either(rank), bucket_cap_mb=0.015)
        prioritise(model)
        model(torch.ones(2, 64)).sum().backward()  # of which DDP makes one bucket
        with pytest.raises((ValueError, RuntimeError), match=message):
            model(torch.ones(2, 64)).sum().backward()

    ranks.run(on_rank, world_size=2, backend=backend)


def test_a_lost_rank_ends_all_sums():
    def on_rank(rank):
        model = DistributedDataParallel(nn.Linear(400, 400))
        hook = (Priorities(model), priority_hook)
        optimizer = OverlappedOptimizer(model, torch.optim.SGD(model.parameters(), lr=0.1), hook=hook)
        for step in range(100):
            if (rank, step) == (1, 2):
                os._exit(3)
            try:
                model(torch.ones(2, 400)).sum().backward()
                optimizer.step()
            except dist.DistBackendError as error:
                return type(error).__name__, str(error)
        return None

    outcomes = ranks.run_all_outcomes(on_rank, world_size=2, timeout_s=10)
    assert outcomes[0].value is not None, outcomes[0].error
    assert "peer_lost" in outcomes[0].value[1]


def test_another_model_than_ddp_is_refused():
    with pytest.raises(TypeError, match="Priorities: the model is a Linear, not a DistributedDataParallel"):
        prioritise(nn.Linear(1, 1))
