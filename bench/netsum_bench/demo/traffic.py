"""Counts what this process really sent over TCP, from the kernel's own books.

Gloo keeps no counters, but Linux does, for every socket: TCP_INFO has the payload bytes sent (what was sent
twice counts twice) and received. Each socket also names its two ends, so the counts of all workers together
say who sent what to whom.
"""

import os
import socket
import struct

# Offsets in struct tcp_info (linux/tcp.h): the structure only ever grows at its end.
_TOTAL_RETRANS = 100  # u32, segments
_BYTES_RECEIVED = 128  # u64
_BYTES_SENT = 200  # u64, since Linux 4.19
_NEEDED_BYTES = 208


def tcp_sockets():
    """Connected TCP sockets of this process: {(local, peer): {"sent", "received", "retransmitted"}}."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            # A duplicate, because a Python socket closes its descriptor when it goes away.
            with socket.socket(fileno=os.dup(int(name))) as sock:
                if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.type != socket.SOCK_STREAM:
                    continue
                ends = (_text(sock.getsockname()), _text(sock.getpeername()))
                info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:  # closed meanwhile, or not connected
            continue
        if len(info) >= _NEEDED_BYTES:
            (sent,) = struct.unpack_from("=Q", info, _BYTES_SENT)
            (received,) = struct.unpack_from("=Q", info, _BYTES_RECEIVED)
            (retransmitted,) = struct.unpack_from("=I", info, _TOTAL_RETRANS)
            found[ends] = {"sent": sent, "received": received, "retransmitted": retransmitted}
    return found


def difference(after, before):
    """What the sockets of `after` carried since `before`, as a list that JSON can hold."""
    none = {"sent": 0, "received": 0, "retransmitted": 0}
    changes = []
    for (local, peer), counts in sorted(after.items()):
        start = before.get((local, peer), none)
        change = {key: counts[key] - start[key] for key in counts}
        changes.append({"local": local, "peer": peer, **change})
    return changes


def _text(address):
    host = address[0].removeprefix("::ffff:")
    return f"[{host}]:{address[1]}" if ":" in host else f"{host}:{address[1]}"
