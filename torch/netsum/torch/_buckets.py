"""Tensors of a program in place of a bucket of DistributedDataParallel."""

import torch


class Bucket:
    """Tensors of the shapes of parameters, all of one type, in one piece of memory."""

    def __init__(self, parameters):
        self._parameters = parameters
        self._buffer = torch.empty(sum(p.numel() for p in parameters), dtype=parameters[0].dtype)
        parts = self._buffer.split([p.numel() for p in parameters])
        self._tensors = [part.view(p.shape) for part, p in zip(parts, parameters, strict=True)]

    def buffer(self):
        return self._buffer

    def gradients(self):
        return self._tensors

    def parameters(self):
        return self._parameters
