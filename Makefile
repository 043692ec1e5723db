# `make train` trains the example, `make test` runs every test; each installs and builds what it needs first.
BUILD  := build
CONFIG ?= examples/llama.toml
RUN    ?= runs/$(basename $(notdir $(CONFIG)))
JOBS   ?= $(shell nproc)
WERROR ?= ON
export TESSERA_PYTHON ?=

.PHONY: help deps configure build train test test-full test-busy mutants sweep bench instructions oldest versions sanitize cuda gpu wheel install format tidy adding clean
.DEFAULT_GOAL := help

help:
	@echo "make train    install what is missing, build, and train CONFIG=$(CONFIG) into RUN=$(RUN)"
	@echo "make test     the same, then build and run every test"
	@echo "make test-full  the whole matrices of which test runs a sample"
	@echo "make test-busy  every test beside two processes that never rest; how long each took: $(BUILD)/test_times.md"
	@echo "make mutants  plant the faults of tools/mutants one by one in $(BUILD)/mutants: each must be found by its tests; FAULTS=\"--only job.cpp\""
	@echo "make adding   apply the patches of tests/adding one by one in $(BUILD)/adding, build what they touch and run what they add"
	@echo "make sweep    PyTorch's own samples of every operator on DTensors, about an hour; goes on where it was stopped"
	@echo "make bench    the same, then build and run the benchmarks"
	@echo "make instructions  what a cached operator costs in instructions (callgrind)"
	@echo "make oldest   compile everything against the oldest torch that is supported, tools/oldest.txt"
	@echo "make versions  build with another pair of packages and run the tests of Python on them: TORCH=$(TORCH) TRANSFORMERS=$(TRANSFORMERS), ONLY=$(ONLY) (of ctest)"
	@echo "make sanitize  every C++ test with the address and undefined-behaviour sanitizers, then with the thread sanitizer: SANITIZE=\"asan tsan\""
	@echo "make cuda     compile what needs CUDA against a torch for it, tools/cuda.txt: 3 GB of wheels, no GPU"
	@echo "make gpu      the tests and benchmarks of tests/device on the GPU of this machine, with the torch of TESSERA_PYTHON or python3"
	@echo "make build    the program $(BUILD)/bin/tessera and the library $(BUILD)/lib/libtessera.so"
	@echo "make wheel    the Python package as $(BUILD)/wheel/tessera-*.whl, for pip"
	@echo "make deps     only the Debian packages and the Python environment"
	@echo "make install  into PREFIX, for find_package(tessera)"
	@echo "make format   write every C++ file as .clang-format says"
	@echo "make tidy     read the library with clang-tidy: no warning of .clang-tidy"
	@echo "make clean    remove $(BUILD)/, $(BUILD)-oldest/, $(BUILD)-asan/, $(BUILD)-tsan/, $(BUILD)-cuda/, $(BUILD)-gpu/, $(BUILD)-tidy/, $(BUILD)-versions/ and $(BUILD)-wheel/; the environment .venv/ stays"
	@echo "variables: CONFIG, RUN, JOBS=$(JOBS), WERROR=$(WERROR) (whether a warning is an error, asked when a build folder is made), BUSY (options of tools/test_times.py), FAULTS, SWEEP (options of tests/python/operator_sweep.py), PREFIX, TESSERA_PYTHON (a python that has torch, instead of .venv)"

deps:
	@tools/deps
	@mkdir -p $(BUILD) && tools/venv >$(BUILD)/.python.new
	@cmp -s $(BUILD)/.python.new $(BUILD)/.python || cp $(BUILD)/.python.new $(BUILD)/.python

# Ninja configures again by itself when a CMake file changes; here only when there is no build or another python.
configure: deps
	@test $(BUILD)/build.ninja -nt $(BUILD)/.python || cmake --preset release -DTESSERA_WERROR=$(WERROR) -DTESSERA_PYTHON="$$(cat $(BUILD)/.python)"

build: configure
	@cmake --build $(BUILD) -j $(JOBS) --target tessera_program

train: build
	@$(BUILD)/bin/tessera train $(CONFIG) --out $(RUN) --replace

test: configure
	@cmake --build $(BUILD) -j $(JOBS)
	@ctest --test-dir $(BUILD) -j $(JOBS) --output-on-failure

# The whole matrices of which `test` runs a sample.
test-full: configure
	@cmake --build $(BUILD) -j $(JOBS)
	@TESSERA_FULL=1 $(BUILD)/bin/test_ranks --gtest_filter=Products.*:Gradients.*
	@$(BUILD)/bin/test_audit --full
	@TESSERA_FULL=1 $(BUILD)/bin/test_ranks --gtest_filter=*TrainsAsFast*:ShardedMemory.*
	@TESSERA_FULL=1 PYTHONPATH=$(BUILD)/python $$(cat $(BUILD)/.python) tests/python/families_test.py
	@TESSERA_FULL=1 PYTHONPATH=$(BUILD)/python $$(cat $(BUILD)/.python) tests/python/sharded_optimizers_test.py
	@TESSERA_FULL=1 PYTHONPATH=$(BUILD)/python $$(cat $(BUILD)/.python) tests/python/adapters_test.py

test-busy: configure
	@cmake --build $(BUILD) -j $(JOBS)
	@tools/test_times.py $(BUILD) --jobs $(JOBS) --table $(BUILD)/test_times.md $(BUSY)

# May be ended and started again: what was found stays found. FAULTS are options of the tool, such as --only or --shard.
mutants: deps
	@$$(cat $(BUILD)/.python) tools/run_mutants.py --folder $(BUILD)/mutants --jobs $(JOBS) $(FAULTS)

# May be ended and started again: a patch that passed on the same sources is not built again. The first run builds most of the library.
adding: deps
	@$$(cat $(BUILD)/.python) tests/adding/build_patches.py --folder $(BUILD)/adding --jobs $(JOBS)

sweep: configure
	@cmake --build $(BUILD) -j $(JOBS) --target tessera_python
	@PYTHONPATH=$(BUILD)/python OMP_NUM_THREADS=1 $$(cat $(BUILD)/.python) tests/python/operator_sweep.py $(BUILD)/operators.jsonl $(SWEEP)

bench: configure
	@tools/deps bench
	@cmake -DTESSERA_BENCHMARKS=ON $(BUILD) >/dev/null
	@cmake --build $(BUILD) -j $(JOBS) --target run_benchmarks

instructions: configure
	@tools/deps bench
	@cmake -DTESSERA_BENCHMARKS=ON $(BUILD) >/dev/null
	@cmake --build $(BUILD) -j $(JOBS) --target run_instructions

oldest: deps
	@PIP_NO_DEPS=1 TESSERA_PYTHON= tools/venv $(BUILD)-oldest/venv tools/oldest.txt >/dev/null
	@cmake --preset release -B $(BUILD)-oldest -DTESSERA_PYTHON=$(CURDIR)/$(BUILD)-oldest/venv/bin/python -DTESSERA_WERROR=OFF
	@cmake --build $(BUILD)-oldest -j $(JOBS)

# The other packages are those of requirements.txt, but for tokenizers, which goes with transformers. Of a torch without a build for CPUs pip takes
# the one for CUDA, 5 GB with its libraries, which runs here too.
TORCH ?= 2.15.0
TRANSFORMERS ?= 5.24.0
ONLY ?= ^python_
PAIR = $(BUILD)-versions/$(TORCH)-$(TRANSFORMERS)
versions: deps
	@mkdir -p $(PAIR)
	@sed -E 's/^torch==.*/torch==$(TORCH)/; s/^transformers==.*/transformers==$(TRANSFORMERS)/; /^tokenizers==/d' requirements.txt >$(PAIR)/requirements.txt
	@TESSERA_PYTHON= tools/venv $(PAIR)/venv $(PAIR)/requirements.txt >/dev/null
	@cmake --preset release -B $(PAIR)/build -DTESSERA_PYTHON=$(CURDIR)/$(PAIR)/venv/bin/python -DTESSERA_WERROR=OFF
	@cmake --build $(PAIR)/build -j $(JOBS) --target tessera_program tessera_python test_step_trace test_run_logits test_counting test_compare_program
	@ctest --test-dir $(PAIR)/build -j $(JOBS) -R '$(ONLY)' --output-on-failure

# Each in a build folder of its own, $(BUILD)-asan and $(BUILD)-tsan. libtorch and gloo are not instrumented: what is known of them stands in
# tools/tsan.txt, and that an interceptor sees none of their synchronisation in `ignore_noninstrumented_modules`. Locks are not followed
# for deadlocks: of those that libtorch releases the sanitizer sees only half, and it keeps 64. With the thread sanitizer OpenMP has no
# teams, whose meeting nobody sees either: a rank's memory would seem to be read by them when it is long another's.
SANITIZE ?= asan tsan
sanitize: deps
	@for preset in $(SANITIZE); do \
	  cmake --preset $$preset -DTESSERA_PYTHON="$$(cat $(BUILD)/.python)" >/dev/null && \
	  cmake --build $(BUILD)-$$preset -j $(JOBS) --target test_programs && \
	  TSAN_OPTIONS="ignore_noninstrumented_modules=1 detect_deadlocks=0 suppressions=$(CURDIR)/tools/tsan.txt" ASAN_OPTIONS=detect_leaks=0 \
	  OMP_NUM_THREADS=1 OMP_THREAD_LIMIT=$$([ $$preset = tsan ] && echo 1 || echo 64) ctest --test-dir $(BUILD)-$$preset -j $(JOBS) -L '^test_' --output-on-failure || exit 1; \
	done

# Linking needs none of the CUDA libraries beside torch's own, and running needs a GPU.
cuda: deps
	@PIP_NO_DEPS=1 TESSERA_PYTHON= tools/venv $(BUILD)-cuda/venv tools/cuda.txt >/dev/null
	@cmake --preset release -B $(BUILD)-cuda -DTESSERA_PYTHON=$(CURDIR)/$(BUILD)-cuda/venv/bin/python -DTESSERA_NCCL=ON -DTESSERA_BENCHMARKS=ON -DTESSERA_WERROR=OFF
	@cmake --build $(BUILD)-cuda -j $(JOBS) --target test_gpu bench_step

GPU_PYTHON = $(or $(TESSERA_PYTHON),python3)
gpu:
	@cmake --preset release -B $(BUILD)-gpu -DTESSERA_PYTHON="$$(command -v $(GPU_PYTHON))" -DTESSERA_NCCL=ON -DTESSERA_BENCHMARKS=ON -DTESSERA_WERROR=OFF
	@cmake --build $(BUILD)-gpu -j $(JOBS) --target test_gpu bench_dispatch bench_step
	@ctest --test-dir $(BUILD)-gpu -L '^gpu$$' --output-on-failure
	@$(BUILD)-gpu/bin/bench_step cuda
	@$(BUILD)-gpu/bin/bench_dispatch cuda

# The Python of the build packs what is built; pyproject.toml says how `pip install .` compiles it instead.
wheel: configure
	@cmake --build $(BUILD) -j $(JOBS) --target tessera_wheel
	@$$(cat $(BUILD)/.python) -m pip wheel -q . --no-deps --no-build-isolation -w $(BUILD)/wheel \
	  -C build-dir=$(BUILD)/wheel/tree -C cmake.source-dir=cmake/prebuilt -C cmake.define.TESSERA_BUILT=$(CURDIR)/$(BUILD)
	@ls $(BUILD)/wheel/tessera-*.whl

install: build
	@cmake --install $(BUILD) $(if $(PREFIX),--prefix $(PREFIX))

format: deps
	@$$(cat $(BUILD)/.python) tools/check_format.py --fix

# Its clang-tidy stands apart: nothing else needs it.
tidy: configure
	@TESSERA_PYTHON= tools/venv $(BUILD)-tidy tools/tidy.txt >/dev/null
	@tools/check_tidy.py $(BUILD) $(BUILD)-tidy/bin/clang-tidy --jobs $(JOBS)

clean:
	@rm -rf $(BUILD) $(BUILD)-oldest $(BUILD)-asan $(BUILD)-tsan $(BUILD)-tidy $(BUILD)-cuda $(BUILD)-gpu $(BUILD)-versions $(BUILD)-wheel
