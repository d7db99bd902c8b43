"""Ethernet frames that no well-behaved host sends, for tests of what lets them pass or refuses them.

raw_frames.py send INTERFACE ADDRESS PORT KIND=COUNT ...   sends frames of these kinds to ADDRESS
raw_frames.py receive INTERFACE COUNT                      says `ready`, then prints COUNT frames of `send`'s in hex
"""

import struct
import sys

# Not from scapy.all, which takes a second longer to import.
from scapy.arch import get_if_addr, get_if_hwaddr
from scapy.layers.inet import IP, UDP, IPOption_NOP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrHopByHop
from scapy.layers.l2 import Dot1AD, Dot1Q, Ether, getmacbyip
from scapy.sendrecv import sendp, sniff

PATIENCE_S = 30
# In the IPv4 identification of every frame, or the flow label of IPv6: known again at the receiver.
MARK = 0x4E53


def hello(magic=0xA5, version_type=0x26, form=0, flags=0):
    """A HELLO, by default; of a job that nobody has."""
    return struct.pack("!BBBBHHHHIIIQ", magic, version_type, form, flags, 63, 1, 0, 0, 1, 0, 0, 0)


class Frames:
    """Makes frames from here to one UDP port."""

    def __init__(self, interface, to, port):
        self.ethernet = Ether(src=get_if_hwaddr(interface), dst=getmacbyip(to))
        self.ends = {"src": get_if_addr(interface), "dst": to}
        self.port = port

    def udp(self, datagram, **fields):
        return UDP(sport=40000, dport=self.port, chksum=0, **fields) / datagram

    def ip(self, payload, **fields):
        return IP(**self.ends, id=MARK, **fields) / payload

    def ipv6(self, payload):
        return IPv6(src="fe80::1", dst="fe80::2", fl=MARK) / payload

    def kinds(self):
        """{name: frame}. All but the fault is right."""
        good = self.udp(hello())
        plain = self.ip(good)
        right, length = IP(bytes(plain)), 8 + len(hello())
        packets = {
            "plain": plain,
            "vlan": Dot1Q(vlan=5) / plain,
            "provider_vlan": Dot1AD(vlan=5) / plain,
            "two_vlans": Dot1AD(vlan=5) / Dot1Q(vlan=6) / plain,
            "options": self.ip(good, options=[IPOption_NOP()] * 8),
            "first_fragment": self.ip(good, flags="MF"),
            "later_fragment": self.ip(good, frag=3),
            "ip_checksum": self.ip(good, chksum=right.chksum ^ 0x0100),
            "ip_too_long": self.ip(good, len=right.len + 8),
            "ip_too_short": self.ip(good, len=right.len - 8),
            "udp_too_long": self.ip(self.udp(hello(), len=length + 8)),
            "udp_too_short": self.ip(self.udp(hello(), len=length - 8)),
            # A trailer is no part of the datagram.
            "trailer": self.ip(self.udp(hello() + bytes(6), len=length), len=right.len),
            "no_header": self.ip(self.udp(hello()[:24])),
            "odd_payload": self.ip(self.udp(hello() + bytes(12))),
            "magic": self.ip(self.udp(hello(magic=0x5A))),
            "version": self.ip(self.udp(hello(version_type=0x16))),
            "type": self.ip(self.udp(hello(version_type=0x2F))),
            "flags": self.ip(self.udp(hello(flags=0x80))),
            "format": self.ip(self.udp(hello(form=0x14))),
            "tcp": self.ip(good, proto=6),
            "ipv6": self.ipv6(good),
            "ipv6_extension": self.ipv6(IPv6ExtHdrHopByHop() / good),
        }
        return {kind: self.ethernet / packet for kind, packet in packets.items()}


def is_marked(frame):
    return (IP in frame and frame[IP].id == MARK) or (IPv6 in frame and frame[IPv6].fl == MARK)


def send(interface, to, port, *wanted):
    frames = Frames(interface, to, int(port)).kinds()
    for kind, _, count in (each.partition("=") for each in wanted):
        sendp(frames[kind], iface=interface, count=int(count), verbose=False)
        print(kind, bytes(frames[kind]).hex())


def receive(interface, count):
    ready = lambda: print("ready", flush=True)
    show = lambda frame: print(bytes(frame).hex(), flush=True)
    sniff(iface=interface, count=int(count), lfilter=is_marked, prn=show, started_callback=ready, timeout=PATIENCE_S)


if __name__ == "__main__":
    {"send": send, "receive": receive}[sys.argv[1]](*sys.argv[2:])
