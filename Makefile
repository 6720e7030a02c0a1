PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
LOCK := $(BIN)/uv pip compile --quiet --generate-hashes --no-emit-index-url --universal --python-version 3.11 \
	--custom-compile-command "make lock" pyproject.toml

.DEFAULT_GOAL := help
.PHONY: help demo test check format bench lock clean

help: ## what can be made
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/'

demo: $(VENV)/run.stamp ## the main job on embedded parts, with simulated traffic
	@$(BIN)/ab-monitor demo $(ARGS)

test: $(VENV)/dev.stamp ## all tests, on a real Kafka, Redis, Valkey, Prometheus and browser
	@.ci/install-debian
	$(BIN)/python -m pytest

check: $(VENV)/dev.stamp ## lint, types and the fast tests: before each commit
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/unit tests/property

format: $(VENV)/dev.stamp ## mend what can be mended by itself
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/dev.stamp ## events per CPU-second on a real broker; docs/performance.md
	@$(BIN)/python -m tests.bench $(ARGS)

lock: $(VENV)/dev.stamp ## pin the dependencies anew
	$(LOCK) -o requirements/run.txt
	$(LOCK) --extra dev -o requirements/dev.txt

clean: ## forget what was set up
	rm -rf $(VENV) .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/run.stamp: requirements/run.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "ab-monitor needs Python 3.11 or newer")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "setting up $(VENV) …"
	@$(PIP) install --require-hashes -r requirements/run.txt
	@echo '$(CURDIR)' > "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/ab-monitor.pth"
	@printf '#!%s\nimport sys\nfrom monitor.cli import main\nsys.exit(main())\n' '$(CURDIR)/$(BIN)/python' > $(BIN)/ab-monitor
	@chmod +x $(BIN)/ab-monitor
	@touch $@

$(VENV)/dev.stamp: $(VENV)/run.stamp requirements/dev.txt
	@$(PIP) install --require-hashes -r requirements/dev.txt
	@touch $@
