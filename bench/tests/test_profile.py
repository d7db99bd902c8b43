"""How the profiler reads perf's samples and assigns them to passes. The profiler itself runs with `make profile`."""

import re

import pytest
from netsum_bench.labs import profile
from netsum_bench.machine import ROOT

SCRIPT = """netsum    500000
\tffffffff8130 rep_movs_alternative
\tffffffff8131 udp_sendmsg
\t       55d01 netsum::UdpSender::send(std::span<netsum::OutPacket const>)
\t       55d02 netsum::EngineThread::turn()
\t       55d03 netsum::EngineThread::loop()

netsum worker  1000000
\t       55e01 netsum::kernels::N_AVX2::nh_hash(unsigned char const*)
\t       55e02 netsum::Stripe::next_packet(long)

netsum    500000
\tffffffff8130 rep_movs_alternative
\tffffffff8131 udp_sendmsg
\t       55d01 netsum::UdpSender::send(std::span<netsum::OutPacket const>)
\t       55d02 netsum::EngineThread::turn()
\t       55d03 netsum::EngineThread::loop()
"""


def test_call_chains_are_added_up():
    chains = profile.collapse(SCRIPT.splitlines())
    assert len(chains) == 2
    seconds = {chain[-1]: spent for chain, spent in chains.items()}
    assert seconds == {"rep_movs_alternative": pytest.approx(0.001), "netsum::kernels::N_AVX2::nh_hash": 0.001}
    assert all(";" not in function for chain in chains for function in chain)


def test_a_sample_belongs_to_the_pass_of_its_function_and_its_callers():
    passes = {chain[-1]: profile.pass_of(chain, profile.WORKER).name for chain in profile.collapse(SCRIPT.splitlines())}
    assert passes == {
        "rep_movs_alternative": "copy into the socket",
        "netsum::kernels::N_AVX2::nh_hash": "hash what is sent",
    }
    assert profile.pass_of(("main", "surprise"), profile.WORKER).name == "other"


def test_the_classes_that_are_counted_exist_and_an_engines_samples_belong_to_them():
    source = "".join(path.read_text() for path in (ROOT / "engine").glob("*.cc"))
    for name in profile.ENGINE_CLASSES:
        assert re.search(rf"^[\w:<>*& ]*\b{name}::\w+\(", source, re.MULTILINE), f"no function of {name} in engine/"
    chains = profile.collapse(SCRIPT.splitlines())
    counted = [chain for chain in chains if re.search(profile.ENGINE, ";".join(chain))]
    assert counted == [chain for chain in chains if chain[-1] == "rep_movs_alternative"]
