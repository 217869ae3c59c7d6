# Every target leaves a stamp in .venv, so that a second call only does what has changed.
#
#   make serve                   a server of the demo model on http://127.0.0.1:8000
#   make test                    the whole suite, warnings of the compiler being errors
#   make install TORCH=<req>     with another PyTorch: a requirement, or the path of a wheel
#                                (read when .venv is made; `make clean` makes it afresh)

PYTHON ?= python3
TORCH ?= torch==2.13.0
MODEL ?= smollm2-135m-instruct
HOST ?= 127.0.0.1
PYTEST_ARGS ?= -n auto --maxprocesses 8 --dist loadfile
PORT ?= 8000

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
STAMPS := .venv/stamps
NPM := tests/npm_client
CPP_FILES := $(shell find csrc tests -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh')
BUILD_INPUTS := setup.py pyengine/_build.py $(shell find csrc -name '*.inc') \
                $(filter csrc/%,$(CPP_FILES))

.PHONY: install serve test lint bench wheel clean

install: $(STAMPS)/package

serve: install
	$(BIN)/pyengine serve $(MODEL) --host $(HOST) --port $(PORT)

test: export PYENGINE_WERROR = 1
test: $(STAMPS)/test $(STAMPS)/npm
	$(BIN)/python -m tests.cuda.emulation
	$(BIN)/python -m tests.cuda.nvcc
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(STAMPS)/lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(CPP_FILES)

bench: install
	$(BIN)/pyengine bench $(MODEL)

# build/lib would keep modules that the tree no longer has, and put them into the wheel.
wheel: install
	rm -rf build/lib* build/bdist* dist
	$(PIP) wheel --no-build-isolation --no-deps --wheel-dir dist .
	@ls -l dist/*.whl

clean:
	rm -rf .venv build dist *.egg-info pyengine/*.so $(NPM)/node_modules

# The first message that applies beats what pip or the compiler would say about the same thing.
$(STAMPS)/venv:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "pyengine: $(PYTHON) is not found: install Python 3.11 or later, or name it: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "pyengine: needs Python 3.11 or later, and $(PYTHON) is $$($(PYTHON) -V 2>&1 | head -n 1): name another with make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "pyengine: $(PYTHON) can't make virtual environments: install python3-venv" >&2; exit 1; }
	@$(PYTHON) -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' || { \
	  echo "pyengine: $(PYTHON) comes without Python.h: install python3-dev" >&2; exit 1; }
	@command -v $(CXX) >/dev/null || { \
	  echo "pyengine: no C++ compiler: install g++ (11 or later), or name one with CXX=" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	@mkdir -p $(STAMPS) && touch $@

# PyTorch goes first: the extensions are compiled against the copy that will run them.
$(STAMPS)/torch: $(STAMPS)/venv
	$(PIP) install '$(TORCH)'
	$(PIP) install 'setuptools>=77' 'pybind11>=2.13' ninja numpy
	@touch $@

# An editable install compiles everything; after a change of C++ alone, ninja does what is needed.
$(STAMPS)/package: $(STAMPS)/torch pyproject.toml $(BUILD_INPUTS)
	$(if $(filter $(STAMPS)/torch pyproject.toml setup.py,$?), \
	  $(PIP) install --no-build-isolation --editable ., \
	  $(BIN)/python setup.py --quiet build_ext --inplace)
	@touch $@

# `pip install -e .[test]` would compile again; the package is there, so only its extra is added.
$(STAMPS)/test $(STAMPS)/lint: $(STAMPS)/%: $(STAMPS)/package
	$(BIN)/python -c 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	  print(*project["optional-dependencies"]["$*"], sep="\n")' > $@.requirements
	$(PIP) install -r $@.requirements
	@touch $@

# Tests stay on the loopback network, so what the one in Node imports is here before they begin.
$(STAMPS)/npm: $(STAMPS)/test $(addprefix $(NPM)/,package.json package-lock.json .npmrc)
	$(BIN)/npm ci --prefix $(NPM)
	@touch $@
