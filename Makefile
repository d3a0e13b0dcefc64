# Needs python3 (3.11 or newer) and make; everything else is installed into .venv, from the locks.
PYTHON ?= python3
VENV ?= .venv
BENCH_VENV ?= .venv-bench

# `make test` on one machine must not depend on where it stands: the environment is always named, never activated.
RUN := $(VENV)/bin/python
READY := $(VENV)/.installed

# uv writes the locks. No index address, find-links line or path of this machine gets into them.
COMPILE := $(RUN) -m uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" $(if $(UPGRADE),--upgrade)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

.PHONY: help
help: ## List the targets (the default)
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

.PHONY: setup
setup: $(READY) ## Create .venv and install everything that the lock pins into it

.PHONY: lock
lock: $(READY) ## Write requirements/*.lock anew (UPGRADE=1: with the newest versions)
	$(COMPILE) --output-file requirements/uv.lock requirements/uv.in
	$(COMPILE) --output-file requirements/dev.lock --constraints requirements/uv.lock --extra dev pyproject.toml
	$(COMPILE) --output-file requirements/bench.lock requirements/bench.in

.PHONY: clean
clean: ## Remove the environments and everything else that can be made again
	rm -rf .venv .venv-* .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist
	find src tests examples bench scripts -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# Two steps, so that a change of pyproject.toml alone does not touch what the lock pins.
$(VENV)/.locked: requirements/dev.lock requirements/uv.lock scripts/set_up.py
	@command -v $(PYTHON) >/dev/null || { echo "make: there is no $(PYTHON): install Python 3.11 or newer, or run \`make PYTHON=…\`" >&2; exit 1; }
	@echo "Setting up $(VENV) (once; less than a minute with a good connection) …"
	@$(PYTHON) scripts/set_up.py $(VENV) requirements/dev.lock
	@touch $@

$(READY): $(VENV)/.locked pyproject.toml
	@$(RUN) -m uv pip install --quiet --python $(RUN) --no-deps --no-build-isolation --editable .
	@touch $@

$(BENCH_VENV)/.locked: requirements/bench.lock requirements/uv.lock scripts/set_up.py
	@echo "Setting up $(BENCH_VENV) (the peers that we measure beside) …"
	@$(PYTHON) scripts/set_up.py $(BENCH_VENV) requirements/bench.lock
	@touch $@
