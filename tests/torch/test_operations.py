"""All-reduce in the network, and every collective of PyTorch in one place or the other (test_collectives.py has more)."""

import math
import time

import netsum.torch
import pytest
import ranks
import torch.distributed as dist
from ranks import WORLD_SIZE

import torch

NETWORK_TYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.int64]
HOST_TYPES = [torch.float64, torch.int8, torch.uint8]
SUM_OF_RANKS = sum(range(1, WORLD_SIZE + 1))


def operations_in_network():
    """Without those that announce the calls of Gloo, and may end later than these."""
    return sum(count for name, count in netsum.torch.stats()["netsum_calls"].items() if name != "barrier")


def test_all_reduce_sums_every_type():
    def on_rank(rank):
        for dtype in NETWORK_TYPES + HOST_TYPES:
            before = operations_in_network()
            tensor = torch.full((1000,), rank + 1).to(dtype)
            dist.all_reduce(tensor)
            assert torch.equal(tensor, torch.full((1000,), SUM_OF_RANKS).to(dtype)), dtype
            in_network = operations_in_network() - before
            assert in_network == (1 if dtype in NETWORK_TYPES else 0), dtype

    ranks.run(on_rank)


def test_all_reduce_averages():
    def on_rank(rank):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            before = operations_in_network()
            tensor = torch.full((100,), float(rank + 1), dtype=dtype)
            dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
            assert torch.equal(tensor, torch.full((100,), SUM_OF_RANKS / WORLD_SIZE, dtype=dtype))
            assert operations_in_network() == before + 1

    ranks.run(on_rank)


def test_complex_and_sparse_tensors():
    def on_rank(rank):
        before = operations_in_network()
        complex_numbers = torch.full((3,), complex(rank, 1))
        dist.all_reduce(complex_numbers)
        assert complex_numbers.tolist() == [complex(SUM_OF_RANKS - WORLD_SIZE, WORLD_SIZE)] * 3
        # PyTorch shows a complex tensor to the backend as float32.
        assert operations_in_network() == before + 1
        sparse = torch.sparse_coo_tensor([[rank]], [1.0], (WORLD_SIZE,), dtype=torch.float64)
        dist.all_reduce(sparse)
        assert sparse.to_dense().tolist() == [1.0] * WORLD_SIZE
        assert operations_in_network() == before + 1

    ranks.run(on_rank)


def test_layouts_that_are_not_contiguous():
    def on_rank(rank):
        base = torch.arange(24.0).reshape(4, 6)
        transposed = (base * (rank + 1)).t()
        dist.all_reduce(transposed)
        assert torch.equal(transposed, base.t() * SUM_OF_RANKS)

        every_second = (base * (rank + 1))[:, ::2]
        work = dist.all_reduce(every_second, async_op=True)
        work.wait()
        assert torch.equal(every_second, base[:, ::2] * SUM_OF_RANKS)

        # Ranks whose memory is laid out differently hold the same tensor all the same.
        image = torch.arange(120.0).reshape(2, 3, 4, 5) * (rank + 1)
        if rank % 2:
            image = image.contiguous(memory_format=torch.channels_last)
        dist.all_reduce(image)
        assert torch.equal(image.contiguous(), torch.arange(120.0).reshape(2, 3, 4, 5) * SUM_OF_RANKS)

    ranks.run(on_rank)


def test_odd_shapes():
    def on_rank(rank):
        scalar = torch.tensor(float(rank))
        dist.all_reduce(scalar)
        assert scalar.item() == sum(range(WORLD_SIZE))
        empty = torch.empty(0)
        dist.all_reduce(empty)
        assert empty.numel() == 0
        parameter = torch.nn.Parameter(torch.ones(3))
        dist.all_reduce(parameter.detach())
        assert parameter.tolist() == [WORLD_SIZE] * 3
        with torch.inference_mode():
            inference = torch.ones(3)
            dist.all_reduce(inference)
            assert inference.tolist() == [WORLD_SIZE] * 3

    ranks.run(on_rank)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_nan_and_infinity_survive_as_in_gloo(dtype):
    def on_rank(rank):
        tensor = torch.ones(1000, dtype=dtype)
        if rank == 1:
            tensor[3], tensor[500], tensor[700] = math.inf, math.nan, -math.inf
        if rank == 2:
            tensor[700] = math.inf
        dist.all_reduce(tensor)
        return tensor

    summed = {backend: ranks.run(on_rank, backend=backend) for backend in ("netsum", "gloo")}
    for ours, gloo in zip(summed["netsum"], summed["gloo"], strict=True):
        assert torch.allclose(ours, gloo, equal_nan=True)


@pytest.mark.parametrize(("dtype", "unit"), [(torch.bfloat16, 2.0**-8), (torch.float16, 2.0**-11)])
@pytest.mark.parametrize(("lane_bits", "bits_of_largest"), [("", 13), ("16", 13), ("32", 29)])
def test_half_types_keep_to_the_documented_error(dtype, unit, lane_bits, bits_of_largest):
    count = 20_000  # more than what is added as floats
    block = 1440 // 4 if lane_bits == "32" else 1440 // 2  # elements of one packet

    def on_rank(rank):
        generator = torch.Generator().manual_seed(5)
        # Magnitudes differ over twelve powers of two, also within a block.
        scales = 2.0 ** -torch.randint(0, 12, (count,), generator=generator)
        values = [(torch.randn(count, generator=generator) * scales).to(dtype) for _ in range(WORLD_SIZE)]
        tensor = values[rank].clone()
        dist.all_reduce(tensor)

        exact = torch.stack(values).double().sum(0)
        largest = torch.stack(values).double().abs().amax(0)
        largest = torch.cat([part.amax().expand(len(part)) for part in largest.split(block)])
        quantised = WORLD_SIZE * 2.0**-bits_of_largest * largest
        bound = quantised + (unit + 2.0**-23) * (exact.abs() + quantised) + 2.0**-25
        error = (tensor.double() - exact).abs()
        assert torch.all(error <= bound), (error / bound).amax()
        return tensor

    results = ranks.run(on_rank, env={"NETSUM_LANE_BITS": lane_bits})
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_8_bit_lanes_keep_to_the_documented_error(dtype):
    count = 10_000

    def on_rank(rank):
        generator = torch.Generator().manual_seed(6)
        values = [torch.randn(count, generator=generator).to(dtype) for _ in range(WORLD_SIZE)]
        values[1][123] = math.inf
        values[0][5000] = math.nan
        before = netsum.torch.stats()["bytes_sent"]
        tensor = values[rank].clone()
        dist.all_reduce(tensor)
        votes = torch.full((count,), 1.0 if rank == 0 else -1.0, dtype=dtype)
        dist.all_reduce(votes)
        sent = netsum.torch.stats()["bytes_sent"] - before

        exact = torch.stack(values).double().sum(0)
        finite = exact.isfinite()
        assert torch.equal(tensor[~finite].isnan(), exact[~finite].isnan())
        assert torch.equal(tensor[~finite].isinf(), exact[~finite].isinf())
        largest = torch.stack(values).double().abs().nan_to_num(posinf=0).amax(0)
        largest = torch.cat([part.amax().expand(len(part)) for part in largest.split(1440)])
        quantum = 2.0 ** (largest.log2().floor() + 1 - (7 - math.ceil(math.log2(WORLD_SIZE))))
        bound = WORLD_SIZE * quantum + 2.0**-8 * (exact.abs() + WORLD_SIZE * quantum)
        error = (tensor.double() - exact).abs()
        assert torch.all(error[finite] <= bound[finite]), (error / bound)[finite].amax()
        assert torch.equal(votes, torch.full((count,), 2.0 - WORLD_SIZE, dtype=dtype))
        return tensor, sent

    results = ranks.run(on_rank, env={"NETSUM_LANE_BITS": "8", "NETSUM_SHARED_MEMORY": "0"})
    for tensor, sent in results:
        assert torch.equal(tensor.nan_to_num(), results[0][0].nan_to_num())
        assert sent > 0


def test_tensors_of_a_coalesced_call_share_packets():
    def sums(rank):
        inputs = [torch.linspace(rank, i + rank, 100) for i in range(20)]
        alone = [tensor.clone() for tensor in inputs]
        before = netsum.torch.stats()
        for tensor in alone:
            dist.all_reduce(tensor)
        between = netsum.torch.stats()
        with dist._coalescing_manager():
            for tensor in inputs:
                dist.all_reduce(tensor)
        after = netsum.torch.stats()
        assert all(map(torch.equal, inputs, alone))
        return [
            [b[name] - a[name] for name in ("operations", "packets_sent")]
            for a, b in ((before, between), (between, after))
        ]

    for one_by_one, together in ranks.run(sums, world_size=2, env={"NETSUM_SHARED_MEMORY": "0"}):
        assert one_by_one[0] == 20 and together[0] == 1
        assert 2 * together[1] < one_by_one[1]  # 6 and 20 packets, and greetings


def test_many_in_flight():
    def on_rank(rank):
        generator = torch.Generator().manual_seed(7)
        sizes = torch.randint(1, 20_000, (60,), generator=generator).tolist()
        tensors = [torch.full((size,), float(rank + i)) for i, size in enumerate(sizes)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        barrier = dist.barrier(async_op=True)
        for work in reversed(works):
            work.wait()
        barrier.wait()
        for i, tensor in enumerate(tensors):
            expected = float(sum(r + i for r in range(WORLD_SIZE)))
            assert torch.allclose(tensor, torch.full_like(tensor, expected), rtol=1e-5)

    ranks.run(on_rank)


def test_futures():
    def on_rank(rank):
        tensor = torch.full((10,), float(rank))
        work = dist.all_reduce(tensor, async_op=True)
        doubled = work.get_future().then(lambda future: future.value()[0] * 2)
        assert doubled.wait().tolist() == [2.0 * sum(range(WORLD_SIZE))] * 10
        assert work.is_completed() and work.is_success()
        assert work.result()[0].tolist() == tensor.tolist()

    ranks.run(on_rank)


def test_coalesced_is_one_operation():
    def on_rank(rank):
        tensors = [torch.full((size,), float(rank + size)) for size in (1, 7, 1000)]
        before = operations_in_network()
        dist.all_reduce_coalesced(tensors)
        assert operations_in_network() == before + 1
        for tensor, size in zip(tensors, (1, 7, 1000), strict=True):
            assert tensor.tolist() == [float(sum(r + size for r in range(WORLD_SIZE)))] * size

    ranks.run(on_rank)


def overlapping(kind):
    """Tensors of one call that share memory, and a tensor that shows all of it."""
    whole = torch.arange(6000.0)
    if kind == "same":
        return [whole, whole], whole
    if kind == "part":
        return [whole[:4000], whole[2000:]], whole
    if kind == "inside":
        return [whole[10:20], whole, whole[15:5000]], whole
    if kind == "woven":  # in each other's gaps
        return [whole[::2], whole[1::2]], whole
    if kind == "transposed":
        return [whole.view(60, 100), whole.view(60, 100).t()], whole
    return [whole.as_strided((100, 60), (50, 1)), whole[5010:]], whole  # rows overlap


def test_coalesced_tensors_may_overlap_as_with_gloo():
    kinds = ["same", "part", "inside", "woven", "transposed", "rows"]

    def sums(rank, kind):
        tensors, whole = overlapping(kind)
        whole.mul_(rank + 1)
        before = operations_in_network() if dist.get_backend() == "netsum" else None
        dist.all_reduce_coalesced(tensors)
        assert before is None or operations_in_network() == before + 1
        return whole

    ours, gloo = (
        ranks.run(lambda rank: [sums(rank, kind) for kind in kinds], backend=backend) for backend in ("netsum", "gloo")
    )
    for index, kind in enumerate(kinds):
        for rank in range(WORLD_SIZE):
            assert torch.equal(ours[rank][index], ours[0][index]), kind
            assert torch.allclose(ours[rank][index], gloo[rank][index], rtol=1e-5, atol=1e-2), kind
        assert ours[0][index][5] == 5 * SUM_OF_RANKS, kind


def test_a_tensor_that_overlaps_on_one_rank_alone():
    def on_rank(rank):
        whole = torch.full((3000,), float(rank + 1))
        second = whole[1000:] if rank == 1 else whole[1000:].clone()
        dist.all_reduce_coalesced([whole[:2000], second])
        assert torch.all(whole[:2000] == SUM_OF_RANKS) and torch.all(second == SUM_OF_RANKS)

    ranks.run(on_rank)


def test_several_elements_at_one_place_are_refused_before_anything_is_sent():
    def on_rank(rank):
        expanded = torch.ones(1).expand(100)
        for call in (
            lambda: dist.all_reduce(expanded),
            lambda: dist.all_reduce_coalesced([torch.ones(3), expanded]),
        ):
            with pytest.raises(netsum.torch.Error, match=r"clone\(\)") as caught:
                call()
            assert caught.value.code == "invalid_argument"
        assert netsum.torch.stats()["operations_submitted"] == 0
        ones = torch.ones(10)  # nobody is out of step
        dist.all_reduce(ones)
        assert ones[0] == WORLD_SIZE
        assert netsum.torch.stats()["operations"] == 1

    ranks.run(on_rank)


def test_a_rank_that_alone_is_refused_keeps_nobody_beyond_the_deadline():
    def on_rank(rank):
        tensor = torch.ones(1).expand(100) if rank == 1 else torch.ones(100)
        with pytest.raises(netsum.torch.Error) as caught:
            dist.all_reduce(tensor)
        if rank == 1:
            while netsum.torch.error() is None:  # stays until the others have given up
                time.sleep(0.01)
        return caught.value.code, caught.value.rank

    results = ranks.run(on_rank, timeout_s=3.0)
    assert results.pop(1) == ("invalid_argument", None)
    assert results == [("timeout", 1)] * (WORLD_SIZE - 1)


def test_operations_are_counted_when_they_end():
    def on_rank(rank):
        dist.all_reduce(torch.ones(10))
        dist.barrier()
        ranks.meet()  # or rank 0's abort ends the barrier of a slow rank
        if rank == 0:
            work = dist.all_reduce(torch.ones(10), async_op=True)
            stats = netsum.torch.stats()
            assert (stats["operations_submitted"], stats["operations"], stats["operations_failed"]) == (2, 1, 0)
            dist.group.WORLD.abort()
            with pytest.raises(netsum.torch.Error):
                work.wait()
            assert netsum.torch.stats()["operations_failed"] == 1
        while netsum.torch.error() is None:
            time.sleep(0.01)
        return netsum.torch.stats()["operations"]

    assert ranks.run(on_rank) == [1] * WORLD_SIZE


def test_sub_groups_at_the_same_time():
    def on_rank(rank):
        pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        mine = pairs[rank // 2]
        tensor, everywhere = torch.full((5000,), float(rank)), torch.ones(5000)
        works = [dist.all_reduce(tensor, group=mine, async_op=True), dist.all_reduce(everywhere, async_op=True)]
        for work in works:
            work.wait()
        assert torch.equal(tensor, torch.full((5000,), 1.0 if rank < 2 else 5.0))
        assert torch.equal(everywhere, torch.full((5000,), float(WORLD_SIZE)))
        assert netsum.torch.stats(mine)["operations"] == 1
        alone = [dist.new_group([r]) for r in range(WORLD_SIZE)][rank]
        dist.all_reduce(tensor, group=alone)
        assert tensor[0] == (1.0 if rank < 2 else 5.0)
        dist.destroy_process_group(mine)
        dist.all_reduce(everywhere)
        assert everywhere[0] == WORLD_SIZE**2

    ranks.run(on_rank)


@pytest.mark.parametrize("backend", ["netsum", "cpu:netsum"])
def test_every_collective(backend):
    def on_rank(rank):
        others = [torch.full((3,), r, dtype=torch.float32) for r in range(WORLD_SIZE)]
        mine, total = others[rank].clone(), float(sum(range(WORLD_SIZE)))

        tensor = mine.clone()
        dist.broadcast(tensor, src=2)
        assert tensor.tolist() == [2.0] * 3
        gathered = [torch.empty(3) for _ in range(WORLD_SIZE)]
        dist.all_gather(gathered, mine)
        assert torch.equal(torch.stack(gathered), torch.stack(others))
        flat = torch.empty(3 * WORLD_SIZE)
        dist.all_gather_into_tensor(flat, mine)
        assert torch.equal(flat, torch.cat(others))
        at_root = [torch.empty(3) for _ in range(WORLD_SIZE)] if rank == 1 else None
        dist.gather(mine, at_root, dst=1)
        assert rank != 1 or torch.equal(torch.stack(at_root), torch.stack(others))
        tensor = torch.empty(3)
        dist.scatter(tensor, others if rank == 0 else None, src=0)
        assert torch.equal(tensor, mine)
        tensor = mine.clone()
        dist.reduce(tensor, dst=3)
        assert rank != 3 or tensor.tolist() == [total] * 3
        tensor = torch.empty(3)
        dist.reduce_scatter(tensor, [torch.full((3,), float(rank + r)) for r in range(WORLD_SIZE)])
        assert tensor.tolist() == [total + WORLD_SIZE * rank] * 3
        tensor = torch.empty(3)
        dist.reduce_scatter_tensor(tensor, torch.full((3 * WORLD_SIZE,), float(rank)))
        assert tensor.tolist() == [total] * 3
        received = [torch.empty(1) for _ in range(WORLD_SIZE)]
        dist.all_to_all(received, [torch.tensor([10.0 * rank + r]) for r in range(WORLD_SIZE)])
        assert [t.item() for t in received] == [10.0 * r + rank for r in range(WORLD_SIZE)]
        flat = torch.empty(WORLD_SIZE)
        dist.all_to_all_single(flat, torch.tensor([10.0 * rank + r for r in range(WORLD_SIZE)]))
        assert flat.tolist() == [10.0 * r + rank for r in range(WORLD_SIZE)]
        tensor = torch.empty(3)
        requests = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, mine, (rank + 1) % WORLD_SIZE),
                dist.P2POp(dist.irecv, tensor, (rank - 1) % WORLD_SIZE),
            ]
        )
        for request in requests:
            request.wait()
        assert tensor.tolist() == [float((rank - 1) % WORLD_SIZE)] * 3
        if rank == 0:
            sources = sorted(dist.recv(tensor) for _ in range(WORLD_SIZE - 1))
            assert sources == list(range(1, WORLD_SIZE))
        else:
            dist.send(mine, dst=0)
        objects = [None] * WORLD_SIZE
        dist.all_gather_object(objects, {"rank": rank})
        assert [o["rank"] for o in objects] == list(range(WORLD_SIZE))
        dist.barrier()
        stats = netsum.torch.stats()
        on_hosts = {"all_to_all", "all_to_all_single", "send", "recv"}
        assert set(stats["gloo_calls"]) == (on_hosts | {"recv_anysource"} if rank == 0 else on_hosts)
        assert set(stats["netsum_calls"]) == {
            *("broadcast", "all_gather", "all_gather_into_tensor", "gather", "scatter", "reduce"),
            *("reduce_scatter", "reduce_scatter_tensor", "barrier"),
        }
        # Without barriers; gathering objects is two operations.
        assert operations_in_network() == 10

    ranks.run(on_rank, backend=backend)


def test_group_of_one():
    def on_rank(_rank):
        tensor = torch.arange(10.0)
        dist.all_reduce(tensor)
        dist.barrier()
        assert tensor.tolist() == list(range(10))

    ranks.run(on_rank, world_size=1)


@pytest.mark.network
def test_statistics_and_description():
    def on_rank(_rank):
        dist.all_reduce(torch.ones(100_000))
        stats = netsum.torch.stats()
        assert stats["operations"] == 1
        assert stats["gradient_bytes"] == 400_000
        # A shard per rank, one of them our own; three quarters of the data go to the others.
        assert [stripe["local"] for stripe in stats["stripes"]].count(True) == 1
        assert len(stats["stripes"]) == WORLD_SIZE
        sent_away = sum(stripe["bytes_sent"] for stripe in stats["stripes"] if not stripe["local"])
        assert 0.7 * 400_000 < sent_away < stats["bytes_sent"]
        assert stats["shard_bytes_received"] > 0 and stats["shard_bytes_sent"] > 0
        assert "embedded shards" in netsum.torch.describe()
        gloo = dist.new_group(backend="gloo")
        with pytest.raises(ValueError, match="gloo"):
            netsum.torch.stats(gloo)

    ranks.run(on_rank)


@pytest.mark.network
def test_statistics_of_ranks_that_share_memory(monkeypatch):
    monkeypatch.delenv("NETSUM_SHARED_MEMORY")  # it is the default

    def on_rank(_rank):
        dist.all_reduce(torch.ones(100_000))
        stats = netsum.torch.stats()
        assert stats["gradient_bytes"] == 400_000
        assert stats["bytes_sent"] == stats["bytes_received"] == 0 and stats["stripes"] == []
        assert stats["shared_memory_bytes_written"] >= 400_000 and stats["shared_memory_bytes_read"] >= 400_000
        return netsum.torch.describe()

    for text in ranks.run(on_rank):
        assert "the 4 ranks of this host are summed in shared memory" in text, text


@pytest.mark.network
def test_the_same_bits_in_shared_memory_and_in_the_network():
    def on_rank(rank):
        generator = torch.Generator().manual_seed(rank)
        tensors = [torch.randn(50_000, generator=generator).to(dtype) for dtype in NETWORK_TYPES[:3]]
        tensors[0][7] = math.inf if rank == 1 else 1.0
        for tensor in tensors:
            dist.all_reduce(tensor)
        return [tensor.view(torch.uint8).numpy().tobytes() for tensor in tensors]

    apart, together = {"NETSUM_SHARED_MEMORY": "0"}, {"NETSUM_SHARED_MEMORY": "1"}
    assert len({tuple(bits) for env in (apart, together) for bits in ranks.run(on_rank, env=env)}) == 1
    # Ranks of a host are added first, which makes other floats but the same fixed-point sums.
    fixed = {"NETSUM_NUMERICS": "fixed"}
    two_hosts = [{**together, **fixed, "NETSUM_HOST": f"host{rank % 2}"} for rank in range(WORLD_SIZE)]
    assert len({tuple(bits) for env in (apart | fixed, two_hosts) for bits in ranks.run(on_rank, env=env)}) == 1


def test_profiler_names_the_operation():
    def on_rank(_rank):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            dist.all_reduce(torch.ones(10))
        assert "netsum:all_reduce" in {event.key for event in profile.key_averages()}

    ranks.run(on_rank, world_size=2)


@pytest.mark.network
def test_engine_threads():
    """Two threads on some ranks: the results are the same, and describe() says how many there are."""

    def on_rank(rank):
        works, sums = [], [torch.full((count,), float(rank)) for count in (1, 100_000, 7, 300_000)]
        for one in sums:
            works.append(dist.all_reduce(one, async_op=True))
        for work in works:
            work.wait()
        return [(one[0].item(), one[-1].item()) for one in sums], "engine thread" in netsum.torch.describe()

    envs = [
        {"NETSUM_SHARED_MEMORY": "0", "NETSUM_ENGINE_THREADS": str(1 + rank % 2)} for rank in range(ranks.WORLD_SIZE)
    ]
    results = ranks.run(on_rank, env=envs)
    expected = float(sum(range(ranks.WORLD_SIZE)))
    assert [sums for sums, _ in results] == [[(expected, expected)] * 4] * ranks.WORLD_SIZE
    assert [said for _, said in results] == [rank % 2 == 1 for rank in range(ranks.WORLD_SIZE)]


@pytest.mark.network
@pytest.mark.parametrize("world_size", [4, pytest.param(66, marks=pytest.mark.soak)])  # an aggregator takes 64
def test_racks_below_a_parent(world_size):
    """Two racks; each rank names its rack's aggregator."""

    def on_rank(rank):
        sums = torch.full((1000,), float(rank))
        special = torch.tensor([math.nan if rank == world_size - 1 else 1.0, 1.0])
        dist.all_reduce(sums)
        dist.all_reduce(special)
        assert netsum.torch.stats()["operations"] == 2
        assert "in the network" in netsum.torch.describe()
        return sums[0].item(), math.isnan(special[0].item()), special[1].item()

    with (
        ranks.aggregator() as spine,
        ranks.aggregator("--parent", spine.address) as first,
        ranks.aggregator("--parent", spine.address) as second,
    ):
        envs = [
            {"NETSUM_HIERARCHY": "1", "NETSUM_AGGREGATOR": rack.address, "NETSUM_CONNECT_TIMEOUT": "90"}
            for rack in (first, second)
            for _ in range(world_size // 2)
        ]
        results = ranks.run(on_rank, world_size=world_size, env=envs, timeout_s=90)
    assert results == [(sum(range(world_size)), True, float(world_size))] * world_size
