#!/usr/bin/env python3
"""Class-parallel serving: a classifier of many classes as small subnets, one per group of classes, on a rank each.

  python serving.py prepare digits                      trains, groups, prunes, retrains, exports into the folder digits
  python serving.py prepare f --model my:net --data my:data --groups 4      a small CNN of your own
  python serving.py serve digits --spares 1             all ranks on this host; HTTP at 127.0.0.1:8000
  python serving.py serve digits --classes 3,8          only the groups that have these classes, on a rank each
  python serving.py serve digits --rank 2 --ranks 6 --master 10.0.0.1:29500 one rank, by hand, on its own host
  curl -d '{"image": [[[0, ...], ...]]}' 127.0.0.1:8000/classify
  {"class": 3, "complete": true, "missing": [], "scores": {"0": -7.1, ...}}

my:net returns an nn.Module of Conv2d (without groups), Linear and BatchNorm, whose last Linear has the classes. my:data returns
{"train": (images, labels), "validation": ..., "test": ...}.
NETSUM_AGGREGATOR has the aggregator; without one, the ranks sum themselves.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import pathlib
import signal
import socket
import sys
import time

# Before PyTorch is loaded: ranks print what a lost connection means, instead of its stack traces.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

import pattern
import subnets
import torch.distributed as dist

import torch

LIMIT_S = 0.8  # of a request; then its answer is incomplete
BODY_BYTES = 4 << 20
EXIT_S = 20


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def served(report, classes):
    """{number of a group: those of its classes that are served}; without `classes`, all."""
    known = range(report["classes"])
    unknown = sorted(set(classes) - set(known))
    if unknown:
        raise subnets.BadModel(f"--classes: there is no class {unknown[0]}; the model has {known[0]} to {known[-1]}")
    wanted = set(classes or known)
    found = {number: [one for one in group if one in wanted] for number, group in enumerate(report["groups"])}
    return {number: group for number, group in found.items() if group}


def runner(folder, report, parts):
    """run_group of pattern.Member, of the groups that `parts` (served()) has, numbered from 0. All programs are loaded at the start,
    as a spare may need each at any time."""
    programs, columns = [], []
    for number, classes in parts.items():
        programs.append(subnets.load_program(pathlib.Path(folder) / f"subnet-{number}.pt"))
        columns.append([report["groups"][number].index(one) for one in classes])

    def run_group(group, images):
        with torch.inference_mode():
            return subnets.scores_of(programs[group](images.contiguous()), report["score"])[:, columns[group]]

    run_group(0, torch.zeros(1, *report["image"]))
    return run_group


def expected_scores(folder, report, image):
    """Of all classes, computed here, one group after the other."""
    parts = served(report, [])
    run_group = runner(folder, report, parts)
    scores = {}
    for group, classes in enumerate(parts.values()):
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
    parts = served(report, options.classes)
    groups, run_group = list(parts.values()), runner(options.folder, report, parts)
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


def number_from(least):
    def parse(text):
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} on")
        return int(text)

    return parse


def class_list(text):
    try:
        return [int(one) for one in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: write numbers of classes, such as 3,8") from None


def listen(address):
    host, _, port = address.rpartition(":")
    try:
        return socket.create_server((host, int(port)), backlog=1024)
    except (OSError, ValueError, OverflowError) as error:
        raise subnets.BadModel(f"--listen {address}: {error}; choose another HOST:PORT") from error


def fork_ranks(options, ranks):
    """Processes of all ranks; forked, which saves the seconds of importing torch."""
    torch.set_num_threads(1)  # and no thread here
    processes = []
    for rank in range(ranks):
        mine = argparse.Namespace(**{**vars(options), "rank": rank, "ranks": ranks})
        processes.append(multiprocessing.get_context("fork").Process(target=serve_rank, args=(mine,)))
        processes[-1].start()
    return processes


def end(processes, wait_s):
    deadline = time.monotonic() + wait_s
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()


def serve(options):
    if options.rank is not None:
        if options.ranks is None or not options.master or options.rank >= options.ranks:
            raise subnets.BadModel("--rank: also give --ranks, which is greater, and --master")
        return serve_rank(options)
    ranks = len(served(subnets.read_groups(options.folder), options.classes)) + options.spares
    listen(options.listen).close()  # an error before any rank is started
    os.environ.setdefault("NETSUM_LIVENESS_TIMEOUT", "800ms")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    options.master = f"127.0.0.1:{free_port()}"
    processes = fork_ranks(options, ranks)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: processes[0].terminate())
    print(f"serving: ranks have the processes {' '.join(str(p.pid) for p in processes)}", flush=True)
    processes[0].join()
    end(processes[1:], EXIT_S)  # without rank 0, they end by themselves, with an error
    return 0 if processes[0].exitcode == 0 else 1


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
    run.add_argument(
        "--classes", type=class_list, default=[], metavar="N,N", help="serve only these (all), by their groups"
    )
    run.add_argument(
        "--spares", type=number_from(0), default=0, help="further ranks, which take the place of lost ones (0)"
    )
    run.add_argument("--limit", type=float, default=LIMIT_S, help=f"seconds until an incomplete answer ({LIMIT_S})")
    run.add_argument(
        "--batch", type=number_from(1), default=1, help="images that may travel together; 1: no batching (1)"
    )
    run.add_argument(
        "--queue", type=number_from(1), default=256, help="requests that may wait; further ones get 503 (256)"
    )
    for one in (make, run):
        one.add_argument("folder")
    run.add_argument("--rank", type=number_from(0), help="be this rank, instead of starting all of them here")
    run.add_argument("--ranks", type=number_from(1), help="with --rank: how many there are, spares included")
    run.add_argument("--master", default="", metavar="HOST:PORT", help="with --rank: where rank 0 has its store")
    run.add_argument("--backend", default="netsum", choices=["netsum", "gloo"])
    options = parser.parse_args()
    try:
        return options.run(options)
    except subnets.BadModel as error:
        print(f"serving: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
