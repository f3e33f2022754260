# `make demo` and `make test` set up everything that they need in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test lint docs bench-core clean

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

demo: $(STAMP)  ## the main job: plain CFG and thg side by side, in demo.png
	$(BIN)/thg demo --out demo.png

test: $(STAMP) lint  ## everything that CI checks
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(STAMP)  ## the documentation, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench-core: $(STAMP)  ## the cost of the sampling loop beside the network
	$(BIN)/python benchmarks/bench_core.py

clean:
	rm -rf $(VENV) demo.png
