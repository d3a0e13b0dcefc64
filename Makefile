# Needs python3 (3.11 or newer) and make. Everything else is installed into .venv, as the locks pin it.
PYTHON ?= python3
VENV ?= .venv
BENCH_VENV ?= .venv-bench
LITELLM_VENV ?= .venv-litellm

# What `make demo`, `eval` and `serve` use: weights by a name of `antwort model list`, and a port.
MODEL ?= qwen2.5-coder-1.5b
PORT ?= 8080

# The environment is always named and never activated, so it does not matter which one the caller has active.
RUN := $(VENV)/bin/python
READY := $(VENV)/.installed

# Directories with code in them; some appear later than others.
CODE := $(wildcard src tests examples bench scripts)

# uv writes the locks. No index address, find-links line or path of this machine gets into them.
COMPILE := $(RUN) -m uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" $(if $(UPGRADE),--upgrade)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

.PHONY: help setup demo serve model eval test test-all test-faults test-model test-openai test-sandbox check static suite bench lock clean

help: ## List the targets (the default)
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

demo: $(READY) ## Show an agent with hosted tools at work, on a model of this machine (MODEL=… takes another)
	@MODEL="$(MODEL)" $(RUN) examples/demo.py

serve: model ## Serve the embedded model on loopback, and show how to try it (MODEL=…, PORT=…)
	@$(VENV)/bin/antwort serve --model $(MODEL) --port $(PORT) --hints

model: $(READY) ## Fetch the weights of the embedded model, once (1.1 GB; MODEL=… others)
	@$(VENV)/bin/antwort model pull $(MODEL)

test: static suite ## Run every check and every test, but for the slow suites that have targets of their own

test-sandbox: $(READY) ## Test the sandbox, and attack it from inside as an ordinary user and as root (some minutes)
	$(RUN) -m pytest -q -n 2 --dist loadfile tests/antwort/sandbox

test-faults: $(READY) ## Kill the server fifty times at work, and see that nothing is lost or stuck (some minutes)
	KILLS=50 $(RUN) -m pytest -q tests/together/test_server_kills.py

test-model: $(READY) ## Test with a real model: the examples, ten tasks, and what becomes of it when it dies (some minutes)
	$(VENV)/bin/antwort model pull
	$(RUN) -m pytest -q -m model tests

test-openai: $(READY) ## Run the adapter's suite against OpenAI itself (needs OPENAI_API_KEY, and costs money)
	$(RUN) -m pytest -q -m openai tests/together/test_openai_adapter.py

test-all: static ## Run the tests on each of Python 3.11, 3.12 and 3.13 that this machine has
	@$(PYTHON) scripts/interpreters.py > $(VENV)/.interpreters
	@while read -r version python; do \
		echo "── Python $$version ($$python)"; \
		$(MAKE) suite VENV=.venv-$$version PYTHON="$$python" </dev/null || exit 1; \
	done < $(VENV)/.interpreters

check: static ## Run the checks: format, lint, types, imports, dead code, the house's rules, the docs' examples
	$(RUN) -m pytest -q tests/test_house.py tests/test_docs.py

static: $(READY)
	$(VENV)/bin/ruff format --check --quiet .
	$(VENV)/bin/ruff check --quiet .
	$(VENV)/bin/basedpyright
	$(VENV)/bin/lint-imports --no-logo
	$(RUN) scripts/dead_code.py $(CODE)

suite: $(READY)
	$(RUN) -m pytest -q -n 2 --dist loadfile -m "not model" --ignore tests/antwort/sandbox $(PYTEST_ARGS)

eval: $(READY) ## Have a model do forty small tasks, and check its answers (MODEL=… takes another; some minutes)
	@$(RUN) bench/evaluate.py --model "$(MODEL)" $(EVAL_ARGS)

bench: $(READY) $(BENCH_VENV)/.locked $(LITELLM_VENV)/.locked ## Measure us, and our peers beside us
	@BENCH_PEERS_PYTHON=$(BENCH_VENV)/bin/python BENCH_LITELLM=$(LITELLM_VENV)/bin/litellm $(RUN) bench/run.py $(BENCH_ARGS)

setup: $(READY) ## Create .venv and install what the lock pins (the others do it when needed)

lock: $(READY) ## Write requirements/*.lock anew (UPGRADE=1: with the newest versions)
	$(COMPILE) --output-file requirements/uv.lock requirements/uv.in
	$(COMPILE) --output-file requirements/dev.lock --constraints requirements/uv.lock --extra dev pyproject.toml
	$(COMPILE) --output-file requirements/bench.lock requirements/bench.in
	$(COMPILE) --output-file requirements/litellm.lock requirements/litellm.in

clean: ## Remove the environments, and all else that can be made again
	rm -rf .venv .venv-* .pytest_cache .ruff_cache .import_linter_cache .hypothesis .schemathesis build dist
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +

# Two steps, so that a change of pyproject.toml alone does not touch what the lock pins.
$(VENV)/.locked: requirements/dev.lock requirements/uv.lock scripts/set_up.py
	@command -v $(PYTHON) >/dev/null || { \
		echo "make: there is no $(PYTHON): install Python 3.11 or newer, or name one as in \`make PYTHON=python3.12 test\`" >&2; \
		exit 1; }
	@echo "Setting up $(VENV), once …"
	@$(PYTHON) scripts/set_up.py $(VENV) requirements/dev.lock
	@touch $@

$(READY): $(VENV)/.locked pyproject.toml
	@$(RUN) -m uv pip install --quiet --python $(RUN) --no-deps --no-build-isolation --editable .
	@touch $@

$(BENCH_VENV)/.locked: requirements/bench.lock requirements/uv.lock scripts/set_up.py
	@echo "Setting up $(BENCH_VENV), once …"
	@$(PYTHON) scripts/set_up.py $(BENCH_VENV) requirements/bench.lock
	@touch $@

$(LITELLM_VENV)/.locked: requirements/litellm.lock requirements/uv.lock scripts/set_up.py
	@echo "Setting up $(LITELLM_VENV), once …"
	@$(PYTHON) scripts/set_up.py $(LITELLM_VENV) requirements/litellm.lock
	@touch $@
