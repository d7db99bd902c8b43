"""Carries frames over the stretches of a lossy rack (`netsum rack up --loss`) in place of its XDP program, and loses,
repeats and reorders some of them: python3 bad_links.py SEED LOSS REPEAT REORDER PORT...

Run it in the switch's namespace (`netsum rack exec sw`). It prints "carries frames" when it does, and ends with a line of
counts at SIGTERM.
"""

import json
import random
import select
import signal
import socket
import subprocess
import sys
import time

ALL_PROTOCOLS = 3  # ETH_P_ALL
HOLD_S = 0.01  # a frame that is to be overtaken goes on after this time if none follows


def open_end(interface):
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    end.bind((interface, ALL_PROTOCOLS))
    end.setblocking(False)
    return end


class Way:
    """One direction of a link."""

    def __init__(self, receiver, sender, chance, probabilities, counts):
        self.receiver, self.sender, self.chance, self.counts = receiver, sender, chance, counts
        self.loss, self.repeat, self.reorder = probabilities
        self.held = None  # (frame, when it goes on)

    def send(self, frame):
        try:
            self.sender.send(frame)
        except BlockingIOError:
            self.counts["lost"] += 1

    def carry(self):
        try:
            frame, source = self.receiver.recvfrom(65536)
        except BlockingIOError:
            return
        if source[2] == socket.PACKET_OUTGOING:
            return
        self.counts["frames"] += 1
        if self.chance.random() < self.loss:
            self.counts["lost"] += 1
            return
        if self.held is None and self.chance.random() < self.reorder:
            self.held = (frame, time.monotonic() + HOLD_S)
            return
        self.send(frame)
        if self.chance.random() < self.repeat:
            self.counts["repeated"] += 1
            self.send(frame)
        if self.held is not None:
            self.counts["reordered"] += 1
            self.release()

    def release(self):
        self.send(self.held[0])
        self.held = None


def main():
    seed, ports = int(sys.argv[1]), sys.argv[5:]
    probabilities = [float(word) for word in sys.argv[2:5]]
    counts = {"seed": seed, "frames": 0, "lost": 0, "repeated": 0, "reordered": 0}
    chance = random.Random(seed)
    ways = {}
    for port in ports:
        for end in ("a", "b"):
            subprocess.run(["ip", "link", "set", "dev", f"{port}-{end}", "xdp", "off"], check=True, timeout=20)
        a, b = open_end(f"{port}-a"), open_end(f"{port}-b")
        ways[a] = Way(a, b, chance, probabilities, counts)
        ways[b] = Way(b, a, chance, probabilities, counts)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    print("carries frames", flush=True)
    try:
        while True:
            held = [way for way in ways.values() if way.held is not None]
            ready, _, _ = select.select(ways, [], [], HOLD_S if held else 1)
            for receiver in ready:
                ways[receiver].carry()
            now = time.monotonic()
            for way in held:
                if way.held is not None and way.held[1] <= now:
                    way.release()
    finally:
        print(json.dumps(counts), flush=True)


if __name__ == "__main__":
    main()
