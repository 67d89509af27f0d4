# `make` lists the targets. All that is needed is make and Python 3.11 or later; the rest goes into .venv.
PYTHON ?= python3
WORKERS ?= 2
# Gradient steps for each design of `make demo` and `make baselines`; by default what each of them chooses.
UPDATES ?=
# The folder of the NGSIM files; by default the one that DPFUSE_DATA names.
DATA ?=
# How many groups of designs `make us101` and `make known` train at the same time; on a GPU they share it.
JOBS ?= 1
# How long `make fuzz` runs.
SECONDS ?= 600
# One benchmark for `make bench`; by default all of them.
ONLY ?=
# One notebook for `make notebooks`; by default all of them.
NOTEBOOK ?=
# Which torch the peers of `make bench-rl` get; a build without CUDA is much smaller.
TORCH ?= torch

BIN := .venv/bin
READY := .venv/.ready
BENCH := .venv-bench
RELEASE := build/release
RELEASE_TOOLS = uv==0.13.8 pip-audit==2.10.1 cyclonedx-bom==7.5.0 $(shell grep '^hatchling==' constraints.txt)
# For every system and Python from this one on; older ones of 3.11 lack a dependency of the documentation.
LOCKED := --universal --python-version 3.11.7 --generate-hashes --no-annotate
SOURCES := src tests benchmarks docs experiments tools
BENCHMARKS := update live_step durable fleet bank boundary shared restart ingest crowd page reader signatures sweep
OLD_PYTHON := dpfuse needs Python 3.11 or later, but $(PYTHON) is not; name another one: make PYTHON=python3.12
NOT_AUDITED := This is no vulnerability: the index that this machine asks lacks the package above, and the search ended there. \
    Run it where PyPI itself answers
NO_VENV := $(PYTHON) has no venv module or no pip to put into it; install them (Debian, Ubuntu: apt install python3-venv)

.DEFAULT_GOAL := help
.PHONY: help demo live live-design test test-slow fuzz test-results check bench bench-rl bank-kills fleet-kills baselines results quote channels detector meters us101 us101-quick us101-guided us101-defaults known optimality audit docs notebooks transcripts lock hashes vulnerabilities release clean

help:
	@echo "To use:"
	@echo "make demo         train designs for a simulated freeway and compare them; results in out/demo"
	@echo "make live         run a fusion centre with simulated vehicles and a page to watch; Ctrl-C stops it"
	@echo "To develop:"
	@echo "make test         run the quick tests"
	@echo "make test-slow    run the long tests"
	@echo "make test-results compare the pages with the results files, and the results with what the docs claim"
	@echo "make fuzz         fuzz everything that parses bytes from strangers, guided by coverage; SECONDS=600"
	@echo "make check        check format, lint and types, and run the quick tests"
	@echo "make docs         build the documentation site, with every link checked; site/index.html"
	@echo "make transcripts  run the commands that README and docs show, and write what they print into the pages"
	@echo "make notebooks    run the notebooks of docs/notebooks and write their pages; NOTEBOOK=own_table for one"
	@echo "make quote        write the numbers of the results files into the pages"
	@echo "make lock         write the newest versions that fit into constraints.txt"
	@echo "make hashes       write the hashes of what constraints.txt names into requirements.lock"
	@echo "make vulnerabilities  look the locked packages up in the database of known vulnerabilities"
	@echo "make release      build the wheel with its hashed requirements and software bill of materials; dist/"
	@echo "make clean        remove everything that was generated, and the environments"
	@echo "To reproduce; each target writes its results file and the pages that quote it:"
	@echo "make results      run the demo and all benchmarks"
	@echo "make bench        run all benchmarks, or one: ONLY=fleet; the reader's needs DATA=DIR"
	@echo "make bank-kills   kill centres and their bank several hundred times, and check every budget; an hour"
	@echo "make fleet-kills  kill nodes of a fleet on Ray ten times, and time the return of its streams; ten minutes"
	@echo "make bench-rl     compare our PPO with Stable-Baselines3; 40 minutes"
	@echo "make baselines    compare designs with mechanisms from the literature on three systems"
	@echo "make channels     what it costs that 30% of the channels are missing"
	@echo "make meters       household meters with a budget for each day, over 30 simulated days"
	@echo "make detector     what an upstream detector's count adds on US-101, DATA=DIR; half an hour on 2 cores"
	@echo "make known        train with the defaults on six systems with known answers; hours, or 8 minutes on a large GPU with JOBS=14"
	@echo "make optimality   compare learned designs with the optimum of Theorem 1; 40 minutes"
	@echo "make audit        attack the designs of the demo"
	@echo "make live-design  train the design that make live runs, DATA=DIR, with the extra sumo; hours, or ten minutes on a large GPU"
	@echo "make us101        the case study on US Highway 101, DATA=DIR; hours, or half an hour on a large GPU with JOBS=16"
	@echo "make us101-guided its part on guided designs, DATA=DIR; two hours on 2 cores"
	@echo "make us101-defaults the same recording with the default settings of training, DATA=DIR; many hours on 2 cores"
	@echo "make us101-quick  one budget and one seed of it, DATA=DIR; a few minutes; results in out/us101-quick"
	@echo
	@echo "PYTHON=python3.12 selects a Python, UPDATES=100 makes a short demo, WORKERS=8 tests on more cores."

demo: $(READY)
	$(BIN)/dpfuse demo $(if $(UPDATES),--updates $(UPDATES))

live: $(READY)
	$(BIN)/dpfuse live

live-design: $(READY)
	$(if $(DATA),DPFUSE_DATA=$(DATA)) $(BIN)/python -m experiments.live.run
	$(BIN)/python -m tools.quote

test: $(READY)
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal --timeout 300 -m "not slow and not results"

test-slow: $(READY)
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal --timeout 600 -m "slow and not results"

fuzz: $(READY)
	PYTHONPATH=tests $(BIN)/python -m support.fuzz --seconds $(SECONDS)

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

bank-kills: $(READY)
	$(BIN)/python -m benchmarks.bank_kills
	$(BIN)/python -m tools.quote

fleet-kills: $(READY)
	$(BIN)/python -m benchmarks.fleet_kills
	$(BIN)/python -m tools.quote

bench-rl: $(BENCH)/.ready
	$(BENCH)/bin/python -m benchmarks.rl.race
	$(BENCH)/bin/python -m tools.quote

results: $(READY)
	$(BIN)/python -m experiments.demo.run
	$(MAKE) --no-print-directory bench

notebooks: $(READY)
	$(BIN)/python -m tools.notebooks $(NOTEBOOK)

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

us101-defaults: $(READY)
	$(BIN)/python -m experiments.us101_defaults.run $(if $(DATA),--data $(DATA)) --jobs $(JOBS)
	$(BIN)/python -m tools.quote

us101-quick: $(READY)
	$(BIN)/python -m experiments.us101.run $(if $(DATA),--data $(DATA)) --quick --out out/us101-quick

meters: $(READY)
	$(BIN)/python -m experiments.meters.run $(if $(UPDATES),--updates $(UPDATES))
	$(BIN)/python -m tools.quote

channels: $(READY)
	$(BIN)/python -m experiments.channels.run $(if $(UPDATES),--updates $(UPDATES))
	$(BIN)/python -m tools.quote

known: $(READY)
	$(BIN)/python -m experiments.known.run --jobs $(JOBS)
	$(BIN)/python -m tools.quote

detector: $(READY)
	$(BIN)/python -m experiments.detector.run $(if $(DATA),--data $(DATA)) $(if $(UPDATES),--updates $(UPDATES))
	$(BIN)/python -m tools.quote

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
$(READY): pyproject.toml constraints.txt requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(OLD_PYTHON)" >&2; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv --clear .venv || { echo "$(NO_VENV)" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation -c constraints.txt -e '.[dev]'
	@touch $@

# Torch must not get into the environment of the tests. It wants an older mpmath than they have.
$(BENCH)/.ready: pyproject.toml constraints.txt
	@test -x $(BENCH)/bin/pip || $(PYTHON) -m venv --clear $(BENCH) || { echo "$(NO_VENV)" >&2; exit 1; }
	mkdir -p build && grep -v '^mpmath==' constraints.txt > build/bench-constraints.txt
	$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check -c build/bench-constraints.txt $(TORCH) -e '.[bench,gym,data]'
	@touch $@

# From an environment of its own, so that nothing installed by hand gets in. A package that was added to constraints.txt by
# hand gets its hashes by `make hashes`.
lock:
	rm -rf build/lock
	$(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install --quiet --disable-pip-version-check -e '.[dev,sumo]'
	echo "# Versions that are known to work together. Written by \`make lock\`; do not edit." > constraints.txt
	build/lock/bin/python -m pip freeze --exclude-editable >> constraints.txt
	rm -rf build/lock
	$(MAKE) --no-print-directory hashes

hashes: $(RELEASE)/.ready
	$(RELEASE)/bin/uv pip compile --quiet pyproject.toml --extra dev -c constraints.txt $(LOCKED) --output-file requirements.lock \
	    --custom-compile-command "make hashes"

vulnerabilities: $(RELEASE)/.ready
	@$(RELEASE)/bin/pip-audit --strict --require-hashes --disable-pip -r requirements.lock 2> $(RELEASE)/audit.log; code=$$?; \
	    cat $(RELEASE)/audit.log >&2; ! grep -q "could not be audited" $(RELEASE)/audit.log || echo "$(NOT_AUDITED)" >&2; exit $$code

# The wheel, what it needs with hashes, and both as a software bill of materials.
release: $(RELEASE)/.ready
	rm -rf dist && mkdir dist
	$(RELEASE)/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .
	$(RELEASE)/bin/uv pip compile --quiet pyproject.toml --extra live --extra postgres --extra data -c constraints.txt $(LOCKED) \
	    --output-file dist/requirements.txt --custom-compile-command "make release"
	$(RELEASE)/bin/cyclonedx-py requirements dist/requirements.txt --pyproject pyproject.toml --mc-type library \
	    --output-reproducible --of JSON -o dist/dpfuse.cdx.json
	cd dist && sha256sum *.whl requirements.txt dpfuse.cdx.json > SHA256SUMS

$(RELEASE)/.ready:
	@test -x $(RELEASE)/bin/pip || $(PYTHON) -m venv --clear $(RELEASE) || { echo "$(NO_VENV)" >&2; exit 1; }
	$(RELEASE)/bin/python -m pip install --quiet --disable-pip-version-check $(RELEASE_TOOLS)
	@touch $@

clean:
	rm -rf .venv .venv-bench build dist out site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
