#!/usr/bin/env python3
"""Replays vectors on the P4 program for v1model, in the interpreter of this folder, and checks the traffic of a switch."""

import struct
import sys

import p4_interpreter
import p4_machine
import p4_vectors
from p4_vectors import OWN_IP, OWN_MAC, ROOT, frame_of, mac_of

PROGRAM = p4_interpreter.load(ROOT / "aggregator/p4/v1model/netsum.p4", ROOT)


class Switch(p4_vectors.Switch):
    control_port = 510

    def __init__(self):
        super().__init__(p4_machine.Machine(PROGRAM))

    def write(self, register, index, owner, value):
        register.values[index] = owner << 32 | value


def check_lengths(make_switch):
    """Frames whose lengths contradict each other are refused."""
    good = frame_of(0, bytes.fromhex("a526000000030007") + bytes(32))
    wrong = [good + bytes(8), good[:-8], good[:38] + b"\x00\x38" + good[40:]]
    for frame in wrong:
        switch = make_switch()
        assert not switch.machine.receive(1, frame)
        assert switch.drops() == {"bad_length": 1}, switch.drops()
    switch = make_switch()
    switch.machine.receive(1, good)
    assert switch.drops() == {"unknown_job": 1}


def check_arp_replies(make_switch):
    """Answers to the control plane's requests reach it, with the number of their port; others are switched."""
    switch = make_switch()
    switch.machine.groups[1] = [(0, port) for port in (1, 2, 3)]
    switch.tables["own_arp_replies"].entries[(0x0001080006040002, OWN_IP)] = ("arp_to_control", [])
    addresses = struct.pack(">QI", mac_of(5), 0x0A000105)[2:] + struct.pack(">QI", OWN_MAC, OWN_IP)[2:]
    reply = struct.pack(">Q", OWN_MAC)[2:] + struct.pack(">Q", mac_of(5))[2:] + b"\x08\x06"
    reply += struct.pack(">Q", 0x0001080006040002) + addresses
    assert switch.machine.receive(2, reply) == [(510, struct.pack(">H", 2) + reply)]
    other = reply[:-1] + bytes([reply[-1] ^ 1])
    assert switch.machine.receive(2, other) == [(1, other), (3, other)]


def check_names(make_switch):
    """An action of a table is known to the control plane by its name alone, unless another control has the same."""
    controls = PROGRAM.controls.values()
    of_tables = {action for control in controls for table in control.tables.values() for action in table.actions}
    for action in of_tables - {"NoAction"}:
        owners = [control.name for control in controls if action in control.actions]
        assert len(owners) == 1, f"{action} is in {owners}"


CHECKS = [
    p4_vectors.check_other_traffic,
    p4_vectors.check_packet_out,
    p4_vectors.check_addresses,
    check_lengths,
    check_arp_replies,
    check_names,
]

if __name__ == "__main__":
    sys.exit(p4_vectors.main(__doc__, Switch, p4_vectors.golden, 28, CHECKS))
