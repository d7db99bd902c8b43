"""An unmodified script as the only real rank of `netsum emulate`."""

import json
import math
import os
import pathlib
import subprocess
import sys

import pytest
import ranks
from netsum_bench.processes import Watched

NETSUM = pathlib.Path(
    os.environ.get("NETSUM_BUILD", pathlib.Path(__file__).parents[2] / "build/release"), "tools/netsum/netsum"
)
RANKS, STEPS = 4, 4
PATIENCE_S = 120

# Says what its group sees, then trains with it and alone, on the same batches.
SCRIPT = """
import copy, json, sys
import torch, torch.distributed as dist
import netsum.torch

torch.set_num_threads(1)
dist.init_process_group("netsum")
group = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(40, 30), torch.nn.ReLU(), torch.nn.Linear(30, 10))
alone, ddp = copy.deepcopy(model), torch.nn.parallel.DistributedDataParallel(model)
inputs, labels = torch.randn(4, 16, 40), torch.randint(0, 10, (4, 16))

def train(model):
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.5), []
    for x, y in zip(inputs, labels):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
    return losses

losses = train(ddp)
pair, alone_here, unknown = dist.new_group([0, 1]), dist.new_group([0]), dist.new_group([0, 2])
sums = []
for group_of in (pair, alone_here):
    ones = torch.ones(1000)
    dist.all_reduce(ones, group=group_of)
    sums.append(ones[-1].item())
parts = [torch.zeros(2) for _ in range(group[1])]
dist.all_gather(parts, torch.ones(2))
whole = torch.zeros(2 * group[1])
dist.all_gather_into_tensor(whole, torch.ones(2))
total = torch.tensor([3, 4])
dist.all_reduce(total)
refused = {}
for call in (lambda: dist.send(torch.zeros(1), 1), lambda: dist.broadcast(torch.zeros(1), 1),
             lambda: dist.all_to_all_single(torch.zeros(group[1]), torch.zeros(group[1])),
             lambda: dist.all_reduce(torch.ones(9), group=unknown), lambda: dist.all_reduce(torch.eye(3).to_sparse())):
    try:
        call()
    except netsum.torch.Error as error:
        refused[len(refused)] = error.code, str(error)
print(json.dumps({"group": group, "losses": losses, "alone": train(alone), "parts": torch.stack(parts).tolist(),
                  "sums": sums, "whole": whole.tolist(), "total": total.tolist(), "refused": list(refused.values())}), flush=True)
dist.destroy_process_group()
"""
PARAMETERS = 41 * 30 + 31 * 10


def operation(collective, kind, count, root=-1, tag=0):
    more = {"operation": "sum"} if collective == "all_reduce" else {}
    return {"collective": collective, "type": kind, "count": count, "root": root, "group": 0, "tag": tag, **more}


# What the script submits; tags of what moves are numbers of types in PyTorch, and 1.
INT64, FLOAT32, INT32 = 5, 7, 4
STEP_OPERATIONS = [
    [
        operation("all_gather", "int64", RANKS, tag=INT64),
        operation("broadcast", "int64", 12, 0, INT64),
        operation("broadcast", "float32", PARAMETERS, 0, FLOAT32),
        operation("all_reduce", "float32", PARAMETERS),
    ],
    [
        operation("broadcast", "int32", 5, 0, INT32),
        operation("broadcast", "int32", 1, 0, INT32),
        operation("all_reduce", "float32", PARAMETERS),
    ],
    *[[operation("all_reduce", "float32", PARAMETERS)] for _ in range(STEPS - 2)],
    [
        {**operation("all_reduce", "float32", 1000), "group": 1},
        operation("all_gather", "float32", 2 * RANKS, tag=FLOAT32),
        operation("all_gather", "float32", 2 * RANKS, tag=FLOAT32),
        operation("all_reduce", "int64", 2),
    ],
]


def write_profile(folder):
    """Of ranks 0 to 3, of which 0 and 1 have a group, and so have 2 and 3."""
    for rank in range(RANKS):
        write_record(folder, rank)
    return folder / "p"


def write_record(folder, rank):
    header = {"format": "netsum-program", "version": 1, "world_size": RANKS, "rank": rank, "model": "", "netsum": "0"}
    pair = [rank // 2 * 2, rank // 2 * 2 + 1]
    groups = [{"id": 0, "ranks": list(range(RANKS))}, {"id": 1, "ranks": pair}]
    more = {"machine": "", "clock": "steady, ns", "groups": groups}
    lines = [{**header, **more, "steps": len(STEP_OPERATIONS)}]
    for k, operations in enumerate(STEP_OPERATIONS):
        numbered = [{"id": i, **one, "submitted_ns": i, "done_ns": i + 1} for i, one in enumerate(operations)]
        thread = [instruction for i in range(len(operations)) for instruction in (["submit", i], ["wait", i])]
        partial = {"partial": True} if k == STEPS else {}
        duration = {"threads": [thread], "duration_ns": len(operations)}
        lines.append({"step": k, **partial, "operations": numbered, **duration})
    (folder / f"p.{rank}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="ascii")


@pytest.fixture
def aggregator():
    address = []

    def take(_stream, line):
        if "NETSUM_AGGREGATOR=" in line:
            address.append(line.split("=")[1].strip())

    daemon = Watched([NETSUM, "aggregator", "--in-switch", "--listen", "127.0.0.1:0"], take, stderr=subprocess.DEVNULL)
    assert daemon.wait(lambda: bool(address), PATIENCE_S)
    yield address[0]
    daemon.close(PATIENCE_S)


def environment(**more):
    return {name: value for name, value in os.environ.items() if not name.startswith("NETSUM_")} | more


def emulate(profile, ranks, aggregator, *script, flags=(), accepted=(0, 1)):
    """Returns what the command has said. By default: on a busy machine ghosts may be late (1), and the run is void."""
    command = [NETSUM, "emulate", "--ranks", str(ranks), "--profile", profile, "--aggregator", aggregator, *flags]
    ended = subprocess.run(
        [*command, "--", *script],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=environment(),
        check=False,
    )
    assert ended.returncode in accepted, ended.stderr
    return ended


def test_ghosts_hold_what_the_real_rank_holds(tmp_path, aggregator):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT, encoding="ascii")
    said = emulate(write_profile(tmp_path), RANKS, aggregator, sys.executable, script).stdout
    assert "waited for" in said
    saw = json.loads(said.splitlines()[0])
    assert saw["group"] == [0, RANKS]
    assert saw["losses"] == saw["alone"]
    assert saw["sums"] == [2, 1]
    assert saw["parts"] == [[1, 1]] * RANKS
    assert saw["whole"] == [1] * (2 * RANKS)
    assert saw["total"] == [3 * RANKS, 4 * RANKS]
    assert [code for code, _ in saw["refused"]] == ["unsupported"] * 5
    for (_, text), words in zip(
        saw["refused"],
        ["send", "from rank 1", "all_to_all_single", "needs the hosts", "depend on the data"],
        strict=True,
    ):
        assert words in text


@pytest.mark.soak
def test_a_group_that_the_script_never_makes(tmp_path, aggregator):
    script = tmp_path / "train.py"
    begin = SCRIPT[: SCRIPT.index("pair, alone_here")]
    script.write_text(begin + "dist.destroy_process_group()\n", encoding="ascii")
    ended = emulate(write_profile(tmp_path), RANKS, aggregator, sys.executable, script, accepted=[3])
    assert "ghost 1 has a call of the group of ranks 0, 1 in step 4" in ended.stderr
    assert "has ended without making that group" in ended.stderr
    # Ghosts of another group go on, so that another call is told at once.
    script.write_text(begin + "dist.all_reduce(torch.ones(9))\n", encoding="ascii")
    ended = emulate(write_profile(tmp_path), RANKS, aggregator, sys.executable, script, accepted=[3])
    assert "all ranks must call the same collectives in the same order" in ended.stderr


RERUN_SCRIPT = """
import json
import torch, torch.distributed as dist
import netsum.torch

torch.set_num_threads(1)
dist.init_process_group("netsum")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(40, 10))
optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.5), []
torch.manual_seed(rank)
for _ in range(3):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(torch.randn(16, 40)), torch.randint(0, 10, (16,)))
    loss.backward()
    optimizer.step()
    losses.append(loss.item().hex())
parts = torch.zeros(300 * ranks)
dist.all_gather_into_tensor(parts, torch.full((300,), rank + 1.0))
total = torch.tensor([rank, 1])
dist.all_reduce(total)
large = torch.full((5000,), rank + 2, dtype=torch.int32)
dist.all_reduce(large)
if rank == 0:
    print(json.dumps([losses, parts[::300].tolist(), total.tolist(), large[4999].item()]), flush=True)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def scripts():
    with ranks.Scripts() as running:
        yield running


def recorded(scripts, script, aggregator, *arguments, **variables):
    """Runs the script as two real ranks, and returns what rank 0 has printed."""
    more = variables | {"NETSUM_SHARED_MEMORY": "0", "NETSUM_AGGREGATOR": aggregator}
    text = f"import os\nos.environ.update({more | {'LOCAL_RANK': '0'}})\n{script.read_text(encoding='ascii')}"
    ended = scripts.run_ranks(text, text, arguments=arguments)
    assert not any(one.returncode for one in ended), ended
    return json.loads(ended[0].stdout)


def test_ghosts_that_contribute_recorded_values_repeat_a_run(tmp_path, scripts, aggregator):
    script = tmp_path / "train.py"
    script.write_text(RERUN_SCRIPT, encoding="ascii")
    of_real = recorded(scripts, script, aggregator, NETSUM_RECORD=str(tmp_path / "p"), NETSUM_RECORD_VALUES="1")
    assert of_real[1:] == [[1, 2], [1, 2], 5]
    flags = ["--contributions", "recorded"]
    printed = emulate(tmp_path / "p", 2, aggregator, sys.executable, script, flags=flags).stdout
    assert json.loads(printed.splitlines()[0]) == of_real, "to the bit"
    (tmp_path / "p.1.values").unlink()
    ended = emulate(tmp_path / "p", 2, aggregator, sys.executable, script, flags=flags, accepted=[2])
    assert "p.1.values: No such file or directory): record with NETSUM_RECORD_VALUES" in ended.stderr


DEVICE_SCRIPT = """
import copy, json, sys
sys.path.insert(0, sys.argv[1])
import accelerator
import torch, torch.distributed as dist
import netsum.torch

accelerator.load()
torch.set_num_threads(1)
dist.init_process_group("netsum")
torch.manual_seed(0)
model = torch.nn.Linear(40, 10)
alone, ddp = copy.deepcopy(model).to("mock:0"), torch.nn.parallel.DistributedDataParallel(model.to("mock:0"))
inputs = torch.randn(3, 16, 40).to("mock:0")

def train(model):
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.5), []
    for x in inputs:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
    return losses

losses = train(ddp)
dist.destroy_process_group()
print(json.dumps([losses, train(alone)]), flush=True)
"""


def test_a_rank_with_tensors_of_an_accelerator(tmp_path, scripts, aggregator):
    script = tmp_path / "train.py"
    script.write_text(DEVICE_SCRIPT, encoding="ascii")
    folder = str(pathlib.Path(__file__).parent)
    recorded(scripts, script, aggregator, folder, NETSUM_RECORD=str(tmp_path / "p"))
    printed = emulate(tmp_path / "p", 2, aggregator, sys.executable, script, folder).stdout
    losses, alone = json.loads(printed.splitlines()[0])
    assert losses == alone
    assert len(losses) == 3


FSDP_SCRIPT = """
import json, os
import torch, torch.distributed as dist
import netsum.torch
from torch.distributed.fsdp import fully_shard

torch.set_num_threads(1)
dist.init_process_group("netsum")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
for layer in (model[0], model[2], model):
    fully_shard(layer)
optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
for step in range(4):
    x = torch.randn(8, 64)
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
if dist.get_rank() == 0:
    print(json.dumps({"ranks": dist.get_world_size(), "losses": losses}), flush=True)
dist.destroy_process_group()
"""


@pytest.mark.soak
def test_a_recorded_job_of_fsdp(tmp_path, scripts, aggregator):
    script = tmp_path / "train.py"
    script.write_text(FSDP_SCRIPT, encoding="ascii")
    variables = {"NETSUM_RECORD": str(tmp_path / "p"), "NETSUM_RECORD_VALUES": "16"}
    of_real = recorded(scripts, script, aggregator, **variables)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
    for flags in ([], ["--contributions", "recorded"]):
        printed = emulate(tmp_path / "p", 2, aggregator, *torchrun, script, flags=flags).stdout
        saw = json.loads(next(line for line in printed.splitlines() if line.startswith("{")))
        assert saw["ranks"] == 2
        assert all(math.isfinite(loss) for loss in saw["losses"])
        assert (saw == of_real) == bool(flags)


@pytest.mark.soak
def test_a_check_records_the_script_in_each_run(tmp_path, scripts, aggregator):
    script = tmp_path / "train.py"
    script.write_text(RERUN_SCRIPT, encoding="ascii")
    (tmp_path / "once").mkdir()
    recorded(scripts, script, aggregator, NETSUM_RECORD=f"{tmp_path}/once/p")
    flags = ["--check", "1", "--json"]
    before = os.listdir(tmp_path)
    said = emulate(tmp_path / "once" / "p", 2, aggregator, sys.executable, script, flags=flags)
    check = json.loads(said.stdout)
    [steps] = check["steps"]
    assert check["difference"]["median"] == pytest.approx(steps["ghosts"] / steps["real"] - 1)
    assert said.stderr.count("[1.0, 2.0], [1, 2], 5]") == 2, "the real runs"
    assert said.stderr.count("[1.0, 1.0], [0, 2], 4]") == 1, "the ghosts hold what rank 0 has"
    assert os.listdir(tmp_path) == before
