"""The command holds the library's code once: linked in, and not loaded with libnetsum a second time."""

import re
import subprocess

from harness import NETSUM, CommandTest


def output_of(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def definitions(function):
    """The files that the command's process consists of, once for each definition of `function` in them."""
    libraries = re.findall(r"=> (/\S+)", output_of("ldd", NETSUM))
    symbol = re.compile(rf"^\S+ [Tt] {re.escape(function)}\([^[]*$", re.MULTILINE)
    return [
        file for file in [NETSUM, *libraries] for _ in symbol.findall(output_of("nm", "-C", "--defined-only", file))
    ]


class LinkingTest(CommandTest):
    def test_every_function_of_the_library_is_there_once(self):
        for function in (
            "netsum::Communicator::connect",  # public
            "netsum::query_status",  # internal; the command calls it, too
            "netsum::split_host_port",
        ):
            assert definitions(function) == [NETSUM], function
