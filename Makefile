# ALE: `make quickstart` trains a tiny agent; `make test` runs everything. `make help` lists the rest.
PYTHON ?= python3
# torch is pinned. Elsewhere than on a machine whose index serves the CPU build, name an index that does:
#   make install TORCH_INDEX=<URL of an index with CPU builds of torch>
TORCH ?= torch==2.13.0
TORCH_INDEX ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PACKAGES := core $(sort $(wildcard libs/* plugins/*))
SOURCES := core/src core/tests libs plugins tests
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: help install quickstart test lint format typecheck bench docs wheels clean
.DEFAULT_GOAL := help

help:  ## Show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

install: $(STAMP)  ## Create .venv and install ale-core, the default plugins and the tools

$(STAMP): Makefile core/pyproject.toml $(wildcard libs/*/pyproject.toml plugins/*/pyproject.toml)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "ALE needs Python 3.11 or newer (Debian 12: apt-get install python3); name another one with PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "Python's venv module is missing: apt-get install python3-venv"; exit 1; }
	@command -v bwrap >/dev/null || \
	  echo "bubblewrap is missing: the quickstart runs without isolation (apt-get install bubblewrap brings it)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) '$(TORCH)'
	$(BIN)/pip install --quiet $(foreach p,$(PACKAGES),--editable ./$(p)) \
	  anthropic build editables fastapi hatchling httpx hypothesis jsonschema mkdocs-material 'mkdocstrings[python]' mypy openai psutil pytest 'pytest-asyncio>=0.24' pytest-timeout pytest-xdist ruff schemathesis \
	  tensorboard twine types-PyYAML
	$(BIN)/pip install --quiet --no-deps rl-rock==1.11.0
	@touch $@

quickstart: install  ## Train a tiny agent end to end (under 5 minutes on 2 cores)
	$(BIN)/ale run examples/quickstart.yaml

# Tests start real engines and agents, two at a time. What failed is run once more by itself: a fault of ALE fails again, and what
# was only late beside the others is seen, in the first list of failures, and does not stop anybody.
test: lint typecheck  ## Run ruff, mypy and all tests
	$(BIN)/pytest -q -n 2 --dist loadfile --no-loadscope-reorder || { \
	  echo "== what failed, once more by itself"; \
	  $(BIN)/pytest -q --last-failed --last-failed-no-failures none; }

lint: install  ## ruff
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)

format: install  ## Let ruff mend what it can
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

typecheck: install  ## mypy --strict on the core and the plugins' sources
	$(BIN)/mypy core/src
	$(BIN)/mypy $(wildcard libs/*/src plugins/*/src)

bench: install  ## Print the benchmark tables
	@for f in benchmarks/*.py; do echo "== $$f"; $(BIN)/python $$f; done

docs: install  ## Build the documentation into site/, links checked
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

wheels: install  ## Build the wheels of all packages into dist/
	$(BIN)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist $(foreach p,$(PACKAGES),./$(p))

clean:  ## Remove .venv, dist and caches
	rm -rf $(VENV) dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
