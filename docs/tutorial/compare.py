"""Compares the loss curves of two trainings: prints some steps, and how far they are apart. Ends with 1 if they differ."""

import argparse
import pathlib
import sys

SHOWN = 5
# The sums of two backends differ in their last bits, which training amplifies.
SAME = 0.01


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("curves", nargs=2, type=pathlib.Path, metavar="FILE", help="of train.py --curve")
    files = parser.parse_args().curves
    missing = [str(file) for file in files if not file.is_file()]
    if missing:
        parser.error(f"there is no {' and no '.join(missing)}: train with --curve first")
    one, other = ([float(loss) for loss in file.read_text(encoding="utf-8").split()] for file in files)
    if len(one) != len(other):
        parser.error(f"{files[0]} has {len(one)} steps, {files[1]} {len(other)}: train both with the same --steps")
    widths = [max(8, len(file.stem)) for file in files]
    print("step", *(file.stem.rjust(width) for file, width in zip(files, widths, strict=True)))
    for step in range(0, len(one), max(1, len(one) // SHOWN)):
        print(f"{step + 1:4} {one[step]:{widths[0]}.4f} {other[step]:{widths[1]}.4f}")
    apart = max(abs(a - b) for a, b in zip(one, other, strict=True))
    is_same = apart <= SAME
    print(f"the largest difference is {apart:.6f}: {'the same curve' if is_same else 'not the same curve'}")
    sys.exit(0 if is_same else 1)


if __name__ == "__main__":
    main()
