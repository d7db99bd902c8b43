"""How the profiler reads perf's samples and assigns them to passes. The profiler itself runs with `make profile`."""

import re

import pytest
from netsum_bench import report
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
        "netsum::kernels::N_AVX2::nh_hash": "hash",
    }
    assert profile.pass_of(("main", "surprise"), profile.WORKER).name == "other"


def test_the_classes_that_are_counted_exist_and_an_engines_samples_belong_to_them():
    source = "".join(path.read_text() for path in (ROOT / "engine").glob("*.cc"))
    for name in profile.ENGINE_CLASSES:
        assert re.search(rf"^[\w:<>*& ]*\b{name}::\w+\(", source, re.MULTILINE), f"no function of {name} in engine/"
    assert "void CoreThread::loop()" in (ROOT / "aggregator/user/thread.cc").read_text()
    chains = profile.collapse(SCRIPT.splitlines())
    counted = [chain for chain in chains if re.search(profile.ENGINE, ";".join(chain))]
    assert counted == [chain for chain in chains if chain[-1] == "rep_movs_alternative"]


@pytest.mark.parametrize(
    ("side", "called", "running", "name"),
    [
        ("worker", "Floats::encode", "__memmove_evex_unaligned_erms", "copy from the tensor"),
        ("worker", "Floats::decode", "__memmove_evex_unaligned_erms", "copy to the tensor"),
        ("worker", "Stripe::take_sum", "netsum::Stripe::fetch_after", "fetch the next chunk"),
        ("worker", "FixedPoint::encode", "netsum::kernels::N_AVX3::elements_to_lanes", "quantise"),
        ("worker", "WakeEvent::wait", "std::chrono::_V2::steady_clock::now", "wait and wake"),
        ("daemon", "AggregatorCore::add_floats", "netsum::kernels::N_AVX3::add_floats_in_order", "add"),
        ("daemon", "kernels::combine_lanes", "netsum::kernels::N_AVX3::add_lanes32", "add"),
        ("daemon", "AggregatorCore::add_floats", "__memmove_evex_unaligned_erms", "copy what waits for its turn"),
        (
            "daemon",
            "CoreThread::serve",
            "asm_sysvec_apic_timer_interrupt",
            "kernel: page faults, interrupts, other calls",
        ),
        ("one-host", "HostCore::sum_some", "netsum::kernels::sum_in_order", "add"),
    ],
)
def test_what_paths_do_today_has_a_pass(side, called, running, name):
    assert profile.pass_of((f"netsum::{called}", running), profile.CASES[side].passes).name == name
    sources = (path for folder in ("aggregator", "engine", "src") for path in (ROOT / folder).rglob("*.cc"))
    function = called.rpartition("::")[2]
    assert any(re.search(rf"\b{function}\(", path.read_text()) for path in sources), f"there is no {called} any more"


def test_a_table_has_passes_side_by_side():
    def of(case, name, seconds, bound=0.0):
        return {"case": case, "pass": name, "s_per_gb": seconds, "bound_s_per_gb": bound}

    records = [of("daemon", "add", 0.2, 0.1), of("daemon", "other", 0.001), of("worker", "protocol", 0.25)]
    assert profile.table(
        [*records, of("worker", "add", 0.5), of("worker", "rare", 0.01), {"case": "xdp", "failed": "why"}]
    ).splitlines() == [
        "|pass|worker|daemon|",
        "|--|--:|--:|",
        "|add|0.50|0.20 (0.10)|",
        "|protocol|0.25||",
        "|other|0.01|0.00|",
        "|**all**|**0.76**|**0.20**|",
    ]
    assert profile.table([]) == report.NOTHING
