"""netsum place: formats of clusters, their round trips, outputs, jobs, and files that are wrong."""

import json
import os
import random

import pytest
import yaml
from harness import CommandTest

SEED = int(os.environ.get("NETSUM_SIM_SEED", "20261128"))
SLURM = """SwitchName=leaf0 Nodes=n[00-07]
SwitchName=leaf1 Nodes=n[08-13]
SwitchName=leaf2 Nodes=n[14-17]
SwitchName=leaf3 Nodes=n[18-19]
SwitchName=spine Switches=leaf[0-3]
"""
RATES = ("--rates", "100G,200G")

IBNETDISCOVER = """vendid=0x2c9
switchguid=0x1(1)
Switch\t3 "S-01"\t\t# "leaf0" base port 0 lid 1 lmc 0
[1]\t"H-0a"[1](a) \t\t# "n0 mlx5_0" lid 5 4xEDR
[2]\t"H-0b"[1](b) \t\t# "n1 mlx5_0" lid 6 4xEDR
[3]\t"S-03"[1]\t\t# "spine" lid 3 4xHDR

switchguid=0x2(2)
Switch\t2 "S-02"\t\t# "leaf1" base port 0 lid 2 lmc 0
[1]\t"H-0c"[1](c) \t\t# "n2 mlx5_0" lid 7 4xEDR
[2]\t"S-03"[2]\t\t# "spine" lid 3 4xHDR

switchguid=0x3(3)
Switch\t3 "S-03"\t\t# "spine" base port 0 lid 3 lmc 0
[1]\t"S-01"[3]\t\t# "leaf0" lid 1 4xHDR
[2]\t"S-02"[2]\t\t# "leaf1" lid 2 4xHDR
[3]\t"H-0d"[1](d)\t\t# "Mellanox Technologies Aggregation Node" lid 9 4xHDR

caguid=0xa
Ca\t1 "H-0a"\t\t# "n0 mlx5_0"
[1](a)\t"S-01"[1]\t\t# lid 5 lmc 0 "leaf0" lid 1 4xEDR

caguid=0xb
Ca\t1 "H-0b"\t\t# "n1 mlx5_0"
[1](b)\t"S-01"[2]\t\t# lid 6 lmc 0 "leaf0" lid 1 4xEDR

caguid=0xc
Ca\t1 "H-0c"\t\t# "n2 mlx5_0"
[1](c)\t"S-02"[1]\t\t# lid 7 lmc 0 "leaf1" lid 2 4xEDR

caguid=0xd
Ca\t1 "H-0d"\t\t# "Mellanox Technologies Aggregation Node"
[1](d)\t"S-03"[3]\t\t# lid 9 lmc 0 "spine" lid 3 4xHDR
"""

KUEUE = """kind: Topology
metadata: {name: t}
spec: {levels: [{nodeLabel: rack}, {nodeLabel: kubernetes.io/hostname}]}
---
kind: Node
metadata: {name: a, labels: {rack: r1}}
"""
HYPERNODE = "kind: HyperNode\nmetadata: {name: s}\nspec:\n  tier: 1\n  members:\n    - {type: Node, selector: %s}\n"

BAD_FILES = [
    ("SwitchName=a Nodes=n[3-1]\n", 1, ["goes backwards"]),
    ("SwitchName=a Nodes=n[1-x]\n", 1, ["no range of numbers"]),
    ("SwitchName=a Nodes=n[0-999999]\n", 1, ["shorten it"]),
    ("SwitchName=a Nodes=n[1\n", 1, ["a '[' without a ']'"]),
    ("SwitchName=a Nodes=n1\nSwitchName=b Nodes=n2\n", 2, ["not connected", "add a switch above both"]),
    ("SwitchName=a Switches=b\nSwitchName=b Switches=a\n", 1, ["loop"]),
    ("SwitchName=r Nodes=n1\nSwitchName=a Switches=b\nSwitchName=b Switches=a\n", 2, ["loop"]),
    ("SwitchName=a Nodes=n1\nSwitchName=a Nodes=n2\n", 2, ["'a' is given twice", "line 1"]),
    ("SwitchName=a Nodes=n1\nSwitchName=b Nodes=n1 Switches=a\n", 2, ["'n1' is given twice"]),
    ("SwitchName=a Nodes=a\n", 1, ["'a' is given twice"]),
    ("SwitchName=a Switches=c\n", 1, ["no switch 'c'"]),
    ("SwitchName=a Nodes=n1\nSwitchName=b Switches=a\nSwitchName=c Switches=a,b\n", 3, ["below 'c' and below 'b'"]),
    ("SwitchName=a Nodes=n1 Colour=red\n", 1, ["unknown key 'Colour'"]),
    ("SwitchName=a Nodes=n1 Nodes=n2\n", 1, ["given twice"]),
    ("SwitchName=a\n", 1, ["neither Switches= nor Nodes="]),
    ("SwitchName=a Nodes=n1 \\\n", 1, ["inside of an entry"]),
    ("SwitchName=a Nodes=n1;rm\n", 1, ["is no name"]),
    ("# " + "x" * 10_000_000 + "\nSwitchName=a Nodes=n1\n", 1, ["larger than 8 MiB"]),
    ("- topology: t\n  tree:\n    switches:\n      - {switch: a, nodes: n1, colour: red}\n", 4, ["unknown key"]),
    ("- topology: t\n  ring: {}\n", 2, ["no tree of switches"]),
    ("- topology: t\n  tree: {switches: [}\n", 2, ["not YAML"]),
    (HYPERNODE % "{regexMatch: {pattern: n}}", 6, ["exactMatch"]),
    (HYPERNODE.replace("tier: 1", "tier: 0") % "{exactMatch: {name: n}}", 4, ["tier"]),
    (KUEUE.replace("labels: {rack: r1}", "labels: {}"), 6, ["'rack:' is missing"]),
    (KUEUE.split("---")[0], 1, ["no 'kind: Node'"]),
    ('{"instances": [\n{"id": "a", "network_layers": []}]}\n', 2, ["network_layers"]),
    ('{"instances": [\n{"id": "a", "network_layers": ["s"], "x": 1}]}\n', 2, ["unknown key 'x'"]),
    (IBNETDISCOVER.replace("5 4xEDR", "5 4xFOO", 1), 4, ["4xFOO"]),
    (IBNETDISCOVER.replace('"S-02"', '"S-01"'), 9, ["given twice, first in line 3"]),
    (IBNETDISCOVER.replace('Ca\t1 "H-0c"', 'Ca\t1 "H-0e"'), 10, ["no block of 'H-0c'"]),
    ("hosts:\n  - {name: a, link: 0G}\n", 2, ["'0G' is no rate"]),
    ("hosts:\n  - {name: a, link: 900T}\n", 2, ["900T"]),
    (
        "hosts:\n  - {name: a}\nswitches:\n  - {name: s, slots: {count: 0, bytes: 8, round_trip_us: 1}}\nlinks:\n"
        "  - {between: [a, s], rate: 1G}\n",
        4,
        ["'count: 0'"],
    ),
]

BAD_JOBS = [
    ("ranks: 0\n", 1, ["ranks"]),
    ("ranks: 4\ncolour: red\n", 2, ["unknown key 'colour'"]),
    ("ranks: 4\ngradient: much\n", 2, ["'much' is not a size"]),
    ("ranks: 4\nrates: [0G]\n", 2, ["'0G'"]),
    ("ranks: 4\nexclude: 'n[3-1]'\n", 2, ["goes backwards"]),
    ("ranks: 4\nexclude: x\n", None, ["no host 'x'"]),
    ("ranks: 4\nsums: x\n", None, ["no switch 'x'"]),
    ("ranks: 4\nshards:\n  - {name: a, bytes: 1, at: x}\n", 3, ["neither a host nor a switch 'x'"]),
    ("ranks: 4\nshards:\n  - {name: a, bytes: 0, at: n00}\n", 3, ["above 0"]),
    (
        "ranks: 4\nshards:\n  - {name: a, bytes: 9007199254740992, at: n00}\n  - {name: a, bytes: 1, at: n00}\n",
        4,
        ["twice"],
    ),
]


class PlaceTest(CommandTest):
    def place(self, folder, text, *flags):
        file = folder / "cluster.txt"
        file.write_text(text)
        return self.run_command("place", str(file), *flags)

    def output(self, folder, text, *flags):
        command = self.place(folder, text, *flags)
        assert command.status == 0, command.text("err")
        return command.text("out")

    def report(self, folder, text, *flags):
        return json.loads(self.output(folder, text, "--json", *flags))

    def test_what_a_person_reads(self, tmp_path):
        text = self.output(tmp_path, SLURM, *RATES, "--ranks", "10")
        for words in ("10 ranks on 20 hosts", "no placement is faster", "best trees", "leaf0", "5 of 8", "n[08-12]"):
            assert words in text

    def test_the_switches_that_sum_and_their_commands(self, tmp_path):
        flags = (*RATES, "--ranks", "10", "--aggregators", "3", "--sums", "leaf[0-3],spine", "--gradient", "12.5GB")
        report = self.report(tmp_path, SLURM, *flags)
        assert report["all_reduce"] == {"exact": "1", "s": 1.0}
        assert report["bound"] == report["total"] and report["all_tried"]
        # Two racks of equal size take two; and the switch above them none, if one rack's switch does not sum for the other.
        assert report["aggregators"] == ["leaf0"] and [r["ranks"] for r in report["racks"]] == [8, 2]
        commands = self.output(tmp_path, SLURM, *flags, "--out", "aggregators").splitlines()
        assert commands[0].startswith("# No aggregator is above all ranks")
        assert commands[1] == "netsum aggregator --listen leaf0:5151 --in-switch"
        assert commands[2] == "# rank 0 on n00: NETSUM_AGGREGATOR=leaf0:5151"

    def test_a_hierarchy_has_parents(self, tmp_path):
        flags = ("--rates", "100G", "--ranks", "20", "--aggregators", "9", "--sums", "leaf[0-3],spine")
        commands = self.output(tmp_path, SLURM, *flags, "--out", "aggregators")
        assert "--listen leaf0:5151 --in-switch --parent spine:5151 --link-rate 100000mbit\n" in commands
        assert self.report(tmp_path, SLURM, *flags)["hierarchy"] == self.report(tmp_path, SLURM, *flags)["all_reduce"]

    def test_outputs_are_in_the_order_of_ranks(self, tmp_path):
        flags = (*RATES, "--ranks", "10", "--out")
        hosts = self.output(tmp_path, SLURM, *flags, "hostfile").split()
        assert hosts == [f"n{i:02}" for i in (0, 1, 2, 3, 4, 8, 9, 10, 11, 12)]
        assert self.output(tmp_path, SLURM, *flags, "nodelist") == "n[00-04,08-12]"
        assert "--nodelist=n[00-04,08-12]\n" in self.output(tmp_path, SLURM, *flags, "slurm")
        kueue = yaml.safe_load(self.output(tmp_path, SLURM, *flags, "kueue"))["topologyAssignment"]["slices"][0]
        assert kueue["valuesPerLevel"][0]["individual"]["roots"] == hosts
        volcano = yaml.safe_load(self.output(tmp_path, SLURM, *flags, "volcano"))["spec"]
        assert volcano["networkTopology"] == {"mode": "hard", "highestTierAllowed": 2}
        tasks = [task["template"]["spec"]["nodeSelector"]["kubernetes.io/hostname"] for task in volcano["tasks"]]
        assert tasks == hosts

    def test_the_plan_of_a_placement_takes_its_time(self, tmp_path):
        flags = (*RATES, "--ranks", "6", "--most-per-rack", "2", "--aggregators", "1", "--sums", "spine")
        graph = tmp_path / "graph.yaml"
        graph.write_text(self.output(tmp_path, SLURM, *flags, "--out", "graph"))
        plan = json.loads(self.run_command("plan", str(graph), "--json").text("out"))
        report = self.report(tmp_path, SLURM, *flags)
        assert plan["optimum"]["s_per_gigabyte"] == pytest.approx(report["all_reduce"]["s"], rel=1e-9)

    @pytest.mark.parametrize("form", ["slurm", "slurm-yaml", "volcano", "topograph", "kueue"])
    def test_round_trips(self, tmp_path, form):
        text = SLURM.replace("spine", "pod0") + "SwitchName=leaf9 Nodes=m[9-11],x\nSwitchName=pod1 Switches=leaf9\n"
        text += "SwitchName=core Switches=pod[0-1]\n"
        first = self.output(tmp_path, text, *RATES, "--convert", form)
        assert self.output(tmp_path, first, *RATES, "--convert", form) == first
        assert (
            self.report(tmp_path, first, *RATES, "--ranks", "9")["hosts"]
            == (self.report(tmp_path, text, *RATES, "--ranks", "9")["hosts"])
        )
        if form != "kueue":  # its switches are named by their way from the root
            assert self.output(tmp_path, first, *RATES, "--convert", "slurm").count("\n") == 7

    def test_ibnetdiscover(self, tmp_path):
        report = self.report(tmp_path, IBNETDISCOVER, "--ranks", "3", "--aggregators", "1", "--gradient", "100GB")
        assert report["hosts"] == ["n0", "n1", "n2"]
        assert report["aggregators"] == ["spine"]
        assert report["all_reduce"]["exact"] == "8"

    def test_blocks_comments_and_case(self, tmp_path):
        text = "# blocks\nblockname=b1 NODES=n[1-2] # first\nBlockName=b2 \\\n Nodes=n[3-4]\nBlockSizes=2\n"
        assert [r["name"] for r in self.report(tmp_path, text, *RATES, "--ranks", "4")["racks"]] == ["b1", "b2"]

    def test_a_job_with_data(self, tmp_path):
        job = tmp_path / "job.yaml"
        job.write_text(
            "ranks: 2\ngradient: 100MB\ncompute: 100ms\niterations: 10\nrates: [100G, 200G]\nexclude: n08\nshards:\n"
            "  - {name: a, bytes: 25GB, at: leaf0}\n  - {name: b, bytes: 25GB, at: 'n[08-09]'}\n"
        )
        report = self.report(tmp_path, SLURM, "--job", job)
        assert report["hosts"] == ["n00", "n09"] and report["data_ns"] == 0
        assert [shard["rank"] for shard in report["shards"]] == [0, 1]
        assert report["total"]["s"] == pytest.approx(10 * (0.1 + 0.008))
        together = self.report(tmp_path, SLURM, "--job", job, "--within", "1", "--required")
        assert together["data_ns"] == 1_000_000_000
        assert "no switch of tier 1" in self.place(tmp_path, SLURM, "--job", job, "--ranks", "9", "--within", "1").text(
            "out"
        )

    @pytest.mark.parametrize(("text", "line", "words"), BAD_FILES)
    def test_a_wrong_file(self, tmp_path, text, line, words):
        self.assert_refuses_file(self.place(tmp_path, text, *RATES, "--ranks", "1"), "cluster.txt", line, words)

    @pytest.mark.parametrize(("text", "line", "words"), BAD_JOBS)
    def test_a_wrong_job(self, tmp_path, text, line, words):
        job = tmp_path / "job.yaml"
        job.write_text(text)
        self.assert_refuses_file(self.place(tmp_path, SLURM, *RATES, "--job", job), "job.yaml", line, words)

    def test_wrong_flags(self, tmp_path):
        for flags, words in (
            ([], "--ranks"),
            (["--ranks", "0"], "--ranks"),
            (["--ranks", "21", *RATES], "only 20 hosts"),
            (["--ranks", "2"], "--rates"),
            (["--ranks", "2", "--rates", "0G"], "'0G'"),
            (["--ranks", "9", *RATES, "--within", "1", "--required"], "'leaf0' has 8"),
            (["--ranks", "2", *RATES, "--out", "paper"], "--out"),
            (["--ranks", "2", *RATES, "--gradient", "0"], "--gradient"),
        ):
            command = self.place(tmp_path, SLURM, *(flags if "--rates" in flags or "--ranks" in flags else [*RATES]))
            assert command.status == 2 and words in command.text("err"), command.text("err")

    @pytest.mark.parametrize("count", [12, pytest.param(200, marks=pytest.mark.soak)])
    def test_random_bytes_are_refused(self, tmp_path, count):
        rng = random.Random(SEED)
        sources = [SLURM, IBNETDISCOVER, KUEUE, self.output(tmp_path, SLURM, *RATES, "--convert", "topograph")]
        for i in range(count):
            text = list(sources[i % len(sources)])
            for _ in range(rng.randint(1, 20)):
                text[rng.randrange(len(text))] = chr(rng.randint(1, 126))
            command = self.place(tmp_path, "".join(text), *RATES, "--ranks", "1")
            assert command.status in (0, 2), command.text("err")

    def large(self, racks):
        """Racks of 40 hosts, 25 racks in a pod."""
        lines = [f"SwitchName=rack{i} Nodes=h[{40 * i}-{40 * i + 39}]" for i in range(racks)]
        pods = range(0, racks, 25)
        lines += [f"SwitchName=pod{i // 25} Switches=rack[{i}-{min(racks, i + 25) - 1}]" for i in pods]
        return "\n".join([*lines, f"SwitchName=core Switches=pod[0-{len(pods) - 1}]"]) + "\n"

    @pytest.mark.parametrize(
        ("racks", "ranks", "most"), [(50, 300, 0), pytest.param(250, 1000, 8, marks=pytest.mark.soak)]
    )
    def test_large_clusters_are_near_their_bound(self, tmp_path, racks, ranks, most):
        rng = random.Random(SEED)
        job = tmp_path / "job.yaml"
        busy = ",".join(f"h{i}" for i in sorted(rng.sample(range(40 * racks), 10 * racks)))
        shards = "".join(
            f"  - {{name: s{i}, bytes: 1GB, at: 'h{rng.randrange(40 * racks)},h{rng.randrange(40 * racks)}'}}\n"
            for i in range(2 * ranks)
        )
        job.write_text(
            f"ranks: {ranks}\niterations: 1000\ngradient: 1GB\ncompute: 100ms\nsums: 'rack[0-{racks - 1}]'\n"
            f"rates: [100G, 400G, 2T]\nexclude: {busy}\nshards:\n{shards}"
        )
        report = self.report(tmp_path, self.large(racks), "--job", job, *(("--aggregators", str(most)) if most else ()))
        assert len(set(report["hosts"])) == ranks and not set(report["hosts"]) & set(busy.split(","))
        assert report["distance"] <= 0.02
