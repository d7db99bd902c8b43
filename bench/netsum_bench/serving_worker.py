"""One rank of the case "serving": of a class-parallel server of examples/serving, or the base on one rank.

Arguments: rank, ranks, host:port of rank 0, the folder of `serving.py prepare`, and settings in JSON: `backend` (netsum, gloo or
base); `unset`: variables of the environment; `interfaces`: how often Gloo has the rank's network interface, with two threads
for each; `calls`: "collectives", or "messages" from rank 0 to each rank and back in their place.

Reads lines "KIND COUNT". Rank 0 answers so many requests, "one by one" or "pipelined", and prints {"times_ms", "per_s"} in JSON, the
others {}.
"""

import json
import os
import socket
import sys
import threading
import time

from netsum_bench.machine import ROOT

sys.path.insert(0, str(ROOT / "examples/serving"))
import pattern
import serving
import subnets
import torch.distributed as dist

import torch
from netsum_bench.worker_process import end_worker


class Works:
    def __init__(self, works):
        self._works = works

    def wait(self):
        for work in self._works:
            work.wait()


class ByMessages:
    """Instead of the collectives of pattern.Member."""

    def broadcast(self, message):
        if self.rank == 0:
            return Works([dist.isend(message, rank) for rank in range(1, dist.get_world_size())])
        return dist.irecv(message, 0)

    def gather(self, part, parts=None):
        if self.rank != 0:
            return dist.isend(part, 0, group=self.gathers)
        parts[0].copy_(part)
        return Works([dist.irecv(parts[rank], rank, group=self.gathers) for rank in range(1, len(parts))])


class FrontByMessages(ByMessages, pattern.Front):
    pass


class SubnetByMessages(ByMessages, pattern.Subnet):
    pass


CLASSES = {
    "collectives": (pattern.Front, pattern.Subnet),
    "messages": (FrontByMessages, SubnetByMessages),
}


def one_by_one(answer, count):
    times = []
    for _ in range(count):
        begun = time.monotonic()
        answer([None])
        times.append(1e3 * (time.monotonic() - begun))
    return times


def measure(answer, kind, count):
    """`answer`: answers as many requests as its list has."""
    begun, times = time.monotonic(), []
    if kind == "pipelined":
        answer([None] * count)
    else:
        times = one_by_one(answer, count)
    return {"times_ms": times, "per_s": count / (time.monotonic() - begun)}


def answer_lines(answer):
    for line in sys.stdin:
        kind, _, count = line.strip().rpartition(" ")
        print(json.dumps(measure(answer, kind, int(count)) if answer else {}), flush=True)


def serve_base(folder, image):
    base = subnets.load_program(folder + "/base.pt")

    def answer(requests):
        with torch.inference_mode():
            for _ in requests:
                base(image.unsqueeze(0))

    answer([None])
    print(json.dumps({"ready": True}), flush=True)
    answer_lines(answer)


def main():
    rank, ranks, master, folder, settings = sys.argv[1:]
    rank, ranks, settings = int(rank), int(ranks), json.loads(settings)
    torch.set_num_threads(1)
    report = subnets.read_groups(folder)
    image = torch.rand(report["image"])
    if settings["backend"] == "base":
        serve_base(folder, image)
        return
    for name in settings.get("unset", []):
        os.environ.pop(name, None)
    if "GLOO_SOCKET_IFNAME" not in os.environ:
        os.environ["GLOO_SOCKET_IFNAME"] = next(name for _, name in socket.if_nameindex() if name != "lo")
    interfaces = [os.environ["GLOO_SOCKET_IFNAME"]] * settings.get("interfaces", 1)
    os.environ["GLOO_SOCKET_IFNAME"] = ",".join(interfaces)
    pattern.join(settings["backend"], rank, ranks, master)
    parts = serving.served(report, [])
    member = list(parts.values()), report["image"], serving.runner(folder, report, parts)
    front_class, subnet_class = CLASSES[settings.get("calls", "collectives")]
    if rank == 0:
        front = front_class(*member, waiting=1 << 16)

        def answer(requests):
            for request in [front.submit(image) for _ in requests]:
                request.answer.result(pattern.TIMEOUT_S)

        print(json.dumps({"ready": True}), flush=True)
        answer_lines(answer)
        front.stop()
    else:
        thread = threading.Thread(target=subnet_class(*member).serve)
        thread.start()
        print(json.dumps({"ready": True}), flush=True)
        answer_lines(None)
        thread.join()
    end_worker()


if __name__ == "__main__":
    main()
