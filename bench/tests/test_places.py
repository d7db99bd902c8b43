"""Tests of where the demo trains: how it chooses, and real trainings in racks, of which nothing may be left."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from netsum_bench.demo import children, places
from netsum_bench.demo import command as demo

PATIENCE_S = 180


def fake_netsum(folder, monkeypatch, body):
    """Takes the netsum command's place, and notes how it is called in calls.txt."""
    command = folder / "netsum"
    command.write_text(f'#!/bin/sh\necho "$*" >> {folder}/calls.txt\n{body}\n')
    command.chmod(0o755)
    for module in (children, places):
        monkeypatch.setattr(module, "find_netsum_command", lambda: str(command))
    return folder / "calls.txt"


def choose(*arguments):
    return demo.choose_place(demo.parse_arguments(arguments))


def test_the_rack_is_taken_where_it_can_be_made(tmp_path, monkeypatch, capsys):
    calls = fake_netsum(tmp_path, monkeypatch, "exit 0")
    place = choose("--rate", "1gbit")
    assert (place.name, place.rate, place.aggregator) == ("rack", "1gbit", "xdp")
    up, down = calls.read_text().splitlines()
    assert up.startswith(f"rack up --name demo{os.getpid()} ") and "--rate 1gbit --dataplane xdp" in up
    assert down == f"rack down --name demo{os.getpid()}"
    assert "in a virtual rack with links of 1gbit; netsum adds in the kernel" in capsys.readouterr().out


def test_loopback_is_taken_where_there_can_be_no_rack_and_the_reason_is_told(tmp_path, monkeypatch, capsys):
    fake_netsum(tmp_path, monkeypatch, "echo it needs CAP_NET_ADMIN >&2; exit 3")
    place = choose()
    assert (place.name, place.aggregator) == ("loopback", "daemon")
    out = capsys.readouterr().out
    assert "loopback device; netsum adds by a daemon" in out and "it needs CAP_NET_ADMIN" in out
    assert choose("--aggregator", "embedded").aggregator == "embedded"
    for demanded in (["--place", "rack"], ["--aggregator", "xdp"]):
        with pytest.raises(children.DemoError, match="it needs CAP_NET_ADMIN"):
            choose(*demanded)


def test_what_is_forced_is_taken(tmp_path, monkeypatch):
    calls = fake_netsum(tmp_path, monkeypatch, "exit 0")
    assert choose("--place", "loopback").name == "loopback"
    assert not calls.exists()
    assert choose("--place", "rack", "--aggregator", "daemon").aggregator == "daemon"
    assert "--dataplane user" in calls.read_text()
    with pytest.raises(children.DemoError, match="needs a rack"):
        choose("--place", "loopback", "--aggregator", "xdp")


@pytest.mark.parametrize(("aggregator", "dataplanes"), [("xdp", ["user", "xdp"]), ("daemon", ["user", "user"])])
def test_gloo_has_no_xdp_on_its_links(tmp_path, monkeypatch, aggregator, dataplanes):
    calls = fake_netsum(tmp_path, monkeypatch, "test $2 != status || echo '[]'")
    for backend, dataplane in zip(("gloo", "netsum"), dataplanes, strict=True):
        run = demo.Run("digits", backend, 3, 5, 1, tmp_path / "runs" / backend, "rack")
        rack = places.Rack("none", aggregator)
        with pytest.raises(RuntimeError, match="enough"), rack.training(run) as starts:  # noqa: PT012
            assert [start.env["RANK"] for start in starts] == ["0", "1", "2"]
            assert calls.read_text().splitlines()[-1].endswith(f"--dataplane {dataplane}")
            raise RuntimeError("enough")
        assert calls.read_text().splitlines()[-1].startswith("rack down")


def test_a_worker_that_fails_ends_the_others(tmp_path):
    run = demo.Run("digits", "gloo", 2, 5, 1, tmp_path, "rack")
    logs = [tmp_path / "logs" / str(rank) for rank in range(2)]
    for folder in logs:
        folder.mkdir(parents=True)
    starts = [
        children.Start(["sh", "-c", "echo $$; exec sleep 1000"], logs[0] / "stderr.log", {}),
        children.Start(["sh", "-c", "echo no such luck; exit 7"], logs[1] / "stderr.log", {}),
    ]
    with pytest.raises(children.DemoError, match=r"exit code 7(.|\n)*worker 1:\n    no such luck(.|\n)*--place rack"):
        children.run_training(run, starts, lambda progress, elapsed_s: None)
    pid = (logs[0] / "stderr.log").read_text().strip()
    assert not pid or not pathlib.Path(f"/proc/{pid}").exists()


# --- Real racks ------------------------------------------------------------------------------------------------------

in_a_rack = pytest.mark.skipif(os.geteuid() != 0, reason="virtual racks need root")


def start_demo(output, *arguments):
    command = [sys.executable, "-m", "netsum_bench.demo", "--place", "rack", "--workers", "2", "--models", "digits"]
    return subprocess.Popen(
        [*command, "--output", output, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def assert_nothing_left(process):
    namespaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert f"netsum-demo{process.pid}-" not in namespaces
    racks = json.loads(
        subprocess.run(
            [children.find_netsum_command(), "rack", "status", "--json"], capture_output=True, text=True, check=True
        ).stdout
    )
    assert f"demo{process.pid}" not in [rack["name"] for rack in racks]


@in_a_rack
@pytest.mark.parametrize(
    ("aggregator", "backends"),
    [
        ("xdp", "netsum"),
        pytest.param("xdp", "gloo,netsum", marks=pytest.mark.soak),
        pytest.param("daemon", "netsum", marks=pytest.mark.soak),
        pytest.param("embedded", "netsum", marks=pytest.mark.soak),
    ],
)
def test_a_small_training_in_a_rack(tmp_path, aggregator, backends):
    flags = ["--steps", "6", "--rate", "1gbit", "--aggregator", aggregator, "--backends", backends]
    process = start_demo(tmp_path, *flags)
    text, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, text
    assert_nothing_left(process)
    runs = json.loads((tmp_path / "results.json").read_text())["runs"]
    assert [run["backend"] for run in runs] == backends.split(",")
    assert all(run["place"] == "rack" and run["sent"][0] > 0 for run in runs)
    expected = {"xdp": "10.77.1.1:5151: xdp", "daemon": "10.77.1.1:5151: user-space", "embedded": "shards"}
    netsum = runs[-1]
    assert expected[aggregator] in netsum["where"]
    if aggregator != "embedded":
        assert netsum["aggregator"]["bytes_summed"] > netsum["summed_in_network"] > 0


@pytest.mark.soak
@in_a_rack
def test_an_interrupted_training_leaves_no_rack(tmp_path):
    process = start_demo(tmp_path, "--steps", "100000")
    progress = tmp_path / "runs" / "digits-gloo" / "progress.jsonl"
    deadline = time.monotonic() + PATIENCE_S
    while not (progress.exists() and progress.stat().st_size):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate(timeout=5)[0]
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    text, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130 and "stopped" in text
    assert_nothing_left(process)
