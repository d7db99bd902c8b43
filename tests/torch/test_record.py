"""netsum.torch.record: programs of DDP, FSDP2, accumulation and several groups, whose replay gives the recorded times."""

import contextlib
import itertools
import json
import math
import os
import re
import sys

import netsum.torch
import pytest
import ranks
import torch.distributed as dist
from netsum_bench import processes
from ranks import WORLD_SIZE
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.distributed_c10d import _get_default_store
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import torch
from torch import nn

STEPS = 4
ELEMENTS = 20 * 300 + 300 + 300 * 3 + 3


def make_model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(20, 300), nn.Tanh(), nn.Linear(300, 3))


def train(model, rank, *, accumulate=1, end_of_step=lambda: None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(STEPS):
        for part in range(accumulate):
            with contextlib.nullcontext() if part == accumulate - 1 else model.no_sync():
                x = torch.full((8, 20), float(step + rank))
                model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        end_of_step()


def read(path):
    header, *steps = [json.loads(line) for line in path.read_text().splitlines()]
    assert header["format"] == "netsum-program" and header["steps"] == len(steps)
    return header, steps


def duration_of(step, delays):
    """The replay of a step: when its first thread ends. `delays`: of each operation, from its submission to its end."""
    done = {carried["id"]: carried["done_ns"] for carried in step.get("carried", [])}
    now, position = [0] * len(step["threads"]), [0] * len(step["threads"])
    submitted = {}
    advanced = True
    while advanced:
        advanced = False
        for t, thread in enumerate(step["threads"]):
            while position[t] < len(thread):
                kind, value = thread[position[t]]
                if kind == "wait" and value not in done:
                    break
                if kind == "compute":
                    now[t] += value
                elif kind == "submit":
                    submitted[value] = now[t]
                    done[value] = now[t] + delays[value]
                else:
                    now[t] = max(now[t], done[value])
                position[t] += 1
                advanced = True
    assert position == [len(thread) for thread in step["threads"]]
    return now[0], submitted


def check_replay(steps):
    """The recorded completions give the recorded duration and submissions, exactly; and only waits make a step longer."""
    for step in steps:
        operations = step["operations"]
        delays = [o.get("done_ns", o["submitted_ns"]) - o["submitted_ns"] for o in operations]
        duration, submitted = duration_of(step, delays)
        assert duration == step["duration_ns"]
        assert submitted == {o["id"]: o["submitted_ns"] for o in operations}


def calls(step):
    """What the ranks of a group must agree on."""
    keys = ("collective", "type", "count", "parts", "operation", "root", "group", "tag", "hosts")
    return [[operation.get(key) for key in keys] for operation in step["operations"]]


def waits_of(step):
    return [value for thread in step["threads"] for kind, value in thread if kind == "wait"]


def shapes(steps, collective):
    return [[o["count"] for o in step["operations"] if o["collective"] == collective] for step in steps]


def recorded(tmp_path, on_rank, **options):
    """What on_rank(rank, recording) did, of each rank, as (header, steps)."""

    def run(rank):
        with netsum.torch.record(tmp_path / "job", **options) as recording:
            on_rank(rank, recording)

    ranks.run(run)
    programs = [read(tmp_path / f"job.{rank}.jsonl") for rank in range(WORLD_SIZE)]
    assert not list(tmp_path.glob("*.part"))
    for rank, (header, steps) in enumerate(programs):
        assert (header["rank"], header["world_size"]) == (rank, WORLD_SIZE)
        check_replay(steps)
    return programs


def test_ddp(tmp_path):
    def on_rank(rank, _):
        train(DistributedDataParallel(make_model(), bucket_cap_mb=0.003), rank)

    programs = recorded(tmp_path, on_rank, model="small")
    for header, steps in programs:
        assert header["model"] == "small"
        assert header["groups"] == [{"id": 0, "ranks": list(range(WORLD_SIZE))}]
        assert [step["step"] for step in steps] == list(range(STEPS))
        assert not any(step.get("partial") for step in steps)
        assert all(sum(counts) == ELEMENTS for counts in shapes(steps, "all_reduce"))
        assert shapes(steps, "broadcast")[0], "the first step has the broadcast of the parameters"
        for step in steps[2:]:
            assert len(step["operations"]) == 2  # two buckets
            assert len(step["threads"]) == 1
            # DDP waits for the futures of its buckets at the end of the backward pass.
            kinds = [kind for kind, _ in step["threads"][0]]
            assert kinds == ["compute", "submit", "compute", "submit", "compute", "wait", "wait", "compute"]
            assert sorted(waits_of(step)) == [0, 1]
            # A network that needs a second more for the last bucket delays the step by almost as much.
            slow = duration_of(step, [0, 10**9])[0] - duration_of(step, [0, 0])[0]
            assert slow == 10**9 - step["threads"][0][4][1]
    first = programs[0][1]
    for _, steps in programs[1:]:
        assert [calls(step) for step in steps] == [calls(step) for step in first]


def sharded():
    model = make_model()
    for layer in (model[0], model[2]):
        fully_shard(layer)
    return fully_shard(model)


def test_fsdp_and_accumulation(tmp_path):
    def fsdp(rank, _):
        train(sharded(), rank)

    for _, steps in recorded(tmp_path, fsdp):
        for step in steps[1:]:
            gathers = [o for o in step["operations"] if o["collective"] == "all_gather"]
            scatters = [o for o in step["operations"] if o["collective"] == "reduce_scatter"]
            assert len(gathers) >= 2 and len(scatters) == 2
            assert all(o["type"] == "byte" for o in gathers) and all(o["type"] == "float32" for o in scatters)
            assert all(o["count"] % WORLD_SIZE == 0 for o in gathers + scatters)
            assert sorted(waits_of(step)) == list(range(len(step["operations"])))

    def accumulated(rank, _):
        train(DistributedDataParallel(make_model()), rank, accumulate=3)

    for _, steps in recorded(tmp_path, accumulated):
        assert [len(step["operations"]) for step in steps[2:]] == [1] * (STEPS - 2)
        assert all(sum(counts) == ELEMENTS for counts in shapes(steps, "all_reduce"))


def test_groups_steps_and_work_of_earlier_steps(tmp_path):
    def on_rank(rank, recording):
        pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        half = dist.group.WORLD.split_group([0, 1] if rank < 2 else [2, 3], group_name=f"half {rank // 2}")
        tensor = torch.ones(1000)
        recording.step()
        late = dist.all_reduce(tensor, async_op=True)
        dist.all_reduce(torch.ones(10), group=pairs[rank % 2])
        half.allreduce([torch.ones(5)]).wait()
        recording.step()
        late.wait()
        dist.broadcast(torch.ones(3), src=1)
        recording.step()
        dist.send(torch.ones(5), dst=1) if rank == 0 else dist.recv(torch.ones(5), src=0) if rank == 1 else None
        dist.all_reduce(torch.ones(7, dtype=torch.float64))

    for rank, (header, steps) in enumerate(recorded(tmp_path, on_rank, by_optimizer=False)):
        assert header["groups"] == [
            {"id": 0, "ranks": [0, 1, 2, 3]},
            {"id": 1, "ranks": [[0, 2], [1, 3]][rank % 2]},
            {"id": 2, "ranks": [[0, 1], [2, 3]][rank // 2]},
        ]
        assert [o["group"] for o in steps[1]["operations"]] == [0, 1, 2]
        assert waits_of(steps[1]) == [1, 2]
        assert [(c["steps_back"], c["operation"]) for c in steps[2]["carried"]] == [(1, 0)]
        assert steps[2]["operations"][0]["root"] == 1
        assert waits_of(steps[2]) == [1, 0]
        assert steps[3]["partial"]
        on_hosts = [o["collective"] for o in steps[3]["operations"] if o.get("hosts")]
        assert on_hosts == {0: ["send"], 1: ["receive"]}.get(rank, []) + ["all_reduce"]


def test_what_callbacks_submit_depends_on_their_future(tmp_path):
    last = WORLD_SIZE - 1

    def on_rank(rank, _):
        store, calls = _get_default_store(), itertools.count()

        def hook(_state, bucket):
            call = next(calls)
            if rank == last:  # so that no other rank's sum has ended before its callback is there
                store.wait([f"{call}/{other}" for other in range(last)])
            first = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
            future = first.then(lambda _: dist.all_reduce(bucket.buffer(), async_op=True).get_future().wait()[0])
            store.set(f"{call}/{rank}", "")
            return future

        model = DistributedDataParallel(make_model())
        model.register_comm_hook(None, hook)
        train(model, rank)

    for _, steps in recorded(tmp_path, on_rank)[:last]:
        for step in steps[2:]:
            first, callbacks = step["threads"]
            events = [
                event for event in callbacks if event[0] != "compute"
            ]  # the callback of the step before may end in this one
            assert events[:2] == [["wait", 0], ["submit", 1]]
            assert [value for kind, value in first if kind == "wait"] == [0, 1]


def test_scales_of_sums(tmp_path):
    def on_rank(rank, _):
        for kind in (torch.float32, torch.bfloat16, torch.float16):
            values = torch.zeros(721, dtype=kind)
            values[3], values[720] = -6, 0.5
            dist.all_reduce(values)
        dist.all_reduce(torch.ones(5, dtype=torch.int32))
        dist.all_reduce(torch.ones(5), op=dist.ReduceOp.MAX)

    of_earlier = tmp_path / "job.0.values"
    of_earlier.touch()
    for _, [step] in recorded(tmp_path, on_rank, scales=True):
        # 4 to 8, nothing, 0.5 to 1.
        assert [one.get("scales") for one in step["operations"]] == ["81007e"] * 3 + [None] * 2
    assert not of_earlier.exists()


def test_from_init_to_exit(tmp_path):
    def on_rank(rank):
        train(DistributedDataParallel(make_model()), rank)
        netsum.torch._record._stop_at_exit(
            netsum.torch._record._from_environment[0]
        )  # forked ranks have no exit handlers

    ranks.run(on_rank, env={"NETSUM_RECORD": f"{tmp_path}/new/folder/", "NETSUM_RECORD_SCALES": "1"})
    for rank in range(WORLD_SIZE):
        header, steps = read(tmp_path / f"new/folder/program.{rank}.jsonl")
        assert header["rank"] == rank and len(steps) == STEPS
        sums = [one for step in steps for one in step["operations"] if one["collective"] == "all_reduce"]
        assert all(len(one["scales"]) == 2 * math.ceil(one["count"] / 360) for one in sums)
        check_replay(steps)


WAYS = {
    "ddp_hook": lambda model: model.register_comm_hook(None, netsum.torch.ddp_hook),
    "sparse_ddp_hook": lambda model: model.register_comm_hook(None, netsum.torch.sparse_ddp_hook),
    "fp16_hook": lambda model: model.register_comm_hook(None, default_hooks.fp16_compress_hook),
    "compress": lambda model: netsum.torch.compress(model, "topk", ratio=0.1),
}


@pytest.mark.soak
def test_hooks_and_overlap(tmp_path):
    def on_rank(rank, way):
        model = DistributedDataParallel(make_model())
        WAYS[way](model)
        train(model, rank)

    for way in WAYS:
        for _, steps in recorded(tmp_path, lambda rank, _, way=way: on_rank(rank, way)):
            assert all(step["operations"] and waits_of(step) for step in steps), way

    def overlapped(rank, _):
        model = sharded()
        netsum.torch.overlap_fsdp(model)
        train(model, rank)

    for _, steps in recorded(tmp_path, overlapped):
        assert all(sorted(waits_of(step)) == list(range(len(step["operations"]))) for step in steps[1:])


SCRIPT = """
import sys, torch, torch.distributed as dist, netsum.torch
folder, rank = sys.argv[1], int(sys.argv[2])
dist.init_process_group("netsum", init_method=f"file://{folder}/store", rank=rank, world_size=2)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(100, 100))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(4, 100)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
if rank == 1:
    dist.destroy_process_group()
"""


@pytest.mark.soak
def test_scripts_that_know_nothing_of_it(tmp_path):
    environment = os.environ | {"NETSUM_RECORD": f"{tmp_path}/job"}
    commands = [[sys.executable, "-c", SCRIPT, str(tmp_path), str(rank)] for rank in range(2)]
    processes.finish([processes.start(command, environment) for command in commands], ranks.DEADLINE_S)
    for rank in range(2):
        header, steps = read(tmp_path / f"job.{rank}.jsonl")
        assert (header["rank"], header["world_size"], len(steps)) == (rank, 2, 3)
        check_replay(steps)


def in_a_process(function):
    process = ranks.CONTEXT.Process(target=function)
    process.start()
    process.join(ranks.DEADLINE_S)
    process.kill()
    process.join()
    assert process.exitcode == 0


@pytest.mark.parametrize("wrap", [DistributedDataParallel, lambda _: sharded()], ids=["ddp", "fsdp"])
def test_a_program_without_a_cluster_has_the_calls_of_a_job(tmp_path, wrap):
    """Also in threads and waits: the job's second to last step and that of the program without one."""
    rank, steps = 2, 3

    def prepare():
        model = wrap(make_model())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

        def step():
            model(torch.ones(8, 20)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    def alone():
        path = netsum.torch.program_of(
            prepare, tmp_path / "alone", rank=rank, world_size=WORLD_SIZE, steps=steps, model="small"
        )
        assert path == f"{tmp_path}/alone.{rank}.jsonl"
        assert not dist.is_initialized()

    def together(_, recording):
        step = prepare()
        recording.step()
        for _ in range(steps):
            step()
            recording.step()

    in_a_process(alone)
    header, made = read(tmp_path / f"alone.{rank}.jsonl")
    assert (header["rank"], header["world_size"], header["model"]) == (rank, WORLD_SIZE, "small")
    check_replay(made)
    _, job = recorded(tmp_path, together, by_optimizer=False)[rank]
    assert [calls(step) for step in made] == [calls(step) for step in job]
    assert waits_of(made[-1]) == waits_of(job[-1])
    for step in made:
        assert all(o["done_ns"] == o["submitted_ns"] for o in step["operations"])
        assert step["duration_ns"] == sum(value for kind, value in step["threads"][0] if kind == "compute")


def test_any_rank_of_a_large_job(tmp_path):
    def alone():
        def prepare():
            model = DistributedDataParallel(make_model())
            pair = dist.new_group([7, 1000])

            def step():
                model(torch.ones(8, 20)).square().mean().backward()
                parts = torch.empty(2000)
                dist.all_gather_into_tensor(parts, torch.ones(1000), group=pair)
                assert torch.equal(parts, torch.ones(2000))
                part = torch.empty(1000)
                dist.reduce_scatter_tensor(part, parts, group=pair)
                assert torch.equal(part, torch.ones(1000))

            return step

        netsum.torch.program_of(prepare, tmp_path / "job", rank=1000, world_size=1024, steps=1)

    in_a_process(alone)
    header, steps = read(tmp_path / "job.1000.jsonl")
    assert header["groups"][1] == {"id": 1, "ranks": [7, 1000]}
    assert [call[0] for call in calls(steps[1])] == ["all_reduce", "all_gather", "reduce_scatter"]
    assert calls(steps[1])[1][2] == 8000


def test_wrong_calls(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=re.escape(f"the folder {tmp_path}/file cannot be made; name another path")):
        netsum.torch.record(tmp_path / "file/job")
    recording = netsum.torch.record(tmp_path / "job")
    try:
        with pytest.raises(RuntimeError, match="being recorded already"):
            netsum.torch.record(tmp_path / "other")
        os.mkdir(tmp_path / "job.0.jsonl.part")
        with pytest.raises(netsum.torch.Error, match=r"job\.0\.jsonl\.part cannot be written"):
            recording.stop()
    finally:
        recording.stop()
    assert recording.stop() is None
    recording.step()  # of a recording that has ended: nothing
    with pytest.raises(ValueError, match="there is no rank 4 in a job of 4 ranks"):
        netsum.torch.program_of(lambda: None, tmp_path / "job", rank=4, world_size=4)
    with pytest.raises(ValueError, match="0 steps; use at least 1"):
        netsum.torch.program_of(lambda: None, tmp_path / "job", world_size=4, steps=0)
