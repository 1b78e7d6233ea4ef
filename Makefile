# make setup | demo | test | verify | bench | docs | lint | fast | release : nothing else to know.
# `setup` brings the broker and what its tests use; what needs Spark brings Spark first.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.ready
SPARK := $(VENV)/.ready-spark

.PHONY: setup fast demo test test-compiled verify lint lint-quick bench docs release clean

setup: $(STAMP)

$(STAMP): requirements.lock pyproject.toml $(wildcard packages/*/pyproject.toml) scripts/setup.sh
	@PYTHON=$(PYTHON) sh scripts/setup.sh $(VENV)
	@touch $@

# Spark with a Java, and what reads and draws its tables: 600 MB.
$(SPARK): $(STAMP) requirements-pipeline.lock requirements-java.lock
	@PYTHON=$(PYTHON) sh scripts/setup.sh $(VENV) spark
	@touch $@

# The hot core as machine code, for this Python: a quarter less CPU. Built anew when a source changed.
fast: setup
	@$(PY) scripts/build_core.py --must

demo: $(SPARK)
	@$(PY) -m headrace.cli.main demo $(DEMO)

# ruff and import-linter take seconds and come first; mypy runs beside the tests.
test: $(SPARK) lint-quick
	@sh scripts/test.sh $(VENV) $(TESTS)

# The tests of the hot core's modules on a compiled core of its own, which is built for them.
CORE := $(CURDIR)/.cache/core
CORE_TESTS := $(foreach part,grpc kafka log records runtime storage,tests/unit/$(part)) tests/golden tests/contract \
	$(foreach part,grpc kafka log records storage,tests/property/$(part))
test-compiled: $(SPARK)
	@$(PY) scripts/build_core.py --must --level 0 --into $(CORE)
	HEADRACE_COMPILED=$(CORE) $(PY) -m pytest --numprocesses 2 --dist loadscope $(CORE_TESTS)

lint: lint-quick
	$(VENV)/bin/mypy

lint-quick: $(STAMP)
	$(VENV)/bin/ruff check src tests benchmarks
	$(VENV)/bin/ruff format --check src tests benchmarks
	$(VENV)/bin/lint-imports

verify: $(SPARK)
	$(VENV)/bin/headrace verify crash --time 10m --report .cache/verify-report $(VERIFY)
	$(VENV)/bin/headrace verify blackbox --time 5m --report .cache/blackbox-report
	$(VENV)/bin/headrace verify wire --time 2m --report .cache/wire-report
	$(VENV)/bin/headrace verify upgrade --commits 12 --report .cache/upgrade-report
	$(VENV)/bin/headrace verify simulate --time 5m --report .cache/simulation-report
	$(VENV)/bin/headrace verify soak --time 10m --report .cache/soak-report
	$(VENV)/bin/headrace verify security --report .cache/security-report

bench: $(SPARK)
	@$(PY) scripts/build_core.py
	$(PY) -m benchmarks $(BENCH)

# The documentation as a site, in .cache/site: a folder for each version that was built there.
docs: setup
	@$(VENV)/bin/sphinx-build -W --keep-going -n -q -b html docs .cache/site/$$(sed -n 's/^version = "\([^"]*\)".*/\1/p' pyproject.toml)
	@echo "open .cache/site/index.html"

# What is published, in dist/, built twice and tried out: RELEASE="--python python3.11 python3.12".
release:
	@$(PYTHON) scripts/release.py $(RELEASE)

clean:
	rm -rf $(VENV) demo-output
