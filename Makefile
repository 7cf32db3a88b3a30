# kvknee: `make` lists the targets. Each sets up what it needs; the second time that is instant.

PYTHON ?= python3
VENV ?= .venv
# tiny, smollm2, a model's folder, or a hub id
MODEL ?= tiny
PAGED_PORT ?= 8000
CONTIGUOUS_PORT ?= 8001
# further flags of `kvknee up` and of the scenario, for `make demo`
UP_FLAGS ?=
RUN_FLAGS ?=
# further flags of pytest, for `make test` and `make test-slow`
PYTEST_FLAGS ?=

BIN := $(VENV)/bin
export PYTHON VENV MODEL PAGED_PORT CONTIGUOUS_PORT UP_FLAGS RUN_FLAGS

.DEFAULT_GOAL := help
# folders of `make test-fast`
FAST := analysis compare dashboards kv load nightly observe plan report schedules search
.PHONY: help setup demo test test-fast test-slow bench verify-engines check clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## make .venv with the harness, both servers and the tools
	@bash scripts/setup_venv.sh

demo: setup ## two real servers, one load, one report (MODEL=tiny|smollm2|FOLDER|HUB-ID)
	@bash scripts/system_packages.sh libnuma1
	@bash scripts/demo.sh

test: setup ## all tests but the long ones, real engines included
	@bash scripts/system_packages.sh libnuma1 prometheus
	$(BIN)/python -m pytest -m "not slow and not benchmark" -rs $(PYTEST_FLAGS)

test-fast: setup ## tests of what needs no server, in a few minutes
	$(BIN)/python -m pytest -m "not slow and not benchmark and not engines" -rs $(PYTEST_FLAGS) \
		$(FAST:%=tests/%) tests/test_*.py

test-slow: setup ## the tests that take minutes each
	@bash scripts/system_packages.sh libnuma1 prometheus
	@packages=$$($(BIN)/python -m tests.compose.ability) && bash scripts/system_packages.sh $$packages
	$(BIN)/python -m pytest -m slow -rs $(PYTEST_FLAGS)

bench: setup ## ratios of speeds, on a machine that does nothing else
	@bash scripts/system_packages.sh libnuma1
	$(BIN)/python -m pytest -m benchmark -s $(PYTEST_FLAGS)
	$(BIN)/python -m tests.benchmarks.vllm_bench_agreement
	$(BIN)/python -m tests.benchmarks.fidelity
	$(BIN)/python -m tests.benchmarks.ceiling
	$(BIN)/python -m tests.benchmarks.cpu_per_token
	$(BIN)/python -m tests.benchmarks.analysis_scale

verify-engines: setup ## KV arithmetic against real vLLM, 15 small models; writes docs/verify-engines.md
	@bash scripts/system_packages.sh libnuma1
	$(BIN)/python -m tests.kv.engine_runs docs/verify-engines.md

check: setup ## lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean: ## stop the stack; remove .venv, models, logs and caches (results/ stays)
	@if [ -x $(BIN)/kvknee ]; then $(BIN)/kvknee down; fi
	rm -rf $(VENV) .kvknee build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
