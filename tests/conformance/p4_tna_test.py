#!/usr/bin/env python3
"""Replays vectors on the P4 program for Tofino, in the interpreter of this folder, and checks the traffic of a switch, passes that
are lost, and the limits of the chip.
"""

import random
import struct
import sys

import p4_interpreter
import p4_tna_machine
import p4_vectors
from p4_vectors import ROOT, frame_of

PATH = ROOT / "aggregator/p4/tna/netsum.p4"
PROGRAM = p4_interpreter.load(PATH, ROOT)
RECIRCULATION_PORT = 68
# NETSUM_FORMAT_*: the bytes of a lane, and the passes that a group of 128 bytes takes on its way in, and out.
SUM_I8, SUM_I16, SUM_I32, SUM_I64, MAX_U8, MAX_U16, MAX_U32 = 0x13, 0x12, 0x14, 0x15, 0x21, 0x28, 0x26
FORMATS = {
    SUM_I8: (1, 1, 2),
    SUM_I16: (2, 1, 2),
    SUM_I32: (4, 1, 1),
    MAX_U8: (1, 2, 4),
    MAX_U16: (2, 1, 2),
    MAX_U32: (4, 1, 1),
}
OVERFLOW = 0x02
RESULT, STATUS, ERROR = 0x22, 0x24, 0x25
PHV_BITS = 4096  # of Tofino 1: 64 containers of 32 bits, 96 of 16, 64 of 8
MAP_RAMS, RAM_BITS = 48, 128 * 1024  # of a stage, which bound its registers


class Switch(p4_vectors.Switch):
    control_port = 192
    most_stages = 0  # that any packet has taken

    def __init__(self):
        super().__init__(p4_tna_machine.TnaMachine(PROGRAM, RECIRCULATION_PORT))

    def write(self, register, index, owner, value):
        register.values[index] = (p4_interpreter.Bits(owner, 32), p4_interpreter.Bits(value, 32))

    def feed(self, peer, datagram, lost=None):
        replies = super().feed(peer, datagram, lost=lost)
        Switch.most_stages = max(Switch.most_stages, self.machine.stages)
        return replies

    def datagram_to(self, peer, frame):
        assert p4_vectors.checksum(frame[14:34]) == 0, frame[14:34].hex()
        return super().datagram_to(peer, frame)


def prepare(vector):
    """The vector if its formats are known and no job has a parent, without the OVERFLOW that lanes alone cause."""
    if p4_vectors.golden(vector) is None or any("parent" in job for job in vector["jobs"]):
        return None
    packets = p4_vectors.contributions(vector)
    if any(packet[2] >> 4 in (1, 2, 5, 6) and packet[2] not in FORMATS for packet in packets):
        return None
    if not any(packet[3] & OVERFLOW for packet in packets):
        for reply in (reply for step in vector["steps"] for reply in step["replies"]):
            packet = bytearray.fromhex(reply["packet"])
            if packet[1] == RESULT:
                packet[3] &= ~OVERFLOW
            reply["packet"] = packet.hex()
    return vector


def packet_of(kind, member, payload, round_number=1, fmt=0, flags=0):
    head = struct.pack(">BBBBHHHH", 0xA5, kind, fmt, flags, 3, 7, 0, member)
    return head + struct.pack(">IIIQ", round_number, 5, 0x5EED, 0) + payload


def contribution(member, payload, fmt=SUM_I32, flags=0, round_number=1):
    return packet_of(0x21, member, payload, round_number, fmt, flags)


def job_of(members, payload_bytes):
    """A switch with a job whose members have said HELLO."""
    switch = Switch()
    job = {"job": 3, "epoch": 7, "members": members, "data_slots": 1, "scale_slots": 0}
    switch.install({**job, "payload_bytes": payload_bytes})
    for member in range(members):
        assert len(switch.feed(member, packet_of(0x26, member, bytes(32), 0))) == 1
    return switch


def expected(fmt, payloads):
    """What the lanes of all payloads come to."""
    lane, *_ = FORMATS[fmt]
    rows = [[int.from_bytes(p[at : at + lane], "little") for at in range(0, len(p), lane)] for p in payloads]
    combine = max if fmt >> 4 == 2 else lambda column: sum(column) % (1 << 8 * lane)
    return b"".join(combine(column).to_bytes(lane, "little") for column in zip(*rows, strict=True))


def check_formats(make_switch):
    """Every format, at lengths around those of a pass, with the largest number of members for one of them."""
    rng = random.Random(7)
    cases = [(fmt, 3, size) for fmt in FORMATS for size in (8, 128, 136, 1024)]
    for fmt, members, size in [*cases, (SUM_I8, 64, 16), (MAX_U8, 64, 16)]:
        switch = job_of(members, 1024)
        for round_number in (1, 2, 3) if size < 1024 else (1,):
            payloads = [rng.randbytes(size) for _ in range(members)]
            for member, payload in enumerate(payloads):
                replies = switch.feed(member, contribution(member, payload, fmt, round_number=round_number))
                last = member == members - 1
                assert bool(replies) == last
                _, passes_in, passes_out = FORMATS[fmt]
                passes = -(-size // 128) * (passes_in + last * passes_out)
                assert switch.machine.recirculations == passes, (fmt, size, switch.machine.recirculations)
            assert [to for to, _ in replies] == list(range(members))
            for _, datagram in replies:
                assert (datagram[1], datagram[3]) == (RESULT, 0)
                assert datagram[32:] == expected(fmt, payloads), (fmt, members, size)
    unknown = job_of(1, 1024)
    assert not unknown.feed(0, contribution(0, bytes(32), SUM_I64))
    assert unknown.drops() == {"bad_format": 1}


def check_overflow_of_others(make_switch):
    """A contribution that says OVERFLOW marks the result, of that round alone."""
    for flagged in (0, 1, 2):
        switch = job_of(2, 256)
        for round_number, wanted in ((1, OVERFLOW if flagged < 2 else 0), (2, 0), (3, 0)):
            for member in (0, 1):
                flags = OVERFLOW if round_number == 1 and member == flagged else 0
                packet = contribution(member, bytes(256), flags=flags, round_number=round_number)
                replies = switch.feed(member, packet)
            assert [datagram[3] for _, datagram in replies] == [wanted, wanted]


def check_lost_passes(make_switch):
    """A pass that the traffic manager drops never leads to a wrong sum, and a lost harvest is made up for."""
    payloads = [bytes([member + 1] * 300 + [0] * 4) for member in range(2)]
    for fmt in (SUM_I32, SUM_I16, MAX_U8):
        right = expected(fmt, payloads)
        for who in (0, 1):
            ended, lost, passes = 0, 0, 1
            while lost < passes:
                lost += 1
                switch = job_of(2, 1024)
                for member in (0, 1):
                    packet = contribution(member, payloads[member], fmt)
                    replies = switch.feed(member, packet, lost=lost if member == who else None)
                    if member == who:  # as far as it came
                        passes = max(passes, switch.machine.recirculations + 1)
                if not replies:
                    ((_, status),) = switch.feed(1, packet_of(0x23, 1, bytes(8)))
                    replies = switch.feed(1, contribution(1, payloads[1], fmt))
                    # Asked for again and answered, if all passes of contributions were whole; otherwise never.
                    assert status[1] == STATUS and bool(replies) == (status[3] == 4), (fmt, who, lost)
                ended += bool(replies)
                assert all(datagram[32:] == right for _, datagram in replies), (fmt, who, lost)
            assert lost > 2 and 0 < ended < lost, "some passes are lost for good, and some are not"


def check_mismatch(make_switch):
    """ERROR instead of a result, at lengths that take several passes to remove."""
    switch = job_of(2, 1024)
    assert not switch.feed(0, contribution(0, bytes(1024)))
    replies = switch.feed(1, contribution(1, bytes(1000)))
    assert [(to, datagram[1], datagram[32:]) for to, datagram in replies] == [
        (to, ERROR, struct.pack(">HHI", 1, 1, 0)) for to in (0, 1)
    ]
    ((to, again),) = switch.feed(0, packet_of(0x23, 0, bytes(8)))
    assert (to, again[1], again[32:]) == (0, ERROR, struct.pack(">HHI", 1, 1, 0))
    # The next job has these slots without the failure.
    switch.next_slot = 0
    switch.install({"job": 4, "epoch": 9, "members": 2, "data_slots": 1, "scale_slots": 0, "payload_bytes": 1024})

    def of_next_job(packet):
        return packet[:4] + struct.pack(">HH", 4, 9) + packet[8:]

    for member in (0, 1):
        assert len(switch.feed(member, of_next_job(packet_of(0x26, member, bytes(32), 0)))) == 1
    for member in (0, 1):
        replies = switch.feed(member, of_next_job(contribution(member, bytes([7] * 8))))
    assert [(datagram[1], datagram[32:]) for _, datagram in replies] == [(RESULT, bytes([14] * 8))] * 2


def check_lengths(make_switch):
    """Lengths of IP and UDP that contradict each other are refused, and frames that end before their headers say so."""
    good = frame_of(0, bytes.fromhex("a526000000030007") + bytes(32))
    switch = Switch()
    assert not switch.machine.receive(1, good[:38] + b"\x00\x38" + good[40:])
    assert switch.drops() == {"bad_length": 1}
    switch = job_of(1, 256)
    short = frame_of(0, contribution(0, bytes(256)))[:-100]
    assert not switch.machine.receive(1, short)
    assert switch.machine.counters["events"][39] == 1, "LOST_PASS: Tofino's ingress does not know a frame's length"
    switch = job_of(1, 256)
    damaged = bytearray(frame_of(0, contribution(0, bytes(8))))
    damaged[24] ^= 1
    assert not switch.machine.receive(1, bytes(damaged)), "the checksum of the IPv4 header is wrong"


def check_limits(make_switch):
    """What the machine does not refuse by itself: header bits and memory."""
    machine = Switch().machine

    def bits(kind):
        total = 0
        for field, _, elements in PROGRAM.types[kind][1]:
            total += field[1] if field[0] == "bit" else bits(field[1]) * max(1, elements)
        return total

    def locals_of(instance):
        own = sum(kind[1] for _, kind, _, _ in instance.control.variables if kind[0] == "bit")
        return own + sum(locals_of(p) for p in instance.parts.values() if isinstance(p, type(instance)))

    used = bits("headers_t") + bits("metadata_t") + locals_of(machine.instances["NetsumIngress"])
    assert used <= PHV_BITS, f"{used} bits of headers and metadata"
    for stage, registers in machine.by_stage.items():
        rams = sum(-(-register.bits // RAM_BITS) + 1 for register in registers)  # and one to write while reading
        assert rams <= MAP_RAMS, f"stage {stage}: {rams} RAMs of registers"
    assert 8 < Switch.most_stages <= p4_tna_machine.STAGES, Switch.most_stages


def check_machine(make_switch):
    """The machine refuses what a chip cannot do: each change of the program breaks one of its rules."""
    text = p4_interpreter.preprocessed(PATH, ROOT)
    # The change, and why it is refused.
    wrong = [
        ("@stage(5) Register<arrived_t", "@stage(0) Register<arrived_t", "needs what is there in stage"),
        ("@stage(10) Word() word_31", "@stage(9) Word() word_31", "more than 4 registers"),
        ("slot.value = slot.value + 1;", "slot.value = slot.value + h.netsum.round;", "an action with"),
        ("value.low = value.low + word.bits;", "value.low = value.low * word.bits;", "* in an action"),
        ("bit<32> low;\n  bit<32> high;\n}", "bit<64> low;\n  bit<64> high;\n}", "values of"),
        ("m.is_over = 1;", "m.is_over = 1; m.ahead = read_over.execute(m.slot_index);", "second access"),
        ("m.ahead = h.netsum.round - current_round;", "m.ahead = h.netsum.round * current_round;", "no * on a switch"),
    ]
    for old, new, reason in wrong:
        assert old in text, old
        assert reason in refusal(text.replace(old, new)), f"not refused for '{reason}': {new}"


def refusal(text):
    """Why the machine refuses the program, or a contribution to it; empty: it does not."""
    try:
        run_once(p4_tna_machine.TnaMachine(p4_interpreter.Program(text), RECIRCULATION_PORT))
    except p4_interpreter.P4Error as error:
        return str(error)
    return ""


def run_once(machine):
    switch = p4_vectors.Switch(machine)
    switch.control_port = Switch.control_port
    job = {"job": 3, "epoch": 7, "members": 1, "data_slots": 1, "scale_slots": 0, "payload_bytes": 256}
    switch.install(job)
    switch.feed(0, packet_of(0x26, 0, bytes(32), 0))
    for _ in range(2):
        switch.feed(0, contribution(0, bytes(256)))


def check_tofino_2(make_switch):
    """The text for Tofino 2 differs in what it includes alone."""
    other = p4_interpreter.preprocessed(PATH, ROOT, ["__TARGET_TOFINO__=2"])
    assert other == p4_interpreter.preprocessed(PATH, ROOT)


CHECKS = [
    p4_vectors.check_other_traffic,
    p4_vectors.check_packet_out,
    p4_vectors.check_addresses,
    check_lengths,
    check_formats,
    check_overflow_of_others,
    check_lost_passes,
    check_mismatch,
    check_machine,
    check_tofino_2,
    check_limits,  # last: the others have used the stages
]

if __name__ == "__main__":
    sys.exit(p4_vectors.main(__doc__, Switch, prepare, 20, CHECKS, ["tofino"]))
