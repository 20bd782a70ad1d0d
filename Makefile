BIN := .venv/bin
READY := .venv/.ready
CLIENTS := .venv-clients

# What mypy checks for Python 3.10: all that runs in the job (tests/tree.py says the same).
TOOL_PROFILES := $(addsuffix %.py,$(addprefix profiles/,attribution documents intervals timeline trace))
JOB_SIDE := $(addprefix src/aiak_tune/,agent ops optimizations __init__.py errors.py \
	$(filter-out $(TOOL_PROFILES),$(wildcard profiles/*.py)))

.PHONY: setup demo test test-clients lint bench clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@.ci/venv .venv
	$(BIN)/python -m pip install --editable '.[dev,examples]' --constraint constraints.txt
	@touch $@

demo: setup
	$(BIN)/python examples/vision/make_data.py
	$(BIN)/aiak-tune tune --trials 6 --plan aiak-plan.json -- $(BIN)/python examples/vision/train.py

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy src tests
	$(BIN)/mypy --python-version 3.10 $(JOB_SIDE)
	$(BIN)/lint-imports

test: lint
	$(BIN)/pytest -m 'not clients'

# Frameworks of others, in an environment of their own: about 3 GB and half an hour.
test-clients: setup $(CLIENTS)/bin/.ready
	$(BIN)/pytest -m clients tests/clients

$(CLIENTS)/bin/.ready: tests/clients/constraints.txt tests/clients/requirements.txt
	@.ci/venv $(CLIENTS)
	$(CLIENTS)/bin/python -m pip install --requirement tests/clients/requirements.txt \
		--constraint tests/clients/constraints.txt
	$(CLIENTS)/bin/python tests/clients/torchvision_ops.py
	@touch $@

bench: setup
	@set -e; for script in $(sort $(wildcard benchmarks/bench_*.py)); do \
		echo "$$script"; $(BIN)/python $$script; done

clean:
	rm -rf .venv $(CLIENTS) build dist *.egg-info aiak-plan.json
	rm -rf .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
