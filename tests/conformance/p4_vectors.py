"""What the tests of both P4 programs share: packets as whole Ethernet frames, the tables of a control plane, golden and random
vectors, and the other traffic of a switch.

The programs neither make nor verify tags: they are left out of the comparison, and vectors about them do not apply. Cookies
are verified.
"""

import argparse
import json
import struct
import subprocess
import tempfile
from pathlib import Path

import p4_interpreter

ROOT = Path(__file__).resolve().parents[2]
OWN_IP, OWN_MAC = 0x0A0000FE, 0x020000000001
UDP_PORT = 5152
FIRST_GROUP = 100
DROPS = [
    *("too_short", "bad_magic", "bad_version", "bad_type", "bad_flags", "bad_length", "bad_format", "unknown_job"),
    *("stale_epoch", "bad_member", "bad_slot", "bad_check", "stale_round", "future_round", "duplicate", "unknown_peer"),
]  # from 1
NO_LANES_OR_BRIEF = 0x30
CONTRIBUTION = 0x21
HELLO, WELCOME = 6, 7


def checksum(header):
    total = sum(struct.unpack(f">{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def mac_of(peer):
    return 0x020000000100 + peer


def frame_of(peer, datagram, to_ip=OWN_IP):
    ip = struct.pack(">BBHHHBBHII", 0x45, 0, 28 + len(datagram), 0, 0, 64, 17, 0, 0x0A000100 + peer, to_ip)
    ip = ip[:10] + struct.pack(">H", checksum(ip)) + ip[12:]
    ethernet = OWN_MAC.to_bytes(6, "big") + mac_of(peer).to_bytes(6, "big") + b"\x08\x00"
    return ethernet + ip + struct.pack(">HHHH", 7000 + peer, UDP_PORT, 8 + len(datagram), 0) + datagram


class Switch:
    """A program, with the tables that a control plane would fill."""

    control_port = 0

    def __init__(self, machine):
        self.machine = machine
        self.tables = self.machine.tables
        for table in self.tables.values():
            table.entries.clear()
        self.tables["own_addresses"].entries[(OWN_IP, UDP_PORT)] = ("NoAction", [])
        self.next_slot = 0
        self.first_slots, self.epochs = {}, {}  # by job
        self.parents = {}  # by job, with the cookie of its job

    def install(self, job):
        slots = job["data_slots"] + job["scale_slots"]
        members = job["members"]
        group = FIRST_GROUP + job["job"]
        self.first_slots[job["job"]] = self.next_slot
        self.epochs[job["job"]] = job["epoch"]
        everybody = (1 << members) - 1
        entry = [job["epoch"], members, slots, job["payload_bytes"], self.next_slot, everybody, group]
        entry.append(int(job.get("cookie", "0"), 16))
        self.tables["jobs"].entries[(job["job"],)] = ("is_job", entry)
        self.machine.groups[group] = []
        self.next_slot += slots
        if "parent" in job:
            self.set_parent(job["job"], job["payload_bytes"], job["parent"])

    def set_parent(self, job, payload_bytes, parent):
        peer, cookie = parent["at"], int(parent.get("cookie", "0"), 16)
        self.parents[job] = parent | {"cookie": cookie, "payload_bytes": payload_bytes}
        key = (0x0A000100 + peer, 7000 + peer, parent["job"])
        self.tables["parents"].entries[key] = ("is_parent", [job, parent["epoch"], cookie])
        self.tables["uplinks"].entries[(job,)] = ("has_parent", [0, 1])

    def hello_up(self, job, hello):
        """To the parent, which is to answer first."""
        parent = self.parents[job]
        head = hello[:3] + bytes(1) + struct.pack(">HH", parent["job"], parent["epoch"])
        head += hello[8:10] + struct.pack(">H", parent["member"]) + hello[12:32]
        return [(parent["at"], head + bytes(len(hello) - 32))]

    def parent_says(self, job, datagram):
        """A WELCOME is as long as the HELLO: one of full length tells that the path takes such packets."""
        parent = self.parents[job]
        if len(datagram) - 32 != parent["payload_bytes"]:
            return
        peer = parent["at"]
        self.tables["uplinks"].entries[(job,)] = ("has_parent", [peer + 1, 0])
        place = [mac_of(peer), 0x0A000100 + peer, 7000 + peer]
        key = [parent["job"], parent["epoch"], parent["member"], parent["cookie"]]
        self.tables["parent_addresses"].entries[(job,)] = ("send_up", place + key)

    def start_at(self, start):
        owner = start["job"] << 16 | self.epochs[start["job"]]
        for name in ("over", "current"):
            for register in self.machine.registers[name]:
                self.write(register, self.first_slots[start["job"]] + start["slot"], owner, start["round"])

    def write(self, register, index, owner, value):
        """Into a register whose values belong to an epoch of a job."""
        raise NotImplementedError

    def meet(self, peer, datagram):
        """A HELLO that the switch has sent to the control plane: the member is there from now on."""
        job, member = job_of(datagram), struct.unpack(">H", datagram[10:12])[0]
        if (job, member) in self.tables["members"].entries:
            return
        ip, udp_port, port = 0x0A000100 + peer, 7000 + peer, peer + 1
        self.tables["members"].entries[(job, member)] = ("is_member", [ip, udp_port, port, 1 << member])
        self.tables["addresses"].entries[(job, member)] = ("send_to", [mac_of(peer), ip, udp_port])
        self.machine.groups[FIRST_GROUP + job].append((member, port))

    def feed(self, peer, datagram, **options):
        """Returns [(peer, datagram)]. `options`: those of the machine's receive()."""
        sent = self.machine.receive(peer + 1, frame_of(peer, datagram), **options)
        if [port for port, _ in sent] == [self.control_port]:
            frame = struct.pack(">H", peer + 1) + frame_of(peer, datagram)
            if datagram[1] & 15 == WELCOME:
                job = struct.unpack(">H", sent[0][1][48:50])[0]
                self.parent_says(job, datagram)
                return []
            assert sent[0][1] == frame, "the control plane gets the frame as it came, behind the number of its port"
            self.meet(peer, datagram)
            job = job_of(datagram)
            waits = job in self.parents and self.tables["uplinks"].entries[(job,)][1][1] == 1
            return self.hello_up(job, datagram) if waits else self.feed(peer, datagram)
        return [(port - 1, self.datagram_to(port - 1, frame)) for port, frame in sent]

    def datagram_to(self, peer, frame):
        ethernet, ip, udp, datagram = frame[:14], frame[14:34], frame[34:42], frame[42:]
        assert ethernet == mac_of(peer).to_bytes(6, "big") + OWN_MAC.to_bytes(6, "big") + b"\x08\x00", ethernet.hex()
        length, source, to = struct.unpack(">H", ip[2:4])[0], *struct.unpack(">II", ip[12:20])
        assert (length, source, to) == (28 + len(datagram), OWN_IP, 0x0A000100 + peer), ip.hex()
        assert struct.unpack(">HHHH", udp) == (UDP_PORT, 7000 + peer, 8 + len(datagram), 0), udp.hex()
        return datagram

    def drops(self):
        counters = self.machine.counters["events"]
        return {name: counters[i + 1] for i, name in enumerate(DROPS) if counters[i + 1]}


def comparable(datagram, cookies):
    """Without its tag: all have one but those of jobs with cookies, and HELLOs, also of these jobs."""
    if job_of(datagram) in cookies and datagram[1] & 15 != HELLO:
        return datagram
    return datagram[:24] + bytes(8) + datagram[32:]


def job_of(datagram):
    return struct.unpack(">H", datagram[4:6])[0]


def shown(replies):
    return [(to, datagram.hex()) for to, datagram in replies]


def contributions(vector):
    packets = [bytes.fromhex(step["packet"]) for step in vector["steps"]]
    return [packet for packet in packets if packet[1:2] == bytes([CONTRIBUTION]) and len(packet) >= 4]


def golden(vector):
    """The vector if it applies to both P4 programs, as far as formats allow; otherwise None."""
    about_tags = "bad_check" in vector["drops"] and vector["name"] != "cookies"
    if about_tags or vector.get("lengthens") or vector["name"].startswith(("no_lanes", "brief")):
        return None
    if any(job.get("sums_values") or job.get("adds_floats") for job in vector["jobs"]):
        return None
    return None if any(packet[3] & NO_LANES_OR_BRIEF for packet in contributions(vector)) else vector


def replay(make_switch, vector):
    """Raises AssertionError at the first difference."""
    switch = make_switch()
    for job in vector["jobs"]:
        switch.install(job)
    cookies = {job["job"] for job in vector["jobs"] if "cookie" in job}
    cookies |= {job["parent"]["job"] for job in vector["jobs"] if "cookie" in job.get("parent", ())}
    for start in vector["start"]:
        switch.start_at(start)
    for number, step in enumerate(vector["steps"]):
        wanted = [(to, bytes.fromhex(reply["packet"])) for reply in step["replies"] for to in reply["to"]]
        wanted = [(to, comparable(packet, cookies)) for to, packet in wanted]
        got = switch.feed(step["from"], bytes.fromhex(step["packet"]))
        got = [(to, comparable(packet, cookies)) for to, packet in got]
        assert sorted(got) == sorted(wanted), f"step {number}, {step['what']}:\n{shown(wanted)}, not\n{shown(got)}"
    assert switch.drops() == vector["drops"], f"drops {switch.drops()}, not {vector['drops']}"


def check_other_traffic(make_switch):
    """What is not for the aggregator is switched."""
    switch = make_switch()
    machine = switch.machine
    machine.groups[1] = [(0, port) for port in (1, 2, 3)]
    transit = frame_of(0, bytes.fromhex("a521140000030007") + bytes(400), to_ip=OWN_IP + 1)
    others = [transit, transit[:23] + b"\x06" + transit[24:], transit[:12] + b"\x86\xdd" + transit[14:], bytes(60)]
    others += [transit[:36] + b"\x00\x35" + transit[38:], transit[:14] + b"\x46" + transit[15:]]
    for frame in others:
        assert machine.receive(2, frame) == [(1, frame), (3, frame)], "flooded, except to where it came from"
    switch.tables["macs"].entries[(OWN_MAC,)] = ("to_port", [3])
    for frame in others[:-3]:
        assert machine.receive(2, frame) == [(3, frame)]

    def arp(operation, from_mac, from_ip, to_mac, to_ip):
        addresses = [from_mac.to_bytes(6, "big"), struct.pack(">I", from_ip)]
        addresses += [to_mac.to_bytes(6, "big"), struct.pack(">I", to_ip)]
        return bytes.fromhex("00010800060400") + bytes([operation]) + b"".join(addresses)

    broadcast, host = (1 << 48) - 1, mac_of(1)
    request = broadcast.to_bytes(6, "big") + host.to_bytes(6, "big") + b"\x08\x06" + arp(1, host, 0x0A000101, 0, OWN_IP)
    assert machine.receive(2, request) == [(1, request), (3, request)]
    switch.tables["own_arp"].entries[(0x0001080006040001, OWN_IP)] = ("answer", [OWN_MAC])
    reply = host.to_bytes(6, "big") + OWN_MAC.to_bytes(6, "big") + b"\x08\x06"
    assert machine.receive(2, request) == [(2, reply + arp(2, OWN_MAC, OWN_IP, host, 0x0A000101))]


def check_packet_out(make_switch):
    """The control plane sends frames by a port of its choice, whatever they are."""
    switch = make_switch()
    for frame in (bytes(60), frame_of(0, bytes(32))):
        assert switch.machine.receive(switch.control_port, struct.pack(">H", 3) + frame) == [(3, frame)]


def check_addresses(make_switch):
    """A member is known by address, UDP port and switch port: packets that differ in one of them are refused."""
    hello = bytes.fromhex("a526000000030007") + bytes(32)
    switch = make_switch()
    job = {"job": 3, "epoch": 7, "members": 1, "data_slots": 1, "scale_slots": 0, "payload_bytes": 32}
    switch.install(job)
    assert len(switch.feed(0, hello)) == 1
    good = frame_of(0, hello)
    other_ip = frame_of(1, hello)[:34] + good[34:]
    other_udp_port = good[:34] + struct.pack(">H", 7001) + good[36:]
    for port, frame in ((1, other_ip), (1, other_udp_port), (2, good)):
        assert not switch.machine.receive(port, frame)
    assert switch.drops() == {"unknown_peer": 3}, switch.drops()
    assert len(switch.machine.receive(1, good)) == 1


def replay_all(make_switch, folder, prepare=lambda vector: vector):
    """Returns how many passed, failed and did not apply: `prepare` has returned None."""
    passed = failed = skipped = 0
    for path in sorted(folder.glob("*.json")):
        vector = prepare(json.loads(path.read_text()))
        if vector is None:
            skipped += 1
            continue
        try:
            replay(make_switch, vector)
            passed += 1
        except (AssertionError, p4_interpreter.P4Error) as error:
            failed += 1
            print(f"FAILED {path.name}: {error}")
    print(f"{folder}: {passed} vectors passed, {failed} failed, {skipped} do not apply")
    return passed, failed, skipped


def main(description, make_switch, prepare, least, checks, tool_arguments=()):
    """Replays the golden vectors that apply, `least` or more, and random ones of a tool, and runs the checks."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--random", metavar="TOOL", help="netsum_p4_random_vectors: also random packets, as the model replies"
    )
    parser.add_argument("--count", type=int, default=8, help="of the random vectors")
    arguments = parser.parse_args()
    passed, failed, _ = replay_all(make_switch, ROOT / "wire/vectors", prepare)
    good = passed >= least and not failed
    for check in checks:
        check(make_switch)
    if arguments.random:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([arguments.random, folder, str(arguments.count), *tool_arguments], check=True)
            good &= replay_all(make_switch, Path(folder)) == (arguments.count, 0, 0)
    return 0 if good else 1
