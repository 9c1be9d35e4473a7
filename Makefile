# Two commands: `make demo` and `make test`. Both set up .venv first; a second run skips what is done.
# The demo takes the embedded Tinker server and sandbox whatever the environment or .env say: empty means not set.
# INDEX=URL installs PyTorch from another package index (a CPU-only build, say): see README.

PYTHON ?= python3.11
INDEX ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALLED := $(VENV)/installed

.PHONY: demo test compat soak install lint types clean help

help:
	@echo "make demo    set up, then curate -> train -> evaluate on the embedded stack; ends with a report"
	@echo "make test    set up, then lint, types, all tests and compat where it can be installed"
	@echo "make compat  set up, then run the newest tinker-cookbook, unmodified, against the embedded servers (two minutes)"
	@echo "make soak    set up, then kill training runs 150 times, grade 20,000 candidates (about an hour)"
	@echo "make install set up .venv only"
	@echo "make clean   remove the environments and caches"

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@command -v $(PYTHON) > /dev/null || { echo "make: $(PYTHON) not found: install Python 3.11 to 3.13 or say make PYTHON=..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (about 2 GB with PyTorch; a few minutes the first time)"
	$(if $(INDEX),$(PIP) install --quiet --index-url $(INDEX) -c constraints.txt torch)
	$(PIP) install --quiet -c constraints.txt -e '.[local,dev,wandb]'
	@touch $@

demo: $(INSTALLED)
	@TINKER_API_KEY= TINKER_BASE_URL= SANDBOX_URL= $(BIN)/coderl pipeline preset=nano

test: $(INSTALLED) lint types
	$(BIN)/python -m pytest
	$(BIN)/python tests/compat/run_compat.py --optional

compat: $(INSTALLED)
	$(BIN)/python tests/compat/run_compat.py

soak: $(INSTALLED)
	$(BIN)/python benchmarks/training_kills.py
	$(BIN)/python benchmarks/grading_soak.py
	$(BIN)/python benchmarks/curation_kills.py

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

clean:
	rm -rf $(VENV) .venv-compat .pytest_cache .mypy_cache .ruff_cache *.egg-info
