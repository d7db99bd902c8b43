"""All-reduces of sparse tensors, and of dense ones with many zeros; training with sparse gradients."""

import functools
import itertools

import netsum.torch
import pytest
import ranks
import torch.distributed as dist
from ranks import WORLD_SIZE
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.common_distributed import simple_sparse_reduce_tests

import torch


def sparse_operations():
    return netsum.torch.stats()["sparse_operations"]


def random_sparse(rank, seed, sizes, sparse_dim, dtype, nnz):
    """Uncoalesced, of small integers, which all types sum exactly."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    indices = torch.stack([torch.randint(sizes[d], (nnz,), generator=generator) for d in range(sparse_dim)])
    values = torch.randint(-3, 4, (nnz, *sizes[sparse_dim:]), generator=generator).to(dtype)
    return torch.sparse_coo_tensor(indices, values, sizes)


def expected_sum(tensors):
    """By PyTorch, in float64."""
    total = tensors[0].to(torch.float64).coalesce()
    for tensor in tensors[1:]:
        total = (total + tensor.to(torch.float64)).coalesce()
    return total


TYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.int64]
SHAPES = [((50,), 1), ((1000, 16), 1), ((30, 40), 2), ((20, 30, 8, 2), 2), ((7, 5, 3), 3)]  # and sparse dimensions


def test_sums_have_the_indices_that_any_rank_has_stored():
    def on_rank(rank):
        for seed, (dtype, (sizes, sparse_dim)) in enumerate(itertools.product(TYPES, SHAPES)):
            inputs = [random_sparse(r, seed, sizes, sparse_dim, dtype, 0 if r == 1 else 40) for r in range(WORLD_SIZE)]
            mine, expected = inputs[rank], expected_sum(inputs)
            dist.all_reduce(mine)
            assert mine.is_coalesced() and mine.dtype == dtype and mine.shape == sizes
            assert torch.equal(mine.indices(), expected.indices())
            assert torch.equal(mine.values().to(torch.float64), expected.values())
        assert sparse_operations() == len(TYPES) * len(SHAPES)

    ranks.run(on_rank)


def test_stored_zeros_and_sums_that_are_zero_stay():
    def on_rank(rank):
        sign = 1.0 if rank % 2 == 0 else -1.0
        tensor = torch.sparse_coo_tensor([[5, 2]], [sign, 0.0], (8,))
        dist.all_reduce(tensor)
        assert tensor.indices().tolist() == [[2, 5]]
        assert tensor.values().tolist() == [0.0, 0.0]
        empty = torch.sparse_coo_tensor(torch.empty((1, 0), dtype=torch.int64), torch.empty(0), (8,))
        dist.all_reduce(empty)
        assert empty._nnz() == 0
        nan = torch.sparse_coo_tensor([[1]], [float("nan")], (8,))
        dist.all_reduce(nan)
        assert nan.values().isnan().all() and nan._nnz() == 1

    ranks.run(on_rank)


def test_averages_and_scaled_sums():
    def on_rank(rank):
        tensor = torch.sparse_coo_tensor([[rank]], [4.0], (WORLD_SIZE,))
        dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
        assert tensor.to_dense().tolist() == [4.0 / WORLD_SIZE] * WORLD_SIZE
        tensor = torch.sparse_coo_tensor([[rank, 0]], [4.0, 1.0], (WORLD_SIZE,))
        dist.all_reduce(tensor, op=dist._make_nccl_premul_sum(0.5))
        assert tensor.to_dense().tolist() == [2.0 + WORLD_SIZE / 2, *[2.0] * (WORLD_SIZE - 1)]
        assert sparse_operations() == 2

    ranks.run(on_rank)


def test_minima_maxima_and_bitwise_operators():
    """What a rank has not stored takes part as zero."""

    def on_rank(rank):
        def reduced(op, stored, dtype):
            """At index 0 what all ranks have stored, at index 1 what rank 2 has alone."""
            indices, values = ([[0, 1]], [stored[rank], 5]) if rank == 2 else ([[0]], [stored[rank]])
            tensor = torch.sparse_coo_tensor(indices, values, (9,), dtype=dtype)
            dist.all_reduce(tensor, op=op)
            assert tensor.indices().tolist() == [[0, 1]]
            return tensor.values().tolist()

        op = dist.ReduceOp
        for dtype in TYPES:
            assert reduced(op.MAX, [-4, -2, -3, -8], dtype) == [-2, 5]
            assert reduced(op.MIN, [4, 2, 3, 8], dtype) == [2, 0]
        for dtype in (torch.int32, torch.int64):
            assert reduced(op.BOR, [1, 2, 4, 2], dtype) == [7, 5]
            assert reduced(op.BAND, [7, 6, 14, 6], dtype) == [6, 0]
            assert reduced(op.BXOR, [1, 2, 4, 2], dtype) == [5, 5]
        assert sparse_operations() == 2 * len(TYPES) + 6
        assert "all_reduce" not in netsum.torch.stats()["gloo_calls"]

    ranks.run(on_rank)


def test_bools():
    def on_rank(rank):
        op = dist.ReduceOp
        for which, expected in (
            (op.SUM, [False, False, True, True]),
            (op.BOR, [False, False, True, True]),
            (op.MAX, [False, False, True, True]),
            (op.MIN, [False] * 4),
        ):
            flags = torch.sparse_coo_tensor([[rank, 0]], [rank > 1, False], (WORLD_SIZE,), dtype=torch.bool)
            dist.all_reduce(flags, op=which)
            assert flags.dtype == torch.bool and flags._nnz() == WORLD_SIZE
            assert flags.to_dense().tolist() == expected, which
        assert sparse_operations() == 4

    ranks.run(on_rank)


# torch.distributed.all_reduce passes on a copy of a sparse complex tensor, and leaves the tensor itself as it is.
def test_complex_numbers():
    def on_rank(rank):
        inputs = [torch.sparse_coo_tensor([[r, 7]], [[1 + 2j, r * 1j], [3j, 1]], (8, 2)) for r in range(WORLD_SIZE)]
        total = sum(tensor.to_dense() for tensor in inputs)
        mine = inputs[rank].clone()
        assert mine.dtype == torch.complex64
        netsum.torch.sparse_all_reduce(mine)
        assert torch.equal(mine.to_dense(), total)
        mine = inputs[rank].conj()
        netsum.torch.sparse_all_reduce(mine, dist.ReduceOp.AVG)
        assert torch.allclose(mine.to_dense(), total.conj() / WORLD_SIZE)
        assert sparse_operations() == 2
        with pytest.raises(ValueError, match="complex128"):
            netsum.torch.sparse_all_reduce(mine.to(torch.complex128))
        dist.barrier()  # a rank that left before would be the error of the others

    ranks.run(on_rank)


def test_types_of_the_hosts_still_work():
    def on_rank(rank):
        tensor = torch.sparse_coo_tensor([[rank]], [1.0], (WORLD_SIZE,), dtype=torch.float64)
        dist.all_reduce(tensor)
        assert tensor.to_dense().tolist() == [1.0] * WORLD_SIZE
        assert sparse_operations() == 0

    ranks.run(on_rank)


def test_shapes_without_elements_and_of_any_size():
    def on_rank(rank):
        for sizes in ((0,), (0, 4), (5, 0)):
            tensor = torch.sparse_coo_tensor(
                torch.empty((1, 0), dtype=torch.int64), torch.empty((0, *sizes[1:])), sizes
            )
            dist.all_reduce(tensor)
            assert tensor._nnz() == 0 and tensor.shape == sizes
        scalar = torch.sparse_coo_tensor(torch.empty((0, 2), dtype=torch.int64), torch.ones(2), ())
        dist.all_reduce(scalar)
        assert scalar.to_dense().item() == 2 * WORLD_SIZE
        huge = torch.sparse_coo_tensor([[2**20 - 1], [2**20 - 1 - rank]], [1.0], (2**20, 2**20))
        dist.all_reduce(huge)
        assert huge.indices().tolist() == [
            [2**20 - 1] * WORLD_SIZE,
            [2**20 - WORLD_SIZE + r for r in range(WORLD_SIZE)],
        ]

    ranks.run(on_rank)


def test_pytorchs_own_sparse_inputs():
    """Those of torch's test_sparse_all_reduce_sum, which itself skips all backends but Gloo."""

    def on_rank(rank):
        def convert(tensor):
            return tensor.to(torch.float32)

        for inputs, outputs in simple_sparse_reduce_tests(rank, WORLD_SIZE, num_inputs=1):
            tensors = [convert(t) for t in inputs]
            dist.all_reduce(tensors[0])
            assert torch.equal(tensors[0].to_dense(), convert(outputs[0]).to_dense())

    ranks.run(on_rank)


def test_invalid_indices_of_one_rank_are_an_error_on_all():
    def on_rank(rank):
        tensor = torch.sparse_coo_tensor([[1]], [1.0], (8,))
        if rank == 2:
            tensor._indices()[0, 0] = 9
        with pytest.raises(netsum.torch.Error, match="index 9" if rank == 2 else "rank 2") as caught:
            dist.all_reduce(tensor)
        assert caught.value.code == "invalid_argument"
        good = torch.sparse_coo_tensor([[rank]], [1.0], (WORLD_SIZE,))
        dist.all_reduce(good)
        assert good.to_dense().tolist() == [1.0] * WORLD_SIZE

    ranks.run(on_rank)


def test_calls_in_flight_together():
    def on_rank(rank):
        works, tensors, expected = [], [], []
        for step in range(10):
            inputs = [random_sparse(r, step, (500, 4), 1, torch.float32, 60) for r in range(WORLD_SIZE)]
            tensors.append(inputs[rank])
            expected.append(expected_sum(inputs))
            works.append(dist.all_reduce(tensors[-1], async_op=True))
            tensors.append(torch.full((1000,), float(rank)))
            expected.append(torch.full((1000,), float(sum(range(WORLD_SIZE)))))
            works.append(dist.all_reduce(tensors[-1], async_op=True))
        for work in reversed(works):
            work.wait()
        for tensor, sum_ in zip(tensors, expected, strict=True):
            assert torch.equal(tensor.to_dense().to(sum_.dtype), sum_.to_dense())

    ranks.run(on_rank)


def test_dense_tensors_with_zeros():
    def on_rank(rank):
        for mode in ("on", "auto", "off"):
            tensor = torch.zeros(100_000)
            tensor[rank * 100 : rank * 100 + 50] = rank + 1
            assert netsum.torch.sparse_all_reduce(tensor, mode=mode) is None
            assert tensor.sum() == 50 * sum(range(1, WORLD_SIZE + 1)) and tensor[100 * rank] == rank + 1
        work = netsum.torch.sparse_all_reduce(tensor, dist.ReduceOp.AVG, async_op=True, mode="on", unit=50)
        work.wait()
        assert tensor[100 * rank] == rank + 1
        stats = netsum.torch.stats()
        assert stats["sparse_operations"] == 4 and stats["sparse_spared_bytes"] > 3 * 390_000
        assert "sparse all-reduces" in netsum.torch.describe()
        smallest = torch.zeros(20_000)
        smallest[rank] = -rank
        netsum.torch.sparse_all_reduce(smallest, dist.ReduceOp.MIN, mode="on")
        assert smallest.nonzero().flatten().tolist() == [1, 2, 3] and smallest.sum() == -6
        with pytest.raises(ValueError, match="mode is 'yes'"):
            netsum.torch.sparse_all_reduce(tensor, mode="yes")
        with pytest.raises(ValueError, match="unit is 0"):
            netsum.torch.sparse_all_reduce(tensor, unit=0)

    ranks.run(on_rank)


class Recommender(torch.nn.Module):
    """A table with sparse gradients, a bag, and dense layers."""

    def __init__(self, sparse, items=2000, columns=8):
        super().__init__()
        self.used = torch.arange(8) < columns
        self.table = torch.nn.Embedding(items, 8, sparse=sparse)
        self.bag = torch.nn.EmbeddingBag(500, 8, mode="sum", sparse=sparse)
        self.top = torch.nn.Linear(16, 1)

    def forward(self, items, history):
        return self.top(torch.cat([self.table(items) * self.used, self.bag(history)], dim=1))


def sparse_hook(group, bucket):
    """That of PyTorch's test_ddp_comm_hook_sparse_gradients."""
    work = dist.all_reduce(bucket.buffer(), op=dist.ReduceOp.AVG, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


SGD = functools.partial(torch.optim.SGD, lr=0.1)
STEPS, BATCH = 4, 16


def items_of(step, count):
    return torch.randint(count, (BATCH * WORLD_SIZE,), generator=torch.Generator().manual_seed(100 + step))


def train(rank, world_size, sparse, hook=None, optimizer=SGD, size=(), state_of=lambda model: None, **ddp_options):
    """The parameters after some steps. With one rank, on the batches of all ranks. `size`: arguments of Recommender."""
    torch.manual_seed(1)
    model = Recommender(sparse, *size)
    wrapped = DistributedDataParallel(model, **ddp_options) if world_size > 1 else model
    if hook is not None:
        wrapped.register_comm_hook(state_of(model), hook)
    tables = [parameter for name, parameter in model.named_parameters() if "top" not in name]
    optimizers = [optimizer(tables), SGD(model.top.parameters())]
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step)
        numbers = items_of(step, model.table.num_embeddings)
        history = torch.randint(500, (BATCH * WORLD_SIZE, 3), generator=generator)
        part = slice(BATCH * rank, BATCH * (rank + 1)) if world_size > 1 else slice(None)
        wrapped.zero_grad()
        wrapped(numbers[part], history[part]).square().mean().backward()
        for each in optimizers:
            each.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def check_training(results, alone):
    for mine in results:
        for a, b, first in zip(mine, alone, results[0], strict=True):
            assert torch.allclose(a, b, atol=1e-4)
            assert torch.equal(a, first), "ranks have diverged"


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        pytest.param(SGD, {}, id="sgd"),
        pytest.param(SGD, {"gradient_as_bucket_view": True}, id="grad_is_view"),
        pytest.param(SGD, {"static_graph": True}, id="static_graph"),
        pytest.param(SGD, {"hook": sparse_hook}, id="sparse_hook"),
        pytest.param(SGD, {"hook": netsum.torch.sparse_ddp_hook}, id="netsum_hook"),
        pytest.param(functools.partial(torch.optim.SparseAdam, lr=0.01), {}, id="sparse_adam"),
        pytest.param(functools.partial(torch.optim.Adagrad, lr=0.1), {}, id="adagrad"),
    ],
)
def test_training_with_sparse_gradients_is_that_of_one_process(optimizer, options):
    alone = ranks.run(lambda rank: train(rank, 1, True, optimizer=optimizer), world_size=1)[0]

    def on_rank(rank):
        result = train(rank, WORLD_SIZE, True, optimizer=optimizer, **options)
        assert sparse_operations() >= 2 * STEPS, "both tables, in every step"
        assert "all_reduce" not in netsum.torch.stats()["gloo_calls"]
        return result

    check_training(ranks.run(on_rank), alone)


def test_the_hook_trains_dense_tables():
    alone = ranks.run(lambda rank: train(rank, 1, False), world_size=1)[0]

    def on_rank(rank):
        result = train(rank, WORLD_SIZE, False, netsum.torch.sparse_ddp_hook)
        stats = netsum.torch.stats()
        assert stats["sparse_operations"] >= STEPS and stats["sparse_spared_bytes"] > 0
        return result

    check_training(ranks.run(on_rank), alone)


@pytest.mark.parametrize("ddp_options", [{}, {"gradient_as_bucket_view": True}, {"static_graph": True}])
def test_the_hook_sends_the_rows_of_dense_tables(ddp_options):
    size = (20_000, 2)  # items, and how many of a row's 8 elements have gradients
    alone = ranks.run(lambda rank: train(rank, 1, False, size=size), world_size=1)[0]

    def on_rank(rank):
        state = netsum.torch.EmbeddingRows
        result = train(rank, WORLD_SIZE, False, netsum.torch.sparse_ddp_hook, size=size, state_of=state, **ddp_options)
        stats = netsum.torch.stats()
        assert stats["sparse_operations"] == 2 * STEPS, "both tables, in every step"
        rows = sum(items_of(step, 20_000).unique().numel() for step in range(STEPS))
        bag = 500 * 8  # so small that it is sent as a dense tensor
        assert stats["sparse_elements"] == STEPS * (20_000 * 8 + bag)
        assert stats["sparse_sent_elements"] == rows * 8 + STEPS * bag, "whole rows"
        return result

    check_training(ranks.run(on_rank), alone)


def test_rows_of_a_model_without_dense_tables_are_refused():
    with pytest.raises(ValueError, match="EmbeddingRows: the model has no"):
        netsum.torch.EmbeddingRows(Recommender(sparse=True))
