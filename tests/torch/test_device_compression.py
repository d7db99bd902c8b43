"""Compressed gradients on the accelerator of accelerator/: encoded there or on the host, with the bits of tensors of the CPU."""

import functools

import accelerator
import netsum.torch
import pytest
import ranks
import test_accelerator as suites
import torch.distributed as dist
from test_accelerator import DEVICE, delays, run, run_all_outcomes
from test_compress import Chosen, gradient_of, wrapped

import torch

STEPS = 3
# Of every path, with and without what the ranks agree on first, with random numbers, and with two memories.
METHODS = {
    "bf16": {},
    "fp16": {},
    "int8": {},
    "lanes8": {"block": 64},
    "qsgd": {"levels": 64},
    "efsign": {},
    "topk": {"ratio": 0.05},
    "blocktopk": {"ratio": 0.1, "block": 20},
    "dgc": {"ratio": 0.05, "momentum": 0.5},
    "powersgd": {"rank": 2},
    "u8bit": {},
    "threshold": {"threshold": 0.5, "path": "gather"},
}


class Halved(netsum.torch.Compressor):
    biased = needs_memory = False

    def compress(self, values, payload, context):
        torch.div(values, 2, out=payload)

    def decompress(self, payload, contributions, out, context):
        torch.mul(payload, 2 / contributions, out=out)


def bits(tensors):
    return {name: suites.bits(tensor) for name, tensor in tensors.items()}


def backward(model, rank, step, device, dtype):
    model.zero_grad()
    gradients = gradient_of(rank, step, dtype)
    model({name: gradient.to(device) for name, gradient in gradients.items()}).backward()
    return bits({name: p.grad for name, p in model.module.named_parameters()})


def averages(devices, method, options, dtype=torch.float32):
    """What the ranks, rank r on devices[r], make of the gradients of test_compress.py, and what they keep."""

    def on_rank(rank):
        device = devices[rank]
        model = wrapped(Chosen(dtype).to(device))
        state = netsum.torch.compress(model, method, **options)
        steps = [backward(model, rank, step, device, dtype) for step in range(STEPS)]
        kept = {name: bits(entry["memory"]) for name, entry in state.state_dict()["parameters"].items()}
        if device != "cpu":
            assert f"staged from {device} in pinned memory" in netsum.torch.describe()
        return steps, kept

    return run(on_rank, world_size=len(devices))


# Some in make test, every one in make soak.
@pytest.mark.parametrize(
    "method",
    [m if m in ("bf16", "int8", "topk", "u8bit") else pytest.param(m, marks=pytest.mark.soak) for m in METHODS],
)
def test_methods_have_the_bits_of_the_cpu(method):
    want = averages(["cpu", "cpu"], method, METHODS[method])
    assert averages(["mock:0", "cpu"], method, METHODS[method]) == want


@pytest.mark.parametrize("method", [Halved(), "topk"])
def test_other_types_and_methods_of_users(method):
    want = averages(["cpu", "cpu"], method, {}, torch.bfloat16)
    assert averages(["mock:1", "mock:0"], method, {}, torch.bfloat16) == want


def test_averages_of_tensors():
    def on_rank(rank):
        results = []
        for device in ("cpu", DEVICE):
            model = wrapped(Chosen().to(device))
            state = netsum.torch.compress(model, "topk", ratio=0.05)
            tensors = {name: tensor.to(device) for name, tensor in gradient_of(rank, 0).items()}
            state.average([(p, tensors[name]) for name, p in model.module.named_parameters()])
            assert all(tensor.device == torch.device(device) for tensor in tensors.values())
            results.append(bits(tensors))
        assert results[0] == results[1]

    run(on_rank)


# --- Encoded on the device

ROWS, COLUMNS = 50, 80
COUNT = ROWS * COLUMNS


def one_bucket(rank, device, method, options):
    """Returns the compression, and a function that averages the gradient of one matrix."""
    model = torch.nn.Linear(COLUMNS, ROWS, bias=False).to(device)
    state = netsum.torch.Compression(model, method, **options)

    def average(values, dtype=torch.float32):
        gradient = values.to(dtype).to(device)
        return state._buckets.reduce(gradient.view(-1), [gradient], [model.weight]).wait()

    return state, average


def on_both(devices, method, options, run_steps):
    """What run_steps(rank, state, average) returns where rank r is on devices[r] is what it returns on the CPU."""

    def on_rank(rank):
        outcomes = []
        for device in ("cpu", devices[rank]):
            state, average = one_bucket(rank, device, method, options)
            outcomes.append(run_steps(rank, state, average))
            place = "" if device == "cpu" else f", encoded on {device}"
            assert state.describe().endswith(place or state._parameters[0].description)
        assert len(outcomes[0]) == len(outcomes[1]) > 0
        for index, (want, got) in enumerate(zip(*outcomes, strict=True)):
            assert suites.bits(got) == suites.bits(want), index

    run(on_rank, world_size=len(devices))


def residual(state):
    (entry,) = state.state_dict()["parameters"].values()
    return entry["memory"]["residual"]


def numbers(rank, step):
    return (torch.rand(ROWS, COLUMNS, generator=torch.Generator().manual_seed(1000 * step + rank)) - 0.5) ** 5


def plain(tensor):
    """NaN may have other bits."""
    return torch.nan_to_num(tensor.cpu(), nan=12345.0)


K = 40


def awkward(rank, step):
    """Gradients with equal magnitudes, zeros of both signs, fewer elements than are sent, and numbers that are not finite."""
    values = numbers(rank, step)
    if step == 0:
        values = (values * 100).round()
    elif step == 1:
        values = torch.full_like(values, -0.0)
        values[rank, :3] = 1e-42
    elif step == 2:
        values[:, 5] = float("inf")  # as many as are sent, and more
        values[7 + rank] = float("-inf")
    elif step == 3:
        values[1, :4] = torch.tensor([float("nan"), float("inf"), float("-inf"), 3e38])
    return values


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("method", "options"), [("topk", {"k": K}), ("topk", {"ratio": 0.02, "decay": 0.3}), ("bf16", {}), ("fp16", {})]
)
def test_awkward_numbers_have_the_bits_of_the_cpu(method, options, dtype):
    def steps(rank, state, average):
        kept = []
        for step in range(6):
            kept.append(plain(average(awkward(rank, step), dtype)))
            if method == "topk" and step % 2:
                kept.append(residual(state))
        return kept

    on_both(["mock:0", "cpu", "mock:1"], method, options, steps)


def test_what_is_kept_on_the_device_is_saved_restored_scaled_and_taken_back():
    class Scaler:
        scale = 1.0

        def get_scale(self):
            return self.scale

    scaler = Scaler()

    def steps(rank, state, average):
        scaler.scale, seen = 1.0, []
        for step in range(8):
            if step == 2:
                saved = state.state_dict()
            elif step == 4:
                scaler.scale = 0.5
            elif step == 6:
                state.load_state_dict(saved)
            seen.append(average(numbers(rank, step)))
            if step == 3:  # as after a pass that has failed
                state._pass.fail()
        return [*seen, residual(state)]

    on_both(["mock:0", "mock:1"], "topk", {"k": K, "grad_scaler": scaler}, steps)


@pytest.mark.parametrize(
    ("method", "options", "to_host", "from_host"),
    [
        ("bf16", {}, 2 * COUNT, 2 * COUNT),
        ("topk", {"k": K}, 8 * K, 2 * 8 * K),
        ("int8", {}, 4 * COUNT, 4 * COUNT),
    ],
)
def test_only_payloads_cross_the_bus(method, options, to_host, from_host):
    def on_rank(rank):
        _, average = one_bucket(rank, DEVICE, method, options)
        gradient = numbers(rank, 0).to(DEVICE)
        average(gradient)  # the first step brings the memory
        torch.accelerator.synchronize()
        before = accelerator.load().copied_bytes()
        average(gradient)
        torch.accelerator.synchronize()
        return tuple(now - then for now, then in zip(accelerator.load().copied_bytes(), before, strict=True))

    assert run(on_rank) == [(to_host, from_host)] * 2


# --- FSDP2


def fully_sharded(method, model):
    model = suites.fully_sharded(model)
    netsum.torch.compress(model, method, min_elements=1)
    return model


def in_replicas(method, model):
    """A model that is sharded over no ranks but this one, and summed over both."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    device = next(model.parameters()).device.type
    mesh = init_device_mesh(device, (dist.get_world_size(), 1), mesh_dim_names=("replicate", "shard"))
    fully_shard(model, mesh=mesh["shard"])
    netsum.torch.compress(model, method, replicas=mesh.get_group("replicate"), min_elements=1)
    return model


@pytest.mark.parametrize(
    ("wrap", "method"),
    [(fully_sharded, "int8"), (in_replicas, "int8"), pytest.param(fully_sharded, "bf16", marks=pytest.mark.soak)],
)
def test_sharded_training_has_the_losses_of_the_cpu(wrap, method):
    def on_rank(rank):
        on_cpu, on_device = (
            suites.trained(rank, device, functools.partial(wrap, method)) for device in ("cpu", DEVICE)
        )
        assert on_device == on_cpu
        assert on_cpu[-1] < on_cpu[0]

    run(on_rank)


# --- Streams, and what goes wrong


def stream_order(rounds, method):
    """Buckets whose gradients are still to be computed when the hook is called, and averages that are used at once."""
    options = {"k": K} if method == "topk" else {}

    def on_rank(rank):
        model = torch.nn.Linear(COLUMNS, ROWS, bias=False).to(DEVICE)
        state = netsum.torch.Compression(model, method, **options)
        buffer = torch.empty(COUNT, device=DEVICE)
        used = buffer[: K if method == "topk" else COUNT]
        for index in range(rounds):
            accelerator.load().sleep(0.002)
            buffer.zero_()
            used.fill_(float(rank + index)).mul_(2)
            state._buckets.reduce(buffer, [buffer.view(ROWS, COLUMNS)], [model.weight]).wait()
            doubled = buffer.add(buffer)
            suites.check(doubled[: len(used)], 4 * index + 2, "averaged")
            suites.check(doubled[len(used) :], 0, "the others")
            buffer.fill_(-1)

    return on_rank


# "bf16" and "topk" are encoded on the device, "none" is not.
@pytest.mark.parametrize("method", ["bf16", "topk", "none"])
def test_order_of_streams(method):
    run(stream_order(10, method), env=delays(2000))


@pytest.mark.parametrize("omitted", ["pool waits for caller", "host waits for copies in", "caller waits for pool"])
@pytest.mark.parametrize("method", ["bf16", "topk", pytest.param("none", marks=pytest.mark.soak)])
def test_a_missing_synchronisation_is_found(omitted, method):
    outcomes = run_all_outcomes(stream_order(400, method), env=delays(4000, NETSUM_ACCELERATOR_OMIT=omitted))
    assert any(
        outcome.error_type == "AssertionError"
        or (method == "topk" and outcome.error_type == "RuntimeError" and not outcome.code)  # PyTorch's: no such place
        for outcome in outcomes
    ), [outcome.error[:1500] for outcome in outcomes]


def test_calls_before_a_bucket_need_not_end_for_its_memory():
    """They wait for memory that calls in flight share, and the bucket's operations come after them."""

    def on_rank(rank):
        model = Chosen().to(DEVICE)
        state = netsum.torch.Compression(model, "bf16")
        large = [torch.full((1 << 19,), float(rank), device=DEVICE) for _ in range(3)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in large]
        parameters = list(model.parameters())
        buffer = torch.full((sum(p.numel() for p in parameters),), float(rank), device=DEVICE)
        parts = [
            part.view(p.shape)
            for part, p in zip(buffer.split([p.numel() for p in parameters]), parameters, strict=False)
        ]
        state._buckets.reduce(buffer, parts, parameters).wait()
        suites.check(buffer, 0.5, "averaged")
        for work, tensor in zip(works, large, strict=True):
            work.wait()
            suites.check(tensor, 1, "before the bucket")

    run(on_rank, env=delays(0, NETSUM_STAGING_MIB="1"))


@pytest.mark.parametrize("method", ["topk", "blocktopk"])
def test_a_fault_of_the_device_ends_the_pass_on_all_ranks(method):
    """What the ranks keep is then what they kept before it. Of "topk" it is on the device, and lost with it."""

    def on_rank(rank):
        model = Chosen().to(DEVICE)
        state = netsum.torch.Compression(model, method, ratio=0.05)
        parameters = list(model.parameters())
        buffer = torch.full((sum(p.numel() for p in parameters),), float(rank), device=DEVICE)
        parts = buffer.split([p.numel() for p in parameters])
        gradients = [part.view(p.shape) for part, p in zip(parts, parameters, strict=True)]
        state._buckets.reduce(buffer, gradients, parameters).wait()
        before = state.state_dict()["parameters"]
        torch.accelerator.synchronize()
        if rank == 1:
            accelerator.load().fault("an illegal memory access was encountered")
        code, text = suites.error_of(lambda: state._buckets.reduce(buffer, gradients, parameters).wait())
        if method == "topk" and rank == 1:
            with pytest.raises(RuntimeError, match="an illegal memory access"):
                state.state_dict()
        else:
            after = state.state_dict()["parameters"]
            assert all(bits(after[name]["memory"]) == bits(before[name]["memory"]) for name in before)
        ranks.meet()
        return code, text

    (code, text), (faulty_code, faulty_text) = run(on_rank)
    assert code == faulty_code == "aborted"
    assert "an illegal memory access was encountered" in text
    assert "mock:0 reports: test accelerator: an illegal memory access was encountered" in faulty_text
