# Two commands do all the set-up: `make train` and `make test`.
#
#   make train     trains an RNN with strategy="bppsa" and with stock PyTorch, compares them
#   make test      all tests (those that need a GPU say so when they skip)
#   make quick     every idea once, in a minute and a half on two cores
#   make lint      format, lint, types
#   make docs      the documentation site, into build/site
#   make pictures  all pictures of experiments/records again, from the records
#   make benchmark measures against stock PyTorch, writes experiments/records
#   make figures   the paper's figures, quick, into runs/figures; figures-full: some 5 hours, the
#                  paper's schedules, into experiments/records
#   make third-party  models of public packages, each in an environment of its own, some 20 minutes
#   make gpu       on a machine with a GPU: tests, memory checks and measurements there; takes its time
#   make gpu-day   the same and more, where the GPU is yours for 25 minutes
#   make build     only the environment and the operators
#   make clean     removes what the others made, but the generated data

SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal
EXPERIMENT := $(BIN)/python -m experiments
SOURCES := pyproject.toml $(shell find csrc -type f) datasets/__init__.py

.PHONY: train test quick lint lint-python lint-types lint-cpp lint-files format docs benchmark third-party figures \
  figures-full pictures gpu \
  gpu-day gpu-offline gpu-build gpu-compile gpu-test gpu-sanitize gpu-sanitize-sync gpu-benchmark build develop clean
.DELETE_ON_ERROR:

build: $(VENV)/.built
develop: $(VENV)/.developed

PIP := $(BIN)/python -m pip --disable-pip-version-check
, := ,
# Python compiles what it imports, and keeps that: most of what is installed never is. Tests start many
# processes, and each would compile torch and Lightning again, 5 seconds of a core.
export PIP_NO_COMPILE := 1
unexport PYTHONDONTWRITEBYTECODE
# What is fetched, installed and compiled, a line each; all the rest is in the log that an error shows.
SHOWN := ^ *(Collecting|Downloading|Installing collected|Prepared|Installed|-- bppsa_lightning:|\[[0-9]+/[0-9]+\]) ?
SHOW = > >(tee $(VENV)/$(1).log | grep --line-buffered -E '$(SHOWN)' | sed -u 's/^\(.\{100\}\).*/\1/') 2>&1 \
  || { tail -n 60 $(VENV)/$(1).log; exit 1; }

# uv installs in half a minute what takes pip two and a half. It looks for packages where pip did for uv,
# in that order; where it can't serve, pip does.
LOOKED_IN = sed -n 's/^Looking in $(1): //p' $(VENV)/uv.log
UV = UV_INDEX_STRATEGY=unsafe-best-match UV_DEFAULT_INDEX="$$($(call LOOKED_IN,indexes) | cut -d, -f1)" \
  UV_INDEX="$$($(call LOOKED_IN,indexes) | tr -d ,)" UV_FIND_LINKS="$$($(call LOOKED_IN,links) | tr -d ' ')" $(BIN)/uv
# A uv that is killed leaves half of a package, which it takes for whole later on: then all is installed again.
INSTALL = { again=$$([ ! -e $(VENV)/.begun ] || echo --reinstall); touch $(VENV)/.begun; \
  { $(UV) pip install $$again --python $(BIN)/python -c constraints.txt $(1) || \
  { [ $$? -lt 128 ] && $(PIP) install -c constraints.txt $(2); }; } && rm $(VENV)/.begun; } $(call SHOW,$(3))
EXTRAS = $(call INSTALL,-r pyproject.toml $(addprefix --extra ,$(1)),"bppsa-lightning[$(subst $() ,$(,),$(1))]",$(2))

# What the build needs: torch's headers, CMake. constraints.txt pins the versions tested with.
BUILDS_WITH := torch scikit-build-core "cmake>=3.28" ninja
$(VENV)/.packages: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and \
	  "Python 3.10 or newer is needed, found " + sys.version)'
	@echo "Setting up $(VENV): torch and its libraries take about 5 GB and a minute or two."
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install -c constraints.txt uv > $(VENV)/uv.log 2>&1 \
	  || echo "No uv for this machine: pip installs, and takes a little longer."
	@$(call INSTALL,$(BUILDS_WITH),$(BUILDS_WITH),packages)
	@touch $@

# The operators, compiled for this machine, and what the experiments import.
$(VENV)/.built: $(VENV)/.packages $(SOURCES)
	@echo "Compiling the operators for this machine: [done/all]."
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) install --verbose --no-deps --no-build-isolation --editable . \
	  $(call SHOW,build)
	@$(call EXTRAS,experiments,experiments)
	@touch $@

# What only tests, lint, audio and the site need.
$(VENV)/.developed: $(VENV)/.built constraints.txt
	@$(call EXTRAS,audio test lint vision docs,develop)
	@touch $@

train: build
	$(EXPERIMENT).compare bitstream_rnn

# Threaded kernels are tested with two threads; waiting ones leave their core to the other process.
test: develop
	OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive $(PYTEST)

quick: develop
	OMP_NUM_THREADS=1 $(PYTEST) -m "not slow and not wheel and not gpu"

lint: lint-python lint-types lint-cpp lint-files

lint-python: develop
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

lint-types: develop
	$(BIN)/mypy

lint-cpp: develop
	$(BIN)/clang-format --dry-run --Werror $$(git ls-files 'csrc/*.h' 'csrc/*.cpp' 'csrc/*.cu' 'csrc/*.cuh')

# Workflows, forms and the citation, by the schemas that come with check-jsonschema.
SCHEMA = $(BIN)/check-jsonschema --builtin-schema vendor.$(1)
lint-files: develop
	$(call SCHEMA,github-workflows) .github/workflows/*.yml
	$(call SCHEMA,github-issue-forms) $$(ls .github/ISSUE_TEMPLATE/*.yml | grep -v config)
	$(call SCHEMA,github-issue-config) .github/ISSUE_TEMPLATE/config.yml
	$(call SCHEMA,dependabot) .github/dependabot.yml
	$(call SCHEMA,citation-file-format) CITATION.cff

format: develop
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $$(git ls-files 'csrc/*.h' 'csrc/*.cpp' 'csrc/*.cu' 'csrc/*.cuh')

docs: develop
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet --config-file docs/site/mkdocs.yml
	@echo "The site: build/site/index.html; to search in it, \"$(BIN)/python -m http.server --directory build/site\"."

benchmark: develop
	$(EXPERIMENT).benchmarks.recurrent_cpu --record
	$(EXPERIMENT).benchmarks.recurrent_cpu --grid --seconds 0.25 --record
	$(EXPERIMENT).benchmarks.plans --record
	$(EXPERIMENT).benchmarks.packed --record
	$(EXPERIMENT).benchmarks.products --record
	$(EXPERIMENT).benchmarks.pruned_vgg11 --record
	$(EXPERIMENT).paper.table1 --record
	$(EXPERIMENT).paper.figure10 --record

third-party: develop
	$(BIN)/python -m tests.third_party.run

figures: develop
	$(EXPERIMENT).paper.run_all

figures-full: develop
	$(EXPERIMENT).paper.run_all --full

pictures: develop
	$(EXPERIMENT).redraw

# On a machine with a GPU. `make gpu` takes .venv as it is; `make gpu-offline` and `make gpu-day`
# need nothing but Python with torch, lightning, pytest and hypothesis, CMake, ninja and nvcc, and no
# network. The first two build what is shipped, for all its architectures, into build/gpu; the day
# builds for the GPU at hand alone (docs/gpu.md). Each part takes less than ten minutes.
GPU_PYTHON = $(PYTHON)
GPU_BUILD := build/gpu
GPU_LEVELS := all
GPU_ARCHITECTURES :=# all; or a list, as 80;90; or $(GPU_AT_HAND), asked once
GPU_AT_HAND = $(eval GPU_AT_HAND := $$(shell $$(GPU_PYTHON) -c \
  'import torch; print("%d%d" % torch.cuda.get_device_capability())'))$(or $(GPU_AT_HAND),$(error torch sees no GPU))
GPU_BUILD_OPTIONS = $(foreach of,CUDA CUDA_RECURRENT,"-DBPPSA_$(of)_ARCHITECTURES=$(GPU_ARCHITECTURES)")
GPU_LIBRARIES ?=# a folder with _C.so and _C_cuda.so that were compiled elsewhere; without, they are here
GPU_TEST_SECONDS := 240# of a file
SITE := $(GPU_BUILD)/site
GPU_PATH = PYTHONPATH="$(abspath $(SITE))$${PYTHONPATH:+:$$PYTHONPATH}"
RUN = $(GPU_PATH) $(GPU_PYTHON)
SANITIZER_SECONDS := 280# of a tool
SANITIZER := $(or $(shell command -v compute-sanitizer),/usr/local/cuda/bin/compute-sanitizer)
# Every kernel, on sizes that are small enough for a sanitizer.
SANITIZED := strides or projections or gates_again or (state_sizes and linear) \
  or (cases_of and (19 or 35)) or pool2d_of or layer_s_pattern or (test_elementwise and (relu or silu) and 67) \
  or (plan_and_layout and float32 and 13 and not 130) or on_cuda_layers
SANITIZED_FILES := ops/test_recurrent_gpu.py ops/test_reverse_scan.py ops/test_diagonal_scan.py \
  ops/test_regularised.py jacobians

gpu: develop
	PATH="$(CURDIR)/$(BIN):$$PATH" $(MAKE) gpu-offline GPU_PYTHON="$(CURDIR)/$(BIN)/python"

gpu-offline: gpu-build
	$(MAKE) -k gpu-test gpu-benchmark gpu-sanitize gpu-sanitize-sync GPU_PYTHON="$(GPU_PYTHON)"

# DAY: more of its options, as --again grid; see --help.
gpu-day:
	$(GPU_PYTHON) -m experiments.benchmarks.gpu_day $(if $(MINUTES),--minutes $(MINUTES)) \
	  $(if $(OUT),--out "$(OUT)") $(DAY)

gpu-build: $(if $(GPU_LIBRARIES),,gpu-compile)
	rm -rf $(SITE)
	mkdir -p $(SITE)/bppsa_lightning-0.dist-info
	cp -r bppsa_lightning $(SITE)/
	rm -rf $(SITE)/bppsa_lightning/datasets
	ln -sfn "$(CURDIR)/experiments" $(SITE)/experiments
	cp -r datasets $(foreach library,_C.so _C_cuda.so,"$(or $(GPU_LIBRARIES),$(GPU_BUILD))/$(library)") \
	  $(SITE)/bppsa_lightning/
	printf 'Metadata-Version: 2.1\nName: bppsa-lightning\nVersion: %s\n' \
	  "$$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)" \
	  > $(SITE)/bppsa_lightning-0.dist-info/METADATA

gpu-compile:
	python="$$($(GPU_PYTHON) -c 'import sys; print(sys.executable)')" && \
	cmake -S csrc -B $(GPU_BUILD) -G Ninja -DPython_EXECUTABLE="$$python" -DBPPSA_CUDA=ON \
	  "-DBPPSA_LEVELS=$(GPU_LEVELS)" $(if $(GPU_ARCHITECTURES),$(GPU_BUILD_OPTIONS))
	cmake --build $(GPU_BUILD)

# A process for each file: what one kernel does to the device does not reach the other files' tests.
# `make -k -j4 gpu-test` runs four at a time.
GPU_TESTS := $(patsubst tests/%,gpu-test/%,$(sort \
  $(shell grep -rlE --include='test_*.py' 'needs_gpu|DEVICES|mark\.gpu' tests)))
.PHONY: $(GPU_TESTS)
gpu-test: $(GPU_TESTS)
$(GPU_TESTS): gpu-test/%:
	cd tests && $(GPU_PATH) timeout $(GPU_TEST_SECONDS) $(GPU_PYTHON) -m pytest -m gpu -q \
	  -o faulthandler_timeout=60 $* || [ $$? = 5 ]

# synccheck: our kernels only. (initcheck has to see who else writes what they read.)
gpu-sanitize-sync: SANITIZER_TOOLS = synccheck initcheck
gpu-sanitize gpu-sanitize-sync: SANITIZER_TOOLS ?= memcheck racecheck
gpu-sanitize gpu-sanitize-sync:
	cd tests && for tool in $(SANITIZER_TOOLS); do \
	  [ $$tool = synccheck ] && ours="--kernel-name kernel_substring=bppsa" || ours=; \
	  PYTORCH_NO_CUDA_MEMORY_CACHING=1 $(GPU_PATH) timeout $(SANITIZER_SECONDS) \
	    $(SANITIZER) --tool $$tool $$ours --error-exitcode 1 $(GPU_PYTHON) -m pytest -q -x \
	    -m gpu $(SANITIZED_FILES) -k "$(SANITIZED)" || exit 1; \
	done

gpu-benchmark:
	cd $(SITE) && $(RUN) -m experiments.benchmarks.products --device cuda --record; products=$$?; \
	$(RUN) -m experiments.benchmarks.recurrent_gpu --record && exit $$products

clean:
	rm -rf $(VENV) build runs .pytest_cache .mypy_cache .ruff_cache .hypothesis
