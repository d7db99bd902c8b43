# Entry points for users. Each target calls scripts/ or CMake; `make help` lists them.

PRESET ?= release
JOBS ?= $(shell nproc)
PREFIX ?= /usr/local

.DEFAULT_GOAL := help
.PHONY: help setup build demo bench profile results chaos check test soak test-asan test-tsan test-kernel lint format deb wheel install docs tutorials clean

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

bench: build ## Measure a case: CASE=loss BENCH_FLAGS="--rounds 1" (root; without CASE: netsum, Gloo and Open MPI in a rack, 15 minutes)
	@scripts/install_wheel.sh
	@.venv/bin/python -m netsum_bench $(or $(CASE),rack) $(BENCH_FLAGS)

bench-%: # make bench-schedules: the case "schedules"
	@$(MAKE) bench CASE=$*

results: build ## Run the benchmarks; tables and plots in build/results (root; ONLY=rack,loss BUDGET=minutes FULL=1 PUBLISH=1)
	@scripts/install_wheel.sh
	@.venv/bin/python -m netsum_bench.results $(if $(ONLY),--only $(ONLY)) $(if $(BUDGET),--budget $(BUDGET)) $(if $(FULL),--full) $(if $(PUBLISH),--publish)

profile: build ## Sample one side of a job: its flame graph, and its time by pass (root; CASE=worker|daemon|xdp|one-host)
	@.venv/bin/python -m netsum_bench profile $(if $(CASE),--case $(CASE)) $(BENCH_FLAGS)

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

tutorials: setup ## Run the parts of docs/tutorial.md and compare what they print; the time of each (root for three; ONLY=sparse: one)
	@scripts/install_wheel.sh
	@.venv/bin/python -m pytest -q tests/tutorial $(if $(ONLY),-k $(ONLY)) --durations 0 --durations-min 1

docs: ## Make a site of all pages and of the reference of C++, C and Python, in build/docs/site, and check it
	@scripts/bootstrap.sh --docs
	@.venv/bin/sphinx-build -q -W --keep-going -b html -c docs/site . build/docs/site
	@.venv/bin/python docs/site/check.py build/docs/site
	@echo "open build/docs/site/index.html"

clean: ## Remove build results; keeps .venv
	@rm -rf build dist demo-report
