"""Reads and validates netsum's environment variables. No other module reads them."""

import dataclasses
import os
import re


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of a process group. docs/pytorch.md describes each.

    Most have the name of an option of the communicator, to which _rendezvous.py copies them.
    """

    aggregators: tuple[str, ...] = ()
    hierarchy: bool = False  # ranks name different aggregators, which are below one parent
    aggregator_token: str = dataclasses.field(default="", repr=False)
    job_prefix: str = "torch"
    mtu: int = 1500
    slots: int = 256
    packet_io: str = "udp"  # or "af_xdp"; ranks may differ
    spin_s: float = 50e-6  # for how long threads that wait poll before they sleep; 0: never; ranks may differ
    engine_threads: int = 1  # 0: as many as the link needs; ranks may differ
    shared_memory: bool = True
    host: str = ""
    lane_bits: int = 0
    shares: str = "auto"  # or "planned": as auto, but fixed; or "off": equal shares
    verify: str = "packet"  # or "sum": the ranks verify every sum instead, or "both"
    numerics: str = "auto"  # or "fixed": floating-point tensors of any size in block fixed point
    predict_scales: bool = True
    link_rate_bps: float = 0.0  # of this host's link; 0: what its interface reports
    bind_address: str = ""
    tls_ca: str = ""  # these three: PEM text, read from the files that the variables name
    tls_cert: str = ""
    tls_key: str = dataclasses.field(default="", repr=False)
    connect_timeout_s: float = 30.0
    liveness_timeout_s: float = 5.0  # 0: never
    on_failure: str = "fail"  # or "failover"
    fallback_aggregators: tuple[str, ...] = ()  # "hosts" stands for the ranks' own shards
    failover_timeout_s: float = 30.0
    when_full: str = "fail"  # or "wait", "hosts"
    metrics_address: str = ""  # this process's address: NETSUM_METRICS with the rank on this host added to its port
    trace_path: str = ""
    inject_loss: float = 0.0  # for tests: the part of the packets received that is dropped on purpose
    inject_seed: int = 1

    def shared(self):
        """Returns the settings that must be equal on all ranks, by the names of their variables."""
        return {
            "NETSUM_AGGREGATOR": self._same_aggregators(),
            "NETSUM_HIERARCHY": int(self.hierarchy),
            "NETSUM_JOB": self.job_prefix,
            "NETSUM_MTU": self.mtu,
            "NETSUM_SLOTS": self.slots,
            "NETSUM_LANE_BITS": self.lane_bits,
            "NETSUM_ON_FAILURE": self.on_failure,
            "NETSUM_FALLBACK_AGGREGATORS": ",".join(self.fallback_aggregators),
            "NETSUM_WHEN_FULL": self.when_full,
            "NETSUM_SHARES": self.shares,
            "NETSUM_VERIFY": self.verify,
            "NETSUM_NUMERICS": self.numerics,
            "NETSUM_PREDICT_SCALES": int(self.predict_scales),
        }

    def _same_aggregators(self):
        """Returns what must be equal about the aggregators: in a hierarchy, only their number."""
        if self.hierarchy:
            return f"{len(self.aggregators)} in this rank's rack"
        return ",".join(self.aggregators)


def from_environment(environ=os.environ):
    """Returns the Settings of `environ`. Raises ValueError, which names the variable, for an invalid value."""
    settings = Settings(
        aggregators=_addresses(environ, "NETSUM_AGGREGATOR"),
        hierarchy=_integer(environ, "NETSUM_HIERARCHY", default=0, low=0, high=1) == 1,
        aggregator_token=environ.get("NETSUM_AGGREGATOR_TOKEN", ""),
        job_prefix=environ.get("NETSUM_JOB", "") or "torch",
        mtu=_integer(environ, "NETSUM_MTU", default=1500, low=144, high=9000),
        slots=_integer(environ, "NETSUM_SLOTS", default=256, low=1, high=1024),
        packet_io=_choice(environ, "NETSUM_PACKET_IO", ("udp", "af_xdp")),
        spin_s=_spin(environ),
        engine_threads=_integer(environ, "NETSUM_ENGINE_THREADS", default=1, low=0, high=64),
        shared_memory=_integer(environ, "NETSUM_SHARED_MEMORY", default=1, low=0, high=1) == 1,
        host=environ.get("NETSUM_HOST", "").strip(),
        lane_bits=_integer(environ, "NETSUM_LANE_BITS", default=0, low=0, high=32),
        shares=_choice(environ, "NETSUM_SHARES", ("auto", "planned", "off")),
        verify=_choice(environ, "NETSUM_VERIFY", ("packet", "both", "sum")),
        numerics=_choice(environ, "NETSUM_NUMERICS", ("auto", "fixed")),
        predict_scales=_integer(environ, "NETSUM_PREDICT_SCALES", default=1, low=0, high=1) == 1,
        link_rate_bps=_rate(environ, "NETSUM_LINK_RATE"),
        bind_address=environ.get("NETSUM_BIND_ADDRESS", "").strip(),
        tls_ca=_file(environ, "NETSUM_TLS_CA"),
        tls_cert=_file(environ, "NETSUM_TLS_CERT"),
        tls_key=_file(environ, "NETSUM_TLS_KEY"),
        connect_timeout_s=_seconds(environ, "NETSUM_CONNECT_TIMEOUT", default=30.0),
        liveness_timeout_s=_seconds(environ, "NETSUM_LIVENESS_TIMEOUT", default=5.0, or_zero=True),
        on_failure=_choice(environ, "NETSUM_ON_FAILURE", ("fail", "failover")),
        fallback_aggregators=_addresses(environ, "NETSUM_FALLBACK_AGGREGATORS", or_word="hosts"),
        failover_timeout_s=_seconds(environ, "NETSUM_FAILOVER_TIMEOUT", default=30.0),
        when_full=_choice(environ, "NETSUM_WHEN_FULL", ("fail", "wait", "hosts")),
        metrics_address=_metrics(environ),
        trace_path=_trace(environ),
        inject_loss=_probability(environ, "NETSUM_INJECT_LOSS"),
        inject_seed=_integer(environ, "NETSUM_INJECT_SEED", default=1, low=0, high=2**63 - 1),
    )
    if settings.slots & (settings.slots - 1):
        raise ValueError(f"NETSUM_SLOTS={settings.slots}: must be a power of two, such as 256")
    if settings.lane_bits not in (0, 8, 16, 32):
        raise ValueError(f"NETSUM_LANE_BITS={settings.lane_bits}: must be 8, 16, 32, or 0 for automatic")
    if settings.hierarchy and not settings.aggregators:
        raise ValueError("NETSUM_HIERARCHY=1: set NETSUM_AGGREGATOR to the aggregator of this rank's rack")
    if settings.on_failure == "failover" and not settings.aggregators:
        raise ValueError("NETSUM_ON_FAILURE=failover: there is no aggregator to lose, set NETSUM_AGGREGATOR")
    if settings.fallback_aggregators and settings.on_failure != "failover":
        raise ValueError("NETSUM_FALLBACK_AGGREGATORS has no effect without NETSUM_ON_FAILURE=failover")
    if bool(settings.tls_cert) != bool(settings.tls_key):
        raise ValueError("NETSUM_TLS_CERT and NETSUM_TLS_KEY belong together: set both or neither")
    return settings


def _addresses(environ, name, or_word=None):
    addresses = tuple(part.strip() for part in environ.get(name, "").split(",") if part.strip())
    for address in addresses:
        if address == or_word:
            continue
        host, _, port = address.rpartition(":")
        bare_ipv6 = ":" in host and not (host.startswith("[") and host.endswith("]"))
        if not host or bare_ipv6 or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f'{name}: "{address}" is not "host:port" (IPv6: "[::1]:5151")')
    return addresses


_RATE = re.compile(r"([0-9.]+) ?([kmgt])(?:bit|bit/s|bps)?", re.IGNORECASE)


def _rate(environ, name):
    """Returns bits per second, or 0.0 for an unset variable. The same forms as the command's --link-rate."""
    text = environ.get(name, "").strip()
    if not text:
        return 0.0
    match = _RATE.fullmatch(text)
    try:
        rate = float(match[1]) * 1000 ** ("kmgt".index(match[2].lower()) + 1) if match else 0.0
    except ValueError:
        rate = 0.0
    if not 1e3 <= rate <= 1e14:
        raise ValueError(f'{name}="{text}": must be a rate from 1kbit to 100tbit, such as 100mbit or 25gbit')
    return rate


_TIME = re.compile(r"([0-9.]+)(us|ms|s)")


def _spin(environ):
    """Returns seconds. The same forms as the command's --spin."""
    text = environ.get("NETSUM_SPIN", "").strip() or "1"
    switched = {"0": 0.0, "false": 0.0, "1": 50e-6, "true": 50e-6}
    if text in switched:
        return switched[text]
    match = _TIME.fullmatch(text)
    try:
        us = float(match[1]) * {"us": 1, "ms": 1e3, "s": 1e6}[match[2]] if match else -1.0
    except ValueError:
        us = -1.0
    if us != 0 and not 1 <= us <= 60e6:
        raise ValueError(f'NETSUM_SPIN="{text}": must be 0, 1, or a time from 1us to 60s, such as 10ms')
    return us / 1e6


def _metrics(environ):
    """Returns the metrics address with torchrun's LOCAL_RANK added to its port, so each process has its own."""
    address = environ.get("NETSUM_METRICS", "").strip()
    if not address:
        return ""
    host, _, port = address.rpartition(":")
    base = int(port) if port.isdigit() else -1
    local_rank = _integer(environ, "LOCAL_RANK", default=0, low=0, high=65535)
    if not host or not 0 <= base <= 65535 or base + local_rank > 65535:
        raise ValueError(f'NETSUM_METRICS="{address}": must be "host:port", such as 127.0.0.1:9470')
    return f"{host}:{base + local_rank if base else 0}"


def _trace(environ):
    """Returns the trace path with {job} and {rank} in it, so each process group of each rank has its own file."""
    path = environ.get("NETSUM_TRACE", "").strip()
    if not path or ("{rank}" in path and "{job}" in path):
        return path
    stem, suffix = os.path.splitext(path)
    return f"{stem}-{{job}}-rank{{rank}}{suffix}"


def _integer(environ, name, default, low, high):
    text = environ.get(name, "").strip()
    if not text:
        return default
    try:
        value = int(text)
    except ValueError:
        value = None
    if value is None or not low <= value <= high:
        raise ValueError(f'{name}="{text}": must be a whole number from {low} to {high}')
    return value


def _choice(environ, name, choices):
    """Returns the variable's value, which must be one of `choices`. The first of them is the default."""
    text = environ.get(name, "").strip() or choices[0]
    if text not in choices:
        raise ValueError(f'{name}="{text}": must be {" or ".join(choices)}')
    return text


def _seconds(environ, name, default, or_zero=False):
    text = environ.get(name, "").strip()
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if or_zero and value == 0.0:
        return value
    if not 0.0 < value <= 86400.0:
        raise ValueError(f'{name}="{text}": must be a number of seconds, above 0 and at most 86400')
    return value


def _probability(environ, name):
    text = environ.get(name, "").strip() or "0"
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise ValueError(f'{name}="{text}": must be a probability from 0 to 1, such as 0.01 or 1%')
    return value


def _file(environ, name):
    path = environ.get(name, "").strip()
    if not path:
        return ""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise ValueError(f'{name}="{path}": cannot read the file: {error.strerror}') from error
