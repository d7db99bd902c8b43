"""The common main() of the checks of this folder."""

import argparse
import pathlib


def main(description, check, all_right):
    """Runs check(root) and prints the offences that it returns, or `all_right`. Returns the exit status."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("root", nargs="?", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    offences = check(parser.parse_args().root)
    print("\n".join(offences) if offences else all_right)
    return 1 if offences else 0
