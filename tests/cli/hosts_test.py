"""PyTorch's groups on hosts as they are: names that mean the host itself, several networks, IPv6, no master."""

import sys

from harness import clean_environment
from hosts_harness import HostsTest, ip

# One rank, which makes a group for each line of its standard input: a line is the address of the master, or the path of a
# file store. Each host has a network of its own besides, and its name means 127.0.1.1.
RANK = """
import datetime, os, socket, sys
import torch, torch.distributed as dist
import netsum.torch
rank, n, timeout = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), datetime.timedelta(seconds=40)
assert socket.gethostbyname(socket.gethostname()) == "127.0.1.1"
for number, where in enumerate(sys.argv[1:]):
    if where.startswith("/"):
        how = {"init_method": "file://" + where}
    else:
        how = {"init_method": f"tcp://{f'[{where}]' if ':' in where else where}:{29500 + number}"}
    dist.init_process_group("netsum", rank=rank, world_size=n, timeout=timeout, **how)
    tensor = torch.full((50_000,), float(rank + 1))
    dist.all_reduce(tensor)
    assert (tensor == n * (n + 1) / 2).all()
    if rank == 0:
        dist.send(torch.arange(3), 1)
    else:
        got = torch.zeros(3, dtype=torch.int64)
        dist.recv(got, 0)
        assert got.tolist() == [0, 1, 2]
    print("right", where, netsum.torch.describe(), flush=True)
    dist.destroy_process_group()
"""


class HostsOfRanksTest(HostsTest):
    def test_groups_come_up_where_names_are_of_no_use(self, tmp_path):
        self.make_hosts(2)
        for host, name in enumerate(self.hosts):
            ip("link", "add", "aaa0", "type", "bridge", namespace=name)
            ip("address", "add", f"10.1.{host}.1/24", "dev", "aaa0", namespace=name)
            ip("link", "set", "aaa0", "up", namespace=name)
            names = ["127.0.0.1 localhost", "::1 localhost6", f"127.0.1.1 host{host}"]
            names += ["10.78.0.1 host0"] if host == 1 else []
            (tmp_path / f"hosts{host}").write_text("\n".join(names) + "\n", encoding="utf-8")
        masters = [self.address(0), self.address(0, 6), "host0", str(tmp_path / "store")]
        mount = 'hostname "$0" && mount --bind "$1" /etc/hosts && shift && exec "$@"'
        ranks = []
        for rank in range(2):
            inside = ["unshare", "--mount", "--uts", "sh", "-c", mount, f"host{rank}", tmp_path / f"hosts{rank}"]
            environment = clean_environment(
                RANK=str(rank), WORLD_SIZE="2", OMP_NUM_THREADS="1", NETSUM_CONNECT_TIMEOUT="30"
            )
            environment.pop("GLOO_SOCKET_IFNAME", None)
            ranks.append(self.start_in(rank, *inside, sys.executable, "-c", RANK, *masters, environment=environment))
        for rank in ranks:
            assert rank.end() == 0, rank.text("out") + rank.text("err")
            assert rank.text("out").count("right") == len(masters)
