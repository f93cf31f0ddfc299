# make demo and make test are all the set-up there is: they need Python 3.11 or newer and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed

.PHONY: help demo test gpu size engines test-cpus test-all test-faults test-cluster contract lint types docs tables readme wheel bench watch-others clean

help:
	@echo "make demo    set up, train a p-RoPE model on real text, measure it (about 4 minutes and an install)"
	@echo "make test    set up, run the suite (seven to twelve minutes on two cores, no network, no GPU)"
	@echo "make test-cpus  the tests of numbers as other kinds of CPU compute them, with one thread and two (half an hour)"
	@echo "make test-all   that, make test-faults and the tests that take long (compiled runs)"
	@echo "make test-faults  invocations, wrong and right, kills at every change of the disk, strange places"
	@echo "make test-cluster  jobs of a real Slurm, which it starts and stops on this machine (five minutes)"
	@echo "make contract CONFIG_DIR=mine   the contract tests on the variants of your own conf folder"
	@echo "make lint    ruff       make types   mypy       make wheel   build it and run it from an empty directory"
	@echo "make docs    the pages of docs/ and the reference as a site in site/, which needs no network"
	@echo "make tables  write the tables of docs/results anew from the values of each seed"
	@echo "make readme  run each command that README.md and docs print after a $$, without a network (about half an hour)"
	@echo "make bench   training, attention and probes against other implementations (about an hour)"
	@echo "make gpu     what waits for a GPU: its tests, attention to 128k, throughput, max retrieval (25 minutes; DRY=1 on a CPU)"
	@echo "make engines  which mistakes of position engines make, each in an environment of its own (two hours; ENGINES=mlx_lm: minutes)"
	@echo "make watch-others  rr.watch in nanoGPT, nanochat and x-transformers, fetched for it (needs a network)"
	@echo "make size    statements by room beside the budget, and the share of the rooms of the mission"

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed; give one: make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(INSTALLED)
	$(BIN)/roundround train pe=p_rope
	$(BIN)/roundround eval run=last length=128,256,512

# One worker for each core, of one thread: no more than four, because each takes about 1.5 GiB. It stands here and not in
# pyproject.toml, so that a single test by hand runs in one process.
test: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n logical --maxprocesses 4 --dist worksteal

# What computes numbers, with the vector units of other CPUs. Not the tests of memory, which none of these change.
NUMERICAL := tests/kernels tests/pe tests/softmax tests/model tests/papers/test_claims.py \
	tests/papers/test_retrieval_model.py \
	tests/probing/test_probe.py tests/hf/test_hf_load.py \
	tests/hf/test_hf_attention.py tests/hf/test_hf_patch.py tests/trained/test_initial.py tests/training/test_half_precision.py \
	tests/training/test_recipe.py tests/training/test_combinations.py
CPUS := ATEN_CPU_CAPABILITY=default ATEN_CPU_CAPABILITY=avx2 'ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2'

test-cpus: $(INSTALLED)
	for cpu in $(CPUS); do for threads in 1 2; do echo "$$cpu, threads: $$threads"; \
		env $$cpu OMP_NUM_THREADS=$$threads $(BIN)/python -m pytest -q -rs -n logical --maxprocesses 4 --dist worksteal \
		-k 'not memory' $(NUMERICAL) || exit 1; done; done

test-all: test test-faults
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n logical --maxprocesses 4 --dist worksteal -m 'slow and not cluster and not faults'

test-faults: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n logical --maxprocesses 4 --dist worksteal -m '' tests/faults $(if $(ONLY),-k '$(ONLY)')

# Needs Debian's slurm-wlm and munge, and root; elsewhere it skips and says why.
test-cluster: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,slurm]'
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -rs -m cluster tests/cluster

contract: $(INSTALLED)
	$(if $(CONFIG_DIR),,$(error give the folder of your variants: make contract CONFIG_DIR=mine))
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n logical --maxprocesses 4 --dist worksteal --config-dir $(CONFIG_DIR) \
		tests/pe/test_pe_contract.py tests/softmax/test_softmax_contract.py tests/data/tasks/test_task_contract.py

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

docs: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --config-file docs/mkdocs/mkdocs.yml

tables: $(INSTALLED)
	PYTHONPATH=benchmarks $(BIN)/python -m results.write

readme: $(INSTALLED)
	$(BIN)/python tests/readme_commands.py README.md docs/index.md \
		$$(grep -rl '^[$$] ' --include='*.md' docs/howto docs/reference docs/results | sort)

wheel: $(INSTALLED)
	rm -rf dist
	$(BIN)/python -m build --wheel --no-isolation --outdir dist .
	PYTHON=$(abspath $(BIN))/python sh tests/wheel.sh dist/*.whl

# On a machine with one NVIDIA GPU, whose torch PYTHON brings: no environment is made, nothing is downloaded.
gpu:
	PYTHONPATH=$(CURDIR):$$PYTHONPATH $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) benchmarks/gpu.py $(if $(DRY),--dry)

bench: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[bench]'
	$(BIN)/python benchmarks/train_throughput.py
	$(BIN)/python benchmarks/train_throughput.py --compile
	$(BIN)/python benchmarks/attention.py
	$(BIN)/python benchmarks/probe.py
	$(BIN)/python benchmarks/lab_book.py
	$(BIN)/python benchmarks/tasks.py
	$(BIN)/python benchmarks/documents.py
	$(BIN)/python benchmarks/scale.py speed

engines: $(INSTALLED)
	$(BIN)/python benchmarks/engines.py $(ENGINES)

watch-others: $(INSTALLED)
	$(BIN)/python benchmarks/watch_others.py

size: $(INSTALLED)
	$(BIN)/python benchmarks/size.py

clean:
	rm -rf $(VENV) site dist build .pytest_cache .ruff_cache .mypy_cache
