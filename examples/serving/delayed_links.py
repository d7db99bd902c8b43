#!/usr/bin/env python3
"""Network namespaces whose links have a delay, without sch_netem, for the time of a command (root).

  python delayed_links.py --hosts 2 --delay 1 -- ip netns exec delayed-0 ping -c 3 10.78.0.2

Host N has the address 10.78.0.N+1 and the namespace delayed-N. Host HOSTS, whose link has no delay, is the place of an aggregator in
the switch; --aggregator starts one there, and sets NETSUM_AGGREGATOR. Packets pass through this process, in the order of their time.
"""

import argparse
import collections
import contextlib
import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import threading
import time

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 1, 0x1000
PREFIX, NETWORK = "delayed", "10.78.0"
READY_S, EXIT_S = 30, 10


def ip(*arguments):
    subprocess.run(["ip", *map(str, arguments)], check=True)


def link(resources, number):
    """The host's side of its link, as a file of IP packets."""
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    resources.callback(os.close, file)
    name, space = f"dl{number}", f"{PREFIX}-{number}"
    fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    ip("netns", "add", space)
    resources.callback(ip, "netns", "del", space)
    ip("link", "set", name, "netns", space)
    ip("-n", space, "address", "add", f"{NETWORK}.{number + 1}/24", "dev", name)
    ip("-n", space, "link", "set", name, "mtu", 1500, "txqueuelen", 10000, "up")
    ip("-n", space, "link", "set", "lo", "up")
    return file


def relay(files, delay_s, ended):
    """A packet leaves this process when its time on both its links is over. Links of one sum of delays keep their order."""
    queues = collections.defaultdict(collections.deque)  # by that sum: (time, receiver, packet)
    links = len(files) - 1
    while not ended.is_set():
        due = min((queue[0][0] for queue in queues.values() if queue), default=time.monotonic() + 0.1)
        readable, _, _ = select.select(files, [], [], max(0.0, due - time.monotonic()))
        for file in readable:
            with contextlib.suppress(BlockingIOError):
                for _ in range(64):
                    packet = os.read(file, 2048)
                    to = packet[19] - 1  # the last byte of an IPv4 destination
                    if packet[0] >> 4 == 4 and packet[16:19] == bytes([10, 78, 0]) and 0 <= to <= links:
                        slow = (files.index(file) < links) + (to < links)
                        queues[slow].append((time.monotonic() + slow * delay_s, files[to], packet))
        now = time.monotonic()
        for queue in queues.values():
            while queue and queue[0][0] <= now:
                _, to, packet = queue.popleft()
                with contextlib.suppress(BlockingIOError):  # a full link loses packets
                    os.write(to, packet)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=5)
    parser.add_argument("--delay", type=float, default=1.0, help="of each link and direction, in ms (1)")
    parser.add_argument("--aggregator", default="", metavar="COMMAND", help="the netsum command")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if os.geteuid() != 0 or not command:
        parser.error("needs root, and a command after --")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the namespaces go
    ended = threading.Event()
    with contextlib.ExitStack() as resources:
        files = [link(resources, number) for number in range(options.hosts + 1)]
        thread = threading.Thread(target=relay, args=(files, options.delay / 1e3, ended))
        thread.start()
        resources.callback(thread.join)
        resources.callback(ended.set)
        environment = dict(os.environ)
        if options.aggregator:
            address = f"{NETWORK}.{options.hosts + 1}:5151"
            daemon = subprocess.Popen(
                ["ip", "netns", "exec", f"{PREFIX}-{options.hosts}", options.aggregator, "aggregator"]
                + ["--listen", address, "--cores", "1"],
                stdout=subprocess.PIPE,
                text=True,
            )
            resources.callback(daemon.wait, EXIT_S)
            resources.callback(daemon.terminate)
            if not select.select([daemon.stdout], [], [], READY_S)[0] or "ready" not in daemon.stdout.readline():
                sys.exit("delayed_links: the aggregator did not start; it has printed why")
            environment.update(NETSUM_AGGREGATOR=address, NETSUM_SHARES="off")
        return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
