#!/usr/bin/env python3
"""Writes wire/check_key.h: the public key table of the integrity check.

The words are the halves of SplitMix64's output from seed 0: nothing up the sleeve, and anybody can rerun this.
"""
import pathlib

WORDS = 8928 // 4
MASK = (1 << 64) - 1


def splitmix64(count: int):
    state = 0
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        yield z ^ (z >> 31)


def main() -> None:
    words = [half for z in splitmix64(WORDS // 2) for half in (z & 0xFFFFFFFF, z >> 32)]
    lines = [
        "/* Made by scripts/make_check_key.py: SplitMix64 from seed 0. Do not edit. */",
        "#ifndef NETSUM_WIRE_CHECK_KEY_H_",
        "#define NETSUM_WIRE_CHECK_KEY_H_",
        "",
        "#ifdef __cplusplus",
        "#include <cstdint>",
        "inline constexpr std::uint32_t netsum_check_key[%d] = {" % WORDS,
        "#else",
        "#include <stdint.h>",
        "static const uint32_t netsum_check_key[%d] = {" % WORDS,
        "#endif",
    ]
    for i in range(0, WORDS, 8):
        lines.append("    " + ", ".join("0x%08Xu" % w for w in words[i : i + 8]) + ",")
    lines += ["};", "", "#endif /* NETSUM_WIRE_CHECK_KEY_H_ */", ""]
    target = pathlib.Path(__file__).resolve().parent.parent / "wire" / "check_key.h"
    target.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
