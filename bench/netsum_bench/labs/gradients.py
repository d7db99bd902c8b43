"""The gradients of models that one process trains, and what thresholds of compression let pass of them."""

from netsum.torch import _C
from pandas import Series

import torch
from netsum_bench.demo import data, models, train

METHODS = {
    "topk": {"method": "topk"},
    "topk, sampled": {"method": "topk", "sampled": True},
    "sidco, exponential": {"method": "sidco"},
    "sidco, pareto": {"method": "sidco", "fit": "pareto"},
    "sidco, gamma": {"method": "sidco", "fit": "gamma"},
}
NEAR = (0.95, 1.05)
BEFORE = 10  # steps in which stages are found


def digits(seed):
    model = models.DigitClassifier()
    return model, data.Digits(0, 1, seed), torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def language_model(seed, **size):
    model = models.ByteLanguageModel(**size)
    return model, data.StandardLibraryText(0, 1, seed), torch.optim.AdamW(model.parameters(), lr=1e-3)


MODELS = {
    "digits": digits,
    "lm": language_model,
    "lm-wide": lambda seed: language_model(
        seed, width=1280, depth=1, heads=8
    ),  # its layers are large enough for samples
}
STEPS = {"digits": 100, "lm": 30, "lm-wide": 16}  # by default


class Layer:
    """One parameter under one method: compresses its gradients and tells how many elements it has sent."""

    def __init__(self, compression, number, parameter, ratio):
        self._tensor = compression.tensor(number, parameter.numel(), 0, 1)
        self._wanted = max(1, int(parameter.numel() * ratio))

    def sent_over_wanted(self, gradient, payload):
        payload = payload[: gradient.numel()]
        self._tensor.compress(gradient, torch.empty(0), payload, torch.empty(0))
        sent = payload.count_nonzero().item()
        # Zeros are never sent.
        wanted = min(self._wanted, sent + self._tensor.state()["residual"].count_nonzero().item())
        return sent / wanted if wanted else None


def measure(name, steps, ratios, seed):
    """Yields a record for each method and ratio. `steps`: 0 for those of STEPS."""
    steps = steps or STEPS[name]
    if steps <= BEFORE:
        raise ValueError(f"the steps must be more than {BEFORE}: the first {BEFORE} are not counted")
    torch.manual_seed(seed)
    model, examples, optimizer = MODELS[name](seed)
    parameters = list(model.parameters())
    layers, found = {}, {}
    for method, options in METHODS.items():
        for ratio in ratios:
            compression = _C.Compression({**options, "ratio": ratio})
            layers[method, ratio] = [Layer(compression, i, p, ratio) for i, p in enumerate(parameters)]
            found[method, ratio] = []
    payload = torch.empty(max(p.numel() for p in parameters))
    batches = examples.train_batches()
    for step in range(steps):
        inputs, targets = next(batches)
        optimizer.zero_grad()
        train.loss_of(model(inputs), targets).backward()
        for case, of_case in layers.items():
            for layer, parameter in zip(of_case, parameters, strict=True):
                value = layer.sent_over_wanted(parameter.grad.flatten(), payload)
                if value is not None and step >= BEFORE:
                    found[case].append(value)
        optimizer.step()
    for (method, ratio), values in found.items():
        spread = Series(values).quantile([0, 0.1, 0.5, 0.9, 1])
        yield {
            "method": method,
            "ratio": ratio,
            "layers": len(parameters),
            "largest_layer": payload.numel(),
            "steps": steps,
            "measured": len(values),
            **{key: float(spread[at]) for key, at in (("least", 0), ("low", 0.1), ("median", 0.5), ("high", 0.9))},
            "most": float(spread[1]),
            "near": sum(NEAR[0] <= value <= NEAR[1] for value in values) / len(values),
        }
