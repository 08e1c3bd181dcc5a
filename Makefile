# Two commands do everything: `make demo` and `make test`. Both make their own .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: setup demo test lint bench clean
setup: $(READY)

# Made anew when pyproject.toml changes; an interrupted install leaves no mark and starts over.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Equipoise needs Python 3.11 or newer; $$($(PYTHON) --version) was found. Try: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,flower,privacy,tensorboard]'
	@touch $(READY)

demo: setup
	$(BIN)/equipoise compare

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/pytest -n auto

bench: setup
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) .jax_cache .pytest_cache .ruff_cache .mypy_cache .hypothesis
