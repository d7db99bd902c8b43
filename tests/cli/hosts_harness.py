"""Hosts on one Ethernet for tests: network namespaces on a bridge, with IPv4 and IPv6 addresses, without a rack's aggregator."""

import os
import subprocess

import pytest
from harness import PATIENCE_S, CommandTest
from rack_harness import may_make_namespaces


def ip(*arguments, namespace=None, check=True):
    inside = ("-n", namespace) if namespace else ()
    done = subprocess.run(["ip", *inside, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert not check or done.returncode == 0, f"ip {arguments}: {done.stderr}"
    return done.stdout


class HostsTest(CommandTest):
    """Host i has 10.78.0.(i+1) and fd78::(i+1) on eth0. The bridge has a port p<i> for it, and is a host itself, "bridge",
    with 10.78.0.254."""

    def set_up(self):
        permitted, why = may_make_namespaces()
        if not permitted:
            pytest.skip(f"no network namespaces here: {why}")

    def make_hosts(self, count):
        self.bridge = f"nh{os.getpid()}-br"
        self.hosts = [f"nh{os.getpid()}-{i}" for i in range(count)]
        for name in (self.bridge, *self.hosts):
            ip("netns", "add", name)
            self.cleanup.callback(ip, "netns", "del", name)
        ip("link", "add", "br0", "type", "bridge", namespace=self.bridge)
        ip("link", "set", "br0", "up", namespace=self.bridge)
        ip("link", "set", "lo", "up", namespace=self.bridge)
        ip("address", "add", "10.78.0.254/24", "dev", "br0", namespace=self.bridge)
        for i, name in enumerate(self.hosts):
            ip("link", "add", "eth0", "netns", name, "type", "veth", "peer", f"p{i}", "netns", self.bridge)
            ip("link", "set", f"p{i}", "master", "br0", "up", namespace=self.bridge)
            ip("address", "add", f"{self.address(i)}/24", "dev", "eth0", namespace=name)
            ip("address", "add", f"{self.address(i, 6)}/64", "dev", "eth0", "nodad", namespace=name)
            ip("link", "set", "lo", "up", namespace=name)
            ip("link", "set", "eth0", "up", namespace=name)

    @staticmethod
    def address(host, family=4):
        return f"10.78.0.{host + 1}" if family == 4 else f"fd78::{host + 1}"

    def namespace(self, host):
        return self.bridge if host == "bridge" else self.hosts[host]

    def start_in(self, host, *command, **more):
        return self.start("netns", "exec", self.namespace(host), *command, program="ip", **more)

    def run_in(self, host, *command, **more):
        running = self.start_in(host, *command, **more)
        running.status = running.end()
        return running

    def read_in(self, host, *command):
        command = ["ip", "netns", "exec", self.namespace(host), *command]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S).stdout
