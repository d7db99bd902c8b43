"""Ethernet frames that no well-behaved host sends, for tests of what lets them pass or refuses them.

raw_frames.py send INTERFACE ADDRESS PORT KIND=COUNT ...   sends frames of these kinds to ADDRESS
raw_frames.py receive INTERFACE COUNT                      says `ready`, then prints COUNT frames of `send`'s in hex
"""

import pathlib
import socket
import struct
import sys
import time

PATIENCE_S = 30
VLAN_8021Q, VLAN_8021AD, IPV4, IPV6 = 0x8100, 0x88A8, 0x0800, 0x86DD
# In the IPv4 identification of every frame, or the flow label of IPv6: known again at the receiver.
MARK = 0x4E53


def netsum_header(magic=0xA5, version_type=0x26, form=0, flags=0):
    """A HELLO, by default; of a job that nobody has."""
    return struct.pack("!BBBBHHHHIIIQ", magic, version_type, form, flags, 63, 1, 0, 0, 1, 0, 0, 0)


def checksum(header):
    total = sum(struct.unpack(f"!{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


class Frames:
    """Makes frames from here to one UDP port."""

    def __init__(self, source, source_mac, to, to_mac, port):
        self.source, self.to, self.port = socket.inet_aton(source), socket.inet_aton(to), port
        self.macs = to_mac + source_mac

    def udp(self, datagram, length_change=0):
        return struct.pack("!HHHH", 40000, self.port, 8 + len(datagram) + length_change, 0) + datagram

    def ip(self, payload, options=b"", fragment=0, length_change=0, checksum_change=0, protocol=17):
        words = 5 + len(options) // 4
        length = 4 * words + len(payload) + length_change
        start = struct.pack("!BBHHHBB", 0x40 | words, 0, length, MARK, fragment, 64, protocol)
        right = checksum(start + b"\0\0" + self.source + self.to + options)
        return start + struct.pack("!H", right ^ checksum_change) + self.source + self.to + options + payload

    def ethernet(self, payload, *types):
        """`types`: tags, if any, each followed by its 16 bits; the payload's in the end."""
        return self.macs + struct.pack(f"!{len(types)}H", *types) + payload

    def ipv6(self, payload, first_header):
        start = struct.pack("!IHBB", 0x60000000 | MARK, len(payload), first_header, 64)
        return start + bytes.fromhex("fe80" + "00" * 13 + "01" + "fe80" + "00" * 13 + "02") + payload

    def kinds(self):
        """{name: frame}. All but the fault is right."""
        good = self.udp(netsum_header())
        plain = self.ip(good)
        extension = struct.pack("!BB6x", 17, 0)  # empty hop-by-hop options before UDP
        return {
            "plain": self.ethernet(plain, IPV4),
            "vlan": self.ethernet(plain, VLAN_8021Q, 5, IPV4),
            "provider_vlan": self.ethernet(plain, VLAN_8021AD, 5, IPV4),
            "two_vlans": self.ethernet(plain, VLAN_8021AD, 5, VLAN_8021Q, 6, IPV4),
            "options": self.ethernet(self.ip(good, options=b"\1" * 8), IPV4),
            "first_fragment": self.ethernet(self.ip(good, fragment=0x2000), IPV4),
            "later_fragment": self.ethernet(self.ip(good, fragment=0x0003), IPV4),
            "ip_checksum": self.ethernet(self.ip(good, checksum_change=0x0100), IPV4),
            "ip_too_long": self.ethernet(self.ip(good, length_change=8), IPV4),
            "ip_too_short": self.ethernet(self.ip(good, length_change=-8), IPV4),
            "udp_too_long": self.ethernet(self.ip(self.udp(netsum_header(), 8)), IPV4),
            "udp_too_short": self.ethernet(self.ip(self.udp(netsum_header(), -8)), IPV4),
            "trailer": self.ethernet(plain + bytes(6), IPV4),
            "no_header": self.ethernet(self.ip(self.udp(netsum_header()[:24])), IPV4),
            "odd_payload": self.ethernet(self.ip(self.udp(netsum_header() + bytes(12))), IPV4),
            "magic": self.ethernet(self.ip(self.udp(netsum_header(magic=0x5A))), IPV4),
            "version": self.ethernet(self.ip(self.udp(netsum_header(version_type=0x16))), IPV4),
            "type": self.ethernet(self.ip(self.udp(netsum_header(version_type=0x2F))), IPV4),
            "flags": self.ethernet(self.ip(self.udp(netsum_header(flags=0x80))), IPV4),
            "format": self.ethernet(self.ip(self.udp(netsum_header(form=0x14))), IPV4),
            "tcp": self.ethernet(self.ip(good, protocol=6), IPV4),
            "ipv6": self.ethernet(self.ipv6(good, 17), IPV6),
            "ipv6_extension": self.ethernet(self.ipv6(extension + good, 0), IPV6),
        }


def mac_of(address):
    """Asks for the neighbour's Ethernet address by sending it something."""
    deadline = time.monotonic() + PATIENCE_S
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        while time.monotonic() < deadline:
            probe.sendto(b"", (address, 9))
            for line in pathlib.Path("/proc/self/net/arp").read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split()
                if fields[0] == address and int(fields[2], 16) & 2:
                    return bytes.fromhex(fields[3].replace(":", ""))
            time.sleep(0.02)
        raise SystemExit(f"{address} does not answer ARP")


def own_address(to):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((to, 9))
        return probe.getsockname()[0]


def send(interface, to, port, *wanted):
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as out:
        out.bind((interface, 0))
        frames = Frames(own_address(to), out.getsockname()[4], to, mac_of(to), int(port)).kinds()
        for kind, _, count in (each.partition("=") for each in wanted):
            for _ in range(int(count)):
                out.send(frames[kind])
            print(kind, frames[kind].hex())


def with_tag(frame, control):
    """The kernel takes the outermost tag out of a frame that it hands up, and tells it beside the frame."""
    for level, kind, data in control:
        if (level, kind) == (263, 8):  # SOL_PACKET, PACKET_AUXDATA
            status, *_, tag, tag_protocol = struct.unpack("=IIIHHHH", data)
            if status & 0x10:  # TP_STATUS_VLAN_VALID
                return frame[:12] + struct.pack("!HH", tag_protocol, tag) + frame[12:]
    return frame


def receive(interface, count):
    all_protocols = 3
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(all_protocols)) as into:
        into.bind((interface, all_protocols))
        into.setsockopt(263, 8, 1)
        into.settimeout(PATIENCE_S)
        print("ready", flush=True)
        left = int(count)
        while left:
            frame, control, _, _ = into.recvmsg(4096, 64)
            if struct.pack("!H", MARK) in frame[14:30]:
                print(with_tag(frame, control).hex(), flush=True)
                left -= 1


if __name__ == "__main__":
    {"send": send, "receive": receive}[sys.argv[1]](*sys.argv[2:])
