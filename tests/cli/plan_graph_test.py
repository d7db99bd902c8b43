"""netsum plan for graphs: its optima against oracles on random graphs, its outputs, and files that are wrong."""

import fractions
import html.parser
import itertools
import json
import os
import pathlib
import random
import re
import subprocess

import networkx
import numpy as np
import pytest
import scipy.optimize
import scipy.sparse
from harness import CommandTest, clean_environment

SEED = int(os.environ.get("NETSUM_SIM_SEED", "20261128"))
UNIT = 1000  # bit/s, the lowest rate of a file
RACKS = """
hosts:
  - {name: gpu, count: 8}
switches:
  - {name: leaf, count: 2}
  - {name: core}
links:
  - {between: ['gpu[0-3]', leaf0], rate: 2G}
  - {between: ['gpu[4-7]', leaf1], rate: 2G}
  - {between: [leaf, core], rate: 1G}
"""
HOSTS = "hosts:\n  - {name: a}\n  - {name: b}\n"
LINK = "  - {between: [a, b], rate: 1G}\n"

BAD_FILES = [
    ("links: []\n", 1, ["'hosts:' is missing"]),
    (HOSTS + "links: []\n", 3, ["no way from 'a' to 'b'"]),
    (HOSTS + "links:\n  - {between: [a, b]}\n", 5, ["no 'rate:'"]),
    (HOSTS + "links:\n  - {between: [a, b], rate: 0G}\n", 5, ["'0G' is no rate"]),
    (HOSTS + "links:\n  - {between: [a, b], rate: -1G}\n", 5, ["'-1G' is no rate"]),
    (HOSTS + "links:\n  - {between: [a, b], rate: 900T}\n", 5, ["'900T'", "100 Tbit/s"]),
    (HOSTS + "links:\n  - {between: [a, c], rate: 1G}\n", 5, ["there is no 'c'"]),
    (HOSTS + "links:\n  - {between: [a], rate: 1G}\n", 5, ["takes two names"]),
    (HOSTS + "links:\n  - {between: [a, a], rate: 1G}\n", 5, ["'a' is linked to itself"]),
    (HOSTS + "links:\n  - {from: a, rate: 1G}\n", 5, ["both 'from:' and 'to:'"]),
    (HOSTS + "links:\n  - {from: a, to: b, between: [a, b], rate: 1G}\n", 5, ["either 'between:"]),
    (HOSTS + "links:\n" + LINK + LINK, 6, ["given twice, first in line 5", "sum of the rates"]),
    (HOSTS + "links:\n  - {from: a, to: b, rate: 1G}\n", 3, ["no way from 'b' to 'a'"]),
    (HOSTS + "switches:\n  - {name: a}\nlinks:\n" + LINK, 5, ["'a' is given twice", "line 2"]),
    (
        HOSTS + "switches:\n  - {name: s, slots: {count: 0, bytes: 8, round_trip_us: 1}}\nlinks:\n" + LINK,
        5,
        ["'count: 0'"],
    ),
    (HOSTS + "switches:\n  - {name: s, sums: false, stream: 1G}\nlinks:\n" + LINK, 5, ["has no limits of sums"]),
    (HOSTS + "switches:\n  - {name: s, rate: 1G}\nlinks:\n" + LINK, 5, ["unknown key 'rate'"]),
    ("hosts:\n  - {name: n, count: 5}\nlinks:\n  - {between: ['n[3-1]', n0], rate: 1G}\n", 4, ["goes backwards"]),
    ("hosts:\n  - {name: n, count: 5}\nlinks:\n  - {between: ['n[1-x]', n0], rate: 1G}\n", 4, ["no range of numbers"]),
    ("hosts:\n  - {name: n, count: 5}\nlinks:\n  - {between: ['n[3-9]', n0], rate: 1G}\n", 4, ["no 'n5'", "shorten"]),
    ("hosts:\n  - {name: n, count: 2}\n  - {name: n}\nlinks: []\n", 3, ["'n' is given twice", "line 2"]),
    ("hosts: []\nlinks: []\n", None, ["no rank"]),
    ("links: [" + " " * (1 << 20) + "]\n", None, ["larger than 1 MiB"]),
]


class Graph:
    """Vertices are numbers, and ranks come first; arcs are {(from, to): rate}."""

    def __init__(self, ranks, switches, aggregators, arcs):
        self.ranks, self.arcs = range(ranks), arcs
        self.switches = range(ranks, ranks + switches)
        self.aggregators = range(ranks + switches, ranks + switches + aggregators)
        self.vertices = range(ranks + switches + aggregators)

    def text(self):
        lines = ["hosts:", *(f"  - {{name: v{v}}}" for v in self.ranks), "switches:"]
        lines += [f"  - {{name: v{v}}}" for v in self.switches]
        lines += ["places:", *(f"  - {{name: v{v}}}" for v in self.aggregators), "links:"]
        lines += [f"  - {{from: v{u}, to: v{v}, rate: {c}kbit/s}}" for (u, v), c in self.arcs.items()]
        return "\n".join(lines) + "\n"


def random_graph(rng, kind):
    """`kind`: plain (with switches), aggregators (without switches), or asymmetric (without both)."""
    while True:
        ranks = rng.randint(2, 5 if kind != "asymmetric" else 6)
        others = rng.randint(0, min(3, 7 - ranks)) if kind != "asymmetric" else 0
        switches, aggregators = (others, 0) if kind == "plain" else (0, others)
        count = ranks + others
        arcs = {}
        for u, v in itertools.combinations(range(count), 2):
            if rng.random() < 0.6:
                arcs[u, v] = rng.randint(1, 6)
                arcs[v, u] = arcs[u, v] if kind != "asymmetric" else rng.randint(1, 6)
        if networkx.is_strongly_connected(networkx.DiGraph([*arcs, *((v, v) for v in range(count))])):
            return Graph(ranks, switches, aggregators, arcs)


def all_gather_oracle(graph):
    """Over all sets of vertices that leave out a rank."""
    best = fractions.Fraction(0)
    for size in range(1, len(graph.vertices)):
        for chosen in itertools.combinations(graph.vertices, size):
            inside = sum(v in chosen for v in graph.ranks)
            leaving = sum(c for (u, v), c in graph.arcs.items() if u in chosen and v not in chosen)
            if inside < len(graph.ranks):
                best = max(best, fractions.Fraction(inside, leaving * len(graph.ranks)))
    return best


def broadcast_oracle(graph, root):
    flows = networkx.DiGraph()
    flows.add_edges_from((u, v, {"capacity": c}) for (u, v), c in graph.arcs.items())
    return fractions.Fraction(1, min(networkx.maximum_flow_value(flows, root, v) for v in graph.ranks if v != root))


class Program:
    """A linear program by names of its variables, for HiGHS."""

    def __init__(self):
        self.columns, self.rows = {}, []

    def at_most(self, terms, limit):
        self.rows.append(({self.columns.setdefault(name, len(self.columns)): c for name, c in terms.items()}, limit))

    def minimum(self, name):
        matrix = scipy.sparse.lil_matrix((len(self.rows), len(self.columns)))
        for i, (terms, _) in enumerate(self.rows):
            for column, c in terms.items():
                matrix[i, column] = c
        goal = np.zeros(len(self.columns))
        goal[self.columns[name]] = 1
        solved = scipy.optimize.linprog(
            goal, A_ub=matrix.tocsr(), b_ub=[limit for _, limit in self.rows], method="highs"
        )
        assert solved.status == 0, solved.message
        return solved.fun


def all_reduce_oracle(graph):
    """Independent trees up and down, as flows: a lower bound, and reached by trees where no vertex sums for others alone."""
    program = Program()
    for (u, v), c in graph.arcs.items():
        program.at_most({("up", u, v): 1, ("down", u, v): 1, "T": -c}, 0)
    program.at_most({("root", v): 1 for v in graph.ranks}, 1)
    program.at_most({("root", v): -1 for v in graph.ranks}, -1)
    for way in ("up", "down"):
        for w in graph.switches:
            into = {(way, u, v): 1 for u, v in graph.arcs if v == w}
            out = {(way, u, v): -1 for u, v in graph.arcs if u == w}
            sign = -1 if way == "down" else 1  # it replicates neither results nor, backwards, contributions
            program.at_most({name: sign * c for name, c in {**into, **out}.items()}, 0)
        for rank in graph.ranks:
            add_flow(program, graph, way, rank)
    return program.minimum("T")


def add_flow(program, graph, way, rank):
    """1 reaches `rank` from the roots (down), or the roots from `rank` (up)."""

    def arc(u, v):
        return (way, v, u) if way == "up" else (way, u, v)

    arcs = [(v, u) if way == "up" else (u, v) for u, v in graph.arcs]
    for u, v in arcs:
        program.at_most({(way, rank, u, v): 1, arc(u, v): -1}, 0)
    for root in graph.ranks:
        program.at_most({(way, rank, "from", root): 1, ("root", root): -1}, 0)
    for vertex in graph.vertices:
        balance = {(way, rank, u, v): 1 for u, v in arcs if v == vertex}
        balance |= {(way, rank, u, v): -1 for u, v in arcs if u == vertex}
        if vertex in graph.ranks:
            balance[way, rank, "from", vertex] = 1
        # What arrives is at least what leaves, and 1 more at the rank.
        program.at_most({name: -c for name, c in balance.items()}, -1 if vertex == rank else 0)


def spanning_trees(graph):
    """All trees over the ranks and any aggregators, as lists of links; without switches."""
    links = sorted({tuple(sorted(arc)) for arc in graph.arcs})
    for size in range(len(graph.aggregators) + 1):
        for used in itertools.combinations(graph.aggregators, size):
            vertices = {*graph.ranks, *used}
            inside = [link for link in links if set(link) <= vertices]
            for chosen in itertools.combinations(inside, len(vertices) - 1):
                tree = networkx.Graph(chosen)
                if len(tree) == len(vertices) and networkx.is_connected(tree):
                    yield chosen


def all_trees_oracle(graph):
    """The best uses of all trees of a symmetric graph without switches."""
    program = Program()
    loads = {tuple(sorted(arc)): {"T": -c} for arc, c in graph.arcs.items()}
    trees = list(spanning_trees(graph))
    for i, tree in enumerate(trees):
        for link in tree:
            loads[link]["tree", i] = 1
    for load in loads.values():
        program.at_most(load, 0)
    program.at_most({("tree", i): -1 for i in range(len(trees))}, -1)
    return program.minimum("T")


def delimited(data):
    """The messages of a file, each behind its length as a varint."""
    messages = []
    while data:
        end = next(i for i, byte in enumerate(data) if byte < 128) + 1
        size = sum((byte & 127) << 7 * i for i, byte in enumerate(data[:end]))
        messages.append(data[end : end + size])
        data = data[end + size :]
    return messages


def decoded(message, name):
    source = pathlib.Path(__file__).parents[2] / "tools/netsum"
    command = ["protoc", "-I", source, f"--decode=netsum.chakra.{name}", "chakra.proto"]
    return subprocess.run(command, input=message, capture_output=True, check=True, timeout=30).stdout.decode()


def mscclpp_gpu(rank, ops, scratch, chunks=1):
    nops = [op for one in ops for op in (one, {"name": "nop"})]
    channels = [{"channel_type": "port", "channel_ids": [0]}]
    refs = [{"access_channel_type": "port", "remote_buffer_ids": [0]}]
    put_to = "i" if scratch else "s"  # who has scratch sums, and puts the result where it belongs
    return {
        "id": rank,
        "input_chunks": chunks,
        "output_chunks": chunks,
        "scratch_chunks": scratch,
        "threadblocks": [{"id": 0, "ops": nops, "channels": channels, "remote_buffer_refs": refs}],
        "channels": [{"channel_type": "port", "connected_to": [1 - rank]}],
        "remote_buffers": [{"rank": 1 - rank, "type": put_to, "access_channel_types": ["port"]}],
        "semaphores": [],
    }


def mscclpp_plan(gpus):
    return {
        "name": "netsum_trees",
        "collective": "allreduce",
        "protocol": "Simple",
        "inplace": True,
        "reuse_resources": False,
        "gpus": gpus,
        "num_threads_per_block": 1024,
        "use_double_scratch_buffer": False,
        "buffer_alignment": 16,
        "min_message_size": 0,
        "max_message_size": 2**64 - 1,
    }


def mscclpp_place(of, index=0):
    return {"type": of, "index": index, "size": 1}


def mscclpp_of_two():
    """Rank 0 puts its input into the scratch of rank 1, which adds it, and puts the sum into the input of rank 0."""
    far = {"buffer_id": 0, "index": 0, "size": 1}
    port = {"channel_ids": [0], "channel_type": "port"}
    put = {"name": "put", "src_buff": [mscclpp_place("i")], "dst_buff": [far], **port}
    signal, wait = {"name": "signal", **port}, {"name": "wait", **port}
    add = {"name": "re", "src_buff": [mscclpp_place("i"), mscclpp_place("s")], "dst_buff": [mscclpp_place("i")]}
    root = [wait, {**add, "reduce_op": "sum"}, put, signal]
    return mscclpp_plan([mscclpp_gpu(0, [put, signal, wait], 0), mscclpp_gpu(1, root, 1)])


def mscclpp_of_others():
    """Both ranks put a chunk, and add and put the other one in one operation, as MSCCL++'s own programs do."""
    gpus = []
    for rank in range(2):
        port = {"channel_ids": [0], "channel_type": "port"}
        put = {"src_buff": [mscclpp_place("i", 1 - rank)], "dst_buff": [{"buffer_id": 1, "index": 1 - rank, "size": 1}]}
        add = {
            "name": "res",
            "src_buff": [mscclpp_place("i", rank), mscclpp_place("s", rank)],
            "dst_buff": [mscclpp_place("i", rank), {"buffer_id": 0, "index": rank, "size": 1}],
            "channel_type": "port",
            "reduce_op": "sum",
        }
        signal, wait = {"name": "signal", **port}, {"name": "wait", **port}
        gpu = mscclpp_gpu(rank, [{"name": "pws", **put, **port}, wait, add, signal, wait], 2, 2)
        gpu["remote_buffers"].append({"rank": 1 - rank, "type": "s", "access_channel_types": ["port"]})
        gpu["threadblocks"][0]["remote_buffer_refs"][0]["remote_buffer_ids"].append(1)
        gpus.append(gpu)
    return mscclpp_plan(gpus)


class PlanGraphTest(CommandTest):
    def plan(self, folder, text, *flags):
        file = folder / "graph.yaml"
        file.write_text(text)
        return self.run_command("plan", str(file), *flags)

    def report(self, folder, text, *flags):
        command = self.plan(folder, text, "--json", *flags)
        assert command.status == 0, command.text("err")
        return json.loads(command.text("out"))

    def compare(self, folder, rng, kind):
        graph = random_graph(rng, kind)
        report = self.report(folder, graph.text())

        def time(of):
            return fractions.Fraction(of["exact"]) * UNIT

        assert time(report["time"]) >= time(report["optimum"]) >= time(report["bound"])
        assert time(report["time"]) <= time(report["optimum"]) * fractions.Fraction(1003, 1000)
        if kind == "aggregators":
            assert float(time(report["optimum"])) == pytest.approx(all_trees_oracle(graph), rel=1e-7)
        else:
            assert float(time(report["bound"])) == pytest.approx(all_reduce_oracle(graph), rel=1e-7)
        assert report["bound"]["reached"]
        if kind == "plain" or (kind == "aggregators" and not graph.aggregators):
            assert time(report["bound"]) == time(report["optimum"])
            assert time(report["all_gather_bound"]) == all_gather_oracle(graph)
            broadcast = self.report(folder, graph.text(), "--broadcast", "v0")
            assert time(broadcast["optimum"]) == time(broadcast["bound"]) == broadcast_oracle(graph, 0)

    def compare_many(self, folder, count):
        print(f"seed {SEED}: repeat with NETSUM_SIM_SEED={SEED}")
        for i in range(count):
            for kind in ("plain", "aggregators", "asymmetric"):
                rng = random.Random(f"{SEED}-{kind}-{i}")
                try:
                    self.compare(folder, rng, kind)
                except Exception as error:
                    error.add_note(f"graph {i}, {kind}, seed {SEED}:\n{(folder / 'graph.yaml').read_text()}")
                    raise

    def test_optima_of_random_graphs(self, tmp_path):
        self.compare_many(tmp_path, 8)

    @pytest.mark.soak
    def test_optima_of_many_random_graphs(self, tmp_path):
        self.compare_many(tmp_path, 333)

    def test_racks_with_slow_uplinks(self, tmp_path):
        report = self.report(tmp_path, RACKS)
        assert report["time"] == {"exact": "1/1000000000", "s_per_gigabyte": 8.0}
        assert report["bound"]["exact"] == "1/1000000000"
        assert report["ring"]["exact"] == "7/4000000000"
        text = self.plan(tmp_path, RACKS).text("out")
        for words in ("all-reduce by these trees", "one ring", "14", "proved in fractions", "gpu0 > leaf0"):
            assert words in text

    def test_hosts_and_racks_as_a_graph(self, tmp_path):
        text = "racks:\n  - {name: a, uplink: 1G}\n  - {name: b, uplink: 1G}\nhosts:\n"
        text += "".join(f"  - {{name: {rack}-, count: 4, link: 2G, rack: {rack}}}\n" for rack in "ab")
        assert self.report(tmp_path, text, "--trees")["time"]["exact"] == "1/1000000000"

    def test_exports(self, tmp_path):
        dot = self.plan(tmp_path, RACKS, "--export", "dot").text("out")
        assert dot.startswith("digraph") and '"leaf0" -> "core"' in dot
        xml = self.plan(tmp_path, RACKS, "--export", "forestcoll").text("out")
        trees = tmp_path / "trees.xml"
        trees.write_text(xml)
        own = self.report(tmp_path, RACKS)
        judged = self.report(tmp_path, RACKS, "--judge", trees)
        assert judged["time"] == own["time"] and judged["links"] == own["links"]
        assert self.plan(tmp_path, RACKS, "--judge", trees, "--export", "forestcoll").text("out") == xml

    def test_programs_of_msccl(self, tmp_path):
        xml = self.plan(tmp_path, RACKS, "--export", "msccl").text("out")
        program = tmp_path / "program.xml"

        def judged(text, *flags):
            program.write_text(text)
            return self.run_command("plan", "--judge", program, *flags)

        command = judged(xml)
        assert command.status == 0 and "all-reduce of 8 ranks, 3 chunks" in command.text("out")
        assert json.loads(judged(xml, "--json").text("out"))["right"]
        command = judged(xml.replace('type="rrc"', 'type="r"', 1))
        assert command.status == 3 and "it lacks chunk 0 of rank 0" in command.text("err")
        for old, new, line, words in (
            ('coll="allreduce"', 'coll="alltoall"', 1, "not one of allreduce, allgather, reducescatter"),
            ('ngpus="8"', 'ngpus="9"', 1, "'ngpus' is 9, and 8 are given"),
            ('ngpus="8"', 'ngpus="-8"', 1, "'-8', no whole number from 1"),
            ('gpu id="1"', 'gpu id="0"', 28, "gpu 0 is given twice"),
            ('tb id="1"', 'tb id="5"', 7, "thread block 1 is expected"),
            ('s="1"', 's="7"', 5, "step 1 is expected"),
            ('type="s"', 'type="x"', 4, "'x', and not one of nop, s, r"),
            ('cnt="1"', 'cnt="73"', 4, "at most 72"),
            ('inplace="1"', 'inplace="0"', 1, "are both 0"),
            ("</algo>", "", 1, "not XML"),
        ):
            assert old in xml
            command = judged(xml.replace(old, new, 1))
            found = re.search(r"program.xml:(\d+): (.*)", command.text("err"))
            assert command.status == 2 and words in found[2], command.text("err")
            assert line == int(found[1]) or new == "", command.text("err")
        command = self.plan(tmp_path, RACKS.replace("count: 2}", "count: 2, sums: true}"), "--export", "msccl")
        assert command.status == 2 and "which is no rank" in command.text("err")

    def test_plans_of_mscclpp(self, tmp_path):
        text = self.plan(tmp_path, HOSTS + "links:\n" + LINK, "--export", "mscclpp").text("out")
        assert json.loads(text) == mscclpp_of_two()
        program = tmp_path / "program.json"

        def judged(text):
            program.write_text(text)
            return self.run_command("plan", "--judge", program)

        assert judged(text).status == 0
        large = judged(self.plan(tmp_path, RACKS, "--export", "mscclpp").text("out"))
        assert large.status == 0 and "all-reduce of 8 ranks, 3 chunks" in large.text("out")
        others = judged(json.dumps(mscclpp_of_others()))
        assert others.status == 0 and "all-reduce of 2 ranks, 2 chunks" in others.text("out"), others.text("err")
        cut_off = judged("[")
        assert cut_off.status == 2 and "not YAML" in cut_off.text("err"), cut_off.text("err")
        folder = self.run_command("plan", "--judge", tmp_path)
        assert folder.status == 2 and "cannot be read" in folder.text("err")
        for name in ("signal", "wait", "put", "re"):
            command = judged(text.replace(f'"name": "{name}"', '"name": "nop"', 1))
            assert command.status == 3 and "rank" in command.text("err"), name
        lines = text.splitlines()
        for old, new, words in (
            ('"collective": "allreduce"', '"collective": "alltoall"', "not one of allreduce, allgather"),
            ('"protocol": "Simple"', '"protocol": "LL"', "Simple alone, not 'LL'"),
            ('"name": "re"', '"name": "glres"', "does not judge the operation 'glres'"),
            ('"id": 1', '"id": 7', "gpu 1 is expected"),
            ('"reduce_op": "sum"', '"reduce_op": "max"', "sums alone"),
            ('"buffer_id": 0', '"buffer_id": 3', "'buffer_id' is '3', no whole number from 0 to 0"),
            ('"scratch_chunks": 1', '"scratch_chunks": -1', "'-1', no whole number from 0"),
            ('"size": 1', '"size": 2', "unequal sizes"),
            ('"channel_type": "port"', '"channel_type": "switch"', "not one of memory, port"),
            ('"inplace"', '"in_place"', "unknown key 'in_place'"),
        ):
            line = next(number for number, one in enumerate(lines, 1) if old in one)
            command = judged(text.replace(old, new, 1))
            found = re.search(r"program.json:(\d+): (.*)", command.text("err"))
            assert command.status == 2 and words in found[2], command.text("err")
            assert abs(int(found[1]) - line) < 8, command.text("err")
        for garbled in ("{", text[: len(text) // 2], '{"gpus": [[]]}', "{" * 1000):
            assert judged(garbled).status == 2
        rng = random.Random(SEED)
        for _ in range(12):
            place = rng.randrange(len(text))
            command = judged("{" + text[1:place] + rng.choice('{}[]",:0-x') + text[place + 1 :])
            assert command.status in (0, 2, 3), command.text("err")

    def test_traces_of_chakra(self, tmp_path):
        """Each message has the same size and tag at both ends, and what is waited for comes before."""
        size = 3 * 4096 + 4
        flags = ("--export", f"chakra:{tmp_path}/trace", "--gradient", size)
        command = self.plan(tmp_path, RACKS, *flags)
        assert command.status == 0 and "8 traces" in command.text("out")
        sent, received = {}, {}
        for rank in range(8):
            first, *nodes = delimited((tmp_path / f"trace.{rank}.et").read_bytes())
            assert decoded(first, "GlobalMetadata") == 'version: "0.0.4"\n'
            texts = [decoded(node, "Node") for node in nodes]
            waits = networkx.DiGraph()
            for number, text in enumerate(texts, 1):
                assert f"id: {number}\n" in text
                waits.add_edges_from((int(other), number) for other in re.findall(r"data_deps: (\d+)", text))
                values = dict(re.findall(r'name: "(\w+)"\s+\w+_value: (\w+)', text))
                if "type: COMP_NODE" in text:
                    assert int(values["num_ops"]) == int(values["tensor_size"]) // 4
                    continue
                ends = (values["comm_src"], values["comm_dst"], values["comm_tag"])
                messages = sent if "COMM_SEND" in text else received
                assert int(ends["COMM_SEND" not in text]) == rank and ends not in messages
                messages[ends] = int(values["comm_size"])
            assert networkx.is_directed_acyclic_graph(waits) and waits.number_of_nodes() == len(texts)
        assert sent == received and sum(sent.values()) == 2 * 7 * size
        command = self.plan(tmp_path, RACKS, "--export", f"chakra:{tmp_path}/no/trace")
        assert command.status == 3 and "no/trace.0.et: cannot be written" in command.text("err")

    def test_trees_of_others(self, tmp_path):
        graph = (
            "hosts:\n  - {name: 0-GPU-0}\n  - {name: 0-GPU-1}\nlinks:\n  - {between: [0-GPU-0, 0-GPU-1], rate: 1G}\n"
        )
        trees = tmp_path / "trees.xml"
        send = "<send src=\"(0, 'GPU', 0)\" dst=\"(0, 'GPU', 1)\" path=\"(0, 'GPU', 0),(0, 'GPU', 1)\"/>"
        root = '<Algo>\n<tree root="(0, \'GPU\', 0)" nchunks="1">\n'
        trees.write_text(f"{root}{send}</tree></Algo>")
        assert self.report(tmp_path, graph, "--judge", trees)["time"]["exact"] == "1/1000000000"
        for text, line, words in (
            (f"{root}</tree></Algo>", "", "does not reach 0-GPU-1"),
            (f"{root}{send}{send}</tree></Algo>", "", "closes a circle"),
            (f"{root}{send.replace('1)', '7)')}</tree></Algo>", ":3", "no '0-GPU-7'"),
            (root.replace('"1"', '"0"') + "</tree></Algo>", ":2", "nchunks"),
            (root, ":2", "not XML"),
            ("<Algo/>", ":1", "no <tree>"),
        ):
            trees.write_text(text)
            command = self.plan(tmp_path, graph, "--judge", trees)
            assert command.status == 2
            assert f"trees.xml{line}: " in command.text("err") and words in command.text("err")

    def test_the_picture_needs_nothing_else(self, tmp_path):
        target = tmp_path / "plan.html"
        assert self.plan(tmp_path, RACKS, "--html", target).status == 0
        opened = []

        class Tags(html.parser.HTMLParser):
            def handle_starttag(self, tag, attributes):
                assert not {"src", "href"} & dict(attributes).keys()
                opened.append(tag)

        Tags().feed(target.read_text())
        assert opened.count("svg") == 1 and "script" not in opened
        assert opened.count("rect") == 11

    @pytest.mark.parametrize(("text", "line", "words"), BAD_FILES)
    def test_a_wrong_file(self, tmp_path, text, line, words):
        self.assert_refuses_file(self.plan(tmp_path, text), "graph.yaml", line, words)

    @pytest.mark.parametrize("count", [12, pytest.param(200, marks=pytest.mark.soak)])
    def test_random_bytes_are_refused(self, tmp_path, count):
        rng = random.Random(SEED)
        for _ in range(count):
            text = list(RACKS)
            for _ in range(rng.randint(1, 20)):
                text[rng.randrange(len(text))] = chr(rng.randint(1, 126))
            command = self.plan(tmp_path, "".join(text))
            assert command.status in (0, 2), command.text("err")

    def test_large_fabrics(self):
        bounds = json.loads(self.run_command("plan", "--example", "fat-tree:16", "--bound", "--json").text("out"))
        assert bounds["all_reduce"]["exact"] == "1023/51200000000000"
        assert bounds["all_reduce"]["reached"]
        plan = json.loads(self.run_command("plan", "--example", "tiers:5x5x4", "--json").text("out"))
        assert plan["optimum"]["exact"] == plan["bound"]["exact"]

    def test_flags_that_do_not_fit(self, tmp_path):
        for flags in (
            ["--example", "oven:3"],
            ["--example", "torus:4x4", "--rack", "a"],
            ["--bound", "--export", "dot"],
        ):
            assert self.run_command("plan", *flags).status == 2
        assert "no host 'leaf0'" in self.plan(tmp_path, RACKS, "--broadcast", "leaf0").text("err")

    @pytest.mark.soak
    def test_commands_run_the_trees(self, tmp_path):
        hosts = [f"127.{7 + os.getpid() % 200}.1.{number}" for number in range(1, 5)]
        text = (
            f"hosts: [{', '.join(f'{{name: {host}}}' for host in hosts)}]\nswitches: [{{name: s, count: 2}}]\nlinks:\n"
        )
        text += "".join(f"  - {{between: [{host}, s{i // 2}], rate: 100M}}\n" for i, host in enumerate(hosts))
        printed = self.plan(tmp_path, text + "  - {between: [s0, s1], rate: 50M}\n", "--export", "commands")
        assert printed.status == 0, printed.text("err")
        lines = [line.split(": ", 1) for line in printed.text("out").splitlines() if not line.startswith("#")]
        aggregators = [(host, what.split()[1:]) for host, what in lines if what.startswith("netsum ")]
        environments = [dict(one.split("=") for one in what.split()) for _, what in lines[len(aggregators) :]]
        assert [host for host, _ in lines[len(aggregators) :]] == hosts and len(aggregators) > 1
        for host, arguments in aggregators:
            assert arguments[arguments.index("--listen") + 1].startswith(host)
            self.start(*arguments).wait_for("ready:", name="out")
        ranks = [
            self.start(
                *("bench", "allreduce", "--rank", rank, "--world-size", 4, "--bytes", "256Ki", "--json"),
                environment=clean_environment(**environment),
            )
            for rank, environment in enumerate(environments)
        ]
        for rank in ranks:
            assert rank.end() == 0, rank.text("err")
            report = json.loads(rank.text("out"))
            assert report["verified"] and "below" in ranks[0].text("out")

    def test_commands_of_a_broadcast(self, tmp_path):
        refused = self.plan(tmp_path, RACKS, "--export", "commands", "--broadcast", "gpu0")
        assert refused.status == 2
        refused.wait_for("aggregators sum; leave out --broadcast")
