"""What the running daemon may do: nothing that needs a capability."""

import os
import signal
import socket

import pytest
from harness import CommandTest, rights_of

CAP_NET_BIND_SERVICE = 1 << 10


class PrivilegesTest(CommandTest):
    def set_up(self):
        if rights_of(os.getpid())[0][0] == 0:
            pytest.skip("there is nothing to drop: the test runs without capabilities")

    def test_no_thread_keeps_a_capability(self):
        daemon = self.start_aggregator("--metrics", "127.0.0.1:0")
        self.assert_serves(daemon)
        rights = rights_of(daemon.process.pid)
        assert len(rights) > 4  # core, control, metrics
        assert set(rights) == {(0, 0, 0, 1)}
        self.send_signal(daemon, signal.SIGTERM)
        assert daemon.end() == 0

    def test_a_low_port_takes_one(self):
        for port in range(1023, 900, -1):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) != 0:
                    break
        daemon = self.start("aggregator", "--listen", f"127.0.0.1:{port}", "--cores", 1)
        daemon.wait_for("ready:", name="out")
        assert set(rights_of(daemon.process.pid)) == {(CAP_NET_BIND_SERVICE, CAP_NET_BIND_SERVICE, 0, 1)}
