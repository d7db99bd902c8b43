"""A script may end in any way: with or without destroy_process_group(), by torchrun or alone, after an error."""

import os
import re
import subprocess
import sys

import pytest
import ranks
from netsum_bench.processes import free_port

SCRIPT = """
import sys
import torch
import torch.distributed as dist
import netsum.torch

dist.init_process_group(sys.argv[1])
tensor = torch.ones(1000)
work = dist.all_reduce(tensor, async_op=True)
work.get_future().then(lambda future: future.value()[0].sum().item())
work.wait()
assert tensor[0] == dist.get_world_size()
print("summed", flush=True)
ending = sys.argv[2]
if ending == "destroy":
    dist.destroy_process_group()
elif ending == "exception":
    # A rank that fails aborts the others' operations: first all must have their sum.
    store = dist.distributed_c10d._get_default_store()
    store.set(f"summed by {dist.get_rank()}", "yes")
    store.wait([f"summed by {rank}" for rank in range(dist.get_world_size())])
    raise KeyError("on purpose")
elif ending == "sys_exit":
    sys.exit(0)
elif ending == "in_flight":
    try:
        dist.all_reduce(torch.ones(10), async_op=True)
    except netsum.torch.Error as error:  # the other rank has ended before
        assert error.code == "peer_lost", error
"""


SURVIVOR = """
import sys
import torch
import torch.distributed as dist
import netsum.torch

dist.init_process_group("netsum")
dist.all_reduce(torch.ones(10))
if dist.get_rank() == 1:
    raise KeyError("on purpose")
try:
    while True:
        dist.all_reduce(torch.ones(10))
except netsum.torch.Error as error:
    print("noticed", error.code, error.rank)
"""

# Rank 0 ends with a sum in flight, which rank 1 then takes part in.
IN_FLIGHT_AT_THE_END = """
import atexit
import datetime
import torch
import torch.distributed as dist
import netsum.torch

left = []
atexit.register(lambda: left and left[0].set("rank 0 has left", ""))  # runs after what netsum has registered
dist.init_process_group("netsum")
store = dist.distributed_c10d._get_default_store()
tensor = torch.ones(10)
if dist.get_rank() == 0:
    left.append(store)
    dist.all_reduce(tensor, async_op=True)
else:
    try:
        store.wait(["rank 0 has left"], datetime.timedelta(seconds=1))
    except RuntimeError:
        pass  # it has not
    dist.all_reduce(tensor)
    print("summed", tensor[0].item())
"""

# In an interactive session, an error ends nothing.
INTERACTIVE = """
import torch
import torch.distributed as dist
import netsum.torch
dist.init_process_group("netsum")
dist.all_reduce(torch.ones(10))
raise KeyError("on purpose")
exit()
"""

SLOW_CALLBACK = """
import time
import torch
import torch.distributed as dist
import netsum.torch

def callback(future):
    time.sleep(1)
    print("called back", flush=True)

dist.init_process_group("netsum")
work = dist.all_reduce(torch.ones(10), async_op=True)
work.get_future().then(callback)
work.wait()
"""

# Without close(), with batches in flight.
WAVES = """
import sys
import torch
import torch.distributed as dist
import netsum.torch

dist.init_process_group("netsum")
model = torch.nn.Linear(64, 64)
waves = netsum.torch.Waves(model, torch.optim.SGD(model.parameters(), lr=0.1), lambda ddp, x: ddp(x).sum())
try:  # the other rank may be gone before these have ended here
    for _ in range(4):
        waves.step(torch.ones(2, 64))
    if sys.argv[1] == "exception":
        if dist.get_rank() == 1:
            raise KeyError("on purpose")
        while True:
            waves.step(torch.ones(2, 64))
except netsum.torch.Error as error:
    print("noticed", error.code)
"""


ENDINGS = ("destroy", "nothing", "sys_exit", "exception", "in_flight")


@pytest.fixture(scope="module")
def scripts():
    with ranks.Scripts() as running:
        yield running


def assert_ended(ending, returncodes, output, errors):
    assert output.count("summed") == 2, errors
    if ending == "exception":
        assert set(returncodes) == {1} and "KeyError" in errors, errors
    else:
        assert set(returncodes) == {0}, errors


# The two that leave netsum to end by itself, in all ways.
@pytest.mark.parametrize(
    "ending",
    [pytest.param(one, marks=pytest.mark.all_ways if one in ("nothing", "in_flight") else ()) for one in ENDINGS],
)
def test_ends(scripts, ending):
    ended = scripts.run_ranks(SCRIPT, SCRIPT, arguments=["netsum", ending])
    output, errors = ("".join(getattr(one, name) for one in ended) for name in ("stdout", "stderr"))
    assert_ended(ending, [one.returncode for one in ended], output, errors)


# Each is three new interpreters that import torch: 9 s of processor time. After an exception torchrun ends the other rank itself.
@pytest.mark.soak
@pytest.mark.parametrize("ending", ENDINGS)
def test_torchrun(ending):
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port())]
    result = ranks.run_script(SCRIPT, "netsum", ending, launcher=launcher)
    assert_ended(ending, [result.returncode], result.stdout, result.stderr)
    if ending == "exception":
        # torchrun ends with SIGTERM whoever is left when the first rank has failed; nobody may crash.
        assert not re.search(r"signal (6|7|8|11)\b|SIG(ABRT|BUS|FPE|SEGV)", result.stderr), result.stderr


@pytest.mark.all_ways
def test_a_sum_in_flight_when_the_script_ends(scripts):
    first, second = scripts.run_ranks(IN_FLIGHT_AT_THE_END, IN_FLIGHT_AT_THE_END)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert second.stdout == "summed 2.0\n"


def test_an_error_in_an_interactive_session(scripts):
    common = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
    }
    interactive = subprocess.Popen(
        [sys.executable, "-i"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **common, "RANK": "1"},
    )
    try:
        interactive.stdin.write(INTERACTIVE)
        interactive.stdin.flush()
        (survivor,) = scripts.run((SURVIVOR, (), {**common, "RANK": "0"}))
        errors = interactive.communicate(timeout=ranks.DEADLINE_S)[1]
    finally:
        interactive.kill()
        interactive.wait()
    assert "KeyError" in errors
    assert survivor.stdout.split() == ["noticed", "peer_lost", "1"], survivor.stderr


@pytest.mark.all_ways
def test_exception_in_one_rank_ends_the_others(scripts):
    survivor, failed = scripts.run_ranks(SURVIVOR, SURVIVOR)
    assert failed.returncode == 1 and "KeyError" in failed.stderr
    assert survivor.stdout.split() == ["noticed", "aborted", "1"], survivor.stderr


def test_callback_that_runs_when_the_script_ends(scripts):
    (result,) = scripts.run_ranks(SLOW_CALLBACK)
    assert (result.returncode, result.stdout) == (0, "called back\n"), result.stderr


def test_ends_with_waves(scripts):
    ended = scripts.run_ranks(WAVES, WAVES, arguments=["nothing"])
    assert [one.returncode for one in ended] == [0, 0], ended
    survivor, failed = scripts.run_ranks(WAVES, WAVES, arguments=["exception"])
    assert failed.returncode == 1 and "KeyError" in failed.stderr, failed
    assert survivor.returncode == 0 and re.search(r"noticed (aborted|peer_lost)", survivor.stdout), survivor
