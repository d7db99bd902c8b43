# Entry points for users. Each target calls scripts/ or CMake; `make help` lists them.

PRESET ?= release
JOBS ?= $(shell nproc)
PREFIX ?= /usr/local

.DEFAULT_GOAL := help
.PHONY: help setup build demo bench bench-quick bench-shares bench-sparse bench-training bench-compression bench-controller bench-hooks bench-thresholds bench-failures bench-jobs bench-floods bench-loss profile results chaos check test soak test-asan test-tsan test-kernel lint format deb wheel install clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Install the requirements (Debian packages, and Python packages in .venv)
	@scripts/bootstrap.sh

build: setup ## Build the library, the command and the tests (PRESET=release|dev|asan|tsan)
	@scripts/build.sh $(PRESET) $(JOBS)

demo: ## Train three models with Gloo and with netsum, and compare them (as root in a virtual rack)
	@scripts/bootstrap.sh --demo
	@scripts/install_wheel.sh
	@.venv/bin/python -m netsum_bench.demo $(DEMO_FLAGS)

bench: build ## Compare netsum with Gloo and Open MPI in a rack (root; 15 minutes; BENCH_FLAGS=...)
	@.venv/bin/python -m netsum_bench.rack_bench $(BENCH_FLAGS)

bench-quick: build ## The same with few iterations, in less than three minutes
	@.venv/bin/python -m netsum_bench.rack_bench --quick $(BENCH_FLAGS)

results: build ## Run the benchmarks; tables and plots in build/results (root; ONLY=rack,loss BUDGET=minutes FULL=1 PUBLISH=1)
	@scripts/install_wheel.sh
	@.venv/bin/python -m netsum_bench.micro_bench --build-only
	@.venv/bin/python -m netsum_bench.results $(if $(ONLY),--only $(ONLY)) $(if $(BUDGET),--budget $(BUDGET)) $(if $(FULL),--full) $(if $(PUBLISH),--publish)

profile: build ## Sample one side of a job: its flame graph, and its time by pass (root; CASE=worker|daemon|xdp|one-host)
	@.venv/bin/python -m netsum_bench.profile $(if $(CASE),--case $(CASE)) $(BENCH_FLAGS)

bench-loss: build ## Measure goodput with 0 to 5 % loss on every link, compared with Gloo (root; three minutes)
	@.venv/bin/python -m netsum_bench.loss_bench $(BENCH_FLAGS)

bench-shares: build ## Measure every placement of aggregators in racks, and compare it with its plan (root; six minutes)
	@.venv/bin/python -m netsum_bench.shares_bench $(BENCH_FLAGS)

bench-sparse: build ## Measure sparse all-reduces in a rack, compared with dense ones, Gloo and Open MPI (root; 15 minutes)
	@scripts/install_wheel.sh
	@.venv/bin/python -m netsum_bench.sparse_bench $(BENCH_FLAGS)

bench-training: setup ## Train the demo's models and a recommender with Gloo and netsum in racks: 4 and 8 workers, 100 Mbit/s and 1 Gbit/s
	@scripts/install_wheel.sh
	@.venv/bin/python -m netsum_bench.training_bench $(BENCH_FLAGS)

bench-compression: setup ## Train with every method of compression in racks, beside PyTorch's hooks on Gloo (root; hours; BENCH_FLAGS=--quick: minutes)
	@scripts/install_wheel.sh
	@.venv/bin/python -m netsum_bench.compression_bench $(BENCH_FLAGS)

bench-controller: setup ## Train in a rack whose links change, with each level of compression and with the controller (root; six minutes)
	@scripts/install_wheel.sh
	@.venv/bin/python -m netsum_bench.controller_bench $(BENCH_FLAGS)

bench-hooks: setup ## Train with the hook of compression in C++ and in Python, on this machine (four minutes)
	@scripts/install_wheel.sh
	@.venv/bin/python -m netsum_bench.hooks_bench $(BENCH_FLAGS)

bench-thresholds: setup ## Count what thresholds of compression let pass, on the gradients of trained models (three minutes)
	@scripts/install_wheel.sh
	@.venv/bin/python -m netsum_bench.thresholds_bench $(BENCH_FLAGS)

bench-failures: build ## Measure failure detection and failover (root)
	@.venv/bin/python -m netsum_bench.failures_bench $(BENCH_FLAGS)

bench-jobs: build ## Measure how jobs share an aggregator, and late jobs (root)
	@.venv/bin/python -m netsum_bench.jobs_bench $(BENCH_FLAGS)

bench-floods: build ## Measure the effect of floods on a job at the same aggregator, daemon and XDP (root)
	@.venv/bin/python -m netsum_bench.flood_bench $(BENCH_FLAGS)

chaos: build ## Train in a rack under ten minutes of injected faults (root; CHAOS_FLAGS="--seed 7 --minutes 2")
	@scripts/install_wheel.sh
	@.venv/bin/python tests/chaos/chaos.py $(CHAOS_FLAGS)

test: setup ## Run all tests except the soak tests; the last line has the counts
	@scripts/test.sh all $(JOBS)

check: setup ## Build what changed, and run the tests that take less than three minutes in total
	@scripts/test.sh check $(JOBS)

soak: setup ## Run the soak tests, all or ONLY=REGEX
	@NETSUM_SOAK_ONLY='$(ONLY)' scripts/test.sh soak $(JOBS)

test-asan: setup ## Run the C++ tests under AddressSanitizer and UBSan
	@scripts/test.sh asan $(JOBS)

test-tsan: setup ## Run the C++ tests under ThreadSanitizer
	@scripts/test.sh tsan $(JOBS)

test-kernel: build ## Boot Debian's own kernel under qemu and test XDP and AF_XDP on it (KERNEL_FLAGS=...)
	@scripts/bootstrap.sh --kernel-test
	@python3 tests/kernel/run.py $(KERNEL_FLAGS)

lint: setup ## Check formatting, include directions and documents; run ruff, and clang-tidy on changed files (ALL=1: on all)
	@scripts/build.sh release $(JOBS)
	@scripts/lint.sh $(if $(ALL),--all,--changed)

format: setup ## Format C, C++ and Python files with clang-format and ruff
	@scripts/lint.sh --fix-format

deb: build ## Make Debian packages of the library, the command and the plug-ins, in dist/
	@scripts/make_deb.sh build/$(PRESET) dist

wheel: setup ## Make a wheel of the Python package that runs on other machines, in dist/
	@.venv/bin/python scripts/make_wheel.py dist $(if $(TORCH),--torch $(TORCH))

install: build ## Install the library and the command under PREFIX=/usr/local
	@cmake --install build/$(PRESET) --prefix $(PREFIX)

clean: ## Remove build results; keeps .venv
	@rm -rf build dist demo-report
