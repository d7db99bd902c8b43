"""One rank of the sparse benchmark, with one backend of PyTorch.

Reads lines of JSON from standard input: {"gate", "how", "id", "iterations", "warmup", and the fields of a Case}. For each, all
ranks sum such tensors, starting together by the gate; each rank checks its part of every result, and prints one JSON object
(start_gate.combine) with the time of its first iteration and the counters of the backend.
"""

import functools
import json
import sys
import time
import zlib

import numpy
import torch.distributed as dist

import torch
from netsum_bench.sparse_inputs import Case
from netsum_bench.start_gate import StartGate, machine_busy_ticks
from netsum_bench.worker_process import begin_worker, end_worker

TIMEOUT_S = 240
COUNTERS = ("sparse_operations", "sparse_dense", "sparse_sent_elements", "sparse_index_bytes")


@functools.lru_cache(maxsize=6)  # the systems take turns with the same tensors
def inputs(case, rank, ranks, iteration):
    """The rank's units and their elements, and the sum of all ranks' tensors in the part that this rank checks."""
    begin, end = part = (case.units * rank // ranks, case.units * (rank + 1) // ranks)
    slices = slice(*(bound * case.unit for bound in part))
    return case.rows_of(rank, ranks, iteration), case.expected(ranks, iteration, begin, end), slices


def make_tensor(case, how, rows):
    units, values = rows
    if how != "coo":
        table = numpy.zeros((case.units, case.unit), numpy.float32)
        table[units] = values
        return torch.from_numpy(table).view(-1)
    # Gradients of a table have rows as values; those of single elements have numbers.
    indices, values = torch.from_numpy(units).unsqueeze(0), torch.from_numpy(values.copy())
    if case.unit == 1:
        return torch.sparse_coo_tensor(indices, values.view(-1), (case.units,), is_coalesced=True)
    return torch.sparse_coo_tensor(indices, values, (case.units, case.unit), is_coalesced=True)


def run(tensor, how, number):
    if how in ("auto", "on"):
        import netsum.torch

        netsum.torch.sparse_all_reduce(tensor, mode=how, id=number)
    else:
        dist.all_reduce(tensor)


def check(case, tensor, expected, part):
    """How many elements of this rank's part are wrong, and a checksum of the whole."""
    dense = tensor.to_dense().view(-1) if tensor.is_sparse else tensor
    wrong = int((dense[part] != torch.from_numpy(expected)).sum())
    if tensor.is_sparse:  # all inputs are positive, so it has stored the union
        wrong += abs(int(torch.count_nonzero(dense)) - tensor._nnz() * case.unit)
    return wrong, zlib.crc32(dense.numpy())


def counters(backend):
    if backend != "netsum":
        return dict.fromkeys(COUNTERS, 0)
    import netsum.torch

    stats = netsum.torch.stats()
    return {name: stats[name] for name in COUNTERS}


def measure(rank, ranks, backend, gate, how, id, iterations, warmup, **fields):
    case, gate = Case(**fields), StartGate(gate, rank, ranks)
    stamps, sums, wrong, before = [], [], 0, counters(backend)
    for iteration in range(warmup + iterations):
        rows, expected, part = inputs(case, rank, ranks, iteration)
        tensor = make_tensor(case, how, rows)
        if iteration == warmup:
            before = counters(backend)
        dist.barrier()
        gate.wait(iteration + 1, TIMEOUT_S)
        busy = machine_busy_ticks()
        start = time.monotonic_ns()
        run(tensor, how, id)
        end = time.monotonic_ns()
        stamps.append([start, end, busy, machine_busy_ticks()])
        bad, checksum = check(case, tensor, expected, part)
        wrong += bad
        sums.append(checksum)
    after = counters(backend)
    return {
        "wrong": wrong,
        "sums": sums,
        "stamps": stamps,
        "counters": {name: (after[name] - before[name]) / iterations for name in after},
    }


def main():
    options = begin_worker(__doc__, TIMEOUT_S)
    for line in sys.stdin:
        print(json.dumps(measure(options.rank, options.ranks, options.backend, **json.loads(line))), flush=True)
    end_worker()


if __name__ == "__main__":
    main()
