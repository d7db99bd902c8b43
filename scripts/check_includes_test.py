"""check_includes.py must catch what it is there for: each test writes a small tree with one offence."""

import pathlib
import tempfile

import check_includes


class CheckIncludesTest:
    def offences(self, files):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name, text in files.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text, encoding="utf-8")
            return check_includes.check(root)

    def test_allowed_directions_pass(self):
        assert (
            self.offences(
                {
                    "src/net/a.h": '#include <vector>\n#include "netsum/status.h"\n#include "src/base/clock.h"\n',
                    "session/b.cc": '#include "src/net/a.h"\n#include "aggregator/user/dataplane.h"\n',
                    "aggregator/slot/slot.h": '#include "wire/packet.h"\n',
                    "aggregator/user/core.h": '#include "aggregator/dataplane/dataplane.h"\n',
                    "src/worker/c_test.cc": '#include "src/kernels/kernels.h"\n',
                }
            )
            == []
        )

    def test_an_include_against_the_direction_is_named_with_its_line(self):
        offences = self.offences({"src/base/a.h": '#pragma once\n#include "src/net/address.h"\n'})
        assert len(offences) == 1
        assert offences[0].startswith('src/base/a.h:2: src/base may not include "src/net/address.h"')

    def test_other_wrong_directions(self):
        for path, include in [
            ("src/worker/a.cc", "src/net/udp/udp_io.h"),
            ("aggregator/slot/slot.h", "src/base/assert.h"),
            ("aggregator/user/dataplane.h", "aggregator/control/control_service.h"),
            ("src/worker/a.h", "src/net/af_xdp/af_xdp_io.h"),
            ("emulate/a.cc", "src/net/udp/udp_io.h"),
            ("api/a.cc", "emulate/network.h"),
            ("src/control/a.cc", "session/session.h"),
            ("aggregator/user/dataplane.cc", "session/session.h"),
            ("wire/codec.cc", "src/base/rng.h"),
            ("include/netsum/a.h", "src/base/clock.h"),
            ("tools/netsum/a.cc", "aggregator/user/dataplane.h"),
            ("examples/a.cc", "src/base/clock.h"),
        ]:
            assert len(self.offences({path: f'#include "{include}"\n'})) == 1, path

    def test_every_door_is_a_folder(self):
        for folder, doors in check_includes.DOORS.items():
            for door in [folder, *doors]:
                assert not pathlib.PurePosixPath(door).suffix, f"{folder}: {door} is a file"

    def test_a_cycle_of_folders_is_named(self):
        (offence,) = check_includes.check_cycles({"src/a": ["src/b"], "src/b": ["src/a"]})
        assert "src/a <- src/b <- src/a" in offence or "src/b <- src/a <- src/b" in offence

    def test_a_cycle_of_top_level_folders_is_named(self):
        (offence,) = check_includes.check_cycles({"src/a": [], "wire": ["src/a"], "src/b": ["wire"]})
        assert "src" in offence and "wire" in offence and "src/a" not in offence

    def test_an_include_not_from_the_root_is_refused(self):
        assert "not written from the repository root" in self.offences({"src/net/a.cc": '#include "address.h"\n'})[0]

    def test_a_source_outside_the_known_folders_is_refused(self):
        assert "lies in no folder" in self.offences({"misc/a.cc": "int a;\n"})[0]

    def test_a_path_of_one_machine_is_refused(self):
        offences = self.offences({"docs/a.md": "first\nsee " + "/ho" + "me/someone/netsum\n"})
        assert len(offences) == 1
        assert offences[0].startswith("docs/a.md:2:")

    def test_web_addresses_are_not_paths_of_a_machine(self):
        assert self.offences({"docs/a.md": "https://example.org/ho" + "me/page\n"}) == []
