#!/usr/bin/env python3
"""Class-parallel serving: a classifier of many classes as small subnets, one per group of classes, on a rank each.

  python serving.py prepare digits                      trains, groups, prunes, retrains, exports into the folder digits
  python serving.py prepare f --model my:net --data my:data --groups 4      a small CNN of your own
  python serving.py serve digits --spares 1             all ranks on this host; HTTP at 127.0.0.1:8000
  python serving.py serve digits --rank 2 --ranks 6 --master 10.0.0.1:29500 one rank, by hand, on its own host
  python serving.py bench digits --rounds 5             latency and throughput of netsum, Gloo and the base on one rank
  curl -d '{"image": [[[0, ...], ...]]}' 127.0.0.1:8000/classify
  {"class": 3, "complete": true, "missing": [], "scores": {"0": -7.1, ...}}

my:net returns an nn.Module of Conv2d (without groups), Linear and BatchNorm, whose last Linear has the classes. my:data returns
{"train": (images, labels), "validation": ..., "test": ...}.
NETSUM_AGGREGATOR has the aggregator; without one, the ranks sum themselves.
"""

import argparse
import asyncio
import ctypes
import json
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import signal
import socket
import statistics
import sys
import time

import pattern
import subnets
import torch.distributed as dist

import torch

LIMIT_S = 0.8  # of a request; then its answer is incomplete
BODY_BYTES = 4 << 20
EXIT_S = 10
ANSWER_S = 300  # of a system of the benchmark
CLONE_NEWNET = 0x40000000
SYSTEMS = ("netsum", "gloo", "base")
FIGURES = (
    *("p50, ms", "p99, ms", "requests/s, one by one", "requests/s, pipelined"),
    "bytes of a request on rank 0's link",
)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def runner(folder, report, groups):
    """run_group of pattern.Member: all programs are loaded at the start, as a spare may need each at any time."""
    programs = [subnets.load_program(pathlib.Path(folder) / f"subnet-{group}.pt") for group in groups]

    def run_group(group, images):
        with torch.inference_mode():
            return subnets.scores_of(programs[group](images.contiguous()), report["score"])

    run_group(0, torch.zeros(1, *report["image"]))
    return run_group


def expected_scores(folder, report, image):
    """Of all classes, computed here, one group after the other."""
    run_group = runner(folder, report, range(len(report["groups"])))
    scores = {}
    for group, classes in enumerate(report["groups"]):
        scores.update(zip(classes, run_group(group, image.unsqueeze(0))[0].tolist(), strict=True))
    return scores


def read_image(body, shape):
    """The image of a request; raises ValueError with what is wrong."""
    try:
        values = json.loads(body)["image"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f'the body must be {{"image": [...]}} in JSON: {type(error).__name__}: {error}') from error
    try:
        image = torch.tensor(values, dtype=torch.float32)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise ValueError(f"the image must be nested lists of numbers, {shape}: {error}") from error
    if list(image.shape) != list(shape):
        raise ValueError(f"the image has the shape {list(image.shape)}; it must be {list(shape)}")
    if not image.isfinite().all():
        raise ValueError("the image has a number that is not finite")
    return image


def application(front, report, limit_s):
    import prometheus_client as prometheus
    from aiohttp import web

    registry = prometheus.CollectorRegistry()
    requests = prometheus.Counter("serving_requests", "Requests by outcome", ["outcome"], registry=registry)
    seconds = prometheus.Histogram("serving_request_seconds", "Time of a request", registry=registry)
    gauges = {
        "serving_waiting_requests": ("Requests that wait to be sent", front.waiting),
        "serving_missing_classes": ("Classes whose group has no rank", lambda: len(missing_now())),
        "serving_lost_ranks": ("Ranks lost since the start", lambda: front.counts["lost"]),
    }
    for name, (text, function) in gauges.items():
        prometheus.Gauge(name, text, registry=registry).set_function(function)

    def missing_now():
        return front.missing([group for group, rank in enumerate(front.owner) if rank is not None])

    def failed(status, outcome, message):
        requests.labels(outcome).inc()
        headers = {"Retry-After": "1"} if status == 503 else {}
        return web.json_response({"error": message}, status=status, headers=headers)

    async def classify(request):
        began = time.monotonic()
        try:
            image = read_image(await request.read(), report["image"])
        except ValueError as error:
            return failed(400, "bad", str(error))
        try:
            waiting = front.submit(image)
        except pattern.Full:
            return failed(503, "overload", "too many requests wait; try again later")
        try:
            scores, missing = await asyncio.wait_for(asyncio.wrap_future(waiting.answer), limit_s)
        except asyncio.TimeoutError:  # which has cancelled the answer, so that the request is not sent any more
            scores, missing = front.own_answer(image)
        requests.labels("incomplete" if missing else "complete").inc()
        seconds.observe(time.monotonic() - began)
        best = max(scores, key=scores.get)
        return web.json_response({"class": best, "complete": not missing, "missing": missing, "scores": scores})

    async def metrics(_):
        return web.Response(body=prometheus.generate_latest(registry), content_type="text/plain", charset="utf-8")

    async def healthz(_):
        return web.json_response({"missing": missing_now(), "lost_ranks": front.counts["lost"]})

    app = web.Application(client_max_size=BODY_BYTES)
    app.add_routes([web.post("/classify", classify), web.get("/metrics", metrics), web.get("/healthz", healthz)])
    return app


def serve_rank(options):
    torch.set_num_threads(1)
    report = subnets.read_groups(options.folder)
    groups = report["groups"]
    run_group = runner(options.folder, report, range(len(groups)))
    if options.rank == 0:  # before the others wait for this rank
        listening = listen(options.listen)
    pattern.join(options.backend, options.rank, options.ranks, options.master)
    if options.rank > 0:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all ranks; rank 0 stops the others
        try:
            pattern.Subnet(groups, report["image"], run_group, options.batch).serve()
            dist.destroy_process_group()
        except Exception as error:  # of any kind: this rank is of no more use
            print(f"serving: rank {options.rank} ends: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        return
    from aiohttp import web

    front = pattern.Front(
        *(groups, report["image"], run_group, options.batch),
        waiting=options.queue,
        on_failure=lambda: os.kill(os.getpid(), signal.SIGTERM),
    )
    host, port = listening.getsockname()[:2]
    print(f"serving: ready: http://{host}:{port}/classify", flush=True)
    try:
        web.run_app(application(front, report, options.limit), sock=listening, print=None, shutdown_timeout=2)
    finally:
        front.stop()
        dist.destroy_process_group()
    if front.failure is not None:
        sys.exit(f"serving: rank 0 ends: {front.failure}")


def listen(address):
    host, _, port = address.rpartition(":")
    try:
        return socket.create_server((host, int(port)), backlog=1024)
    except (OSError, ValueError, OverflowError) as error:
        raise subnets.BadModel(f"--listen {address}: {error}; choose another HOST:PORT") from error


def fork_ranks(function, options, ranks, *arguments):
    """Processes of all ranks, which call the function; forked, which saves the seconds of importing torch."""
    torch.set_num_threads(1)  # and no thread here
    processes = []
    for rank in range(ranks):
        mine = argparse.Namespace(**{**vars(options), "rank": rank, "ranks": ranks})
        processes.append(multiprocessing.get_context("fork").Process(target=function, args=(mine, *arguments)))
        processes[-1].start()
    return processes


def end(processes, wait_s):
    for process in processes:
        process.join(wait_s)
        if process.is_alive():
            process.kill()
            process.join()


def serve(options):
    if options.rank is not None:
        return serve_rank(options)
    ranks = len(subnets.read_groups(options.folder)["groups"]) + options.spares
    listen(options.listen).close()  # an error before any rank is started
    os.environ.setdefault("NETSUM_LIVENESS_TIMEOUT", "800ms")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    options.master = f"127.0.0.1:{free_port()}"
    processes = fork_ranks(serve_rank, options, ranks)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: processes[0].terminate())
    print(f"serving: ranks have the processes {' '.join(str(p.pid) for p in processes)}", flush=True)
    processes[0].join()
    code = processes[0].exitcode
    end(processes[1:], EXIT_S if code == 0 else 0)
    return 0 if code == 0 else 1


# --- The benchmark


def enter(options):
    """Enters the network namespace of the rank, if there are any."""
    if options.netns:
        with open(f"/run/netns/{options.netns.format(rank=options.rank)}", encoding="ascii") as space:
            if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), f"setns {space.name}")
        os.environ["GLOO_SOCKET_IFNAME"] = next(name for _, name in socket.if_nameindex() if name != "lo")


def bench_rank(options, pipe):
    """Rank 0 receives ("latency" or "throughput", count), and sends what it measures; None ends it."""
    enter(options)
    report = subnets.read_groups(options.folder)
    groups = report["groups"]
    run_group = runner(options.folder, report, range(len(groups)))
    pattern.join(options.backend, options.rank, options.ranks, options.master)
    if options.rank > 0:
        pattern.Subnet(groups, report["image"], run_group).serve()
        dist.destroy_process_group()
        return
    front = pattern.Front(groups, report["image"], run_group, waiting=1 << 16)
    image = torch.rand(report["image"])
    pipe.send("ready")
    while order := pipe.recv():
        before = carried(options.backend, front)
        answer = measure(*order, lambda: front.submit(image))
        if before is not None:
            answer["bytes"] = (carried(options.backend, front) - before) / order[1]
        pipe.send(answer)
    front.stop()
    dist.destroy_process_group()


def carried(backend, front):
    """Bytes that rank 0's link has sent and received, with headers."""
    if backend != "netsum":
        return None
    import netsum.torch

    stats = [netsum.torch.stats(), netsum.torch.stats(front.gathers)]
    return sum(one[key] for one in stats for key in ("bytes_sent", "bytes_received"))


def measure(kind, count, submit):
    began, times = time.monotonic(), []
    if kind == "latency":
        for _ in range(count):
            start = time.monotonic()
            submit().answer.result(pattern.TIMEOUT_S)
            times.append(1e3 * (time.monotonic() - start))
    else:
        for request in [submit() for _ in range(count)]:
            request.answer.result(pattern.TIMEOUT_S)
    return {"times": times, "rate": count / (time.monotonic() - began)}


def base_rank(options, pipe):
    """The base on one rank, without any network."""
    base = subnets.load_program(pathlib.Path(options.folder) / "base.pt")
    image = torch.rand(1, *subnets.read_groups(options.folder)["image"])
    pipe.send("ready")
    while order := pipe.recv():
        times = []
        with torch.inference_mode():
            for _ in range(order[1]):
                start = time.monotonic()
                base(image)
                times.append(1e3 * (time.monotonic() - start))
        pipe.send({"times": times, "rate": 1e3 * order[1] / sum(times)})


def quantile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def spread(values):
    return f"{statistics.median(values):.2f} [{min(values):.2f} - {max(values):.2f}]"


def received(name, pipe, process):
    ready = multiprocessing.connection.wait([pipe, process.sentinel], ANSWER_S)
    if pipe not in ready:
        raise subnets.BadModel(f"{name} has {'ended' if ready else 'not answered'}; its ranks have printed why")
    return pipe.recv()


def bench(options):
    ranks = len(subnets.read_groups(options.folder)["groups"])
    unknown = set(options.systems) - set(SYSTEMS)
    if unknown:
        raise subnets.BadModel(f"--systems {','.join(sorted(unknown))}: choose from {','.join(SYSTEMS)}")
    if not options.netns:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    host, _, port = (options.master or f"127.0.0.1:{free_port()}").rpartition(":")
    os.environ.setdefault("NETSUM_SHARED_MEMORY", "0")  # the ranks are those of separate hosts
    systems = {}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the ranks end
    try:
        for index, name in enumerate(options.systems):
            options.backend, options.master = name, f"{host}:{int(port) + index}"
            pipe, theirs = multiprocessing.Pipe()
            function = base_rank if name == "base" else bench_rank
            systems[name] = (pipe, fork_ranks(function, options, 1 if name == "base" else ranks, theirs))
        for name, (pipe, processes) in systems.items():
            received(name, pipe, processes[0])
        found = {name: {figure: [] for figure in FIGURES} for name in systems}
        for turn in range(options.rounds + 1):  # the first one warms up
            for name, (pipe, processes) in systems.items():
                got = {}
                for kind in ("latency", "throughput"):
                    pipe.send((kind, options.requests))
                    got[kind] = received(name, pipe, processes[0])
                if turn > 0:
                    one, times = found[name], got["latency"]["times"]
                    one["p50, ms"].append(quantile(times, 0.5))
                    one["p99, ms"].append(quantile(times, 0.99))
                    one["requests/s, one by one"].append(got["latency"]["rate"])
                    one["requests/s, pipelined"].append(got["throughput"]["rate"])
                    one["bytes of a request on rank 0's link"].append(got["throughput"].get("bytes", float("nan")))
        print("| system | " + " | ".join(FIGURES) + " |\n| -- |" + " --: |" * len(FIGURES))
        for name, one in found.items():
            print(f"| {name} | " + " | ".join(spread(values) for values in one.values()) + " |", flush=True)
        for pipe, _ in systems.values():
            pipe.send(None)
    except BaseException:
        for _, processes in systems.values():
            end(processes, 0)
        raise
    for _, processes in systems.values():
        end(processes, EXIT_S)
    return 0


def prepare(options):
    chosen = {key: getattr(options, key) for key in ("groups", "share", "epochs", "seed", "model", "data")}
    sys.path.insert(0, os.getcwd())
    report = subnets.prepare(options.folder, **chosen)
    print(json.dumps(report, indent=1))
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    make = commands.add_parser("prepare", help="train, group, prune, retrain and export")
    make.set_defaults(run=prepare)
    make.add_argument("--groups", type=int, default=5, help="of classes (5)")
    make.add_argument("--share", type=float, default=0.5, help="of the channels of each layer that is taken away (0.5)")
    make.add_argument("--epochs", type=int, default=30, help="of the base and of each subnet (30)")
    make.add_argument("--seed", type=int, default=1)
    make.add_argument("--model", default="", metavar="MODULE:FUNCTION", help="your model (a CNN for the digits)")
    make.add_argument("--data", default="", metavar="MODULE:FUNCTION", help="your data (scikit-learn's digits)")
    run = commands.add_parser("serve", help="answer requests by HTTP")
    run.set_defaults(run=serve)
    run.add_argument("--listen", default="127.0.0.1:8000", metavar="HOST:PORT")
    run.add_argument("--spares", type=int, default=0, help="further ranks, which take the place of lost ones (0)")
    run.add_argument("--limit", type=float, default=LIMIT_S, help=f"seconds until an incomplete answer ({LIMIT_S})")
    run.add_argument("--batch", type=int, default=1, help="images that may travel together; 1: no batching (1)")
    run.add_argument("--queue", type=int, default=256, help="requests that may wait; further ones get 503 (256)")
    test = commands.add_parser("bench", help="measure")
    test.set_defaults(run=bench)
    test.add_argument("--systems", type=lambda text: text.split(","), default=list(SYSTEMS))
    test.add_argument("--rounds", type=int, default=5)
    test.add_argument("--requests", type=int, default=300, help="of each system and round, for each figure (300)")
    test.add_argument("--netns", default="", metavar="NAME", help='network namespaces: "netsum-rack-w{rank}" (root)')
    test.add_argument("--master", default="", metavar="HOST:PORT", help="with --netns: where rank 0 has its store")
    for one in (make, run, test):
        one.add_argument("folder")
    run.add_argument("--rank", type=int, help="be this rank, instead of starting all of them here")
    run.add_argument("--ranks", type=int, help="with --rank: how many there are, spares included")
    run.add_argument("--master", default="", metavar="HOST:PORT", help="with --rank: where rank 0 has its store")
    run.add_argument("--backend", default="netsum", choices=["netsum", "gloo"])
    options = parser.parse_args()
    try:
        return options.run(options)
    except (subnets.BadModel, BrokenPipeError) as error:
        print(f"serving: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
