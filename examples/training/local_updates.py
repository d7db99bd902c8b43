"""Schedules that average weights now and then, instead of gradients in every step: local SGD and DiLoCo."""

import copy

import netsum.torch
from torch.nn.parallel import DistributedDataParallel

import torch
from torch import nn


class LocalUpdates:
    """Ranks train by themselves, and every so many steps average how far they have come.

    model: not in DistributedDataParallel; its weights must be the same on all ranks.
    every: steps between two averages of a parameter.
    outer: makes an optimizer of a list of parameters, which takes the mean change of the weights, with the sign reversed, as a
        gradient. None: the mean itself (local SGD; Stich, ICLR 2019). DiLoCo (Douillard et al., 2023) has
        ``lambda p: torch.optim.SGD(p, lr=0.7, momentum=0.9, nesterov=True)``.
    fragments: the parameters are averaged in so many parts, one after the other, at steps that are spread evenly (Streaming
        DiLoCo; Douillard et al., 2025; here without delay), so that no step waits for all of them. At most `every`.
    method, settings: how the changes are compressed, as for netsum.torch.Compression; by default not at all. SparseLoCo (Sarfi et al., 2025)
        has method="chunktopk", k=64, block=4096, decay=0.95, and an outer optimizer without momentum.

    Call step() after every optimizer.step(), on all ranks. Buffers, such as those of batch norms, are not averaged. If a change is not
    finite on any rank, all ranks go back to the weights of their last average.
    """

    def __init__(self, model, *, every, outer=None, fragments=1, method="none", **settings):
        if isinstance(model, DistributedDataParallel):
            raise TypeError(
                "LocalUpdates takes a model without DistributedDataParallel, which would average all gradients"
            )
        if not 1 <= fragments <= every:
            raise ValueError(f"fragments is {fragments}; it must be between 1 and every, which is {every}")
        self._every = every
        self._steps = 0
        self.compression = netsum.torch.Compression(model, method, **settings)
        parameters = [p for p in model.parameters() if p.requires_grad]
        size = -(-len(parameters) // fragments) if parameters else 1
        parts = [parameters[i : i + size] for i in range(0, len(parameters), size)]
        self._fragments = [_Fragment(part, outer) for part in parts]

    def step(self):
        """Counts a step; averages the fragments whose turn it is."""
        self._steps += 1
        for index, fragment in enumerate(self._fragments):
            turn = self._every * (index + 1) // len(self._fragments)
            if (self._steps - turn) % self._every == 0:
                fragment.average(self.compression)

    def state_dict(self):
        """Returns what this rank keeps. Save it on every rank, beside the model and its optimizer."""
        return {
            "steps": self._steps,
            "fragments": [fragment.saved() for fragment in self._fragments],
            "compression": self.compression.state_dict(),
        }

    def load_state_dict(self, state):
        """Continues from a state_dict() for the same model and settings; raises ValueError if it is of others."""
        shapes = [[list(anchor.shape) for anchor in saved["anchors"]] for saved in state["fragments"]]
        mine = [[list(anchor.shape) for anchor in fragment.anchors] for fragment in self._fragments]
        if shapes != mine:
            raise ValueError(f"the state has fragments of the shapes {shapes}, and the model {mine}")
        self.compression.load_state_dict(state["compression"])
        self._steps = state["steps"]
        for fragment, saved in zip(self._fragments, state["fragments"], strict=True):
            fragment.restore(saved)


class _Fragment:
    """Parameters that are averaged together. Their anchors are the weights that all ranks had after the last average."""

    def __init__(self, parameters, outer):
        self._parameters = parameters
        self.anchors = [nn.Parameter(p.detach().clone()) for p in parameters]
        self._outer = outer(self.anchors) if outer is not None else torch.optim.SGD(self.anchors, lr=1.0)

    @torch.no_grad()
    def average(self, compression):
        changes = [anchor - parameter for anchor, parameter in zip(self.anchors, self._parameters, strict=True)]
        compression.average(list(zip(self._parameters, changes, strict=True)))
        if all(change.isfinite().all() for change in changes):
            for anchor, change in zip(self.anchors, changes, strict=True):
                anchor.grad = change
            self._outer.step()
        for parameter, anchor in zip(self._parameters, self.anchors, strict=True):
            parameter.copy_(anchor)

    def saved(self):
        return {"anchors": [a.detach().clone() for a in self.anchors], "outer": copy.deepcopy(self._outer.state_dict())}

    @torch.no_grad()
    def restore(self, saved):
        for anchor, values in zip(self.anchors, saved["anchors"], strict=True):
            anchor.copy_(values)
        self._outer.load_state_dict(saved["outer"])
