# `make up` on a fresh machine: everything is set up in .venv/, then Baton serves.
SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV := .venv
PY := $(VENV)/bin/python
export PYTHON
# Settings of `make up`: make up PORT=8123 ARGS="--decode 2"
PORT ?=
ARGS ?=
# Of `make soak`.
MINUTES ?= 30
SEED ?= 0

.PHONY: help setup up env test test-all test-gpu has-gpu check bench soak clean

help:  ## what there is to make
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

setup: $(VENV)/.stamp-dev  ## install everything, run nothing

# The server takes the recipe's place, so signals reach it; and it drains when make is gone.
up: $(VENV)/.stamp-up  ## set up and serve; PORT=8123 ARGS="--decode 2" pass on
	@exec $(PY) -I -S deploy/die_with_parent.py TERM $$PPID \
	    $(VENV)/bin/baton up $(if $(PORT),--port $(PORT)) $(ARGS)

env:  ## write .env for docker compose, with secrets; ARGS="MODEL_DIR=/models/x" passes on
	@deploy/make-env.sh $(ARGS)

# Three files at a time: much of a test is waiting. ARGS="-n 0" runs all in one process. Hundreds of
# processes import the same sources: each is compiled once, by the first that imports it.
test: $(VENV)/.stamp-dev  ## run all tests; ARGS passes on to pytest
	@env -u PYTHONDONTWRITEBYTECODE $(PY) -m pytest -n 3 --dist loadfile --no-loadscope-reorder $(ARGS)

test-all: export BATON_TEST_ALL := 1
test-all: test  ## before a release: all tests, with all of their random examples

test-gpu: has-gpu $(VENV)/.stamp-dev  ## on a GPU: its own tests, and the kernels' on the real thing
	@$(PY) -m pytest tests/gpu tests/kernels -m "gpu or not gpu" $(ARGS)

has-gpu:
	@nvidia-smi -L 2>/dev/null | grep -q '^GPU ' || \
	    { echo "error: no NVIDIA GPU here (nvidia-smi -L lists none): make test-gpu needs one" >&2; exit 2; }

check: $(VENV)/.stamp-dev  ## format, lint, types, imports, style
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports
	@$(PY) -m tests.style_check

bench: $(VENV)/.stamp-dev  ## the benchmark on the CPU; ARGS passes on
	@$(PY) -m bench $(ARGS)

soak: $(VENV)/.stamp-dev  ## random faults under load; MINUTES=30 SEED=1
	@$(PY) -m tests.soak --minutes $(MINUTES) --seed $(SEED) $(ARGS)

clean:  ## remove the virtual environment and the caches
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache \
	    .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.stamp-up: pyproject.toml deploy/constraints.txt deploy/install.sh
	@deploy/install.sh $@ worker,redis-server,bench

$(VENV)/.stamp-dev: pyproject.toml deploy/constraints.txt deploy/install.sh
	@deploy/install.sh $@ worker,redis-server,dev
