# `make` lists the targets. Linux x86-64; needs Python 3.11 or 3.12, everything else goes into .venv.

SHELL := /bin/bash
.ONESHELL:
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help venv venv-gpu quickstart quickstart-gpu gpu-check gpu-bench bundle dist test test-all test-long fuzz chaos phases soak picture lint types docs clean

VENV := .venv
LOCK := requirements/cpu.txt
BIN := $(VENV)/bin
LOG := $(VENV)/install.log
STAMP := $(VENV)/.installed
OPTIONS :=
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(STAMP) ## install everything into .venv (once: minutes, 5 GB); PYTHON=... picks the interpreter of a new one

quickstart: $(STAMP) ## train a small model by self-play on this machine, into the next free runs/quickstart folder
	@$(BIN)/spag-ray quickstart $(OPTIONS)

GPU_VENV := VENV=.venv-gpu LOCK=requirements/gpu.txt
HAS_GPU = nvidia-smi -L 2>/dev/null | grep -q GPU || { echo 'spag-ray: nvidia-smi finds no GPU here$(1).' >&2; exit 2; }

venv-gpu: ## install everything for NVIDIA GPUs into .venv-gpu (once: minutes, gigabytes)
	@$(MAKE) --no-print-directory venv $(GPU_VENV)

quickstart-gpu: ## the quickstart on one NVIDIA GPU, with separate packages in .venv-gpu
	@$(call HAS_GPU,; `make quickstart` runs on CPUs)
	$(MAKE) --no-print-directory quickstart $(GPU_VENV)

gpu-check: ## run the checks that need NVIDIA GPUs, in 10 minutes (docs/gpu.md)
	@$(call HAS_GPU,)
	$(MAKE) --no-print-directory venv $(GPU_VENV)
	.venv-gpu/bin/python -m benchmarks.gpu_check

gpu-bench: ## measure learner, self-play and weight sync beside the published ways on one GPU: about 2 minutes each, estimated (docs/benchmarks.md)
	@$(call HAS_GPU,)
	$(MAKE) --no-print-directory venv $(GPU_VENV)
	.venv-gpu/bin/python -c 'import trl' 2>/dev/null || .venv-gpu/bin/python -m pip install --quiet --no-deps -r requirements/peers.txt || true
	failed=0
	for part in learner selfplay weight_sync; do timeout -k 10 300 .venv-gpu/bin/python -m benchmarks.$$part --quick || { echo "benchmarks.$$part failed, or did not end within 300 s" >&2; failed=1; }; done
	exit $$failed

bundle: ## write all that a machine without a network installs into dist/bundle-cpu; or LOCK=requirements/gpu.txt PYTHON=python3.12
	@requirements/offline/bundle.sh $(LOCK) dist/bundle-$(basename $(notdir $(LOCK))) $(or $(PYTHON),python3)

dist: $(STAMP) ## build wheel and sdist into dist/, and try each in a new environment: the quickstart's plan
	@rm -rf build dist/*.whl dist/*.tar.gz  # what an earlier build left would be packed
	tried=; trap 'rm -rf "$$tried"' EXIT
	$(BIN)/python -c "from setuptools import build_meta as b; b.build_sdist('dist'); b.build_wheel('dist')" >$(LOG) 2>&1 || { tail -n 20 $(LOG) >&2; exit 2; }
	for built in dist/*.whl dist/*.tar.gz; do
	    tried=$$(mktemp -d)
	    $(BIN)/python -m venv --without-pip "$$tried"
	    $(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" >"$$(echo "$$tried"/lib/python*/site-packages)/locked.pth"  # the locked packages
	    $(BIN)/python -m pip --python "$$tried"/bin/python install --quiet --no-deps --no-index --no-build-isolation "$$built"
	    (cd "$$tried" && bin/spag-ray train quickstart --dry-run >plan.txt && bin/python -c "import spag_ray, sys; sys.exit('$$tried' not in spag_ray.__file__)")
	    echo "$$built: installs, and plans the quickstart"
	    rm -rf "$$tried"
	done

test: $(STAMP) ## run the quick tests, tests/unit
	@$(BIN)/python -m pytest tests/unit -n auto --maxprocesses 4 --dist loadfile

test-all: $(STAMP) ## run the slow tests, tests/integration: whole runs, clusters, a browser
	@failed=0
	$(BIN)/python -m pytest tests/integration -m "slow and parallel" -n 2 --dist loadfile || failed=1
	$(BIN)/python -m pytest tests/integration -m "slow and not parallel" --durations 30 || failed=1
	exit $$failed

test-long: $(STAMP) ## run the longest tests: the slow ones with more variants, and the longest whole runs (two hours)
	@$(BIN)/python -m pytest tests/integration -m long

fuzz: $(STAMP) ## fuzz every reader of files and the referee; SECONDS_EACH=600 sets how long
	@for target in wire log json; do $(BIN)/python tests/fuzz/fuzz_bytes.py $$target -max_total_time=$(or $(SECONDS_EACH),600); done
	@$(BIN)/python tests/fuzz/fuzz_judge.py -max_total_time=$(or $(SECONDS_EACH),600)

chaos: $(STAMP) ## kill every kind of process, 30 times, in a run that has to finish (about 40 minutes); SEED=1 changes the order
	@SEED=$(or $(SEED),0) $(BIN)/python -m pytest tests/chaos/test_chaos.py tests/chaos/test_fleet_faults.py -s

phases: $(STAMP) ## stop each kind of process in each phase of a run, 28 runs that have to finish (about half an hour)
	@$(BIN)/python -m pytest tests/chaos/test_phases.py -s

soak: $(STAMP) ## measure whether memory grows over a million games without models
	@$(BIN)/python -m benchmarks.soak

picture: $(STAMP) ## print which rooms import from which, and how often
	@$(BIN)/python -m pytest tests/unit/run/test_rooms.py -q -s -k print

lint: $(STAMP) ## check style and formatting
	@$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP) ## check types
	@$(BIN)/mypy

docs: $(STAMP) ## build the documents into site/; a warning is an error
	@$(BIN)/python -c 'import zensical' 2>/dev/null || $(BIN)/python -m pip install --quiet --no-deps -r requirements/docs.txt
	NO_COLOR=1 $(BIN)/zensical build --strict

clean: ## remove builds and caches (environments and runs/ stay)
	@rm -rf build dist site ./*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +

# A name on the PATH may be a shim that does not run, so each candidate is tried. If PYTHON is given, it is the only one.
$(STAMP): $(LOCK) setup.py
	@supported='import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))'
	give_up() { echo "spag-ray: $$1" >&2; exit 2; }
	[[ $$(uname -sm) == "Linux x86_64" ]] || give_up "the locked packages are for Linux on x86-64, not $$(uname -sm); use such a machine or a container."
	python= no_venv=
	for candidate in $(if $(PYTHON),"$(PYTHON)",python3.11 python3.12 python3); do
	    "$$candidate" -c "$$supported" 2>/dev/null || continue
	    if "$$candidate" -c "import ensurepip, venv" 2>/dev/null; then python=$$candidate; break; else no_venv=$$candidate; fi
	done
	if [[ -z $$python && -n $$no_venv ]]; then
	    give_up "$$no_venv has no venv module; install it (Debian, Ubuntu: apt install python3-venv, or python3.12-venv for that version) and run make again."
	elif [[ -z $$python ]]; then
	    give_up "$(if $(PYTHON),PYTHON=$(PYTHON) is not a working Python 3.11 or 3.12,no working Python 3.11 or 3.12 found); install one (e.g. apt install python3.11 python3.11-venv) or name it: make venv PYTHON=/path/to/python3.11"
	fi

	step() { # the line to print, then the command whose output goes to the log
	    echo "  $$1"; shift
	    "$$@" >>$(LOG) 2>&1 && return
	    tail -n 20 $(LOG) >&2
	    echo "spag-ray: that step failed; the whole output is in $(LOG). Run make again to continue." >&2
	    exit 2
	}
	install() { $(BIN)/python -m pip install --no-deps "$$@"; }
	install_torch() { # PyTorch's own index is used only if the ordinary one has no CPU build
	    local torch; torch=$$(grep '^torch==' $(LOCK))
	    install "$$torch" || { [[ $$torch == *+cpu ]] && install --index-url $(TORCH_INDEX) "$$torch"; }
	}
	install_lock() { install -r <(grep -v '^torch==' $(LOCK)); }
	version_of() { "$$1" -c 'import sys; print(*sys.version_info[:2], sep=".")' 2>/dev/null || true; }

	version=$$(version_of "$$python")
	echo "Installing into $(VENV) with Python $$version (about 3 minutes and 5 GB the first time)"
	command -v g++ >/dev/null || echo "  no g++ here: that is fine, DeepSpeed works without the operations that it would compile"
	[[ $$(version_of $(BIN)/python) == "$$version" ]] || rm -rf $(VENV)
	mkdir -p $(VENV)
	date >$(LOG)
	[[ -x $(BIN)/pip ]] || step "environment" "$$python" -m venv $(VENV)
	step "torch" install_torch
	step "$$(grep -c '^[a-zA-Z].*==' $(LOCK)) locked packages" install_lock
	step "spag-ray itself, editable" install --no-build-isolation -e .
	step "trying the imports" $(BIN)/python -c "import torch, transformers, deepspeed, ray, vllm, cluster.cli"
	touch $@
	echo "Done: $(BIN)/spag-ray --help"
