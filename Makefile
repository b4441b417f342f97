# `make check` and `make test` do all set-up by themselves, in a virtual environment beside this file.
# PYTHON is the interpreter that the environment is made with, VENV where it is; JOBS is how many tests run at a time.

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
RUN := $(VENV)/bin/python
# To compile what most of the time nobody imports would take longer than the rest of an installation.
INSTALL := $(RUN) -m pip install --quiet --disable-pip-version-check --no-compile

.PHONY: help check test test-all peers mutants mutation versions dist site site-test lint types bench bench-short clean

help:
	@echo "make check   verify every gradient and every equation, and print the tables"
	@echo "make test    run the tests, but for those that are marked as long"
	@echo "make test-all run all tests; those that need more than it installs are skipped, and say what"
	@echo "make peers   run the tests against PyTorch, JAX and autograd, after installing them (a large download)"
	@echo "make mutants change every equation of the pages in every way, and see each change noticed"
	@echo "make mutation change the code of the ops and of gradcheck in every way, and see each change noticed (hours)"
	@echo "make versions run the tests on the oldest and the newest NumPy, from the sdist, after make dist"
	@echo "make dist    build the sdist and the wheel in dist, look into them, and try the wheel"
	@echo "make site    build the pages as a site that needs no network, in build/site"
	@echo "make lint    ruff"
	@echo "make types   mypy, strict"
	@echo "make bench   benchmarks: imports; gradient checkers; blockwise attention beside its peers, its memory, windows;"
	@echo "             tiny sizes; accuracy (the whole takes an hour, and wants a quiet machine)"
	@echo "make bench-short speed in some minutes: one table, beside peers and the last stored run"
	@echo "make clean   remove the virtual environment and what tools left behind"

# What is imported is compiled once, whatever the machine says of that: what a check needs takes two seconds, the tests ten.
check test test-all peers: export PYTHONDONTWRITEBYTECODE =

check: $(VENV)/check
	$(RUN) -m attention_np check

test test-all: export OPENBLAS_NUM_THREADS = 1
test: $(VENV)/test
	$(RUN) -m pytest -q --no-header -n $(JOBS) --dist loadfile -m "not long"

test-all: $(VENV)/test-all
	$(RUN) -m pytest -q --no-header -n $(JOBS) --dist loadfile

peers: $(VENV)/peers
	$(RUN) -m pytest tests/peers

mutants: $(VENV)/test
	$(RUN) -m tests.derivation.mutate derivations

mutation: $(VENV)/mutation
	OPENBLAS_NUM_THREADS=1 $(RUN) -m tests.mutation $(MODULES) $(if $(SAMPLE),--sample $(SAMPLE))

versions: $(VENV)/versions
	$(RUN) -m nox

dist: $(VENV)/versions
	$(RUN) -m nox -s build wheel

site: $(VENV)/site
	$(RUN) -m sphinx -b html -E -a -q -c docs -d build/doctrees . build/site
	@echo "open build/site/index.html"

site-test: $(VENV)/site-test
	$(RUN) -m pytest tests/website

lint: $(VENV)/lint
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

types: $(VENV)/lint
	$(RUN) -m mypy
	$(RUN) -m mypy tests/typed.py
	$(RUN) -m basedpyright

bench: $(VENV)/peers
	$(RUN) benchmarks/import_time.py
	$(RUN) -m benchmarks.gradient_checkers
	$(RUN) -m benchmarks.blockwise
	$(RUN) -m benchmarks.memory --long
	$(RUN) -m benchmarks.window
	$(RUN) -m benchmarks.linear_attention
	$(RUN) -m benchmarks.latent
	$(RUN) -m benchmarks.tiny
	$(RUN) -m benchmarks.accuracy

bench-short: $(VENV)/peers
	$(RUN) -m benchmarks.short

# Each file is written when the extra of its name has been installed, and again when the metadata change.
$(VENV)/check $(VENV)/test $(VENV)/test-all $(VENV)/lint $(VENV)/mutation $(VENV)/versions $(VENV)/site $(VENV)/site-test: $(VENV)/%: setup.cfg pyproject.toml | $(VENV)/pip
	$(INSTALL) --editable '.[$*]'
	@touch $@

$(VENV)/peers: $(VENV)/test-all
	$(INSTALL) "$$(grep -o 'torch==.*' setup.cfg)"
	$(INSTALL) --editable '.[peers]'
	@touch $@

$(VENV)/pip:
	$(PYTHON) -m venv $(VENV)
	@touch $@

clean:
	rm -rf $(VENV) .nox build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
