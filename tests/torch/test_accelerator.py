"""Tensors of an accelerator, the one of accelerator/: each memory access that is not ordered by streams gives a wrong result."""

import datetime
import functools
import json
import logging
import os
import pathlib
import random
import time

import accelerator
import netsum.torch
import pytest
import ranks
import torch.distributed as dist
from torch.distributed import ReduceOp
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import torch

SEED = int(os.environ.get("NETSUM_ACCELERATOR_SEED", random.randrange(1 << 31)))
DEVICE = "mock:0"


def delays(microseconds=1000, **more):
    return {"NETSUM_ACCELERATOR_SEED": str(SEED), "NETSUM_ACCELERATOR_DELAY_US": str(microseconds), **more}


def run_all_outcomes(function, *, world_size=2, env=None, **options):
    print(f"NETSUM_ACCELERATOR_SEED={SEED}")
    return ranks.run_all_outcomes(
        function, world_size=world_size, env=env or delays(), before=accelerator.load, **options
    )


def run(function, **options):
    outcomes = run_all_outcomes(function, **options)
    failures = [
        f"rank {r} (exit code {o.exit_code}): {o.error}" for r, o in enumerate(outcomes) if o.error or o.exit_code
    ]
    assert not failures, "\n".join(failures)
    return [o.value for o in outcomes]


# --- Collectives: each is called on tensors of the CPU and of the device


def values(rank, dtype, shape=(3, 700), device="cpu"):
    numbers = torch.arange(float(torch.Size(shape).numel())).reshape(shape) % 50 - 20 + 3 * rank
    if dtype.is_floating_point:
        numbers = numbers / 7
    return numbers.to(dtype).to(device)


def all_reduce(rank, dtype, device, op=ReduceOp.SUM):
    tensor = values(rank, dtype, device=device)
    dist.all_reduce(tensor, op)
    return [tensor]


def all_reduce_of_columns(rank, dtype, device):
    tensor = values(rank, dtype, device=device)
    dist.all_reduce(tensor[:, 5:9])
    return [tensor]


def all_reduce_coalesced(rank, dtype, device):
    tensors = [values(rank + i, dtype, (100 + i,), device) for i in range(3)]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    return tensors


def parts_coalesced(rank, dtype, device):
    wholes = [values(rank + i, dtype, (dist.get_world_size() * (50 + i),), device) for i in range(3)]
    parts = [torch.zeros(50 + i, dtype=dtype, device=device) for i in range(3)]
    with dist._coalescing_manager():
        for part, whole in zip(parts, wholes, strict=True):
            dist.reduce_scatter_tensor(part, whole)
    gathered = [torch.zeros_like(whole) for whole in wholes]
    with dist._coalescing_manager():
        for part, whole in zip(parts, gathered, strict=True):
            dist.all_gather_into_tensor(whole, part)
    return parts + gathered


def reduce(rank, dtype, device):
    tensor = values(rank, dtype, device=device)
    dist.reduce(tensor, 1)
    return [tensor] if rank == 1 else []


def broadcast(rank, dtype, device):
    tensor = values(rank, dtype, device=device)
    dist.broadcast(tensor, 1)
    return [tensor]


def reduce_scatter(rank, dtype, device):
    parts = [values(rank + r, dtype, (50 + r,), device) for r in range(dist.get_world_size())]
    output = torch.zeros_like(parts[rank])
    dist.reduce_scatter(output, parts)
    return [output]


def reduce_scatter_tensor(rank, dtype, device):
    whole = values(rank, dtype, (dist.get_world_size() * 30, 4), device)
    output = torch.zeros(30, 4, dtype=dtype, device=device)
    dist.reduce_scatter_tensor(output, whole)
    return [output, whole]


def all_gather(rank, dtype, device):
    tensor = values(rank, dtype, device=device)
    outputs = [torch.zeros_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(outputs, tensor)
    return outputs


def all_gather_into_tensor(rank, dtype, device):
    tensor = values(rank, dtype, device=device)
    output = torch.zeros(dist.get_world_size() * 3, 700, dtype=dtype, device=device)
    dist.all_gather_into_tensor(output, tensor)
    in_place = torch.zeros_like(output)
    in_place[3 * rank : 3 * rank + 3] = tensor
    dist.all_gather_into_tensor(in_place, in_place[3 * rank : 3 * rank + 3])
    return [output, in_place]


def gather(rank, dtype, device):
    tensor = values(rank, dtype, device=device)
    outputs = [torch.zeros_like(tensor) for _ in range(dist.get_world_size())] if rank == 1 else None
    dist.gather(tensor, outputs, dst=1)
    return outputs or []


def scatter(rank, dtype, device):
    inputs = [values(r, dtype, device=device) for r in range(dist.get_world_size())] if rank == 0 else None
    output = torch.zeros(3, 700, dtype=dtype, device=device)
    dist.scatter(output, inputs, src=0)
    return [output]


def all_to_all_single(rank, dtype, device):
    tensor = values(rank, dtype, (dist.get_world_size() * 20,), device)
    output = torch.zeros_like(tensor)
    dist.all_to_all_single(output, tensor)
    return [output]


def nothing(rank, dtype, device):
    tensor = torch.zeros(0, dtype=dtype, device=device)
    dist.all_reduce(tensor)
    return [tensor]


COLLECTIVES = (
    all_reduce,
    functools.partial(all_reduce, op=ReduceOp.MAX),
    all_reduce_of_columns,
    all_reduce_coalesced,
    parts_coalesced,
    reduce,
    broadcast,
    reduce_scatter,
    reduce_scatter_tensor,
    all_gather,
    all_gather_into_tensor,
    gather,
    scatter,
    all_to_all_single,  # Gloo's
    nothing,
)
FACTORS = (
    functools.partial(all_reduce, op=ReduceOp.AVG),
    functools.partial(all_reduce, op=ReduceOp.PREMUL_SUM(0.3)),
)


def bits(tensor):
    tensor = tensor.cpu().contiguous()
    return tensor.view(torch.uint8).tolist() if tensor.numel() else []


def compare_with_cpu(devices, dtypes, env=None):
    """Every collective, where rank r has tensors on devices[r]."""

    def on_rank(rank):
        for dtype in dtypes:
            for collective in COLLECTIVES + (FACTORS if dtype.is_floating_point else ()):
                want = [bits(tensor) for tensor in collective(rank, dtype, "cpu")]
                got = collective(rank, dtype, devices[rank])
                assert all(tensor.device == torch.device(devices[rank]) for tensor in got)
                assert [bits(tensor) for tensor in got] == want, (collective, dtype)
        dist.barrier()
        return netsum.torch.describe()

    return run(on_rank, world_size=len(devices), env=env)


def test_collectives_have_the_bits_of_the_cpu():
    # float64: Gloo reduces it.
    for text in compare_with_cpu(["mock:0", "mock:1"], (torch.float32, torch.bfloat16, torch.int32, torch.float64)):
        assert "; tensors staged from mock:" in text


def test_ranks_on_different_devices():
    compare_with_cpu(["cpu", "mock:1", "mock:0"], (torch.float32, torch.int64))


def test_checking_layer_of_pytorch():
    """TORCH_DISTRIBUTED_DEBUG=DETAIL, which PyTorch reads when it is imported: it compares the ranks' calls before they run."""
    level = dist.get_debug_level()
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    try:
        compare_with_cpu(["mock:0", "mock:1"], (torch.float32,))
    finally:
        dist.set_debug_level(level)


# --- Streams. What fails here when one synchronisation is left out is in OMITTED


def check(tensor, value, what):
    got = tensor.cpu()
    assert torch.all(got == value), f"{what}: {value} everywhere, got {got[got != value][:5].tolist()}"


def stream_order(rounds, elements=40_000):
    """Calls whose streams are not waited for by the host."""

    def on_rank(rank):
        extension, other = accelerator.load(), torch.Stream(device=DEVICE)
        full = functools.partial(torch.full, (elements,), dtype=torch.float32, device=DEVICE)
        for index in range(rounds):
            with torch.Stream(device=DEVICE) if index % 2 else torch.accelerator.current_stream():
                # The input is what is in the current stream, and results are there for it after wait().
                first = full(float(rank))
                first.add_(1)
                dist.all_reduce(first, async_op=True).wait()
                first.mul_(2)
                check(first, 6, "after wait()")

                # The second call does not wait for the first one's copy to the device, and may not have its staging memory.
                second, third = full(float(index)), full(float(rank))
                work = dist.all_reduce(second, async_op=True)
                with other:
                    work.wait()
                time.sleep(0.001)
                dist.all_reduce(third, async_op=True).wait()
                torch.accelerator.synchronize()
                check(second, 2 * index, "the first of two calls")
                check(third, 1, "the second of two calls")

                # A callback has a stream of its own.
                fourth = full(float(rank))
                future = dist.all_reduce(fourth, async_op=True).get_future()
                check(future.then(lambda done: done.value()[0].add_(5)).wait(), 6, "after a callback")

                # The caller lets go of a result that is still to be written.
                dropped = full(1.0)
                work = dist.all_reduce(dropped, async_op=True)
                with other:
                    work.wait()
                del dropped, work
                time.sleep(0.001)
                taken = torch.empty(elements, device=DEVICE).fill_(7)

                # The others may rely on what this rank has enqueued before a barrier.
                host, one = torch.zeros(1, pin_memory=True), torch.ones(1, device=DEVICE)
                extension.sleep(0.005)
                host.copy_(one, non_blocking=True)
                dist.barrier()
                assert host.item() == 1, "a barrier before what was enqueued"
                torch.accelerator.synchronize()
                check(taken, 7, "memory of a dropped result")

    return on_rank


OMITTED = (
    "pool waits for caller",  # the copies in for the input
    "host waits for copies in",
    "host waits for copies out",  # to use staging memory again
    "caller waits for pool",  # for the results, in wait()
    "pool waits for pool",  # a callback for the results
    "host waits for caller",  # a barrier
    "record_stream",  # of results
)


def test_order_of_streams():
    run(stream_order(rounds=10), env=delays(2000))


# That test_order_of_streams sees each of them.
@pytest.mark.parametrize("omitted", [*OMITTED[:3], *(pytest.param(one, marks=pytest.mark.soak) for one in OMITTED[3:])])
def test_a_missing_synchronisation_is_found(omitted):
    outcomes = run_all_outcomes(stream_order(rounds=400), env=delays(4000, NETSUM_ACCELERATOR_OMIT=omitted))
    assert any(outcome.error_type == "AssertionError" for outcome in outcomes), outcomes


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(40))
def test_order_of_streams_with_many_seeds(seed):
    env = {**delays(3000), "NETSUM_ACCELERATOR_SEED": str(SEED + seed)}
    run(stream_order(rounds=30, elements=1000 * (seed + 1)), env=env)


def test_the_call_returns_before_the_device_gets_there():
    def on_rank(rank):
        held = torch.zeros(4, device=DEVICE)
        torch.accelerator.synchronize()
        extension = accelerator.load()
        extension.hold()
        held.add_(rank + 1)
        works = [dist.all_reduce(held, async_op=True), dist.all_reduce(torch.ones(3), async_op=True)]
        assert not any(work.is_completed() for work in works)  # the second waits for its turn
        extension.let_go()
        for work in works:
            work.wait()
        check(held, 3, "held back")

    run(on_rank)


def test_calls_keep_their_order():
    """Of tensors of the device and of the CPU, in the network and by Gloo, in two groups; waited for in any order."""

    def on_rank(rank):
        # Each with its members.
        groups = [(None, {0, 1, 2}), (dist.new_group([0, 1, 2]), {0, 1, 2}), (dist.new_group([0, 2]), {0, 2})]
        for group, members in groups:
            if rank in members:
                dist.all_reduce(torch.ones(2000, device=DEVICE), group=group)  # the groups beside the default one join
        in_flight = []
        for index in range(40):
            group, members = groups[index % 3]
            device = DEVICE if (index + rank) % 3 else "cpu"
            dtype = torch.float64 if index % 5 == 0 else torch.float32
            if rank in members:
                tensor = torch.full((index * 50,), float(rank + index), dtype=dtype, device=device)
                work = dist.all_reduce(tensor, group=group, async_op=True)
                in_flight.append((work, tensor, len(members) * index + sum(members)))
        random.Random(SEED).shuffle(in_flight)
        for work, tensor, value in in_flight:
            work.wait()
            check(tensor, value, "in its place")

    run(on_rank, world_size=3)


def test_staging_memory_is_bounded():
    """More is in flight than may be staged: calls wait for earlier ones."""

    def on_rank(rank):
        tensors = [torch.full((1 << 20,), float(index), device=DEVICE) for index in range(6)]
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
            work.wait()
        for index, tensor in enumerate(tensors):
            check(tensor, 2 * index, "staged")

    run(on_rank, env=delays(0, NETSUM_STAGING_MIB="8"))


# --- Training


def trained(rank, device, wrap, optimizer_of=torch.optim.SGD):
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.Tanh(), torch.nn.Linear(64, 8))
    model = wrap(model.to(device))
    optimizer = optimizer_of(model.parameters(), lr=0.1)
    losses = []
    for step in range(4):
        batch = values(rank + step, torch.float32, (16, 20), device)
        loss = (model(batch) - batch[:, :8]).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach().cpu().item())
    return losses


def data_parallel(model):
    return DistributedDataParallel(model, bucket_cap_mb=0.004)


def fully_sharded(model):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    device = next(model.parameters()).device.type
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    for layer in model:
        if list(layer.parameters()):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


zero = functools.partial(ZeroRedundancyOptimizer, optimizer_class=torch.optim.Adam)
WHOLE, SEGMENTS = {}, {"NETSUM_STAGING_SEGMENT_KIB": "4"}


@pytest.mark.parametrize(
    ("wrap", "optimizer_of", "staging"),
    [
        (data_parallel, torch.optim.SGD, WHOLE),
        (data_parallel, torch.optim.SGD, SEGMENTS),
        (fully_sharded, torch.optim.SGD, WHOLE),
        (fully_sharded, torch.optim.SGD, SEGMENTS),
        (data_parallel, zero, WHOLE),
    ],
)
def test_training_has_the_losses_of_the_cpu(wrap, optimizer_of, staging):
    def on_rank(rank):
        on_cpu, on_device = (trained(rank, device, wrap, optimizer_of) for device in ("cpu", DEVICE))
        assert on_device == on_cpu
        assert on_cpu[-1] < on_cpu[0]
        return ranks.calls("gloo")

    assert run(on_rank, env=delays(**staging)) == [{}, {}]


# --- Errors


def error_of(call):
    with pytest.raises(netsum.torch.Error) as caught:
        call()
    return caught.value.code, str(caught.value)


def test_a_recording_has_the_calls_of_the_cpu(tmp_path):
    def record_both(rank):
        recorded = {}
        for device in ("cpu", DEVICE):
            path = tmp_path / device.replace(":", "")
            with netsum.torch.record(path, scales=True):
                for call in (all_reduce, all_reduce_coalesced):
                    for tensor in call(rank, torch.float32, device):
                        tensor.cpu()
            [step] = [json.loads(line) for line in pathlib.Path(f"{path}.{rank}.jsonl").read_text().splitlines()][1:]
            assert all(one["done_ns"] > one["submitted_ns"] for one in step["operations"])
            # In host memory alone, the data is there when the call begins.
            assert all(("scales" in one) == (device == "cpu") for one in step["operations"])
            differs = ("submitted_ns", "done_ns", "scales")
            recorded[device] = [
                {key: value for key, value in one.items() if key not in differs} for one in step["operations"]
            ]
        return recorded

    for recorded in run(record_both):
        assert len(recorded["cpu"]) == 2
        assert recorded[DEVICE] == recorded["cpu"]


def test_bad_calls_are_refused():
    """They name what to do, and the group goes on."""

    def on_rank(rank):
        extension = accelerator.load()
        parts = [torch.zeros(3, device="mock:0"), torch.zeros(3, device="mock:1")]
        code, text = error_of(lambda: dist.all_gather(parts, torch.zeros(3, device="mock:0")))
        assert code == "invalid_argument"
        assert "mock:0 and mock:1 in one call" in text
        code, text = error_of(lambda: dist.send(parts[0], 1 - rank))
        assert code == "unsupported"
        assert "pass tensor.cpu()" in text
        extension.set_capturing(True)
        code, text = error_of(lambda: dist.all_reduce(parts[0]))
        extension.set_capturing(False)
        assert code == "unsupported"
        assert "leave the call out of the capture" in text
        dist.all_reduce(parts[0].fill_(1))
        check(parts[0], 2, "afterwards")

    run(on_rank)


def test_a_fault_of_the_device_ends_the_call_on_all_ranks():
    def on_rank(rank):
        tensor = torch.ones(1000, device=DEVICE)
        dist.all_reduce(tensor)
        if rank == 1:
            accelerator.load().fault("an illegal memory access was encountered")
        code, text = error_of(lambda: dist.all_reduce(tensor))
        ranks.meet()
        return code, text

    (code, text), (faulty_code, faulty_text) = run(on_rank)
    assert code == faulty_code == "aborted"
    assert "mock:0 reports: test accelerator: an illegal memory access was encountered" in faulty_text
    assert "illegal memory access" in text


def test_a_stream_that_does_not_end_is_a_timeout():
    def on_rank(rank):
        tensor = torch.ones(1000, device=DEVICE)
        if rank == 1:
            accelerator.load().hold()
        group = dist.new_group(timeout=datetime.timedelta(seconds=1))
        code, text = error_of(lambda: dist.all_reduce(tensor, group=group))
        ranks.meet()
        accelerator.load().let_go()
        return code, text

    (code, _), (held_code, held_text) = run(on_rank)
    assert code in ("timeout", "aborted")  # whichever rank sees its deadline first
    assert held_code in ("timeout", "aborted")
    assert held_code == "aborted" or "before mock:0 had done what comes before the call" in held_text


def test_without_pinned_memory(tmp_path):
    """Said once."""

    def on_rank(rank):
        logging.getLogger("netsum").addHandler(logging.FileHandler(tmp_path / f"log-{rank}"))
        for size in (100, 100_000, 1_000_000):
            tensor = torch.ones(size, device=DEVICE)
            dist.all_reduce(tensor)
            check(tensor, 2, "staged in pageable memory")
        return netsum.torch.describe()

    for text in run(on_rank, env=delays(NETSUM_ACCELERATOR_PINNED="0")):
        assert "staged from mock:0 in pageable memory" in text
    for rank in range(2):
        assert (tmp_path / f"log-{rank}").read_text().count("pageable") == 1


def test_in_a_process_that_was_forked_since():
    def on_rank(rank):
        tensor = torch.ones(10, device=DEVICE)
        dist.all_reduce(tensor)
        receiver, sender = ranks.CONTEXT.Pipe(duplex=False)

        def child():
            try:
                dist.all_reduce(tensor)
                sender.send("no error")
            except Exception as error:
                sender.send(str(error))
            os._exit(0)

        process = ranks.CONTEXT.Process(target=child)
        process.start()
        assert receiver.poll(30)
        text = receiver.recv()
        process.join()
        assert "forked" in text
        dist.all_reduce(tensor)
        check(tensor, 4, "in the parent")

    run(on_rank)


def test_groups_of_an_accelerator_alone():
    def on_rank(rank):
        tensor = torch.ones(10, device=DEVICE)
        dist.all_reduce(tensor)
        check(tensor, 2, "summed")
        return netsum.torch.stats()["operations"]

    assert min(run(on_rank, backend="mock:netsum")) > 0
