# `make` lists the targets. All that is needed is make and Python 3.11 or later; the rest goes into .venv.
PYTHON ?= python3
WORKERS ?= 2
# Gradient steps for each design of the demo; empty for its own choice.
UPDATES ?=
# The folder of the NGSIM files; by default what DPFUSE_DATA says. JOBS: pieces of the case study at once, on a GPU.
DATA ?=
JOBS ?= 1
# Which torch the peers of `make bench-rl` get; a build without CUDA is much smaller.
TORCH ?= torch

BIN := .venv/bin
READY := .venv/.ready
BENCH := .venv-bench
SOURCES := src tests benchmarks docs experiments
OLD_PYTHON := dpfuse needs Python 3.11 or later, but $(PYTHON) is not; name another one: make PYTHON=python3.12
NO_VENV := $(PYTHON) has no venv module or no pip to put into it; install them (Debian, Ubuntu: apt install python3-venv)

.DEFAULT_GOAL := help
.PHONY: help demo live live-design test test-slow check bench bench-rl baselines results us101 us101-quick us101-guided us101-record optimality audit docs transcripts lock clean

help:
	@echo "make demo       design and compare mechanisms for a simulated freeway; results in out/demo"
	@echo "make live       a fusion centre at work: simulated vehicles, releases, estimates and a page to watch; Ctrl-C ends it"
	@echo "make live-design train the design that make live runs, five minutes; kept in src/dpfuse/designs"
	@echo "make test       the quick tests"
	@echo "make test-slow  the long tests"
	@echo "make check      format, lint, types and the quick tests"
	@echo "make bench      time training and the live step; results in benchmarks/results"
	@echo "make baselines  compare with what one would use instead, on three systems; results in experiments/baselines"
	@echo "make bench-rl   race our PPO against Stable-Baselines3, 40 minutes; in benchmarks/results and docs/img"
	@echo "make results    demo and bench, kept in benchmarks/results and quoted in README"
	@echo "make us101      the case study on US Highway 101, DATA=DIR (hours; on a large GPU with JOBS=16 half of one); out/us101"
	@echo "make us101-quick one budget and one seed of it, a few minutes on 2 cores"
	@echo "make us101-guided its part on features that follow the releases, two hours on 2 cores"
	@echo "make us101-record keep what make us101 found in experiments/us101 and quote it there"
	@echo "make optimality learned designs against the optimum of Theorem 1; half an hour, kept in experiments/optimality"
	@echo "make audit      attack the designs of the demo; numbers and figures of docs/theory.md"
	@echo "make docs       build the documentation site, with every link checked; site/index.html"
	@echo "make transcripts run the commands that README and docs show, and write what they print into the pages"
	@echo "make lock       write the newest versions that fit into constraints.txt"
	@echo "make clean      remove what was generated, the environment too"
	@echo
	@echo "PYTHON=python3.12 picks a Python, UPDATES=100 makes a short demo, WORKERS=8 tests on more cores."

demo: $(READY)
	$(BIN)/dpfuse demo $(if $(UPDATES),--updates $(UPDATES))

live: $(READY)
	$(BIN)/dpfuse live

live-design: $(READY)
	$(BIN)/python experiments/live/design.py
	$(BIN)/python docs/results.py

test: $(READY)
	$(BIN)/python -m pytest -q -n $(WORKERS) -m "not slow"

test-slow: $(READY)
	$(BIN)/python -m pytest -q -n $(WORKERS) -m slow

check: $(READY)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy
	$(MAKE) --no-print-directory test

bench: $(READY)
	@set -e; for script in benchmarks/[!_]*.py; do echo "$$script"; $(BIN)/python "$$script"; done

baselines: $(READY)
	$(BIN)/python experiments/baselines/run.py $(if $(UPDATES),--updates $(UPDATES))

bench-rl: $(BENCH)/.ready
	$(BENCH)/bin/python benchmarks/rl/race.py
	$(BENCH)/bin/python docs/results.py

results: demo bench
	cp out/demo/report.json benchmarks/results/demo.json
	mkdir -p docs/img && cp out/demo/estimates.png docs/img/estimates.png
	$(BIN)/python docs/results.py

us101: $(READY)
	$(BIN)/python experiments/us101/run.py $(if $(DATA),--data $(DATA)) --jobs $(JOBS)

us101-quick: $(READY)
	$(BIN)/python experiments/us101/run.py $(if $(DATA),--data $(DATA)) --quick --out out/us101-quick

us101-guided: $(READY)
	$(BIN)/python experiments/us101/run.py $(if $(DATA),--data $(DATA)) --guided --jobs $(JOBS)

us101-record: $(READY)
	$(BIN)/python experiments/us101/report.py

optimality: $(READY)
	$(BIN)/python experiments/optimality/run.py

audit: demo
	$(BIN)/python experiments/audit/run.py
	$(BIN)/python experiments/audit/table.py

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

transcripts: $(READY)
	$(BIN)/python docs/transcripts.py

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
