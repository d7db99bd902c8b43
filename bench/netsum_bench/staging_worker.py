"""One rank of the case that measures how tensors of an accelerator are staged, with the tests' accelerator.

Its arguments end with KiB of a segment, 0 for whole tensors. Reads lines of JSON from standard input: {"gate", "device", "copy_rate",
"bytes", "iterations", "warmup"}. All ranks sum a tensor on "cpu" or on the accelerator, whose bus copies `copy_rate` bytes per second in
each direction, starting together by the gate, and print {"times_s", "wrong"}: to the end of wait() and until the result is on the
device; elements whose sum is wrong.
"""

import json
import os
import sys
import time

import torch.distributed as dist

import torch
from netsum_bench.machine import ROOT
from netsum_bench.start_gate import StartGate
from netsum_bench.worker_process import begin_worker, end_worker

TIMEOUT_S = 120
MODULUS = 1000  # float32 has all sums


def measure(options, extension, gate, device, copy_rate, size, iterations, warmup):
    extension.set_copy_rate(0)
    gate = StartGate(gate, options.rank, options.ranks)
    index = torch.arange(size // 4)
    on_cpu = torch.empty(size // 4)
    tensor = torch.empty(size // 4, device=device)
    times, wrong = [], 0
    for iteration in range(warmup + iterations):
        tensor.copy_(on_cpu.copy_((index + options.rank + iteration) % MODULUS))
        dist.barrier()
        extension.set_copy_rate(copy_rate)
        gate.wait(iteration + 1, TIMEOUT_S)
        start = time.perf_counter()
        dist.all_reduce(tensor)
        torch.accelerator.synchronize()
        if iteration >= warmup:
            times.append(time.perf_counter() - start)
        dist.barrier()  # no rank checks its result while another still sums
        extension.set_copy_rate(0)
        on_cpu.copy_(tensor)
        for rank in range(options.ranks):
            on_cpu -= (index + rank + iteration) % MODULUS
        wrong += int(on_cpu.count_nonzero())
    return {"times_s": times, "wrong": wrong}


def main():
    os.environ["NETSUM_STAGING_SEGMENT_KIB"] = sys.argv.pop()
    sys.path.append(str(ROOT / "tests/torch"))
    import accelerator

    extension = accelerator.load()
    options = begin_worker(__doc__, TIMEOUT_S)
    for line in sys.stdin:
        asked = json.loads(line)
        device = accelerator.NAME if asked["device"] != "cpu" else "cpu"
        numbers = [asked[name] for name in ("copy_rate", "bytes", "iterations", "warmup")]
        print(json.dumps(measure(options, extension, asked["gate"], device, *numbers)), flush=True)
    end_worker()


if __name__ == "__main__":
    main()
