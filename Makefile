# The commands of development. `make` alone lists them.

# A Python >= 3.11 that makes .venv; another one by: make install PYTHON=/path/to/python
PYTHON ?= $(shell command -v python3.11 || command -v python3 || echo python3)
# Test processes; more do not help on the two cores that CI has.
JOBS ?= 2
# Words handed on to the demo and the benchmarks, for example: make demo ARGS="--steps 500"
ARGS ?=

BIN := .venv/bin
STAMP := .venv/.installed

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help system install demo test bench soak lint docs

help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 18

system: ## install system packages (none are needed)
	@echo "No system packages are needed. Only where '$(PYTHON) -m venv' fails: apt-get install python3-venv"

install: $(STAMP) ## make .venv with everything that development needs

# Runs again only when a dependency or a pin has changed.
$(STAMP): pyproject.toml constraints-dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "mementum needs Python >= 3.11, and $(PYTHON) is $$($(PYTHON) -V 2>&1)" >&2; \
	    echo "next: make install PYTHON=/path/to/python3.11" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "making .venv with $$($(PYTHON) -V)"; $(PYTHON) -m venv .venv; } || { \
	    rm -rf .venv; echo "$(PYTHON) -m venv failed; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@echo "installing into .venv: torch and the rest, some minutes the first time"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints-dev.txt torch -e '.[dev]'
	@touch $@
	@echo "installed"

demo: install ## kill a training run and bring it back, on this machine
	$(BIN)/python demo/demo.py $(ARGS)

lint: install ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint ## the linters, then every test but the soaks
	MEMENTUM_NEEDS_SERVICES=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal

soak: install ## the long seeded searches
	$(BIN)/python -m pytest -m soak -n 0 -s

docs: install ## check that the pages and their examples hold
	$(BIN)/python -m pytest tests/test_docs.py

bench: install ## every benchmark, quickly
	@set -e; found=; for file in bench/[!_]*.py; do \
	    test -e "$$file" || continue; \
	    found=yes; echo "$$file"; $(BIN)/python "$$file" --quick $(ARGS); \
	done; test -n "$$found" || echo "there are no benchmarks yet"
