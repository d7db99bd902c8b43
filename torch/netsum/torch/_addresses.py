"""The address by which the other ranks of a group can reach this one.

Every rank describes its host (`describe()`), and from the descriptions of all of them every rank computes the same addresses
(`choose()`).
"""

import ctypes
import ipaddress
import os
import socket

import torch.distributed as dist

LOOPBACK = "127.0.0.1"
_MOST_ADDRESSES = 64


def describe(store, told):
    """Returns what choose() needs to know of this rank, for JSON. `told`: the user's choice, or "".

    route       this host's address on the route to the host of the store, if the store has a host
    master      the address of that host, as this rank resolves its name
    name        what this host's name means, if that is an address of an interface
    told        as the argument, or an address of the first interface that GLOO_SOCKET_IFNAME names
    interfaces  [[name, address, length of its network's prefix], ...]
    """
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    interfaces = interface_addresses()
    master, route = _route(getattr(store, "host", None), getattr(store, "port", None))
    _, name = _route(socket.gethostname(), None) if not route else ("", "")
    named = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    return {
        "route": route,
        "master": master,
        "name": "" if is_loopback(name) else name,
        "told": told or next((address for interface, address, _ in interfaces if interface == named), ""),
        "interfaces": interfaces,
    }


def choose(hosts, rank):
    """Returns the address of a rank, of the descriptions of all ranks; None if no rule gives one."""
    mine = hosts[rank]
    if not is_loopback(mine["route"]):
        return mine["route"]
    elsewhere = [host for host in hosts if not _is_same(host, mine)]
    if not elsewhere:
        return mine["route"] or LOOPBACK
    if mine["told"]:
        return mine["told"]
    own = [address for _, address, _ in mine["interfaces"]]
    for host in elsewhere:  # this rank's host is the master's, under a name that means itself there
        if host["master"] in own:
            return host["master"]
    candidates = [network for network in map(_network, _of_lowest_rank(hosts)) if _is_common(network, hosts)]
    shared = [address for network in candidates for address in own if ipaddress.ip_address(address) in network]
    if mine["name"] in shared:
        return mine["name"]
    return (shared + [mine["name"]])[0] or None


def list_interfaces(host):
    """Returns "ib0 10.0.0.1, eth0 10.1.0.1", for messages."""
    return ", ".join(f"{name} {address}" for name, address, _ in host["interfaces"]) or "no interface with an address"


def is_loopback(host):
    host = host.strip("[]")
    return not host or host.startswith("127.") or host in ("::1", "localhost")


def _route(host, port):
    """Returns the address of `host`, and this machine's address on the route to it; ("", "") if there is none."""
    if not host:
        return "", ""
    try:
        found = socket.getaddrinfo(host, port or 1, type=socket.SOCK_DGRAM)
    except OSError:
        return "", ""
    for family, kind, _, _, target in found:
        try:
            with socket.socket(family, kind) as probe:
                probe.connect(target)  # chooses a route; sends nothing
                return target[0], probe.getsockname()[0]
        except OSError:
            continue
    return "", ""


def _is_same(host, other):
    # Addresses of IPv6 change while ranks start.
    return _sorted_ipv4(host) == _sorted_ipv4(other)


def _sorted_ipv4(host):
    return sorted(address for _, address, _ in host["interfaces"] if "." in address) or sorted(host["interfaces"])


def _of_lowest_rank(hosts):
    return [(address, prefix) for _, address, prefix in hosts[0]["interfaces"]]


def _network(address):
    return ipaddress.ip_network("/".join(map(str, address)), strict=False)


def _is_common(network, hosts):
    """Whether each host has an address of its own in the network. Those of container bridges are the same everywhere."""
    found = {}
    for host in hosts:
        there = [a for _, a, _ in host["interfaces"] if ipaddress.ip_address(a) in network]
        if not there or any(not _is_same(found.setdefault(a, host), host) for a in there):
            return False
    return True


class _Sockaddr(ctypes.Structure):
    _fields_ = [("family", ctypes.c_uint16), ("data", ctypes.c_ubyte * 26)]  # as long as sockaddr_in6


class _Ifaddrs(ctypes.Structure):
    pass


_Ifaddrs._fields_ = [
    ("next", ctypes.POINTER(_Ifaddrs)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.POINTER(_Sockaddr)),
    ("mask", ctypes.POINTER(_Sockaddr)),
]


def interface_addresses():
    """Returns [[interface, address, prefix length], ...] of interfaces that are up, IPv4 first. Without loopback and
    link-local addresses."""
    libc = ctypes.CDLL(None, use_errno=True)
    first = ctypes.POINTER(_Ifaddrs)()
    if libc.getifaddrs(ctypes.byref(first)) != 0:
        return []
    found = []
    entry = first
    while entry:
        one = entry.contents
        address = _address(one.address)
        is_up = one.flags & 1
        if address and is_up and not (address.is_loopback or address.is_link_local):
            mask = _address(one.mask)
            prefix = bin(int(mask)).count("1") if mask else address.max_prefixlen
            found.append([one.name.decode(errors="replace"), str(address), prefix])
        entry = one.next
    libc.freeifaddrs(first)
    return sorted(found, key=lambda each: ":" in each[1])[:_MOST_ADDRESSES]


def _address(pointer):
    if not pointer:
        return None
    family, data = pointer.contents.family, bytes(pointer.contents.data)
    if family == socket.AF_INET:
        return ipaddress.IPv4Address(data[2:6])
    return ipaddress.IPv6Address(data[6:22]) if family == socket.AF_INET6 else None
