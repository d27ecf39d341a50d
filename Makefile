# Everything a fresh machine needs is Python 3.10+ and a package index.
PYTHON ?= python3
VENV ?= .venv
DOCS_VENV ?= .venv-docs
DEMO ?= demo-run
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help demo test test-all lint format docs wheel lock sbom image-test clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## */\t/' | expand -t 14

demo: $(VENV)/.demo  ## run the whole loop on bundled photographs; writes demo-run/report.html
	$(BIN)/haystack demo $(DEMO)

# One thread a process: the processes share the cores already.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist loadfile

test: $(VENV)/.dev  ## run the tests (all but the slow ones)
	$(PYTEST) -m "not slow"

test-all: $(VENV)/.dev  ## run every test
	$(PYTEST)

lint: $(VENV)/.dev  ## ruff, mypy and hadolint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/hadolint docker/Dockerfile*

format: $(VENV)/.dev  ## let ruff rewrite the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(DOCS_VENV)/.done  ## build the documentation into docs/_build; a warning is an error
	$(DOCS_VENV)/bin/python -m sphinx -q -W --keep-going -b html docs docs/_build

wheel: $(VENV)/.dev  ## build the wheel into dist/
	$(BIN)/python -m build --wheel

lock: $(VENV)/.image  ## resolve the packages of the images anew: docker/*.lock
	UV=$(BIN)/uv docker/lock.sh

sbom: $(VENV)/.image  ## bills of materials: dist/sbom-*.cdx.json; with Debian's packages after image-test
	for flavour in cpu cuda; do debian=dist/debian-$$flavour.txt; \
	  $(BIN)/python docker/sbom.py $$flavour dist/sbom-$$flavour.cdx.json \
	    $$(test -f $$debian && echo --debian $$debian) || exit 1; done

image-test:  ## build the images and run them (docker/image_test.sh says what it needs)
	docker/image_test.sh

clean:  ## remove the virtual environment and what the demo and the build wrote
	rm -rf $(VENV) $(DOCS_VENV) $(DEMO) build dist docs/_build docs/_generated *.egg-info .pytest_cache .mypy_cache .ruff_cache

# A Python that has PyTorch lends it to the environment, so that it is not downloaded again.
$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "Haystack needs Python 3.10 or newer; name one: make PYTHON=python3.11" >&2; exit 1; }
	@if $(PYTHON) -c 'import torch, torchvision' 2>/dev/null; then site=--system-site-packages; fi; \
	  $(PYTHON) -m venv $$site $(VENV) || \
	  { echo "no virtual environment could be made; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }

# Nothing else is said until all is there, which takes minutes where PyTorch must be downloaded.
INSTALL := @echo "installing into $(VENV); PyTorch, if no Python lends it, is gigabytes"; \
  $(BIN)/python -m pip install --quiet --editable

$(VENV)/.demo: $(VENV)/bin/python pyproject.toml
	$(INSTALL) '.[demo]'
	@touch $@

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml
	$(INSTALL) '.[dev]'
	@touch $(VENV)/.demo $@

# Small, and without PyTorch: docs/conf.py stands in for what is missing.
$(DOCS_VENV)/.done: docs/requirements.txt
	$(PYTHON) -m venv $(DOCS_VENV)
	@echo "installing into $(DOCS_VENV), some 200 MB"; \
	  $(DOCS_VENV)/bin/python -m pip install --quiet --requirement docs/requirements.txt
	@touch $@

$(VENV)/.image: $(VENV)/bin/python pyproject.toml
	$(INSTALL) '.[image]'
	@touch $@
