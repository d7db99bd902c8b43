"""The command holds the library's code once: linked in, and not loaded with libnetsum a second time."""

import pathlib
import re
import subprocess

from harness import NETSUM, CommandTest


def output_of(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


class LinkingTest(CommandTest):
    def test_every_function_of_the_library_is_there_once(self):
        libraries = re.findall(r"=> (/\S+)", output_of("ldd", NETSUM))
        ours = [
            file for file in libraries if b"netsum" in pathlib.Path(file).read_bytes()
        ]  # others have no symbol of ours
        symbols = {file: output_of("nm", "-C", "--defined-only", file) for file in [NETSUM, *ours]}
        for function in (
            "netsum::Communicator::connect",  # public
            "netsum::query_status",  # internal; the command calls it, too
            "netsum::split_host_port",
        ):
            symbol = re.compile(rf"^\S+ [Tt] {re.escape(function)}\([^[]*$", re.MULTILINE)
            # The files that the command's process consists of, once for each definition of the function.
            assert [file for file, names in symbols.items() for _ in symbol.findall(names)] == [NETSUM], function
