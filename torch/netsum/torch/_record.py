"""Records what a rank does as a program, from which emulated ranks are made (docs/emulation.md)."""

import atexit
import logging
import os
import platform

import torch.distributed as dist
from torch._C._distributed_c10d import FakeProcessGroup
from torch.optim.optimizer import register_optimizer_step_post_hook

from netsum.torch import _C, _settings

_logger = logging.getLogger("netsum")
_running = None
_world = (0, 1)  # rank and world size of the latest default group of netsum


class Recording:
    """A recording that runs: step() ends a step, stop() writes the program. It is also a context manager."""

    def __init__(self, path, model, by_optimizer):
        self._path, self._model = os.path.abspath(path), model  # a script may change its folder
        self._pid = os.getpid()
        self._hook = None
        self.is_alone = False  # of program_of()
        if by_optimizer:
            self._hook = register_optimizer_step_post_hook(lambda *_: self.step())

    def step(self):
        """Ends a step; the next one begins."""
        if _running is self and self._pid == os.getpid():
            _C.end_recorded_step()

    def stop(self):
        """Ends the recording and writes the program of this rank; returns the path of its file.

        The step that has begun is kept as a partial one if it has collectives. Raises netsum.torch.Error if the file cannot
        be written. Does nothing, and returns None, if the recording has ended or belongs to a parent of this process.
        """
        global _running
        if _running is not self or self._pid != os.getpid():
            return None
        _running = None
        if self._hook is not None:
            self._hook.remove()
        rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else _world
        path = file_of(self._path, rank)
        machine = f"{platform.node()}, {os.cpu_count()} cores"
        _C.stop_recording(rank, size, self._model, machine, path, without_network=self.is_alone)
        return path

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def file_of(path, rank):
    """Returns the file of a rank: `path` is a prefix, or a folder, which then has files "program.RANK.jsonl"."""
    prefix = os.path.join(path, "program") if os.path.isdir(path) else path
    return f"{prefix}.{rank}.jsonl"


def record(path, *, model="", by_optimizer=True, scales=False, values_mib=0):
    """Records the collectives of this rank, and how long it computes between them, until stop(); returns the Recording.

    `path`: the prefix of the files, one for each rank: "PATH.RANK.jsonl". `model`: what the file calls the model. A step ends
    with each step() of an optimizer, or, with `by_optimizer` False, where Recording.step() is called. What comes before the
    end of the first step, such as the broadcast of the parameters, belongs to step 0. Calls that began before the recording
    are not in it. `scales`: also records how large the data of sums of floats is, for ghosts that contribute noise; the pass over it
    counts as computing. `values_mib`: also records what this rank contributes, "PATH.RANK.values", while it is not more than so many
    MiB, for ghosts that contribute it again; copying it counts as computing. Makes the folder if there is none; a path that ends with a slash is a folder.
    """
    global _running
    if _running is not None:
        raise RuntimeError(
            "netsum.torch.record: this process is being recorded already; call stop() of that recording first"
        )
    _make_folder_of(os.fspath(path))
    _running = Recording(path, model, by_optimizer)
    _C.start_recording(with_scales=scales, value_bytes=values_mib << 20)
    return _running


def _make_folder_of(path):
    """Makes the folder of the files, unless it is there. Raises OSError now, and not when the recording ends."""
    folder = os.path.abspath(os.path.dirname(path))
    try:
        os.makedirs(folder, exist_ok=True)
        writable = os.access(folder, os.W_OK | os.X_OK)
    except OSError as error:
        raise OSError(
            error.errno, f"netsum.torch.record: the folder {folder} cannot be made; name another path", error.filename
        ) from error
    if not writable:
        raise PermissionError(
            f"netsum.torch.record: {folder} cannot be written; change its rights, or name another path"
        )


def group_is_made(rank, size, is_default):
    """To be called before a group is made: records from here to the exit if NETSUM_RECORD is set."""
    global _world
    if is_default:
        _world = (rank, size)
    if _settings.record_path() and not _from_environment:
        scales, values_mib = _settings.records_scales(), _settings.recorded_value_mib()
        _from_environment.append(record(_settings.record_path(), scales=scales, values_mib=values_mib))
        atexit.register(_stop_at_exit, _from_environment[0])


_from_environment = []  # the recording that NETSUM_RECORD has started, once for each process


def _stop_at_exit(recording):
    try:
        recording.stop()
    except _C.Error as error:  # the script has succeeded
        _logger.error("NETSUM_RECORD: %s", error)


def program_of(prepare, path, *, rank=0, world_size, steps=3, model=""):
    """Writes the program of one rank of a job without the other ranks and without a network; returns the path of its file.

    `prepare`: makes the model, wraps it (DistributedDataParallel, fully_shard) and returns a function that does one training
    step. Its step 0 is prepare() itself; `steps` calls of the function follow, each a step. Collectives return at once, and the
    tensors keep what this rank has, so losses mean nothing; how long the rank computes is measured here. `path`, `model`: as of
    record(). Raises RuntimeError if this process has a process group.
    """
    if dist.is_initialized():
        raise RuntimeError(
            "netsum.torch.program_of: this process has a process group; call it in a process without one"
        )
    if not 0 <= rank < world_size:
        raise ValueError(f"netsum.torch.program_of: there is no rank {rank} in a job of {world_size} ranks")
    if steps < 1:
        raise ValueError(f"netsum.torch.program_of: {steps} steps; use at least 1")
    dist.init_process_group(_ALONE, rank=rank, world_size=world_size, store=dist.HashStore())
    try:
        with record(path, model=model, by_optimizer=False) as recording:
            recording.is_alone = True
            step = prepare()
            recording.step()
            for _ in range(steps):
                step()
                recording.step()
            return recording.stop()
    finally:
        dist.destroy_process_group()


_ALONE = "netsum-alone"


def _create_alone(backend_options, _process_group_options):
    """Creates the backend of a rank without the others."""
    o = backend_options
    hosts = FakeProcessGroup._create_internal(o.group_rank, o.group_size, FakeProcessGroup.Options())
    backend = _C.ProcessGroupNetsum(
        rank=o.group_rank,
        size=o.group_size,
        hosts=hosts,
        options=None,
        timeout=o.timeout,
        store=o.store,
        without_network=True,
    )
    if o.global_ranks_in_group:
        backend.global_ranks = o.global_ranks_in_group
    return backend


dist.Backend.register_backend(_ALONE, _create_alone, extended_api=True, devices=["cpu"])
