# Tasks of the project. Every one of them first makes the virtual environment, where that is missing or out of date.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
JOBS   ?= 2
# Processes that tests start, 2.3 s of work each, compile 0.8 s of sources again where Python may not write bytecode.
unexport PYTHONDONTWRITEBYTECODE
CLANG  ?= 22

.PHONY: all demo test lint docs check-docs docs-site lit unit bench gallery format wheels clang clean

all: test

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
# torch first and alone: pip then cannot trade its build for another one while it resolves the rest. Bytecode of the 14,500 files would
# take 95 s of one core; Python makes that of the few that are imported.
	$(BIN)/pip install --quiet --no-compile -c constraints.txt torch
	$(BIN)/pip install --quiet --no-compile -c constraints.txt -e '.[dev]'
	touch $@

demo: $(STAMP)
	$(BIN)/python examples/demo.py

# The linters are single processes, beside which lit's fill the cores; tests come when all of them pass.
test:
	$(MAKE) -j 2 clang $(STAMP)
	$(MAKE) -j 2 --output-sync=target lint check-docs lit
	$(MAKE) unit

# clang, its linker and disassembler for kernels for AMD GPUs: from apt, where that is allowed. Tests that need them are skipped otherwise.
clang:
	@{ command -v clang++-$(CLANG) && command -v ld.lld-$(CLANG) && command -v llvm-objdump-$(CLANG); } > /dev/null || { \
	  [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null && apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends clang-$(CLANG) lld-$(CLANG) llvm-$(CLANG) > /dev/null; \
	} || echo "no clang-$(CLANG) with lld: tests of the AMD backend are skipped, unless another clang for AMD GPUs is found"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The reference, and the stub of the package.
docs: $(STAMP)
	$(BIN)/python -m attn_mlir.tools.gen_docs docs/reference

check-docs: $(STAMP)
	$(BIN)/python -m attn_mlir.tools.gen_docs --check docs/reference

# The site of the documentation, in build/site. A broken link is an error. Not a part of `make test`: mkdocs is no other dependency's.
docs-site: $(STAMP)
	$(BIN)/pip install --quiet -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lit: $(STAMP)
	$(BIN)/lit -j $(JOBS) -q test

# Each process takes files as a whole, as long as it has some, since tests of a file share programs.
unit: $(STAMP)
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal

bench: $(STAMP)
	$(BIN)/python benchmarks/cpu_attention.py

# Checks and times the published attentions of examples/gallery, and writes docs/gallery.md and its pages again.
gallery: $(STAMP)
	$(BIN)/python examples/gallery/run.py --check --time --docs

# The package itself, and compiled kernels of standard programs, which need a compiler of CUDA but no GPU.
wheels: $(STAMP)
	rm -rf build
	$(BIN)/pip wheel --quiet --no-deps -w dist .
	$(BIN)/python -m attn_mlir.tools.ship_kernels build/kernels
	$(BIN)/pip wheel --quiet --no-deps -w dist build/kernels

clean:
	rm -rf build dist python/*.egg-info
