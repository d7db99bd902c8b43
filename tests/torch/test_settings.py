"""The environment variables, as a process group takes them. src/options/settings_test.cc tests each variable."""

import datetime

import pytest
from netsum.torch import _rendezvous, _settings


def test_defaults():
    settings = _settings.from_environment({})
    assert settings.needs_root and not settings.hierarchy
    assert settings.job_prefix == ""
    assert settings.options.connect_timeout == datetime.timedelta(seconds=30)
    assert settings.options.inject.loss == 0


def test_they_become_options_of_the_communicator():
    settings = _settings.from_environment(
        {"NETSUM_AGGREGATOR": " a:1 , [::1]:2 ", "NETSUM_BIND_ADDRESS": "10.0.0.1", "NETSUM_CONNECT_TIMEOUT": "2.5"}
    )
    agreement = _rendezvous.Agreement(settings, "the job", "the token")
    options = _rendezvous.communicator_options(agreement, None, 1, 2, datetime.timedelta(seconds=7))
    assert (options.rank, options.world_size, options.job, options.token) == (1, 2, "the job", "the token")
    assert options.timeout == datetime.timedelta(seconds=7)
    assert options.connect_timeout == datetime.timedelta(seconds=2.5)
    assert (options.bind_address, options.root) == ("10.0.0.1", "")
    assert "NETSUM_AGGREGATOR=a:1,[::1]:2\n" in settings.shared()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NETSUM_AGGREGATOR", "justahost"),
        ("NETSUM_MTU", "9001"),
        ("NETSUM_SHARES", "half"),
        ("NETSUM_TLS_CA", "/nonexistent/ca.pem"),
        ("LOCAL_RANK", "first"),
    ],
)
def test_wrong_value_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=name):
        _settings.from_environment({name: value})


def test_each_process_of_a_host_has_its_own_metrics():
    environ = {"NETSUM_METRICS": "127.0.0.1:65535"}
    assert _settings.from_environment(environ)
    with pytest.raises(ValueError, match="NETSUM_METRICS"):
        _settings.from_environment({**environ, "LOCAL_RANK": "1"})


def test_staging_limits():
    assert _settings.staging_limits({}) == (256 << 20, 1 << 20)
    assert _settings.staging_limits({"NETSUM_STAGING_MIB": " 8 ", "NETSUM_STAGING_SEGMENT_KIB": "0"}) == (8 << 20, 0)
    for name, wrong in [("MIB", one) for one in ("0", "-1", "8MiB", "1.5", "99999999")] + [("SEGMENT_KIB", "-1")]:
        with pytest.raises(ValueError, match=f'NETSUM_STAGING_{name}="{wrong}": must be a whole number'):
            _settings.staging_limits({f"NETSUM_STAGING_{name}": wrong})
