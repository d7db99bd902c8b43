"""Class-parallel serving of examples/serving: groups, pruning, requests that are refused, and a rank that dies under load."""

import argparse
import asyncio
import collections
import concurrent.futures
import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

import aiohttp
import pytest
import serving
import subnets

import torch
from torch import nn

SCRIPT = pathlib.Path(serving.__file__)
START_S = 120
CALL_S = 30
GONE_S = 30
QUEUE = 64
BURST = 1000
torch.set_num_threads(1)  # on few cores, which the ranks share


def test_alike_classes_are_in_one_group_and_sizes_differ_by_one_at_most():
    means = [[0, 0], [10, 0], [0, 10], [0.1, 0], [10.1, 0], [0, 10.1], [0, 10.2]]
    assert sorted(subnets.group_classes(means, 3)) == [[0, 3], [1, 4], [2, 5, 6]]
    for groups in range(1, 8):
        found = subnets.group_classes(means, groups)
        assert sorted(one for group in found for one in group) == list(range(7))
        assert max(map(len, found)) - min(map(len, found)) <= 1


@pytest.mark.parametrize("groups", [0, -1, 8])
def test_a_group_of_no_classes_is_refused(groups):
    with pytest.raises(subnets.BadModel, match=rf"{groups} groups of 7 classes"):
        subnets.group_classes([[float(i)] for i in range(7)], groups)


def test_a_layer_that_cannot_be_pruned_is_named():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.PReLU(4), nn.Flatten(), nn.Linear(144, 10))
    with pytest.raises(subnets.BadModel, match=r"cannot be pruned: 2 \(PReLU\)"):
        subnets.prune(model, torch.rand(4, 1, 8, 8), 0.5)
    with pytest.raises(subnets.BadModel, match=r"no nn\.Linear"):
        subnets.prune(nn.Sequential(nn.Conv2d(1, 10, 8)), torch.rand(4, 1, 8, 8), 0.5)


def test_the_channels_that_the_images_do_not_use_are_taken_away():
    model = nn.Sequential(nn.Conv2d(1, 4, 1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 2))
    with torch.no_grad():
        model[0].weight[:] = torch.tensor([1.0, -1.0, 2.0, -2.0]).view(4, 1, 1, 1)
        model[0].bias[:] = 0
    subnets.prune(model, torch.rand(8, 1, 8, 8), 0.5)
    assert model[0].weight.flatten().tolist() == [1.0, 2.0]
    assert model[3].in_features == 128


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "in JSON"),
        (b"[1]", "in JSON"),
        (b'{"picture": 1}', "in JSON"),
        (b"[" * 100_000, "in JSON"),
        (b'{"image": [[0, 0], [0]]}', "nested lists"),
        (b'{"image": "cat"}', "nested lists"),
        (b'{"image": [[0, 0]]}', r"shape \[1, 2\]; it must be \[1, 8, 8\]"),
        (b'{"image": [' + json.dumps([[1e999] * 8] * 8).encode() + b"]}", "not finite"),
    ],
)
def test_a_bad_image_is_refused_with_the_reason(body, message):
    with pytest.raises(ValueError, match=message):
        serving.read_image(body, [1, 8, 8])


def small_model():
    layers = (nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 10))
    return nn.Sequential(*layers)


def few_digits():
    return {part: (images[:200], labels[:200]) for part, (images, labels) in subnets.digits_data().items()}


def call(url, body=None):
    try:
        with urllib.request.urlopen(url, body, timeout=CALL_S) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Of a model that is hardly trained: what is served is compared with the subnets."""
    path = tmp_path_factory.mktemp("digits")
    subnets.prepare(path, epochs=1, model="test_serving:small_model", data="test_serving:few_digits")
    return path


@contextlib.contextmanager
def serve(folder, log, *flags, **environment):
    """Yields the process, the URL and the processes of the ranks. All of them must end in order, unless the rank of the
    requests has been killed."""
    command = [sys.executable, SCRIPT, "serve", folder, "--listen", "127.0.0.1:0", "--queue", str(QUEUE), *flags]
    with log.open("w") as output:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    try:
        end = time.monotonic() + START_S
        while not (ready := re.search(r"ready: (http\S+)/classify", log.read_text())):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.05)
        pids = [int(pid) for pid in re.search(r"processes (.*)", log.read_text()).group(1).split()]
        yield process, ready.group(1), pids
    finally:
        process.terminate()
        try:
            process.wait(GONE_S)
        finally:
            process.kill()
    assert not [pid for pid in pids if pathlib.Path(f"/proc/{pid}").exists()]


@pytest.fixture
def server(folder, tmp_path):
    with serve(folder, tmp_path / "log", "--spares", "1") as found:
        yield found
    assert found[0].returncode == 0, (tmp_path / "log").read_text()


def test_no_request_is_lost_when_a_rank_dies_and_the_spare_takes_over(folder, server):
    _, url, pids = server
    report = subnets.read_groups(folder)
    image = subnets.digits_data()["test"][0][0]
    expected = serving.expected_scores(folder, report, image)
    body = json.dumps({"image": image.tolist()}).encode()

    def one(number):
        if number == 40:
            os.kill(pids[3], signal.SIGKILL)
        return call(f"{url}/classify", body)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(one, range(200)))
    for status, text in replies:
        answer = json.loads(text)
        assert status == 200, text
        assert answer["complete"] == (not answer["missing"])
        assert sorted([*map(int, answer["scores"]), *answer["missing"]]) == list(range(10))
        for name, score in answer["scores"].items():
            assert score == pytest.approx(expected[int(name)], abs=1e-4)
    end = time.monotonic() + CALL_S
    while not json.loads(call(f"{url}/classify", body)[1])["complete"]:
        assert time.monotonic() < end
    assert "serving_lost_ranks 1.0" in call(f"{url}/metrics")[1]
    # Without a further spare, the classes are missing, and the answers say so.
    os.kill(pids[4], signal.SIGKILL)
    end = time.monotonic() + CALL_S
    while "serving_lost_ranks 2.0" not in call(f"{url}/metrics")[1]:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert json.loads(call(f"{url}/classify", body)[1])["missing"] == report["groups"][4]
    assert call(f"{url}/classify", b"{")[0] == 400


@pytest.mark.soak  # another server, which imports PyTorch for each rank
def test_a_site_that_needs_few_classes_has_a_rank_for_each_of_their_groups(folder, tmp_path):
    report = subnets.read_groups(folder)
    first, second = report["groups"][1][1], report["groups"][3][0]
    image = subnets.digits_data()["test"][0][0]
    expected = serving.expected_scores(folder, report, image)
    with serve(folder, tmp_path / "log", "--classes", f"{first},{second}") as (_, url, pids):
        answer = json.loads(call(f"{url}/classify", json.dumps({"image": image.tolist()}).encode())[1])
        metrics = call(f"{url}/metrics")[1]
    assert len(pids) == 2
    assert answer["complete"]
    assert answer["missing"] == []
    assert answer["scores"] == {str(one): pytest.approx(expected[one], abs=1e-4) for one in (first, second)}
    assert int(answer["class"]) == max(first, second, key=expected.get)
    assert "serving_missing_classes 0.0" in metrics


def test_classes_that_cannot_be_served_are_refused(folder):
    report = subnets.read_groups(folder)
    assert serving.served(report, []) == dict(enumerate(report["groups"]))
    assert serving.served(report, [report["groups"][2][0]]) == {2: report["groups"][2][:1]}
    with pytest.raises(subnets.BadModel, match="no class 10; the model has 0 to 9"):
        serving.served(report, [3, 10])
    for text in ("", "3,", "three", "3;4"):
        with pytest.raises(argparse.ArgumentTypeError, match="write numbers of classes"):
            serving.class_list(text)


async def burst(url, body, count):
    """[(status, seconds to try again in, answer)] of requests at the same time, each on a connection of its own."""
    limits = aiohttp.ClientTimeout(total=CALL_S)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=limits) as session:

        async def one():
            async with session.post(f"{url}/classify", data=body) as reply:
                return reply.status, reply.headers.get("Retry-After"), await reply.json()

        return await asyncio.gather(*(one() for _ in range(count)))


def outcomes(url):
    found = re.findall(r'serving_requests_total\{outcome="(\w+)"\} (\d+)', call(f"{url}/metrics")[1])
    return collections.Counter({name: int(count) for name, count in found})


@pytest.mark.soak
def test_every_request_of_a_burst_is_answered_or_refused(folder, tmp_path):
    """Also while a rank hangs. What the client counts, the server counts."""
    body = json.dumps({"image": torch.rand(1, 8, 8).tolist()}).encode()
    with serve(folder, tmp_path / "log", "--spares", "1", NETSUM_LIVENESS_TIMEOUT="60s") as (_, url, pids):
        for hangs in (False, True):
            before = outcomes(url)
            if hangs:
                os.kill(pids[3], signal.SIGSTOP)
            try:
                replies = asyncio.run(burst(url, body, BURST))
            finally:
                os.kill(pids[3], signal.SIGCONT)
            kinds = collections.Counter()
            for status, again, answer in replies:
                assert (status, again) in ((200, None), (503, "1")), answer
                kinds["overload" if status == 503 else "complete" if answer["complete"] else "incomplete"] += 1
            assert kinds == outcomes(url) - before
            assert kinds.total() == BURST
            if hangs:
                assert kinds["incomplete"] > 0
                assert kinds["overload"] > 0
            end = time.monotonic() + CALL_S
            while call(f"{url}/classify", body)[0] == 503:
                assert time.monotonic() < end
        assert json.loads(call(f"{url}/classify", body)[1])["complete"]


def test_without_the_rank_of_the_requests_clients_are_refused_and_the_others_end_with_an_error(folder, tmp_path):
    log = tmp_path / "log"
    body = json.dumps({"image": torch.rand(1, 8, 8).tolist()}).encode()
    with serve(folder, log) as (process, url, pids):
        assert call(f"{url}/classify", body)[0] == 200
        os.kill(pids[0], signal.SIGKILL)
        process.wait(GONE_S)
        assert not [pid for pid in pids if pathlib.Path(f"/proc/{pid}").exists()]
        with pytest.raises(urllib.error.URLError, match="refused"):
            call(f"{url}/classify", body)
    assert process.returncode == 1
    for rank in range(1, len(pids)):
        assert f"serving: rank {rank} ends: rank 0, which takes the requests, is lost" in log.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--queue", "0"], "--queue: '0' is not a whole number from 1 on"),
        (["--batch", "-1"], "--batch: '-1' is not"),
        (["--rank", "2"], "--rank: also give --ranks"),
        (["--classes", "1,12"], "there is no class 12"),
    ],
)
def test_wrong_options_are_refused(folder, capsys, monkeypatch, arguments, message):
    monkeypatch.setattr(sys, "argv", ["serving.py", "serve", str(folder), *arguments])
    try:
        status = serving.main()
    except SystemExit as ended:
        status = ended.code
    assert status == 2
    assert message in capsys.readouterr().err


def test_a_port_in_use_is_an_error(folder):
    with serving.listen("127.0.0.1:0") as taken, pytest.raises(subnets.BadModel, match="choose another"):
        serving.listen(f"127.0.0.1:{taken.getsockname()[1]}")


@pytest.mark.soak
def test_subnets_of_the_digits_are_as_good_as_the_base_with_half_of_its_parameters(tmp_path):
    report = subnets.prepare(tmp_path)
    assert report["accuracy"]["test"][report["score"]] >= report["accuracy"]["base"] - 0.5
    assert max(one["parameters"] for one in report["subnets"]) <= report["base"]["parameters"] / 2
