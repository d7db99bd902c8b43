"""Where systems are measured: a virtual rack (`netsum rack`), or this machine without one, for the time of a `with`."""

import contextlib
import functools
import json
import subprocess
import time

from netsum_bench.processes import Failed, free_port, running

RACK_TIMEOUT_S = 120


class Place:
    """Has what the systems in it share, of which it takes care: one of each kind."""

    def __init__(self):
        self.resources, self._shared = contextlib.ExitStack(), {}

    def shared(self, kind):
        """The one `kind(self)`, which ends with the place."""
        if kind not in self._shared:
            self._shared[kind] = kind(self)
            self.resources.callback(self._shared[kind].close)
        return self._shared[kind]

    def aggregators_cpu_s(self):
        """Processor time so far of the place's own aggregators; None where nothing says it."""
        return


class Rack(Place):
    """A virtual rack, for the time of a `with`."""

    master = "10.77.0.1:29400"
    root = "10.77.0.1:5350"
    launcher = "sw"  # the node where mpirun runs

    def __init__(self, netsum, name, workers, rate, mtu, dataplane, multicast=False, loss=None, spares=0, flags=()):
        """`spares`: further nodes like workers, the first of them number `workers`. `flags`: more, of `netsum rack up`."""
        super().__init__()
        self.netsum, self.name, self.workers, self.rate, self.mtu = netsum, name, workers, rate, mtu
        self.dataplane, self.multicast, self.loss, self.spares = dataplane, multicast, loss, spares
        self.flags = flags

    def __enter__(self):
        try:
            self.up()
        except BaseException:  # also when interrupted; of a rack that is not up, `down` takes nothing away
            self.netsum_rack("down")
            raise
        return self

    def __exit__(self, kind, *_):
        self.resources.close()
        down = self.netsum_rack("down")
        if down.returncode != 0 and kind is None:
            raise Failed(f"rack {self.name} is still up: {down.stderr.strip()}")

    def netsum_rack(self, verb, *arguments, where=None):
        """Runs `netsum rack VERB` on this rack; returns the finished process."""
        place = [] if where is None else [str(where)]
        command = [str(self.netsum), "rack", verb, "--name", self.name, *place, *map(str, arguments)]
        try:
            # In a session of its own: a second Ctrl-C must not end the command that takes the rack down.
            return subprocess.run(
                command, capture_output=True, text=True, timeout=RACK_TIMEOUT_S, start_new_session=True, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise Failed(f"`netsum rack {verb}` did not end within {RACK_TIMEOUT_S} s") from error

    def must(self, verb, *arguments, where=None):
        done = self.netsum_rack(verb, *arguments, where=where)
        if done.returncode != 0:
            raise Failed(f"`netsum rack {verb}` of rack {self.name} failed: {done.stderr.strip()}")

    def up(self):
        """Makes the rack; makes it again if its aggregator has died."""
        flags = ["--workers", self.workers + self.spares, "--mtu", self.mtu]
        flags += ["--rate", self.rate, "--dataplane", self.dataplane]
        flags += ["--multicast"] if self.multicast else []
        flags += [] if self.loss is None else ["--loss", self.loss]
        self.must("up", *flags, *self.flags)

    def inside(self, where, *command):
        return [str(self.netsum), "rack", "exec", "--name", self.name, str(where), "--", *map(str, command)]

    def mpi_placement(self, folder):
        """Flags of mpirun, to have one rank on each worker."""
        # In the place of ssh: runs the command in the namespace of that address, under a host name of its own.
        agent = folder / "agent"
        agent.write_text(
            "#!/bin/sh\nhost=$1; shift; worker=$((${host##*.} - 1))\n"
            'exec unshare --uts sh -c "hostname w$worker; exec \\"\\$0\\" rack exec --name '
            f'{self.name} $worker -- sh -c \\"\\$1\\"" "{self.netsum}" "$*"\n',
            encoding="ascii",
        )
        agent.chmod(0o755)
        subnet = "10.77.0.0/16"
        hosts = ",".join(f"10.77.0.{w + 1}" for w in range(self.workers))
        settings = {
            "plm_rsh_agent": agent,
            "btl": "tcp,self",
            "btl_tcp_if_include": subnet,
            "oob_tcp_if_include": subnet,
        }
        return [*(part for name, value in settings.items() for part in ("--mca", name, value)), "--host", hosts]

    def set_links(self, *change, where="all"):
        """By `netsum rack set`."""
        self.must("set", *change, where=where)

    def congestion_controls(self):
        """Of TCP, that this kernel can use: its default first."""
        space = f"netsum-{self.name}-w0"
        read = ["ip", "netns", "exec", space, "sysctl", "-n", "net.ipv4.tcp_congestion_control"]
        default = subprocess.run(read, capture_output=True, text=True, check=True).stdout.strip()
        read[-1] = "net.ipv4.tcp_available_congestion_control"
        others = subprocess.run(read, capture_output=True, text=True, check=True).stdout.split()
        return [default, *(one for one in others if one != default)]

    def set_congestion_control(self, name):
        """Of the connections that the workers make from then on: by their routes, because in a namespace the sysctl takes only
        what the host's allows."""
        for worker in range(self.workers):
            ip = ["ip", "-n", f"netsum-{self.name}-w{worker}", "route"]
            shown = subprocess.run([*ip, "show", "dev", "eth0"], capture_output=True, text=True, check=True).stdout
            for route in shown.splitlines():
                words = route.partition(" congctl ")[0].split()
                change = [*ip, "change", *words, "dev", "eth0", "congctl", name]
                subprocess.run(change, capture_output=True, text=True, check=True)

    def status(self):
        listed = subprocess.run([self.netsum, "rack", "status", "--json"], capture_output=True, check=True)
        return next(r for r in json.loads(listed.stdout) if r["name"] == self.name)

    def packets(self):
        """Of all links of a rack with a loss, both ways: (passed, lost)."""
        links = self.status()["links"]
        return sum(link["packets_passed"] for link in links), sum(link["packets_lost"] for link in links)

    def buckets(self, node):
        """Bytes and packets that have left each token bucket of a node: they count segmented sends with all their headers."""
        space = f"netsum-{self.name}-{node}"
        listed = subprocess.run(["tc", "-n", space, "-s", "-j", "qdisc", "show"], capture_output=True, check=True)
        return {q["dev"]: q for q in json.loads(listed.stdout) if q["kind"] == "tbf"}

    def bucket_bytes(self, node):
        return {device: bucket["bytes"] for device, bucket in self.buckets(node).items()}

    def all_link_bytes(self):
        """Bytes that each host's link has carried so far, {"w0": {"in": ..., "out": ...}, "s0-p1": ...}, if links have
        rates."""
        carried = {}
        for link in (one["id"] for one in self.status()["links"]):
            node, _, port = link.partition("-p")
            sent = self.bucket_bytes(node)
            interface = f"eth{port or 0}"
            carried[link] = {"in": sent[f"ifb-{interface}"], "out": sent[interface]}
        return carried

    def link_bytes(self):
        """Bytes that worker 0's link has carried so far: (up, down), Ethernet headers included."""
        if self.rate != "none":
            sent = self.bucket_bytes("w0")
            return sent["eth0"], sent["ifb-eth0"]
        space = f"netsum-{self.name}-w0"
        listed = subprocess.run(
            ["ip", "-n", space, "-s", "-j", "link", "show", "eth0"], capture_output=True, check=True
        )
        stats = json.loads(listed.stdout)[0]["stats64"]
        return stats["tx"]["bytes"], stats["rx"]["bytes"]

    def switch_address(self):
        return next(node["address"] for node in self.status()["nodes"] if node["id"] == "sw")

    def aggregator_pid(self):
        """Of the rack's own aggregator, in the switch."""
        return self.status()["aggregators"][0]["pid"]

    def aggregators_cpu_s(self):
        # As clock_getcpuclockid() makes them.
        clocks = [~one["pid"] << 3 | 2 for one in self.status()["aggregators"] if one["serves"]]
        return sum(time.clock_gettime(clock) for clock in clocks)

    def another_in_switch(self, *flags):
        """As the rack's own, with more flags, for the time of a `with`: its address."""
        address = f"{self.switch_address()}:5252"
        return self.aggregator("sw", address, "--in-switch", "--mtu", self.mtu, *flags)

    @contextlib.contextmanager
    def aggregator(self, where, address, *flags):
        """Another aggregator, of one core, on a worker or in the switch ("sw"), for the time of a `with`."""
        with running(
            self.inside(where, self.netsum, "aggregator", "--listen", address, "--cores", "1", *flags),
            "ready",
            f"the aggregator at {address}",
        ):
            yield address


class Fabric(Rack):
    """A rack of a topology file, whose aggregators sum along the trees of its plan."""

    def __init__(self, netsum, name, workers, rate, mtu, topology):
        super().__init__(netsum, name, workers, rate, mtu, "user")
        self.topology = topology

    def up(self):
        self.must("up", "--topology", self.topology, "--trees", "--mtu", self.mtu)

    @functools.cached_property
    def launcher(self):
        return self.status()["nodes"][0]["id"]

    def link_bytes(self):
        """Of all links of worker 0."""
        command = ["ip", "-n", f"netsum-{self.name}-w0", "-s", "-j", "link"]
        shown = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        stats = [link["stats64"] for link in shown if link["ifname"].startswith("eth")]
        return sum(one["tx"]["bytes"] for one in stats), sum(one["rx"]["bytes"] for one in stats)


class Host(Place):
    """In the place of a rack: every rank runs here, side by side, with nothing between them but this machine."""

    dataplane, multicast, rate, mtu, launcher = "user", False, "none", 1500, None

    def __init__(self, netsum, workers):
        super().__init__()
        self.netsum, self.workers = netsum, workers
        self.master, self.root = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        # `env` also where there is nothing to change: so that Gloo finds this machine whatever its name is.
        self.environment = ["env", "GLOO_SOCKET_IFNAME=lo"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.resources.close()

    @contextlib.contextmanager
    def another_in_switch(self, *flags):
        """An aggregator of one core, for the time of a `with`: its address."""
        address = f"127.0.0.1:{free_port()}"
        command = [str(self.netsum), "aggregator", "--listen", address, "--cores", "1", *flags]
        with running(command, "ready", "the aggregator"):
            yield address

    def serve(self):
        """Starts an aggregator, which ranks use unless told otherwise."""
        address = self.resources.enter_context(self.another_in_switch())
        self.environment = [*self.environment, f"NETSUM_AGGREGATOR={address}"]

    def inside(self, _where, *command):
        return [str(part) for part in (*self.environment, *command)]

    @staticmethod
    def mpi_placement(_folder):
        return ["--oversubscribe", "--mca", "btl", "vader,self"]

    @staticmethod
    def link_bytes():
        return 0, 0
