"""compress() as a hook in C++, and where Python has a part in each step."""

import threading

import netsum.torch
import pytest
import ranks
import torch.distributed as dist
from netsum.torch import _buckets, _compress
from ranks import WORLD_SIZE
from test_compress import COMPRESSED, SHAPES, STEPS, Chosen, backward, gradient_of, wrapped
from torch.nn.parallel import DistributedDataParallel

import torch

# Of every path, with and without what the ranks agree on first; none whose random numbers depend on the number of a parameter.
METHODS = {
    "bf16": {},
    "int8": {},
    "lanes8": {"block": 64},
    "efsign": {},
    "topk": {"ratio": 0.05},
    "blocktopk": {"ratio": 0.1, "block": 20},
    "u8bit": {},
    "threshold": {"threshold": 0.5, "path": "gather"},
}


def train(model, rank, dtype):
    return [backward(model, gradient_of(rank, step, dtype)) for step in range(STEPS)]


def test_both_hooks_have_the_same_bits():
    def compare(rank, method, dtype):
        settings = {**METHODS[method], "rules": [("small.*", "topk"), ("norm.*", "none")]}
        model, other = wrapped(Chosen(dtype)), wrapped(Chosen(dtype))
        state = netsum.torch.compress(model, method, **settings)
        other_state = netsum.torch.Compression(other, method, **settings)
        other.register_comm_hook(other_state, netsum.torch.compression_hook)
        for mine, theirs in zip(train(model, rank, dtype), train(other, rank, dtype), strict=True):
            assert all(torch.equal(mine[name], theirs[name]) for name in SHAPES), (method, dtype)
        saved, other_saved = (s.state_dict()["parameters"] for s in (state, other_state))
        for name in COMPRESSED:
            assert saved[name]["step"] == other_saved[name]["step"] == STEPS
            memory, other_memory = saved[name]["memory"], other_saved[name]["memory"]
            assert memory.keys() == other_memory.keys(), (method, dtype)
            assert all(torch.equal(memory[part], other_memory[part]) for part in memory), (method, dtype)
        assert state.stats()["buckets"] == other_state.stats()["buckets"] >= STEPS, (method, dtype)

    def on_rank(rank):
        for method in METHODS:
            for dtype in (torch.float32, torch.bfloat16):
                compare(rank, method, dtype)

    ranks.run(on_rank, world_size=2)


class Halved(netsum.torch.Compressor):
    biased = needs_memory = False

    def compress(self, values, payload, context):
        torch.div(values, 2, out=payload)

    def decompress(self, payload, contributions, out, context):
        torch.mul(payload, 2 / contributions, out=out)


def test_python_has_a_part_only_where_it_must(monkeypatch):
    def on_rank(rank):
        def refuse(*_arguments):
            raise RuntimeError("a step called Python")

        for owner, function in ((_compress._LevelsOfSteps, "enter"), (Halved, "compress"), (Halved, "decompress")):
            monkeypatch.setattr(owner, function, refuse)
        for method in ("none", "int8", "topk", "u8bit"):
            model = wrapped(Chosen())
            netsum.torch.compress(model, method)
            backward(model, gradient_of(rank, 0))
        for method in (Halved(), "auto"):
            model = wrapped(Chosen())
            netsum.torch.compress(model, method)
            with pytest.raises(RuntimeError, match="a step called Python"):
                backward(model, gradient_of(rank, 0))

    ranks.run(on_rank, world_size=2)


class Waiting(Halved):
    """Does not decompress before it may."""

    def __init__(self):
        self.may_go_on, self.went_on, self.threads = threading.Event(), [], []

    def decompress(self, payload, contributions, out, context):
        self.threads.append(threading.get_ident())
        self.went_on.append(self.may_go_on.wait(timeout=20))
        super().decompress(payload, contributions, out, context)


def test_a_compressor_of_a_user_delays_no_other_reduction():
    def on_rank(rank):
        model, method = Chosen(), Waiting()
        state = netsum.torch.Compression(model, method)
        parameters = [p for name, p in model.named_parameters() if name in COMPRESSED]
        bucket = _buckets.Bucket(parameters)
        bucket.buffer().fill_(rank + 1.0)
        averaged = state._reduce(bucket)
        completion = []

        def end(_future):
            completion.append(threading.get_ident())
            method.may_go_on.set()

        ended = dist.all_reduce(torch.ones(3), async_op=True).get_future().then(end)
        ended.wait()
        assert torch.equal(averaged.wait(), torch.full_like(bucket.buffer(), 1.5))
        assert method.went_on == [True] * len(parameters), "it waited for a future that its thread completes"
        assert len(set(method.threads)) == 1
        assert not {completion[0], threading.get_ident()} & set(method.threads)

    ranks.run(on_rank, world_size=2)


class Failing(Halved):
    def decompress(self, payload, contributions, out, context):
        raise ArithmeticError("it cannot be decompressed")


def test_what_a_compressor_of_a_user_raises_ends_the_step():
    def on_rank(rank):
        model = wrapped(Chosen())
        netsum.torch.compress(model, Failing())
        with pytest.raises(RuntimeError, match="it cannot be decompressed"):
            backward(model, gradient_of(rank, 0))

    ranks.run(on_rank, world_size=2)


def test_a_model_takes_one_hook():
    def on_rank(rank):
        model = wrapped(Chosen())
        netsum.torch.compress(model, "topk")
        with pytest.raises(RuntimeError, match="can only be called once"):
            netsum.torch.compress(model, "topk")
        with pytest.raises(RuntimeError, match="can only be called once"):
            model.register_comm_hook(None, netsum.torch.ddp_hook)

    ranks.run(on_rank, world_size=2)


def test_a_model_without_a_reducer_is_refused():
    def on_rank(rank):
        module = Chosen()
        module.small.weight.requires_grad_(False)  # DDP needs one that is not delayed
        delayed = DistributedDataParallel(
            module,
            delay_all_reduce_named_params=[(n, p) for n, p in module.named_parameters() if p.requires_grad],
            param_to_hook_all_reduce=module.deep.weight,
        )
        for method in ("topk", "auto"):
            with pytest.raises(ValueError, match=r"has no reducer.*delay_all_reduce_named_params"):
                netsum.torch.compress(delayed, method)

    ranks.run(on_rank, world_size=2)


def test_a_parameter_that_came_later_is_refused():
    def on_rank(rank):
        model = wrapped(Chosen())
        late = model.module.deep.weight
        late.requires_grad_(False)
        netsum.torch.compress(model, "topk")
        late.requires_grad_(True)
        with pytest.raises(RuntimeError, match=r"of shape \[40, 40\] is not one of those"):
            backward(model, gradient_of(rank, 0))

    ranks.run(on_rank, world_size=2)


class Scaler:
    def __init__(self):
        self.error = None

    def get_scale(self):
        if self.error is not None:
            raise self.error
        return 4.0


def test_an_error_of_the_scaler_ends_the_step():
    def on_rank(rank):
        model, scaler = wrapped(Chosen()), Scaler()
        state = netsum.torch.compress(model, "topk", grad_scaler=scaler)
        backward(model, gradient_of(rank, 0))
        assert state.state_dict()["parameters"]["deep.weight"]["scale"] == 4.0
        scaler.error = KeyError("no scale any more")
        with pytest.raises(KeyError, match="no scale any more"):
            backward(model, gradient_of(rank, 1))

    ranks.run(on_rank, world_size=2)


def test_a_model_that_is_gone_leaves_its_state():
    def on_rank(rank):
        model = wrapped(Chosen())
        state = netsum.torch.compress(model, "topk", ratio=0.05)
        backward(model, gradient_of(rank, 0))
        saved = state.state_dict()["parameters"]["deep.weight"]["memory"]["residual"]
        del model
        assert torch.equal(state.state_dict()["parameters"]["deep.weight"]["memory"]["residual"], saved)
        assert state.stats()["buckets"] > 0
        dist.barrier()

    ranks.run(on_rank, world_size=WORLD_SIZE)
