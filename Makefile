PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Where packages come from is the machine's business; where they go, and which ones, is not.
INSTALL := env -u PIP_TARGET -u PIP_PREFIX -u PIP_ROOT -u PIP_CONSTRAINT -u PIP_NO_DEPS -u PIP_DRY_RUN \
	$(BIN)/python -I -m pip install --quiet --disable-pip-version-check --no-user --require-hashes
LOCK := $(BIN)/uv pip compile --quiet --generate-hashes --no-emit-index-url --universal --python-version 3.11 \
	--custom-compile-command "make lock" pyproject.toml

# The modules that deploy/native.py compiles.
COMPILED := $(filter-out %/__init__.py,$(wildcard monitor/engine/*.py))

.DEFAULT_GOAL := help
.PHONY: help demo test check format bench calibrate faults lock clean

help: ## what can be made
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/'

demo: $(VENV)/run.stamp ## the main job on embedded parts, with simulated traffic
	@$(BIN)/ab-monitor demo $(ARGS)

test: $(VENV)/native.stamp ## all tests, on a real Kafka, Redis, Valkey, Prometheus and browser
	@.ci/install-debian
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

check: $(VENV)/native.stamp ## lint, types and the fast tests: before each commit
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2 tests/unit tests/property

format: $(VENV)/dev.stamp ## mend what can be mended by itself
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/native.stamp ## measure the budgets, in 20 minutes; writes docs/performance.md
	@.ci/install-debian redis-server java mvn
	@$(BIN)/python -m tests.bench $(ARGS)

calibrate: $(VENV)/native.stamp ## how often verdicts are wrong where the truth is known; docs/statistics.md
	@$(BIN)/python -m tests.calibration $(ARGS)

faults: $(VENV)/native.stamp ## every kind of fault on real parts; writes the table in docs/reliability.md
	@.ci/install-debian
	@$(BIN)/python -m tests.faults $(ARGS)

lock: $(VENV)/dev.stamp ## pin the dependencies anew
	$(LOCK) -o requirements/run.txt
	$(LOCK) --extra fast --extra notify --extra schemas -o requirements/fast.txt
	$(LOCK) --extra fast --extra notify --extra schemas --extra dev -o requirements/dev.txt

clean: ## forget what was set up
	rm -rf $(VENV) .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/run.stamp: requirements/run.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "ab-monitor needs Python 3.11 or newer")'
	@$(BIN)/python -I -m pip --version > /dev/null 2>&1 || $(PYTHON) -I -m venv --clear $(VENV)
	@echo "setting up $(VENV) …"
	@$(INSTALL) -r requirements/run.txt
	@echo '$(CURDIR)' > "$$($(BIN)/python -I -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/ab-monitor.pth"
	@printf '#!/bin/sh\nexec "%s" -P -m monitor "$$@"\n' '$(CURDIR)/$(BIN)/python' > $(BIN)/ab-monitor
	@chmod +x $(BIN)/ab-monitor
	@touch $@

$(VENV)/dev.stamp: $(VENV)/run.stamp requirements/dev.txt
	@$(INSTALL) -r requirements/dev.txt
	@touch $@

$(VENV)/native.stamp: $(VENV)/dev.stamp deploy/native.py $(COMPILED)
	@echo "compiling what every event goes through …"
	@mkdir -p .cache && $(BIN)/python deploy/native.py > .cache/native.log 2>&1 || { cat .cache/native.log; exit 1; }
	@grep '^no ' .cache/native.log || true
	@touch $@
