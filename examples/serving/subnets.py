"""Splits a classifier into small subnets, one per group of classes, after sensAI (Wang et al., MLSys 2021).

Every subnet is a pruned copy of the base whose last layer has one output for each class of its group, and output 0 for all other
images. The score of a class is its logit minus that of output 0 (margin), or the logarithm of its share in the softmax; prepare()
takes the one that is better on validation data, which is neither trained on nor tested on.
"""

import copy
import importlib
import json
import pathlib
import warnings

import numpy

import torch
from torch import nn

DEAD = 0.005  # activations up to it count as zero, as in sensAI
SCORES = ("margin", "softmax")


class BadModel(ValueError):
    """The model, its groups or its files cannot be used; the message has the reason."""


def digits_model():
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(2)),
        *(nn.Flatten(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10)),
    )


def digits_data(seed=1):
    """{"train": (images, labels), "validation": ..., "test": ...}: 60, 20 and 20 % of 1797 images of 1x8x8."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    images = torch.tensor(digits.images / 16.0, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(digits.target, dtype=torch.long)
    rest, test = train_test_split(numpy.arange(len(labels)), test_size=0.2, stratify=labels, random_state=seed)
    train, validation = train_test_split(rest, test_size=0.25, stratify=labels[rest], random_state=seed)
    parts = {"train": train, "validation": validation, "test": test}
    return {name: (images[part], labels[part]) for name, part in parts.items()}


def load(spec, what):
    """The function that MODULE:FUNCTION names, called."""
    module, separator, name = spec.partition(":")
    if not separator:
        raise BadModel(f"--{what} {spec}: write MODULE:FUNCTION, such as subnets:digits_model")
    try:
        return getattr(importlib.import_module(module), name)()
    except (ImportError, AttributeError) as error:
        raise BadModel(f"--{what} {spec}: {error}") from error


def train(model, images, labels, epochs, seed, weight=None):
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(epochs, 1))
    loss_of = nn.CrossEntropyLoss(weight)
    model.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(labels), generator=generator).split(64):
            if len(batch) > 1:  # a batch norm needs two
                optimizer.zero_grad()
                loss_of(model(images[batch]), labels[batch]).backward()
                optimizer.step()
        schedule.step()
    return model.eval()


def group_classes(means, groups, seed=1):
    """Lists of classes that are alike. means: one row per class, such as its mean logits.

    Centres are chosen by k-means++; the class with the clearest choice comes first and takes the nearest centre with room. The sizes
    of two groups differ by at most one.
    """
    from sklearn.cluster import kmeans_plusplus

    classes = len(means)
    if not 1 <= groups <= classes:
        raise BadModel(f"{groups} groups of {classes} classes: there must be at least 1, and each must have a class")
    centres, _ = kmeans_plusplus(numpy.asarray(means, dtype=float), groups, random_state=seed)
    distances = numpy.linalg.norm(numpy.asarray(means)[:, None] - centres[None], axis=2)
    members = [[] for _ in range(groups)]
    small, larger = divmod(classes, groups)
    for one in numpy.argsort(distances.min(axis=1) - distances.max(axis=1), kind="stable"):
        # A group may have `small` classes, or one more while some of the `larger` ones are left.
        left = larger - sum(len(group) > small for group in members)
        room = [g for g in range(groups) if len(members[g]) < small or (len(members[g]) == small and left > 0)]
        members[min(room, key=lambda g: distances[one, g])].append(int(one))
    return [sorted(group) for group in members]


class ClassImportance:
    """Of a channel: how strongly it is active on the images of a group's classes, after a ReLU: its mean, and the share of its
    activations that are not zero. Every image counts equally."""

    def __init__(self, model, images):
        self._scores, hooks = {}, []
        for module in model.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                hooks.append(module.register_forward_hook(self._measure))
        with torch.no_grad():
            model.eval()(images)
        for hook in hooks:
            hook.remove()

    def _measure(self, module, _, output):
        active = output.detach().relu().transpose(0, 1).flatten(1)  # a row per channel
        mean = active.mean(dim=1)
        self._scores[module] = mean / (mean.mean() + 1e-12) + (active > DEAD).float().mean(dim=1)

    def __call__(self, group):
        import torch_pruning  # which only prepare() needs

        out = (torch_pruning.prune_conv_out_channels, torch_pruning.prune_linear_out_channels)
        scores = [
            self._scores[dependency.target.module][indices]
            for dependency, indices in group
            if dependency.handler in out and dependency.target.module in self._scores
        ]
        return torch.stack(scores).mean(dim=0) if scores else None


def head_of(model):
    """The name and the module of the last linear layer, which has the classes."""
    linear = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise BadModel("the model has no nn.Linear, whose outputs would be the classes")
    return linear[-1]


def prune(model, images, share):
    """Takes away a share of the channels of every layer but the last: those that the images use least."""
    import torch_pruning

    head, head_module = head_of(model)
    known = (nn.Conv2d, nn.Linear, nn.BatchNorm2d, nn.BatchNorm1d)
    strange = [
        f"{name or 'the model'} ({type(module).__name__})"
        for name, module in model.named_modules()
        if next(module.parameters(recurse=False), None) is not None
        and (not isinstance(module, known) or (isinstance(module, nn.Conv2d) and module.groups > 1))
    ]
    if strange:
        raise BadModel(
            f"layers that cannot be pruned: {', '.join(strange)}; use Conv2d without groups, Linear, BatchNorm"
        )

    def widths():
        layers = ((n, m) for n, m in model.named_modules() if n != head and isinstance(m, (nn.Conv2d, nn.Linear)))
        return {name: module.weight.shape[0] for name, module in layers}

    before = widths()
    try:
        torch_pruning.BasePruner(
            model,
            images[:1],
            ClassImportance(model, images),
            pruning_ratio=share,
            ignored_layers=[head_module],
        ).step()
        model(images[:2])
    except Exception as error:  # of any kind, by torch-pruning
        raise BadModel(f"torch-pruning cannot prune the model: {type(error).__name__}: {error}") from error
    same = [name for name, width in widths().items() if width == before[name] and int(width * share) > 0]
    if same:
        raise BadModel(
            f"layers that cannot be pruned: {', '.join(same)}; their channels are bound to the input or output"
        )
    return model


def with_head(model, outputs):
    name, old = head_of(model)
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, nn.Linear(old.in_features, outputs))
    return model


def make_subnet(base, data, classes, share, epochs, seed):
    """Pruned for the classes, and trained again."""
    images, labels = data["train"]
    mine = torch.isin(labels, torch.tensor(classes))
    if not mine.any():
        raise BadModel(f"no image of the classes {classes}")
    torch.manual_seed(seed)
    subnet = prune(copy.deepcopy(base), images[mine], share)
    with_head(subnet, 1 + len(classes))
    targets = torch.zeros_like(labels)
    for number, one in enumerate(classes):
        targets[labels == one] = 1 + number
    others = (~mine).sum() / max(int(mine.sum()), 1) / 2  # as many as the group's classes would need to be equal
    weight = torch.ones(1 + len(classes))
    weight[0] = 1 / max(float(others), 1.0)
    return train(subnet, images, targets, epochs, seed, weight)


def scores_of(logits, kind):
    """Of the group's classes, from the outputs of its subnet."""
    if kind == "margin":
        return logits[:, 1:] - logits[:, :1]
    return logits.log_softmax(dim=1)[:, 1:]


def combined(subnets, groups, images, kind):
    scores = torch.full((len(images), sum(map(len, groups))), -torch.inf)
    with torch.no_grad():
        for subnet, classes in zip(subnets, groups, strict=True):
            scores[:, classes] = scores_of(subnet(images), kind)
    return scores


def cost(model, image):
    import torch_pruning

    operations, parameters = torch_pruning.utils.count_ops_and_params(model, image)
    return {"parameters": int(parameters), "multiply_adds": int(operations)}


def accuracy(scores, labels):
    return round(100 * (scores.argmax(dim=1) == labels).float().mean().item(), 2)


def export(model, images, path):
    """As a program that needs no code of the model, for any number of images."""
    with warnings.catch_warnings(), torch.no_grad():
        # Declared old in favour of torch.export, whose programs take a second to load, and longer for one image.
        warnings.simplefilter("ignore", DeprecationWarning)
        program = torch.jit.freeze(torch.jit.trace(model.eval(), images[:1]))
        torch.jit.save(program, path)
        if not torch.allclose(program(images[:3]), model(images[:3]), atol=1e-3):
            raise BadModel(
                "the model computes otherwise for three images than for one: torch.jit.trace does not follow it"
            )


def load_program(path):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return torch.jit.load(path)
    except (RuntimeError, ValueError, OSError) as error:
        raise BadModel(f"{path}: {str(error).splitlines()[0]}; run `prepare` again") from error


def prepare(folder, groups=5, share=0.5, epochs=30, seed=1, model="", data=""):
    """Writes base.pt, subnet-N.pt and groups.json into a folder; returns what groups.json has."""
    if not 0 < share < 1:
        raise BadModel(f"a share of {share} of the channels: it must be above 0 and below 1")
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    data = load(data, "data") if data else digits_data(seed)
    base = load(model, "model") if model else digits_model()
    images, labels = data["train"]
    classes = head_of(base)[1].out_features
    if int(labels.max()) >= classes:
        raise BadModel(f"the data has class {int(labels.max())}, and the last layer of the model {classes} outputs")
    if not 1 <= groups <= classes:
        raise BadModel(f"{groups} groups of {classes} classes: there must be at least 1, and each must have a class")
    prune(copy.deepcopy(base), images, share)  # refuses at once what cannot be pruned
    train(base, images, labels, epochs, seed)
    with torch.no_grad():
        logits = base(images)
    absent = [one for one in range(classes) if not (labels == one).any()]
    if absent:
        raise BadModel(f"no image of the classes {absent}")
    members = group_classes([logits[labels == one].mean(dim=0).numpy() for one in range(classes)], groups, seed)
    subnets = [make_subnet(base, data, one, share, epochs, seed) for one in members]
    on = {
        part: {kind: accuracy(combined(subnets, members, data[part][0], kind), data[part][1]) for kind in SCORES}
        for part in ("validation", "test")
    }
    image = images[:1]
    with torch.no_grad():
        report = {
            "classes": classes,
            "groups": members,
            "image": list(image.shape[1:]),
            "score": max(SCORES, key=on["validation"].get),
            "accuracy": {**on, "base": accuracy(base(data["test"][0]), data["test"][1])},
            "base": cost(base, image),
            "subnets": [cost(subnet, image) for subnet in subnets],
        }
    export(base, images, folder / "base.pt")
    for number, subnet in enumerate(subnets):
        export(subnet, images, folder / f"subnet-{number}.pt")
    (folder / "groups.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return report


def read_groups(folder):
    path = pathlib.Path(folder) / "groups.json"
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        listed = sorted(one for group in report["groups"] for one in group)
        fits = listed == list(range(report["classes"])) and all(report["groups"]) and report["score"] in SCORES
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadModel(f"{path}: {error!r}; run `serving.py prepare {folder}` first") from error
    if not fits:
        raise BadModel(f"{path}: every class must be in one group, and every group must have a class")
    return report
