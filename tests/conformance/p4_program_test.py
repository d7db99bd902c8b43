#!/usr/bin/env python3
"""Replays vectors on the P4 program for v1model, in the interpreter of this folder, and checks the traffic of a switch."""

import sys

import p4_interpreter
import p4_machine
import p4_vectors
from p4_vectors import ROOT, frame_of

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


CHECKS = [
    p4_vectors.check_other_traffic,
    p4_vectors.check_packet_out,
    p4_vectors.check_addresses,
    check_lengths,
]

if __name__ == "__main__":
    sys.exit(p4_vectors.main(__doc__, Switch, p4_vectors.golden, 20, CHECKS))
