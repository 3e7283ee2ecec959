# Tasks of the project. Every one of them first makes the virtual environment, where that is missing or out of date.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
JOBS   ?= 2

.PHONY: all demo test lint docs check-docs lit unit bench format clean

all: test

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
# torch first and alone: pip then cannot trade its build for another one while it resolves the rest.
	$(BIN)/pip install --quiet -c constraints.txt torch
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

demo: $(STAMP)
	$(BIN)/python examples/demo.py

test: lint check-docs lit unit

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMP)
	$(BIN)/python -m attn_mlir.tools.gen_docs docs/reference

check-docs: $(STAMP)
	$(BIN)/python -m attn_mlir.tools.gen_docs --check docs/reference

lit: $(STAMP)
	$(BIN)/lit -j $(JOBS) -q test

unit: $(STAMP)
	$(BIN)/python -m pytest -q -n $(JOBS)

bench: $(STAMP)
	$(BIN)/python benchmarks/cpu_attention.py

clean:
	rm -rf build dist python/*.egg-info
