# Needs make and python3 (3.11 or newer). All other dependencies are installed into .venv, at the versions of the lock files.
PYTHON ?= python3
VENV ?= .venv
BENCH_VENV ?= .venv-bench
LITELLM_VENV ?= .venv-litellm
CLIENTS_VENV ?= .venv-clients
CLAUDE_VENV ?= .venv-claude

# For `make demo`, `eval`, `model` and `serve`: a model name of `antwort model list`, and the port of the server.
MODEL ?= qwen2.5-coder-1.5b
PORT ?= 8080

# For `make test-replicas`: how long the load lasts, and how often a replica is killed, in seconds. The third time, and
# every third one after it, it is paused instead.
SECONDS ?= 300
KILL_EVERY ?= 30

# For `make test`: test processes. One more than the cores of CI, because many tests wait for timeouts of servers.
WORKERS ?= 3

# Recipes name the virtual environment, so an active one has no effect.
RUN := $(VENV)/bin/python
READY := $(VENV)/.installed

CODE := src tests examples bench scripts

# The lock files contain no index URL, no find-links line and no local path.
COMPILE := $(RUN) -m uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" $(if $(UPGRADE),--upgrade)

# npm of the environment of the clients: it runs the node beside it, and no script of a package.
NPM = PATH="$(abspath $(CLIENTS_VENV))/bin:$$PATH" npm --ignore-scripts --no-audit --no-fund --no-update-notifier

# A mirror that does not answer delays the tests by a minute or two: those that need its packages are skipped then.
APT = DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o Acquire::Retries=2 -o Acquire::http::Timeout=20

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

.PHONY: help setup demo serve model eval test test-all test-attacks test-claude test-clients test-faults test-images test-install test-kubernetes test-long test-model test-openai test-replicas test-sandbox check static suite bench lock clean

help: ## List the targets (the default)
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

demo: $(READY) ## Run the demo agent: local server, sandbox and embedded model, no API key (MODEL=… for another model)
	@MODEL="$(MODEL)" $(RUN) examples/demo.py

serve: model ## Start the server on loopback with the embedded model, and print example requests (MODEL=…, PORT=…)
	@$(VENV)/bin/antwort serve --model $(MODEL) --port $(PORT) --hints

model: $(READY) ## Download the weights of the embedded model, 1.1 GB, unless they are cached (MODEL=… for another model)
	@$(VENV)/bin/antwort model pull $(MODEL)

test: static suite ## Run all checks and tests; separate: test-attacks, test-claude, test-clients, test-faults, test-images, test-install, test-kubernetes, test-long, test-model, test-openai, test-replicas, test-all

test-sandbox: $(READY) ## Run all sandbox tests, with the attack tests (minutes)
	$(RUN) -m pytest -q -n 2 --dist loadfile tests/antwort/sandbox

test-attacks: $(READY) ## Run the attack tests: code inside the sandbox tries to escape, as ordinary user and as root (minutes)
	$(RUN) -m pytest -q -n 2 --dist loadfile tests/antwort/sandbox/attacks

test-claude: $(READY) ## Run the Claude Agent SDK adapter with its CLI against the server, without a network (Linux; minutes)
	@command -v socat >/dev/null || [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null || \
		{ $(APT) update && $(APT) install socat; } >/dev/null || true
	@if ! $(RUN) scripts/offline.py true; then echo "skipped: make test-claude needs a network namespace"; \
	elif ! $(MAKE) $(CLAUDE_VENV)/.installed; then echo "skipped: the packages of requirements/claude.lock are not available"; \
	else $(RUN) scripts/offline.py $(CLAUDE_VENV)/bin/python -m pytest -q -n 2 --dist loadfile -m claude tests/together/test_claude_agent.py tests/together/test_claude_parity.py; fi

test-clients: $(READY) $(CLIENTS_VENV)/node/.locked ## Run programs of others against the server: Codex, both Agents SDKs, AI SDK, LangChain, … (Linux; minutes)
	CLIENTS_VENV=$(CLIENTS_VENV) $(RUN) scripts/offline.py $(RUN) -m pytest -q -n 2 --dist loadfile tests/clients

test-faults: $(READY) ## Run the crash test: kill the server 50 times, check that no response is lost or stuck (minutes)
	KILLS=50 $(RUN) -m pytest -q tests/together/test_server_kills.py

test-long: $(READY) ## Run the long tests: generated requests for the whole API, a hundred responses with code, agents of 200 turns
	$(RUN) -m pytest -q -n 2 --dist loadfile -m "long and not kubernetes" tests/together

test-images: $(READY) ## Build the container images with buildah, and run them as in a pod (minutes; root on Debian)
	@command -v buildah >/dev/null && command -v debootstrap >/dev/null || [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null || \
		{ $(APT) update && $(APT) install buildah debootstrap; } >/dev/null || true
	$(RUN) -m pytest -q -m images tests/deploy

test-replicas: $(READY) ## Run the load test of two replicas on Postgres, one of them killed or paused every 30 s (SECONDS=300, KILL_EVERY=30)
	REPLICAS_SECONDS=$(SECONDS) REPLICAS_KILL_EVERY=$(KILL_EVERY) $(RUN) -m pytest -q -s -m replicas tests/together/test_replica_load.py

test-install: $(READY) ## Install the wheel with each extra into empty environments, and use it (minutes; needs a package index)
	$(RUN) -m pytest -q -n 2 -m install tests/together/test_install.py tests/deploy

test-kubernetes: $(READY) ## Run the tests of claimed pods on a Kubernetes API server: that of ANTWORT_TEST_KUBECONFIG, else one with etcd (minutes)
	@[ -n "$$ANTWORT_TEST_KUBECONFIG" ] || { command -v etcd && command -v openssl && command -v curl && command -v xz; } >/dev/null || \
		[ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null || \
		{ $(APT) update && $(APT) install etcd-server openssl curl xz-utils; } >/dev/null || true
	$(RUN) -m pytest -q -n 2 --dist loadfile -m kubernetes tests/antwort/tools/builtins/codeinterpreter/kubernetes tests/together tests/deploy

test-model: $(READY) ## Run the tests that need the embedded model: examples, twelve tasks, crash of llama.cpp (minutes)
	$(VENV)/bin/antwort model pull
	$(RUN) -m pytest -q -m model tests

test-openai: $(READY) ## Run the adapter tests against the OpenAI API (needs OPENAI_API_KEY, costs money)
	$(RUN) -m pytest -q -m openai tests/together/test_openai_adapter.py

test-all: static ## Run the checks once, and the tests of `make test` on each installed Python of 3.11, 3.12 and 3.13
	@$(PYTHON) scripts/interpreters.py > $(VENV)/.interpreters
	@while read -r version python; do \
		echo "── Python $$version ($$python)"; \
		$(MAKE) suite VENV=.venv-$$version PYTHON="$$python" </dev/null || exit 1; \
	done < $(VENV)/.interpreters

check: static ## Run the checks only: format, lint, types, import layers, dead code, repository rules, examples of the docs
	$(RUN) -m pytest -q tests/test_house.py tests/test_docs.py

static: $(READY)
	$(VENV)/bin/ruff format --check --quiet .
	$(VENV)/bin/ruff check --quiet .
	$(VENV)/bin/basedpyright
	$(VENV)/bin/lint-imports --no-logo
	$(RUN) scripts/dead_code.py $(CODE)

suite: $(READY)
	$(RUN) -m pytest -q -n $(WORKERS) --dist loadfile -m "not model and not install and not kubernetes and not images and not long and not replicas and not claude" --ignore tests/antwort/sandbox/attacks --ignore tests/clients $(PYTEST_ARGS)

eval: $(READY) ## Run fifty small tasks with a model and check its answers (MODEL=… for another model; minutes)
	@$(RUN) bench/evaluate.py --model "$(MODEL)" $(EVAL_ARGS)

bench: $(READY) $(BENCH_VENV)/.locked $(LITELLM_VENV)/.locked ## Run the benchmarks, with the peer projects (a quarter of an hour; BENCH_ARGS="--only events" for one suite)
	@BENCH_PEERS_PYTHON=$(BENCH_VENV)/bin/python BENCH_LITELLM=$(LITELLM_VENV)/bin/litellm $(RUN) bench/run.py $(BENCH_ARGS)

setup: $(READY) ## Create .venv and install the locked dependencies (other targets do this when needed)

lock: $(READY) ## Compile requirements/*.lock from pyproject.toml and requirements/*.in (UPGRADE=1 takes the newest versions)
	$(COMPILE) --output-file requirements/uv.lock requirements/uv.in
	$(COMPILE) --output-file requirements/dev.lock --constraints requirements/uv.lock --extra dev pyproject.toml
	$(COMPILE) --output-file requirements/build.lock --constraints requirements/dev.lock requirements/build.in
	$(COMPILE) --output-file requirements/server.lock --constraints requirements/dev.lock --extra kubernetes --extra mcp --extra objectstore --extra postgres --extra server pyproject.toml
	$(COMPILE) --output-file requirements/sandbox.lock --constraints requirements/dev.lock --extra sandbox pyproject.toml
	$(COMPILE) --output-file requirements/claude.lock --constraints requirements/dev.lock --extra claude --extra dev pyproject.toml
	$(COMPILE) --output-file requirements/bench.lock requirements/bench.in
	$(COMPILE) --output-file requirements/litellm.lock requirements/litellm.in
	$(COMPILE) --output-file requirements/clients.lock requirements/clients.in
	@$(MAKE) $(CLIENTS_VENV)/.locked
	$(NPM) install --prefix tests/clients --package-lock-only --omit-lockfile-registry-resolved --loglevel error

clean: ## Remove virtual environments, caches and build output
	rm -rf .venv .venv-* .pytest_cache .ruff_cache .import_linter_cache .hypothesis .schemathesis build dist
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +

# Two steps, so that a change of pyproject.toml alone does not reinstall the locked dependencies.
$(VENV)/.locked: requirements/dev.lock requirements/uv.lock scripts/set_up.py
	@command -v $(PYTHON) >/dev/null || { \
		echo "make: $(PYTHON) not found: install Python 3.11 or newer, or name one, as in \`make PYTHON=python3.12 test\`" >&2; \
		exit 1; }
	@echo "Creating $(VENV) …"
	@$(PYTHON) scripts/set_up.py $(VENV) requirements/dev.lock
	@touch $@

$(READY): $(VENV)/.locked pyproject.toml
	@$(RUN) -m uv pip install --quiet --python $(RUN) --no-deps --no-build-isolation --editable .
	@touch $@

$(BENCH_VENV)/.locked: requirements/bench.lock requirements/uv.lock scripts/set_up.py
	@echo "Creating $(BENCH_VENV) …"
	@$(PYTHON) scripts/set_up.py $(BENCH_VENV) requirements/bench.lock
	@touch $@

$(LITELLM_VENV)/.locked: requirements/litellm.lock requirements/uv.lock scripts/set_up.py
	@echo "Creating $(LITELLM_VENV) …"
	@$(PYTHON) scripts/set_up.py $(LITELLM_VENV) requirements/litellm.lock
	@touch $@

$(CLIENTS_VENV)/.locked: requirements/clients.lock requirements/uv.lock scripts/set_up.py
	@echo "Creating $(CLIENTS_VENV) …"
	@$(PYTHON) scripts/set_up.py $(CLIENTS_VENV) requirements/clients.lock
	@touch $@

$(CLAUDE_VENV)/.locked: requirements/claude.lock requirements/uv.lock scripts/set_up.py
	@echo "Creating $(CLAUDE_VENV) …"
	@$(PYTHON) scripts/set_up.py $(CLAUDE_VENV) requirements/claude.lock
	@touch $@

$(CLAUDE_VENV)/.installed: $(CLAUDE_VENV)/.locked pyproject.toml
	@$(CLAUDE_VENV)/bin/python -m uv pip install --quiet --python $(CLAUDE_VENV)/bin/python --no-deps --no-build-isolation --editable .
	@touch $@

# Not in tests/clients, where the checks of this repository would read the packages.
$(CLIENTS_VENV)/node/.locked: $(CLIENTS_VENV)/.locked tests/clients/package.json tests/clients/package-lock.json
	@echo "Installing the packages of tests/clients/package-lock.json …"
	@mkdir -p $(@D) && cp tests/clients/package.json tests/clients/package-lock.json $(@D)
	@$(NPM) ci --prefix $(@D) --loglevel error >/dev/null
	@touch $@
