# Plain `make` lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
WHEEL := build/wheel

.PHONY: help install demo test quick check clean

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: $(READY)  ## make .venv and install the advisor into it, with what tests and checks need

# torch first and alone, so that its pinned build is taken before anything that merely asks for torch
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,fix,picture]'
	@touch $@

demo: $(READY)  ## the main job on this machine: probe, recommend, apply
	$(BIN)/advisor probe
	@echo
	$(BIN)/advisor recommend --params 13e9 || test $$? -eq 1  # 1: answered, and it does not fit
	@echo
	$(BIN)/advisor recommend --params 13e9 --machine fixtures/machines/4xa10g-pcie3x8.json || test $$? -eq 1
	@echo
	$(BIN)/advisor apply examples/train_gpt.py

test: $(READY)  ## all tests
	$(BIN)/pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder

quick: $(READY)  ## the tests that start no torch process
	$(BIN)/pytest --numprocesses 2 -m 'not slow'

# mypy can't follow the package-dir mapping in the source tree, so it checks what a wheel would install.
check: $(READY)  ## format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	rm -rf $(WHEEL) build/lib
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --target $(WHEEL) .
	cd $(WHEEL) && ../../$(BIN)/mypy --config-file ../../pyproject.toml -p advisor

clean:  ## remove what the targets made
	rm -rf $(VENV) build advisor-runs *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
