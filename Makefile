# Every target makes its own .venv, and installs into it what it needs and nothing else.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
TOOLS  := $(VENV)/.tools
EXTRAS := .[data,dev,docs,flower,mlflow,privacy,tensorboard]
# uv where there is one, and pip where there is none or where it finds no packages (it does not read pip's settings).
INSTALL = { command -v uv >/dev/null && uv pip install --quiet --python $(BIN)/python --editable '$(1)'; } || $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '$(1)'

# Modules are compiled once, not once more by each of the processes that tests start: images of containers often set it.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup tools demo lint test test-all docs bench clean
.DEFAULT_GOAL := help

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1@\2/p' Makefile | awk -F@ '{ printf "%-14s %s\n", $$1, $$2 }'

# Made anew when pyproject.toml changes; an interrupted install leaves no mark and starts over.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Equipoise needs Python 3.11 or newer; $$($(PYTHON) --version) was found. Try: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@echo 'Equipoise and what it needs are installed into $(VENV), once (about half a minute, 0.8 GB) ...'
	@$(PYTHON) -m venv $(VENV)
	@$(call INSTALL,.)
	@touch $(READY)

$(TOOLS): $(READY)
	@echo 'What the tests and the documentation need is added to $(VENV), once (about a minute, 0.6 GB) ...'
	@$(call INSTALL,$(EXTRAS))
	@touch $(TOOLS)

setup: $(READY) ## only the .venv with Equipoise in it
tools: $(TOOLS) ## the .venv with everything that development takes

demo: setup ## does joining pay for 50 schools? several methods: a table, and a page to look at
	$(BIN)/equipoise compare

lint: tools ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint ## lint, types and the fast tests: every module, algorithm and command, one real federation
	$(BIN)/pytest -n auto -m 'not thorough'

test-all: lint ## lint, types and all tests there are, with longer searches
	EQUIPOISE_SEARCH=3 $(BIN)/pytest -n auto

# A broken link or a public name without a docstring ends it. Nothing comes from the network.
docs: tools ## the documentation as a site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo 'docs: out/docs/index.html; with its search: $(BIN)/python -m http.server --directory out/docs'

bench: tools ## ratios against a plain NumPy loop
	$(BIN)/python -m benchmarks

clean: ## removes .venv and all caches
	rm -rf $(VENV) .jax_cache .pytest_cache .ruff_cache .mypy_cache .hypothesis
