"""Ranks and aggregators are killed in the middle of training: who is left goes on as was asked."""

import contextlib
import io
import itertools
import os
import pathlib
import re
import select
import signal
import subprocess
import sys
import threading

import netsum.torch
import pytest
import ranks
import torch.distributed as dist
import torch.utils.data
from netsum_bench.processes import free_port
from ranks import WORLD_SIZE
from torch.nn.parallel import DistributedDataParallel

import torch
from torch import nn

STEPS = 30
LONG_TIMEOUT_S = 90.0


def make_model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(20, 200), nn.Tanh(), nn.Linear(200, 3))


def batch(rank, step):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(8, 20, generator=generator)
    return x, torch.stack([x.sum(1), x[:, 0], -x[:, 1]], dim=1)


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


class Training:
    """Plain DDP and SGD with momentum; the state is what a checkpoint would hold."""

    def __init__(self, state=None):
        model = make_model()
        self.step = 0
        if state is not None:
            model.load_state_dict(state["model"])
        self.model = DistributedDataParallel(model, bucket_cap_mb=0.02)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        if state is not None:
            self.optimizer.load_state_dict(state["optimizer"])
            self.step = state["step"]

    def state(self):
        return {
            "model": self.model.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
        }

    def run(self, rank, steps=STEPS, before_step=lambda step: None):
        while self.step < steps:
            before_step(self.step)
            x, y = batch(rank, self.step)
            self.optimizer.zero_grad()
            nn.functional.mse_loss(self.model(x), y).backward()
            self.optimizer.step()
            self.step += 1
        return weights(self.model)


def state_of_rank_0(state):
    """What rank 0 has, on all ranks: the last sum may have ended on some of them only."""
    holder = [state]
    dist.broadcast_object_list(holder, src=0)
    return holder[0]


def undisturbed():
    return ranks.run(lambda rank: Training().run(rank))[0]


def assert_same(outcomes, expected):
    for rank, outcome in enumerate(outcomes):
        assert not outcome.error, f"rank {rank}:\n{outcome.error}"
        weights_of_rank, failovers = outcome.value
        assert torch.equal(weights_of_rank, expected), f"rank {rank} has other weights than without the failure"
        assert failovers >= 1, f"rank {rank} noticed nothing: the failure came too late"


# --- The aggregator is killed -----------------------------------------------------------------------------------


@pytest.mark.network
@pytest.mark.parametrize("place", ["another", "hosts", "restarted"])
def test_training_outlives_its_aggregator(place):
    expected = undisturbed()
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(ranks.aggregator())
        env = {"NETSUM_AGGREGATOR": first.address, "NETSUM_ON_FAILURE": "failover"}
        if place == "another":
            env["NETSUM_FALLBACK_AGGREGATORS"] = stack.enter_context(ranks.aggregator()).address
        elif place == "hosts":
            env["NETSUM_FALLBACK_AGGREGATORS"] = "hosts"
        else:
            stack.enter_context(restarted_when_dead(first))

        def on_rank(rank):
            def before_step(step):
                if step == STEPS // 3 and rank == 1:
                    # A moment later, so that the other ranks' sums are under way.
                    threading.Timer(0.005, os.kill, (first.pid, signal.SIGKILL)).start()
                if step == STEPS // 2:
                    wait_until_dead(first.pid)

            trained = Training().run(rank, before_step=before_step)
            return trained, netsum.torch.stats()["failovers"]

        assert_same(ranks.run_all_outcomes(on_rank, timeout_s=LONG_TIMEOUT_S, env=env), expected)


# What systemd would do, as a program: waits until the process given first is gone, and becomes the command.
RESTART = """
import os, select, sys
select.select([os.pidfd_open(int(sys.argv[1]))], [], [])
os.execv(sys.argv[2], sys.argv[2:])
"""


@contextlib.contextmanager
def restarted_when_dead(daemon):
    command = [ranks.command(), "aggregator", "--listen", daemon.address, "--cores", "1", "--drain-timeout", "1s"]
    restarter = subprocess.Popen([sys.executable, "-c", RESTART, str(daemon.pid), *command], stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        restarter.terminate()
        restarter.wait(30)


def wait_until_dead(pid):
    ended, _, _ = select.select([os.pidfd_open(pid)], [], [], LONG_TIMEOUT_S)
    assert ended, f"process {pid} is still there"


@pytest.mark.network
def test_nowhere_to_go_on_is_an_error():
    with ranks.aggregator() as only:
        env = {
            "NETSUM_AGGREGATOR": only.address,
            "NETSUM_ON_FAILURE": "failover",
            "NETSUM_FAILOVER_TIMEOUT": "2",
        }

        def on_rank(rank):
            def before_step(step):
                if step == 3 and rank == 0:
                    os.kill(only.pid, signal.SIGKILL)

            with pytest.raises(dist.DistBackendError, match=only.address):
                Training().run(rank, steps=10_000, before_step=before_step)
            return netsum.torch.error().code

        codes = ranks.run(on_rank, timeout_s=LONG_TIMEOUT_S, env=env)
    assert codes == ["aggregator_lost"] * WORLD_SIZE


# --- A rank is killed -------------------------------------------------------------------------------------------

VICTIM = 2


def train_and_lose_one(rank):
    """Trains until the victim is gone; returns the training as it then is."""
    training = Training()

    def before_step(step):
        if step == STEPS // 3 and rank == VICTIM:
            os.kill(os.getpid(), signal.SIGKILL)

    assert netsum.torch.error() is None
    with pytest.raises(dist.DistBackendError):
        training.run(rank, before_step=before_step)
    error = netsum.torch.error()
    assert (error.code, error.rank) == ("peer_lost", VICTIM), error
    return training


def go_on(training):
    rank, size = dist.get_rank(), dist.get_world_size()
    training = Training(state_of_rank_0(training.state()))
    trained = training.run(rank)
    ones = torch.ones(1)
    dist.all_reduce(ones, op=dist.ReduceOp.AVG)
    return rank, size, trained, ones.item()


def assert_went_on(outcomes):
    assert outcomes.pop(VICTIM).exit_code == -signal.SIGKILL
    for new_rank, outcome in enumerate(outcomes):
        assert not outcome.error, outcome.error
        rank, size, trained, average = outcome.value
        assert (rank, size, average) == (new_rank, WORLD_SIZE - 1, 1.0)
        assert torch.equal(trained, outcomes[0].value[2])


def shrink_by_regroup(rank):
    training = train_and_lose_one(rank)
    assert netsum.torch.regroup() == [r for r in range(WORLD_SIZE) if r != VICTIM]
    return go_on(training)


def shrink_by_torch(rank):
    training = train_and_lose_one(rank)
    dist.shrink_group([VICTIM], shrink_flags=dist.distributed_c10d.SHRINK_ABORT)
    assert dist.get_world_size() == WORLD_SIZE - 1
    return go_on(training)


@pytest.mark.parametrize(
    ("where", "shrink"),
    [
        pytest.param("shards", shrink_by_regroup, id="shards-regroup"),
        pytest.param("shards", shrink_by_torch, id="shards-shrink_group"),
        pytest.param("aggregator", shrink_by_regroup, id="aggregator-regroup"),
        # shrink_group() regroups as the others do, wherever the sums are.
        pytest.param("aggregator", shrink_by_torch, id="aggregator-shrink_group", marks=pytest.mark.soak),
    ],
)
def test_survivors_go_on(shrink, where):
    with contextlib.ExitStack() as stack:
        env = {}
        if where == "aggregator":
            env["NETSUM_AGGREGATOR"] = stack.enter_context(ranks.aggregator()).address
        outcomes = ranks.run_all_outcomes(shrink, timeout_s=LONG_TIMEOUT_S, env=env)
    assert_went_on(outcomes)


def test_too_few_survivors():
    def on_rank(rank):
        dist.all_reduce(torch.ones(10))
        if rank:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(netsum.torch.Error):  # noqa: PT012  (some sum is the first to fail)
            while True:
                dist.all_reduce(torch.ones(10))
        with pytest.raises(netsum.torch.Error, match="missing: ranks 1, 2 and 3") as caught:
            netsum.torch.regroup(timeout_s=2.0)
        return caught.value.code, caught.value.rank

    outcomes = ranks.run_all_outcomes(on_rank, timeout_s=LONG_TIMEOUT_S)
    assert outcomes[0].value == ("timeout", 1), outcomes[0].error


def test_a_rank_that_comes_too_late_is_told_so(store_port):
    late = 1

    def on_rank(rank):
        store = ranks.tcp_store(store_port)
        if rank != late:
            assert netsum.torch.regroup(gather_s=3) == [0, 2, 3]
            store.set(f"gone_on/{rank}", "")
            store.wait(["told"])
            return None
        store.wait([f"gone_on/{r}" for r in (0, 2, 3)])
        with pytest.raises(netsum.torch.Error, match="ranks 0, 2 and 3 go on without it") as caught:
            netsum.torch.regroup()
        store.set("told", "")
        return caught.value.code, caught.value.rank

    assert ranks.run(on_rank) == [None, ("peer_lost", late), None, None]


@pytest.mark.parametrize("arguments", [{"min_members": 5}, {"min_members": -1}, {"gather_s": -1.0}], ids=str)
def test_a_regroup_that_cannot_be_is_refused(arguments):
    def on_rank(rank):
        with pytest.raises(ValueError, match="regroup: "):
            netsum.torch.regroup(**arguments)
        dist.barrier()  # the group is as it was

    ranks.run(on_rank)


def test_a_stopped_rank_is_named():
    """SIGSTOP: no connection ends, only the heartbeats do."""
    stopped = 1

    def on_rank(rank):
        pids = [None] * WORLD_SIZE
        dist.all_gather_object(pids, os.getpid())
        try:
            for step in itertools.count():
                if step == 20 and rank == stopped:
                    os.kill(os.getpid(), signal.SIGSTOP)
                dist.all_reduce(torch.ones(10))
        except netsum.torch.Error as error:
            return error.code, error.rank
        finally:
            if rank == 0:
                os.kill(pids[stopped], signal.SIGCONT)

    outcomes = ranks.run_all_outcomes(on_rank, timeout_s=LONG_TIMEOUT_S, env={"NETSUM_LIVENESS_TIMEOUT": "1"})
    for outcome in outcomes:  # the one that was stopped hears of it when it wakes
        assert outcome.value == ("peer_lost", stopped), outcome.error or outcome.value


def open_sockets():
    """The sockets of this process, as `socket:[inode]`."""
    names = set()
    for entry in pathlib.Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor of the iteration itself
            names.add(os.readlink(entry))
    return {name for name in names if name.startswith("socket:")}


def sockets_of_netsum(control):
    """Of this process: those for data (UDP), and those for control, which ss lists with `control` in an address."""
    listed = subprocess.run(["ss", "-Htuane"], check=True, capture_output=True, text=True).stdout.splitlines()
    ours = [line for line in listed if line.startswith("udp") or control in line]
    return open_sockets() & {f"socket:[{re.search('ino:([0-9]+)', line)[1]}]" for line in ours if "ino:" in line}


class SocketsOfWorkers(torch.utils.data.Dataset):
    """Every item is the set of sockets that the DataLoader's worker holds."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return open_sockets()


@pytest.mark.network
@pytest.mark.parametrize("where", ["shards", "aggregator"])
def test_data_loader_workers_hold_no_socket_of_their_rank(where):
    """Forked children that kept them would hide from the other ranks that their parent was killed."""
    with contextlib.ExitStack() as stack:
        if where == "aggregator":
            address = stack.enter_context(ranks.aggregator()).address
            control = address[address.rindex(":") :] + " "
            env = {"NETSUM_AGGREGATOR": address}
        else:
            control = "127.0.0.2"
            env = {"NETSUM_BIND_ADDRESS": control}  # Gloo has another one

        def on_rank(rank):
            dist.all_reduce(torch.ones(10))
            of_rank = sockets_of_netsum(control)
            loader = torch.utils.data.DataLoader(
                SocketsOfWorkers(), batch_size=None, num_workers=2, multiprocessing_context="fork"
            )
            of_workers = list(loader)
            kept = sockets_of_netsum(control)
            dist.all_reduce(torch.ones(10))  # nobody leaves before
            return of_rank, kept, of_workers

        outcomes = ranks.run(on_rank, env=env)
    for before, after, of_workers in outcomes:
        assert before == after
        assert len(before) >= 2, "a rank has a connection for control and a socket for data"
        assert len(of_workers) == len(SocketsOfWorkers())
        for sockets in of_workers:
            assert not sockets & before


# By hand what DistributedDataParallel and an optimizer do: they import much more of torch. test_training_outlives_its_aggregator
# and tests/chaos train with them.
RESTARTED = """
import os, signal, sys
import torch
import torch.distributed as dist
import netsum.torch
from torch import nn

dist.init_process_group("netsum")
rank = dist.get_rank()
torch.manual_seed(1)
model = nn.Linear(8, 4)
momenta = [torch.zeros_like(p) for p in model.parameters()]
checkpoint, first = sys.argv[1], 0
if os.path.exists(checkpoint):
    state = torch.load(checkpoint)
    model.load_state_dict(state["model"])
    momenta, first = state["momenta"], state["step"]
for step in range(first, 12):
    if step == 6 and rank == 1 and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * step + rank))
    model.zero_grad()
    model(x).square().mean().backward()
    for parameter, momentum in zip(model.parameters(), momenta):
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
        momentum.mul_(0.9).add_(parameter.grad)
        parameter.data.sub_(momentum, alpha=0.1)
    if rank == 0:
        state = {"model": model.state_dict(), "momenta": momenta, "step": step + 1}
        torch.save(state, checkpoint + ".part")
        os.replace(checkpoint + ".part", checkpoint)
total = sum(p.double().sum() for p in model.parameters()).item()
print(f"rank {rank} from step {first}: {total.hex()}", flush=True)
dist.destroy_process_group()
"""


@pytest.mark.soak  # five interpreters that import torch: 15 s of processor time
@pytest.mark.network
def test_torchrun_restarts_from_the_checkpoint(tmp_path):
    """torchrun --max-restarts: the same weights as without the kill."""

    def starts_and_total(text):
        lines = re.findall(r"rank (\d) from step (\d+): (\S+)", text)
        assert {rank for rank, _, _ in lines} == {"0", "1"}, text
        assert len({total for _, _, total in lines}) == 1, text
        return {int(first) for _, first, _ in lines}, lines[0][2]

    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1"]
    launcher += ["--master-port", str(free_port()), "--monitor-interval", "0.1"]
    restarted = ranks.run_script(RESTARTED, str(tmp_path / "killed"), launcher=launcher)
    assert restarted.returncode == 0, restarted.stderr
    starts, total = starts_and_total(restarted.stdout)
    assert starts <= {5, 6} and len(starts) == 1, starts

    def on_rank(rank):
        dist.destroy_process_group()  # the script makes its own
        os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        sys.argv = ["script", str(tmp_path / "whole")]
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exec(RESTARTED, {"__name__": "__main__"})
        return output.getvalue()

    port = str(free_port())
    assert starts_and_total("".join(ranks.run(on_rank, world_size=2))) == ({0}, total)
