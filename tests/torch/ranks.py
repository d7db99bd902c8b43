"""Runs a function as every rank of a process group, in processes forked from this one.

Forking saves the seconds that importing torch takes. It is safe only while this process has no threads, so nothing
may compute with torch outside run(). What the ranks import when they first need it is imported here, once for all.

A rank that does not end in time is killed; its error has the Python stacks of all its threads.
"""

import contextlib
import datetime
import encodings.idna  # noqa: F401  (by socket.getaddrinfo)
import faulthandler
import itertools
import json
import multiprocessing
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import traceback
from dataclasses import dataclass
from typing import Any

import netsum.torch
import torch._dynamo  # by optimizers and DistributedDataParallel: seconds
import torch.distributed as dist
from netsum_bench import processes
from torch.distributed.distributed_c10d import _get_default_store

import torch

WORLD_SIZE = 4
DEADLINE_S = 120
EXIT_DEADLINE_S = 30
STACKS_DEADLINE_S = 5
torch.set_num_threads(1)  # no pool of threads here, where the ranks are forked from; they share few cores anyway
CONTEXT = multiprocessing.get_context("fork")


@dataclass
class Outcome:
    """How one rank ended."""

    value: Any = None
    error: str = ""  # the traceback
    error_type: str = ""
    code: str = ""  # of a netsum.torch.Error
    exit_code: int | None = None  # of a rank that ended without a word


def run(function, **options):
    """Calls function(rank) in every rank of a new default group; returns their values, in rank order.

    Fails with the tracebacks if any rank raises, or crashes on its way out. `options`: as of run_all_outcomes().
    """
    outcomes = run_all_outcomes(function, **options)
    failures = [
        f"rank {r} (exit code {o.exit_code}):\n{o.error}" for r, o in enumerate(outcomes) if o.error or o.exit_code != 0
    ]
    assert not failures, "\n".join(failures)
    return [o.value for o in outcomes]


def run_all_outcomes(function, *, world_size=WORLD_SIZE, backend="netsum", timeout_s=60.0, env=None, before=None):
    """As run(), but a rank may fail: returns an Outcome per rank. Ranks still running after DEADLINE_S are killed.

    `env` is added to the environment of every rank, or, as a list, of each rank its own. before() is called in every rank,
    before there is a group.
    """
    envs = env if isinstance(env, list) else [env] * world_size
    assert_no_threads()
    # The last rank to let go of the store removes its file, perhaps while we clean up.
    with tempfile.TemporaryDirectory(prefix="netsum-test-", ignore_cleanup_errors=True) as folder:
        started = []
        for rank in range(world_size):
            receiver, sender = CONTEXT.Pipe(duplex=False)
            process = CONTEXT.Process(
                target=_rank_main,
                args=(function, rank, world_size, backend, timeout_s, envs[rank], folder, sender, before),
            )
            process.start()
            sender.close()
            started.append(_Rank(process, receiver, pathlib.Path(folder, f"stacks-{rank}")))
        deadline = time.monotonic() + DEADLINE_S
        for rank in started:
            rank.receiver.poll(max(0.0, deadline - time.monotonic()))
        # Told before any is killed: a rank may end because another is killed.
        hung = [rank for rank in started if not rank.receiver.poll(0)]
        _dump_stacks(hung)
        why = f"the rank had not ended after {DEADLINE_S} s and was killed"
        return [_killed(rank, why) if rank in hung else _collect(rank) for rank in started]


def assert_no_threads():
    """Of this process, which is about to fork ranks: a lock that another thread holds would stay locked in them."""
    end = time.monotonic() + STACKS_DEADLINE_S
    while len(tasks := os.listdir("/proc/self/task")) > 1:  # one that has been joined may still be there
        names = [pathlib.Path(f"/proc/self/task/{task}/comm").read_text().strip() for task in tasks]
        python = [thread.name for thread in threading.enumerate()]
        assert time.monotonic() < end, f"ranks are forked from a process with threads: {names}, in Python {python}"
        time.sleep(0.01)


@dataclass
class _Rank:
    process: Any
    receiver: Any
    stacks: pathlib.Path  # where the process writes its Python stacks when it gets SIGUSR1


def _rank_main(function, rank, world_size, backend, timeout_s, env, folder, sender, before):
    # A fork's first call replaces PyTorch's pool. Two at once, of autograd's threads, end the process.
    torch.set_num_threads(1)
    os.environ.update(env or {})
    stacks = open(f"{folder}/stacks-{rank}", "w", encoding="utf-8")  # noqa: SIM115  (open as long as this process is there)
    faulthandler.register(signal.SIGUSR1, stacks)
    outcome = Outcome()
    try:
        if before is not None:
            before()
        dist.init_process_group(
            backend,
            init_method=f"file://{folder}/store",
            rank=rank,
            world_size=world_size,
            timeout=datetime.timedelta(seconds=timeout_s),
        )
        outcome.value = function(rank)
    except BaseException as error:
        outcome.error = traceback.format_exc()
        outcome.error_type = type(error).__name__
        outcome.code = getattr(error, "code", "")
    # Pickled by hand: multiprocessing would share a tensor's memory, which ends with this process.
    sender.send_bytes(pickle.dumps(outcome))
    if dist.is_initialized():
        dist.destroy_process_group()


def _collect(rank):
    """The outcome of a rank that has sent it, or is dead."""
    process, outcome = rank.process, None
    with rank.receiver, contextlib.suppress(EOFError):
        outcome = pickle.loads(rank.receiver.recv_bytes())
    process.join(EXIT_DEADLINE_S)
    if process.is_alive():
        _dump_stacks([rank])
        return _killed(rank, "the rank did not exit after its work was done")
    outcome = outcome or Outcome(error="the rank died", error_type="Died")
    outcome.exit_code = process.exitcode
    return outcome


def _killed(rank, why):
    rank.process.kill()
    rank.process.join()
    rank.receiver.close()
    return Outcome(error=f"{why}\n{_written(rank.stacks) or 'It has not written its stacks.'}", error_type="Hung")


def _dump_stacks(stuck):
    """Has these ranks write their stacks, and waits for it."""
    for rank in stuck:
        if rank.process.is_alive() and rank.stacks.exists():
            os.kill(rank.process.pid, signal.SIGUSR1)
    end = time.monotonic() + STACKS_DEADLINE_S
    while time.monotonic() < end and not all(_written(r.stacks) for r in stuck if r.process.is_alive()):
        time.sleep(0.1)


def _written(path):
    """The text of the file when it has not grown for a moment."""
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    time.sleep(0.2)
    return before if path.exists() and path.stat().st_size == len(before.encode()) else ""


def meet(name="all are here"):
    """Returns when all ranks of the default group have called it; once per name.

    No collective: what a fast rank does after one may fail it on a slow rank.
    """
    store = _get_default_store()
    store.set(f"{name}/{dist.get_rank()}", "")
    store.wait([f"{name}/{rank}" for rank in range(dist.get_world_size())])


def calls(place="netsum", group=None):
    """How often each collective was called on this rank, of those that netsum or gloo has run."""
    return netsum.torch.stats(group)[f"{place}_calls"]


@contextlib.contextmanager
def store_server():
    """A TCP store in a process of its own, which outlives every rank: yields its port, for tcp_store() in the ranks.

    A store that a rank serves ends with that rank, while another may still wait for the answer to its last request.
    """
    receiver, sender = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=_serve_store, args=(sender,))
    process.start()
    sender.close()
    try:
        with receiver:
            assert receiver.poll(DEADLINE_S), "the store did not start"
            yield receiver.recv()
    finally:
        process.kill()
        process.join()


def _serve_store(sender):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    sender.send(store.port)
    signal.pause()


def tcp_store(port):
    return dist.TCPStore("127.0.0.1", port, is_master=False)


def tcp_group(rank, port, *, world_size=WORLD_SIZE, backend="netsum"):
    """Makes the default group anew, at the store of store_server(); returns the store."""
    if dist.is_initialized():
        dist.destroy_process_group()
    store = tcp_store(port)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size)
    return store


def command():
    """The netsum command that came with the package under test."""
    beside_python = pathlib.Path(sysconfig.get_path("scripts")) / "netsum"
    return os.environ.get("NETSUM_COMMAND", str(beside_python))


@contextlib.contextmanager
def aggregator(*flags, env=None):
    """A running `netsum aggregator`: yields its process, with its address as `process.address`."""
    line = [command(), "aggregator", "--listen", "127.0.0.1:0", "--cores", "1", "--drain-timeout", "1s", *flags]
    environment = {**os.environ, **(env or {})}
    with processes.running(line, "ready: control ", "netsum aggregator", environment, end_s=10) as process:
        process.address = process.first_line.split()[2].rstrip(",")
        yield process


def run_script(text, *arguments, launcher=(), env=None):
    """Runs a Python script in a new process, or several by a launcher such as torchrun's; returns the process."""
    with tempfile.TemporaryDirectory(prefix="netsum-test-") as folder:
        path = pathlib.Path(folder) / "script.py"
        path.write_text(text, encoding="utf-8")
        return subprocess.run(
            [sys.executable, *launcher, str(path), *arguments],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
            check=False,
        )


class Scripts:
    """Runs scripts as processes of Python that have imported torch already (fork_scripts.py)."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="netsum-test-")
        self.server = subprocess.Popen(
            [sys.executable, pathlib.Path(__file__).with_name("fork_scripts.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.stdin.close()
        self.server.wait(EXIT_DEADLINE_S)
        self.server.stdout.close()
        self.folder.cleanup()

    def run(self, *scripts):
        """Runs all at the same time, each (text, arguments, environment); returns them as run_script() does."""
        paths = [[f"{self.folder.name}/{index}-{name}" for name in ("out", "err")] for index in range(len(scripts))]
        orders = [
            {"script": text, "arguments": arguments, "environment": {**os.environ, **env}, "output": out, "errors": err}
            for (text, arguments, env), (out, err) in zip(scripts, paths, strict=True)
        ]
        for path in itertools.chain(*paths):
            pathlib.Path(path).write_text("", encoding="utf-8")
        self.server.stdin.write(json.dumps({"deadline_s": DEADLINE_S, "scripts": orders}) + "\n")
        self.server.stdin.flush()
        ended = [
            subprocess.CompletedProcess(
                [], code, *(pathlib.Path(path).read_text(encoding="utf-8") for path in of_script)
            )
            for code, of_script in zip(json.loads(self.server.stdout.readline()), paths, strict=True)
        ]
        hung = any(one.returncode is None for one in ended)
        assert not hung, f"a script had not ended after {DEADLINE_S} s and was killed: {ended}"
        return ended

    def run_ranks(self, *texts, arguments=()):
        """One rank of each text: they meet as torchrun's."""
        port = processes.free_port()
        common = {"WORLD_SIZE": str(len(texts)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        return self.run(*((text, arguments, {"RANK": str(rank), **common}) for rank, text in enumerate(texts)))


def scaled_steps(scaler, model, optimizer, batches, loss_of):
    """Trains with a GradScaler on (x, y) of `batches`; returns for each step whether it moved the weights, and the scale after it."""
    history = []
    for x, y in batches:
        before = [p.detach().clone() for p in model.parameters()]
        scaler.scale(loss_of(model(x), y)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        moved = any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
        history.append((moved, scaler.get_scale()))
    return history


def with_infinity(batches, step):
    """The batches, those of a step with targets that make its gradients overflow."""
    for index, (x, y) in enumerate(batches):
        yield x, y * torch.inf if index == step else y


def check_infinity_skips_the_step(wrapped_model, batch, loss_of, compress, methods):
    """Trains two ranks with a GradScaler; in the second of four steps, gradients of rank 1 overflow. Neither rank may take that step.

    compress(model, scaler, method): compresses the gradients of the model by one of the methods, and returns the Compression, whose
    memories must stay finite.
    """

    def train(rank, method):
        model = wrapped_model()
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        state = compress(model, scaler, method)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
        batches = (batch(rank, step) for step in range(4))
        if rank == 1:
            batches = with_infinity(batches, 1)
        history = scaled_steps(scaler, model, optimizer, batches, loss_of)
        for saved in state.state_dict()["parameters"].values():
            assert all(values.isfinite().all() for values in saved["memory"].values()), method
        return history

    expected = {method: [(True, 1024.0), (False, 512.0), (True, 512.0), (True, 512.0)] for method in methods}
    assert run(lambda rank: {method: train(rank, method) for method in methods}, world_size=2) == [expected] * 2
