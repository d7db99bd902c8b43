"""Benchmarks of netsum in virtual racks, the figures of the docs, and the demo (netsum_bench.demo)."""
