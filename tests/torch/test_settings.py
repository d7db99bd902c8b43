"""The environment variables: what they mean, and that wrong ones are refused by name."""

import datetime

import pytest
from netsum.torch import _C, _rendezvous, _settings


def test_defaults():
    settings = _settings.from_environment({})
    assert settings.aggregators == ()
    assert (settings.mtu, settings.slots, settings.connect_timeout_s) == (1500, 256, 30.0)
    assert settings.job_prefix == "torch"
    assert settings.shared_memory and settings.host == ""
    assert settings.packet_io == "udp"
    assert settings.inject_loss == 0.0


def test_all_set(tmp_path):
    files = {name: tmp_path / name for name in ("ca", "cert", "key")}
    for name, path in files.items():
        path.write_text(f"pem of {name}")
    settings = _settings.from_environment(
        {
            "NETSUM_AGGREGATOR": " a:1 , [::1]:2 ",
            "NETSUM_AGGREGATOR_TOKEN": "secret",
            "NETSUM_JOB": "mine",
            "NETSUM_MTU": "9000",
            "NETSUM_SLOTS": "64",
            "NETSUM_PACKET_IO": "af_xdp",
            "NETSUM_LANE_BITS": "32",
            "NETSUM_BIND_ADDRESS": "10.0.0.1",
            "NETSUM_SHARED_MEMORY": "0",
            "NETSUM_HOST": "left",
            "NETSUM_TLS_CA": str(files["ca"]),
            "NETSUM_TLS_CERT": str(files["cert"]),
            "NETSUM_TLS_KEY": str(files["key"]),
            "NETSUM_CONNECT_TIMEOUT": "2.5",
            "NETSUM_INJECT_LOSS": "1%",
            "NETSUM_INJECT_SEED": "7",
        }
    )
    assert settings.aggregators == ("a:1", "[::1]:2")
    assert settings.shared() == {
        "NETSUM_AGGREGATOR": "a:1,[::1]:2",
        "NETSUM_HIERARCHY": 0,
        "NETSUM_JOB": "mine",
        "NETSUM_MTU": 9000,
        "NETSUM_SLOTS": 64,
        "NETSUM_LANE_BITS": 32,
        "NETSUM_ON_FAILURE": "fail",
        "NETSUM_FALLBACK_AGGREGATORS": "",
        "NETSUM_WHEN_FULL": "fail",
        "NETSUM_SHARES": "auto",
        "NETSUM_VERIFY": "packet",
        "NETSUM_NUMERICS": "auto",
        "NETSUM_PREDICT_SCALES": 1,
    }
    assert (settings.tls_ca, settings.tls_cert, settings.tls_key) == ("pem of ca", "pem of cert", "pem of key")
    assert settings.connect_timeout_s == 2.5
    assert (settings.inject_loss, settings.inject_seed) == (0.01, 7)
    assert not settings.shared_memory and settings.host == "left"
    assert settings.packet_io == "af_xdp"
    assert "secret" not in repr(settings) and "pem of key" not in repr(settings)


def test_settings_become_options_of_the_communicator():
    settings = _settings.from_environment(
        {
            "NETSUM_AGGREGATOR": "a:1,b:2",
            "NETSUM_AGGREGATOR_TOKEN": "secret",
            "NETSUM_SLOTS": "64",
            "NETSUM_PACKET_IO": "af_xdp",
            "NETSUM_SPIN": "10ms",
            "NETSUM_ENGINE_THREADS": "3",
            "NETSUM_SHARED_MEMORY": "0",
            "NETSUM_SHARES": "off",
            "NETSUM_VERIFY": "both",
            "NETSUM_NUMERICS": "fixed",
            "NETSUM_PREDICT_SCALES": "0",
            "NETSUM_LINK_RATE": "1gbit",
            "NETSUM_LIVENESS_TIMEOUT": "2.5",
            "NETSUM_ON_FAILURE": "failover",
            "NETSUM_FALLBACK_AGGREGATORS": "c:3",
            "NETSUM_WHEN_FULL": "wait",
            "NETSUM_METRICS": "127.0.0.1:9470",
            "NETSUM_TRACE": "/tmp/{job}{rank}",
        }
    )
    agreement = _rendezvous.Agreement(settings, "the job", "the token")
    options = _rendezvous.communicator_options(agreement, None, 1, 2, datetime.timedelta(seconds=7))
    assert (options.rank, options.world_size, options.job, options.token) == (1, 2, "the job", "the token")
    assert options.timeout == datetime.timedelta(seconds=7)
    assert (options.aggregators, options.fallback_aggregators) == (["a:1", "b:2"], ["c:3"])
    assert (options.aggregator_token, options.slots, options.mtu) == ("secret", 64, 1500)
    assert (options.packet_io, options.shares) == (_C.PacketIoKind.AF_XDP, _C.Shares.OFF)
    assert options.verify == _C.Verify.BOTH
    assert options.numerics == _C.Numerics.FIXED
    assert (options.on_failure, options.when_full) == (_C.FailurePolicy.FAILOVER, _C.WhenFull.WAIT)
    assert options.engine_threads == 3
    assert not options.predict_scales
    assert not options.shared_memory and options.link_rate_bps == 1e9
    assert options.spin == datetime.timedelta(milliseconds=10)
    assert options.liveness_timeout == datetime.timedelta(seconds=2.5)
    assert (options.metrics_address, options.trace_path) == ("127.0.0.1:9470", "/tmp/{job}{rank}")


@pytest.mark.parametrize(
    ("environ", "address"),
    [
        ({}, ""),
        ({"NETSUM_METRICS": "127.0.0.1:9470"}, "127.0.0.1:9470"),
        ({"NETSUM_METRICS": "[::1]:9470", "LOCAL_RANK": "3"}, "[::1]:9473"),
        ({"NETSUM_METRICS": "127.0.0.1:0", "LOCAL_RANK": "3"}, "127.0.0.1:0"),
    ],
)
def test_each_process_of_a_host_has_its_own_metrics(environ, address):
    assert _settings.from_environment(environ).metrics_address == address


@pytest.mark.parametrize(
    ("path", "expanded"),
    [
        ("", ""),
        ("/tmp/t.json", "/tmp/t-{job}-rank{rank}.json"),
        ("/tmp/{rank}.json", "/tmp/{rank}-{job}-rank{rank}.json"),
        ("/tmp/{job}.{rank}", "/tmp/{job}.{rank}"),
    ],
)
def test_each_group_of_a_rank_has_its_own_trace(path, expanded):
    assert _settings.from_environment({"NETSUM_TRACE": path}).trace_path == expanded


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NETSUM_AGGREGATOR", "justahost"),
        ("NETSUM_AGGREGATOR", "host:0"),
        ("NETSUM_AGGREGATOR", "host:65536"),
        ("NETSUM_AGGREGATOR", "host:1,:2"),
        ("NETSUM_AGGREGATOR", "::1:5151"),
        ("NETSUM_MTU", "big"),
        ("NETSUM_SHARED_MEMORY", "yes"),
        ("NETSUM_MTU", "9001"),
        ("NETSUM_SLOTS", "100"),
        ("NETSUM_PACKET_IO", "tcp"),
        ("NETSUM_SLOTS", "2048"),
        ("NETSUM_SPIN", "2"),
        ("NETSUM_SPIN", "-1ms"),
        ("NETSUM_SPIN", "1.2.3ms"),
        ("NETSUM_SPIN", "61s"),
        ("NETSUM_LANE_BITS", "12"),
        ("NETSUM_LANE_BITS", "wide"),
        ("NETSUM_CONNECT_TIMEOUT", "0"),
        ("NETSUM_CONNECT_TIMEOUT", "nan"),
        ("NETSUM_LIVENESS_TIMEOUT", "-1"),
        ("NETSUM_ON_FAILURE", "shrink"),
        ("NETSUM_ON_FAILURE", "failover"),  # with no aggregator that could be lost
        ("NETSUM_FALLBACK_AGGREGATORS", "host:1"),  # without failover
        ("NETSUM_FALLBACK_AGGREGATORS", "nowhere"),
        ("NETSUM_FAILOVER_TIMEOUT", "0"),
        ("NETSUM_WHEN_FULL", "never"),
        ("NETSUM_SHARES", "half"),
        ("NETSUM_VERIFY", "sums"),
        ("NETSUM_NUMERICS", "float"),
        ("NETSUM_LINK_RATE", "0mbit"),
        ("NETSUM_LINK_RATE", "100"),
        ("NETSUM_LINK_RATE", "1.2.3mbit"),
        ("NETSUM_LINK_RATE", "1000tbit"),
        ("NETSUM_METRICS", "justahost"),
        ("NETSUM_METRICS", "host:65536"),
        ("NETSUM_METRICS", ":9470"),
        ("NETSUM_TLS_CA", "/nonexistent/ca.pem"),
    ],
)
def test_wrong_value_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=name):
        _settings.from_environment({name: value})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("", 50e-6), ("0", 0), ("false", 0), ("1", 50e-6), ("true", 50e-6), ("0ms", 0), ("500us", 5e-4), ("1.5s", 1.5)],
)
def test_spin_is_a_switch_or_a_time(text, seconds):
    assert _settings.from_environment({"NETSUM_SPIN": text}).spin_s == pytest.approx(seconds)


def test_where_to_go_on():
    settings = _settings.from_environment(
        {
            "NETSUM_AGGREGATOR": "a:1",
            "NETSUM_ON_FAILURE": "failover",
            "NETSUM_FALLBACK_AGGREGATORS": "b:2, hosts",
            "NETSUM_FAILOVER_TIMEOUT": "7",
            "NETSUM_LIVENESS_TIMEOUT": "0",
        }
    )
    assert settings.fallback_aggregators == ("b:2", "hosts")
    assert (settings.failover_timeout_s, settings.liveness_timeout_s) == (7.0, 0.0)


def test_certificate_without_key(tmp_path):
    (tmp_path / "cert").write_text("pem")
    with pytest.raises(ValueError, match="NETSUM_TLS_KEY"):
        _settings.from_environment({"NETSUM_TLS_CERT": str(tmp_path / "cert")})


def test_in_a_hierarchy_ranks_may_name_different_aggregators():
    first, second = (
        _settings.from_environment({"NETSUM_HIERARCHY": "1", "NETSUM_AGGREGATOR": address}).shared()
        for address in ("10.0.1.1:5151", "10.0.2.1:5151")
    )
    assert first == second
    two = _settings.from_environment({"NETSUM_HIERARCHY": "1", "NETSUM_AGGREGATOR": "10.0.1.1:5151,10.0.1.2:5151"})
    assert two.shared() != first
    assert _settings.from_environment({"NETSUM_AGGREGATOR": "10.0.1.1:5151"}).shared() != first
    with pytest.raises(ValueError, match="NETSUM_HIERARCHY=1: set NETSUM_AGGREGATOR"):
        _settings.from_environment({"NETSUM_HIERARCHY": "1"})


@pytest.mark.parametrize(
    ("text", "bps"),
    [("", 0), ("100mbit", 1e8), ("2.5gbit", 2.5e9), ("25G", 25e9), ("100 Mbit/s", 1e8), ("1tbps", 1e12)],
)
def test_link_rates_as_the_command_takes_them(text, bps):
    assert _settings.from_environment({"NETSUM_LINK_RATE": text}).link_rate_bps == pytest.approx(bps)
