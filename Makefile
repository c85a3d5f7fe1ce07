# make        builds the library and the command (build/bin/octavo)
# make demo   the main job on real data: every recipe on Q, K, V of a language model, one table
# make cuda   as make, with the CUDA kernels even where there is no GPU to run them; needs nvcc (CUDA >= 12.5)
# make test   builds and runs all tests
# make lint   formatting and static checks; needs clang-format and clang-tidy (14 and later), and ruff
# The others install what is missing first (Debian 12, Ubuntu 24.04 or newer; see scripts/setup.sh) and are quick the
# second time. CUDA code is compiled where a GPU and nvcc are, by `make test` wherever nvcc is.
BUILD ?= build
JOBS ?= $(shell nproc)
PYTHON := .venv/bin/python
# CI=true makes warnings errors; elsewhere a newer compiler may warn about what ours does not.
CMAKE = cmake -S . -B $(BUILD) -G Ninja -DCMAKE_BUILD_TYPE=Release -DOCTAVO_WERROR=$(if $(CI),ON,OFF)
SOURCES = $(shell git ls-files '*.cpp' '*.hpp' '*.h' '*.c' '*.cu' '*.cuh')
NVCC = $(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc))
CUDA = AUTO

.PHONY: all demo cuda test sanitize lint format clean
all:
	@scripts/setup.sh build
	@$(CMAKE) -DOCTAVO_TESTS=OFF -DOCTAVO_CUDA=$(CUDA)
	@echo "Building build/bin/octavo with $(JOBS) jobs"
	@cmake --build $(BUILD) --parallel $(JOBS)

demo: all
	@$(BUILD)/bin/octavo demo

cuda: CUDA = ON
cuda: all

test:
	@scripts/setup.sh test
	@$(CMAKE) -DOCTAVO_TESTS=ON -DOCTAVO_CUDA=$(if $(NVCC),ON,OFF) -DPython3_EXECUTABLE=$(abspath $(PYTHON))
	@cmake --build $(BUILD) --parallel $(JOBS)
	@ctest --test-dir $(BUILD) --output-on-failure
	@echo "Installing the Python package into .venv"
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-build-isolation .
	@$(PYTHON) -m pytest -q tests/python

sanitize:
	@scripts/setup.sh test
	@cmake --preset sanitize -DPython3_EXECUTABLE=$(abspath $(PYTHON))
	@cmake --build --preset sanitize --parallel $(JOBS)
	@ctest --preset sanitize

lint:
	@echo "ruff, clang-format, clang-tidy over $(words $(SOURCES)) sources"
	@ruff format --check .
	@ruff check .
	@clang-format --dry-run --Werror $(SOURCES)
	@clang-tidy -p $(BUILD) --quiet $(filter src/core/% src/cpu/driver% src/cpu/layout% src/io/% src/reference/% src/capi/% tools/%,$(filter %.cpp,$(SOURCES)))

format:
	clang-format -i $(SOURCES)
	ruff format .

clean:
	rm -rf $(BUILD)
