# `make help` lists what there is. Nothing but Python 3.11-3.13 (with venv) and make is needed.
SHELL := /bin/sh
.DEFAULT_GOAL := help

PYTHON ?=
DATA ?= ./data
OPTIONS ?=
NAME ?= log
SECONDS ?= 60
SEEDS ?= 100000
KILLS ?= 500
LIVES ?= 5000
JOBS ?= 3

SPARK_KILLS := $(addprefix tests/integration/lake/test_,kills_spark.py programs_spark.py planted_spark.py)

VENV := .venv
PY := $(VENV)/bin/python
PYTEST := $(PY) -m pytest
# Product code runs with assertions on, whatever the shell has set.
unexport PYTHONOPTIMIZE

.PHONY: help run test test-times check bench clients crash fuzz soak proto clean environment environment-dev static

help: ## Show this list
	@echo "usage: make TARGET [NAME=value ...]"
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | awk -F '\t' '{ printf "  %-12s %s\n", $$1, $$2 }'

run: environment ## Install and start the broker on DATA=./data; OPTIONS="--port 0" and the like
	@$(VENV)/bin/frazil serve --data "$(DATA)" --set lake.writer.flush_interval=5s $(OPTIONS)

test: environment-dev static ## Install and run every check and all tests
	@$(PYTEST) tests -n $(JOBS)

test-times: environment-dev ## Run checks and each part's tests; print their time and share
	@$(PY) scripts/test_times.py --jobs $(JOBS)

check: environment-dev static ## Format, lint, types, layers, unit + contract + property tests
	@$(PY) scripts/run_suites.py --jobs $(JOBS) unit contract property

bench: environment-dev ## Run the benchmark NAME=log
	@$(PY) bench/$(NAME).py

clients: environment-dev ## Real clients of other languages against the broker; builds them first (cargo)
	@$(PYTEST) tests/clients -m clients -n $(JOBS) -rs

crash: environment-dev ## Crash tests with larger counts: SEEDS=n KILLS=n LIVES=n, exhaustive damage
	@FRAZIL_TEST_CRASH_SEEDS=$(SEEDS) FRAZIL_TEST_DELIVERY_SEEDS=$(LIVES) FRAZIL_TEST_CRASH_KILLS=$(KILLS) FRAZIL_TEST_TIERS_RUNS=$(LIVES) FRAZIL_TEST_LAKE_SEEDS=$(SEEDS) FRAZIL_TEST_EXHAUSTIVE=1 \
		$(PYTEST) tests/crash tests/property/test_tiers_model.py tests/property/test_delivery_lives.py tests/unit/metadata/test_sqlite_store.py tests/unit/tiers/test_memory.py tests/integration/serve/test_many_topics.py $(SPARK_KILLS) -m "crash_long or not crash_long" --timeout 0 -n $(JOBS)

fuzz: environment-dev ## Fuzz every decoder for SECONDS=n
	@$(PY) -m tests.fuzz.run --seconds $(SECONDS)

soak: environment-dev ## Hours of load with checks on memory, disk and order
	@$(PY) bench/soak.py

proto: environment-dev ## Generate the code of the wire protocol's messages
	@$(PY) scripts/proto.py

clean: ## Remove the environment and caches; ./data stays
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find src tests bench scripts -type d -name __pycache__ -prune -exec rm -rf {} +

static:
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@$(VENV)/bin/lint-imports

environment:
	@sh scripts/environment.sh run "$(PYTHON)"

environment-dev:
	@sh scripts/environment.sh dev "$(PYTHON)"
