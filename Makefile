# The few commands people type. Each is a thin call into scripts/ or CMake; `make help` lists them.

PRESET ?= release
JOBS ?= $(shell nproc)
PREFIX ?= /usr/local

.DEFAULT_GOAL := help
.PHONY: help setup build demo bench bench-quick bench-training bench-failures bench-jobs bench-floods bench-loss results tables chaos check test soak test-asan test-tsan test-kernel lint format install clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Install what is needed (Debian packages, and Python packages in .venv)
	@scripts/bootstrap.sh

build: setup ## Build the library, the command and the tests (PRESET=release|dev|asan|tsan)
	@scripts/build.sh $(PRESET) $(JOBS)

demo: setup ## Train two models with Gloo and with netsum, and compare; as root in a virtual rack
	@scripts/install_wheel.sh
	@.venv/bin/python -m netsum_bench.demo $(DEMO_FLAGS)

bench: build ## The rack benchmark: netsum beside Gloo and Open MPI (root; a quarter of an hour; BENCH_FLAGS=...)
	@.venv/bin/python -m netsum_bench.rack_bench $(BENCH_FLAGS)

bench-quick: build ## The same, a look in under three minutes
	@.venv/bin/python -m netsum_bench.rack_bench --quick $(BENCH_FLAGS)

results: build ## Take the figures of the docs and write their tables (root; ONLY=rack,loss BUDGET=minutes FULL=1)
	@scripts/install_wheel.sh
	@.venv/bin/python -m netsum_bench.micro_bench --build-only
	@.venv/bin/python -m netsum_bench.results $(if $(ONLY),--only $(ONLY)) $(if $(BUDGET),--budget $(BUDGET)) $(if $(FULL),--full)

tables: setup ## Write the tables of the docs again from docs/data, and mark those that are old
	@.venv/bin/python -m netsum_bench.results --tables

bench-loss: build ## Goodput with 0 to 5 % loss on every link, beside Gloo (root; three minutes)
	@.venv/bin/python -m netsum_bench.loss_bench $(BENCH_FLAGS)

bench-training: setup ## The demo's models with Gloo and netsum in racks: 4 and 8 workers, 100 Mbit/s and 1 Gbit/s
	@scripts/install_wheel.sh
	@.venv/bin/python -m netsum_bench.training_bench $(BENCH_FLAGS)

bench-failures: build ## How soon a killed or stopped rank or aggregator is known, and how long a failover takes (root)
	@.venv/bin/python -m netsum_bench.failures_bench $(BENCH_FLAGS)

bench-jobs: build ## Several jobs at one aggregator: how evenly they share it, and late jobs (root)
	@.venv/bin/python -m netsum_bench.jobs_bench $(BENCH_FLAGS)

bench-floods: build ## What a flood takes from a job at the same aggregator, daemon and XDP (root)
	@.venv/bin/python -m netsum_bench.flood_bench $(BENCH_FLAGS)

chaos: build ## Training in a rack under ten minutes of kills, stops, losses, ... (root; CHAOS_FLAGS="--seed 7 --minutes 2")
	@scripts/install_wheel.sh
	@.venv/bin/python tests/chaos/chaos.py $(CHAOS_FLAGS)

test: setup ## Run every test but the soak tests; the last line counts them
	@scripts/test.sh all $(JOBS)

check: setup ## Build what changed, and run the tests that answer within three minutes
	@scripts/test.sh check $(JOBS)

soak: setup ## Run the long tests that `make test` leaves out, all or ONLY=REGEX; updates docs/soak.md
	@NETSUM_SOAK_ONLY='$(ONLY)' scripts/test.sh soak $(JOBS)

test-asan: setup ## Run the C++ tests under AddressSanitizer and UBSan
	@scripts/test.sh asan $(JOBS)

test-tsan: setup ## Run the C++ tests under ThreadSanitizer
	@scripts/test.sh tsan $(JOBS)

test-kernel: build ## Boot Debian's own kernel under qemu and test XDP and AF_XDP on it (KERNEL_FLAGS=...)
	@scripts/bootstrap.sh --kernel-test
	@python3 tests/kernel/run.py $(KERNEL_FLAGS)

lint: setup ## Check formatting and include directions; ruff, and clang-tidy on changed files (ALL=1: on all)
	@scripts/build.sh release $(JOBS)
	@scripts/lint.sh $(if $(ALL),--all,--changed)
	@.venv/bin/python -m netsum_bench.results --check

format: setup ## Rewrite own C, C++ and Python files as clang-format and ruff want them
	@scripts/lint.sh --fix-format

install: build ## Install the library and the command under PREFIX=/usr/local
	@cmake --install build/$(PRESET) --prefix $(PREFIX) --component netsum

clean: ## Remove what was built; .venv stays
	@rm -rf build dist demo-report
