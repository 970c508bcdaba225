# ALE: `make quickstart` trains a tiny agent; `make test` runs everything. `make help` lists the rest.
PYTHON ?= python3
# torch is pinned. Elsewhere than on a machine whose index serves the CPU build, name an index that does:
#   make install TORCH_INDEX=<URL of an index with CPU builds of torch>
TORCH ?= torch==2.13.0
TORCH_INDEX ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
WHEELS := .venv-wheels
PACKAGES := core $(patsubst %/pyproject.toml,%,$(sort $(wildcard libs/*/pyproject.toml plugins/*/pyproject.toml)))
# What is never imported need not be compiled; the rest is when it is first imported.
PIP_INSTALL = $(BIN)/pip install --quiet --no-compile
SOURCES := conftest.py core/src core/tests libs plugins tests benchmarks scripts
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Images of containers often forbid byte code: each of the many processes would compile its modules again.
export PYTHONDONTWRITEBYTECODE =

.PHONY: help install engines quickstart test tests test-all test-alone test-pythons lint format typecheck chaos chaos-cluster chaos-rock bench docs package-table wheels clean
.DEFAULT_GOAL := help

help:  ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

install: $(STAMP)  ## Create .venv and install ale-core, the default plugins and the tools

$(STAMP): Makefile $(PACKAGES:=/pyproject.toml)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "ALE needs Python 3.11 or newer (Debian 12: apt-get install python3); name another one with PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "Python's venv module is missing: apt-get install python3-venv"; exit 1; }
	@command -v bwrap >/dev/null || \
	  echo "bubblewrap is missing, without which nothing isolates local sandboxes and the quickstart is refused: apt-get install bubblewrap"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip  # resolves all of this several times faster than the one of Python 3.11
	$(PIP_INSTALL) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) '$(TORCH)'
	$(PIP_INSTALL) editables hatchling
	$(PIP_INSTALL) --no-deps --no-build-isolation $(foreach p,$(PACKAGES),--editable ./$(p))
	$(PIP_INSTALL) 'ale-core[all]' \
	  anthropic bashlex build datasets 'e2b>=2.63,<3' fastapi gymnasium httpx hypothesis jsonschema mkdocs-material mkdocstrings-python mypy openai oss2 pexpect psutil \
	  'psycopg[binary]' pyarrow pytest 'pytest-asyncio>=0.24' pytest-timeout pytest-xdist ruff schemathesis tensorboard tomlkit twine types-PyYAML
	$(PIP_INSTALL) --no-deps rl-rock==1.11.0
	@touch $@

engines: install  ## Install vLLM and SGLang for CPUs, each into an environment of its own outside .venv
	@for server in vllm sglang; do \
	  $(BIN)/ale engine install $$server --cpu $(if $(TORCH_INDEX),--torch-index $(TORCH_INDEX)) || exit; done

quickstart: install  ## Train a tiny agent end to end (under 5 minutes on 2 cores)
	$(BIN)/ale run examples/quickstart.yaml

# More processes than cores, because many tests wait. Which tests go together is in conftest.py.
PYTEST = $(BIN)/pytest -q --dist loadscope --no-loadscope-reorder -n 4 --durations 30 --durations-min 5

test: lint  ## Run ruff, mypy and the tests of what a change can break; what this machine lacks (Docker, Podman) is skipped
	@$(MAKE) --no-print-directory --jobs 2 tests typecheck  # mypy needs one core for a minute, beside tests that wait

tests: install
	@[ -d .pytest_cache ] || $(BIN)/pytest -q --fast --collect-only >/dev/null || true  # else all processes compile the same
	$(PYTEST) --fast

# STRICT=1: a test that is skipped fails, except for a GPU.
test-all: install  ## Run the rest after `make test`: the long proofs, and what it skipped once it can run
	$(PYTEST) --rest $(if $(STRICT),--strict-skips)

test-alone: install  ## Run each package's tests from its wheel, where only what it declares is installed
	$(BIN)/python tests/run_alone.py

PYTHONS =
test-pythons: install  ## Run what needs no torch with Python 3.11 to 3.13, or PYTHONS="3.12 3.13"; a missing one is skipped
	@[ -x $(BIN)/uv ] || $(PIP_INSTALL) uv
	$(BIN)/python scripts/test_pythons.py $(PYTHONS)

lint: install  ## ruff
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)

format: install  ## Let ruff mend what it can
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

typecheck: install  ## mypy --strict on the core and the plugins' sources
	$(BIN)/mypy core/src $(wildcard libs/*/src plugins/*/src)

chaos: install  ## Kill 200 runs with kill -9, resume them, and write tests/chaos/results.md
	OMP_NUM_THREADS=1 $(BIN)/python tests/chaos/chaos.py --runs 200 --table tests/chaos/results.md

chaos-cluster: install  ## Damage 100 runs on two Ray nodes, and write tests/chaos/cluster_results.md
	$(BIN)/python tests/chaos/cluster.py --runs 100 --table tests/chaos/cluster_results.md

chaos-rock: install  ## Damage a ROCK service 100 times under load, and write tests/chaos/rock_results.md
	$(BIN)/python tests/chaos/rock.py --runs 100 --table tests/chaos/rock_results.md

bench: install  ## Print the benchmark tables
	@failed=; for f in benchmarks/*.py; do echo "== $$f"; $(BIN)/python $$f || failed="$$failed $$f"; done; \
	  [ -z "$$failed" ] || { echo "failed:$$failed"; exit 1; }

docs: install  ## Build the documentation into site/, links checked
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

package-table:  ## Write the table from which hints about packages that are not installed are made
	$(PYTHON) scripts/write_package_table.py

wheels: $(WHEELS)/.installed  ## Build the wheels of all packages into dist/; needs no `make install`
	$(WHEELS)/bin/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist $(foreach p,$(PACKAGES),./$(p))

$(WHEELS)/.installed:
	$(PYTHON) -m venv $(WHEELS)
	$(WHEELS)/bin/pip install --quiet 'hatchling>=1.25'
	@touch $@

clean:  ## Remove .venv, dist and caches
	rm -rf $(VENV) .venv-pythons $(WHEELS) dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
