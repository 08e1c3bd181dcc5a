# `make demo`, `make test` and `make docs` do everything. All make their own .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: setup demo test lint docs bench clean
setup: $(READY)

# Made anew when pyproject.toml changes; an interrupted install leaves no mark and starts over.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Equipoise needs Python 3.11 or newer; $$($(PYTHON) --version) was found. Try: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,docs,flower,mlflow,privacy,tensorboard]'
	@touch $(READY)

demo: setup
	$(BIN)/equipoise compare

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/pytest -n auto

# A broken link or a public name without a docstring ends it. Nothing comes from the network.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo 'docs: out/docs/index.html; with its search: $(BIN)/python -m http.server --directory out/docs'

bench: setup
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) .jax_cache .pytest_cache .ruff_cache .mypy_cache .hypothesis
