# Two commands on a fresh machine: `make demo` and `make test`. Both call `make setup` themselves.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
LOWEST := tests/core tests/test_config.py tests/test_cli.py tests/test_data.py tests/test_data_own.py tests/test_metrics.py \
          tests/test_metrics_evaluate.py tests/test_figures.py tests/test_report.py tests/test_tensorboard.py \
          tests/test_graph.py tests/test_run_files.py tests/test_resume.py tests/test_zenoh_link.py \
          tests/test_encoder_contract.py tests/test_theory_command.py tests/test_mesh_object.py tests/test_tables.py \
          tests/test_estimators.py

.PHONY: help setup demo test lint types pytest test-faults test-browser test-package test-lowest lock bench clean

help:  ## show what there is to make
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

setup: $(STAMP)  ## build .venv with everything that running and testing need

# A new .venv is filled under the stamp's rule only: an interrupted install is taken up again.
$(STAMP): pyproject.toml constraints.txt requirements/ci.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "ratemesh needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.11 setup"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -c requirements/ci.txt -e '.[dev]'
	touch $@

demo: setup  ## train ten sites on digits as a mesh and as people would; a table and figures in runs/demo
	@test ! -d runs/demo || { rm -rf runs/demo.old && mv runs/demo runs/demo.old; }
	$(BIN)/ratemesh demo --out runs/demo

test: lint types pytest  ## everything that guards main

lint: setup  ## format and lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup  ## mypy, strict
	$(BIN)/mypy

# By file, in order: a file's runs are made once, not on every core, and the long ones come early.
pytest: setup  ## unit, property, contract and end-to-end tests, on all cores
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

# Real processes and real time: on a busy machine one may miss its moment, so what fails is tried once more.
test-faults: setup  ## break real sites: kill, stop, partition, full disk, 100,000 fuzzed messages; some need root; 13 min
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --runfaults -m faults tests || \
	  { echo "Once more what failed:"; OMP_NUM_THREADS=1 $(BIN)/python -m pytest --runfaults -m faults --last-failed tests; }

test-browser: setup  ## look at the report in headless Chromium; Debian's is installed if there is none
	command -v chromium || { apt-get update && apt-get install -y --no-install-recommends chromium; } || \
	  { echo "test-browser needs chromium on the PATH; installing Debian's needs root. Install it, then try again."; exit 1; }
	RATEMESH_BROWSER=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/browser

test-package: setup  ## build wheel and sdist, install the wheel in a clean environment, run it far from here
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --runpackage -m package tests

# Warnings are not errors here: old versions meet newer ones of what they need.
test-lowest:  ## the tests of everyday use on the lowest versions that pyproject.toml allows, in .venv-lowest
	test -x .venv-lowest/bin/python || $(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet --disable-pip-version-check -c requirements/lowest.txt -e '.[dev]'
	OMP_NUM_THREADS=1 .venv-lowest/bin/python -m pytest -n auto --dist loadfile -o filterwarnings=default -p no:cacheprovider $(LOWEST)

# Libraries of torch's own, for GPUs, are left out: torch names their versions itself, and a build for CPUs has none.
COMPILE = $(BIN)/uv pip compile pyproject.toml --quiet --extra dev --constraint constraints.txt --python-version 3.11 \
	--no-header --no-annotate --no-emit-index-url --no-emit-find-links
WITHOUT_GPU = grep -vE '^(nvidia-|cuda-|triton)'

lock: setup  ## write requirements/ci.txt and requirements/lowest.txt anew from pyproject.toml and constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'uv>=0.9,<1'
	{ sed -n '/^#/p' requirements/ci.txt; $(COMPILE) | $(WITHOUT_GPU); } > requirements/.new && mv requirements/.new requirements/ci.txt
	{ sed -n '/^#/p' requirements/lowest.txt; $(COMPILE) --resolution lowest-direct | $(WITHOUT_GPU); } > requirements/.new && \
	  mv requirements/.new requirements/lowest.txt

bench: setup  ## measure ratios and rewrite benchmarks/RESULTS.md
	$(BIN)/python -m benchmarks --write

clean:  ## remove .venv and caches
	rm -rf $(VENV) .venv-lowest .mypy_cache .pytest_cache .ruff_cache .hypothesis
