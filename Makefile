# Two commands matter: `make test` (everything CI checks) and `make lint` (the quick part of it).

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
# Holds the checksum of the locks this environment was built from: a changed lock rebuilds it,
# a touched file does not.
STAMP := $(VENV)/.locks-$(shell cat requirements/run.txt requirements/test.txt 2>/dev/null | cksum | tr ' ' -)

.PHONY: test lint types contracts pytest install lock clean

test: lint types contracts pytest

install: $(STAMP)

$(STAMP):
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/run.txt -r requirements/test.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

contracts: $(STAMP)
	$(BIN)/lint-imports --no-logo

pytest: $(STAMP)
	$(BIN)/python -m pytest

# The locks must hold wherever the project is cloned: no local package configuration goes in,
# no address comes out. Keeps the pins there are; `make lock UPGRADE=--upgrade` moves them.
PIP_CONFIG_FILE ?= /dev/null
COMPILE = PIP_CONFIG_FILE=$(PIP_CONFIG_FILE) PIP_FIND_LINKS= PIP_CONSTRAINT= $(BIN)/pip-compile \
	--quiet --no-header --allow-unsafe --strip-extras --generate-hashes --no-emit-options $(UPGRADE)

lock: $(STAMP)
	$(COMPILE) --extra uvloop --output-file requirements/run.txt pyproject.toml
	$(BIN)/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['dependency-groups']['test'], sep='\n')" \
		| $(COMPILE) --constraint requirements/run.txt --output-file requirements/test.txt -

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
