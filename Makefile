# `make` lists the targets. All that is needed is make and Python 3.11 or later; the rest goes into .venv.
PYTHON ?= python3
WORKERS ?= 2
# Gradient steps for each design of `make demo` and `make baselines`; by default what each of them chooses.
UPDATES ?=
# The folder of the NGSIM files; by default the one that DPFUSE_DATA names.
DATA ?=
# How many jobs of `make us101` run at the same time; more than 1 only on a GPU.
JOBS ?= 1
# One benchmark for `make bench`; by default all of them.
ONLY ?=
# Which torch the peers of `make bench-rl` get; a build without CUDA is much smaller.
TORCH ?= torch

BIN := .venv/bin
READY := .venv/.ready
BENCH := .venv-bench
SOURCES := src tests benchmarks docs experiments tools
BENCHMARKS := update live_step durable fleet ingest page reader
OLD_PYTHON := dpfuse needs Python 3.11 or later, but $(PYTHON) is not; name another one: make PYTHON=python3.12
NO_VENV := $(PYTHON) has no venv module or no pip to put into it; install them (Debian, Ubuntu: apt install python3-venv)

.DEFAULT_GOAL := help
.PHONY: help demo live live-design test test-slow test-results check bench bench-rl baselines results quote us101 us101-quick us101-guided optimality audit docs transcripts lock clean

help:
	@echo "To use:"
	@echo "make demo         train designs for a simulated freeway and compare them; results in out/demo"
	@echo "make live         run a fusion centre with simulated vehicles and a page to watch; Ctrl-C stops it"
	@echo "To develop:"
	@echo "make test         run the quick tests"
	@echo "make test-slow    run the long tests"
	@echo "make test-results compare the pages with the results files, and the results with what the docs claim"
	@echo "make check        check format, lint and types, and run the quick tests"
	@echo "make docs         build the documentation site, with every link checked; site/index.html"
	@echo "make transcripts  run the commands that README and docs show, and write what they print into the pages"
	@echo "make quote        write the numbers of the results files into the pages"
	@echo "make lock         write the newest versions that fit into constraints.txt"
	@echo "make clean        remove everything that was generated, and the environments"
	@echo "To reproduce; each target writes its results file and the pages that quote it:"
	@echo "make results      run the demo and all benchmarks"
	@echo "make bench        run all benchmarks, or one: ONLY=fleet; the reader's needs DATA=DIR"
	@echo "make bench-rl     compare our PPO with Stable-Baselines3; 40 minutes"
	@echo "make baselines    compare designs with mechanisms from the literature on three systems"
	@echo "make optimality   compare learned designs with the optimum of Theorem 1; half an hour"
	@echo "make audit        attack the designs of the demo"
	@echo "make live-design  train the design that make live runs; five minutes"
	@echo "make us101        the case study on US Highway 101, DATA=DIR; hours, or half an hour on a large GPU with JOBS=16"
	@echo "make us101-guided its part on guided designs, DATA=DIR; two hours on 2 cores"
	@echo "make us101-quick  one budget and one seed of it, DATA=DIR; a few minutes; results in out/us101-quick"
	@echo
	@echo "PYTHON=python3.12 selects a Python, UPDATES=100 makes a short demo, WORKERS=8 tests on more cores."

demo: $(READY)
	$(BIN)/dpfuse demo $(if $(UPDATES),--updates $(UPDATES))

live: $(READY)
	$(BIN)/dpfuse live

live-design: $(READY)
	$(BIN)/python -m experiments.live.run
	$(BIN)/python -m tools.quote

test: $(READY)
	$(BIN)/python -m pytest -q -n $(WORKERS) -m "not slow and not results"

test-slow: $(READY)
	$(BIN)/python -m pytest -q -n $(WORKERS) -m "slow and not results"

test-results: $(READY)
	$(BIN)/python -m pytest -q -m results

check: $(READY)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy
	$(MAKE) --no-print-directory test

bench: $(READY)
	@set -e; for name in $(or $(ONLY),$(BENCHMARKS)); do \
	    echo "benchmarks/$$name.py"; $(if $(DATA),DPFUSE_DATA=$(DATA)) $(BIN)/python -m benchmarks.$$name; done
	$(BIN)/python -m tools.quote

bench-rl: $(BENCH)/.ready
	$(BENCH)/bin/python -m benchmarks.rl.race
	$(BENCH)/bin/python -m tools.quote

results: $(READY)
	$(BIN)/python -m experiments.demo.run
	$(MAKE) --no-print-directory bench

quote: $(READY)
	$(BIN)/python -m tools.quote

baselines: $(READY)
	$(BIN)/python -m experiments.baselines.run $(if $(UPDATES),--updates $(UPDATES))
	$(BIN)/python -m tools.quote

us101: $(READY)
	$(BIN)/python -m experiments.us101.run $(if $(DATA),--data $(DATA)) --jobs $(JOBS)
	$(BIN)/python -m tools.quote

us101-guided: $(READY)
	$(BIN)/python -m experiments.us101.run $(if $(DATA),--data $(DATA)) --guided --jobs $(JOBS)
	$(BIN)/python -m tools.quote

us101-quick: $(READY)
	$(BIN)/python -m experiments.us101.run $(if $(DATA),--data $(DATA)) --quick --out out/us101-quick

optimality: $(READY)
	$(BIN)/python -m experiments.optimality.run
	$(BIN)/python -m tools.quote

audit: demo
	$(BIN)/python -m experiments.audit.run
	$(BIN)/python -m tools.quote

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

transcripts: $(READY)
	$(BIN)/python -m tools.transcripts

# An environment that is half made, or made before pyproject.toml or constraints.txt changed, is brought up to date.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(OLD_PYTHON)" >&2; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv --clear .venv || { echo "$(NO_VENV)" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

# Torch must not get into the environment of the tests. It wants an older mpmath than they have.
$(BENCH)/.ready: pyproject.toml constraints.txt
	@test -x $(BENCH)/bin/pip || $(PYTHON) -m venv --clear $(BENCH) || { echo "$(NO_VENV)" >&2; exit 1; }
	mkdir -p build && grep -v '^mpmath==' constraints.txt > build/bench-constraints.txt
	$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check -c build/bench-constraints.txt $(TORCH) -e '.[bench,gym,data]'
	@touch $@

# From an environment of its own, so that nothing installed by hand gets in.
lock:
	rm -rf build/lock
	$(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	echo "# Versions that are known to work together. Written by \`make lock\`; do not edit." > constraints.txt
	build/lock/bin/python -m pip freeze --exclude-editable >> constraints.txt
	rm -rf build/lock

clean:
	rm -rf .venv .venv-bench build dist out site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
