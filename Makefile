# Every target prepares what it needs. On a fresh machine Python 3.11 to 3.13 and a package index are
# enough: no Java, no PostgreSQL, no Docker.
SHELL := /bin/sh
.DEFAULT_GOAL := help
BIN := .venv/bin
PYTHON ?=
PYTEST_ARGS ?=
export PYTHON
# Where it is set, each process that a test starts would compile all of its imports again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup classes test slow further quick check lint types demo airflow bench engines fuzz sweep torture chaos soak simulate values matrix browser-test lakes readme release docs sbom clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install uv, the locked packages and the jars (the others do it by themselves)
	@sh scripts/setup

demo: setup ## PostgreSQL under load -> Airflow -> Spark -> Iceberg, then compare every row
	@$(BIN)/python -m quickstart demo

# A file of tests runs in one process, in the order of the files; a process has a server, a lake and a Spark
# of its own (about 5 GiB).
WORKERS ?= 2
PARALLEL = $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations=25
# More cases of what the other tests show with ALL=1. `make test` of everything leaves out what is marked `further`
# or `slow`.
MARKS := $(if $(ALL),-m '',$(if $(FOLDER)$(PYTEST_ARGS),,-m 'not exhaustive and not further and not slow'))

# A folder below tests/, or all of them.
FOLDER ?=

classes: setup ## Write Java's archive of Spark's classes, so that Spark starts faster in the tests
	@$(BIN)/python -c 'import logging; logging.basicConfig(level="INFO", format="classes: %(message)s"); from quickstart.spark import write_class_archive; write_class_archive()'

test: classes ## Run the tests (FOLDER=apply or PYTEST_ARGS="-k name" for some of them, ALL=1 for more cases, WORKERS=2)
	@$(PARALLEL) $(MARKS) $(PYTEST_ARGS) tests/$(FOLDER)

slow: classes ## Run the tests marked slow: more cases and sweeps (make test leaves them out, continuous integration runs them)
	@$(PARALLEL) -m 'slow and not further and not exhaustive' $(PYTEST_ARGS) tests/$(FOLDER)

further: classes ## Run what make test and make slow leave out because it takes long
	@$(PARALLEL) -m 'further and not exhaustive' $(PYTEST_ARGS) tests/$(FOLDER)

quick: setup ## Run the fast tests that need no server, no Spark and no Airflow database
	@$(BIN)/python -m pytest -q -m 'not postgres and not spark and not airflow and not submit and not slow and not exhaustive' $(PYTEST_ARGS) tests/$(FOLDER)

check: lint types quick ## Style, types and the quick tests: what to run before a commit

PORT ?= 8080

airflow: setup ## Airflow's web page with a pipeline that runs each minute, under load (PORT=8080)
	@$(BIN)/python -m quickstart airflow --port $(PORT)

lint: setup ## Check style and formatting
	@$(BIN)/ruff check --no-cache
	@$(BIN)/ruff format --check

types: setup ## Check the types
	@$(BIN)/mypy

INPUTS ?= 100000
SEED ?= 1

fuzz: setup ## Damage streams and compare both decoders (INPUTS=100000 SEED=1)
	@$(BIN)/python -m tests.capture.pgoutput.fuzz --inputs $(INPUTS) --seed $(SEED)

SHARE ?= 1/1

sweep: setup ## Every cut and every value of every byte of recorded messages, both decoders (SHARE=1/2: half of them)
	@$(BIN)/python -m tests.capture.pgoutput.sweep --share $(SHARE)

RUNS ?= 20

torture: setup ## Random sessions staged in every way (SEED=1 RUNS=20), up to the lake (LAKE=1), verified after each batch (PROOFS=1), or kills at every crash point (FAULTS=1)
ifdef FAULTS
	@PGOUTPUT_SWEEP_POINTS=0 PGOUTPUT_SWEEP_SEED=$(SEED) $(BIN)/python -m pytest -q -m '' tests/faults/test_kill_sweep.py
else ifdef LAKE
	@PGOUTPUT_SCHEMA_SEEDS=$$(seq -s, $(SEED) $$(($(SEED) + $(RUNS) - 1))) \
		$(BIN)/python -m pytest -q -s -n0 tests/conformance/test_schema_torture.py tests/conformance/test_torture_on_the_way.py
else ifdef PROOFS
	@PGOUTPUT_PROOF_SEEDS=$$(seq -s, $(SEED) $$(($(SEED) + $(RUNS) - 1))) \
		$(BIN)/python -m pytest -q -s -n0 tests/proof/test_random_programs.py
else
	@$(BIN)/python -m tests.capture.torture --seed $(SEED) --runs $(RUNS)
endif

VERSION ?= 18

chaos: setup ## Random programs, options and kills against whole pipelines (SEED=1 RUNS=20 VERSION=18)
	@$(BIN)/python -m tests.chaos --seed $(SEED) --runs $(RUNS) --postgres-version $(VERSION)

MINUTES ?= 30

soak: setup ## A pipeline under load, killed at random and compared (MINUTES=30 SEED=1)
	@$(BIN)/python -m tests.soak --minutes $(MINUTES) --seed $(SEED)

SEEDS ?= 1000

simulate: setup ## The pipeline's own decisions under kills, zombies and faults in memory (SEEDS=1000 SEED=1)
	@$(BIN)/python -m tests.simulation --seeds $(SEEDS) --seed $(SEED)

EXAMPLES ?= 500

values: setup ## Generated values of every type, carried to Iceberg and compared (EXAMPLES=500 SEED=1)
	@PGOUTPUT_TYPES_EXAMPLES=$(EXAMPLES) PGOUTPUT_TYPES_SEED=$(SEED) $(BIN)/python -m pytest -q tests/types_end_to_end

# A cell's name, or empty: all of them, a few minutes each.
CELL ?=

matrix: setup ## A pipeline's life with other versions of Airflow, Python and PostgreSQL (CELL=airflow-3.1)
	@$(BIN)/python -m tests.matrix $(CELL)

# A lake's name, or empty: all of them, a few minutes each.
LAKE_NAME ?=

lakes: setup ## A pipeline's life in a Hive metastore, Glue, a REST and a SQL catalog (LAKE_NAME=hive)
	@$(BIN)/python -m tests.lakes $(LAKE_NAME)

readme: setup ## Do what docs/tutorial/first_pipeline.md says in a new environment, by pip alone, and say how long it took
	@$(BIN)/python -m tests.readme

release: setup ## Build wheel and sdist into dist/, check them, and do the tutorial with the wheel
	@$(BIN)/python -m tests.readme.release

bench: setup ## Measure against pg_recvlogical and a bare MERGE
	@$(BIN)/python -m benchmarks

browser-test: setup ## Look at the page inside Airflow with a real browser (needs Debian's package chromium; CELL=airflow-3.1; IMAGES=1 also looks at make airflow, and keeps screenshots)
	@IMAGES=$(IMAGES) CELL=$(CELL) $(BIN)/python -m pytest -n0 -m '$(if $(IMAGES),,not exhaustive)' -rsP $(PYTEST_ARGS) tests/browser

engines: setup ## Read the tables with other engines, each in its own environment, and compare (writes docs/reference/engines.md)
	@$(BIN)/python -m tests.engines --page docs/reference/engines.md

docs: setup ## Build the site of the documentation into site/, and fail at a link that leads nowhere
	@$(BIN)/python -m tests.docs.test_site

sbom: setup ## Write the bill of materials of the wheel from uv.lock (docs/sbom.cdx.json)
	@$(BIN)/python scripts/sbom.py

clean: ## Remove what the demo, the tools and the tests left in this folder (not .venv, not downloaded packages)
	@if [ -x $(BIN)/python ]; then $(BIN)/python -m quickstart clean; fi
	@rm -rf .quickstart .engines .pytest_cache .mypy_cache .ruff_cache .hypothesis benchmarks/results dist site
