"""netsum bursts: logs and captures with known figures, and files that are wrong."""

import json
import signal
import struct
import time

import pytest
from harness import CommandTest
from rack_harness import RackCommandTest

US, MS = 1_000, 1_000_000
ETHERNET, RAW, SLL, SLL2, BLUETOOTH = 1, 101, 113, 276, 201
TCP, UDP = 6, 17


def on_off(bursts, period_ns=10 * MS, offset_ns=0):
    """Bursts of 64 packets of 1500 bytes at 1 Gbit/s."""
    return [(offset_ns + b * period_ns + i * 12 * US, 1500) for b in range(bursts) for i in range(64)]


def lines(packets, **more):
    return "".join(json.dumps({"t": t, "bytes": size, **more}) + "\n" for t, size in packets)


def ip_packet(size, protocol=UDP, source="10.0.0.1", to="10.0.0.9"):
    """The headers of an IPv4 packet of `size` bytes; TCP with 20 bytes."""
    addresses = [bytes(map(int, address.split("."))) for address in (source, to)]
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, size & 0xFFFF, 0, 0, 64, protocol, 0, *addresses)
    return ip + (bytes(12) + b"\x50" + bytes(7) if protocol == TCP else bytes(8))


def ethernet(packet, vlan=False):
    return bytes(12) + (b"\x81\x00\x00\x05" if vlan else b"") + b"\x08\x00" + packet


def pcap(packets, link_type=ETHERNET, magic=0xA1B23C4D):
    """`packets`: time in ns, length, the bytes that are captured."""
    file = struct.pack("<IHHiIII", magic, 2, 4, 0, 0, 262144, link_type)
    for at, length, data in packets:
        file += struct.pack("<IIII", at // 10**9, at % 10**9, len(data), length) + data
    return file


def pcapng(packets):
    def block(kind, body):
        body += bytes(-len(body) % 4)
        return struct.pack("<II", kind, len(body) + 12) + body + struct.pack("<I", len(body) + 12)

    file = block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))
    file += block(1, struct.pack("<HHI", ETHERNET, 0, 262144) + struct.pack("<HHB3x", 9, 1, 9))  # nanoseconds
    for at, length, data in packets:
        file += block(6, struct.pack("<IIIII", 0, at >> 32, at & 0xFFFFFFFF, len(data), length) + data)
    return file


FRAMES = [(t, size, ethernet(ip_packet(size - 14))) for t, size in on_off(3)]


class BurstsTest(CommandTest):
    def bursts(self, folder, content, *flags):
        file = folder / "packets"
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return self.run_command("bursts", str(file), *flags)

    def report(self, folder, content, *flags):
        command = self.bursts(folder, content, "--json", *flags)
        assert command.status == 0, command.text("err")
        return json.loads(command.text("out"))

    def stream(self, folder, content, *flags):
        (stream,) = self.report(folder, content, *flags)["streams"]
        return stream

    def refused(self, folder, content, words, *flags):
        command = self.bursts(folder, content, *flags)
        assert command.status == 2, command.text("out")
        for word in words:
            assert word in command.text("err")

    def test_known_figures(self, tmp_path):
        stream = self.stream(tmp_path, lines(on_off(100)), "--rate", "1gbit", "--gap-us", "20")
        assert stream["packets"] == 6400
        assert stream["bytes"] == 9_600_000
        assert stream["envelope"][0] == {"tau_ns": US, "bytes": 1500, "peak_to_mean": pytest.approx(155, rel=0.01)}
        assert {w["tau_ns"]: w["bytes"] for w in stream["envelope"]}[MS] == 96_000
        backlog = {server["bytes_per_s"]: server["backlog_bytes"] for server in stream["backlog"]}
        assert len(backlog) == 16
        assert backlog[125 * MS] == 1500
        assert backlog[62_500_000] == 96_000 - 756 * 62.5
        assert stream["bursts"] == 100
        assert stream["burst_bytes"]["max"] == 96_000
        assert stream["burst_ns"]["p50"] == 756 * US
        assert stream["gap_ns"]["p90"] == 12 * US
        assert stream["gap_ns"]["max"] == 10 * MS - 756 * US
        assert stream["period_ns"] == pytest.approx(10 * MS, abs=100 * US)

    def test_what_a_person_reads(self, tmp_path):
        text = self.bursts(
            tmp_path, lines(on_off(10), port="eth0", dir="in") + lines(on_off(1, offset_ns=95 * MS))
        ).text("out")
        for words in ("2 streams", "eth0 in: 640 packets", "all packets: 64 packets", "peak/mean", "period    10 ms"):
            assert words in text

    def test_ports_that_are_busy_together(self, tmp_path):
        logs = {"a": on_off(3), "b": on_off(3), "c": on_off(3, offset_ns=5 * MS)}
        ordered = sorted((t, size, port) for port, log in logs.items() for t, size in log)
        text = "".join(json.dumps({"t": t, "bytes": size, "port": port}) + "\n" for t, size, port in ordered)
        together = self.report(tmp_path, text, "--rate", "1gbit")["synchronised"]
        # 756 us from each burst's begin, in bins of 100 us: the last one has 4 packets of 12500 bytes' room and more.
        assert together["bins"] == [b * 100 + i for b in range(3) for i in range(8)]
        assert self.report(tmp_path, text)["synchronised"] is None

    def test_a_page(self, tmp_path):
        page = tmp_path / "page.html"
        command = self.bursts(tmp_path, lines(on_off(10), port="<a&b>"), "--page", str(page), "--rate", "1gbit")
        assert command.status == 0
        html = page.read_text()
        assert html.count("<svg") == html.count("</svg>") == 5
        assert "&lt;a&amp;b&gt;" in html
        assert "<a&b>" not in html
        assert "src=" not in html
        assert self.bursts(tmp_path, lines(on_off(1)), "--page", str(tmp_path / "no" / "page")).status == 3

    def test_rates_beside_the_spans_of_a_trace(self, tmp_path):
        span = {"name": "all_reduce #1", "ph": "b", "ts": 1, "pid": 0, "id2": {"local": "1"}}
        trace = tmp_path / "trace.json"
        trace.write_text(json.dumps({"traceEvents": [span], "otherData": {"job": "a"}}))
        packets = lines(on_off(2, offset_ns=7 * MS), port="eth0", dir="in")
        self.report(tmp_path, packets, "--bin-us", "1000", "--perfetto", str(trace))
        found = json.loads(trace.read_text())
        assert found["otherData"] == {"job": "a"}
        first, name, *counts = found["traceEvents"]
        assert first == span
        assert name["args"]["name"] == f"packets of {tmp_path / 'packets'}"
        assert {(one["name"], one["ph"], one["pid"]) for one in counts} == {("eth0 in", "C", name["pid"])}
        # A burst of 96 kB in a bin of a millisecond, and an event only where the rate changes.
        rates = [(one["ts"], one["args"]["Mbit/s"]) for one in counts]
        assert rates == [(7000, 768), (8000, 0), (17000, 768), (18000, 0)]
        self.report(tmp_path, packets, "--bin-us", "1000", "--perfetto", str(trace))
        again = json.loads(trace.read_text())["traceEvents"]
        assert [one["pid"] for one in again if one["ph"] == "C"] == [name["pid"]] * 4 + [name["pid"] + 1] * 4
        alone = tmp_path / "new.json"
        self.report(tmp_path, packets, "--perfetto", str(alone))
        assert {one["ph"] for one in json.loads(alone.read_text())["traceEvents"]} == {"M", "C"}

    @pytest.mark.parametrize("text", ["", "{", "[]", '{"traceEvents": 1}'])
    def test_what_is_no_trace_stays_as_it_is(self, tmp_path, text):
        other = tmp_path / "other.json"
        other.write_text(text)
        self.refused(tmp_path, lines(on_off(1)), ["--perfetto", "no trace"], "--perfetto", str(other))
        assert other.read_text() == text
        command = self.bursts(tmp_path, lines(on_off(1)), "--perfetto", str(tmp_path / "no" / "folder"))
        assert command.status == 3

    @pytest.mark.parametrize("make", [pcap, pcapng])
    def test_captures(self, tmp_path, make):
        assert self.report(tmp_path, make(FRAMES))["streams"] == self.report(tmp_path, lines(on_off(3)))["streams"]

    def test_microseconds(self, tmp_path):
        frames = [(t // 10**9 * 10**9 + t % 10**9 // 1000, size, data) for t, size, data in FRAMES]
        assert self.stream(tmp_path, pcap(frames, magic=0xA1B2C3D4))["span_ns"] == 20 * MS + 756 * US

    @pytest.mark.parametrize("last_s", [2**31 - 1, 2**32 - 1])
    def test_seconds_of_32_bits_that_wrap(self, tmp_path, last_s):
        file = pcap([])
        for second, us in ((last_s - 1, 0), (last_s, 999_999), ((last_s + 1) % 2**32, 0), ((last_s + 2) % 2**32, 0)):
            data = ethernet(ip_packet(986))
            file += struct.pack("<IIII", second, 1000 * us, len(data), 1000) + data
        stream = self.stream(tmp_path, file)
        assert (stream["packets"], stream["span_ns"]) == (4, 3 * 10**9)
        # The gaps: 1 us, 1 s, and as much as an earlier second and 999,999 us.
        assert (stream["gap_ns"]["p50"], stream["gap_ns"]["max"]) == (10**9, 1_999_999_000)

    @pytest.mark.parametrize(
        ("link_type", "header", "direction"),
        [
            (RAW, b"", ""),
            (SLL, struct.pack(">HHH8sH", 4, 1, 6, bytes(8), 0x0800), "out"),
            (SLL, struct.pack(">HHH8sH", 0, 1, 6, bytes(8), 0x0800), "in"),
            (SLL2, struct.pack(">HHIHBB8s", 0x0800, 0, 2, 1, 4, 6, bytes(8)), "out"),
        ],
    )
    def test_other_link_types_count_as_on_an_ethernet(self, tmp_path, link_type, header, direction):
        frames = [(t, len(header) + 1000, header + ip_packet(1000)) for t in range(5)]
        stream = self.stream(tmp_path, pcap(frames, link_type))
        assert stream["bytes"] == 5 * 1014
        assert stream["direction"] == direction

    def test_unknown_link_types_are_refused(self, tmp_path):
        self.refused(tmp_path, pcap(FRAMES, BLUETOOTH), ["link type", "BLUETOOTH", "Ethernet"])

    @pytest.mark.parametrize(("protocol", "header"), [(TCP, 40), (UDP, 28)])
    @pytest.mark.parametrize("vlan", [False, True])
    def test_units_of_segmentation_offload(self, tmp_path, protocol, header, vlan):
        size = header + 3 * (1500 - header) + 100
        link = 18 if vlan else 14
        unit = pcap([(0, link + size, ethernet(ip_packet(size, protocol), vlan))])
        self.refused(tmp_path, unit, ["packet 1 has", str(size), "GSO", "--split", "ethtool"])
        assert self.stream(tmp_path, unit, "--mtu", "9000")["packets"] == 1
        report = self.report(tmp_path, unit, "--split")
        (stream,) = report["streams"]
        assert stream["packets"] == 4
        assert stream["bytes"] == 3 * (link + 1500) + link + header + 100
        assert "1 units" in report["warnings"][0]
        assert "too high" in report["warnings"][0]

    def test_units_of_64_kib_and_of_other_protocols(self, tmp_path):
        large = pcap([(0, 14 + 100_000, ethernet(ip_packet(0, TCP)))])
        assert self.stream(tmp_path, large, "--split")["packets"] == -(-99_960 // 1460)
        other = pcap([(0, 14 + 3000, ethernet(ip_packet(3000, 132)))])
        self.refused(tmp_path, other, ["neither TCP nor UDP"], "--split")

    def test_padding_is_no_offload(self, tmp_path):
        assert self.stream(tmp_path, pcap([(0, 1518, ethernet(ip_packet(1500)))]))["bytes"] == 1518

    def test_streams_by_address_and_filters(self, tmp_path):
        frames = [(i, 1000, ethernet(ip_packet(986, source=f"10.0.0.{i % 3}"))) for i in range(9)]
        streams = self.report(tmp_path, pcap(frames), "--by", "source", "--filter", "not src host 10.0.0.1")["streams"]
        assert {stream["port"]: stream["packets"] for stream in streams} == {"10.0.0.0": 3, "10.0.0.2": 3}
        streams = self.report(tmp_path, pcap(frames), "--by", "destination")["streams"]
        assert {stream["port"]: stream["packets"] for stream in streams} == {"10.0.0.9": 9}
        self.refused(tmp_path, pcap(frames), ["--filter", "syntax error"], "--filter", "udp and and")

    @pytest.mark.parametrize("cut", [1, 16, 42])
    def test_a_file_that_is_cut_off(self, tmp_path, cut):
        report = self.report(tmp_path, pcap(FRAMES)[:-cut])
        assert report["streams"][0]["packets"] == len(FRAMES) - 1
        assert "cut off after 191 packets" in report["warnings"][0]

    @pytest.mark.parametrize("keep", [0, 3, 4, 20, 24, 30])
    def test_a_file_without_a_whole_packet(self, tmp_path, keep):
        self.refused(tmp_path, pcap(FRAMES)[:keep], ["packets"])

    def test_disorder_is_sorted_and_clocks_that_step_back_are_refused(self, tmp_path):
        report = self.report(tmp_path, lines([(0, 1), (9 * MS, 1), (MS, 1), (10 * MS, 1)]))
        assert report["streams"][0]["gap_ns"]["p50"] == MS
        assert "1 packets were out of order, by up to 8000 us" in report["warnings"][0]
        self.refused(tmp_path, lines([(0, 1), (11 * MS, 1), (0, 1)]), ["line 3", "0.011000 s before", "clock was set"])
        self.refused(tmp_path, pcap([FRAMES[150], FRAMES[0]]), ["packet 2", "clock was set"])
        self.refused(tmp_path, lines([(2**63 - 1, 1), (-(2**63), 1)]), ["line 2", "clock was set"])

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("", ["no packets"]),
            ("\n\n", ["no packets"]),
            ("hello\n", ["line 1", '{"t": nanoseconds']),
            ('{"t": 1, "bytes": 2}\n{"t": 2}\n', ["line 2", "'bytes'"]),
            ('{"t": 1.5, "bytes": 2}\n', ["line 1", "'t' must be a whole number"]),
            ('{"t": 9223372036854775808, "bytes": 2}\n', ["line 1", "'t'"]),
            ('{"t": 1, "bytes": -2}\n', ["line 1", "'bytes'"]),
            ('{"t": 1, "bytes": 2, "dir": "up"}\n', ["line 1", "'dir'"]),
            ('{"t": 1, "bytes": 2, "port": 3}\n', ["line 1", "'port'"]),
            ('{"t": 1, "bytes": 2, "\\u001b[1m": 3}\n', ["line 1", "unknown key '\\x1b"]),
            ('{"t": 1, "bytes": 1125899906842624}\n', ["2^50"]),
            ("".join(f'{{"t": 1, "bytes": 1, "port": "p{i}"}}\n' for i in range(1025)), ["line 1025", "1024 ports"]),
        ],
    )
    def test_wrong_logs(self, tmp_path, text, words):
        self.refused(tmp_path, text, words)

    def test_wrong_flags(self, tmp_path):
        self.refused(tmp_path, lines(on_off(1)), ["--filter", "captures"], "--split")
        self.refused(tmp_path, lines(on_off(1)), ["--rate", "1mbit"], "--rate", "7")
        self.refused(tmp_path, lines(on_off(1)), ["--gap-us"], "--gap-us", "0")
        two = lines([(0, 1)], port="a") + lines([(10**14, 1)], port="b")
        self.refused(tmp_path, two, ["--bin-us", "take bins of"], "--rate", "1gbit")
        command = self.run_command("bursts", str(tmp_path / "missing"))
        assert command.status == 2
        assert "No such file" in command.text("err")


class RackBurstsTest(RackCommandTest):
    def test_every_frame_on_the_links_of_a_rack(self, tmp_path):
        trace = tmp_path / "trace.json"
        self.up("--workers", 2, "--rate", "100mbit", "--loss", "0")
        before = {link["id"]: link["packets_passed"] for link in self.status()["links"]}
        capture = self.start(
            *("bursts", "--rack", self.name, "--for", "60s", "--rate", "100mbit", "--json"),
            *("--perfetto", str(trace)),
            environment=self.environment,
        )
        capture.wait_for("capturing")
        begun_us = 1e6 * time.time()
        report = self.sum_over(2, "--bytes", "1Mi", "--iterations", 2)
        assert report["verified"]
        capture.process.send_signal(signal.SIGINT)
        assert capture.end() == 0, capture.text("err")
        ended_us = 1e6 * time.time()
        counts = [one for one in json.loads(trace.read_text())["traceEvents"] if one["ph"] == "C"]
        # By the wall clock, as the ranks' traces. Frames may have come just before.
        assert any(begun_us <= one["ts"] <= ended_us for one in counts)
        assert all(begun_us - 60e6 <= one["ts"] <= ended_us + 60e6 for one in counts)
        after = {link["id"]: link["packets_passed"] for link in self.status()["links"]}
        bursts = json.loads(capture.text("out"))
        streams = {(stream["port"], stream["direction"]): stream for stream in bursts["streams"]}
        assert set(streams) == {(port, direction) for port in ("w0", "w1") for direction in ("in", "out")}
        for port in ("w0", "w1"):
            captured = sum(streams[port, direction]["packets"] for direction in ("in", "out"))
            # Frames between the two counts may come before or after the capture.
            assert captured <= after[port] - before[port]
            for direction in ("in", "out"):
                assert streams[port, direction]["bytes"] > 2 << 20
                assert streams[port, direction]["packets"] > 2 * (1 << 20) / 1440
                assert streams[port, direction]["envelope"][0]["bytes"] >= 1514
        again = self.run_command("bursts", "--rack", self.name, "--for", "100ms", environment=self.environment)
        assert again.status in (0, 2), again.text("err")
        assert again.text("out") or "no packets" in again.text("err")

    @pytest.mark.soak
    def test_every_frame_of_a_paced_rank_obeys_its_envelope(self):
        self.up("--workers", 2, "--rate", "100mbit", "--loss", "0")
        most = {}
        for flags in ((), ("--pace", "5mbit")):
            capture = self.start(
                *("bursts", "--rack", self.name, "--for", "60s", "--rate", "5mbit", "--json"),
                environment=self.environment,
            )
            capture.wait_for("capturing")
            assert self.sum_over(2, "--bytes", "256Ki", "--iterations", 2, *flags)["verified"]
            capture.process.send_signal(signal.SIGINT)
            assert capture.end() == 0, capture.text("err")
            sent = [one for one in json.loads(capture.text("out"))["streams"] if one["direction"] == "in"]
            assert all(stream["bytes"] > 3 * 256 << 10 for stream in sent)
            # B(r) is the maximum over tau of E(tau) - r tau.
            most[flags] = [stream["backlog"][-1] for stream in sent]
        assert {at["bytes_per_s"] for of in most.values() for at in of} == {625_000}
        assert max(at["backlog_bytes"] for at in most["--pace", "5mbit"]) <= 16 * 1514
        assert min(at["backlog_bytes"] for at in most[()]) > 64 << 10, "not paced"

    def test_racks_that_cannot_be_captured(self):
        missing = self.run_command("bursts", "--rack", "none", environment=self.environment)
        assert missing.status == 2
        assert "no rack 'none'" in missing.text("err")
        self.up("--workers", 1)
        plain = self.run_command("bursts", "--rack", self.name, environment=self.environment)
        assert plain.status == 2
        assert "--loss 0" in plain.text("err")
