PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

# Each of many processes would compile our modules, and pytest's would rewrite the tests.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup run test test-processes lint docs format bench clean

help: ## List what one can do
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)) and "Millrace needs Python 3.11 or 3.12; this is " + sys.version.split()[0] + ". Run: make PYTHON=/path/to/python3.11")'
	@echo "Setting up $(VENV) (about two minutes the first time) ..."
	@$(PYTHON) -m venv $(VENV)
	@# pip works on one core: four of it install a quarter each, and what they would compile is compiled on all cores
	@awk '/^[^ #]/ { part = n++ % 4 } n { print > ("$(VENV)/part" part) }' requirements.lock
	@printf '$(VENV)/part%s\n' 0 1 2 3 | xargs -P 4 -n 1 $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --no-compile -r
	@$(BIN)/python -m compileall -q -j 0 $(VENV)/lib
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# every other verb does it
setup: $(STAMP)

run: $(STAMP) ## Start everything: Postgres, Spark, Dagster on http://127.0.0.1:3000, the example shop
	@exec $(BIN)/millrace up

test: $(STAMP) ## Test every promise once, on real Postgres servers and a real Spark; ONLY=sql runs one folder of tests
	$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder tests/$(ONLY) $(ARGS)

test-processes: $(STAMP) ## Test whole platforms, clusters, wheels and many kills, and walk through the UI in a browser
	$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder tests/processes $(ARGS)

lint: $(STAMP) ## Check style, types and words
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python scripts/lint_words.py

docs: $(STAMP) ## Build the site of the documentation: build/docs/index.html
	$(BIN)/python -m sphinx -W -n -E -q -b html docs build/docs

format: $(STAMP) ## Rewrite the sources in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) ## Measure: ARGS=append, round, rebuild, ingest, consumers, fresh or reads, and its options
	$(BIN)/python -m benchmarks $(ARGS)

clean: ## Remove the virtual environment and the local data of `make run`
	rm -rf $(VENV) .millrace
