# Two commands do all the set-up: `make train` and `make test`.
#
#   make train     trains an RNN with strategy="bppsa" and with stock PyTorch, compares them
#   make test      all tests (those that need a GPU say so when they skip)
#   make lint      format, lint, types
#   make benchmark measures against stock PyTorch, writes experiments/records
#   make build     only the environment and the operators
#   make clean     removes what the others made, but the generated data

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := pyproject.toml $(shell find csrc -type f) datasets/__init__.py

.PHONY: train test lint format benchmark build clean
.DELETE_ON_ERROR:

build: $(VENV)/.built

PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

# What the build needs: torch's headers, CMake. constraints.txt pins the versions tested with.
$(VENV)/.packages: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and \
	  "Python 3.10 or newer is needed, found " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt torch scikit-build-core "cmake>=3.28" ninja
	@touch $@

$(VENV)/.built: $(VENV)/.packages $(SOURCES)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) install -c constraints.txt --no-build-isolation \
	  --editable ".[experiments,test,lint]"
	@touch $@

train: build
	$(BIN)/python experiments/compare.py bitstream_rnn

test: build
	$(BIN)/python -m pytest

lint: build
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $$(git ls-files 'csrc/*.h' 'csrc/*.cpp' 'csrc/*.cu' 'csrc/*.cuh')

format: build
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $$(git ls-files 'csrc/*.h' 'csrc/*.cpp' 'csrc/*.cu' 'csrc/*.cuh')

benchmark: build
	$(BIN)/python experiments/benchmark_recurrent.py
	$(BIN)/python experiments/benchmark_recurrent.py --grid --seconds 0.25
	$(BIN)/python experiments/benchmark_planner.py
	$(BIN)/python experiments/benchmark_products.py
	$(BIN)/python experiments/table1.py
	$(BIN)/python experiments/figure10.py

clean:
	rm -rf $(VENV) build runs .pytest_cache .mypy_cache .ruff_cache .hypothesis
