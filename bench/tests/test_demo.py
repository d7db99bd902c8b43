"""Tests of the demo's arithmetic, table, report and handling of children; nothing here trains."""

import copy
import html.parser
import io
import json
import pathlib
import re
import socket
import sys
import time

import pytest
from netsum_bench.demo import children, data, models, pictures, places, report, summary, traffic
from netsum_bench.demo import command as demo

import torch

WORKERS = 4
STEPS = 20


def rank_result(rank, losses=None):
    return {
        "parameters": 1000,
        "data": "10 examples",
        "losses": losses or [2.0 - 0.05 * step + 0.01 * rank for step in range(STEPS)],
        "step_s": [9.0] * 3 + [0.010] * (STEPS - 3),
        "allreduce_s": [0.002, 0.001, 0.003],
        "held_out": {"loss_sum": 5.0 * (rank + 1), "right": 9, "count": 10},
        "tcp": [],
        "netsum": None,
        "describe": None,
    }


def gloo_ring():
    """Four ranks that send 1448000 bytes of payload each to the next one, and talk to torchrun's store."""
    ranks = [rank_result(rank) for rank in range(WORKERS)]
    for rank, result in enumerate(ranks):
        last = (rank - 1) % WORKERS
        result["tcp"] = [
            sock(f"h:{100 + rank}", f"h:{200 + (rank + 1) % WORKERS}", 1_448_000, 0, 2),
            sock(f"h:{200 + rank}", f"h:{100 + last}", 0, 1_448_000, 0),
            sock(f"h:{300 + rank}", "h:9", 77, 77, 5),
        ]
    return ranks


def sock(local, peer, sent, received, retransmitted):
    return {"local": local, "peer": peer, "sent": sent, "received": received, "retransmitted": retransmitted}


def netsum_counts(stripes, shard_received=0, shard_sent=0):
    names = ("address", "bytes_sent", "bytes_received", "local")
    return {
        "gradient_bytes": 80_000,
        "bytes_sent": 0,
        "bytes_received": 0,
        "retransmissions": 3,
        "srtt_us": 5.0,
        "stripes": [dict(zip(names, stripe, strict=True)) for stripe in stripes],
        "shard_bytes_received": shard_received,
        "shard_bytes_sent": shard_sent,
    }


def with_netsum(after_of_rank):
    ranks = [rank_result(rank) for rank in range(WORKERS)]
    for rank, result in enumerate(ranks):
        after = after_of_rank(rank)
        before = {k: 0 if isinstance(v, int) else v for k, v in copy.deepcopy(after).items()}
        before["stripes"] = []
        result["netsum"] = {"before": before, "after": after}
        result["describe"] = "summed by 1 aggregator"
    return ranks


def daemon_ranks():
    return with_netsum(lambda rank: netsum_counts([("a:1", 60_000, 50_000, False), ("a:2", 24_000, 33_000, False)]))


def embedded_ranks():
    def after(rank):
        stripes = [(f"h:{owner}", 1000, 900, owner == rank) for owner in range(WORKERS)]
        return netsum_counts(stripes, shard_received=4000, shard_sent=3600)

    return with_netsum(after)


def summarise(ranks, folder, backend="gloo", counters=None):
    run = demo.Run("digits", backend, WORKERS, STEPS, 1, folder)
    folder.mkdir(exist_ok=True)
    for rank, result in enumerate(ranks):
        (folder / f"rank{rank}.json").write_text(json.dumps(result))
    return summary.summarise(run, 7.0, counters or {})


@pytest.fixture
def gloo(tmp_path):
    return summarise(gloo_ring(), tmp_path / "gloo")


@pytest.fixture
def netsum(tmp_path):
    return summarise(daemon_ranks(), tmp_path / "netsum", "netsum", {"bytes_summed": 123_456_789})


def test_losses_and_held_out_data_are_averaged_over_the_workers(gloo):
    assert gloo.losses[0] == pytest.approx(2.015)
    assert gloo.final_loss == pytest.approx((gloo.losses[-1] + gloo.losses[-2]) / 2)
    assert gloo.held_out_loss == pytest.approx((5 + 10 + 15 + 20) / 40)
    assert gloo.accuracy_percent == pytest.approx(90)


def test_first_steps_do_not_count_as_step_time(gloo):
    assert gloo.step_ms == {"median": 10.0, "low": 10.0, "high": 10.0}


def test_gloo_bytes_are_those_between_workers_with_headers(gloo):
    assert gloo.sent == [1_514_000] * WORKERS
    assert gloo.received == [1_514_000] * WORKERS
    assert gloo.flows == {
        **{f"{rank}>{(rank + 1) % WORKERS}": 1_514_000 for rank in range(WORKERS)},
        **{f"{rank}>{(rank - 1) % WORKERS}": 0 for rank in range(WORKERS)},
    }
    assert gloo.retransmissions == 2 * WORKERS
    assert gloo.summed_in_network == 0


def test_netsum_bytes_with_an_aggregator(netsum):
    assert netsum.sent == [84_000] * WORKERS
    assert netsum.received == [83_000] * WORKERS
    assert netsum.flows["2>A"] == 84_000 and netsum.flows["A>2"] == 83_000
    assert netsum.summed_in_network == WORKERS * 80_000
    assert netsum.retransmissions == 3 * WORKERS
    assert netsum.sent_per_gradient_byte == pytest.approx(84_000 / (4 * 1000 * STEPS))


def test_netsum_bytes_with_embedded_shards_leave_out_a_ranks_own(tmp_path):
    result = summarise(embedded_ranks(), tmp_path / "run", "netsum")
    # 3 x 1000 to the other shards, and 3 x 900 of results out of its own.
    assert result.sent == [3000 + 2700] * WORKERS
    assert result.received == [2700 + 3000] * WORKERS
    assert result.flows["0>1"] == 1000 + 900
    assert "0>0" not in result.flows and len(result.flows) == WORKERS * (WORKERS - 1)
    assert sum(result.flows.values()) == sum(result.sent)


def test_counts_before_training_are_taken_off(tmp_path):
    ranks = daemon_ranks()
    for result in ranks:
        before = copy.deepcopy(result["netsum"]["after"])
        before["stripes"][0]["bytes_sent"] = 59_000
        before["gradient_bytes"] = 30_000
        result["netsum"]["before"] = before
    result = summarise(ranks, tmp_path / "run", "netsum")
    assert result.sent == [1000] * WORKERS
    assert result.summed_in_network == WORKERS * 50_000
    assert result.retransmissions == 0


def test_equal_runs_agree(gloo, netsum):
    comparison = summary.compare(gloo, netsum)
    assert comparison.agrees
    assert "agree" in comparison.sentence() and "NOT" not in comparison.sentence()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("losses", [1.0] * STEPS),
        ("held_out_loss", 1.25 + 0.03),
        ("accuracy_percent", 88.5),
        ("losses", [float("nan")] * STEPS),
        ("held_out_loss", float("nan")),
    ],
)
def test_each_kind_of_difference_is_a_disagreement(gloo, netsum, field, value):
    setattr(netsum, field, value)
    comparison = summary.compare(gloo, netsum)
    assert not comparison.agrees
    assert "DO NOT AGREE" in comparison.sentence()
    assert "do not agree" in report.render([gloo, netsum], [comparison], {})


def test_step_noise_ignores_the_trend():
    assert summary.step_noise([5 - 0.1 * step for step in range(50)]) < 0.03
    assert summary.step_noise([1.0, 3.0] * 25) == pytest.approx(1.0, abs=0.2)


def test_human_bytes():
    assert [summary.human_bytes(n) for n in (0, 999, 1500, 20_467_200, 345_600_000, 2.5e9)] == [
        "0 B",
        "999 B",
        "1.50 kB",
        "20.47 MB",
        "345.6 MB",
        "2.50 GB",
    ]


def test_text_table_has_a_column_per_run_and_lines_of_one_width(gloo, netsum):
    text = summary.text_table([gloo, netsum])
    lines = text.splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[0].split() == ["Digits"]
    assert lines[1].split() == ["Gloo", "netsum"]
    assert any(line.split()[-4:] == ["1.51", "MB", "84.00", "kB"] for line in lines)


class StrictParser(html.parser.HTMLParser):
    """Checks that tags are balanced, and notes what the page would load."""

    def __init__(self):
        super().__init__()
        self.open, self.loaded, self.seen = [], [], []

    def handle_starttag(self, tag, attributes):
        self.seen.append(tag)
        self.loaded += [value for name, value in attributes if name in ("src", "href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.seen.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def parse(page):
    parser = StrictParser()
    parser.feed(page)
    assert parser.open == []
    return parser


def test_report_is_whole_and_loads_nothing(gloo, netsum):
    page = report.render([gloo, netsum], [summary.compare(gloo, netsum)], {"Command": "a <b> & c"})
    parser = parse(page)
    assert parser.loaded == []
    assert "script" not in parser.seen and "@import" not in page
    assert not re.search(r"url\((?!#)", page)
    assert parser.seen.count("svg") == 4  # two flows, the curves and their difference
    assert "a &lt;b&gt; &amp; c" in page
    assert "123.5 MB summed" in page


def test_only_a_rack_compares_times(gloo, netsum):
    netsum.step_ms = {"median": 8.0, "low": 8.0, "high": 8.0}
    comparison = summary.compare(gloo, netsum)
    assert comparison.speed_up == pytest.approx(1.25)
    assert "times as fast" not in comparison.sentence() + report.render([gloo, netsum], [comparison], {})
    for run in (gloo, netsum):
        run.place = "rack"
    comparison = summary.compare(gloo, netsum)
    page = report.render([gloo, netsum], [comparison], {})
    assert "1.25 times as fast" in comparison.sentence() and "1.25 times as fast" in page
    assert "namespace" in page and "loopback" not in page


def test_report_of_a_single_run(gloo):
    page = report.render([gloo], [], {})
    parse(page)
    assert "agree" not in page.partition("<main>")[2].partition("How to read this")[0]


def texts_of(svg):
    return [re.sub(r"<[^>]*>", "", text) for text in re.findall(r"<text.*?</text>", svg, re.DOTALL)]


def test_flow_pictures(gloo, netsum, tmp_path):
    ring = pictures.flow_picture(gloo)
    assert ring.count('id="flow"') == WORKERS and "aggregator" not in texts_of(ring)
    star = pictures.flow_picture(netsum)
    assert star.count('id="flow"') == 2 * WORKERS and "aggregator" in texts_of(star)
    assert texts_of(star).count("4.20 kB") == WORKERS and texts_of(star).count("4.15 kB") == WORKERS
    mesh = pictures.flow_picture(summarise(embedded_ranks(), tmp_path / "run", "netsum"))
    assert mesh.count('id="flow"') == WORKERS * (WORKERS - 1) and "95 B on each arrow" in texts_of(mesh)


def test_pictures_take_their_colours_from_the_page(gloo, netsum):
    for picture in (pictures.flow_picture(netsum), pictures.difference_strip(gloo, netsum, 0.1)):
        assert "var(--netsum)" in picture and "#0000" not in picture


def test_tcp_books_see_what_a_socket_carried():
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(5)
    client = socket.create_connection(listener.getsockname(), timeout=5)
    server, _ = listener.accept()
    server.settimeout(5)
    with listener, client, server:
        ends = tuple(f"{host}:{port}" for host, port in (client.getsockname(), client.getpeername()))
        before = traffic.tcp_sockets()
        client.sendall(b"x" * 5000)
        assert server.recv(5000, socket.MSG_WAITALL) == b"x" * 5000
        changes = {(c["local"], c["peer"]): c for c in traffic.difference(traffic.tcp_sockets(), before)}
    assert changes[ends]["sent"] == 5000 and changes[ends]["received"] == 0
    assert changes[ends[::-1]]["received"] == 5000 and changes[ends[::-1]]["sent"] == 0


def test_language_model_is_large_enough():
    assert models.parameter_count(models.ByteLanguageModel()) >= 5_000_000


def library(folder, files):
    for index in range(files):
        (folder / f"m{index:02d}.py").write_text(f"# {index:02d} " + "x" * 20_000)
    (folder / "test").mkdir()
    (folder / "test" / "test_a.py").write_text("left out")
    return folder


def test_held_out_files_are_not_trained_on(tmp_path):
    train, held_out = data.read_standard_library(library(tmp_path, 12))
    assert held_out.count(b"# ") == 2 and b"# 00" in held_out and b"# 10" in held_out
    assert train.count(b"# ") == 10 and b"# 00" not in train
    assert b"left out" not in train + held_out


def test_too_little_text_is_refused(tmp_path):
    with pytest.raises(RuntimeError, match="needs the standard library"):
        data.read_standard_library(tmp_path)


def test_ranks_share_out_the_test_images_without_overlap():
    shares = [next(data.Digits(rank, WORKERS, seed=1).held_out_batches())[0] for rank in range(WORKERS)]
    assert sum(len(share) for share in shares) == 360
    again = next(data.Digits(0, WORKERS, seed=1).held_out_batches())[0]
    assert (again == shares[0]).all()


def test_clicks_are_the_same_in_every_run_and_different_on_every_rank():
    batches = [next(data.Clicks(rank, WORKERS, seed=1, items=5000).train_batches()) for rank in (0, 1, 0)]
    assert all((a == b).all() for a, b in zip(batches[0], batches[2], strict=True))
    assert not (batches[0][0] == batches[1][0]).all()
    items, clicked = batches[0]
    assert items.shape == (128, 9) and items.min() >= 0 and items.max() < 5000
    # Of items with frequencies by Zipf's law, some are drawn often and most never.
    counts = items.flatten().bincount(minlength=5000)
    assert counts.max() > 40 and (counts == 0).sum() > 4000
    assert 30 < clicked.sum() < 98


def test_the_recommender_has_the_same_gradients_sparse_and_dense():
    items, clicked = next(data.Clicks(0, WORKERS, seed=1, items=2000).train_batches())
    gradients = []
    for sparse in (False, True):
        torch.manual_seed(1)
        model = models.Recommender(items=2000, sparse=sparse)
        torch.nn.functional.cross_entropy(model(items), clicked).backward()
        assert model.items.weight.grad.is_sparse == sparse
        gradients.append(model.items.weight.grad.to_dense())
    assert torch.allclose(*gradients, atol=1e-7) and (gradients[0] == 0).all(dim=1).sum() > 1000
    assert models.parameter_count(models.Recommender()) > 200_000 * 16


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--models", "cats"], "'cats' is none of digits, lm"),
        (["--backends", "gloo,mpi"], "'mpi' is none of gloo, netsum"),
        (["--workers", "1"], "'1' is not a number from 2 to 16"),
        (["--steps", "-3"], "-3"),
        (["--rate", "100"], "'100' is no rate"),
        (["--place", "moon"], "moon"),
    ],
)
def test_bad_options_are_named(arguments, complaint, capsys):
    with pytest.raises(SystemExit) as stopped:
        demo.parse_arguments(arguments)
    assert stopped.value.code == 2
    assert complaint in capsys.readouterr().err


def test_steps():
    for place in ("rack", "loopback"):
        assert demo.steps_for("lm", place, demo.parse_arguments([])) == demo.STEPS[place]["lm"]
        assert demo.steps_for("digits", place, demo.parse_arguments(["--quick"])) == demo.STEPS[place]["digits"] // 5
        assert demo.steps_for("lm", place, demo.parse_arguments(["--quick", "--steps", "7"])) == 7


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_stop_ends_children_in_other_sessions(tmp_path):
    script = tmp_path / "family.py"
    script.write_text(
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with children.Child([sys.executable, script], tmp_path / "log") as child:
        deadline = time.monotonic() + 20
        while not (text := (tmp_path / "log").read_text()).endswith("\n") and time.monotonic() < deadline:
            time.sleep(0.02)
        grandchild = int(text)
        assert alive(grandchild)
    assert not child.running()
    deadline = time.monotonic() + 20
    while alive(grandchild) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(grandchild)


def fake_netsum(folder, monkeypatch, body):
    command = folder / "netsum"
    command.write_text(f"#!/bin/sh\n{body}\n")
    command.chmod(0o755)
    monkeypatch.setattr(children, "find_netsum_command", lambda: command)


def test_aggregator_tells_its_address_and_in_the_end_its_counters(tmp_path, monkeypatch):
    fake_netsum(
        tmp_path,
        monkeypatch,
        "trap 'echo 2026-01-01T00:00:00.000+00:00 info  counters packets_sent=7 bytes_summed=42; exit' TERM\n"
        "echo set on workers: NETSUM_AGGREGATOR=127.0.0.1:5151\n"
        "while :; do sleep 0.05; done",
    )
    with children.Aggregator(tmp_path / "log") as daemon:
        assert daemon.address == "127.0.0.1:5151"
        assert places.counters_in(tmp_path / "log") == {}
    assert places.counters_in(tmp_path / "log") == {"packets_sent": 7, "bytes_summed": 42}


def test_aggregator_that_does_not_start_is_explained(tmp_path, monkeypatch):
    fake_netsum(tmp_path, monkeypatch, "echo no such thing >&2; exit 3")
    with pytest.raises(children.DemoError, match=r"exit code 3(.|\n)*no such thing"):
        children.Aggregator(tmp_path / "log")


def test_equal_last_words_are_told_once(tmp_path):
    for rank, words in enumerate(["boom", "boom", "other", ""]):
        folder = tmp_path / "attempt_0" / str(rank)
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text(f"[rank{rank}]: {words}\n" if words else "")
    assert children.last_words(tmp_path) == {"    boom": ["0", "1"], "    other": ["2"]}


def fake_torchrun(folder, monkeypatch, body):
    """Takes Python's place in a training on loopback; its folder of logs is $LOGS. Returns the run."""
    run = demo.Run("digits", "gloo", 2, 5, 1, folder / "run", stall_s=1)
    children.clear(run)
    python = folder / "python"
    python.write_text(f"#!/bin/sh\nLOGS={run.folder}/logs/x/attempt_0/0; mkdir -p $LOGS\n{body}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    return run


def train(run, show_progress=lambda progress, elapsed_s: None):
    with places.Loopback().training(run) as starts:
        return children.run_training(run, starts, show_progress)


def test_failed_training_is_explained(tmp_path, monkeypatch):
    run = fake_torchrun(tmp_path, monkeypatch, "echo '[rank0]: no such luck' > $LOGS/stderr.log; exit 1")
    with pytest.raises(children.DemoError, match="training digits with gloo failed") as failure:
        train(run)
    assert "    no such luck" in str(failure.value) and "--models digits --backends gloo" in str(failure.value)


def test_training_that_hangs_is_ended(tmp_path, monkeypatch):
    run = fake_torchrun(tmp_path, monkeypatch, "echo $$; exec sleep 60")
    with pytest.raises(children.DemoError, match="no progress for 1 s"):
        train(run)
    assert not alive(int((run.folder / "torchrun.log").read_text()))


def test_progress_of_a_training_is_passed_on(tmp_path, monkeypatch):
    run = fake_torchrun(
        tmp_path, monkeypatch, 'printf \'{"step": 3, "loss": 1.5}\\n{"st\' > $LOGS/../../../../progress.jsonl'
    )
    seen = []
    assert train(run, lambda progress, elapsed_s: seen.append(progress)) < 60
    assert seen[-1] == {"step": 3, "loss": 1.5}


def test_progress_line_without_a_terminal(tmp_path):
    out = io.StringIO()
    line = demo.ProgressLine(demo.Run("lm", "netsum", 4, 10, 1, tmp_path), 2, 4, out)
    for elapsed_s in (0, 1, 2, 6):
        line({"step": 5, "loss": 2.5}, elapsed_s)
    line.end("done")
    assert out.getvalue().splitlines() == [
        "[2/4] Language model with netsum: ##########.......... step 5/10  loss 2.500  0 s",
        "[2/4] Language model with netsum: ##########.......... step 5/10  loss 2.500  6 s",
        "[2/4] Language model with netsum: done",
    ]
