VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
OUT := out/results.jsonl

.DEFAULT_GOAL := help
.PHONY: help setup demo test chaos soak check format bench clean

help: ## show what there is to make
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r target text; do \
		printf '  make %-8s %s\n' "$$target" "$$text"; done

setup: $(INSTALLED) ## a virtual environment in .venv with everything; compiles llama.cpp the first time

$(INSTALLED): pyproject.toml requirements.txt .ci/setup
	@PYTHON="$(PYTHON)" .ci/setup $(VENV)
	@touch $@

demo: $(INSTALLED) ## a bulk file of 41 prompts through the whole system, and some of its answers
	@mkdir -p $(dir $(OUT))
	@$(BIN)/slotstream run examples/prompts.jsonl -o $(OUT) -m demo --restart
	@$(BIN)/python examples/show.py $(OUT)

test: $(INSTALLED) ## all tests but the slow ones, which .venv/bin/python -m pytest -m slow runs
	@$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

chaos: $(INSTALLED) ## kills, freezes and cut connections for some minutes; again what SEED=7 found
	@$(BIN)/python -m tests.chaos $(if $(SEED),--seed $(SEED))

soak: $(INSTALLED) ## mixed work for an hour, or for MINUTES=10: every answer right, nothing lost, memory flat
	@$(BIN)/python -m tests.soak $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED))

check: $(INSTALLED) ## format, lint, types and the import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_architecture.py

format: $(INSTALLED) ## format the code and mend what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(INSTALLED) ## speed, each figure beside its yardstick; WHAT="queue --rounds 9" measures one
	@$(BIN)/python -m bench $(WHAT) $(if $(PEER),--peer $(PEER))

clean: ## remove what was made here, the virtual environment too
	rm -rf $(VENV) out build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
