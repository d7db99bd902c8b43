"""What is trained under chaos: deterministic, so that the weights at a step have the same bits in every run."""

import hashlib
import json
import os
import pathlib
import time

import netsum.torch
import torch._dynamo  # by DistributedDataParallel and the optimizer: seconds, in every rank, if it is not here already
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import torch
from torch import nn

CHECKPOINT_STEPS = 10
FEATURES, CLASSES, BATCH = 64, 10, 16


def make_model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(FEATURES, 512), nn.Tanh(), nn.Linear(512, 256), nn.Tanh(), nn.Linear(256, CLASSES))


def batch(rank, step):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(BATCH, FEATURES, generator=generator)
    return inputs, inputs[:, :CLASSES].argmax(1)


class Training:
    def __init__(self, checkpoint):
        model = make_model()
        state = torch.load(checkpoint) if checkpoint.exists() else None
        self.step = 0
        if state:
            model.load_state_dict(state["model"])
        # Which elements share a packet has a say in the last bits, so it must not change from step to step, as it does
        # by default after the first step of a process: with unused parameters looked for, DDP leaves its buckets alone.
        self.model = DistributedDataParallel(model, find_unused_parameters=True)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        if state:
            self.optimizer.load_state_dict(state["optimizer"])
            self.step = state["step"]

    def one_step(self, rank):
        inputs, targets = batch(rank, self.step)
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.model(inputs), targets).backward()
        self.optimizer.step()
        self.step += 1

    def digest(self):
        """Of the weights and the optimizer's momentum."""
        digest = hashlib.sha256()
        for parameter in self.model.parameters():
            digest.update(parameter.detach().numpy().tobytes())
            momentum = self.optimizer.state.get(parameter, {}).get("momentum_buffer")
            if momentum is not None:
                digest.update(momentum.numpy().tobytes())
        return digest.hexdigest()

    def save(self, checkpoint):
        """Renamed into place: whoever is killed leaves a whole one."""
        state = {"model": self.model.module.state_dict(), "optimizer": self.optimizer.state_dict(), "step": self.step}
        torch.save(state, checkpoint.with_suffix(".new"))
        checkpoint.with_suffix(".new").rename(checkpoint)


def error_of(raised):
    """As a report: whether it is netsum's own, its code, and the party that it is about."""
    broken = raised if isinstance(raised, netsum.torch.Error) else None
    if broken is None and dist.is_initialized():
        broken = netsum.torch.error()
    return {
        "type": type(raised).__name__,
        "text": str(raised)[:600],
        "netsum": broken is not None,
        "code": getattr(broken, "code", None),
        "rank": getattr(broken, "rank", None),
    }


def train(folder, generation, timeout):
    """One rank of one generation: from the last checkpoint to the step that the file `stop_at` names, when there is one."""
    folder = pathlib.Path(folder)
    rank = int(os.environ["RANK"])
    rest_s = float(os.environ.get("REST_MS", "0")) / 1000
    checkpoint, stop_at = folder / "checkpoint.pt", folder / "stop_at"
    torch.set_num_threads(1)
    with (folder / f"rank{rank}.jsonl").open("a", buffering=1, encoding="utf-8") as file:

        def note(**what):
            file.write(json.dumps({"generation": generation, "time": time.monotonic(), **what}) + "\n")

        training, phase = None, "starting"
        try:
            dist.init_process_group("netsum", timeout=timeout)
            training = Training(checkpoint)
            phase = "training"
            note(event="began", step=training.step)
            while not (stop_at.exists() and training.step >= int(stop_at.read_text(encoding="utf-8"))):
                training.one_step(rank)
                time.sleep(rest_s)
                if training.step % CHECKPOINT_STEPS == 0:
                    stats = netsum.torch.stats()
                    note(
                        event="checkpoint",
                        step=training.step,
                        digest=training.digest(),
                        **{name: stats[name] for name in ("retransmissions", "probes", "failovers", "packets_sent")},
                        injected=stats.get("drops", {}).get("injected", 0),
                    )
                    if rank == 0:
                        training.save(checkpoint)
            note(event="done", step=training.step)
            dist.destroy_process_group()
        except Exception as raised:  # whatever it is, it is what the survivor of a failure sees
            note(event="error", phase=phase, step=training.step if training else None, **error_of(raised))
            raise
