# `make demo` and `make test` set up everything that they need in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

MINIMUM := tests/core tests/cli tests/bench/test_config.py tests/models/test_shipped.py $(addprefix tests/release/test_, \
	fuzz.py lifecycle.py network_faults.py old_versions.py)

IN_COMFYUI := PYTHONPATH=src HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 build/comfyui/venv/bin/python -m pytest \
	-o filterwarnings=default
OLDER_COMFYUI := $(addprefix comfyui/tests/test_, combinations.py exact.py lifecycle.py workflows.py)

.PHONY: demo test test-minimum comfyui test-comfyui test-serving test-metrics coverage lint docs bench-core clean

$(STAMP): pyproject.toml constraints.txt
	"$(PYTHON)" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

demo: $(STAMP)  ## the main job: plain CFG and thg side by side, in demo.png
	$(BIN)/thg demo --out demo.png --force

test: $(STAMP) lint  ## everything that CI checks
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

test-minimum:  ## a part of the tests with the lowest versions of the dependencies, in a separate environment
	"$(PYTHON)" -m venv build/minimum
	build/minimum/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-minimum.txt \
		-e ".[diffusers,metrics,plots]" pytest hypothesis psutil scipy
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 build/minimum/bin/python -m pytest -o filterwarnings=default $(MINIMUM)

comfyui:  ## the copy of the core in the folder of the ComfyUI nodes
	"$(PYTHON)" comfyui/make_core.py

test-comfyui:  ## the ComfyUI nodes in a real ComfyUI, in a separate environment; skipped if the installation fails
	"$(PYTHON)" comfyui/install.py build/comfyui || test $$? -eq 3
	test ! -e build/comfyui/ready || COMFYUI=build/comfyui/ComfyUI $(IN_COMFYUI) comfyui/tests
	test ! -e build/comfyui/ready || COMFYUI=build/comfyui/older $(IN_COMFYUI) $(OLDER_COMFYUI)

test-serving: test-serving-sglang test-serving-vllm-omni test-serving-ray  ## thg in real serving engines, each in an environment of several gigabytes; "not run" if it cannot be installed

test-serving-%:
	"$(PYTHON)" tests/serving_engines/install.py build/serving/$* || test $$? -eq 3
	test ! -e build/serving/$*/ready || PYTHONPATH=src:. HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 \
		build/serving/$*/bin/python -m pytest -rP --confcutdir=tests/serving_engines -o filterwarnings=default \
		tests/serving_engines

test-metrics: $(STAMP)  ## the metrics of packages in the packages themselves, with random weights, in a separate environment
	"$(PYTHON)" tests/metric_packages/install.py build/metrics || test $$? -eq 3
	test ! -e build/metrics/ready || THG_METRICS=build/metrics/bin/python OMP_NUM_THREADS=1 \
		$(BIN)/python -m pytest -rs tests/metric_packages

coverage: $(STAMP)  ## lines of the core that its tests run; under 95 % is an error
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/coverage run --source=src/thg -m pytest -q tests/core \
		tests/calibrate/test_profile.py tests/calibrate/test_optimal.py
	$(BIN)/coverage report --include="src/thg/plans/*,src/thg/ode/*,src/thg/profiles/*" --fail-under=95

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(STAMP)  ## the documentation, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench-core: $(STAMP)  ## the cost of the sampling loop without the network
	$(BIN)/python benchmarks/bench_core.py

clean:
	rm -rf $(VENV) demo.png
