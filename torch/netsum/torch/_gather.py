"""Payloads that cannot be summed: every rank gets those of all ranks."""

import torch

_ALIGNMENT = 8  # of all element types


def _rounded_up(count):
    return -(-count // _ALIGNMENT) * _ALIGNMENT


class Gather:
    """One all-gather of the payloads and side values of several parts of a bucket (_compress._Part).

    A payload that varies begins with its length. If there is one, the ranks tell each other first how many bytes they have, and what
    travels of each is as long as the longest. Memory only grows.
    """

    def __init__(self, parts, ranks):
        self._parts = parts
        self._ranks = ranks
        self._varies = any(part.varies for part in parts)
        self._sent = torch.empty(0, dtype=torch.uint8)
        self._received = torch.empty(0, dtype=torch.uint8)
        self._size = torch.zeros(1, dtype=torch.int64)
        self._sizes = torch.zeros(ranks, dtype=torch.int64)
        self._bytes = 0  # that each rank sends
        scratch = torch.empty(max(part.entry.count for part in parts))
        for part in parts:
            part.payload = torch.zeros(part.count, dtype=part.dtype)
            part.gathered = []
            part.scratch = scratch[: part.entry.count]

    def start(self, backend):
        """Packs what the parts have compressed, and starts the all-gather. Waits for the lengths, if they vary."""
        mine = []
        for part in self._parts:
            payload = part.payload.view(torch.uint8)
            mine += [part.side.view(torch.uint8), payload[: length_of(payload)] if part.varies else payload]
        size = sum(_rounded_up(values.numel()) for values in mine)
        if self._varies:
            self._size.fill_(size)
            backend._allgather_base(self._sizes, self._size).wait()
            size = int(self._sizes.max())
        self._grow(size)
        at = 0
        for values in mine:
            self._sent[at : at + values.numel()] = values
            at += _rounded_up(values.numel())
        self._bytes = size
        return backend._allgather_base(self._received[: self._ranks * size], self._sent[:size])

    def arrived(self):
        """Gives every part what it has received of each rank."""
        for part in self._parts:
            part.gathered.clear()
        for rank in range(self._ranks):
            rest = self._received[rank * self._bytes : (rank + 1) * self._bytes]
            for part in self._parts:
                sides, rest = _split(rest, 4 * part.side.numel())
                length = part.count * part.dtype.itemsize
                if part.varies:
                    length = length_of(rest) if rest.numel() >= 8 else 0
                    if not 8 <= length <= min(part.count, rest.numel()):
                        raise RuntimeError(
                            f"compression: rank {rank} sent a payload of {length} bytes for {part.entry.name}, where there are "
                            f"{rest.numel()} left; its settings or its version of netsum differ"
                        )
                payload, rest = _split(rest, length)
                part.gathered.append((payload.view(part.dtype), sides.view(torch.float32)))

    def _grow(self, size):
        if self._sent.numel() < size:
            self._sent = torch.zeros(size, dtype=torch.uint8)
            self._received = torch.empty(self._ranks * size, dtype=torch.uint8)


def length_of(payload):
    return int(payload[:8].view(torch.int64))


def _split(values, count):
    return values[:count], values[_rounded_up(count) :]
