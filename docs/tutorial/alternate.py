"""A compressor that sends every other element, in turn. What it leaves out, the memory of netsum adds to the next gradient."""

import netsum.torch

import torch


class Alternate(netsum.torch.Compressor):
    additivity = "linear"  # the network may add the payloads

    def shape(self, count, context):
        return torch.float32, (count + 1) // 2

    def compress(self, values, payload, context):
        part = values[context.step % 2 :: 2]
        payload.zero_()
        payload[: part.numel()] = part
        if not values.isfinite().all():
            payload[0] = torch.nan  # all ranks must learn of it

    def decompress(self, payload, contributions, out, context):
        out.fill_(0 * payload[0])  # a NaN stays one
        part = out[context.step % 2 :: 2]
        part.copy_(payload[: part.numel()] / contributions)
